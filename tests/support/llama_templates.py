"""The chat templates that llama.cpp ships, and what its own tests say that their models write.

They come from llama.cpp's source, as in llama-cpp-python's source archive, whose folder
LLAMA_CPP_SOURCE names.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from mink_local.errors import MinkError
from mink_local.generation.answer import Splitter
from mink_local.generation.format.call_derivation import CHECKS, TOOLS
from mink_local.generation.format.call_styles import HERMES
from mink_local.generation.format.derived import Calls, common
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.format.tool_calls import ToolParser
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.weights import Weights

SOURCE = Path(os.environ.get("LLAMA_CPP_SOURCE", "not given"))
TEMPLATES = SOURCE / "models" / "templates"
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
_USER = {"role": "user", "content": "Hey there!"}
_ENDS = {"llama": "<|eot_id|>", "deepseek": "<｜end▁of▁sentence｜>", "gemma": "<eos>", "qwen": "<|im_end|>"}
_SEEN = ("<think>", "</think>")


class CharacterWeights:
    """A vocabulary of characters, for templates without their models."""

    def __init__(self, source: str, eos: str) -> None:
        self.chat_template, self.bos, self.eos, self.trust = source, "<s>", eos, True
        self.tool_template = None
        self.control_tokens: tuple[str, ...] = ()
        self.user_defined_tokens: tuple[str, ...] = ()
        self.n_ctx_train, self.longest_token, self.path = 1 << 17, 64, Path("x")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:  # noqa: ARG002
        return list(map(ord, text))

    def piece(self, token: int) -> bytes:
        return chr(token).encode()

    def ids(self, _: str, value: Any) -> list[int]:
        return list(value)


def template_of(name: str) -> ChatTemplate:
    """Return a template, as a model's."""
    eos = next((end for family, end in _ENDS.items() if family in name.lower()), "</s>")
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(cast(Weights, CharacterWeights(source, eos)))


class Read(NamedTuple):
    """What a text of a model's says."""

    content: str
    reasoning: str
    calls: list[tuple[str, Any]]


def read(template: ChatTemplate, text: str, tools: list[Any], **options: Any) -> Read:
    """Return what a model's text says, after a prompt."""
    prompt = template.tokens([_USER], options.get("enable_thinking"), tools)
    splitter, _ = template.reasoning(Request([_USER], SamplingParams(), tools=tools, **options), prompt)
    parser = ToolParser(tools, template.form) if tools else None
    piece = Splitter(splitter, parser).feed(text, is_final=True)
    calls = [(call.name, json.loads(call.arguments)) for call in piece.tool_calls]
    return Read(piece.content.strip(), piece.reasoning.strip(), calls)


ASKED, BEGUN, RESULT = {"role": "user", "content": "What is it like?"}, "Sure, th", "MKresult"
_SYSTEM = {"role": "system", "content": "Be brief."}
_ANSWER, _MORE = {"role": "assistant", "content": "It is hot."}, {"role": "user", "content": "And then?"}
_ROME, _HARD = CHECKS[0][0], CHECKS[1][0]
CALLED: dict[str, tuple[str, Calls]] = {
    "a call": ("", [_ROME]),
    "hard arguments": ("", [_HARD]),
    "two calls": ("", [("get_weather", {"city": "Oslo", "days": 2}), _HARD]),
    "text before a call": ("I look.", [_ROME]),
    "no arguments": ("", [("write_file", {})]),
}
PROMPTS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "a question": ([ASKED], {}),
    "a system message": ([_SYSTEM, ASKED, _ANSWER, _MORE], {}),
    "an empty system message": ([{**_SYSTEM, "content": ""}, ASKED], {}),
    "a begun answer": ([ASKED, {**_ANSWER, "content": BEGUN}], {}),
    "earlier reasoning": ([ASKED, {**_ANSWER, "reasoning_content": "MKreason"}, _MORE], {}),
    "tools": ([ASKED], {"tools": TOOLS}),
    "tools and a system message": ([_SYSTEM, ASKED], {"tools": TOOLS}),
    "reasoning on": ([ASKED], {"enable_thinking": True}),
    "reasoning off": ([ASKED], {"enable_thinking": False}),
}


