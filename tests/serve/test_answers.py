"""Messages from pieces of answers: reasoning first, then text and calls."""

from typing import Any

import pytest

from mink_local.generation.answer import FinishReason, Piece
from mink_local.generation.reasoning import ReasoningSplitter
from mink_local.serve.answers import MessageBuilder
from mink_local.serve.tool_calls import ToolParser

REASONING = "Shall I write <tool_call>? Yes."
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\n{REASONING}\n</think>\n\nOne moment.\n{CALL}"


def built(text: str, length: int, finish_reason: FinishReason) -> tuple[MessageBuilder, list[dict[str, Any]]]:
    """Return what becomes of a text whose tokens all have one length."""
    builder = MessageBuilder(ReasoningSplitter("start"), ToolParser(["now"]))
    pieces = [Piece(text[start : start + length]) for start in range(0, len(text), length)]
    deltas = []
    for piece in pieces:
        piece.token = 1
        deltas += builder.deltas(piece, finish_reason if piece is pieces[-1] else None)
    return builder, deltas


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_reasoning_comes_before_text_and_calls(length: int) -> None:
    builder, deltas = built(TEXT, length, "stop")
    message = builder.message()
    [call] = message.pop("tool_calls")
    assert message == {
        "role": "assistant",
        "content": "One moment.",
        "reasoning_content": REASONING,
        "reasoning": REASONING,
    }
    assert call["function"] == {"name": "now", "arguments": "{}"}
    assert builder.finish_reason == "tool_calls"
    assert deltas[0] == {"role": "assistant", "content": ""}
    kinds = [next(iter(delta)) for delta in deltas[1:]]
    assert kinds == sorted(kinds, key=["reasoning_content", "content", "tool_calls"].index)


def test_tokens_of_reasoning_are_counted() -> None:
    builder, _ = built(TEXT, 1, "stop")
    assert builder.n_reasoning == TEXT.index("</think>") + len("</think>") - len("<think>")
    assert built("No reasoning.", 1, "stop")[0].n_reasoning == 0


def test_a_call_that_is_cut_off_is_text() -> None:
    builder, _ = built(TEXT[:-20], 3, "length")
    assert builder.finish_reason == "length"
    assert builder.message()["content"] == TEXT[TEXT.index("One") : -20]


@pytest.mark.parametrize(
    ("has", "gets", "reasoning", "content"),
    [
        ("<think>\nI see", " that.\n</think>\n\nYes.", " that.", "Yes."),
        ("<think>\nI see\n</think>\n\nOf", " course.", "", " course."),
        ("", "Yes.", "", "Yes."),
    ],
)
def test_a_message_that_goes_on_after_what_the_client_has(
    has: str, gets: str, reasoning: str, content: str
) -> None:
    builder = MessageBuilder(ReasoningSplitter("start"), ToolParser(["now"]))
    builder.skip(has)
    builder.deltas(Piece(gets), "stop")
    message = builder.message()
    assert (message.get("reasoning", ""), message["content"]) == (reasoning, content)
