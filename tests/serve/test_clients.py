"""What clients show of a running server: JavaScript's openai, LangChain, the program `llm`."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import BaseModel, Field

from tests.support.server import RunningServer

MODEL = "smollm2-135m"
HOT = f"{MODEL}:min-k-t5"

pytestmark = pytest.mark.slow

PROGRAM = """
import OpenAI, { BadRequestError } from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Say hello." }];
const request = { model: "smollm2-135m", messages, max_tokens: 6, temperature: 0 };
const whole = (await client.chat.completions.create(request)).choices[0].message.content;
const options = { stream: true, stream_options: { include_usage: true } };
const stream = await client.chat.completions.create({ ...request, ...options });
let streamed = "", usage = null;
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
const called = await client.chat.completions.runTools({
  ...request,
  max_tokens: 60,
  tool_choice: { type: "function", function: { name: "weather" } },
  tools: [{
    type: "function",
    function: {
      name: "weather", parse: JSON.parse, function: ({ city }) => `sunny in ${city}`,
      parameters: { type: "object", properties: { city: { enum: ["Paris"] } }, required: ["city"] },
    },
  }],
}, { maxChatCompletions: 1 }).finalFunctionToolCall();
let refused = null;
try {
  await client.chat.completions.create({ ...request, temperature: -1 });
} catch (error) {
  refused = error instanceof BadRequestError && error.param;
}
const models = (await client.models.list()).data.map((model) => model.id);
const n_tokens = usage.completion_tokens, city = JSON.parse(called.arguments).city;
console.log(JSON.stringify({ whole, streamed, n_tokens, city, refused, models }));
"""


def run(folder: Path, *command: str, **environment: str) -> str:
    result = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        input="",
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def javascript(url: str, folder: Path) -> dict[str, Any]:
    """Return what the openai library for JavaScript sees."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node is not installed")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "openai@^7"]
    if subprocess.run(install, cwd=folder, capture_output=True, timeout=120).returncode:
        pytest.skip("npm cannot install openai")
    (folder / "program.mjs").write_text(PROGRAM)
    return dict(json.loads(run(folder, node, "program.mjs", url)))


class Weather(BaseModel):
    """The weather of a city."""

    city: str = Field(pattern="^Paris$")
    degrees: int | None = None


def langchain(url: str, _: Path) -> dict[str, Any]:
    """Return what LangChain's ChatOpenAI sees."""
    errors, langchain_openai = map(pytest.importorskip, ("langchain_core.exceptions", "langchain_openai"))
    options: Any = {"base_url": url, "api_key": "none", "max_retries": 0, "max_tokens": 60, "seed": 1}
    chat = langchain_openai.ChatOpenAI(model=MODEL, temperature=0, **options)
    whole = chat.invoke("Say hello.")
    chunks = list(chat.stream("Say hello.", stream_usage=True))
    [n_tokens] = [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata]
    assert n_tokens == whole.response_metadata["token_usage"]["completion_tokens"]
    with pytest.raises(errors.ContextOverflowError):
        chat.invoke("word " * 4000)
    with pytest.raises(openai.BadRequestError) as refused:
        chat.invoke("Say hello.", temperature=-1)
    [call] = chat.bind_tools([Weather], tool_choice="any").invoke("How is the weather?").tool_calls
    return {
        "whole": whole.content,
        "streamed": "".join(str(chunk.content) for chunk in chunks),
        "city": call["args"]["city"],
        "refused": refused.value.param,
    }


def llm_program(url: str, folder: Path) -> dict[str, Any]:
    """Return what the program `llm` sees, which sends no temperature above 2."""

    def ask(*options: str) -> str:
        command = [sys.executable, "-m", "llm", "openai", "endpoint", url, *options]
        return run(folder, *command, LLM_USER_PATH=str(folder), LLM_LOAD_PLUGINS="")

    options = ("-m", HOT, "-o", "seed", "1", "-o", "max_tokens", "8", "Say hello.")
    assert isinstance(json.loads(ask("-m", MODEL, "--schema", "age int", "A dog."))["age"], int)
    functions = "def weather(city: str) -> str:\n    'Tell the weather.'\n    return 'sunny'"
    ask("-m", MODEL, "--functions", functions, "-o", "max_tokens", "8", "How is the weather in Paris?")
    return {
        "whole": ask(*options, "--no-stream"),
        "streamed": ask(*options),
        "models": ask("--models").split(),
    }


@pytest.mark.parametrize("client", [javascript, langchain, llm_program])
def test_a_client_shows_what_it_does_of_any_server(
    server: RunningServer, client: Callable[[str, Path], dict[str, Any]], tmp_path: Path
) -> None:
    seen = client(f"{server.url}/v1", tmp_path)
    assert seen["streamed"] == seen["whole"] != ""
    assert seen.get("n_tokens", 6) == 6
    assert seen.get("city", "Paris") == "Paris"
    assert seen.get("refused", "temperature") == "temperature"
    assert HOT in seen.get("models", [HOT])
