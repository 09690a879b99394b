"""Reasoning, split from the answer and joined with it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.generation.text import ReasoningSplitter, ReasoningState, TextPart, joined


def split(pieces: list[str], state: ReasoningState = "start") -> tuple[str, str]:
    splitter = ReasoningSplitter(state)
    out = [piece for text in pieces for piece in splitter.feed(text)] + list(splitter.end())
    assert all(piece.text for piece in out)
    return tuple("".join(p.text for p in out if p.is_reasoning is reasoning) for reasoning in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "state", "reasoning", "answer"),
    [
        ("<think>\nLet me see.\n</think>\n\nFour.", "start", "Let me see.", "Four."),
        ("\n<think>a < b</thin </think>x", "start", "a < b</thin", "x"),
        ("<think>\n\n</think>\n\nFour.", "start", "", "Four."),
        ("Let me see.\n</think>\n\nFour.", "reasoning", "Let me see.", "Four."),
        ("<think>never ended </th", "start", "never ended </th", ""),
        ("Four. <think>no</think>", "start", "", "Four. <think>no</think>"),
        ("<thinking> is a word", "start", "", "<thinking> is a word"),
        ("  indented", "start", "", "  indented"),
        ("<think>a</think>b<think>c</think>", "start", "a", "b<think>c</think>"),
        ("<think>a</think>b", "text", "", "<think>a</think>b"),
        ("", "start", "", ""),
        ("<thi", "start", "", "<thi"),
    ],
)  # fmt: skip
def test_split(text: str, state: ReasoningState, reasoning: str, answer: str) -> None:
    assert split([text], state) == (reasoning, answer)
    assert split(list(text), state) == (reasoning, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "/", "a", " ", "\n"])), st.randoms())
def test_pieces_do_not_matter(parts: list[str], random: object) -> None:
    text = "".join(parts)
    cuts = sorted(random.randint(0, len(text)) for _ in range(4))  # type: ignore[attr-defined]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces) == split([text])


def test_nothing_certain_is_held_back() -> None:
    splitter = ReasoningSplitter()
    assert list(splitter.feed("<think>Well")) == [TextPart("Well", True)]
    assert list(splitter.feed(" now")) == [TextPart(" now", True)]
    assert list(splitter.feed("</think>Yes")) == [TextPart("Yes")]


@pytest.mark.parametrize("state", ["reasoning", "text"])
def test_a_continued_text_keeps_its_blanks(state: ReasoningState) -> None:
    splitter = ReasoningSplitter(state, continued=True)
    assert list(splitter.feed(" more")) == [TextPart(" more", state == "reasoning")]


def test_joined_is_the_inverse() -> None:
    assert split([joined("Let me see.", "Four.", opened=False)]) == ("Let me see.", "Four.")
    assert split([joined("Let me see.", "Four.", opened=True)], "reasoning") == ("Let me see.", "Four.")
    assert split([joined("Let me", "", opened=False)]) == ("Let me", "")
    assert joined("", "Four.", opened=False) == "Four."
