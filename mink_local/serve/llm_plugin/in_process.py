"""Answers of a model that is loaded in this process, as the chunks that a server would send."""

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from typing import Any

from mink_local.generation.answer import Piece
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model, Reply
from mink_local.generation.reasoning import ReasoningSplitter
from mink_local.interrupts import until_interrupted
from mink_local.samplers import MinK
from mink_local.serve.answers import MessageBuilder, engine_request, reasoning_state, usage_of
from mink_local.serve.presets import Defaults, Preset
from mink_local.serve.protocol import ChatRequest, parse
from mink_local.serve.sampling import Limits, sampling_params
from mink_local.serve.tools import plan_tools

_PATIENCE = 0.1  # seconds between two looks at whether an answer that waits for its turn is still wanted

Chunk = dict[str, Any]


class _LastModel:
    """Keeps the model that was asked last; its answers come one after another."""

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


class _LocalAnswer:
    """An answer to iterate over in one thread, which `interrupt` ends from another."""

    def __init__(self, body: dict[str, Any], n_ctx: int | None) -> None:
        self._body, self._n_ctx = body, n_ctx
        self._reply: Reply | None = None
        self.is_interrupted = False

    def __iter__(self) -> Iterator[Chunk]:
        while not _last.turn.acquire(timeout=_PATIENCE):
            if self.is_interrupted:
                return
        try:
            yield from self._chunks(_last.load(self._body["model"], self._n_ctx))
        finally:
            _last.turn.release()

    def interrupt(self) -> None:
        """End the answer at its next step."""
        self.is_interrupted = True
        if self._reply is not None:
            self._reply.interrupt()

    def _chunks(self, model: Model) -> Iterator[Chunk]:
        asked, _ = parse(json.dumps(self._body).encode(), ChatRequest)
        preset = Preset(self._body["model"], Defaults(MinK()), is_fixed=False)
        params, _ = sampling_params(asked, preset, Limits(model.n_ctx, model.tokenize))
        plan = plan_tools(asked, model.chat_template, model.supports_tools)
        request = engine_request(asked, params, plan, model.has_thinking_switch)
        reply = self._reply = model.chat(
            plan.messages, request.params, enable_thinking=request.enable_thinking, tools=request.tools
        )
        if self.is_interrupted:
            reply.interrupt()
        state = reasoning_state(asked, request.params, can_reason=model.can_reason, opened=reply.in_reasoning)
        builder = MessageBuilder(ReasoningSplitter(state), plan.parser())
        for piece in reply:
            yield from _with_deltas(builder.deltas(piece, None))
        yield from _with_deltas(builder.deltas(Piece(), reply.finish_reason))
        ending: Chunk = {"delta": {}, "finish_reason": builder.finish_reason, "k": reply.k[: reply.n_tokens]}
        yield {"choices": [ending], "usage": usage_of([[reply]], builder.n_reasoning)}


def _with_deltas(deltas: Iterable[dict[str, Any]]) -> Iterator[Chunk]:
    """Yield a chunk for each delta."""
    for delta in deltas:
        yield {"choices": [{"delta": delta}]}


class InProcess:
    """Answers chat requests with a model that is loaded in this process.

    Args:
        n_ctx: Tokens that a prompt and its answer share; None takes a model as it is loaded.
    """

    def __init__(self, n_ctx: int | None) -> None:
        self._n_ctx = n_ctx

    def chunks(self, body: dict[str, Any]) -> Generator[Chunk, None, None]:
        """Yield the chunks of a chat completion as they come; Ctrl-C ends it.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed.
            ValueError: The request is malformed.
            MinkError: The model cannot be loaded, or cannot answer.
        """
        answer = _LocalAnswer(body, self._n_ctx)
        yield from until_interrupted(answer, answer.interrupt)
        if answer.is_interrupted:
            raise KeyboardInterrupt

    async def async_chunks(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a chat completion as they come; see `chunks`."""
        answer = _LocalAnswer(body, self._n_ctx)
        chunks = until_interrupted(answer, answer.interrupt)
        try:
            while (chunk := await _whole_step(chunks, answer.interrupt)) is not None:
                yield chunk
        finally:
            await asyncio.to_thread(chunks.close)


async def _whole_step(chunks: Iterator[Chunk], interrupt: Callable[[], None]) -> Chunk | None:
    """Return the next chunk, or None; a task that is cancelled interrupts the step and waits for its end."""
    step = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
    try:
        return await asyncio.shield(step)
    except asyncio.CancelledError:
        interrupt()
        await asyncio.gather(step, return_exceptions=True)
        raise
