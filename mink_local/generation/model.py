"""A loaded GGUF model: chat, batch generation, log-probabilities."""

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError, ModelError
from mink_local.files import replaced
from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.engine import Engine
from mink_local.generation.request import (
    Message,
    Prompt,
    Request,
    SamplingOptions,
    SamplingParams,
    Tool,
)
from mink_local.generation.slots import N_OUTPUTS, Continuation, RowReader, score
from mink_local.generation.template import ChatTemplate
from mink_local.generation.text import TextStream
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.context import Context
from mink_local.llama.weights import Weights

if TYPE_CHECKING:
    from mink_local.generation.backend import BackendSampling

log = logging.getLogger("mink_local")

_TURN = 0.002  # seconds between steps that a waiting call leaves to others

_CANCELLED = "a later call cancelled this answer: read answers to the end first, or use wait=True"
_OTHER_THREAD = "this model is in use, perhaps by another thread: use wait=True, or one model per thread"


class Model:
    """A loaded model, ready to generate; created by `load_model`.

    A model generates for one caller at a time. A new call cancels a reply that has not been read to the end,
    unless told to `wait`, and raises GenerationError while another thread is generating.

    Attributes:
        name: Name of the file.
        placement: Where the layers are and why, as text.
        n_ctx: Maximum tokens of a prompt plus its answer.
        n_parallel: Number of answers generated at a time.
        weights: Tensors and vocabulary, read-only: n_vocab, n_ctx_train, on_gpu, chat_template, path, …
        chat_template: Jinja source of the chat template; None if the model has none.
        can_reason: Whether the chat template supports reasoning, `<think>…</think>` before an answer.
        has_thinking_switch: Whether the chat template can turn reasoning on and off (`enable_thinking`).
        supports_tools: Whether the chat template describes tools to the model.
    """

    def __init__(
        self,
        name: str,
        weights: Weights,
        context: Context,
        make_context: Callable[..., Context],
        placement: str,
        template: ChatTemplate,
        *,
        chat_backend: "BackendSampling | None" = None,
        batch_backend: "BackendSampling | None" = None,
    ) -> None:
        self.name = name
        self.placement = placement
        self.weights = weights
        self._chat_backend, self._batch_backend = chat_backend, batch_backend
        self._make_context = make_context
        self._template = template
        self.chat_template: str | None = weights.chat_template
        self.can_reason = template.can_reason
        self.has_thinking_switch = template.has_thinking_switch
        self.supports_tools = template.supports_tools
        self._lock = threading.Lock()
        self._thread: int | None = None  # the one holding the lock
        self._caller: Reply | _Batch | None = None  # whom the last call generates for
        self._interrupted = False  # since that call
        self._closed = False
        self._use(context)
        if template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def _use(self, context: Context) -> None:
        self.engine = Engine(context, self.weights, self._template)  # for programs that step themselves
        self.n_ctx, self.n_parallel = context.n_ctx, context.n_seq

    def __repr__(self) -> str:
        return f"<Model {self.name}, {self.placement}>"

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory, and end the child process that renders its chat template."""
        if self._closed:
            return
        with self._exclusive():
            self._begin(None)
            self.engine.context.close()
            self.weights.close()
            self._template.close()
            self._closed = True

    def opens_reasoning(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> bool:
        """Return whether a prompt ends inside reasoning that it opens."""
        return self._template.opens_reasoning(self.prompt_tokens(prompt, enable_thinking, tools))

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for `messages` as text. Raises MinkError if the template refuses them."""
        return self._template.text(messages, enable_thinking, tools, template_kwargs)

    def prompt_tokens(
        self,
        prompt: Prompt,
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt; see `ChatTemplate.tokens`."""
        return self._template.tokens(prompt, enable_thinking, tools, template_kwargs)

    def count_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens in a prompt."""
        return len(self.prompt_tokens(prompt))

    def sampling(self, params: SamplingParams) -> str:
        """Return where `chat` samples tokens, "on the host" or "in llama.cpp's graph", and why."""
        if self._chat_backend is None:
            return "on the host" if self.weights.on_gpu else "on the host: the model is not on a GPU"
        with self._exclusive():  # a trial runs llama.cpp
            obstacle = self._chat_backend.obstacle(params.effective_sampler, params.needs_logits)
        return f"on the host: {obstacle}" if obstacle else "in llama.cpp's graph"

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; control tokens in it count as plain text, and none are added."""
        return self.weights.tokenize(text, add_special=False, parse_special=False)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD."""
        stream = TextStream()
        return stream.push(b"".join(map(self.weights.piece, tokens))) + stream.close()

    def token_texts(self, tokens: Iterable[int]) -> list[str]:
        """Return what each token adds to the text: "" while a character is incomplete."""
        stream = TextStream()
        return [stream.push(self.weights.piece(token)) for token in tokens]

    def logits(
        self, prompt: Prompt, prefix: Sequence[int] = (), enable_thinking: bool | None = None
    ) -> NDArray[np.float32]:
        """Return the raw logits (V,) of the next token of an answer that begins with the tokens `prefix`."""
        tokens = [*self.prompt_tokens(prompt, enable_thinking), *prefix]
        with self._exclusive():
            self._begin(None)
            context = self.engine.context
            context.interrupted = False
            row = next(RowReader(context, self.engine.slots)([(tokens, 1)]))
            return row.logits.copy()

    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] = (),
        enable_thinking: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        prefix: Sequence[int] = (),
        watch: Callable[[NDArray[np.float32]], None] | None = None,
        wait: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Answer a conversation: an iterator over pieces of text that are generated as they are read.

        The KV cache is kept between calls, so only the new end of a conversation is evaluated. A seed gives
        the same text in any process on the same machine and build, as long as the same part of the prompt is
        in the KV cache: the last bits of llama.cpp's sums depend on what is evaluated together.

        Args:
            messages: The user's message, or a conversation: dicts with "role" and "content". If the last one
                is the assistant's, the answer continues it.
            params: How to sample the answer.
            tools: Tools that the model may call; see `supports_tools` and `Answer.tool_calls`.
            enable_thinking, template_kwargs: See `Request`.
            prefix: Token ids that the answer begins with; it continues from there.
            watch: See `Request`.
            wait: Wait for running generation to finish first: other threads', and that of an unread reply,
                whose pieces are kept for its reader. Otherwise, the unread reply is cancelled.
            **options: Fields of `SamplingParams`, overriding those of `params`.

        Raises:
            ValueError: An option is out of range, or the messages are malformed.
            ContextOverflowError: The prompt leaves no room for an answer.
            GenerationError: Another thread is generating, and `wait` is not set.
            MinkError: The chat template refuses the messages.
        """
        request = Request(
            _conversation(messages),
            _params(params, options),
            enable_thinking,
            prefix,
            tools,
            watch,
            template_kwargs or {},
        )
        return self._reply(request, wait)

    def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        *,
        wait: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Continue a text or token ids as they are, without the chat template.

        Args:
            prompt: A text, in which control tokens are parsed and to which the vocabulary's
                beginning-of-text token is prepended; or token ids.

        Other arguments and errors as for `chat`.
        """
        return self._reply(Request(prompt, _params(params, options)), wait)

    def _reply(self, request: Request, wait: bool) -> "Reply":
        reply = Reply(request, self)
        while True:
            with self._exclusive(wait):
                if not wait or self._caller is None or self._caller.finish_reason is not None:
                    self._begin(reply)
                    self.engine.submit(request, reply, self._chat_backend)
                    break
                self._caller.advance()
            time.sleep(_TURN)
        if reply.finish_reason == "overflow":
            raise ContextOverflowError(reply.prompt_tokens, self.n_ctx)
        return reply

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        ordered: bool = False,
        tools: Sequence[Tool] = (),
        enable_thinking: bool | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[SamplingOptions],
    ) -> Iterator[Answer]:
        """Answer many independent prompts, `n_parallel` at a time.

        Args:
            prompts: User messages (str), conversations, or lists of token ids to continue.
            params: How to sample the answers; answer i gets the seed `params.seed + i`, modulo 2^32 - 1.
            n: Number of answers per prompt; those to prompt i have the indices (`Answer.index`) i * n to
                i * n + n - 1.
            ordered: Yield the answers in the order of the prompts instead of the order of completion.

        Other arguments as for `chat`, errors as for `answer_all`.
        """
        if isinstance(prompts, str):  # each of its characters would be a prompt
            raise GenerationError("generate takes a list of prompts: put a single one in a list, or use chat")
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        params = _params(params, options)
        first = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed
        repeated = (prompt for prompt in map(_conversation, prompts) for _ in range(n))
        requests = (
            Request(
                prompt,
                replace(params, seed=(first + i) % RANDOM_SEED),
                enable_thinking,
                tools=tools,
                template_kwargs=template_kwargs or {},
            )
            for i, prompt in enumerate(repeated)
        )
        return self.answer_all(requests, ordered=ordered)

    def answer_all(self, requests: Iterable[Request], *, ordered: bool = False) -> Iterator[Answer]:
        """Answer many requests, `n_parallel` at a time, in order of completion or, if `ordered`, of requests.

        Requests are taken from the iterable as slots become free. What successive requests have in common,
        prompts and answers, is evaluated once. A prompt that does not fit into the context yields an answer
        with finish_reason "overflow", broken logits one with "error", and the others continue. A text may
        differ from what `chat` gives for the same seed: the last bits of llama.cpp's sums depend on what is
        evaluated together.

        Raises:
            ValueError: A request is malformed.
            GenerationError: Another thread is generating.
            MinkError: The chat template refuses the messages of a request.
        """
        batch = _Batch()
        with self._exclusive():
            self._begin(batch)
        answers = self._answers(requests, batch)
        return _in_order(answers) if ordered else answers

    def _answers(self, requests: Iterable[Request], batch: "_Batch") -> Iterator[Answer]:
        try:
            for index, request in enumerate(requests):
                while self.engine.n_waiting:
                    yield from self._step(batch)
                if self._interrupted and self.engine.idle:
                    return
                with self._exclusive(caller=batch):
                    answer = self.engine.submit(request, Answer(request, index), self._batch_backend)
                if answer.finish_reason:
                    yield answer
            while not self.engine.idle:
                yield from self._step(batch)
        finally:
            batch.finish_reason = "interrupted"
            # Another thread's call that has the lock, and a later call, cancel what is left.
            with contextlib.suppress(GenerationError, ModelError), self._exclusive(caller=batch):
                self.engine.cancel_all()

    def _step(self, batch: "_Batch") -> list[Answer]:
        """Take a step for a batch; return the answers it finishes."""
        with self._exclusive(caller=batch):
            if self._interrupted:  # perhaps before the first request arrived
                self.engine.interrupt()
            return [answer for answer, _ in self.engine.step() if answer.finish_reason]

    def logprobs(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n_parallel: int | Literal["auto"] = "auto"
    ) -> list[Continuation]:
        """Compute the log-probabilities of continuations, each after its context.

        Args:
            pairs: Token ids of a context and of its continuation, at least one each. Common prefixes of
                successive contexts are evaluated once.
            n_parallel: Number of pairs evaluated at a time; "auto" chooses by free memory.

        Raises:
            ContextOverflowError: A pair is longer than the context the model was trained on.
            ValueError: A context or continuation is empty.
            GenerationError: The logits contain a NaN, or llama.cpp fails.
        """
        longest = max((len(context) + len(continuation) for context, continuation in pairs), default=1)
        with self.rows(longest, n_parallel, N_OUTPUTS) as rows:
            return score(rows, pairs)

    @contextlib.contextmanager
    def rows(
        self, n_ctx: int, n_parallel: int | Literal["auto"] = "auto", n_outputs: int = 0
    ) -> Iterator[RowReader]:
        """Allocate a KV cache to compute the logits of many sequences, and free it at the end of the block.

        The model cannot generate anything else within the block. Arguments and errors as for `reserve`.
        """
        with self._exclusive():
            context = self._make_context(n_ctx, n_parallel, n_outputs)
            try:
                yield RowReader(context)
            finally:
                context.close()

    def interrupt(self) -> None:
        """Stop generating as soon as possible, with finish_reason "interrupted".

        On a CPU, this also stops the prefill of a prompt midway. May be called from another thread or a
        signal handler.
        """
        self._interrupted = True
        self.engine.interrupt()

    def forget(self) -> None:
        """Empty the KV caches, so that later results do not depend on earlier prompts."""
        with self._exclusive():
            self._begin(None)
            self.engine.forget()

    @property
    def n_cached(self) -> int:
        """Number of tokens in the KV cache of the last prompt and its answer."""
        return max(len(slot.tokens) for slot in self.engine.slots)

    def save_cache(self, path: Path, most_bytes: int) -> bool:
        """Write the KV cache of the last prompt and its answer to a file, for `load_cache`.

        Args:
            path: The file, which is replaced atomically.
            most_bytes: Nothing is written if the file would be larger.

        Returns:
            Whether the file was written.

        Raises:
            OSError: The file cannot be written; it is unchanged.
        """
        with self._exclusive():
            self._begin(None)
            slot = max(self.engine.slots, key=lambda slot: len(slot.tokens))
            context = self.engine.context
            if not slot.tokens or context.state_size(slot.seq_id) > most_bytes:
                return False
            with replaced(path) as unfinished:
                context.save(unfinished, slot.tokens, slot.seq_id)
            return True

    def load_cache(self, path: Path) -> int:
        """Load the KV cache from a file written by `save_cache`, for a prompt with the same beginning.

        A file that is missing, damaged, or from another model file, `kv_type` or llama.cpp build is ignored.

        Returns:
            Number of tokens in the cache.
        """
        with self._exclusive():
            self._begin(None)
            slot = self.engine.slots[0]
            slot.tokens = self.engine.context.load(path, slot.seq_id)
            return len(slot.tokens)

    def reserve(self, n_ctx: int, n_parallel: int | Literal["auto"] = 1, n_outputs: int = 0) -> None:
        """Reallocate the KV caches, which empties them.

        Args:
            n_ctx: Maximum tokens of a prompt plus its answer.
            n_parallel: Number of answers at a time; "auto" is 32 on a CPU and 64 on a GPU, or as many as fit
                into a quarter of the free memory. If memory is low, there are fewer, with a warning.
            n_outputs: Maximum number of tokens in a batch whose logits are computed, at least one per answer;
                more make `SamplingParams.prompt_logprobs` faster, and each takes 4 bytes per vocabulary
                token.

        Raises:
            ValueError: A number is out of range.
            ModelError: There is not enough memory for one answer.
        """
        with self._exclusive():
            self._begin(None)
            before = self.n_ctx, self.n_parallel, self.engine.context.n_outputs
            self.engine.context.close()  # its memory is needed
            try:
                self._use(self._make_context(n_ctx, n_parallel, n_outputs))
            except (ModelError, ValueError):
                self._use(self._make_context(*before))
                raise

    @contextlib.contextmanager
    def _exclusive(self, wait: bool = False, caller: "_Batch | None" = None) -> Iterator[None]:
        """Keep other threads out of llama.cpp; a thread does not wait for itself.

        Raises GenerationError if another thread is inside, or there was a later call than `caller`'s.
        """
        if not self._lock.acquire(blocking=wait and self._thread != threading.get_ident()):
            raise GenerationError(_OTHER_THREAD)
        self._thread = threading.get_ident()
        try:
            if self._closed:
                raise ModelError(f"{self.name} is closed: load it again")
            if caller not in (None, self._caller):
                raise GenerationError(_CANCELLED)
            yield
        finally:
            self._thread = None
            self._lock.release()

    def _begin(self, caller: "Reply | _Batch | None") -> None:
        """Cancel any running generation, and generate for `caller` from now on."""
        self.engine.cancel_all(_CANCELLED)
        self._caller, self._interrupted = caller, False


