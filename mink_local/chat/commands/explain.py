"""The commands that show how answers were sampled: /explain and /heat."""

import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import lru_cache, partial
from itertools import accumulate, zip_longest
from typing import TypeVar

from prompt_toolkit.application import Application, get_app, get_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.terminal import wrapped_rows
from mink_local.chat.terminal.progress import coloured
from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import counted, printable
from mink_local.errors import MinkError
from mink_local.generation.sampling_step import SamplingStep

TEMPERATURES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 15.0, 20.0, 50.0, 100.0)
MIN_COLUMNS, MIN_ROWS = 76, 22  # of a window that the full-screen view fits
_NEEDED = f"{MIN_COLUMNS} columns and {MIN_ROWS} rows"
_KEYS = "←→ token  n p fork  ↑↓ T  Tab 1-9 select  Enter continue from it  q leave"
_HERE, _FORK, _DIM = "reverse", "underline", "dim"
_PRINTED = 12  # candidates, where there is no full screen
_NUMBER, _NAME = 8, 16  # columns of a number, and of the name of a sampler
_WIDEST = 64  # columns of the candidates
_CONSTANT = ("greedy", "top-k")  # samplers that keep as many candidates at every step

_Number = TypeVar("_Number", int, float)
_Fork = tuple[int, int]  # the index of a token, and the id of the one to go on from instead


def explain(chat: Chat, argument: str) -> None:
    """Step through the last answer full-screen, and see what each token was sampled from.

    The arrows left and right go from token to token, n and p to the forks: tokens that had several
    candidates. Up and down change the temperature: the cuts of other samplers move. Tab or a digit selects
    another candidate, and Enter has the model go on from it, in another answer to the message. q leaves.

    With the number of a token, or a word of the answer: print its candidates.
    """
    session, screen = chat.session, chat.screen
    steps = AnswerSteps(session, session.last_answer())
    at = _index(steps, argument)
    can_show = not screen.is_plain and sys.stdin.isatty() and screen.console.encoding.startswith("utf")
    fits = can_show and _fits(get_app_session().output.get_size())  # of the window, whatever COLUMNS says
    if argument or not fits:
        _print_step(screen, steps, at)
        if can_show and not fits:
            chat.screen.note(f"/explain N prints token N; the full-screen view needs {_NEEDED}")
    elif fork := view(Walk(steps, at, "the token with the most candidates")):
        at, token = fork
        chat.screen.note(f"token {at + 1} is {steps.text(token)!r} instead of {steps.texts[at]!r}")
        chat.show(session.fork(at, token))


def _fits(window: Size) -> bool:
    """Return whether the full-screen view fits a window."""
    return window.columns >= MIN_COLUMNS and window.rows >= MIN_ROWS


def _index(steps: AnswerSteps, wanted: str) -> int:
    """Return the index of a token: by number, by its text, or the one with the most candidates."""
    if not wanted:
        return steps.k.index(max(steps.k))
    n = len(steps.texts)
    if re.fullmatch(r"-?\d{1,9}", wanted):
        number = int(wanted)
        if not 1 <= abs(number) <= n:
            raise MinkError(f"the last answer has {counted(n, 'token')}")
        return number - 1 if number > 0 else n + number
    start = "".join(steps.texts).find(wanted)
    if start < 0:
        raise MinkError(f"{wanted!r} is not in the last answer")
    ends = accumulate(map(len, steps.texts))
    return next(at for at, end in enumerate(ends) if end > start)


def _print_step(screen: Screen, steps: AnswerSteps, at: int) -> None:
    """Print one step as the full-screen view shows it."""
    screen.progress("reading the answer again …")
    step = steps.step(at)
    screen.show(_headline(steps, at))
    if at:
        before = "".join(steps.texts[max(0, at - 12) : at])
        screen.note(f"after …{one_line(before, screen.width - 8)}")
    for line in step_lines(steps, step, screen.width, _PRINTED + 3):
        line.rstrip()
        screen.show(line)
    screen.note(" ".join(steps.remarks(at, step)))


def heat(chat: Chat, _: str) -> None:
    """Colour the tokens of the last answer by how many candidates each had.

    /explain N shows the candidates of token N.
    """
    session, screen = chat.session, chat.screen
    steps = AnswerSteps(session, session.last_answer())
    if not any(steps.k):
        was_killed = session.last_answer().finish_reason is None
        why = "were lost when the program was killed" if was_killed else "say nothing: every token was forced"
        raise MinkError(f"this answer's numbers of candidates {why}")
    screen.show(coloured(session.model.token_texts(steps.tokens), steps.k, screen.theme), "")


