"""An answer while it is generated: prompt progress, the reasoning, the text, the figures; and its colours."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from statistics import median_low

from rich.text import Text

from mink_local.chat.conversation.export import answer_as_json
from mink_local.chat.conversation.session import AnswerStream
from mink_local.chat.conversation.store import StoredMessage
from mink_local.chat.settings import Settings
from mink_local.chat.terminal.screen import COLOURLESS, Screen, Theme, joined_line_ends
from mink_local.cli import INTERRUPTED, counted
from mink_local.generation.model import Model

_LEVELS = {1: "1", 2: "2–3", 4: "4–10", 11: "11–50", 51: "51+"}  # the least k of each, and its name


def print_answer(screen: Screen, answer: AnswerStream, settings: Settings, as_json: bool) -> int:
    """Print an answer to a prompt while it is generated; return the exit status.

    Args:
        as_json: Print all that is known as a line of JSON.
    """
    if as_json:
        for _ in answer.pieces():
            pass
        screen.write(answer_as_json(answer.message))
    else:
        show_answer(screen, answer)
        against_loops = "--temp 2, --dry-multiplier 0.8 or --no-loop-guard"
        note_end(screen, answer.message, settings["max_tokens"], against_loops)
    message = answer.message
    if message.finish_reason == "interrupted":
        return INTERRUPTED
    is_cut = message.finish_reason == "length" and (settings["json_schema"] or settings["grammar"])
    return 1 if is_cut or not message.content.strip() else 0


def show_answer(screen: Screen, answer: AnswerStream, on_reasoning: str = "") -> None:
    """Show an answer while it is generated, without the reasoning that it begins with: that was shown before.

    Args:
        on_reasoning: Where to see reasoning that was only counted.
    """

    def show_prompt(unread: int) -> None:
        if unread:
            n = answer.reply.prompt_tokens
            screen.progress(f"prompt: {n - unread} of {counted(n, 'token')}")

    texts = (
        (is_reasoning, text)
        for piece in answer.pieces(show_prompt)
        for is_reasoning, text in ((True, piece.reasoning), (False, piece.content))
        if text and not (is_reasoning and piece is answer.reply.prefix)
    )
    try:
        for is_reasoning, run in groupby(texts, itemgetter(0)):
            screen.progress()
            parts = joined_line_ends(text for _, text in run)
            if not is_reasoning:
                screen.text(parts)
            elif screen.shows_reasoning and screen.is_terminal:
                _show_reasoning(screen, parts, answer.message.parts[-1].of_reasoning)
            else:
                _count_words(screen, parts, on_reasoning)
    finally:
        screen.progress()


def _show_reasoning(screen: Screen, reasoning: Iterable[str], how: str) -> None:
    """Show reasoning between its label and its seconds."""
    began = time.perf_counter()
    screen.note(f"reasoning: {how} …" if how else "reasoning …")
    screen.text(reasoning, "dim italic")
    screen.note(f"reasoned for {time.perf_counter() - began:.0f} s")
    screen.show("")


def _count_words(screen: Screen, reasoning: Iterable[str], hint: str) -> None:
    """Show how many words reasoning has, which is not written to a file or a pipe."""
    n_words, began = "", time.perf_counter()
    for text in accumulate(reasoning):
        n_words = counted(len(text.split()), "word")
        screen.progress(f"reasoning: {n_words}")
    screen.note(f"reasoning: {n_words} in {time.perf_counter() - began:.0f} s{hint}")


def note_end(
    screen: Screen,
    answer: StoredMessage,
    max_tokens: int | None,
    against_loops: str,
    to_go_on: str = "--max-tokens",
    again: str = "",
) -> None:
    """Say why an answer was cut short or is empty, if so, and what to do.

    Args:
        screen: Where to say it.
        answer: The answer.
        max_tokens: The limit of its length.
        against_loops: What to do against repetition.
        to_go_on: What to do if the limit was reached.
        again: Where to get another answer, as the end of a sentence.
    """
    reason = answer.finish_reason
    if answer.repeats_since is not None:
        ended = "stopped" if reason == "repetition" else "reasoning ended"
        screen.note(f"{ended}: repeating itself since token {answer.repeats_since}; try {against_loops}")
    if reason == "interrupted":
        screen.note("interrupted")
    elif reason == "length" and max_tokens == answer.n_new:
        screen.note(f"stopped after {counted(max_tokens, 'token')}: {to_go_on}")
    elif reason == "length":
        used = answer.prompt_tokens + answer.n_new
        screen.note(f"stopped: the context of {used} tokens is full")
    elif reason == "stop" and not answer.content:
        ended = (
            "no answer: the model stopped while reasoning"
            if answer.reasoning
            else "the model answered with nothing"
        )
        screen.note(f"{ended}{again}")


def status(answer: StoredMessage, n_ctx: int) -> str:
    """Return the figures of an answer."""
    parts = [counted(answer.n_new, "token")]
    if answer.n_new > 1:
        seconds = max(answer.seconds - answer.first_token_s, 1e-9)
        parts.append(f"{(answer.n_new - 1) / seconds:.1f} tokens/s")
    parts.append(f"context {answer.prompt_tokens + answer.n_new}/{n_ctx}")
    return " · ".join(parts)


def about_model(model: Model) -> str:
    """Return a model's name, place and context on one line."""
    where = re.sub(r" \(.*\)", "", model.placement.where).removeprefix("on the ")
    return f"{model.name} · {where} · context {model.n_ctx}"


def candidates(k: Sequence[int]) -> str:
    """Return the numbers of candidates of an answer's steps in words."""
    certain = sum(n == 1 for n in k) / len(k)
    return (
        f"candidates: {median_low(k):,} usually, at most {max(k):,}; "
        f"{certain:.0%} of tokens had no alternative"
    )


def coloured(texts: Iterable[str], k: Iterable[int], theme: Theme) -> Text:
    """Return an answer whose tokens are coloured by k, with a legend; without colours, with k in brackets."""
    styles = dict(zip(_LEVELS, theme.candidates, strict=True))
    tokens = zip(joined_line_ends(texts), k, strict=False)
    shown = Text().join(_marked(text, n, styles) for text, n in tokens)
    if theme is not COLOURLESS:
        shown.append("\n\nsampled from this many tokens:\n")
        for least, name in _LEVELS.items():
            shown.append(" ").append(f" {name} ", styles[least])
    return shown


def _marked(text: str, k: int, styles: Mapping[int, str]) -> Text:
    """Return a token in the style of its k, or with k in brackets; as it is if it had no alternative."""
    if k < 2:
        return Text(text)
    style = styles[max(least for least in styles if least <= k)]
    return Text(text.replace("\n", "↵\n"), style) if style else Text(f"{text}[{k:,}]")
