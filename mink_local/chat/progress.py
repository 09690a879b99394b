"""An answer while it is generated: the prompt's progress, the reasoning, the text, and the figures."""

from collections.abc import Callable, Sequence
from statistics import median_low

from mink_local.chat.answer_stream import AnswerStream
from mink_local.chat.heat import HeatWriter, number, sparkline
from mink_local.chat.screen import Screen, TextWriter, counted
from mink_local.chat.store import Outcome
from mink_local.generation.model import Reply
from mink_local.interrupts import until_interrupted

_SHORTEST_SPARKLINE, _LONGEST_SPARKLINE = 8, 24


def show_answer(
    screen: Screen,
    answer: AnswerStream,
    typed_ahead: Callable[[], str] = lambda: "",
    scale: str | None = None,
) -> None:
    """Show an answer while it is generated, and below it what has been typed ahead.

    Its tokens are coloured by a scale of `heat` if one is given.
    """
    show_prompt = _show_prompt(screen, answer.reply)

    def waiting() -> None:
        show_prompt()
        screen.queue(typed_ahead())

    reasoning: _ReasoningView | None = None
    text: TextWriter = screen.writer()
    if scale and screen.is_terminal:
        text = heated = HeatWriter(screen, scale)
        answer.on_token = lambda k, figures: heated.token(number(scale, k, figures))
    if continued := answer.draft.continued:
        text.recall(continued.content)
    try:
        for part in answer.parts(waiting):
            screen.queue()
            if part.is_reasoning:
                reasoning = reasoning or _ReasoningView(screen)
                reasoning.feed(part.text)
            else:
                if reasoning:
                    reasoning.end()
                    reasoning = None
                screen.progress()
                text.feed(part.text)
            screen.queue(typed_ahead())
    finally:
        screen.queue()
        screen.progress()
        if reasoning:
            reasoning.end()
        else:
            text.end()


def show_prefill(screen: Screen, reply: Reply) -> None:
    """Have a prompt evaluated, and show only the progress."""
    try:
        for _ in until_interrupted(reply, reply.interrupt, _show_prompt(screen, reply)):
            pass
    finally:
        screen.progress()


def prompt_progress(reply: Reply) -> Callable[[], str]:
    """Return a function that says how much of the prompt is evaluated: "" if all of it is."""
    total = 0

    def progress() -> str:
        nonlocal total
        total = max(total, unread := reply.unread_tokens)
        return f"prompt: {total - unread} of {counted(total, 'token')}" if unread else ""

    return progress


def _show_prompt(screen: Screen, reply: Reply) -> Callable[[], None]:
    """Return a function that shows how much of the prompt is evaluated when it is called."""
    progress = prompt_progress(reply)

    def update() -> None:
        if text := progress():
            screen.progress(text)

    return update


class _ReasoningView:
    """Shows reasoning, dim, or a line that counts its words.

    Reasoning is not part of the answer: it is not written to a file or a pipe.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._text = ""
        self._writer: TextWriter | None = None
        if screen.reasoning == "show" and screen.is_terminal:
            screen.progress()
            self._writer = screen.writer("dim italic")
            if screen.is_plain:
                screen.note("(reasoning)")

    def feed(self, text: str) -> None:
        self._text += text
        if self._writer:
            self._writer.feed(text)
        else:
            self._screen.progress(f"(reasoning: {self._words})")

    def end(self) -> None:
        if self._writer:
            self._writer.feed("\n\n")
            self._writer.end()
        else:
            self._screen.progress()
            self._screen.note(f"(reasoning of {self._words}: /think shows it)")

    @property
    def _words(self) -> str:
        return counted(len(self._text.split()), "word")


def note_end(
    screen: Screen, answer: AnswerStream, max_tokens: int | None, n_ctx: int, against_loops: str
) -> None:
    """Say why an answer was cut short, if it was, and what to do against one that repeats itself."""
    reason = answer.outcome.finish_reason if answer.outcome else None
    if reason == "repetition":
        screen.note(f"(repeats itself since token {answer.repeats_since}: stopped; {against_loops})")
    elif reason == "interrupted":
        screen.note("(interrupted)")
    elif reason == "length" and max_tokens == answer.reply.n_tokens:
        screen.note(f"(stopped after {counted(max_tokens, 'token')}: --max-tokens)")
    elif reason == "length":
        screen.note(f"(stopped: the context of {n_ctx} tokens is full)")


def status(outcome: Outcome, n_ctx: int, new_tokens: int, width: int) -> str:
    """Return the figures of an answer, with a sparkline of k if the line has space for it."""
    seconds = max(outcome.seconds - outcome.first_token_s, 1e-9)
    parts = [counted(new_tokens, "token")]
    if new_tokens > 1:
        parts.append(f"{(new_tokens - 1) / seconds:.1f} tokens/s")
    parts.append(f"context {outcome.prompt_tokens + new_tokens}/{n_ctx}")
    k = [n for n in outcome.k if n]
    if not k:
        return " · ".join(parts)
    line = " · ".join([*parts, f"at most {counted(max(k), 'candidate')}"])
    space = min(width - len(line) - 2, _LONGEST_SPARKLINE)
    return f"{line} {sparkline(k, space)}" if space >= _SHORTEST_SPARKLINE else line


def candidates(k: Sequence[int]) -> str:
    """Return the numbers of candidates of an answer's steps in words."""
    certain = sum(n == 1 for n in k) / len(k)
    return (
        f"candidates: {median_low(k):,} usually, at most {max(k):,}; "
        f"{certain:.0%} of tokens had no alternative"
    )