# The full-screen view


class Walk:
    """A place in an answer, a temperature, and the selected candidate.

    Evaluating tokens takes time: after a move, `step` is still that of the last place until `compute` has
    run, perhaps in another thread.

    Attributes:
        at: The index of the token.
        temperature: What the step is shown at; None for the temperature of the answer.
        step: The step to show; None before the first one, and if it cannot be computed.
        rows: How many candidates there is space for; the view sets it.
        message: A sentence about the last key.
    """

    def __init__(self, steps: AnswerSteps, at: int = 0, message: str = "") -> None:
        self.steps = steps
        self.at = at
        self.temperature: float | None = None
        self.step: SamplingStep | None = None
        self.rows = 1
        self.message = message
        self._selected: int | None = None  # a rank
        self._remark = ""  # about `step`
        self._computed: tuple[int, float | None] | None = None  # the place and the temperature of `step`
        self._step_at = lru_cache(maxsize=1)(steps.step)  # temperatures change without evaluating again

    @property
    def is_computed(self) -> bool:
        """Whether `step` is that of the place and the temperature."""
        return self._computed == (self.at, self.temperature)

    @property
    def remark(self) -> str:
        """The remarks on the step, in one line."""
        return self._remark if self.is_computed else "computing …"

    def compute(self) -> None:
        """Compute the step of the place at the temperature, with all that is shown of it."""
        at, temperature = self.at, self.temperature
        try:
            step = self._step_at(at)
            if temperature is not None:
                step = step.at(temperature)
            _ = step.cuts, step.p_sampled  # cached: computed here, not while the view draws
            self.step, self._remark = step, " ".join(self.steps.remarks(at, step))
        except (MinkError, ValueError) as error:
            self.step, self._remark = None, str(error)
        except Exception as error:  # a thread's would be seen by nobody
            self.step, self._remark = None, f"an error of the program, please report it: {error!r}"
        self._computed = at, temperature

    def go(self, at: int) -> None:
        """Go to a token; beyond an end of the answer, to its first or last one."""
        self.at, self._selected = min(max(at, 0), len(self.steps.tokens) - 1), None

    def go_to_fork(self, direction: int) -> None:
        """Go to the next token that had several candidates, or with -1 to the previous one."""
        at = _next(self.steps.forks, self.at, direction)
        if at is None:
            self.message = f"no fork {'after' if direction > 0 else 'before'} this token"
        else:
            self.go(at)

    def change_temperature(self, direction: int) -> None:
        """Go to the next higher temperature, or with -1 to the next lower one."""
        own = self.steps.sampling_info(self.at).temperature or 1.0
        found = _next((*TEMPERATURES, own), self.temperature or own, direction)
        if found is not None:
            self.temperature = None if found == own else found

    @property
    def shown(self) -> list[int]:
        """The ranks of the candidates that are shown."""
        return self.step.shown_ranks(self.rows) if self.step else []

    @property
    def selected(self) -> int | None:
        """The rank of the selected candidate, at first that of the sampled token; None without a step."""
        if self.step is None:
            return None
        return self._selected if self._selected in self.shown else self.step.sampled

    def select(self, row: int) -> None:
        """Select a candidate by its row; the first one comes after the last one."""
        if self.shown:
            self._selected = self.shown[row % len(self.shown)]

    def select_next(self, direction: int) -> None:
        """Select the next candidate, or with -1 the previous one."""
        if self.selected is not None:
            self.select(self.shown.index(self.selected) + direction)

    def fork(self) -> int | None:
        """Return the selected token if the answer can go on from it; if it cannot, `message` says why."""
        if self.step is None or self.selected is None or not self.is_computed:
            return None
        token = int(self.step.ids[self.selected])
        if self.selected == self.step.sampled:
            self.message = "the answer goes on from this token: select another with Tab or its number"
        elif token in self.steps.model.weights.end_tokens:
            self.message = "this token ends the answer: nothing comes after it"
        else:
            return token
        return None


def _next(values: Iterable[_Number], now: _Number, direction: int) -> _Number | None:
    """Return the value that is next above another, or with -1 next below it; None if there is none."""
    beyond = (value for value in values if (value - now) * direction > 0)
    return min(beyond, key=lambda value: abs(value - now), default=None)


