"""Coding agents against mink-serve: the first round trip of each, and one through a tool.

The embedded model takes their prompts, but is too small for their tasks: a model whose texts are chosen calls
a tool of theirs and says what came back. The agents are installed from npm and PyPI, and read prompts of
thousands of tokens: only with MINK_AGENTS=1.
"""

import json
import os
import re
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import RunningServer, running_server
from tests.support.tiny import write_scripted

MODEL = "smollm2-135m"
CACHE = Path.home() / ".cache" / "mink-local-tests"  # where the agents are installed, once
PATIENCE = 600  # seconds, for an installation or a round trip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.posix,
    pytest.mark.skipif(
        "MINK_AGENTS" not in os.environ, reason="MINK_AGENTS=1 runs coding agents, for minutes"
    ),
]

Agent = Callable[[str, Path, str], str]  # at a server's address; returns what it prints

CODEX = """
model = "{model}"
model_provider = "mink"
model_context_window = 65536
model_instructions_file = "{instructions}"
web_search = "disabled"

[model_providers.mink]
name = "mink"
base_url = "{url}/v1"
wire_api = "responses"
"""

# Calls a tool if there is one, and says whether it was given the word. Long texts are cut: they are bytes.
TEMPLATE = """{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}
{%- for m in messages %}{{ m.content[:64] }}{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{
c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}{% endfor %}
{%- set given = messages | selectattr('role', 'equalto', 'tool') | map(attribute='content') | join -%}
{{ '<|plain|>' if not tools else '<|call|>' if not given }}
{{- '<|told|>' if 'walnut' in given else '<|lost|>' if given }}"""
TOLD = "It is a walnut, says the file."


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """A server with room for an agent's prompt, whose answers are short."""
    with running_server("--model", MODEL, "--ctx", "8192", "--parallel", "2", "--max-tokens", "16") as server:
        yield server


def installed(package: str, program: str) -> Path:
    """Return a program of a package of npm's; skip the test if it cannot be installed."""
    folder = CACHE / program
    path = folder / "node_modules" / ".bin" / program
    if not path.exists():
        if (npm := shutil.which("npm")) is None:
            pytest.skip(f"{package} needs npm")
        folder.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), package]
        if subprocess.run(command, capture_output=True, timeout=PATIENCE).returncode:
            pytest.skip(f"npm cannot install {package}")
        for script in folder.glob("node_modules/@anthropic-ai/claude-code/install.cjs"):  # npm 11 runs none
            subprocess.run(["node", script.name], cwd=script.parent, check=True, timeout=PATIENCE)
    return path


