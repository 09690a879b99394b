"""Tool calls in an answer's text: found however it is cut into pieces, and never lost."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import load_model
from mink_local.generation.format.call_formats import GEMMA_QUOTES, WRAPPERS
from mink_local.generation.format.call_forms import NO_FORM, Form, form_of
from mink_local.generation.format.call_styles import CallStyle
from mink_local.generation.format.tool_calls import ToolCallDelta, ToolParser
from mink_local.generation.request import Tool
from tests.support.calls import whole_calls
from tests.support.effort import examples
from tests.support.tiny import write_scripted

PROPERTIES = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "unit": {"type": ["string", "null"]},
    "area": {"anyOf": [{"type": "string"}, {"type": "null"}]},
}
TOOLS: list[Tool] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": PROPERTIES}}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "web_search"},
]
WEATHER = '{"name": "get_weather", "arguments": {"city": "Rom"}}'
PARAMETERS = '{"name": "get_weather", "parameters": {"city": "Rom"}}'
NOW = '{"name": "now", "arguments": {}}'

Parsed = tuple[str, list[tuple[str, str]]]


def parsed(
    pieces: list[str], form: Form | None = None, is_parallel: bool = True, is_cut: bool = False
) -> Parsed:
    """Return the text of an answer and its calls, (name, arguments), after checking the events' form."""
    parser = ToolParser(TOOLS, NO_FORM if form is None else form, is_parallel=is_parallel)
    steps = [
        *(list(parser.feed(piece)) for piece in pieces),
        list(parser.feed("", is_final=True, is_cut=is_cut)),
    ]
    assert parser.n_held == 0
    deltas = [event for step in steps for event in step if isinstance(event, ToolCallDelta)]
    calls = whole_calls(deltas)
    assert len(calls) == len({call["id"] for call in calls})
    assert [delta.index for delta in deltas] == sorted(delta.index for delta in deltas)
    assert len(deltas) == len(calls)
    text = "".join(event for step in steps for event in step if isinstance(event, str))
    return text, [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


ROM, EMPTY = ("get_weather", '{"city": "Rom"}'), ("now", "{}")
MARK = ("now", '{"a": "</tool_call>"}')
QWEN_CODER = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nRom\n</parameter>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=now>\n</function>\n</tool_call>"
)
COMMAND = (
    '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Rom"}}'
    ',\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]<|END_ACTION|>'
)
BOTH = {  # calls of both tools
    "Hermes": f"<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>",
    "Hermes, once": f"<tool_call>\n{WEATHER}\n{NOW}\n</tool_call>",
    "LLaMA, bare": f" {PARAMETERS}; {NOW}",
    "Mistral": f'[TOOL_CALLS] [{WEATHER[:-1]}, "id": "a1b2c3d4e"}}, {NOW}]',
    "Mistral, v11": '[TOOL_CALLS]get_weather[CALL_ID]a[ARGS]{"city": "Rom"}[TOOL_CALLS]now[CALL_ID]b[ARGS]{}',
    "Mistral, v13": '[TOOL_CALLS]get_weather[ARGS]{"city": "Rom"}[TOOL_CALLS]now[ARGS]{}',
    "Qwen3-Coder": QWEN_CODER,
    "Qwen3-Coder, bare": QWEN_CODER.replace("<tool_call>\n", ""),
    "LLaMA, tagged": '<function=get_weather>{"city": "Rom"}</function>\n<function=now>{}</function>',
    "GLM": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>"
    ),
    "DeepSeek R1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Rom"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n'
        "{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "DeepSeek V3": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Rom"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "pythonic": "[get_weather(city='Rom'), now()]",
    "LFM2": '<|tool_call_start|>[get_weather(city="Rom"), now()]<|tool_call_end|>',
    "Kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Rom"}<|tool_call_end|><|tool_call_begin|>functions.now:1 <|tool_call_argument_begin|> '
        "{}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "Command": COMMAND,
    "Command, names first": COMMAND.replace('"tool_call_id": "0", ', ""),
    "Gemma 3": "```tool_code\nget_weather(city='Rom')\nnow()\n```",
    "Gemma 4": (
        '<|tool_call>call:get_weather{city:<|"|>Rom<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>'
    ),
    "FunctionGemma": (
        "<start_function_call>call:get_weather{city:<escape>Rom<escape>}<end_function_call>"
        "<start_function_call>call:now{}<end_function_call>"
    ),
    "names as keys": '<|tools_prefix|>[{"get_weather": {"city": "Rom"}}, {"now": {}}]<|tools_suffix|>',
    "DSML": (
        '<D:calls>\n<D:invoke name="get_weather">\n<D:parameter name="city" string="true">Rom</D:parameter>\n'
        '</D:invoke>\n<D:invoke name="now">\n</D:invoke>\n</D:calls>'
    ),
    "tags alone": (
        '<function name="get_weather"><param name="city"><![CDATA[Rom]]></param></function>\n'
        '<function name="now"></function>'
    ),
    "Nemotron": f"<TOOLCALL>[{WEATHER}, {NOW}]</TOOLCALL>",
    "Phi": f"<|tool_call|>[{WEATHER}, {NOW}]<|/tool_call|>",
    "array": f"[{WEATHER}, {NOW}]",
    "fence": f"```json\n{WEATHER}\n{NOW}\n```",
    "fence, array": f"```json\n[\n  {WEATHER},\n  {NOW}\n]\n```",
    "fence, tags": f"```xml\n<tool_call>\n{WEATHER}\n</tool_call>\n<tool_call>{NOW}</tool_call>\n```",
    "fence, untagged": f"```\n{WEATHER}\n{NOW}\n```",
    "tools": f"<tools>\n{WEATHER}\n{NOW}\n</tools>",
    "arguments first": f'{{"arguments": {{"city": "Rom"}}, "name": "get_weather"}}\n{NOW}',
    "a type": '{"type": "function", ' + PARAMETERS[1:] + NOW,
}