def fragments(shown: Iterable[Text]) -> StyleAndTextTuples:
    """Return lines as prompt_toolkit draws them, whose words for styles are those of rich."""
    console = Console()
    parts = (part for line in shown for part in [*line.render(console), Segment("\n")])
    return [(str(part.style or ""), part.text) for part in parts]


def view(walk: Walk) -> _Fork | None:
    """Show an answer full-screen until a key leaves the view.

    Returns where the answer is to go on, and from which token; None if it is not.
    """

    computing: Future[None] | None = None

    def screen_text() -> StyleAndTextTuples:
        nonlocal computing
        if not walk.is_computed and (computing is None or computing.done()):
            computing = thread.submit(walk.compute)
            computing.add_done_callback(lambda _: app.invalidate())
        size = app.output.get_size()
        return fragments(lines(walk, size.columns, size.rows))[:-1]

    app: Application[_Fork | None] = Application(
        Layout(Window(FormattedTextControl(screen_text), always_hide_cursor=True)),
        key_bindings=_key_bindings(walk),
        full_screen=True,
    )
    app.ttimeoutlen = 0.05  # seconds in which the rest of a key that begins with Esc has to come
    with ThreadPoolExecutor(1) as thread:
        try:
            return app.run()
        finally:
            while computing and not computing.done():  # it may not have asked the model yet
                walk.steps.model.interrupt()
                wait([computing], 0.1)


def _key_bindings(walk: Walk) -> KeyBindings:
    moves: dict[str, Callable[[], None]] = {
        "right": lambda: walk.go(walk.at + 1),
        "left": lambda: walk.go(walk.at - 1),
        "home": lambda: walk.go(0),
        "end": lambda: walk.go(len(walk.steps.tokens)),
        "n": partial(walk.go_to_fork, 1),
        "p": partial(walk.go_to_fork, -1),
        "up": partial(walk.change_temperature, 1),
        "down": partial(walk.change_temperature, -1),
        "tab": partial(walk.select_next, 1),
        "s-tab": partial(walk.select_next, -1),
        **{str(row + 1): partial(walk.select, row) for row in range(9)},
    }

    bindings, is_shown = KeyBindings(), Condition(lambda: _fits(get_app().output.get_size()))
    for key, move in moves.items():
        bindings.add(key, filter=is_shown)(partial(_move, walk, move))
    for key in ("q", "escape", "c-c", "c-d"):
        bindings.add(key)(lambda event: event.app.exit())

    @bindings.add("enter", filter=is_shown)
    def go_on(event: KeyPressEvent) -> None:
        walk.message = ""
        token = walk.fork()
        if token is not None:
            event.app.exit(result=(walk.at, token))

    return bindings


def _move(walk: Walk, move: Callable[[], None], _: KeyPressEvent) -> None:
    walk.message = ""
    move()


