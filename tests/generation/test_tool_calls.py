"""Tool calls in an answer's text: found however it is cut into pieces, and never lost."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.generation.tool_calls import CLOSE, FENCE, OPEN, ToolCallDelta, ToolParser, whole_calls

NAMES = ["get_weather", "now"]
WEATHER = '{"name": "get_weather", "arguments": {"city": "Rom"}}'
LLAMA = '{"name": "get_weather", "parameters": {"city": "Rom"}}'
NOW = '{"name": "now", "arguments": {}}'

Parsed = tuple[str, list[tuple[str, str]]]


def parsed(pieces: list[str], **options: bool) -> Parsed:
    """Return the text of an answer and its calls, (name, arguments), after checking the events' form."""
    parser = ToolParser(NAMES, **options)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.end()
    assert all(event != "" for event in events)
    deltas = [event for event in events if isinstance(event, ToolCallDelta)]
    calls = whole_calls(deltas)
    assert len(calls) == parser.n_calls == len({call["id"] for call in calls})
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)
    text = "".join(event for event in events if isinstance(event, str))
    return text, [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


ROM, EMPTY = ("get_weather", '{"city": "Rom"}'), ("now", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>\n{WEATHER}\n</tool_call>", "", [ROM]),
        (f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>", "", [ROM, EMPTY]),
        (f"I look.\n\n<tool_call>{WEATHER}</tool_call>", "I look.", [ROM]),
        (f"<tool_call>{WEATHER}</tool_call>\n\nThat is all. ", "That is all. ", [ROM]),
        (f"<tool_call>{WEATHER}", "", [ROM]),
        (f"<tool_call>\n{WEATHER}\n{NOW}\n</tool_call>", "", [ROM, EMPTY]),
        (LLAMA, "", [ROM]),
        (f"```json\n{WEATHER}\n```", "", [ROM]),
        (f"I look:\n```json\n{WEATHER}\n{NOW}\n```\nDone.", "I look:Done.", [ROM, EMPTY]),
        (f"{NOW}\n```python\n1\n```", "```python\n1\n```", [EMPTY]),
        (f" {LLAMA}; {NOW}", "", [ROM, EMPTY]),
        (f"I look.\n{LLAMA}", "I look.", [ROM]),
        ('{"type": "function", ' + LLAMA[1:], "", [ROM]),
        ('<tool_call>{"arguments": {"city": "Rom"}, "name": "get_weather"}</tool_call>', "", [ROM]),
        ('<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "", [EMPTY]),
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
        ('<tool_call>{"name": "now", "arguments": {"a": "x\ny"}}', "", [("now", '{"a": "x\\ny"}')]),
        ('<tool_call>{"name": "now", "arguments": {"a": "\\"}{é"}}', "", [("now", '{"a": "\\"}{é"}')]),
    ],
)  # fmt: skip
def test_calls_are_found(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert parsed([text]) == (content, calls)
    assert parsed(list(text)) == (content, calls)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n Hello.  \n",
        "a < b, <b>, <tool, <tool_call",
        "<tool_call>",
        "<tool_call>\nnow()\n</tool_call>",
        '<tool_call>{"name": "now", "arguments": {}',
        '<tool_call>{"name": "now", "arguments": {"a" 1}}</tool_call> no',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": %s}}</tool_call>' % ("[" * 9999 + "]" * 9999),
        '<tool_call>{"name": "now", "arguments": {"a": %s}}</tool_call>' % ("9" * 9999),
        '{"name": "unknown", "parameters": {}}',
        '{"name": "now", "age": 4}',
        '```json\n{"a": 1}\n``` ```js\n``json ```json',
        f"Write {LLAMA} to call it.",
        '{"names": ["now"]}\n{"a": {}}\n[{}]',
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    assert parsed([text]) == (text, [])
    assert parsed(list(text)) == (text, [])


def test_a_call_after_a_malformed_one_is_found() -> None:
    malformed = '<tool_call>\n{"name": "now", "arguments": {"a": "}}\n</tool_call>'
    assert parsed([f"{malformed}\n<tool_call>{WEATHER}</tool_call>"]) == (malformed, [ROM])


def test_only_one_call_if_they_are_not_parallel() -> None:
    text = f"a\n<tool_call>{WEATHER}</tool_call>\n<tool_call>{NOW}</tool_call>\nb"
    assert parsed([text], is_parallel=False) == ("ab", [ROM])


PARTS = [
    OPEN,
    FENCE,
    "```",
    CLOSE,
    WEATHER,
    LLAMA,
    NOW,
    "\n",
    " ",
    ";",
    "<",
    "tool",
    "{",
    "}",
    '"',
    "a",
    "\\",
]


@given(st.lists(st.sampled_from(PARTS)), st.randoms(use_true_random=False), st.booleans(), st.booleans())
def test_pieces_do_not_matter(
    parts: list[str], rng: random.Random, is_constrained: bool, is_parallel: bool
) -> None:
    text = "".join(parts)
    cuts = sorted(rng.randint(0, len(text)) for _ in range(6))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    options = {"is_constrained": is_constrained, "is_parallel": is_parallel}
    assert parsed(pieces, **options) == parsed([text], **options) == parsed(list(text), **options)


@given(st.lists(st.sampled_from(PARTS)))
def test_no_character_is_lost(parts: list[str]) -> None:
    """Everything is text or part of a call, except whitespace and tags next to calls."""
    text = "".join(parts)
    content, calls = parsed([text])
    if not calls:
        assert content == text
    for _, arguments in calls:
        assert isinstance(json.loads(arguments), dict)


def test_nothing_certain_is_held_back() -> None:
    parser = ToolParser(NAMES)
    assert parser.feed("Let me see <") == ["Let me see"]
    assert parser.feed("b>\n") == [" <b>"]
    assert parser.feed('{"name": "n') == []
    assert parser.feed('one"') == ['\n{"name": "none"']
    assert parser.end() == []


def test_constrained_arguments_come_as_they_are_written() -> None:
    parser = ToolParser(NAMES, is_constrained=True)
    assert parser.feed('<tool_call>\n{"name": "get_weather", "arguments":') == []
    first, rest = parser.feed(' {"city')
    assert isinstance(first, ToolCallDelta)
    assert first == ToolCallDelta(0, "", first.id, "get_weather")
    assert first.id
    assert rest == ToolCallDelta(0, '{"city')
    assert parser.feed('": "<tool_call>{"') == [ToolCallDelta(0, '": "<tool_call>{"')]
    assert parser.feed("}}\n</tool_call>") == [ToolCallDelta(0, "}")]
    assert parser.end() == []


@pytest.mark.parametrize(
    "text", ["<tool_call>{" * 9999, "<tool_call>{" * 9999 + "}" * 9999, '\n{"name":"now"' * 9999]
)
def test_no_text_is_scanned_again_and_again(text: str) -> None:
    """That would take minutes."""
    assert parsed([text]) == (text, [])
