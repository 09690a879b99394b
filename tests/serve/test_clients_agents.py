"""Coding agents against mink-serve: the first round trip of each. The model is too small for their tasks.

They are installed from npm and PyPI, and read prompts of thousands of tokens: only with MINK_AGENTS=1.
"""

import os
import re
import shutil
import subprocess
import venv
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.server import RunningServer, running_server

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

CODEX = """
model = "{model}"
model_provider = "mink"
model_context_window = 8192
model_instructions_file = "{instructions}"
web_search = "disabled"

[model_providers.mink]
name = "mink"
base_url = "{url}/v1"
wire_api = "responses"
stream_idle_timeout_ms = 3600000
"""


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
    """Return what an agent prints in an empty folder and home; an answer that is cut off may be an error."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    ).stdout


def first_word(server: RunningServer, path: str) -> str:
    """Return the first word of the first answer that the server has given to a path."""
    line = next(line for line in server.said if f"POST '{path}' 200" in line)
    record = httpx.get(f"{server.url}/history/{line.split('id=')[-1].strip()}").json()
    return str(re.findall(r"\w+", "".join(token["text"] for token in record["answers"][0]["tokens"]))[0])


def test_claude_code(server: RunningServer, tmp_path: Path) -> None:
    program = installed("@anthropic-ai/claude-code", "claude")
    said = answer(
        tmp_path,
        *(program, "-p", "Say hello.", "--tools", "Write", "--output-format", "stream-json", "--verbose"),
        ANTHROPIC_BASE_URL=server.url,
        ANTHROPIC_AUTH_TOKEN="none",
        ANTHROPIC_MODEL=MODEL,
        ANTHROPIC_DEFAULT_HAIKU_MODEL=MODEL,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
    )
    assert first_word(server, "/v1/messages") in said


def test_codex(server: RunningServer, tmp_path: Path) -> None:
    program = installed("@openai/codex", "codex")
    instructions = tmp_path / "instructions.md"
    instructions.write_text("You are a coding agent.")  # its own, with its tools, need 8,400 tokens
    configuration = CODEX.format(model=MODEL, url=server.url, instructions=instructions)
    (tmp_path / "config.toml").write_text(configuration)
    command = (program, "exec", "--skip-git-repo-check", "--json", "Say hello.")
    said = answer(tmp_path, *command, CODEX_HOME=str(tmp_path))
    assert first_word(server, "/v1/responses") in said


def test_aider(server: RunningServer, tmp_path: Path) -> None:
    folder = CACHE / "aider"
    program = folder / "bin" / "aider"
    if not program.exists():
        venv.create(folder, with_pip=True, clear=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "aider-chat"]
        if subprocess.run(install, capture_output=True, timeout=PATIENCE).returncode:
            pytest.skip("pip cannot install aider-chat")
    said = answer(
        tmp_path,
        *(program, "--openai-api-base", f"{server.url}/v1", "--openai-api-key", "none"),
        *("--model", f"openai/{MODEL}:greedy", "--message", "Say hello.", "--no-git", "--yes-always"),
        *("--no-show-model-warnings", "--no-check-update", "--analytics-disable"),
    )
    assert first_word(server, "/v1/chat/completions") in said
