"""A loaded GGUF model: chat, batch generation, log-probabilities."""

import contextlib
import logging
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, GenerationError, ModelError
from mink_local.files import replaced
from mink_local.generation.answer import Answer, Piece
from mink_local.generation.decoding import Decoding, log_probabilities
from mink_local.generation.engine import Engine
from mink_local.generation.engine_thread import EngineThread, Event, Events
from mink_local.generation.request import (
    Message,
    Prompt,
    Request,
    SamplingOptions,
    SamplingParams,
    Tool,
    merged,
)
from mink_local.generation.template import ChatTemplate
from mink_local.generation.text import TextStream
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.context import Context
from mink_local.llama.weights import Weights
from mink_local.models.placement import Placed

log = logging.getLogger("mink_local")

_NEXT = SamplingParams(temperature=0.0, max_tokens=1)  # for a request that is made for its logits
_AHEAD = 2  # requests per slot that `answer_all` takes ahead, so that no slot waits for its reader


class Model:
    """A loaded model, ready to generate; created by `load_model`.

    Thread-safe: answers to all threads' requests are generated side by side, `n_parallel` at a time, by a
    thread of the model's own; more requests wait for their turn. A process that is forked from this one
    cannot use the model: load it after the fork.

    Attributes:
        name: Name of the file.
        placement: Where the layers are, and why; `str()` says it in words.
        weights: Tensors and vocabulary, read-only: n_vocab, n_ctx_train, on_gpu, chat_template, path, …
        chat_template: Jinja source of the chat template; None if the model has none.
        can_reason: Whether the chat template supports reasoning, `<think>…</think>` before an answer.
        has_thinking_switch: Whether the chat template can turn reasoning on and off (`enable_thinking`).
        supports_tools: Whether the chat template describes tools to the model.
        engine: Generates the answers.
        thread: Runs the engine; for programs that want an answer's events in a callback.
    """

    def __init__(
        self,
        name: str,
        weights: Weights,
        context: Context,
        make_context: Callable[..., Context],
        placement: Placed,
        template: ChatTemplate,
    ) -> None:
        self.name = name
        self.placement = placement
        self.weights = weights
        self._make_context = make_context
        self._template = template
        self.chat_template: str | None = weights.chat_template
        self.can_reason = template.can_reason
        self.has_thinking_switch = template.has_thinking_switch
        self.supports_tools = template.supports_tools
        self.engine = Engine(context, weights, template)
        self.thread = EngineThread(self.engine)
        self._end = weakref.finalize(self, self.thread.end, f"{name} is closed: load it again")
        self._end.atexit = False  # the thread sees to that itself
        self._n_interrupts = 0
        self._users: list[int] = []  # threads that use the weights, besides the model's
        self._changed = threading.Condition()
        self._closed = False
        if template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    @property
    def n_ctx(self) -> int:
        """Maximum tokens of a prompt plus its answer."""
        return self.engine.context.n_ctx

    @property
    def n_parallel(self) -> int:
        """Number of answers generated at a time."""
        return self.engine.context.n_seq

    def __repr__(self) -> str:
        return f"<Model {self.name}, {self.placement}>"

    def __enter__(self) -> "Model":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory, and end the child process that renders its chat template.

        Answers that are being generated end with an error, whoever waits for them.
        """
        with self._changed:
            if self._closed:
                return
            if self.thread.is_current or threading.get_ident() in self._users:
                raise GenerationError("the model is in use by this very call: close it afterwards")
            self._closed = True
            self._changed.wait_for(lambda: not self._users)
        self._end()
        self.engine.context.close()
        self.weights.close()
        self._template.close()

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Keep the model open in this block. Raises ModelError if it is closed."""
        with self._changed:
            if self._closed:
                raise ModelError(f"{self.name} is closed: load it again")
            self._users.append(threading.get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._users.remove(threading.get_ident())
                self._changed.notify_all()

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
        ((_, (row,)),) = self.rows([(tokens, 1)])
        return np.asarray(row)

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
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Answer a conversation: an iterator over pieces of text.

        It is generated whether it is read or not, unless it is closed or nobody refers to it any more.
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
            **options: Fields of `SamplingParams`, overriding those of `params`.

        Raises:
            ValueError: An option is out of range, or the messages are malformed.
            ContextOverflowError: The prompt leaves no room for an answer.
            ModelError: The model is closed.
            MinkError: The chat template refuses the messages.
        """
        request = Request(
            _conversation(messages),
            merged(params, options),
            enable_thinking,
            prefix,
            tools,
            watch,
            template_kwargs or {},
        )
        return self.reply(request)

    def complete(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams | None = None,
        **options: Unpack[SamplingOptions],
    ) -> "Reply":
        """Continue a text or token ids as they are, without the chat template.

        Args:
            prompt: A text, in which control tokens are parsed and to which the vocabulary's
                beginning-of-text token is prepended; or token ids.

        Other arguments and errors as for `chat`.
        """
        return self.reply(Request(prompt, merged(params, options)))

    def reply(self, request: Request) -> "Reply":
        """Answer a request. Errors as for `chat`."""
        with self._open():
            decoding = self.engine.prepare(request)
            if decoding.answer.finish_reason == "overflow":
                raise ContextOverflowError(decoding.answer.prompt_tokens, self.n_ctx)
            return Reply(decoding, self)

    def prepare(self, request: Request, answer: Answer | None = None) -> Decoding:
        """Make a request ready for `thread`; see `Engine.prepare`. Raises ModelError if closed."""
        with self._open():
            return self.engine.prepare(request, answer)

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
        params = merged(params, options)
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

    def answer_all(
        self,
        requests: Iterable[Request],
        *,
        ordered: bool = False,
        waiting: Callable[[], object] = lambda: None,
    ) -> Iterator[Answer]:
        """Answer many requests, `n_parallel` at a time, in order of completion or, if `ordered`, of requests.

        Requests are taken from the iterable as slots become free, a few ahead, in the thread that reads the
        answers. What successive requests have in common, prompts and answers, is evaluated once. A prompt
        that does not fit into the context yields an answer with finish_reason "overflow", a failure one with
        "error", and the others continue. A text may differ from what `chat` gives for the same seed, or from
        what it is beside other requests: llama.cpp's sums are not batch-invariant.

        Args:
            requests: The requests.
            ordered: See above.
            waiting: Called now and then while no answer has ended.

        Raises:
            ValueError: A request is malformed.
            ModelError: The model is closed.
            GenerationError: The model was closed meanwhile, or its thread has failed.
            MinkError: The chat template refuses the messages of a request.
        """
        answers = self._answers(requests, waiting, self._n_interrupts)
        return _in_order(answers) if ordered else answers

    def _answers(
        self, requests: Iterable[Request], waiting: Callable[[], object], n_interrupts: int
    ) -> Iterator[Answer]:
        ended: Events[Answer] = Events()
        given: dict[Answer, Decoding] = {}
        upcoming = enumerate(requests)

        def hear(events: Sequence[Event]) -> None:
            for answer, piece in events:
                if piece.finish_reason is not None:
                    ended.put(answer)

        def wait() -> None:
            self.thread.check()
            waiting()

        def take() -> Iterator[Decoding]:
            for index, request in islice(upcoming, max(0, 1 + (1 + _AHEAD) * self.n_parallel - len(given))):
                decoding = self.prepare(request, Answer(request, index))
                given[decoding.answer] = decoding
                if decoding.answer.finish_reason is None:
                    yield decoding
                else:
                    ended.put(decoding.answer)

        try:
            while True:
                if self._n_interrupts == n_interrupts:
                    self.thread.generate(take(), hear, bulk=True)
                if not given:
                    return
                answer = ended.get(wait)
                self.thread.check()
                if given.pop(answer).has_begun or answer.finish_reason != "interrupted":
                    yield answer
        finally:
            self.thread.cancel(given)

    def rows(
        self, sequences: Iterable[tuple[Sequence[int], int]]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Return the raw logits after the last tokens of each sequence, `n_parallel` sequences at a time.

        Several rows per sequence are faster after a `reserve` with more `n_outputs`.

        Args:
            sequences: Token ids, and the number of rows, at least 1. A prefix shared by successive sequences
                is evaluated once.

        Returns:
            An iterator over the sequences' indices and rows, float32 (rows, V), in order of completion.

        Raises:
            ContextOverflowError: A sequence leaves no room for another token.
            GenerationError: llama.cpp fails or is interrupted, or a last row has a NaN.
        """
        found: dict[int, list[NDArray[np.float32]]] = {}

        def requests() -> Iterator[Request]:
            for i, (tokens, n_rows) in enumerate(sequences):
                rows = found[i] = []
                yield Request(tokens, _NEXT, watch=partial(_keep, rows), n_rows=n_rows)

        answers = self._read(requests())
        return ((answer.index, np.stack(found.pop(answer.index))) for answer in answers)

    def logprobs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Return the log-probabilities of continuations, each after its context.

        Args:
            pairs: Token ids of a context and of its continuation, at least one each. Common prefixes of
                successive contexts are evaluated once.

        Returns:
            For each pair, the log-probability of each token of the continuation, in nats, at temperature 1.

        Raises:
            ContextOverflowError: A pair does not fit into the context.
            ValueError: A context or continuation is empty.
            GenerationError: The logits contain a NaN, or llama.cpp fails or is interrupted.
        """
        found: list[list[float]] = [[] for _ in pairs]

        def requests() -> Iterator[Request]:
            for (context, tokens), known in zip(pairs, found, strict=True):
                watch = partial(_note_logprob, tokens, known)
                yield Request([*context, *tokens[:-1]], _NEXT, watch=watch, n_rows=len(tokens))

        for index, (context, tokens) in enumerate(pairs):
            if not context or not tokens:
                raise ValueError(f"pair {index} has an empty context or continuation")
        for _ in self._read(requests()):
            pass
        return found

    def _read(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Return the answers to requests made for their logits; raise the error of one that fails."""
        return self._successful(self.answer_all(requests), self._n_interrupts)

    def _successful(self, answers: Iterator[Answer], n_interrupts: int) -> Iterator[Answer]:
        for answer in answers:
            if answer.finish_reason == "overflow":
                raise ContextOverflowError(answer.prompt_tokens, self.n_ctx)
            if answer.error is not None:
                raise GenerationError(str(answer.error)) from answer.error
            if answer.finish_reason != "interrupted":
                yield answer
        if self._n_interrupts != n_interrupts:
            raise GenerationError("interrupted")

    def interrupt(self) -> None:
        """End all answers as soon as possible, with finish_reason "interrupted".

        On a CPU, this also stops the prefill of a prompt midway. May be called from another thread or a
        signal handler.
        """
        self._n_interrupts += 1
        self.thread.cancel_all()

    def forget(self) -> None:
        """Empty the KV caches, so that later results do not depend on earlier prompts."""
        with self._open():
            self.thread.call_when_idle(self.engine.forget)

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

        def save() -> bool:
            slot = max(self.engine.slots, key=lambda slot: len(slot.tokens))
            context = self.engine.context
            if not slot.tokens or context.state_size(slot.seq_id) > most_bytes:
                return False
            with replaced(path) as unfinished:
                context.save(unfinished, slot.tokens, slot.seq_id)
            return True

        with self._open():
            return self.thread.call_when_idle(save)

    def load_cache(self, path: Path) -> int:
        """Load the KV cache from a file written by `save_cache`, for a prompt with the same beginning.

        A file that is missing, damaged, or from another model file, `kv_type` or llama.cpp build is ignored.

        Returns:
            Number of tokens in the cache.
        """

        def load() -> int:
            slot = self.engine.slots[0]
            slot.tokens = self.engine.context.load(path, slot.seq_id)
            return len(slot.tokens)

        with self._open():
            return self.thread.call_when_idle(load)

    def reserve(self, n_ctx: int, n_parallel: int | Literal["auto"] = 1, n_outputs: int = 0) -> None:
        """Reallocate the KV caches, which empties them; waits for the answers that are being generated.

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

        def reallocate() -> None:
            before = self.n_ctx, self.n_parallel, self.engine.context.n_outputs
            self.engine.context.close()  # its memory is needed
            try:
                self.engine.use(self._make_context(n_ctx, n_parallel, n_outputs))
            except (ModelError, ValueError):
                self.engine.use(self._make_context(*before))
                raise

        with self._open():
            self.thread.call_when_idle(reallocate)


class Reply(Answer):
    """An `Answer` that is being generated: iterate over it to get pieces of text.

    `async for piece in reply` works as well; if its task is cancelled, so is the reply.
    """

    __slots__ = ("_answer", "_events", "_is_read", "_model")

    def __init__(self, decoding: Decoding, model: Model) -> None:
        # It has the state of the answer that the engine fills in, without being it, so that a reply that
        # nobody refers to any more is known.
        self._answer = decoding.answer
        self.__dict__ = self._answer.__dict__
        self._model = model
        self._is_read = False
        self._events: Events[Piece] = Events()
        put = self._events.put
        model.thread.generate([decoding], lambda events: [put(piece) for _, piece in events])

    def __del__(self) -> None:
        self.interrupt()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        self._check_end(StopIteration)
        return self._next()

    def pieces(self, waiting: Callable[[], object]) -> Iterator[Piece]:
        """Yield the pieces; `waiting` is called now and then while there is none."""
        while not self._is_read:
            yield self._next(waiting)
        with contextlib.suppress(StopIteration):
            self._check_end(StopIteration)

    def _next(self, waiting: Callable[[], object] = lambda: None) -> Piece:
        def wait() -> None:
            self._model.thread.check()
            waiting()

        try:
            return self._taken(self._events.get(wait))
        except BaseException:  # Ctrl-C in a program that does not handle it
            self.interrupt()
            raise

    def __aiter__(self) -> "Reply":
        return self

    async def __anext__(self) -> Piece:
        self._check_end(StopAsyncIteration)
        try:
            return self._taken(await self._events.wait())
        except BaseException:  # the task is cancelled
            self.interrupt()
            while not self._is_read:
                self._taken(await self._events.wait())
            raise

    def _check_end(self, end: type[Exception]) -> None:
        """Raise at the end of the answer: GenerationError if it failed, else `end`."""
        if self._is_read:
            if self.error is not None:
                raise GenerationError(str(self.error)) from self.error
            raise end

    def _taken(self, piece: Piece) -> Piece:
        self._is_read = piece.finish_reason is not None
        return piece

    @property
    def unread_tokens(self) -> int:
        """Number of prompt tokens not yet evaluated, for a thread that shows progress."""
        return self._model.engine.unevaluated(self._answer)

    def read(self) -> str:
        """Wait for the end of the answer and return its text."""
        for _ in self:
            pass
        return self.text

    def interrupt(self) -> None:
        """End the answer as soon as possible; may be called from another thread or a signal handler."""
        if self.finish_reason is None:
            self._model.thread.cancel([self._answer])

    close = interrupt


def _in_order(answers: Iterator[Answer]) -> Iterator[Answer]:
    """Yield answers in the order of their requests."""
    finished: dict[int, Answer] = {}
    index = 0
    for answer in answers:
        finished[answer.index] = answer
        while index in finished:
            yield finished.pop(index)
            index += 1


def _keep(rows: list[NDArray[np.float32]], row: NDArray[np.float32]) -> None:
    rows.append(row.copy())


def _note_logprob(tokens: Sequence[int], known: list[float], row: NDArray[np.float32]) -> None:
    """Append the log-probability of the first of `tokens` that is not known yet."""
    known.append(log_probabilities(row, tokens[len(known)], 0)[0])


def _conversation(prompt: Prompt) -> Prompt:
    """Return a prompt, with a text turned into a user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
