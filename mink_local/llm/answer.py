"""Answers to prompts of `llm`, by a model that is loaded in this process."""

import gc
import json
import secrets
import threading
from collections.abc import Generator, Iterator
from statistics import median
from typing import Any

import llm
from llm.models import AsyncResponse
from llm.parts import (
    AttachmentPart,
    Message,
    ReasoningPart,
    StreamEvent,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

from mink_local.errors import GenerationError, MinkError
from mink_local.generation.answer import Piece
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.interrupts import on_interrupt
from mink_local.llama.constants import MODEL, RANDOM_SEED
from mink_local.llama.constraints import Constraints
from mink_local.models.recommended import require_recommended

_loading = threading.Lock()
_last: dict[tuple[str, int | None], Model] = {}  # the model that was used last, by name and n_ctx


def _load(name: str, n_ctx: int | None) -> Model:
    """Return a model, loaded unless it was used last. Raises as `load_model`."""
    with _loading:
        if (name, n_ctx) not in _last:
            _last.clear()
            gc.collect()  # frees the other model, unless an answer still uses it
            _last[name, n_ctx] = load_model(name, n_ctx=n_ctx)
        return _last[name, n_ctx]


class PromptAnswer:
    """The answer to a prompt; answers of one model come one after another.

    Args:
        name: Name of the model in the catalogue.
        prompt: The prompt; without a seed in its options it gets a random one, which is logged.

    Attributes:
        reply: The answer as the model generates it.

    Raises:
        MinkError: A message has an attachment; or the model cannot be loaded, or cannot answer.
        ValueError: An option is invalid.
    """

    def __init__(self, name: str, prompt: llm.Prompt) -> None:
        options: Any = prompt.options  # `plugin.PromptOptions`
        schema: Any = prompt.schema
        stop = options.stop or ()
        self._name = name
        self._seed = secrets.randbelow(RANDOM_SEED) if options.seed is None else options.seed
        model = _load(name, options.n_ctx)
        found = require_recommended(model.weights.path) if options.sampler == MODEL else None
        penalties = found.penalties if found else {}
        temperature = found.temperature if found else 1.0
        params = SamplingParams(
            sampler=found.sampler if found else options.parsed_sampler("sampler"),
            temperature=temperature if options.temperature is None else options.temperature,
            reasoning_sampler=options.parsed_sampler("reasoning_sampler"),
            reasoning_temperature=options.reasoning_temperature,
            max_tokens=options.max_tokens,
            seed=self._seed,
            stop=[stop] if isinstance(stop, str) else stop,
            constraints=Constraints(json_schema=schema or None, **penalties) if schema or penalties else None,
        )
        messages = [message for given in prompt.messages for message in _converted(given)]
        tools = [_definition(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)]
        think = options.think if model.has_thinking_switch else None
        self.reply = model.reply(Request(messages, params, enable_thinking=think, tools=tools))

    def pieces(self) -> Generator[Piece, None, None]:
        """Yield the answer's pieces; Ctrl-C ends it.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        with on_interrupt(self.reply.interrupt):
            yield from self.reply
        if self.reply.finish_reason == "interrupted":
            raise KeyboardInterrupt

    def events(self, piece: Piece) -> Iterator[StreamEvent]:
        """Yield the events of a piece."""
        if piece.reasoning:
            yield StreamEvent("reasoning", piece.reasoning)
        for part in piece.parts:
            if isinstance(part, str):
                yield StreamEvent("text", part)
                continue
            yield StreamEvent("tool_call_name", part.name, tool_call_id=part.id)
            yield StreamEvent("tool_call_args", part.arguments, tool_call_id=part.id)

    def finish(self, response: llm.Response | AsyncResponse) -> None:
        """Give a response its usage, its tool calls, and what is logged as its JSON.

        Raises:
            GenerationError: A tool call was cut off.
        """
        reply = self.reply
        if reply.has_cut_call:
            raise GenerationError("a call was cut off: allow more tokens with max_tokens or n_ctx")
        for call in reply.tool_calls:
            name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
            response.add_tool_call(llm.ToolCall(tool_call_id=call["id"], name=name, arguments=arguments))
        details = {
            "cached_tokens": reply.prompt_tokens - reply.evaluated_tokens,
            "reasoning_tokens": reply.n_reasoning,
            "median_k": median(reply.k) if reply.k else 0,
        }
        response.set_usage(
            input=reply.prompt_tokens,
            output=reply.n_tokens,
            details={name: number for name, number in details.items() if number} or None,
        )
        response.set_resolved_model(self._name)
        has_called = bool(reply.tool_calls) and reply.finish_reason == "stop"
        response.response_json = {
            "model": self._name,
            "finish_reason": "tool_calls" if has_called else reply.finish_reason,
            "seed": self._seed,
            "k": reply.k,
        }


def _converted(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form; for a message with results of tools, one for each result."""
    parts: dict[type, list[Any]] = {type(part): [] for part in message.parts}
    for part in message.parts:
        parts[type(part)].append(part)
    if AttachmentPart in parts:
        raise MinkError("the models of mink-local read only text: leave the attachment out")
    for part in parts.get(ToolResultPart, ()):
        yield {"role": "tool", "tool_call_id": part.tool_call_id, "name": part.name, "content": part.output}
    if message.role != "tool":
        made = {
            "reasoning_content": "".join(part.text for part in parts.get(ReasoningPart, ())),
            "tool_calls": [
                {"id": part.tool_call_id, "function": {"name": part.name, "arguments": part.arguments}}
                for part in parts.get(ToolCallPart, ())
            ],
        }
        text = "".join(part.text for part in parts.get(TextPart, ()))
        given = {name: value for name, value in made.items() if value}
        yield {"role": message.role, "content": text, **given}


def _definition(tool: llm.Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema,
        },
    }
