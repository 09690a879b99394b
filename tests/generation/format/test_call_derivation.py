"""How models write calls, derived from what small templates write, and forced in the same form."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import Request, SamplingParams, load_model
from mink_local.generation.format.call_derivation import CHECKS, TOOLS, understood_style
from mink_local.generation.format.call_forms import form_of
from mink_local.generation.format.call_grammar import calls_grammar
from mink_local.generation.format.call_styles import GPT_OSS, HERMES, CallStyle
from mink_local.generation.format.derived import how_calls_are_taken
from mink_local.generation.format.rendering import Renderer
from mink_local.generation.format.tool_calls import ToolParser
from tests.support.effort import examples
from tests.support.tiny import write_scripted


def template(call: str, opening: str = "", separator: str = "", closing: str = "", one: str = "") -> str:
    """Return a template that writes calls, and an end of its turns."""
    return (
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if m.tool_calls %}" + one + opening
        + "{% for c in m.tool_calls %}{% set f = c.function %}" + call
        + "{% if not loop.last %}" + separator + "{% endif %}{% endfor %}" + closing
        + "{% endif %}<|end|>{% endfor %}<|assistant|>"
    )  # fmt: skip


def tags(key: str, equals: str, end: str, text_equals: str = "") -> str:
    """Return what writes arguments in tags; JSON where they are no text."""
    return (
        "{% for k, v in f.arguments.items() %}" + key + "{{ k }}"
        + (f"{{% if v is string %}}{text_equals}{{% else %}}{equals}{{% endif %}}" if text_equals else equals)
        + "{{ v if v is string else v | tojson }}" + end + "{% endfor %}"
    )  # fmt: skip


JSON = "{{ f.arguments | tojson }}"
OBJECT = '{"name": "{{ f.name }}", "arguments": ' + JSON + "}"
ONE = "{% if m.tool_calls | length > 1 %}{{ raise_exception('one call') }}{% endif %}"
TEMPLATES = {
    "Hermes": template(f"<tool_call>\n{OBJECT}\n</tool_call>", separator="\n"),
    "a list": template(OBJECT, "<calls>[", ", ", "]</calls>"),
    "names as keys": template('{"{{ f.name }}": ' + JSON + "}", "<|calls|>[", ", ", "]<|/calls|>"),
    "ids": template("<|c:1|>{{ c.id }}<|n:1|>{{ f.name }}<|a:1|>" + JSON + "<|e:1|>", "<|calls|>"),
    "numbers": template("<|c:1|>functions.{{ f.name }}:{{ loop.index0 }}<|a:1|>" + JSON + "<|e:1|>"),
    "control": template("[TOOL_CALLS]{{ f.name }}[ARGS]" + JSON),
    "parameters": template(
        "<call>\n<function={{ f.name }}>" + tags("\n<parameter=", ">\n", "\n</parameter>")
        + "\n</function>\n</call>",
    ),
    "keys and values": template("<call>{{ f.name }}" + tags("<k:>", "</k:><v:>", "</v:>") + "</call>"),
    "typed": template(
        '<i:nvoke name="{{ f.name }}">' + tags('\n<p: name="', '" s="no">', "</p:>", '" s="yes">')
        + "\n</i:nvoke>\n",
        "<c:alls>\n", closing="</c:alls>",
    ),
    "alone": template('{"name": "{{ f.name }}", "parameters": ' + JSON + "}", one=ONE),
}  # fmt: skip


def style_of(source: str) -> CallStyle | None:
    renderer = Renderer(source, bos_token="", eos_token="", in_process=True)
    return understood_style(renderer, how_calls_are_taken(renderer))


STYLES = {name: style_of(source) for name, source in TEMPLATES.items()} | {"gpt-oss": GPT_OSS}


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_are_read_as_the_template_writes_them(name: str) -> None:
    style = STYLES[name]
    assert style is not None
    assert (style.separator is None) is (name == "alone")
    form = form_of(style)
    assert form.allows_bare is (name == "alone")
    assert (
        style.opening + style.before in TEMPLATES[name].replace("{{ f.name }}", "") or "{{" in TEMPLATES[name]
    )


@pytest.mark.parametrize(
    "source",
    [
        template("{{ f.name }} {{ f.arguments }}"),  # Python's text of an object
        template("call {{ f.name }} with " + JSON),  # nothing that is no word
        template("<call>{{ f.name }}" + tags("<k:>", "</k:>", "")),  # no end
        template("<call>{{ f.name }}{{ f.arguments | length }}</call>"),
        template(
            "<call>" + OBJECT.replace("| tojson", "| tojson | replace('<', '')") + "</call>"
        ),  # loses some
        template(""),
    ],
)
def test_what_cannot_be_read_back_is_not_understood(source: str) -> None:
    assert style_of(source) is None


@pytest.mark.parametrize("name", STYLES)
def test_a_grammar_is_in_the_models_own_form(name: str) -> None:
    """And what it allows is read as a call: the engine's tokens are tried in `test_a_call_is_forced`."""
    from llguidance import LLMatcher

    style = STYLES[name]
    assert style is not None
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    grammar = calls_grammar(style, parameters, is_parallel=True)
    assert LLMatcher.validate_grammar(grammar) == ""
    assert json.dumps(style.before + "get_weather")[1:-1] in grammar.replace('" "', "")


