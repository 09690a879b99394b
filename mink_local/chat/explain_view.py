"""The full-screen view of /explain: one walks along an answer and sees what each token was sampled from."""

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from itertools import zip_longest

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mink_local.chat.answer_steps import AnswerSteps
from mink_local.chat.braille import bar, curve, cuts
from mink_local.chat.chat import Chat
from mink_local.chat.screen import counted, wrapped_rows
from mink_local.chat.walk import Walk
from mink_local.cli import printable
from mink_local.generation.sampling_step import SamplingStep

MIN_COLUMNS, MIN_ROWS = 76, 22  # of a window in which everything has its place
_NEEDED = f"{MIN_COLUMNS} columns and {MIN_ROWS} rows"

_Fork = tuple[int, int]  # the index of a token, and the id of the one to go on from instead
_App = Application[_Fork | None]

_KEYS = (
    "←→ token · n p fork · ↑↓ temperature · Tab 1–9 select · Enter go on from it · g picture · q leave",
    "←→ token  n p fork  ↑↓ T  Tab 1-9 select  Enter go on  g picture  q leave",
)
_HERE, _FORK, _DIM = "reverse", "underline", "dim"
_SHARE = 8  # columns of a probability


def opened(chat: Chat) -> bool:
    """Show the view of the last answer and return True; False if there is no terminal that it fits."""
    screen, size = chat.screen, chat.screen.console.size
    if screen.is_plain or not sys.stdin.isatty() or not screen.console.encoding.startswith("utf"):
        return False
    if size.width < MIN_COLUMNS or size.height < MIN_ROWS:
        chat.note(f"(the full-screen view needs a window of {_NEEDED})")
        return False
    session = chat.session
    steps = AnswerSteps(session, session.last_answer())
    walk = Walk(steps, session.model, at=steps.k.index(max(steps.k)))
    if fork := view(walk, screen.console):
        at, token = fork
        chat.note(f"(token {at + 1} is {steps.text(token)!r} instead of {steps.texts[at]!r})")
        chat.show(session.fork(at, token))
        chat.note_alternatives()
    return True


def view(walk: Walk, console: Console) -> _Fork | None:
    """Show an answer in the whole window until a key leaves the view; `console` is that of the screen.

    Returns where the answer is to go on, and from which token; None if it is not.
    """

    def screen_text() -> ANSI:
        size = app.output.get_size()
        with console.capture() as capture:
            for line in lines(walk, size.columns, size.rows):
                console.print(line, soft_wrap=True)
        return ANSI(capture.get().rstrip("\n"))

    app: _App = Application(
        Layout(Window(FormattedTextControl(screen_text), always_hide_cursor=True)),
        key_bindings=_key_bindings(walk),
        full_screen=True,
    )
    app.ttimeoutlen = 0.05  # seconds in which the rest of a key that begins with Esc has to come
    computing: asyncio.Task[None] | None = None

    def compute(_: object) -> None:
        nonlocal computing
        if walk.missing() and (computing is None or computing.done()):
            computing = app.create_background_task(_compute(walk, app))

    app.after_render += compute
    return app.run()


async def _compute(walk: Walk, app: _App) -> None:
    """Compute the steps that the view shows now or may show next, in another thread."""
    try:
        while key := walk.missing():
            walk.add(key, await asyncio.to_thread(walk.compute, key))
            app.invalidate()
    except asyncio.CancelledError:  # the view ends, and waits for the thread
        walk.model.interrupt()
        raise


def _key_bindings(walk: Walk) -> KeyBindings:
    bindings = KeyBindings()

    def bind(act: Callable[[], None], *keys: str) -> None:
        def handler(_: KeyPressEvent) -> None:
            walk.message = ""
            act()

        for key in keys:
            bindings.add(key)(handler)

    bind(lambda: walk.go(walk.at + 1), "right", "l")
    bind(lambda: walk.go(walk.at - 1), "left", "h")
    bind(lambda: walk.go(0), "home")
    bind(lambda: walk.go(len(walk.steps.tokens)), "end")
    bind(partial(walk.go_to_fork, 1), "n")
    bind(partial(walk.go_to_fork, -1), "p")
    bind(partial(walk.heat, 1), "up")
    bind(partial(walk.heat, -1), "down")
    bind(partial(walk.select_next, 1), "tab")
    bind(partial(walk.select_next, -1), "s-tab")
    for number in range(1, 10):
        bind(partial(walk.select, number - 1), str(number))
    bind(walk.switch, "g")

    @bindings.add("enter")
    def go_on(event: KeyPressEvent) -> None:
        token = walk.fork()
        if token is not None:
            event.app.exit(result=(walk.at, token))

    @bindings.add("q")
    @bindings.add("escape")
    @bindings.add("c-c")
    @bindings.add("c-d")
    def leave(event: KeyPressEvent) -> None:
        event.app.exit()

    return bindings


# The parts of the screen