GEMMA = CallStyle("<|tool_call>call:", "{", "<tool_call|>", "", kind="quoted", quote='<|"|>')
_R1_CALL = "<｜tool▁call▁begin｜>"
STYLES = {
    "Mistral": CallStyle('{"name": "', '", "arguments": ', "}", ", ", opening="[TOOL_CALLS][", closing="]"),
    "Mistral, v11": CallStyle("[TOOL_CALLS]", "[CALL_ID]callidab1[ARGS]", "", ""),
    "Mistral, v13": CallStyle("[TOOL_CALLS]", "[ARGS]", "", ""),
    "Qwen3-Coder": CallStyle(
        "<tool_call>\n<function=", ">", "\n</function>\n</tool_call>", "\n", kind="tags", key="\n<parameter=",
        equals=">\n", equals_other=">\n", end="\n</parameter>",
    ),
    "LLaMA, tagged": CallStyle("<function=", ">", "</function>", ""),
    "GLM": CallStyle(
        "<tool_call>", "", "\n</tool_call>", "", kind="tags", key="\n<arg_key>",
        equals="</arg_key>\n<arg_value>", equals_other="</arg_key>\n<arg_value>", end="</arg_value>",
    ),
    "DeepSeek R1": CallStyle(
        f"{_R1_CALL}function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n",
        opening="<｜tool▁calls▁begin｜>", closing="<｜tool▁calls▁end｜>",
    ),
    "DeepSeek V3": CallStyle(
        _R1_CALL, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "",
        opening="<｜tool▁calls▁begin｜>", closing="<｜tool▁calls▁end｜>",
    ),
    "LFM2": CallStyle(
        between="(", separator=", ", opening="<|tool_call_start|>[", closing="]<|tool_call_end|>",
        kind="python",
    ),
    "Kimi": CallStyle(
        "<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
        opening="<|tool_calls_section_begin|>", closing="<|tool_calls_section_end|>",
    ),
    "Command": CallStyle(
        '\n    {"tool_call_id": "0", "tool_name": "', '", "parameters": ', "}", ",",
        opening="<|START_ACTION|>[", closing="\n]<|END_ACTION|>",
    ),
    "Gemma 4": GEMMA,
    "FunctionGemma": replace(
        GEMMA, before="<start_function_call>call:", after="<end_function_call>", quote="<escape>"
    ),
    "Nemotron": CallStyle(
        '{"name": "', '", "arguments": ', "}", ", ", opening="<TOOLCALL>[", closing="]</TOOLCALL>"
    ),
    "Phi": CallStyle(
        '{"name": "', '", "arguments": ', "}", ", ", opening="<|tool_call|>[", closing="]<|/tool_call|>"
    ),
    "names as keys": CallStyle(
        '{"', '": ', "}", ", ", opening="<|tools_prefix|>[", closing="]<|tools_suffix|>"
    ),
    "DSML": CallStyle(
        '<D:invoke name="', '">', "\n</D:invoke>\n", "", "<D:calls>\n", "</D:calls>", "tags",
        '\n<D:parameter name="', '" string="true">', '" string="false">', "</D:parameter>",
    ),
    "tags alone": CallStyle(
        '<function name="', '">', "</function>", "\n", kind="tags", key='<param name="', equals='">',
        equals_other='">', end="</param>",
    ),
}  # fmt: skip
FORMS = {name: form_of(style) for name, style in STYLES.items()}
FORMS |= {"Qwen3-Coder, bare": FORMS["Qwen3-Coder"], "Command, names first": FORMS["Command"]}
ANY_FORM = Form(
    {mark: ends for form in FORMS.values() for mark, ends in form.marks.items()},
    tuple(head for form in FORMS.values() for head in form.heads),
)
BARE = {name for name in BOTH if name not in FORMS and name not in ("Hermes", "Hermes, once", "fence, tags")}


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("before", ["", "I look.\n"])
@pytest.mark.parametrize("after", ["", "Done. "])
def test_calls_are_found(name: str, before: str, after: str) -> None:
    text, form = f"{before}{BOTH[name]}\n\n{after}", FORMS.get(name, NO_FORM)
    content = f"{before.rstrip()}\n\n{after}" if before and after else before.rstrip() + after
    expected: Parsed = content, [ROM, EMPTY]
    if after and name in BARE:  # it is only quoted
        expected = text, []
    assert parsed([text], form) == expected
    assert parsed(list(text), form) == expected
    for cut in range(len(text)):
        assert parsed([text[:cut], text[cut:]], form) == expected