CONTROL = ("[TOOL_CALLS]", "[ARGS]")
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
            "required": ["a", "n"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("control", ["[TOOL_CALLS]", "f", "[ARGS]", '{"a": "', "x", '", "n": ', "1", "}"]),
        ("parameters",
         ["<call>\n", "<function=f>", "<parameter=a>\n", "x", "\n</parameter><parameter=n>\n", "1",
          "\n</parameter>", "</function>\n</call>"]),
        ("keys and values",
         ["<call>", "f", "<k:>a</k:><v:>", "x", "</v:>", "<k:>n</k:><v:>", "1", "</v:></call>"]),
    ],
)  # fmt: skip
def test_a_call_is_forced_in_the_models_own_form(name: str, written: list[str], tmp_path: Path) -> None:
    source = "{# tools #}" + TEMPLATES[name]
    path = write_scripted(tmp_path / "x.gguf", source, {"<|assistant|>": written}, CONTROL)
    with load_model(path, trust=True) as model:
        params = SamplingParams(temperature=0.0, max_tokens=60)
        user = {"role": "user", "content": "Hi"}
        [answer] = model.answer_all([Request([user], params, tools=[TOOL], tool_choice="required")])
        assert answer.text == "".join(written)
        [call] = answer.tool_calls
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (
            "f",
            {"a": "x", "n": 1},
        )


HARMONY = (
    "{# tools <|channel|>analysis #}{{ tools | tojson if tools else '' }}{% for m in messages %}"
    "<|start|>{{ m.role }}<|message|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    " to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>"
    "{{ c.function.arguments | tojson }}<|call|>{% endfor %}{% endfor %}<|start|>assistant"
)


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "f"}}])
@pytest.mark.parametrize("reasons", [True, False])
def test_gpt_oss_reasons_before_a_call_that_is_forced(choice: Any, reasons: bool, tmp_path: Path) -> None:
    reasoning = ["<|channel|>analysis<|message|>", "Hm.", "<|end|><|start|>", "assistant"] if reasons else []
    call = [" to=functions.", "f", "<|channel|>commentary json<|message|>", '{"a": "', "x", '", "n": 1}']
    path = write_scripted(tmp_path / "x.gguf", HARMONY, {"<|start|>assistant": [*reasoning, *call]})
    with load_model(path, trust=True) as model:
        params = SamplingParams(temperature=0.0, max_tokens=60)
        user = {"role": "user", "content": "Hi"}
        [answer] = model.answer_all([Request([user], params, tools=[TOOL], tool_choice=choice)])
    assert answer.reasoning == "Hm." * reasons
    [found] = answer.tool_calls
    assert json.loads(found["function"]["arguments"]) == {"a": "x", "n": 1}
    assert not answer.content


WORDS = [
    "get_weather",
    "write_file",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\n",
    " ",
    "a",
    "<",
    "|>",
    '{"city": "Rome"}',
    "city",
    "Rome",
]


@examples(300)
@given(st.sampled_from([*STYLES]), st.data(), st.randoms(use_true_random=False))
def test_nothing_is_lost_around_marks(name: str, data: st.DataObject, rng: random.Random) -> None:
    """What is no call is text, character for character; and no call comes without a mark."""
    style = STYLES[name]
    assert style is not None
    parts = (style.opening, style.before, style.between, style.after, style.separator or "", style.closing,
             style.key, style.equals, style.end)  # fmt: skip
    words = [*filter(None, parts), *WORDS]
    text = "".join(data.draw(st.lists(st.sampled_from(words), max_size=12)))
    form = form_of(style)
    cuts = sorted(rng.randint(0, len(text)) for _ in range(4))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    found = []
    for given_pieces in ([text], pieces, list(text)):
        parser = ToolParser(TOOLS, form)
        events = [event for piece in given_pieces for event in parser.feed(piece)]
        events += parser.feed("", is_final=True)
        assert parser.n_held == 0
        content = "".join(event for event in events if isinstance(event, str))
        calls = [(event.name, event.arguments) for event in events if not isinstance(event, str)]
        found.append((content, calls))
    assert found[0] == found[1] == found[2]
    if not found[0][1]:
        assert found[0][0] == text
    elif not form.allows_bare:
        assert any(mark in text for mark in form.marks)


def test_the_checks_hold_what_templates_get_wrong() -> None:
    assert {len(calls) for calls in CHECKS} == {1, 2}
    assert form_of(HERMES).marks.keys() == {"<tool_call>"}
