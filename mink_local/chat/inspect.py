"""The commands that look at answers and conversations: /compare, /explain, /heat, /stats, /list."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from mink_local.chat.screen import distribution, note, one_line, printable
from mink_local.chat.store import Conversation, Message
from mink_local.interrupts import until_interrupted

if TYPE_CHECKING:
    from rich.table import Table

    from mink_local.chat.repl import Chat
    from mink_local.chat.screen import Screen

_COMPARED_TOKENS = 200  # of an answer, unless max-tokens says otherwise: at T = 5 some never end
_SIDE_BY_SIDE = 120  # columns from which on four answers stand beside each other
_CANDIDATES = 12  # of a step that are shown


def list_conversations(
    screen: "Screen", conversations: Sequence[Conversation], current: int | None = None
) -> None:
    """A table of conversations, the one talked in last first; an asterisk marks the `current` one."""
    from rich.table import Table
    from rich.text import Text

    shown = [conversation for conversation in conversations if conversation.turns]
    if not shown:
        note("(there is none yet)")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("", "name", "turns", "last", "model"):
        table.add_column(name, no_wrap=True, justify="right" if name == "turns" else "left")
    table.add_column("begins with", no_wrap=True)
    for one in shown:
        mark = "*" if one.id == current else ""
        cells = (mark, one.name or str(one.id), str(one.turns), _when(one.updated), Path(one.model).name)
        table.add_row(
            *(Text(printable(cell)) for cell in cells), Text(one_line(one.title, max(20, screen.width - 50)))
        )
    screen.show(table)


def _when(seconds: float) -> str:
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"


def compare(chat: "Chat", text: str) -> None:
    """Answer `text` by four methods at the present temperature. Nothing of it becomes part of the
    conversation."""
    from mink_local.samplers import MinK, MinP, TopNSigma, TopP

    session = chat.session
    branch, _ = session.prompt(session.branch)
    messages = [*branch, {"role": "user", "content": text}]
    own = session.settings.sampler
    methods = [own if isinstance(own, MinK) else MinK(), MinP(), TopP(), TopNSigma()]
    longest = session.settings["max_tokens"] or _COMPARED_TOKENS
    answers = dict.fromkeys(map(str, methods), "")
    temperature = session.settings["temp"]
    with _Table(chat.screen, answers, temperature) as table:
        for method in methods:
            options = session.options(sampler=method, max_tokens=longest)
            reply = session.model.chat(messages, **options)
            for piece in until_interrupted(reply):
                answers[str(method)] += printable(piece)
                table.update()
            if chat.stopped or reply.finish_reason == "interrupted":
                break
            answers[str(method)] += f"\n({reply.n_tokens} tokens, k {median(reply.k):g} in the median)"
            table.update()
    note("(none of these is part of the conversation)")


class _Table:
    """Answers side by side, as they grow on a terminal, or at the end."""

    def __init__(self, screen: "Screen", answers: dict[str, str], temperature: float) -> None:
        self._screen = screen
        self._answers = answers
        self._title = f"temperature {temperature:g}"
        self._live: Any = None

    def __enter__(self) -> "_Table":
        if not self._screen.plain:
            from rich.live import Live

            self._live = Live(console=self._screen.console, auto_refresh=False, transient=True)
            self._live.__enter__()
        return self

    def update(self) -> None:
        if self._live and time.monotonic() - getattr(self, "_last", 0.0) > 0.1:
            self._last = time.monotonic()
            self._live.update(self._table(), refresh=True)

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._live.__exit__(*error)
        self._screen.show(self._table())

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        columns = 4 if self._screen.width >= _SIDE_BY_SIDE else 2
        table = Table(title=self._title, expand=True, show_lines=True, show_header=False)
        for _ in range(columns):
            table.add_column(ratio=1, overflow="fold")
        cells = [
            Text.assemble((name, "bold"), "\n", answer.strip()) for name, answer in self._answers.items()
        ]
        for start in range(0, len(cells), columns):
            table.add_row(*cells[start : start + columns])
        return table


def explain(chat: "Chat", argument: str) -> None:
    """Take apart the step that a token of the last answer came from."""
    from mink_local.chat import explain as steps
    from mink_local.chat.repl import words

    wanted, path = _plot_file(words(argument))
    answer, tokens, texts = _last_tokens(chat)
    at = _position(answer, texts, wanted)
    temperature = answer.how.temperature if answer.how and answer.how.temperature > 0 else 1.0
    session = chat.session
    messages, _ = session.prompt(session.branch[:-1])
    logits = session.model.logits(messages, tokens[:at], session.settings["think"])
    own = session.settings.sampler
    methods = [own if own.name == method.name else method for method in steps.METHODS]
    step = steps.take_apart(logits, tokens[at], temperature, methods)
    shown = [int(step.ids[place]) for place in steps.places(step, _CANDIDATES)]
    names = [printable(session.model.texts([token])[0]) for token in shown]
    before = "".join(texts[max(0, at - 12) : at])
    note(f"token {at + 1} of {len(tokens)}, after …{one_line(before, 50)}")
    chat.screen.show(steps.table(step, names))
    note(f"The cliff is behind number {steps.cliff(step)} of {len(step.ids):,}; ◀ was drawn.")
    if path:
        steps.plot(step, names, path)
        note(f"(drawn to {path})")


def _plot_file(words: list[str]) -> tuple[str, Path | None]:
    """What else was said, and the file behind --plot."""
    if "--plot" not in words:
        return " ".join(words), None
    at = words.index("--plot")
    if at + 1 == len(words):
        raise ValueError("--plot wants a file, such as step.png")
    return " ".join(words[:at] + words[at + 2 :]), Path(words[at + 1]).expanduser()


def _position(answer: Message, texts: Sequence[str], wanted: str) -> int:
    """The place of the token that is asked for: by number, by its text, or where most candidates stood."""
    if not wanted:
        k = (answer.outcome.k if answer.outcome else [])[: len(texts)]
        return k.index(max(k)) if k else 0
    if wanted.lstrip("-").isdecimal():
        number = int(wanted)
        if not 1 <= abs(number) <= len(texts):
            raise ValueError(f"the last answer has {len(texts)} tokens")
        return number - 1 if number > 0 else len(texts) + number
    start = "".join(texts).find(wanted)
    if start < 0:
        raise ValueError(f"{wanted!r} is not in the last answer")
    length = 0
    for at, text in enumerate(texts):
        length += len(text)
        if length > start:
            return at
    return len(texts) - 1


def _last_tokens(chat: "Chat") -> tuple[Message, list[int], list[str]]:
    """The last answer, its tokens, and what each adds to the text."""
    answer = chat.session.last_answer()
    tokens = chat.session.written(answer)
    if not tokens:
        raise ValueError("the last answer is empty")
    return answer, tokens, chat.session.model.texts(tokens)


def heat(chat: "Chat") -> None:
    from mink_local.chat import explain as steps

    answer, _, texts = _last_tokens(chat)
    if answer.outcome is None or not answer.outcome.k:
        raise ValueError("the figures of this answer were lost when the program ended")
    shown = [printable(text) for text in texts]
    draw = steps.plain_heat if chat.screen.plain else steps.heat
    chat.screen.show(draw(shown, answer.outcome.k))


def stats(chat: "Chat") -> None:
    from rich.table import Table
    from rich.text import Text

    session = chat.session
    model, settings = session.model, session.settings
    table = Table(box=None, pad_edge=False, show_header=False)

    def row(name: str, value: str) -> None:
        table.add_row(name, Text(printable(value)))

    row("model", f"{model.name} {model.placement}")
    row("drawing", f"{settings.sampler}, temperature {settings['temp']:g}")
    answers = [message for message in session.branch if message.role == "assistant"]
    row("conversation", f"{len(answers)} answers")
    messages, _ = session.prompt(session.branch)
    used = model.count_tokens(messages) if messages else 0
    row("context", f"{used} of {model.n_ctx} tokens")
    if answers and (outcome := answers[-1].outcome):
        rest = outcome.seconds - outcome.first_token_s
        row(
            "last answer",
            f"{len(outcome.tokens)} tokens; {outcome.evaluated_tokens} of {outcome.prompt_tokens} tokens "
            f"of the prompt read, first token after {outcome.first_token_s:.2f} s, the rest in {rest:.2f} s",
        )
        row("", distribution(outcome.k) if outcome.k else "")
    if k := [n for answer in answers if answer.outcome for n in answer.outcome.k]:
        row("all answers", distribution(k))
    chat.screen.show(table)