@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("before", ["", "I look.\n"])
def test_a_call_that_is_cut_off_is_left_out(name: str, before: str) -> None:
    """It is no text, and no call with other arguments."""
    text, seen = before + BOTH[name], set()
    for cut in range(len(before) + 1, len(text)):
        content, calls = parsed([text[:cut]], FORMS.get(name, NO_FORM), is_cut=True)
        assert parsed(list(text[:cut]), FORMS.get(name, NO_FORM), is_cut=True) == (content, calls)
        seen.add(len(calls))
        assert content.strip() == before.strip()
        assert calls == [ROM, EMPTY][: len(calls)]
    assert seen >= {0, 1}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"<tool_call>{WEATHER}", "", [ROM]),
        (f"I look:\n```json\n{WEATHER}\n```\n\n", "I look:", [ROM]),
        (f"{NOW};", "", [EMPTY]),
        (f"{NOW}\n{WEATHER}", "", [EMPTY, ROM]),
        (f"{NOW}\n<tool_call>{WEATHER}</tool_call>", "", [EMPTY, ROM]),
        ('<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', "", [EMPTY]),
        ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
        ('<tool_call>{"name": "now", "arguments": {"a": "x\ny"}}', "", [("now", '{"a": "x\\ny"}')]),
        ('<tool_call>{"name": "now", "arguments": {"a": "\\"}{é"}}', "", [("now", '{"a": "\\"}{é"}')]),
        ('<tool_call>{"name": "now", "arguments": {"a": "</tool_call>"}}', "", [MARK]),
        ('{"name": "now", "arguments": {"a": "```"}}', "", [("now", '{"a": "```"}')]),
        ('<tool_call>{"arguments": {"a": "</tool_call>"}, "name": "now"}', "", [MARK]),
        ("[now(a='it\\'s', b=\"\\\"\\\\d\\n\", c=[1, {'x': None}], d=True)]", "",
         [("now", '{"a": "it\'s", "b": "\\"\\\\d\\n", "c": [1, {"x": null}], "d": true}')]),
        ("[now(a=')]', b=-1.5)]", "", [("now", '{"a": ")]", "b": -1.5}')]),
        ('<|tool_call>call:now{a:<|"|>x\\<|"|>,b-c:[1,{x:null,y:<|"|>}<tool_call|>"<|"|>}],d:true}<tool_call|>',
         "", [("now", '{"a": "x\\\\", "b-c": [1, {"x": null, "y": "}<tool_call|>\\""}], "d": true}')]),
        ('<|tool_call>call:now{ <|"|>a b<|"|> : False}', "", [("now", '{"a b": false}')]),
        ("<|tool_call>call:now{a:<b>}", "<|tool_call>call:now{a:<b>}", []),
        # mended
        ('<tool_call>{"name": "now", "arguments": {"a": [1,],}}</tool_call>', "", [("now", '{"a": [1]}')]),
        ("<tool_call>{'name': 'now', 'arguments': {'a': 'it\\'s \"}\"', \"b\": \"it's\"}}</tool_call>", "",
         [("now", '{"a": "it\'s \\"}\\"", "b": "it\'s"}')]),
        (f"<tool_call>\n{WEATHER}}}\n</tool_call>\nSo", "So", [ROM]),
        (f"<tool_call>\n{WEATHER}}}", "", [ROM]),
        (f"<tool_call>\n{WEATHER}}} So", "} So", [ROM]),
        # without arguments, in OpenAI's form
        ('<tool_call>{"name": "now"}</tool_call>', "", [EMPTY]),
        ('<tool_call>{"name": "now", "arguments": null}</tool_call>', "", [EMPTY]),
        ('<tool_call>{"name": "now", "arguments": ""}</tool_call>', "", [EMPTY]),
        (f'<tool_call>{{"type": "function", "function": {WEATHER}}}</tool_call>', "", [ROM]),
        (f'{{"type": "function", "function": {WEATHER}}}', "", [ROM]),
        (f'<tool_call>{{"id": "a", "type": "function", "function": {WEATHER}}}</tool_call>', "", [ROM]),
        # after a malformed one
        ('<tool_call>\n{"name": "now", "arguments": {"a": "}}\n</tool_call>\n' f"<tool_call>{WEATHER}",
         '<tool_call>\n{"name": "now", "arguments": {"a": "}}\n</tool_call>', [ROM]),
        (f'<tool_call>\n{{"arguments": {{"a": }}}}\n</tool_call>\n<tool_call>{WEATHER}</tool_call>',
         '<tool_call>\n{"arguments": {"a": }}\n</tool_call>', [ROM]),
    ],
)  # fmt: skip
def test_how_calls_are_written(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    form = FORMS["Gemma 4"] if "<|tool_call>" in text else NO_FORM
    assert parsed([text], form) == (content, calls)
    assert parsed(list(text), form) == (content, calls)


@pytest.mark.parametrize(
    ("parameter", "text", "value"),
    [
        ("city", "01", "01"),
        ("city", "null", "null"),
        ("city", " a\n\n</parameter> b ", " a\n\n</parameter> b "),
        ("unit", "null", None),
        ("area", "null", None),
        ("area", "3", "3"),
        ("days", "3", 3),
        ("days", "three", "three"),
        ("other", "01", "01"),
        ("other", '{"a": [1]}', {"a": [1]}),
        ("other", "{'a': None}", {"a": None}),
        ("other", "NaN", "NaN"),
        ("other", '"\\ud800"', '"\\ud800"'),
    ],
)
def test_the_types_of_parameters_in_tags(parameter: str, text: str, value: object) -> None:
    coder = f"<function=get_weather>\n<parameter={parameter}>\n{text}\n</parameter>\n</function>"
    glm = f"<tool_call>get_weather<arg_key>{parameter}</arg_key><arg_value>{text}</arg_value></tool_call>"
    for written, name in ((coder, "Qwen3-Coder"), (glm, "GLM")):
        [(_, arguments)] = parsed(list(written), FORMS[name])[1]
        assert json.loads(arguments) == {parameter: value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n Hello.  \n",
        "a < b, <b>, <tool, <tool_call, x[0] [TOOL",
        "<tool_call>",
        "<tool_call>\nwho()\n</tool_call>",
        "[now (2 pm)] is [now(2)]",
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "age": 4}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "now", "arguments": {"a": \'it\'s\'}}</tool_call>',
        '{"name": "now"}',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {"a": NaN}, "name": "now"}</tool_call>',
        '<tool_call>{"arguments": {"a": 1e999}, "name": "now"}</tool_call>',
        '<tool_call>{"arguments": {"a": "\\ud800"}, "name": "now"}</tool_call>',
        '<tool_call>{"arguments": {"a": %s}, "name": "now"}</tool_call>' % ("[" * 9999 + "]" * 9999),
        '<tool_call>{"arguments": {"a": %s}, "name": "now"}</tool_call>' % ("9" * 9999),
        '{"name": "unknown", "parameters": {}}',
        '{"name": "now", "age": 4}',
        '```json\n{"a": 1}\n``` ```js\n``json ```json',
        f"Write {PARAMETERS} to call it.",
        '{"names": ["now"]}\n{"a": {}}\n[{}]',
        f"I look:\n```json\n{WEATHER}\n```\n\n```python\n1\n```",
        f"{NOW}\n```python\n1\n```",
        f"{NOW}; but",
        f"[{NOW}, 5]",
        f"To call it, write\n{WEATHER}\n{NOW}\nand wait.\n",
        "<tool_call>now()</tool_call>",
    ],
)
def test_what_is_no_call_is_text(text: str) -> None:
    for form in (NO_FORM, FORMS["Phi"]):
        assert parsed([text], form) == (text, [])
        assert parsed(list(text), form) == (text, [])


