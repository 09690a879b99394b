"""A loaded GGUF model: chat, generation for many prompts, log-probabilities."""

import asyncio
import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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

_TURN = 0.002  # seconds that a waiting call leaves to the others between two steps

_CANCELLED = "a later call cancelled this answer: read answers to their end first, or use wait=True"
_OTHER_THREAD = "this model is in use, perhaps by another thread: use wait=True, or a model for each thread"


class Model:
    """A loaded model, ready to generate; `load_model` makes one.

    A model generates for one caller at a time. A new call cancels a reply that has not been read to its end,
    unless it is told to `wait`, and raises GenerationError while another thread is generating.

    Attributes:
        name: Name of its file.
        placement: Where its layers are and why, in words.
        n_ctx: Tokens that a prompt and its answer share.
        n_parallel: Number of answers that are generated at a time.
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
        self._thread: int | None = None  # that has the lock
        self._caller: Reply | _Batch | None = None  # whom the last call generates for
        self._interrupted = False  # since that call
        self._closed = False
        self._use(context)
        if template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def _use(self, context: Context) -> None:
        self.engine = Engine(context, self.weights, self._template)  # for programs that step by themselves
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
            self.engine.context.close()
            self.weights.close()
            self._template.close()
            self._closed = True

    def opens_reasoning(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> bool:
        """Return whether a prompt ends with the start of reasoning."""
        return self._template.opens_reasoning(self.prompt_tokens(prompt, enable_thinking, tools))

    def apply_chat_template(
        self, messages: Sequence[Message], enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> str:
        """Return the text of the prompt of `messages`. Raises MinkError if the template refuses them."""
        return self._template.text(messages, enable_thinking, tools)

    def prompt_tokens(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> list[int]:
        """Return the token ids of a prompt; see `ChatTemplate.tokens`."""
        return self._template.tokens(prompt, enable_thinking, tools)

    def count_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens of a prompt."""
        return len(self.prompt_tokens(prompt))

    def sampling(self, params: SamplingParams) -> str:
        """Return where `chat` samples tokens, "on the host" or "in llama.cpp's graph", and why."""
        if self._chat_backend is None:
            return "on the host" if self.weights.on_gpu else "on the host: the model is not on a GPU"
        with self._exclusive():  # a trial uses llama.cpp
            obstacle = self._chat_backend.obstacle(params.effective_sampler, params.needs_logits)
        return f"on the host: {obstacle}" if obstacle else "in llama.cpp's graph"

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; control tokens in it are read as text, and none is added."""
        return self.weights.tokenize(text, add_special=False, parse_special=False)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD."""
        stream = TextStream()
        return stream.push(b"".join(map(self.weights.piece, tokens))) + stream.close()

    def token_texts(self, tokens: Iterable[int]) -> list[str]:
        """Return what each token adds to the text: "" if the last character is still incomplete."""
        stream = TextStream()
        return [stream.push(self.weights.piece(token)) for token in tokens]

    def logits(
        self, prompt: Prompt, prefix: Sequence[int] = (), enable_thinking: bool | None = None
    ) -> NDArray[np.float32]:
        """Return the raw logits (V,) of the token after the tokens `prefix` of an answer to a prompt."""
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
        prefix: Sequence[int] = (),
        watch: Callable[[NDArray[np.float32]], None] | None = None,
        wait: bool = False,
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Answer a conversation: an iterator over pieces of text, which are generated as they are read.

        The KV cache is kept between calls, so only the new end of a conversation is evaluated. A seed gives
        the same text in any process on one machine and build, as long as the same part of the prompt is in
        the KV cache: the last bits of llama.cpp's sums depend on what is evaluated together.

        Args:
            messages: The user's message, or a conversation: dicts with "role" and "content". If the last one
                is the assistant's, the answer continues it.
            params: How the answer is sampled.
            tools: Tools that the model may call; see `supports_tools` and `Answer.tool_calls`.
            enable_thinking: See `Request`.
            prefix: Token ids that the answer begins with; it continues from there.
            watch: See `Request`.
            wait: Let what is being generated finish first: what other threads generate, and an unread
                reply, whose pieces are kept for its reader. Otherwise that reply is cancelled.
            **options: Fields of `SamplingParams`; they replace those of `params`.

        Raises:
            ValueError: An option is out of range, or the messages are malformed.
            ContextOverflowError: The prompt leaves no room for an answer.
            GenerationError: Another thread is generating, and `wait` is not given.
            MinkError: The chat template refuses the messages.
        """
        request = Request(
            _conversation(messages), _params(params, options), enable_thinking, prefix, tools, watch
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
            prompt: A text, in which control tokens are parsed, and before which the vocabulary's
                beginning-of-text token is added; or token ids.

        The other arguments and the errors are those of `chat`.
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
        **options: Unpack[SamplingOptions],
    ) -> Iterator[Answer]:
        """Answer many prompts, `n_parallel` at a time, each on its own.

        Args:
            prompts: User's messages (str), conversations, or lists of token ids to continue.
            params: How the answers are sampled; answer number i gets the seed `params.seed + i`, modulo
                2^32 - 1.
            n: Number of answers to each prompt; those to prompt i have the numbers (`Answer.index`)
                i * n to i * n + n - 1.
            ordered: Yield the answers in the order of the prompts instead of the order of completion.

        The other arguments are those of `chat`; the errors are those of `answer_all`.
        """
        if isinstance(prompts, str):  # whose characters would each be a prompt
            raise GenerationError("generate takes a list of prompts: put a single one in a list, or use chat")
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        params = _params(params, options)
        first = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed
        repeated = (prompt for prompt in map(_conversation, prompts) for _ in range(n))
        requests = (
            Request(prompt, replace(params, seed=(first + i) % RANDOM_SEED), enable_thinking, tools=tools)
            for i, prompt in enumerate(repeated)
        )
        return self.answer_all(requests, ordered=ordered)

    def answer_all(self, requests: Iterable[Request], *, ordered: bool = False) -> Iterator[Answer]:
        """Answer many requests, `n_parallel` at a time, in order of completion or, if `ordered`, in theirs.

        Requests are taken from the iterable as slots become free. What successive requests have in common,
        prompts and answers, is evaluated once. A prompt that does not fit the context gives an answer with
        finish_reason "overflow", broken logits one with "error", and the others go on. A text may differ from
        the one that `chat` gives for the same seed: the last bits of llama.cpp's sums depend on what is
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
            # A call of another thread that has the lock, and a later call, cancel what is left.
            with contextlib.suppress(GenerationError, ModelError), self._exclusive(caller=batch):
                self.engine.cancel_all()

    def _step(self, batch: "_Batch") -> list[Answer]:
        """Take a step for a batch; return the answers that it finishes."""
        with self._exclusive(caller=batch):
            if self._interrupted:  # perhaps before the first request came
                self.engine.interrupt()
            return [answer for answer, _ in self.engine.step() if answer.finish_reason]

    def logprobs(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n_parallel: int | Literal["auto"] = "auto"
    ) -> list[Continuation]:
        """Compute the log-probabilities of continuations, each after its context.

        Args:
            pairs: Token ids of a context and of its continuation, at least one each. Common prefixes of
                successive contexts are evaluated once.
            n_parallel: Number of pairs that are evaluated at a time; "auto" chooses by the free memory.

        Raises:
            ContextOverflowError: A pair is longer than what the model was trained on.
            ValueError: One of a pair is empty.
            GenerationError: The logits contain a NaN, or llama.cpp fails.
        """
        longest = max((len(context) + len(continuation) for context, continuation in pairs), default=1)
        with self.rows(longest, n_parallel, N_OUTPUTS) as rows:
            return score(rows, pairs)

    @contextlib.contextmanager
    def rows(
        self, n_ctx: int, n_parallel: int | Literal["auto"] = "auto", n_outputs: int = 0
    ) -> Iterator[RowReader]:
        """Allocate a KV cache for the logits of many sequences, and free it at the end of the block.

        The model generates nothing else inside the block. Arguments and errors are those of `reserve`.
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
        self.engine.interrupt()

    def forget(self) -> None:
        """Empty the KV caches, so that what follows does not depend on what was evaluated before."""
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
            path: The file, which is replaced whole.
            most_bytes: Nothing is written if the file would be larger.

        Returns:
            Whether it was written.

        Raises:
            OSError: The file cannot be written; it is as before.
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
        """Fill the KV cache from a file that `save_cache` wrote: a prompt that begins with the same tokens
        continues from there.

        A file that is missing or damaged, or of another model file, `kv_type` or build of llama.cpp, is
        ignored.

        Returns:
            Number of tokens in the cache.
        """
        with self._exclusive():
            self._begin(None)
            slot = self.engine.slots[0]
            slot.load(path)
            return len(slot.tokens)

    def reserve(self, n_ctx: int, n_parallel: int | Literal["auto"] = 1, n_outputs: int = 0) -> None:
        """Reallocate the KV caches, which empties them.

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
            self.engine.context.close()  # its memory is needed
            try:
                self._use(self._make_context(n_ctx, n_parallel, n_outputs))
            except (ModelError, ValueError):
                self._use(self._make_context(*before))
                raise

    @contextlib.contextmanager
    def _exclusive(self, wait: bool = False, caller: "_Batch | None" = None) -> Iterator[None]:
        """Keep other threads out of llama.cpp; a thread does not wait for itself.

        Raises GenerationError if another thread is inside, or there was a call after that of `caller`.
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
        """Cancel what is being generated, and generate for `caller` from now on."""
        self.engine.cancel_all(_CANCELLED)
        self._caller, self._interrupted = caller, False


class _Batch:
    """A call of `answer_all`, in the thread that reads its answers."""

    def __init__(self) -> None:
        self.finish_reason: FinishReason | None = None  # of the call, not of an answer
        self._thread = threading.get_ident()

    def advance(self) -> None:
        """Leave the generation to the thread that reads the answers."""
        if self._thread == threading.get_ident():
            raise GenerationError(
                "this thread has unread answers of an earlier call: read or close them first"
            )


class Reply(Answer):
    """An `Answer` that is generated as it is read: iterate over it for its pieces of text.

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
        """Number of prompt tokens that are not evaluated yet, for a thread that shows progress."""
        return self._model.engine.unevaluated(self)

    def read(self) -> str:
        """Generate the answer to its end; return its text."""
        for _ in self:
            pass
        return self.text

    def interrupt(self) -> None:
        """End the answer at the next step; see `Model.interrupt`."""
        if self.finish_reason is None:
            self._model.interrupt()

    def advance(self) -> None:
        """Take a step, unless the answer is finished, and keep its pieces for the reader."""
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
    """Return a prompt in which a text is a user's message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def _params(params: SamplingParams | None, options: Any) -> SamplingParams:
    return replace(params or SamplingParams(), **options)
