"""The tool loops of openai's client and of agents with models that write as those of this year do.

Their templates are llama.cpp's; a model has either its call or its last answer as its only text.
"""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from openai import OpenAI

from mink_local.generation.format.call_derivation import HARD, TOOLS
from mink_local.generation.format.template import ChatTemplate
from tests.serve.test_clients_agents import Agent, claude_code, codex
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
N_CTX = 65536  # an agent's prompt in bytes, which these models have for tokens
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


@contextmanager
def serving(name: str, folder: Path, tool: str, arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Run a server whose model calls a tool, and one whose model says that it is done; yield both."""
    template = template_of(name)
    assert template.style is not None
    made = {"function": {"name": tool, "arguments": arguments}, "id": "call_0", "type": "function"}
    result = {"role": "tool", "tool_call_id": "call_0", "content": "It is written."}
    history: list[Any] = [ASKED, {"role": "assistant", "content": "", "tool_calls": [made]}, result]
    call = template.style.write([(tool, arguments)])
    said: dict[str, dict[str, list[str]]] = {"first": {}, "last": {}}
    for thinking in (None, True) if template.has_thinking_switch else (None,):  # as agents ask
        first, last = (template.text(each, thinking, tools=TOOLS) for each in ([ASKED], history))
        said["first"].setdefault(first[-12:], [reasoning(template, first, "Hm.", calls=True) + call])
        said["last"].setdefault(last[-12:], [reasoning(template, last, "So.") + "Done."])
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    with ExitStack() as opened:
        urls = []
        for each, scripts in said.items():
            path = write_scripted(folder / f"{each}.gguf", source, scripts, n_ctx_train=N_CTX)
            server = running_server("--model", str(path), "--ctx", str(N_CTX), "--any-model")
            urls.append(opened.enter_context(server).url)
        yield urls[0], urls[1]


@pytest.mark.parametrize("name", FORMATS)
def test_a_tool_loop(name: str, tmp_path: Path) -> None:
    template = template_of(name)
    reasons = bool(reasoning(template, template.text([ASKED], tools=TOOLS), "Hm."))
    with serving(name, tmp_path, "write_file", HARD) as urls:
        first, last = (OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) for url in urls)
        for stream in (False, True):
            asked: list[Any] = [ASKED]
            answer = complete(first, asked, stream=stream)
            [found] = answer["tool_calls"]
            assert (found["function"]["name"], json.loads(found["function"]["arguments"])) == (
                "write_file",
                HARD,
            )
            assert answer.get("reasoning_content", "") == "Hm." * reasons
            asked += [answer, {"role": "tool", "tool_call_id": found["id"], "content": "It is written."}]
            final = complete(last, asked, stream=stream)
            assert final["content"] == "Done."
            assert not final.get("tool_calls")


@contextmanager
def one_of(urls: tuple[str, str], word: str) -> Iterator[str]:
    """Yield an address that passes requests with a word on to the second server, others to the first."""

    class Forward(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            url = urls[word.encode() in body] + self.path
            kept = {
                name: self.headers[name]
                for name in ("Content-Type", "Authorization", "Accept")
                if name in self.headers
            }
            answer = httpx.post(url, content=body, headers=kept, timeout=600)
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["Content-Type"])
            self.send_header("Content-Length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Forward) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.skipif("MINK_AGENTS" not in os.environ, reason="MINK_AGENTS=1 runs coding agents, for minutes")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("agent", "tool", "arguments"),
    [
        (claude_code, "Read", {"file_path": "{file}"}),
        (codex, "exec_command", {"cmd": "cat {file}"}),
    ],
)
def test_an_agent_reads_a_file(
    name: str, tmp_path: Path, agent: Agent, tool: str, arguments: dict[str, str]
) -> None:
    file = tmp_path / "nut.txt"
    file.write_text("a walnut\n")
    given = {key: value.format(file=file) for key, value in arguments.items()}
    with serving(name, tmp_path, tool, given) as urls, one_of(urls, "walnut") as url:
        assert "Done." in agent(url, tmp_path, "Which nut is it?")