def test_only_one_call_if_they_are_not_parallel() -> None:
    for name, both in BOTH.items():
        assert parsed([f"a\n{both}\n"], FORMS.get(name, NO_FORM), is_parallel=False) == ("a", [ROM])


def test_what_a_template_did_not_teach_is_text() -> None:
    """But Hermes's marks, and calls without any where the template teaches no marks."""
    for name in {*FORMS} - {"Qwen3-Coder", "Qwen3-Coder, bare", "GLM"}:
        assert parsed([BOTH[name]], NO_FORM) == (BOTH[name], [])
    for name, both in BOTH.items():
        found = [ROM, EMPTY] if name in ("Hermes", "Hermes, once", "fence, tags", "Phi") else []
        assert parsed([both], FORMS["Phi"])[1] == found


def test_marks_that_are_control_tokens(tmp_path: Path) -> None:
    """Their texts are in no answer but one that may have calls."""
    marks = ("[TOOL_CALLS]", "[ARGS]")
    template = (
        "{{ tools }}{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]"
        "{{ call.function.name ~ '[ARGS]' ~ call.function.arguments | tojson }}{% endfor %}{% endfor %}"
        "<assistant>"
    )
    script = {"<assistant>": [marks[0], "now", marks[1], "{}"]}
    with load_model(write_scripted(tmp_path / "x.gguf", template, script, marks), trust=True) as model:
        reply = model.chat("Hi", tools=[TOOLS[1]], temperature=0.0)
        assert reply.read() == "[TOOL_CALLS]now[ARGS]{}"
        assert [call["function"] for call in reply.tool_calls] == [{"name": "now", "arguments": "{}"}]
        assert model.chat("Hi", temperature=0.0).read() == "now{}"


