"""Prompts of `llm` as requests in OpenAI's protocol."""

import json
import secrets
from collections.abc import Iterator
from typing import Any

import llm
from llm.parts import AttachmentPart, Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

from mink_local.errors import MinkError
from mink_local.serve.llm_plugin.options import PromptOptions

_N_SEEDS = 2**32 - 1


def chat_request(model_id: str, prompt: llm.Prompt, options: PromptOptions) -> dict[str, Any]:
    """Return the body of a chat request; its seed is the prompt's, or a random one to be logged.

    Raises:
        MinkError: A message has an attachment.
    """
    sampler = options.parsed_sampler()
    body: dict[str, Any] = {
        "model": model_id,
        "messages": [message for given in prompt.messages for message in _converted(given)],
        "temperature": options.temperature,
        "sampler": None if sampler is None else str(sampler),
        "max_tokens": options.max_tokens,
        "seed": secrets.randbelow(_N_SEEDS) if options.seed is None else options.seed,
        "stop": options.stop,
        "tools": [_definition(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)] or None,
    }
    if options.think is not None:
        body["chat_template_kwargs"] = {"enable_thinking": options.think}
    if prompt.schema:
        schema = {"name": "output", "schema": prompt.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return {name: value for name, value in body.items() if value is not None}


def _converted(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the message; for a message with results of tools, one for each result."""
    for part in message.parts:
        if isinstance(part, AttachmentPart):
            raise MinkError("the models of mink-local read text only: leave the attachment out")
        if isinstance(part, ToolResultPart):
            yield {
                "role": "tool",
                "tool_call_id": part.tool_call_id,
                "name": part.name,
                "content": part.output,
            }
    if message.role == "tool":
        return
    text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
    converted: dict[str, Any] = {"role": message.role, "content": text}
    if reasoning := "".join(part.text for part in message.parts if isinstance(part, ReasoningPart)):
        converted["reasoning_content"] = reasoning
    if calls := [_call(part) for part in message.parts if isinstance(part, ToolCallPart)]:
        converted |= {"tool_calls": calls, "content": text or None}
    yield converted


def _call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.dumps(part.arguments)}
    return {"type": "function", "id": part.tool_call_id, "function": function}


def _definition(tool: llm.Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}
