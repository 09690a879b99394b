"""The openai library for JavaScript, if node and the package can be had."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from tests.support.server import RunningServer

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
console.log(JSON.stringify({ whole, streamed, usage, called, refused, models }));
"""


@pytest.fixture(scope="module")
def answers(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program saw."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node is not installed")
    folder = tmp_path_factory.mktemp("javascript")
    install = [npm, "install", "--silent", "--no-audit", "--no-fund", "openai@^7"]
    if subprocess.run(install, cwd=folder, capture_output=True, timeout=120).returncode:
        pytest.skip("npm cannot install openai")
    program = folder / "program.mjs"
    program.write_text(PROGRAM)
    result = subprocess.run(
        [node, str(program), f"{server.url}/v1"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


pytestmark = pytest.mark.slow


def test_a_stream_has_the_same_text_and_the_usage(answers: dict[str, Any]) -> None:
    assert answers["streamed"] == answers["whole"] != ""
    assert answers["usage"]["completion_tokens"] == 6


def test_a_tool_is_called(answers: dict[str, Any]) -> None:
    assert json.loads(answers["called"]["arguments"]) == {"city": "Paris"}


def test_an_error_is_the_sdks_class(answers: dict[str, Any]) -> None:
    assert answers["refused"] == "temperature"


def test_models_are_listed(answers: dict[str, Any]) -> None:
    assert answers["models"][0] == "smollm2-135m"