PARTS = [
    *ANY_FORM.marks,
    *sorted({end for ends in ANY_FORM.marks.values() for end in ends if len(end) > 1}),
    *WRAPPERS,
    *("[ARGS]", "[CALL_ID]", "<｜tool▁sep｜>", "<parameter=city>", "</parameter>", "<arg_key>", "</arg_key>"),
    *(
        "<arg_value>",
        "</arg_value>",
        "get_weather",
        "now",
        "now()",
        "now(a='b', ",
        '"name": ',
        '"arguments": ',
        "call:now{a:",
        "functions.now:0<|tool_call_argument_begin|>",
        '{"tool_call_id": "0", "tool_name": "now", "parameters": {',
    ),
    *GEMMA_QUOTES,
    *(WEATHER, PARAMETERS, NOW, '{"name": "now", "arguments": {', "```", "tool", "a", "\n", " "),
    *";,:<>{}[]()\"'\\",
]


@examples(200)
@given(st.lists(st.sampled_from(PARTS)), st.randoms(use_true_random=False), st.booleans())
def test_pieces_do_not_matter(parts: list[str], rng: random.Random, is_parallel: bool) -> None:
    text = "".join(parts)
    cuts = sorted(rng.randint(0, len(text)) for _ in range(6))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    form = rng.choice([NO_FORM, ANY_FORM, *FORMS.values()])
    whole = parsed([text], form, is_parallel)
    assert parsed(pieces, form, is_parallel) == parsed(list(text), form, is_parallel) == whole
    if not whole[1]:
        assert whole[0] == text


