"""What is said of a template, and what a user says in its place."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from mink_local import Request, SamplingParams, load_model
from mink_local.errors import OptionError
from mink_local.generation.format.call_derivation import CHECKS, is_read
from mink_local.generation.format.call_styles import NAMED
from mink_local.generation.format.conventions import conventions_of, style_of
from mink_local.generation.format.rendering import Renderer
from tests.support.tiny import write_scripted

USER = {"role": "user", "content": "Hi"}
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}},
}
# Nothing that it writes for a call can be told from text.
TURNS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content }}{% for c in m.tool_calls or [] %}call {{ c.function.name }} with "
    "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}<|assistant|>"
)
STYLE = {"before": "<<call ", "between": " ", "after": ">>", "separator": ""}
CALL = ["<<call", " f", ' {"a": "', "x", '"}', ">>"]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return write_scripted(tmp_path / "x.gguf", TURNS, {"<|assistant|>": CALL})


def test_a_call_that_is_not_understood_is_said_by_name(
    model_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mink_local"), load_model(model_file, trust=True) as model:
        assert "x: " in caplog.text
        assert "not understood" in str(model.conventions)
        assert "<tools>" in model.apply_chat_template([USER], tools=[TOOL])


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_fields_make_calls_read_that_a_template_does_not_teach(
    model_file: Path, choice: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with load_model(model_file, trust=True, call_style=STYLE) as model:
        assert not caplog.records
        assert "<<call NAME" in str(model.conventions)
        params = SamplingParams(temperature=0.0, max_tokens=60)
        [answer] = model.answer_all([Request([USER], params, tools=[TOOL], tool_choice=choice)])
        [call] = answer.tool_calls
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"a": "x"})
        assert answer.text == "".join(CALL)
        prompt = model.apply_chat_template([USER], tools=[TOOL])
        assert json.dumps(TOOL) in prompt  # as the template shows tools
        assert "<tools>" not in prompt


def test_a_template_without_tools_shows_them_in_the_style_that_was_given(tmp_path: Path) -> None:
    turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
    path = write_scripted(tmp_path / "x.gguf", turns, {"<|assistant|>": ["a"]})
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "f", "arguments": {}}}],
    }
    with load_model(path, trust=True, call_style=STYLE) as model:
        prompt = model.apply_chat_template([USER, called, {"role": "tool", "content": "so"}], tools=[TOOL])
    assert "<<call <function-name> <args-json-object>>>" in prompt
    assert "<<call f {}>>" in prompt
    assert "<tool_call>" not in prompt


@pytest.mark.parametrize(
    ("style", "complaint"),
    [
        ("hermis", "hermes"),
        (7, "7"),
        ({"befor": "<<"}, "before"),
        ({"before": 1}, "before"),
        ({"kind": "xml", "before": "<<call "}, "kind"),
        ({"before": "call ", "between": " with ", "after": " end"}, "read back"),
        ({}, "read back"),
    ],
)
def test_a_style_that_cannot_be_read_is_refused(model_file: Path, style: Any, complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        load_model(model_file, trust=True, call_style=style)


@pytest.mark.parametrize("marks", ["<a>", ["<a>"], ["<a>", " "], ["<a>", 7], ["a", "b", "c"]])
def test_marks_are_two_texts(model_file: Path, marks: Any) -> None:
    with pytest.raises(OptionError, match="reasoning_marks"):
        load_model(model_file, trust=True, reasoning_marks=marks)


def test_marks_of_reasoning_that_a_template_does_not_show(tmp_path: Path) -> None:
    path = write_scripted(tmp_path / "x.gguf", TURNS, {"<|assistant|>": ["<hm>", "So", "</hm>", "Four"]})
    with load_model(path, trust=True, reasoning_marks=("<hm>", "</hm>")) as model:
        reply = model.chat([USER], temperature=0.0)
        assert (reply.read() and reply.reasoning, reply.content) == ("So", "Four")
        assert model.can_reason


@pytest.mark.parametrize("name", sorted(NAMED.keys() - {"gpt-oss"}))  # whose calls come after headers
def test_named_styles_read_what_they_write(name: str) -> None:
    assert all(is_read(NAMED[name], NAMED[name].write(calls), calls) for calls in CHECKS)


def test_what_is_printed_can_be_given() -> None:
    source = TURNS.replace("call {{", "<call>{{").replace(" with ", "<args>")
    renderer = Renderer(source, bos_token="", eos_token="", in_process=True)
    found = conventions_of(renderer, source)
    printed = json.loads(json.dumps(found.as_dict()))
    assert printed["calls"]["between"] == "<args>"
    assert conventions_of(renderer, source, style_of(printed["calls"])) == found


def test_a_file_may_have_another_template_for_tools(tmp_path: Path) -> None:
    """It is used for requests with tools, and only for these."""
    calls = (
        "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}<args>"
        "{{ c.function.arguments | tojson }}</call>{% endfor %}"
    )
    turns = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + calls + "{% endfor %}<|assistant|>"
    plain = "{% for m in messages %}({{ m.content }}){% endfor %}<|plain|>"
    keys = {"chat_template.tool_use": "{{ tools | tojson }}" + turns}
    scripts = {"<|assistant|>": ["<call>", "f", "<args>", '{"a": "x"}', "</call>"], "<|plain|>": ["Well"]}
    path = write_scripted(tmp_path / "x.gguf", plain, scripts, tokenizer=keys)
    with load_model(path, trust=True) as model:
        assert model.apply_chat_template([USER]) == "(Hi)<|plain|>"
        assert model.apply_chat_template([USER], tools=[TOOL]).startswith(json.dumps([TOOL]))
        assert model.supports_tools
        params = SamplingParams(temperature=0.0, max_tokens=60)
        [plain_answer, answer] = model.answer_all(
            [Request([USER], params), Request([USER], params, tools=[TOOL])]
        )
        assert plain_answer.text == "Well"
        assert [call["function"]["name"] for call in answer.tool_calls] == ["f"]
    with load_model(path, trust=True, chat_template=plain) as model:  # the user's replaces both
        assert "<tools>" in model.apply_chat_template([USER], tools=[TOOL])
