"""Answers to prompts of `llm`, by a model that is loaded in this process."""

import asyncio
import json
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
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
from mink_local.generation.model import Model, Reply
from mink_local.interrupts import until_interrupted
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import MinK
from mink_local.serve.protocol.fields import ChatRequest, parse
from mink_local.serve.protocol.messages import MessageBuilder, message_builder, prepare_chat, usage_of
from mink_local.serve.protocol.responses import MessageDelta
from mink_local.serve.protocol.sampling import Limits, Preset, sampling_params

_PATIENCE = 0.1  # seconds between two looks at whether an answer that waits for its turn is still wanted


class _LastModel:
    """Keeps the model that was used last; its answers come one after another."""

    def __init__(self) -> None:
        self.turn = threading.Lock()
        self._name = ""
        self._n_ctx: int | None = None
        self._model: Model | None = None

    def load(self, name: str, n_ctx: int | None) -> Model:
        """Return a model, loaded unless it is there; another one is closed first. Raises as `load_model`."""
        if self._model is not None:
            if self._name == name and n_ctx in (None, self._n_ctx):
                return self._model
            self._model.close()
            self._model = None
        self._model = load_model(name, n_ctx=n_ctx)
        self._name, self._n_ctx = name, n_ctx
        return self._model


_last = _LastModel()


class PromptAnswer:
    """The answer to a prompt, to iterate over in one thread and to interrupt from another.

    Args:
        name: Name of the model in the catalogue.
        prompt: The prompt; without a seed in its options it gets a random one, which is logged.

    Raises:
        MinkError: A message has an attachment.
        ValueError: An option is invalid.
    """

    def __init__(self, name: str, prompt: llm.Prompt) -> None:
        options: Any = prompt.options  # `PromptOptions`
        self._name = name
        self._n_ctx = options.n_ctx
        self._seed = secrets.randbelow(RANDOM_SEED) if options.seed is None else options.seed
        sampler = options.parsed_sampler()
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
        self._chat, _, _ = parse(json.dumps(body).encode(), ChatRequest)
        self._reply: Reply | None = None
        self._builder: MessageBuilder | None = None
        self._call_id = ""  # of the tool call that the last event belongs to
        self._is_interrupted = False

    def __iter__(self) -> Iterator[StreamEvent]:
        while not _last.turn.acquire(timeout=_PATIENCE):
            if self._is_interrupted:
                return
        try:
            yield from self._generate(_last.load(self._name, self._n_ctx))
        finally:
            _last.turn.release()

    def events(self) -> Generator[StreamEvent, None, None]:
        """Yield the answer's events as they come; Ctrl-C ends it.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
            MinkError: The model cannot be loaded, or cannot answer.
        """
        yield from until_interrupted(self, self._interrupt)
        if self._is_interrupted:
            raise KeyboardInterrupt

    async def async_events(self) -> AsyncGenerator[StreamEvent, None]:
        """Yield the answer's events as they come; see `events`."""
        events = until_interrupted(self, self._interrupt)
        try:
            while (event := await _whole_step(events, self._interrupt)) is not None:
                yield event
        finally:
            await asyncio.to_thread(events.close)

    def finish(self, response: llm.Response | AsyncResponse) -> None:
        """Give a response its usage, its tool calls, and what is logged as its JSON.

        Raises:
            GenerationError: A tool call was cut off.
        """
        reply, builder = self._reply, self._builder
        assert reply is not None
        assert builder is not None
        message = builder.message()
        for call in message.tool_calls or ():
            response.add_tool_call(_tool_call(str(call.id), str(call.function.name), call.function.arguments))
        usage, k = usage_of([[reply]], builder.n_reasoning), reply.k
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
        response.response_json = {
            "model": self._name,
            "finish_reason": builder.finish_reason,
            "seed": self._seed,
            "k": k,
        }

    def _interrupt(self) -> None:
        """End the answer at its next step."""
        self._is_interrupted = True
        if self._reply is not None:
            self._reply.interrupt()

    def _generate(self, model: Model) -> Iterator[StreamEvent]:
        limits = Limits(model.n_ctx, model.tokenize)
        params, _ = sampling_params(self._chat, {}, Preset(MinK(), is_fixed=False), limits)
        request, plan = prepare_chat(model, self._chat, params)
        reply = self._reply = model.chat(
            plan.messages, request.params, enable_thinking=request.enable_thinking, tools=request.tools
        )
        if self._is_interrupted:
            reply.interrupt()
        builder = self._builder = message_builder(self._chat, plan, reply)
        for piece in reply:
            for delta in builder.deltas(piece, None):
                yield from self._events(delta)
        for delta in builder.deltas(Piece(), reply.finish_reason):
            yield from self._events(delta)

    def _events(self, delta: MessageDelta) -> Iterator[StreamEvent]:
        if delta.reasoning:
            yield StreamEvent("reasoning", delta.reasoning)
        if delta.content:
            yield StreamEvent("text", delta.content)
        for call in delta.tool_calls or ():
            if call.id and call.function.name:
                self._call_id = call.id
                yield StreamEvent("tool_call_name", call.function.name, tool_call_id=call.id)
            if call.function.arguments:
                yield StreamEvent("tool_call_args", call.function.arguments, tool_call_id=self._call_id)


def _tool_call(call_id: str, name: str, arguments: str) -> llm.ToolCall:
    try:
        return llm.ToolCall(tool_call_id=call_id, name=name, arguments=json.loads(arguments or "{}"))
    except json.JSONDecodeError:
        raise GenerationError(
            f"a call of {name} was cut off: allow more tokens with max_tokens or n_ctx"
        ) from None


def _converted(message: Message) -> Iterator[dict[str, Any]]:
    """Yield a message in OpenAI's form; for a message with results of tools, one for each result."""
    for part in message.parts:
        if isinstance(part, AttachmentPart):
            raise MinkError("the models of mink-local read only text: leave the attachment out")
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
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [_call(part) for part in message.parts if isinstance(part, ToolCallPart)]
    yield {"role": message.role, "content": text, "reasoning_content": reasoning, "tool_calls": calls}


def _call(part: ToolCallPart) -> dict[str, Any]:
    function = {"name": part.name, "arguments": json.dumps(part.arguments)}
    return {"type": "function", "id": part.tool_call_id, "function": function}


def _definition(tool: llm.Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.input_schema}
    return {"type": "function", "function": function}


async def _whole_step(events: Iterator[StreamEvent], interrupt: Callable[[], None]) -> StreamEvent | None:
    """Return the next event, or None; a task that is cancelled interrupts the step and waits for its end."""
    step = asyncio.ensure_future(asyncio.to_thread(next, events, None))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        interrupt()
        await asyncio.gather(step, return_exceptions=True)
        raise
