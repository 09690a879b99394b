"""A loaded GGUF model: chat, generation for many prompts, log-probabilities."""

import asyncio
import contextlib
import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import date as Date
from itertools import chain, islice
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError, ModelError
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.backend_trial import BackendTrials
from mink_local.generation.engine import Engine, Step, no_backend_form
from mink_local.generation.logprobs import N_OUTPUTS, Continuation, score
from mink_local.generation.request import (
    Message,
    Prompt,
    Request,
    SamplingOptions,
    SamplingParams,
    Tool,
)
from mink_local.generation.rows import RowReader
from mink_local.generation.template import ChatTemplate
from mink_local.generation.text_stream import TextStream
from mink_local.llama.context import RANDOM_SEED, Context
from mink_local.llama.weights import Weights

log = logging.getLogger("mink_local")

_LOOKAHEAD = 64  # requests that are looked at to choose the length of the KV caches for them

_CANCELLED = "this reply was cancelled: the model was asked again before the reply was read to its end"
_OTHER_THREAD = "this model is in use by another thread: give each thread a model, or use one after the other"


class Model:
    """A model that is ready to generate; `load_model` makes one.

    A model generates for one caller at a time: another call cancels a reply that is not read to its end, and
    a second thread gets a GenerationError.

    Attributes:
        name: Name of its file.
        placement: Where its layers are, and why, in words.
        n_ctx: Tokens that a prompt and its answer share.
        n_parallel: Number of answers that are generated at a time; 1 if `load_model` was not told, and then
            `generate` and `complete` allocate a second, larger KV cache when they need it.
        weights: Tensors and vocabulary, to be read: n_vocab, n_ctx_train, on_gpu, chat_template, path, …
        engine: The engine behind `chat`, for programs that submit, cancel and step by themselves.
    """

    def __init__(
        self,
        name: str,
        weights: Weights,
        context: Context,
        make_context: Callable[..., Context],
        placement: str,
        *,
        backend_sampling: bool | None = None,
        auto_parallel: bool = False,
        date: Date | None = None,
    ) -> None:
        self.name = name
        self.placement = placement
        self.weights = weights
        # With attached samplers llama.cpp builds its graph anew whenever answers come and go, so that many at
        # a time are sampled on the host unless backend sampling is asked for.
        self._chat_backend = weights.on_gpu if backend_sampling is None else backend_sampling
        self._backend_asked_for = bool(backend_sampling)
        self._trials = BackendTrials(weights, context.n_threads, must_be_faster=backend_sampling is None)
        self._auto_parallel = auto_parallel
        self._make_context = make_context
        self._template = ChatTemplate(weights, date)
        self._lock = threading.Lock()
        self._caller: object = None  # whom the last call generates for
        self._interrupted = False  # since that call
        self._closed = False
        self._use(context)
        if self._template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def _use(self, context: Context) -> None:
        self.engine = Engine(context, self.weights, self._template)
        self._many: Engine | None = None  # allocated by `complete`
        self.n_ctx, self.n_parallel = context.n_ctx, context.n_seq

    def __repr__(self) -> str:
        return f"<Model {self.name}, {self.placement}>"

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the model, and end the child process of its chat template."""
        if self._closed:
            return
        with self._exclusive():
            self._begin(None)
            for engine in self._engines:
                engine.context.close()
            self.weights.close()
            self._template.close()
            self._closed = True

    @property
    def can_reason(self) -> bool:
        """True if the chat template knows reasoning, `<think>…</think>` before an answer."""
        return self._template.can_reason

    @property
    def has_thinking_switch(self) -> bool:
        """True if the chat template has a switch for reasoning (`enable_thinking`)."""
        return self._template.has_thinking_switch

    @property
    def supports_tools(self) -> bool:
        """True if the chat template describes tools to the model."""
        return self._template.supports_tools

    @property
    def chat_template(self) -> str | None:
        """Jinja source of the chat template; None if the model has none."""
        return self.weights.chat_template

    def opens_reasoning(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> bool:
        """Return whether a prompt ends with the start of reasoning."""
        return self._template.opens_reasoning(self.tokens(prompt, enable_thinking, tools))

    def apply_chat_template(
        self, messages: Sequence[Message], enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> str:
        """Return the text of the prompt of `messages`. Raises MinkError if the template refuses them."""
        return self._template.text(messages, enable_thinking, tools)

    def tokens(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> list[int]:
        """Return the token ids of a prompt; see `ChatTemplate.tokens`."""
        return self._template.tokens(prompt, enable_thinking, tools)

    def count_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt."""
        return len(self.tokens(prompt))

    def sampling(self, params: SamplingParams) -> str:
        """Return in words where `chat` samples tokens, "on the host" or "in llama.cpp's graph", and why."""
        sampler = params.effective_sampler
        if not self._chat_backend:
            return "on the host" if self.weights.on_gpu else "on the host: the model is not on a GPU"
        if reason := no_backend_form(sampler, params.needs_logits):
            return f"on the host: {reason}"
        with self._exclusive():  # a trial uses llama.cpp
            complaint = self._trials.complaint(sampler)
        return f"on the host: {complaint}" if complaint else "in llama.cpp's graph"

    def _may_use_backend(self, request: Request) -> bool:
        """Return whether the engine is to attach a sampler; it warns if there is no backend form."""
        sampler = request.params.effective_sampler
        if no_backend_form(sampler, request.needs_logits):
            return self._backend_asked_for
        return self._trials.complaint(sampler) is None

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text in which control tokens are text."""
        return self.weights.tokenize(text, add_special=False, parse_special=False)

    def texts(self, tokens: Iterable[int]) -> list[str]:
        """Return what every token adds to the text: nothing, if it is the beginning of a character."""
        stream = TextStream()
        return [stream.push(self.weights.piece(token)) for token in tokens]

    def logits(
        self, prompt: Prompt, prefix: Sequence[int] = (), enable_thinking: bool | None = None
    ) -> NDArray[np.float32]:
        """Return the raw logits (V,) of the token after the tokens `prefix` of an answer to a prompt."""
        tokens = [*self.tokens(prompt, enable_thinking), *prefix]
        with self._exclusive():
            self._begin(None)
            return self.engine.logits(tokens).copy()

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        enable_thinking: bool | None = None,
        prefix: Sequence[int] = (),
        tools: Sequence[Tool] = (),
        watch: Callable[[NDArray[np.float32]], None] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Answer a conversation: an iterator of pieces of text, which generates as it is read.

        The KV cache is kept between calls: only what is new at the end of a conversation is evaluated. One
        seed gives one text, in any process on one machine and build, as long as the same part of the
        prompt is in the KV cache: llama.cpp's sums depend in their last bits on what is evaluated together.

        Args:
            messages: The conversation: dicts with "role" and "content". If the last one is the assistant's,
                the answer continues it.
            params: How the answer is sampled.
            enable_thinking: See `Request`.
            prefix: Token ids that the answer begins with; it continues from there.
            tools: Tools that the chat template describes to the model; see `supports_tools`.
            watch: See `Request`.
            **options: Fields of `SamplingParams`; they replace those of `params`.

        Raises:
            ValueError: An option is out of range, or the messages are malformed.
            ContextOverflowError: The prompt leaves no room for an answer.
            MinkError: The chat template refuses the messages.
        """
        request = Request(messages, _params(params, options), enable_thinking, prefix, tools, watch)
        with self._exclusive():
            engine = self.engine
            reply = Reply(request, engine, lambda: self._step(engine, reply))
            self._begin(reply)
            backend = self._chat_backend and self._may_use_backend(request)
            engine.submit(request, reply, backend=backend)
            reply.in_reasoning = self.opens_reasoning(messages, enable_thinking, tools)
        if reply.finish_reason == "overflow":
            raise ContextOverflowError(reply.prompt_tokens, self.n_ctx)
        return reply

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | None = None,
        *,
        enable_thinking: bool | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[Answer]:
        """Answer many prompts, several at a time, each on its own: answers in order of completion.

        Args:
            prompts: Lists of messages, texts or lists of token ids; see `Request`.
            params: Prompt number i gets the seed `params.seed + i`, modulo 2^32 - 1.

        The other arguments are those of `chat`. Raises as `complete` does.
        """
        if isinstance(prompts, str):  # whose characters would each be a prompt
            raise GenerationError(
                "generate takes a list of prompts, and this is one prompt: put it in a list"
            )
        params = _params(params, options)
        first = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed
        return self.complete(
            Request(prompt, replace(params, seed=(first + i) % RANDOM_SEED), enable_thinking)
            for i, prompt in enumerate(prompts)
        )

    def complete(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answer many requests, several at a time: answers in order of completion.

        Requests are taken from the iterable as slots become free. What requests that follow each other have
        in common, prompts and answers, is evaluated once. A prompt that does not fit the context gives an
        answer with finish_reason "overflow", broken logits one with "error", and the others go on. A text may
        differ from the one that `chat` gives for the same seed: llama.cpp's sums depend in their last bits on
        what is evaluated together.

        Raises:
            ValueError: A request is malformed.
            MinkError: The chat template refuses the messages of a request.
        """
        caller = object()
        with self._exclusive():
            self._begin(caller)
        return self._complete(requests, caller)

    def _complete(self, requests: Iterable[Request], caller: object) -> Iterator[Answer]:
        waiting, engine = self._engine_for(enumerate(requests))
        upcoming = next(waiting, None)
        try:
            while not (self._interrupted and engine.idle):
                while upcoming is not None and engine.n_waiting == 0:
                    if self._is_too_long(upcoming[1], engine):
                        if not engine.idle:
                            break  # a longer cache takes its place when the others are done
                        waiting, engine = self._engine_for(chain([upcoming], waiting))
                        next(waiting)
                    answer = self._submit(upcoming, engine, caller)
                    if answer.finish_reason:
                        yield answer
                    upcoming = next(waiting, None)
                if engine.idle:
                    return
                if self._interrupted:  # perhaps before the first request came
                    engine.interrupt()
                for answer, _ in self._step(engine, caller):
                    if answer.finish_reason:
                        yield answer
        finally:
            if self._caller is caller and not self._closed:
                engine.cancel_all()

    def logprobs(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n_parallel: int | Literal["auto"] = "auto"
    ) -> list[Continuation]:
        """Compute the log-probabilities of continuations, each after its context.

        Args:
            pairs: As for `logprobs.score`, which says what is raised.
            n_parallel: Number of pairs that are evaluated at a time.
        """
        longest = max((len(context) + len(continuation) for context, continuation in pairs), default=1)
        with self.rows(longest, n_parallel, N_OUTPUTS) as rows:
            return sorted(score(rows, pairs), key=lambda continuation: continuation.index)

    @contextlib.contextmanager
    def rows(
        self, n_ctx: int, n_parallel: int | Literal["auto"] = "auto", n_outputs: int = 0
    ) -> Iterator[RowReader]:
        """Allocate a KV cache for the logits of many sequences; it is freed at the end of the block.

        The model generates nothing else in the block. Arguments and errors are those of `reserve`.
        """
        with self._exclusive():
            context = self._make_context(n_ctx, n_parallel, n_outputs)
            try:
                yield RowReader(context)
            finally:
                context.close()

    def interrupt(self) -> None:
        """End what is being generated as soon as possible, with finish_reason "interrupted".

        On a CPU this ends the prefill of a prompt in the middle. May be called from another thread or a
        signal handler.
        """
        self._interrupted = True
        for engine in self._engines:
            engine.interrupt()

    def forget(self) -> None:
        """Empty the KV caches: what is evaluated next does not depend on what was before."""
        with self._exclusive():
            self._begin(None)
            for engine in self._engines:
                engine.forget()

    def reserve(self, n_ctx: int, n_parallel: int | Literal["auto"] = "auto", n_outputs: int = 0) -> None:
        """Allocate the KV caches anew; what was in them is lost.

        Args:
            n_ctx: Tokens that a prompt and its answer share.
            n_parallel: Number of answers at a time; "auto" is 32 on a CPU and 64 on a GPU, or as many as fit
                a quarter of the free memory. If memory is short there are fewer, with a warning.
            n_outputs: Tokens of a batch whose logits are computed, at least one for each answer; more make
                `SamplingParams.prompt_logprobs` faster and take 4 bytes each for every token of the
                vocabulary.

        Raises:
            ValueError: A number is out of range.
            ModelError: There is no memory for one answer.
        """
        with self._exclusive():
            self._begin(None)
            before = self.n_ctx, self.n_parallel, self.engine.context.n_outputs
            for engine in self._engines:  # their memory is wanted
                engine.context.close()
            try:
                self._use(self._make_context(n_ctx, n_parallel, n_outputs))
                self._auto_parallel = False
            except (ModelError, ValueError):
                self._use(self._make_context(*before))
                raise

    @property
    def _engines(self) -> list[Engine]:
        return [self.engine] if self._many is None else [self.engine, self._many]

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Keep other threads out of llama.cpp."""
        if not self._lock.acquire(blocking=False):
            raise GenerationError(_OTHER_THREAD)
        try:
            if self._closed:
                raise ModelError(f"{self.name} is closed: load it again")
            yield
        finally:
            self._lock.release()

    def _begin(self, caller: object) -> None:
        """Cancel what is being generated, and generate for `caller` from now on."""
        for engine in self._engines:
            engine.cancel_all(_CANCELLED)
        self._caller, self._interrupted = caller, False

    def _step(self, engine: Engine, caller: object) -> Step:
        """Make a step for a caller, unless the model has been asked again since."""
        with self._exclusive():
            if self._caller is not caller:
                raise GenerationError(_CANCELLED)
            return engine.step()

    def _submit(self, numbered: tuple[int, Request], engine: Engine, caller: object) -> Answer:
        index, request = numbered
        with self._exclusive():
            if self._caller is not caller:
                raise GenerationError(_CANCELLED)
            backend = self._backend_asked_for and self._may_use_backend(request)
            return engine.submit(request, Answer(request, index), backend=backend)

    def _engine_for(
        self, requests: Iterator[tuple[int, Request]]
    ) -> tuple[Iterator[tuple[int, Request]], Engine]:
        """Return the requests, and an engine with slots that suit the first of them.

        If the number of slots is open and there are several requests, it is one beside that of `chat`, whose
        conversation stays in its cache.
        """
        if not self._auto_parallel:
            return requests, self.engine
        first = list(islice(requests, _LOOKAHEAD))
        requests = chain(first, requests)
        if len(first) < 2:
            return requests, self.engine
        n_ctx = min(max(self._length(request) for _, request in first), self.n_ctx)
        with self._exclusive():
            if self._many is not None and self._many.context.n_ctx < n_ctx:
                self._many.context.close()  # its memory is wanted
                self._many = None
            if self._many is None:
                self._many = Engine(self._make_context(n_ctx, "auto"), self.weights, self._template)
            return requests, self._many

    def _length(self, request: Request) -> int:
        """Return the most tokens that a request and its answer take."""
        prompt = self.tokens(request.prompt, request.enable_thinking, request.tools)
        return len(prompt) + len(request.prefix) + (request.params.max_tokens or self.n_ctx)

    def _is_too_long(self, request: Request, engine: Engine) -> bool:
        """Return whether a request needs a longer cache than the one that was made for those before it."""
        return engine is self._many and min(self._length(request), self.n_ctx) > engine.context.n_ctx


class Reply(Answer):
    """The answer to a conversation as it is generated: iterate over it for its pieces of text.

    `async for piece in reply` works as well; if its task is cancelled, so is the reply.

    Attributes:
        in_reasoning: Whether the prompt ends with the start of reasoning, which the text continues.
    """

    in_reasoning = False

    def __init__(self, request: Request, engine: Engine, step: Callable[[], Step]) -> None:
        super().__init__(request)
        self._engine = engine
        self._step = step
        self._pieces: deque[Piece] = deque()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self.finish_reason == "error":
                raise GenerationError(self.error)
            if self.finish_reason is not None:
                raise StopIteration
            self._pieces.extend(piece for _, piece in self._step())
        return self._pieces.popleft()

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> Piece:
        step = asyncio.ensure_future(asyncio.to_thread(next, self, None))
        try:
            piece = await asyncio.shield(step)
        except asyncio.CancelledError:
            self.interrupt()
            await asyncio.wait([step])
            with contextlib.suppress(GenerationError):
                self.read()  # one step that evaluates nothing
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def unread_tokens(self) -> int:
        """Number of tokens of the prompt that are not evaluated yet; for another thread to watch."""
        return self._engine.unevaluated(self)

    def read(self) -> str:
        """Generate the answer to its end; return its text."""
        for _ in self:
            pass
        return self.text

    def interrupt(self) -> None:
        """End the answer at the next step; see `Model.interrupt`."""
        self._engine.interrupt()


def _params(params: SamplingParams | None, options: Any) -> SamplingParams:
    return replace(params or SamplingParams(), **options)
