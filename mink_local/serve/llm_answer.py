"""Answers to prompts of `llm`, by a model that is loaded in this process."""

import gc
import json
import secrets
import threading
from collections.abc import Generator, Iterator, Mapping
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
from mink_local.interrupts import on_interrupt
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import MinK
from mink_local.serve.protocol.fields import ChatRequest, parse
from mink_local.serve.protocol.messages import message_finish_reason, prepare_chat, usage_of
from mink_local.serve.protocol.sampling import Preset, sampling_params

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
        options: Any = prompt.options  # `llm_plugin.PromptOptions`
        sampler = options.parsed_sampler()
        self._name = name
        self._seed = secrets.randbelow(RANDOM_SEED) if options.seed is None else options.seed
        body: dict[str, Any] = {
            "messages": [message for given in prompt.messages for message in _converted(given)],
            "temperature": options.temperature,
            "sampler": None if sampler is None else str(sampler),
            "max_tokens": options.max_tokens,
            "seed": self._seed,
            "stop": options.stop,
            "tools": [_definition(tool) for tool in prompt.tools if isinstance(tool, llm.Tool)],
            "json_schema": prompt.schema,
            "chat_template_kwargs": {} if options.think is None else {"enable_thinking": options.think},
        }
        chat, _ = parse(json.dumps(body).encode(), ChatRequest)
        model = _load(name, options.n_ctx)
        params, _ = sampling_params(chat, Preset(MinK(), is_fixed=False), model)
        request = prepare_chat(model, chat, params)
        self.reply = model.reply(request)

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
        if piece.content:
            yield StreamEvent("text", piece.content)
        for call in piece.tool_calls:
            call_id = self.reply.tool_calls[call.index]["id"]
            if call.name:
                yield StreamEvent("tool_call_name", call.name, tool_call_id=call_id)
            if call.arguments:
                yield StreamEvent("tool_call_args", call.arguments, tool_call_id=call_id)

    def finish(self, response: llm.Response | AsyncResponse) -> None:
        """Give a response its usage, its tool calls, and what is logged as its JSON.

        Raises:
            GenerationError: A tool call was cut off.
        """
        reply = self.reply
        for call in reply.tool_calls:
            response.add_tool_call(_tool_call(call))
        finish_reason = message_finish_reason(reply.finish_reason, reply)
        usage, k = usage_of([[reply]]), reply.k
        details = {
            "cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "reasoning_tokens": usage.completion_tokens_details.reasoning_tokens,
            "median_k": median(k) if k else 0,
        }
        response.set_usage(
            input=usage.prompt_tokens,
            output=usage.completion_tokens,
            details={name: number for name, number in details.items() if number} or None,
        )
        response.set_resolved_model(self._name)
        logged = {"model": self._name, "finish_reason": finish_reason, "seed": self._seed, "k": k}
        response.response_json = logged


def _tool_call(call: Mapping[str, Any]) -> llm.ToolCall:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    try:
        return llm.ToolCall(tool_call_id=call["id"], name=name, arguments=json.loads(arguments or "{}"))
    except json.JSONDecodeError:
        raise GenerationError(
            f"a call to {name} was cut off: allow more tokens with max_tokens or n_ctx"
        ) from None


def _converted(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form; for a message with results of tools, one for each result."""
    texts = {TextPart: "", ReasoningPart: ""}
    calls = []
    for part in message.parts:
        if isinstance(part, AttachmentPart):
            raise MinkError("the models of mink-local read only text: leave the attachment out")
        if isinstance(part, TextPart | ReasoningPart):
            texts[type(part)] += part.text
        elif isinstance(part, ToolCallPart):
            function = {"name": part.name, "arguments": json.dumps(part.arguments)}
            calls.append({"id": part.tool_call_id, "function": function})
        elif isinstance(part, ToolResultPart):
            result = {"tool_call_id": part.tool_call_id, "name": part.name, "content": part.output}
            yield {"role": "tool", **result}
    if message.role != "tool":
        text, reasoning = texts.values()
        yield {"role": message.role, "content": text, "reasoning_content": reasoning, "tool_calls": calls}


def _definition(tool: llm.Tool) -> dict[str, Any]:
    return {
        "function": {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": tool.input_schema,
        }
    }