def lines(walk: Walk, columns: int, rows: int) -> list[Text]:
    """Return the view as lines for a window."""
    if columns < MIN_COLUMNS or rows < MIN_ROWS:
        return [Text(f"This view needs {_NEEDED}."), Text("q leaves it.")]
    n_answer = max(3, rows // 5)
    n_body = rows - n_answer - 4
    draw_body = _picture if walk.has_picture else _table
    body = draw_body(walk, walk.step, columns, n_body) if walk.step else []
    keys = next(keys for keys in _KEYS if cell_len(keys) <= columns)
    return [
        _headline(walk, columns),
        *_padded(_answer(walk, columns, n_answer), n_answer),
        Text("─" * columns, _DIM),
        *_padded(body, n_body),
        _fit(Text(walk.message or walk.remark, "bold"), columns),
        Text(keys, _DIM),
    ]


def _headline(walk: Walk, columns: int) -> Text:
    steps, forks, at = walk.steps, walk.forks, walk.at
    parts = [f"token {at + 1} of {len(steps.tokens)}: {steps.texts[at]!r}"]
    if steps.k[at]:
        parts.append(counted(steps.k[at], "candidate"))
    if forks:
        parts.append(
            f"fork {forks.index(at) + 1} of {len(forks)}" if at in forks else counted(len(forks), "fork")
        )
    own = f"{steps.how(at).temperature:g}"
    parts.append(f"T = {own}" if walk.temperature is None else f"T = {walk.temperature:g} (sampled at {own})")
    return _fit(Text(" · ".join(parts), "bold"), columns)


def _answer(walk: Walk, columns: int, rows: int) -> list[Text]:
    """Return the lines of the answer around the token, which is reversed; forks are underlined."""
    answer, forks = Text(), set(walk.forks)
    for i, piece in enumerate(walk.pieces):
        text = printable(piece)
        if i == walk.at:
            answer.append(text.replace("\n", "↵\n") or printable(walk.steps.texts[i]), _HERE)
        else:
            answer.append(text.replace("\n", "↵\n") if i in forks else text, _FORK if i in forks else None)
    wrapped = wrapped_rows(answer, columns)
    here = next((i for i, line in enumerate(wrapped) if any(span.style == _HERE for span in line.spans)), 0)
    first = max(0, min(here - rows // 2, len(wrapped) - rows))
    return wrapped[first : first + rows]


def _table(walk: Walk, step: SamplingStep, columns: int, rows: int) -> list[Text]:
    """Return the candidates, and beside them what each method keeps."""
    left = columns * 11 // 20
    candidates, methods = _candidates(walk, step, left, rows), cuts(step, columns - left - 2)
    both = zip_longest(candidates, methods, fillvalue=Text())
    return [_fit(one, left).append("  ").append_text(other) for one, other in both]


def _picture(_: Walk, step: SamplingStep, columns: int, rows: int) -> list[Text]:
    """Return the curve of the logits, and below it, over the same axis, what each method keeps."""
    methods = cuts(step, columns)
    return [*curve(step, columns, rows - len(methods)), *methods]


def _candidates(walk: Walk, step: SamplingStep, columns: int, rows: int) -> list[Text]:
    """Return the candidates with bars of their probabilities, and a line at the cliff."""
    walk.rows = rows - 2  # without the titles and the cliff
    number = max(len(f"{rank + 1:,}") for rank in walk.shown)
    token = columns * 3 // 10
    width = columns - number - token - 2 * _SHARE - 6
    titles = f"  {'#':>{number}} {'token':<{token + 3}}{'':{width}}{'p':>{_SHARE}}{'sampled':>{_SHARE}}"
    table = [Text(titles, _DIM)]
    for rank in walk.shown:
        p, is_kept, is_sampled = step.p_hot[rank], rank < step.k, rank == step.sampled
        line = Text(
            "▸ " if rank == walk.selected else "  ", _DIM if not is_kept else "bold" if is_sampled else ""
        )
        line.append(f"{rank + 1:>{number},} ")
        line.append_text(_fit(Text(repr(walk.steps.text(int(step.ids[rank])))), token))
        line.append(" ◀ " if is_sampled else "   ")
        line.append(f"{bar(p / step.p_hot[0], width):<{width}}{p:>{_SHARE}.2%}")
        line.append(f"{f'{step.p_sampled[rank]:.2%}' if is_kept else 'cut':>{_SHARE}}")
        table.append(line)
        if rank + 1 == step.cliff:
            table.append(Text("── the cliff ".ljust(columns, "─"), "bold"))
    return table


def _fit(text: Text, columns: int) -> Text:
    """Return a text that takes exactly so many columns."""
    text.truncate(columns, overflow="ellipsis", pad=True)
    return text


def _padded(text: list[Text], rows: int) -> list[Text]:
    """Return exactly so many lines."""
    return [*text[:rows], *(Text() for _ in range(rows - len(text)))]