def test_nothing_certain_is_held_back() -> None:
    parser = ToolParser(TOOLS)
    for piece, text in (
        ("Let me see <", "Let me see"),
        ("b>\n", " <b>"),
        ('{"name": "n', ""),
        ('one"', '\n{"name": "none"'),
        ("\n<tool_call>{]}", "\n<tool_call>{]}"),
    ):
        assert "".join(map(str, parser.feed(piece))) == text
    assert parser.n_held == 0


def test_a_call_comes_when_it_is_complete() -> None:
    parser = ToolParser(TOOLS, FORMS["Qwen3-Coder"])
    for piece, *expected in (
        ('<tool_call>\n{"name": "get_weather", "arguments":',),
        (' {"city',),
        ('": "<tool_call>{"}',),
        ("}\n</tool_call>", (0, "get_weather", '{"city": "<tool_call>{"}')),
        ("<function=get_weather>\n<parameter=city>\nRom",),
        ("\n</parameter>\n<parameter=days>2</parameter>",),
        ("</function>", (1, "get_weather", '{"city": "Rom", "days": 2}')),
    ):
        deltas: list[Any] = [*parser.feed(piece)]
        assert [(delta.index, delta.name, delta.arguments) for delta in deltas] == expected
    assert parser.n_held == 0


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{" * 9999,
        "<tool_call>{" * 9999 + "}" * 9999,
        '<tool_call>{"' + '<tool_call>{":"' * 9999,
        '\n{"name":"now"' * 9999,
        '\n{"arguments":{' * 9999,
        "\n[now(" * 9999,
        "[TOOL_CALLS]{" * 9999,
        "[" * 99_999,
        "```\n" * 30_000,
    ],
)
def test_no_text_is_scanned_again_and_again(text: str) -> None:
    """That would take minutes."""
    for form in (NO_FORM, FORMS["Mistral"]):
        assert parsed([text], form) == parsed([text[i : i + 9] for i in range(0, len(text), 9)], form)


def in_nines(text: str) -> list[str]:
    return [text[i : i + 9] for i in range(0, len(text), 9)]


def test_many_calls_are_read_once() -> None:
    """That would take minutes otherwise: opened again and again, long values, an end that does not come."""
    assert len(parsed(["<|tool_call_start|>now()" * 9999], FORMS["LFM2"])[1]) == 9999
    value = "</parameter>" * 9999
    coder = f"<function=get_weather>\n<parameter=city>\n{value}</parameter>"
    form = FORMS["Qwen3-Coder"]
    assert parsed(in_nines(coder), form) == (coder, [])
    [(_, arguments)] = parsed(in_nines(f"{coder}</function>"), form)[1]
    assert arguments == f'{{"city": "{value}"}}'


@pytest.mark.parametrize("value", ["x" * 100_000, "{}" * 50_000, '\\"' * 30_000, "'" * 99_999])
@pytest.mark.parametrize("name", ["Hermes", "Mistral, v13", "Gemma 4", "LFM2"])
def test_a_long_call_is_read_once(name: str, value: str) -> None:
    """Its end was looked for from the start at every bracket."""
    if name == "LFM2":
        value = value.replace("'", "`")
    if name == "Gemma 4":
        value = value.replace("\\", "")
    text = BOTH[name].replace("Rom", value)
    content, [(_, arguments), now] = parsed(in_nines(text), FORMS.get(name, NO_FORM))
    written = value if name == "Gemma 4" else json.loads(f'"{value}"')
    assert (content, json.loads(arguments), now) == ("", {"city": written}, EMPTY)
