"""The program `llm`, told nothing but the server's address."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.server import RunningServer

MODEL = "smollm2-135m"
Ask = Callable[..., str]

pytestmark = pytest.mark.slow


@pytest.fixture
def ask(server: RunningServer, tmp_path: Path) -> Ask:
    def run(*options: str) -> str:
        command = [sys.executable, "-m", "llm", "openai", "endpoint", f"{server.url}/v1", *options]
        environment = os.environ | {"LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": ""}
        result = subprocess.run(
            command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=120, input=""
        )
        assert result.returncode == 0, result.stderr
        return result.stdout

    return run


def test_models_are_listed(ask: Ask) -> None:
    assert f"{MODEL}:min-k-t5" in ask("--models")


def test_a_preset_gives_temperature_5_to_a_client_that_stops_at_2(ask: Ask) -> None:
    options = ("-m", f"{MODEL}:min-k-t5", "-o", "seed", "1", "-o", "max_tokens", "8", "Say hello.")
    assert ask(*options) == ask(*options, "--no-stream") != ""


def test_a_schema_is_kept(ask: Ask) -> None:
    assert isinstance(json.loads(ask("-m", MODEL, "--schema", "age int", "A dog."))["age"], int)


def test_a_tool_is_offered(ask: Ask) -> None:
    functions = "def weather(city: str) -> str:\n    'Tell the weather.'\n    return 'sunny'"
    ask("-m", MODEL, "--functions", functions, "-o", "max_tokens", "8", "How is the weather in Paris?")
