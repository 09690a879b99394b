"""The tool loop of openai's client with models that write as those of this year do.

Their templates are llama.cpp's; a model has either its call or its last answer as its only text.
"""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from mink_local.generation.format.call_derivation import HARD, TOOLS
from mink_local.generation.format.template import ChatTemplate
from tests.support.llama_templates import NAMES, TEMPLATES, template_of
from tests.support.server import running_server
from tests.support.tiny import write_scripted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NAMES, reason="LLAMA_CPP_SOURCE names no folder of llama.cpp's source"),
]

FORMATS = (
    "Qwen3.5-4B",
    "openai-gpt-oss-120b",
    "google-gemma-4-31B-it",
    "Kimi-K2-Instruct",
    "deepseek-ai-DeepSeek-V4",
)
_TOOLS: Any = TOOLS
ASKED = {"role": "user", "content": "Write it."}


def reasoning(template: ChatTemplate, prompt: str, text: str, *, calls: bool = False) -> str:
    """Return what a model writes before a call or its answer: its reasoning, if it reasons."""
    marks = template.marks
    if not template.can_reason or prompt.rstrip().endswith(marks.end.strip()):  # the prompt has closed it
        return ""
    opened = "" if prompt.rstrip().endswith(marks.start.strip()) else marks.start
    return f"{opened}{text}{marks.end}{marks.after_end if calls else marks.closing.removeprefix(marks.end)}"


def complete(client: OpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """Return the message of an answer."""
    if not stream:
        made = client.chat.completions.create(model="x", messages=messages, tools=_TOOLS)
        return made.choices[0].message.model_dump(exclude_none=True)
    with client.chat.completions.stream(model="x", messages=messages, tools=_TOOLS) as events:
        return events.get_final_completion().choices[0].message.model_dump(exclude_none=True)


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_loop(name: str, tmp_path: Path) -> None:
    template = template_of(name)
    assert template.style is not None
    called = {"name": "write_file", "arguments": json.dumps(HARD)}
    made = {"id": "call_0", "type": "function", "function": called}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "It is written."}
    history: list[Any] = [ASKED, {"role": "assistant", "content": "", "tool_calls": [made]}, result]
    first, last = template.text([ASKED], tools=TOOLS), template.text(history, tools=TOOLS)
    call = template.style.write([("write_file", HARD)])
    texts = {
        "first": (first, [reasoning(template, first, "Hm.", calls=True) + call]),
        "last": (last, [reasoning(template, last, "So.") + "Done."]),
    }
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    with ExitStack() as opened:
        clients = []
        for each, (prompt, script) in texts.items():
            path = write_scripted(tmp_path / f"{each}.gguf", source, {prompt[-12:]: script})
            server = opened.enter_context(
                running_server("--model", str(path), "--ctx", "32768", "--any-model")
            )
            clients.append(OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0))
        for stream in (False, True):
            asked: list[Any] = [ASKED]
            answer = complete(clients[0], asked, stream=stream)
            [found] = answer["tool_calls"]
            assert (found["function"]["name"], json.loads(found["function"]["arguments"])) == (
                "write_file",
                HARD,
            )
            assert answer.get("reasoning_content", "") == "Hm." * ("Hm." in texts["first"][1][0])
            asked += [answer, {**result, "tool_call_id": found["id"]}]
            final = complete(clients[1], asked, stream=stream)
            assert final["content"] == "Done."
            assert not final.get("tool_calls")