def answer(folder: Path, *command: str | Path, **environment: str) -> str:
    """Return what an agent prints in a folder that is its home; an answer that is cut off may be an error."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    ).stdout


def claude_code(url: str, folder: Path, prompt: str) -> str:
    return answer(
        folder,
        *(installed("@anthropic-ai/claude-code", "claude"), "-p", prompt),
        *("--tools", "Read,Edit,Bash", "--output-format", "stream-json", "--verbose"),
        ANTHROPIC_BASE_URL=url,
        ANTHROPIC_AUTH_TOKEN="none",
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_DEFAULT_HAIKU_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )


def codex(url: str, folder: Path, prompt: str) -> str:
    program = installed("@openai/codex", "codex")
    instructions = folder / "instructions.md"
    instructions.write_text("You are a coding agent.")  # its own, with its tools, need 8,400 tokens
    configuration = CODEX.format(model=MODEL, url=url, instructions=instructions)
    (folder / "config.toml").write_text(configuration)
    unguarded = "--dangerously-bypass-approvals-and-sandbox"  # its sandbox needs rights that containers lack
    command = (program, "exec", "--skip-git-repo-check", unguarded, "--json", prompt)
    return answer(folder, *command, CODEX_HOME=str(folder))


def qwen_code(url: str, folder: Path, prompt: str) -> str:
    program = installed("@qwen-code/qwen-code", "qwen")
    instructions = "You are a coding agent."  # its own, with all its tools, need 14,600 tokens
    return answer(
        folder,
        *(program, "--auth-type", "openai", "--system-prompt", instructions, "--core-tools", "read_file"),
        *("--output-format", "json", "-p", prompt),
        OPENAI_BASE_URL=f"{url}/v1",
        OPENAI_API_KEY="none",
        OPENAI_MODEL=MODEL,
    )


def aider(url: str, folder: Path, prompt: str, *more: str) -> str:
    program = CACHE / "aider" / "bin" / "aider"
    if not program.exists():
        venv.create(CACHE / "aider", with_pip=True, clear=True)
        install = [str(program.with_name("python")), "-m", "pip", "install", "--quiet", "aider-chat"]
        if subprocess.run(install, capture_output=True, timeout=PATIENCE).returncode:
            pytest.skip("pip cannot install aider-chat")
    return answer(
        folder,
        *(program, "--openai-api-base", f"{url}/v1", "--openai-api-key", "none"),
        *("--model", f"openai/{MODEL}:greedy", "--message", prompt, "--no-git", "--yes-always"),
        *("--no-show-model-warnings", "--no-check-update", "--analytics-disable", *more),
    )


def first_word(server: RunningServer, path: str) -> str:
    """Return the first word of the first answer that the server has given to a path."""
    line = next(line for line in server.said if f"POST '{path}' 200" in line)
    record = httpx.get(f"{server.url}/history/{line.split('id=')[-1].strip()}").json()
    return str(re.findall(r"\w+", "".join(token["text"] for token in record["answers"][0]["tokens"]))[0])


@pytest.mark.parametrize(
    ("agent", "path"),
    [
        (claude_code, "/v1/messages"),
        (codex, "/v1/responses"),
        (qwen_code, "/v1/chat/completions"),
        (aider, "/v1/chat/completions"),
    ],
)
def test_an_agent_shows_what_it_is_answered(
    server: RunningServer, tmp_path: Path, agent: Agent, path: str
) -> None:
    said = agent(server.url, tmp_path, "Say hello.")
    assert first_word(server, path) in said


@pytest.mark.parametrize(
    ("agent", "tool", "arguments"),
    [
        (claude_code, "Read", {"file_path": "{file}"}),
        (codex, "exec_command", {"cmd": "cat {file}"}),
        (qwen_code, "read_file", {"file_path": "{file}"}),
    ],
)
def test_an_agent_uses_a_tool_and_sends_its_result(
    tmp_path: Path, agent: Agent, tool: str, arguments: dict[str, str]
) -> None:
    file = tmp_path / "nut.txt"
    file.write_text("a walnut\n")
    given = {name: value.format(file=file) for name, value in arguments.items()}
    call = json.dumps({"name": tool, "arguments": given})
    third = len(call) // 3
    pieces = ["<tool_call>", call[:third], call[third : 2 * third], call[2 * third :], "</tool_call>"]
    scripts = {
        "<|call|>": pieces,
        "<|told|>": [TOLD[:9], TOLD[9:]],
        "<|lost|>": ["No nut."],
        "<|plain|>": ["Nuts."],
    }
    model = write_scripted(tmp_path / "x.gguf", TEMPLATE, scripts)
    with running_server("--model", str(model), "--alias", MODEL, "--ctx", "4096") as server:
        assert TOLD in agent(server.url, tmp_path, "Which nut is it?")


def test_aider_edits_a_file(tmp_path: Path) -> None:
    file = tmp_path / "nut.py"
    file.write_text("NUT = 'hazel'\n")
    block = [
        "nut.py\n```\n<<<<<<< SEARCH\n",
        "NUT = 'hazel'\n=======\n",
        "NUT = 'walnut'\n>>>>>>> REPLACE\n```",
    ]
    model = write_scripted(tmp_path / "x.gguf", "{{ '<|edit|>' }}", {"<|edit|>": [*block, "```"]})
    with running_server("--model", str(model), "--alias", MODEL, "--ctx", "4096") as server:
        aider(server.url, tmp_path, "It is a walnut.", "--edit-format", "diff", "nut.py")
    assert file.read_text() == "NUT = 'walnut'\n"