def lines(walk: Walk, columns: int, rows: int) -> list[Text]:
    """Return the view as lines for a window."""
    if not _fits(Size(rows, columns)):
        return [Text(f"This view needs {_NEEDED}."), Text("q leaves it.")]
    n_answer = max(3, rows // 5)
    n_body = rows - n_answer - 4
    walk.rows = n_body - 3  # without the titles, the cliff, and the end of what is kept
    body = wrapped_rows(Text(walk.remark), columns)
    if walk.step:
        body = step_lines(walk.steps, walk.step, columns, n_body, walk.selected)
    return [
        _fit(_headline(walk.steps, walk.at, walk.temperature), columns),
        *_padded(_answer(walk, columns, n_answer), n_answer),
        Text("─" * columns, _DIM),
        *_padded(body, n_body),
        _fit(Text(walk.message or walk.remark, "bold"), columns),
        Text(_KEYS, _DIM),
    ]


def _headline(steps: AnswerSteps, at: int, temperature: float | None = None) -> Text:
    parts = [f"token {at + 1} of {len(steps.tokens)}: {steps.texts[at]!r}"]
    if steps.k[at]:
        parts.append(counted(steps.k[at], "candidate"))
    if at in steps.forks:
        parts.append(f"fork {steps.forks.index(at) + 1} of {len(steps.forks)}")
    elif steps.forks:
        parts.append(counted(len(steps.forks), "fork"))
    own = f"{steps.sampling_info(at).temperature:g}"
    parts.append(f"T = {own}" if temperature is None else f"T = {temperature:g} (sampled at {own})")
    return Text(" · ".join(parts), "bold")


def _answer(walk: Walk, columns: int, rows: int) -> list[Text]:
    """Return the lines of the answer around the token, which is reversed; forks are underlined."""
    answer, forks = Text(), set(walk.steps.forks)
    for at, piece in enumerate(walk.steps.model.token_texts(walk.steps.tokens)):
        text = printable(piece)
        if at == walk.at:
            answer.append(text.replace("\n", "↵\n") or printable(walk.steps.texts[at]), _HERE)
        else:
            answer.append(text.replace("\n", "↵\n") if at in forks else text, _FORK if at in forks else None)
    wrapped = wrapped_rows(answer, columns)
    here = next((i for i, line in enumerate(wrapped) if any(span.style == _HERE for span in line.spans)), 0)
    first = max(0, min(here - rows // 2, len(wrapped) - rows))
    return wrapped[first : first + rows]


# A step, the same full-screen and printed


def step_lines(
    steps: AnswerSteps, step: SamplingStep, columns: int, rows: int, selected: int | None = None
) -> list[Text]:
    """Return the candidates of a step, and beside or below them what each sampler keeps.

    Args:
        rows: For the candidates, with their titles, the cliff and the end of what is kept.
        selected: The rank of a candidate to be marked.
    """
    cuts = _cuts(step)
    if columns < MIN_COLUMNS:
        return [*_candidates(steps, step, columns, rows, selected), Text(), *cuts]
    left = min(columns - len(cuts[0]) - 2, _WIDEST)
    both = zip_longest(_candidates(steps, step, left, rows, selected), cuts, fillvalue=Text())
    return [Text().append_text(_fit(one.copy(), left)).append("  ").append_text(other) for one, other in both]


def _cuts(step: SamplingStep) -> list[Text]:
    """Return how many candidates each sampler keeps; in a second column if temperature comes first."""
    titles = ("keeps", "T first") if step.temperature != 1 else ("keeps",)
    lines = [Text(f"{'sampler':<{_NAME}}" + "".join(f"{title:>{_NUMBER}}" for title in titles), _DIM)]
    for name, *numbers in step.cuts:
        if name in _CONSTANT and name != step.sampler.name:
            continue
        shown = (f"{'' if k is None else f'{k:,}':>{_NUMBER}}" for k in numbers[: len(titles)])
        lines.append(Text(f"{name:<{_NAME}}" + "".join(shown)))
    return lines


def _candidates(
    steps: AnswerSteps, step: SamplingStep, columns: int, rows: int, selected: int | None
) -> list[Text]:
    """Return the candidates with their probabilities, and a line at the cliff."""
    ranks = step.shown_ranks(rows - 3)
    number = max(len(f"{rank + 1:,}") for rank in ranks)
    token = max(8, columns // 3)
    has_logits = columns >= token + number + 3 * _NUMBER + 5
    logit = f"{'logit':>{_NUMBER}}" if has_logits else ""
    titles = f"{'#':>{number + 2}} {'token':<{token + 2}}{logit}{'p, T=1':>{_NUMBER}}{'sampled':>{_NUMBER}}"
    table = [Text(titles, _DIM)]
    for rank in ranks:
        is_kept, is_sampled = step.keeps(rank), rank == step.sampled
        line = Text("▸ " if rank == selected else "  ", _DIM if not is_kept else "bold" if is_sampled else "")
        line.append(f"{rank + 1:>{number},} ")
        line.append_text(_fit(Text(repr(steps.text(int(step.ids[rank])))), token))
        line.append(" ◀" if is_sampled else "  ")
        if has_logits:
            line.append(f"{step.logits[rank]:>{_NUMBER}.2f}")
        line.append(f"{step.p[rank]:>{_NUMBER}.2%}")
        line.append(f"{f'{step.p_sampled[rank]:.2%}' if is_kept else 'cut':>{_NUMBER}}")
        table.append(line)
        if rank + 1 == step.cliff:
            table.append(Text("── the cliff ".ljust(columns, "─"), "bold"))
        if rank + 1 == step.first + step.k != step.cliff:
            table.append(Text(f"── {step.sampler} keeps these ".ljust(columns, "─"), "bold"))
    return table


def _fit(text: Text, columns: int) -> Text:
    """Return a text that takes exactly `columns` columns."""
    text.truncate(columns, overflow="ellipsis", pad=True)
    return text


def _padded(text: list[Text], rows: int) -> list[Text]:
    """Return exactly `rows` lines."""
    return [*text[:rows], *(Text() for _ in range(rows - len(text)))]
