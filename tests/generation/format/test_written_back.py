"""What is read in a model's text, written back, is the text."""

import json
import random
import re
from collections.abc import Collection
from typing import Any

import pytest

from mink_local.generation.format.call_derivation import CHECKS, TOOLS
from mink_local.generation.format.call_formats import OPEN, WRAPPERS
from mink_local.generation.format.call_forms import form_of
from mink_local.generation.format.call_styles import HERMES, CallStyle
from mink_local.generation.format.harmony import HARMONY, splitter_of
from mink_local.generation.format.text import THINK, THINK_END, THINK_MARKS, Marks
from mink_local.generation.format.tool_calls import ToolParser
from tests.generation.format.test_call_derivation import STYLES
from tests.support.effort import FACTOR
from tests.support.llama_templates import NAMES, template_of

N_TEXTS = 100 * FACTOR
WORDS = (
    "a",
    "So",
    "{",
    "}",
    "[",
    "]",
    '"',
    "<",
    "|>",
    ":",
    ",",
    "=",
    "(",
    ")",
    "get_weather",
    "city",
    "\n",
    " ",
    "é",
)
STAND_INS = {name: style for name, style in STYLES.items() if style and name != "gpt-oss"}


def fragments(marks: Marks, style: CallStyle) -> list[str]:
    """Return words, and marks that begin or end only."""
    whole = [*filter(None, (*marks[:2], style.opening, style.before, style.after, style.closing, style.key))]
    cut = [part for mark in whole for part in (mark[:-1], mark[1:], mark[: len(mark) // 2])]
    return [*filter(None, cut), *WORDS]


def text_of(rng: random.Random, words: list[str], marks: Collection[str]) -> str:
    """Return a random text in which no mark is whole."""
    while True:
        text = "".join(rng.choices(words, k=rng.randint(1, 8)))
        if not any(mark in squeezed(text) for mark in map(squeezed, marks)):
            return text


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def read(marks: Marks, style: CallStyle, text: str) -> tuple[str, list[Any]]:
    """Return reasoning, and texts and calls in their order; the same in whatever pieces they come."""
    splitter, parser = splitter_of(marks), ToolParser(TOOLS, form_of(style))
    reasoning, events = "", list[Any]()
    for piece, is_final in ((text[: len(text) // 2], False), (text[len(text) // 2 :], True)):
        found, content = splitter.feed(piece, is_final=is_final)
        reasoning += found
        events += parser.feed(content, is_final=is_final)
    return reasoning, events


def written(marks: Marks, style: CallStyle, reasoning: str, events: list[Any]) -> str:
    """Return the text of a model that reasons, says and calls so."""
    text, calls = f"{marks.start}{reasoning}{marks.closing}" if reasoning else "", list[Any]()
    for event in [*events, ""]:
        if isinstance(event, str):
            text += (style.write(calls) if calls else "") + event
            calls = []
        else:
            calls.append((event.name, json.loads(event.arguments)))
    return text


def check(marks: Marks, style: CallStyle, seed: object) -> None:
    rng = random.Random(str(seed))
    words, calls = fragments(marks, style), [call for group in CHECKS for call in group]
    form = form_of(style)
    whole = {*form.marks, *WRAPPERS, OPEN, THINK, THINK_END, *(mark.strip() for mark in marks[:2])} - {
        "[",
        "{",
    }
    whole |= {each for each in (*marks.frame, marks.text, marks.ignored) if each}
    for _ in range(N_TEXTS):
        made = rng.choices(calls, k=rng.randint(0, 2 if style.separator is not None else 1))
        before = text_of(rng, words, whole) if form.marks and rng.random() < 0.7 else ""
        reasoning = f"So{text_of(rng, words, whole)}." if rng.random() < 0.5 else ""
        start = f"{marks.start}{reasoning}{marks.closing}" if reasoning else ""
        text = start + before + (f"\n{style.write(made)}" if made else "")
        found, events = read(marks, style, text)
        assert squeezed(written(marks, style, found, events)) == squeezed(text), text
        assert [(e.name, json.loads(e.arguments)) for e in events if not isinstance(e, str)] == made, text
        if not made and not reasoning:
            assert "".join(events) == text


@pytest.mark.parametrize("name", STAND_INS)
def test_of_forms_of_many_kinds(name: str) -> None:
    check(THINK_MARKS, STAND_INS[name], name)


@pytest.mark.parametrize("name", NAMES)
def test_of_real_templates(name: str) -> None:
    template = template_of(name)
    marks, style = template.marks, template.style or HERMES
    if marks is not HARMONY:  # whose calls come in messages of their own
        check(marks, style, name)
