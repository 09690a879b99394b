"""Messages of chats: reasoning, text and calls."""

import msgspec
import pytest

from mink_local.generation.answer import Piece, Splitter
from mink_local.generation.text import ReasoningSplitter
from mink_local.generation.tool_calls import ToolParser
from mink_local.serve.completions.builder import message_delta, whole_message

REASONING = "Shall I write <tool_call>? Yes."
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXT = f"<think>\n{REASONING}\n</think>\n\nOne moment.\n{CALL}"


NOW = {"type": "function", "function": {"name": "now"}}


def pieces_of(text: str, length: int) -> list[Piece]:
    """Return the pieces of a text whose tokens all have one length."""
    splitter = Splitter(ReasoningSplitter("start"), ToolParser([NOW]))
    return [
        *(splitter.feed(text[start : start + length]) for start in range(0, len(text), length)),
        splitter.end(""),
    ]


@pytest.mark.parametrize("length", [1, 5, 1000])
def test_reasoning_comes_before_text_and_calls(length: int) -> None:
    message = msgspec.to_builtins(whole_message(pieces_of(TEXT, length)))
    [call] = message.pop("tool_calls")
    assert message == {
        "role": "assistant",
        "content": "One moment.",
        "reasoning_content": REASONING,
        "reasoning": REASONING,
    }
    assert call["function"] == {"name": "now", "arguments": "{}"}


def test_a_call_that_is_cut_off_is_incomplete() -> None:
    message = whole_message(pieces_of(f"{TEXT}\n{CALL[:-15]}", 3))
    assert message.content == "One moment."
    assert [call.function.arguments for call in message.tool_calls or ()] == ["{}", "{"]


def test_text_after_a_call_comes_after_it() -> None:
    """A stop string that might begin inside the call holds back its end and the text after it."""
    [piece, _] = pieces_of(f"{CALL}\nDone.", 1000)
    assert [event if isinstance(event, str) else event.name for event in piece.events] == ["now", "Done."]


def test_a_chunk_has_one_entry_of_a_call() -> None:
    """Clients read the first one, or refuse two with the same index."""
    delta = message_delta(pieces_of(CALL + CALL, 1))
    assert [call.index for call in delta.tool_calls or ()] == [0, 1]