class _Batch:
    """A call of `answer_all`, in the thread that reads its answers."""

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None  # of the call, not of an answer
        self._thread = threading.get_ident()

    def advance(self) -> None:
        """Leave generating to the thread that reads the answers."""
        if self._thread == threading.get_ident():
            raise GenerationError(
                "this thread has unread answers from an earlier call: read or close them first"
            )


class Reply(Answer):
    """An `Answer` that is generated as it is read: iterate over it to get pieces of text.

    `async for piece in reply` works as well; if its task is cancelled, so is the reply.
    """

    def __init__(self, request: Request, model: Model) -> None:
        super().__init__(request)
        self._model = model
        self._pieces: deque[Piece] = deque()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        while not self._pieces:
            if self.finish_reason == "error":
                raise GenerationError(self.error)
            if self.finish_reason is not None:
                raise StopIteration
            with self._model._exclusive(wait=True):
                self.advance()
        return self._pieces.popleft()

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> Piece:
        import asyncio  # 20 ms, which nothing else in a chat needs

        step = asyncio.ensure_future(asyncio.to_thread(next, self, None))
        try:
            piece = await asyncio.shield(step)
        except asyncio.CancelledError:
            self.interrupt()
            await asyncio.wait([step])
            with contextlib.suppress(GenerationError):
                self.read()  # a single step that evaluates nothing
            raise
        if piece is None:
            raise StopAsyncIteration
        return piece

    @property
    def unread_tokens(self) -> int:
        """Number of prompt tokens not yet evaluated, for a thread that shows progress."""
        return self._model.engine.unevaluated(self)

    def read(self) -> str:
        """Generate the answer to the end and return its text."""
        for _ in self:
            pass
        return self.text

    def interrupt(self) -> None:
        """End the answer at the next step; see `Model.interrupt`."""
        if self.finish_reason is None:
            self._model.interrupt()

    def advance(self) -> None:
        """Take a step unless the answer is finished, and keep its pieces for the reader."""
        if self.finish_reason is None:
            self._pieces.extend(piece for _, piece in self._model.engine.step())


def _in_order(answers: Iterator[Answer]) -> Iterator[Answer]:
    """Yield answers in the order of their requests."""
    finished: dict[int, Answer] = {}
    index = 0
    for answer in answers:
        finished[answer.index] = answer
        while index in finished:
            yield finished.pop(index)
            index += 1


def _conversation(prompt: Prompt) -> Prompt:
    """Return a prompt, with a text turned into a user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _params(params: SamplingParams | None, options: Any) -> SamplingParams:
    return replace(params or SamplingParams(), **options)