def history(content: str, calls: Calls) -> list[Any]:
    """Return a conversation with calls and their results."""
    made = [
        {"id": f"call_{i}", "type": "function", "function": {"name": name, "arguments": json.dumps(values)}}
        for i, (name, values) in enumerate(calls)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": RESULT} for call in made]
    return [ASKED, {"role": "assistant", "content": content, "tool_calls": made}, *results]


def faults(template: ChatTemplate) -> list[str]:
    """Return what goes wrong with a template, by what was tried."""
    tried: dict[str, Callable[[], bool]] = {
        name: partial(_is_rendered, template, messages, options)
        for name, (messages, options) in PROMPTS.items()
        if template.has_thinking_switch or "enable_thinking" not in options
    }
    tried |= {name: partial(_is_read_back, template, *called) for name, called in CALLED.items()}
    calling = history(*CALLED["two calls"])
    tried["calls without tools"] = partial(_is_rendered, template, [*calling, _ANSWER, _MORE], {})
    found = [] if template.conventions.is_understood else ["calls"]
    return [*found, *(name for name, is_right in tried.items() if not _is_true(is_right))]


def _is_true(is_right: Callable[[], bool]) -> bool:
    try:
        return is_right()
    except MinkError:
        return False


def _is_rendered(template: ChatTemplate, messages: list[Any], options: dict[str, Any]) -> bool:
    """Return whether all of a conversation is in its prompt, turns in order, as text and as tokens."""
    prompt, at = template.text(messages, **options), 0
    if prompt != "".join(map(chr, template.tokens(messages, **options))):
        return False
    for message in messages:
        found = prompt.find(message["content"], at)
        if found < 0:
            return False
        at = at if message["role"] == "system" else found
    names = [tool["function"]["name"] for tool in options.get("tools", ())]
    return all(name in prompt for name in names) and prompt.endswith(messages[-1]["content"]) is (
        messages[-1]["role"] == "assistant"
    )


def _is_read_back(template: ChatTemplate, content: str, calls: Calls) -> bool:
    """Return whether what an answer with calls looks like in a prompt is read as these."""
    if template.style and template.style.separator is None and len(calls) > 1:
        return True  # the template takes one a message
    prompt = template.text([ASKED], tools=TOOLS)
    whole = template.text(history(content, calls), tools=TOOLS)
    at = len(common(whole, prompt))
    while at < len(prompt) and whole[at - 1] not in ">]\n":  # back to the border of a tag
        at -= 1
    written = whole[at : whole.index(RESULT)]
    written = written.removeprefix(prompt[prompt.rfind("<") :])
    told = template.text([ASKED, _ANSWER, _MORE], tools=TOOLS).partition(_ANSWER["content"])[2]
    told = told.partition(_MORE["content"])[0].strip()
    last = 0
    for name, _ in calls:
        last = written.find(name, last)
    own = (template.style or HERMES).write([("mkname", {"a": "x"})]).partition("mkname")[2]
    marks = [mark for mark in (told, *re.findall(r"<[^<>]*>", told), *_ENDED) if mark and mark not in own]
    ends = [at for mark in marks if (at := written.find(mark, last)) >= 0]
    written = written[: min(ends, default=len(written))]
    start, end = (mark.strip() for mark in template.marks[:2])
    if template.conventions.reasoning.is_opened and end not in written:  # a model ends it first
        written = end + written
    got = read(template, written, TOOLS)
    text = got.content.removeprefix(start).removeprefix(end).strip()
    return got.calls == list(calls) and text == content * (content in written)


_ENDED = (
    *("<|call|>", "<|tool_response>", "<|observation|>", "[e~[", "<tool_response>", "[TOOL_RESULTS]"),
    *("<|eom_id|>", "<|tools_suffix|>["),
)
"""What comes after calls in place of the end of an answer."""


class Example(NamedTuple):
    """A model's text in llama.cpp's tests, and what they read in it."""

    template: str
    line: int
    text: str
    tools: list[Any]
    enable_thinking: bool
    expected: Read


_SKIPPED = ("is_partial", "messages(", "json_schema", "continue_final", "tool_choice", "FORMAT_NONE")
_RAW = re.compile(r'R"([^(]*)\((.*?)\)\1"', re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_BLANK = re.compile(r"(?:\s+|//[^\n]*\n|/\*.*?\*/)*", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


def _literal(source: str, at: int) -> tuple[str, int] | None:
    """Return the adjacent C string literals at a place as one text, and where they end."""
    text, found = "", False
    while True:
        at = cast(re.Match[str], _BLANK.match(source, at)).end()
        if raw := _RAW.match(source, at):
            text += raw[2]
        elif raw := _QUOTED.match(source, at):
            body = re.sub(r"\\x([0-9a-fA-F]{2})", lambda code: chr(int(code[1], 16)), raw[1])
            text += re.sub(r"\\(.)", lambda each: _ESCAPES.get(each[1], each[1]), body, flags=re.DOTALL)
        else:
            return (text, at) if found else None
        at, found = raw.end(), True


def _literals(source: str, at: int) -> list[str]:
    """Return the string literals between commas at a place."""
    found = []
    while value := _literal(source, at):
        found.append(value[0])
        at = cast(re.Match[str], re.compile(r"[\s,]*").match(source, value[1])).end()
    return found


def _tool(fields: list[str]) -> dict[str, Any]:
    name, description, parameters = fields[:3]
    function = {"name": name, "description": description, "parameters": json.loads(parameters)}
    return {"type": "function", "function": function}


def examples() -> Iterator[Example]:
    """Yield the examples of whole answers that can be read out of llama.cpp's tests."""
    source = (SOURCE / "tests" / "test-chat.cpp").read_text(encoding="utf-8")
    tools = {
        match[1]: _tool(fields)
        for match in re.finditer(r"common_chat_tool (\w+)\s*\{", source)
        if len(fields := _literals(source, match.end())) >= 3 and fields[2].strip().startswith("{")
    }
    messages = {
        match[1]: [*_literals(source, match.end()), "", "", "", ""][:4]
        for match in re.finditer(r"common_chat_msg (\w+)\s*=\s*simple_assist_msg\(", source)
    }
    body = source[source.index("static void test_template_output_peg_parsers") :]
    places = [
        (match.start(), match[1])
        for match in re.finditer(r'peg_tester\("models/templates/([^"]+)\.jinja"', body)
    ]
    for match in re.finditer(r"tst2?\.test\(", body):
        block = body[match.end() : body.index(".run()", match.start())]
        names = [name for at, name in places if at < match.start()]
        value = _literal(block, 0)
        if not names or value is None or not block[value[1] :].lstrip().startswith(")"):
            continue
        options = block[value[1] :]
        if any(word in options for word in _SKIPPED) or (expected := _expected(options, messages)) is None:
            continue
        given = re.search(r"\.tools\(\s*\{(.*?)\}\s*\)", options, re.DOTALL)
        known = [tools[name] for name in re.findall(r"\b\w+\b", given[1]) if name in tools] if given else []
        if given and not known:
            known = [_tool(_literals(options, options.index("{", given.start() + 8) + 1))]
        yield Example(
            names[-1], body[: match.start()].count("\n"), value[0], known,
            "enable_thinking(false)" not in options, expected,
        )  # fmt: skip


def _expected(options: str, messages: dict[str, list[str]]) -> Read | None:
    """Return what a test expects; None if that is not known."""
    content, reasoning, calls = "", "", list[tuple[str, Any]]()
    if named := re.search(r"\.expect\(\s*(\w+)\s*\)", options):
        if named[1] not in messages:
            return None
        content, reasoning, name, arguments = messages[named[1]]
        calls = [(name, json.loads(arguments))] if name else []
    elif ".expect(" in options or ".expect_" not in options.replace("expect_reconstruction", ""):
        return None
    if (at := options.find(".expect_content(")) >= 0:
        content = (_literal(options, at + 16) or ("", 0))[0]
    if (at := options.find(".expect_reasoning(")) >= 0:
        reasoning = (_literal(options, at + 18) or ("", 0))[0]
    if (at := options.find(".expect_tool_calls(")) >= 0:
        calls = []
        while entry := re.compile(r"[\s,{}\"]*?\{\s*(?=\"|R\")").search(options, at):
            name, arguments = _literals(options, entry.end())[:2]
            calls.append((name, json.loads(arguments or "{}")))
            at = options.index("}", cast(tuple[str, int], _literal(options, cast(tuple[str, int], _literal(
                options, entry.end()))[1] + 1))[1])  # fmt: skip
    return Read(content.strip(), reasoning.strip(), calls)
