"""Stop strings end the content of an answer, and nothing else, however its text is cut into pieces."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import Constraints, SamplingParams
from mink_local.generation.answer import Answer, Splitter
from mink_local.generation.format.text import ReasoningSplitter
from mink_local.generation.format.tool_calls import ToolParser
from mink_local.generation.model import Model
from mink_local.generation.request import Request, Tool
from tests.support.effort import examples

NOW: Tool = {"type": "function", "function": {"name": "now"}}
CALL = '<tool_call>{"name": "now", "arguments": {"a": "b c"}}</tool_call>'
PARTS = ["<think>", "</think>", CALL, CALL[:30], "a", "b", "ab", " ", "\n", "<", "[", "}", "é"]
STOPS = ["a", "ab", "ba", "aba", "\n", "\n\n", " b", "}", "<", "</tool_call>", "é<"]


def answered(pieces: list[str], stop: list[str], *, is_cut: bool = False, is_shown: bool = False) -> Answer:
    """Return the answer with a text, as it is generated."""
    answer = Answer(Request("x"))
    splitter = Splitter(ReasoningSplitter("start"), ToolParser([NOW]), reasoning_in_content=is_shown)
    splitter.stop_at(stop, lambda _: True)
    for piece in pieces:
        answer.add(splitter.feed(piece))
        if splitter.stopped_by is not None:
            break
    else:
        answer.add(splitter.feed("", is_final=True, is_cut=is_cut))
    answer.stopped_by = splitter.stopped_by
    return answer


def parts(answer: Answer) -> tuple[Any, ...]:
    calls = [call["function"] for call in answer.tool_calls]
    return answer.text, answer.reasoning, answer.content, calls, answer.stopped_by


@examples(300)
@given(
    st.lists(st.sampled_from(PARTS), max_size=12),
    st.lists(st.sampled_from(STOPS), max_size=3),
    st.randoms(use_true_random=False),
    st.booleans(),
    st.booleans(),
)
def test_pieces_do_not_matter(
    texts: list[str], stop: list[str], rng: random.Random, is_cut: bool, is_shown: bool
) -> None:
    text = "".join(texts)
    cuts = sorted(rng.randint(0, len(text)) for _ in range(5))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    free = answered([text], [], is_cut=is_cut, is_shown=is_shown)
    whole = answered([text], stop, is_cut=is_cut, is_shown=is_shown)
    assert parts(answered(pieces, stop, is_cut=is_cut, is_shown=is_shown)) == parts(whole)
    assert parts(answered(list(text), stop, is_cut=is_cut, is_shown=is_shown)) == parts(whole)
    assert free.text == text
    assert whole.reasoning == free.reasoning
    assert free.content.startswith(whole.content)
    assert parts(whole)[3] == parts(free)[3][: len(whole.tool_calls)]
    if whole.stopped_by is None:
        assert parts(whole) == parts(free)
    else:
        assert text.startswith(whole.text)
        assert free.content[len(whole.content) :].startswith(str(whole.stopped_by))


@pytest.mark.parametrize(
    ("text", "n_calls"),
    [
        (f"<think>Hm.\n{CALL}", 1),
        (f"<think>Hm.\n{CALL}\n{CALL}\n", 2),
        (f"<think>{CALL} Or", 0),
        (f"<think>{CALL[:-20]}", 0),
        (f"<think>{CALL}</think>", 0),
    ],
)
def test_reasoning_that_ends_with_a_call_has_called(text: str, n_calls: int) -> None:
    """Otherwise the answer would be empty. What is only considered is no call."""
    for pieces in ([text], list(text)):
        answer = answered(pieces, ["b"])
        assert [call["function"]["name"] for call in answer.tool_calls] == ["now"] * n_calls
        assert (answer.content, answered(pieces, ["b"], is_cut=True).tool_calls) == ("", [])


def test_the_first_to_end_counts() -> None:
    assert parts(answered(["xabcd"], ["abcd", "bc"]))[2:] == ("xa", [], "bc")
    assert parts(answered(["xabc"], ["bc", "abc"]))[2:] == ("x", [], "abc")


@pytest.mark.parametrize("min_tokens", [0, 3, 8])
def test_a_minimum_holds_against_them(smollm2: Model, min_tokens: int) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24}
    free = smollm2.chat("Count to nine.", **options)
    text = free.read()
    least = len("".join(smollm2.token_texts(free.tokens[:min_tokens])))
    reply = smollm2.chat("Count to nine.", **options, min_tokens=min_tokens, stop=[" "])
    assert reply.read() == text[: text.index(" ", least)]
    assert (reply.n_tokens > min_tokens, reply.stopped_by) == (True, " ")


def test_what_a_constraint_promises_is_kept(smollm2: Model) -> None:
    """A stop string ends the answer where what precedes it is complete."""
    for regex, text, stopped_by in [
        ("a{6}b{6}", "aaaaaabbbbbb", None),
        ("a{6}(ba{6})*", "aaaaaa", "b"),
        ('\\{"x": "a b{4}"\\}', '{"x": "a bbbb"}', None),
    ]:
        constraints = Constraints(regex=regex)
        reply = smollm2.chat(
            "x", seed=1, ignore_eos=True, constraints=constraints, stop=["b", " ", "}", "ab"]
        )
        assert (reply.read(), reply.stopped_by) == (text, stopped_by)
        assert reply.finish_reason == "stop"


@pytest.mark.parametrize("stop", ['"', " ", ":", "}", "1"])
def test_a_stop_token_ends_no_constrained_answer_in_the_middle(smollm2: Model, stop: str) -> None:
    ids = smollm2.tokenize(stop)
    constraints = Constraints(regex='\\{"a": [12]\\}')
    reply = smollm2.chat("x", seed=1, constraints=constraints, stop_token_ids=ids)
    assert reply.read() in ('{"a": 1}', '{"a": 2}')


@pytest.mark.parametrize("stop", ["\n", '"', "}", "{", "<tool_call>", "tool", "now", ":", " "])
def test_a_call_is_whole_whatever_the_stop_strings(smollm2: Model, stop: str) -> None:
    grammar = Constraints(grammar=f"root ::= {CALL.replace(chr(34), chr(92) + chr(34)).join(chr(34) * 2)}")
    request = Request(
        [{"role": "user", "content": "Hi"}],
        SamplingParams(constraints=grammar, stop=[stop], max_tokens=60),
        tools=[NOW],
    )
    [answer] = smollm2.answer_all([request])
    [call] = answer.tool_calls
    assert call["function"] == {"name": "now", "arguments": '{"a": "b c"}'}
    assert (answer.content, answer.finish_reason, answer.stopped_by) == ("", "stop", None)


@pytest.mark.parametrize(
    "text", ["<think>\nHm.\n</think>\n\nSo.", "<think>\nHm, a", "So. </think>", " \n<think></think>"]
)
def test_reasoning_in_the_content_is_as_it_was_written(text: str) -> None:
    """With the tag, if the prompt ends with it; and without the calls and stop strings that are in it."""
    for pieces in ([text], list(text)):
        assert parts(answered(pieces, [], is_shown=True))[:4] == (text, "", text, [])
    opened = ReasoningSplitter("reasoning")
    opened.follows_tag = True
    splitter = Splitter(opened, ToolParser([NOW]), reasoning_in_content=True)
    splitter.stop_at(["H"], lambda _: True)
    given = [splitter.feed(f"\nHm {CALL}</thi"), splitter.feed("nk>\nSo. H", is_final=True)]
    assert "".join(piece.content for piece in given) == f"<think>\nHm {CALL}</think>\nSo. "
    assert "".join(given) == f"\nHm {CALL}</think>\nSo. "
