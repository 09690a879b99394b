"""Reasoning that repeats itself ends in an answer, in every protocol; an answer, where that is asked."""

from collections.abc import Iterator
from typing import Any

import pytest

from mink_local.generation.format.text import THINK, THINK_END
from tests.serve.test_tools import chat_parts, messages_parts, responses_parts
from tests.support.server import RunningServer, running_server
from tests.support.tiny import write_scripted

ROUND = [" But", " wait", ",", " let", " me", " check", " that", " again", "."]
TEMPLATE = "{# tools <tool_call> #}{% for m in messages %}{{ m.content }}{% endfor %}<think>"


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose model reasons in a circle, and answers "Four!" if that is ended."""
    scripts = {THINK: ROUND, THINK_END: ["x"], "\n\n": ["Four", "!"], "Say:": [" no", " and"]}
    again = {".": " But", " and": " no"}
    path = write_scripted(tmp_path_factory.mktemp("loops") / "x.gguf", TEMPLATE, scripts, again=again)
    with running_server("--model", str(path), "--temp", "0", "--ctx", "2048") as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parts_of", "whole", "cut"),
    [
        (chat_parts, "stop", "length"),
        (messages_parts, "end_turn", "max_tokens"),
        (responses_parts, "completed", "incomplete"),
    ],
)
def test_reasoning_that_loops(
    looping: RunningServer, parts_of: Any, whole: str, cut: str, stream: bool
) -> None:
    parts, reason = parts_of(looping, stream, max_tokens=300)
    assert "".join(parts).endswith("Four!")
    assert reason == whole
    parts, reason = parts_of(looping, stream, max_tokens=300, end_loops="none")
    assert "Four" not in "".join(parts)
    assert reason == cut


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/responses", {"input": "Hi"}),
    ],
)
def test_where_it_looped_is_told(looping: RunningServer, path: str, fields: dict[str, Any]) -> None:
    body = looping.post(path, max_tokens=300, **fields).json()
    [loop] = (body["choices"][0] if "choices" in body else body)["loops"]
    assert loop == {"token": len(ROUND), "in_reasoning": True, "is_ended": True}


def test_an_answer_that_loops_ends_where_that_is_asked(looping: RunningServer) -> None:
    asked: dict[str, Any] = {"prompt": "Say:", "max_tokens": 300}
    [choice] = looping.post("/v1/completions", **asked).json()["choices"]
    assert (choice["finish_reason"], choice["loops"][0]["is_ended"]) == ("length", False)
    [choice] = looping.post("/v1/completions", end_loops="all", **asked).json()["choices"]
    assert (choice["finish_reason"], choice["loops"][0]["is_ended"]) == ("repetition", True)
    whole = looping.post("/completion", end_loops="all", **asked).json()
    assert whole["stop_type"] == "limit"
    assert whole["tokens_predicted"] < 150
