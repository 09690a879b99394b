"""A loaded GGUF model: chat, batch generation, log-probabilities."""

import logging
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import starmap
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from mink_local.checks import Range, check_types, no_attribute, shown, spelled_out
from mink_local.errors import ContextOverflowError, GenerationError, OptionError
from mink_local.files import regular
from mink_local.generation.answer import Answer
from mink_local.generation.engine.decoding import log_probabilities
from mink_local.generation.engine.engine import Engine
from mink_local.generation.engine.kept import user_files
from mink_local.generation.engine.thread import EngineThread
from mink_local.generation.format.template import ChatTemplate
from mink_local.generation.format.text import text_decoder
from mink_local.generation.replies import Answers, Reply, Unique
from mink_local.generation.request import (
    Message,
    Prompt,
    Request,
    RequestOptions,
    SamplingParams,
    TokenIds,
    Tool,
    is_raw,
    owner_of,
    read_prompt,
    requested,
)
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constraints
from mink_local.llama.context import Context
from mink_local.llama.weights import Weights, closed
from mink_local.models.placement import Placed
from mink_local.models.recommended import recommended_by

log = logging.getLogger("mink_local")

_NEXT = SamplingParams(temperature=0.0, max_tokens=1)  # for a request that is made for its logits


class Core(NamedTuple):
    """What generates a model's answers: for this package's programs, and subject to change."""

    engine: Engine
    thread: EngineThread


_COUNTERPARTS = {  # of other libraries' methods
    "create_chat_completion": "chat(messages).as_dict() after reading it",
    **dict.fromkeys(("create_completion", "invoke"), "complete(prompt)"),
    **dict.fromkeys(("create_embedding", "embed", "encode"), "another program: there are no embeddings here"),
    **dict.fromkeys(("save_state", "load_state"), "save_cache(path, most_bytes) and load_cache(path)"),
    "load_lora": "a model file into which the adapter is merged",
    **dict.fromkeys(("batch", "generate_batch"), "generate(prompts)"),
    "n_vocab": "weights.n_vocab",
}


class Model(Unique):
    """A loaded model, ready to generate; created by `load_model`.

    Thread-safe: answers to all threads' requests are generated side by side, `n_parallel` at a time, by a
    thread of the model's own; more requests wait for their turn. A process that is forked from this one
    cannot use the model: load it after the fork.

    Attributes:
        name: Name of the file.
        placement: Where the layers are, and why; `str()` says it in words.
        weights: Tensors and vocabulary, read-only: n_vocab, n_ctx_train, on_gpu, chat_template, path, …
        chat_template: Jinja source of the chat template; None if the model has none.
        can_reason: Whether the chat template supports reasoning, such as `<think>…</think>` before an answer.
        has_thinking_switch: Whether the chat template can turn reasoning on and off.
        supports_tools: Whether the chat template describes tools to the model.
        conventions: How the model writes reasoning and calls; `str()` says it in words.
        core: For this package's programs; see `Core`.
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
        self.conventions = template.conventions
        engine = Engine(context, weights, template)
        self.core = Core(engine, EngineThread(engine))
        # Without waiting: whatever drops the model may hold a lock that the thread needs.
        self._end = weakref.finalize(self, self.core.thread.end, str(closed(name)), 0)
        self._end.atexit = False  # the thread sees to that itself
        if template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)
        elif not template.for_tools.conventions.is_understood:
            log.warning(
                "%s: the calls of its chat template are not understood: tools are shown as Hermes's "
                "(--call-style FILE describes them: docs/models.md)",
                name,
            )

    @property
    def recommended(self) -> SamplingParams | None:
        """How the model's makers recommend to sample, as its file says it; None if it does not.

        `model.chat(messages, model.recommended, temperature=5.0)` takes the cuts, and another temperature.
        """
        if (found := recommended_by(self.weights.path)) is None:
            return None
        penalties = Constraints(**found.penalties) if found.penalties else None
        return SamplingParams(sampler=found.sampler, temperature=found.temperature, constraints=penalties)

    @property
    def n_ctx(self) -> int:
        """Maximum tokens of a prompt plus its answer."""
        return self.core.engine.context.n_ctx

    @property
    def n_parallel(self) -> int:
        """Number of answers generated at a time."""
        return self.core.engine.context.n_seq

    def __repr__(self) -> str:
        return f"<Model {self.name}, {self.placement if self._end.alive else 'closed'}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _COUNTERPARTS)

    def __enter__(self) -> "Model":
        self._require_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model's memory, and end the child process that renders its chat template.

        Unfinished answers end with an error, raised to whoever is waiting for them.
        """
        if self.core.thread.is_current:
            raise GenerationError("cannot close the model from inside one of its own calls")
        self._end.detach()
        self.core.thread.end(str(closed(self.name)))
        self.core.engine.context.close()
        self.weights.close()
        self._template.close()

    def _require_open(self) -> None:
        """Raise ModelError if the model is closed."""
        if not self._end.alive:
            raise closed(self.name)

    def opens_reasoning(
        self, prompt: Prompt, enable_thinking: bool | None = None, tools: Sequence[Tool] = ()
    ) -> bool:
        """Return whether a prompt ends inside reasoning that it opens."""
        return self._template.suiting(tools).opens_reasoning(
            self.prompt_tokens(prompt, enable_thinking, tools)
        )

    def apply_chat_template(
        self,
        messages: str | Sequence[Message],
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt for a user's message, or a conversation, as text.

        Raises MinkError if the template refuses it.
        """
        self._require_open()
        return self._template.suiting(tools).text(
            cast(Any, _conversation(messages)), enable_thinking, tools, template_kwargs
        )

    def prompt_tokens(
        self,
        prompt: Prompt,
        enable_thinking: bool | None = None,
        tools: Sequence[Tool] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt; see `ChatTemplate.tokens`."""
        self._require_open()
        template = self._template.suiting(tools)
        return template.tokens(read_prompt(prompt), enable_thinking, tools, template_kwargs)

    def count_tokens(self, prompt: Prompt) -> int:
        """Return the number of tokens in a prompt; a text is raw, as in `complete`."""
        return len(self.prompt_tokens(prompt))

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text; control tokens in it count as plain text, and none are added.

        For those of control tokens, such as `<think>` in a prefix, use `prompt_tokens`.
        """
        check_types(text=(text, str))
        self._require_open()
        return self.weights.tokenize(text, add_special=False, parse_special=False)

    def detokenize(self, tokens: Iterable[int]) -> str:
        """Return the text of token ids; invalid UTF-8 becomes U+FFFD.

        Raises ValueError for ids that are not in the vocabulary.
        """
        self._require_open()
        return b"".join(map(self.weights.piece, self.weights.ids("tokens", tokens))).decode(errors="replace")

    def token_texts(self, tokens: Iterable[int]) -> list[str]:
        """Return what each token adds to the text: "" while a character is incomplete.

        Raises ValueError for ids that are not in the vocabulary.
        """
        self._require_open()
        decoder = text_decoder()
        return [decoder.decode(self.weights.piece(token)) for token in self.weights.ids("tokens", tokens)]

    def logits(
        self, prompt: Prompt, prefix: TokenIds = (), enable_thinking: bool | None = None
    ) -> NDArray[np.float32]:
        """Return the raw logits (V,) of the next token of an answer that begins with the tokens `prefix`."""
        tokens = [*self.prompt_tokens(prompt, enable_thinking), *self.weights.ids("prefix", prefix)]
        ((_, (row,)),) = read_rows(self, [(tokens, 1)])
        return np.asarray(row)

    @spelled_out(Request, SamplingParams, owner=owner_of)
    def chat(
        self,
        messages: str | Sequence[Message],
        params: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> Reply:
        """Answer a conversation. The reply is an iterator over pieces of text.

        Generation runs whether or not you read the reply, until it is closed or garbage-collected.
        The KV cache is kept between calls, so only the new end of a conversation is evaluated. A seed gives
        the same text in any process on the same machine and build, as long as the same part of the prompt is
        in the KV cache: rounding in llama.cpp depends on which tokens share a batch.

        Args:
            messages: The user's message, or a conversation: dicts with "role" and "content". If the last one
                is the assistant's, the answer continues it.
            params: How to sample the answer.
            **options: Fields of `Request`, such as `tools`, and of `SamplingParams`, which override those of
                `params`.

        Raises:
            OptionError: An option is out of range, or the messages are malformed.
            ContextOverflowError: The prompt leaves no room for an answer.
            ModelError: The model is closed.
            MinkError: The chat template refuses the messages.
        """
        return self.reply(requested(_conversation(messages), params, options))

    @spelled_out(Request, SamplingParams, owner=owner_of)
    def complete(
        self,
        prompt: str | TokenIds,
        params: SamplingParams | None = None,
        **options: Unpack[RequestOptions],
    ) -> Reply:
        """Continue a text or token ids as they are, without the chat template.

        Args:
            prompt: A text, in which control tokens are parsed and to which the vocabulary's
                beginning-of-text token is prepended; or token ids.

        Other arguments and errors as for `chat`.
        """
        request = requested(prompt, params, options)
        if not is_raw(request.prompt):
            raise OptionError("prompt", "must be a text or token ids, at least one: chat takes messages")
        return self.reply(request)

    def reply(self, request: Request) -> Reply:
        """Answer a request. Errors as for `chat`."""
        self._require_open()
        if not isinstance(request, Request):
            raise TypeError(f"reply takes a Request: chat takes messages, not {shown(request)}")
        return Reply(request, *self.core, self)

    @spelled_out(Request, SamplingParams, owner=owner_of)
    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | None = None,
        *,
        n: int = 1,
        ordered: bool = True,
        **options: Unpack[RequestOptions],
    ) -> Answers:
        """Answer many independent prompts, `n_parallel` at a time.

        Args:
            prompts: User messages (str), conversations, or lists of token ids to continue; taken as they are
                needed, see `answer_all`.
            params: How to sample the answers; answer i gets the seed `params.seed + i`, modulo 2^32 - 1.
            n: Number of answers per prompt: `Answer.prompt_index` says to which one an answer is, and
                `Answer.sample`, from 0 to n - 1, which of its answers.
            ordered: Yield the answers in the order of the prompts. Otherwise, each comes when it is complete.

        Other arguments as for `chat`, errors as for `answer_all`.
        """
        # Each character of a text would be a prompt.
        if isinstance(prompts, str | bytes | Mapping) or not isinstance(prompts, Iterable):
            raise TypeError("generate takes a list of prompts: put a single one in a list, or use chat")
        if isinstance(prompts, Sequence) and prompts and isinstance(prompts[0], Mapping | int):
            raise TypeError("generate takes a list of prompts: put the conversation or token ids in a list")
        n = Range(1, whole=True).check("n", n)
        one = requested(_conversation(""), params, options)
        first = secrets.randbelow(RANDOM_SEED) if one.params.seed is None else one.params.seed

        def request(i: int, prompt: Prompt) -> Request | ValueError:
            params = replace(one.params, seed=(first + i) % RANDOM_SEED)
            try:
                return replace(one, prompt=_conversation(prompt), params=params)
            except ValueError as error:
                return error

        repeated = (prompt for prompt in prompts for _ in range(n))
        length = len(prompts) * n if isinstance(prompts, Sized) else None
        return self._answers(starmap(request, enumerate(repeated)), ordered, length, n)

    def answer_all(
        self,
        requests: Iterable[Request],
        *,
        ordered: bool = False,
    ) -> Answers:
        """Answer many requests, `n_parallel` at a time, in order of completion or, if `ordered`, of requests.

        Requests are taken from the iterable as slots become free, in the thread that reads the answers: at
        most 1 + 2 * n_parallel of them, or 1 + 16 * n_parallel if `ordered`, before their answers are read.
        The iterable may read answers itself, to ask what follows from them. A beginning shared by successive
        requests is evaluated once. A prompt that does not fit into the context yields an answer with
        finish_reason "overflow", a malformed or failed one with "error", and the others continue. An error of
        the iterable is raised after the answers that are under way. After `interrupt`, all answers end, and
        of a list, also those never begun are told. A text may differ from what `chat` gives for the same
        seed, or from what it is beside other requests: rounding in llama.cpp depends on which tokens share a
        batch.

        Args:
            requests: The requests.
            ordered: See above.

        Returns:
            The answers, for `for` or `async for`; `close()` ends them.

        Raises:
            ModelError: The model is closed.
            GenerationError: The model was closed while generating, or its thread has failed.
        """
        if not isinstance(requests, Iterable):
            raise TypeError("answer_all takes several requests: put a single one in a list")
        length = len(requests) if isinstance(requests, Sized) else None
        return self._answers(requests, ordered, length)

    def _answers(
        self, requests: Iterable[Request | ValueError], ordered: bool, length: int | None, n: int = 1
    ) -> Answers:
        self._require_open()
        return Answers(*self.core, self, requests, ordered=ordered, length=length, n=n)

    def logprobs(self, pairs: Sequence[tuple[str | TokenIds, str | TokenIds]]) -> list[list[float]]:
        """Return the log-probabilities of continuations, each after its context.

        Args:
            pairs: A context and its continuation, of at least one token each: token ids, or texts. A context
                is tokenized by `prompt_tokens`, a continuation by `tokenize`. Common prefixes of successive
                contexts are evaluated once.

        Returns:
            For each pair, the log-probability of each token of the continuation, in nats, at temperature 1.

        Raises:
            ContextOverflowError: A pair does not fit into the context.
            ValueError: A context or continuation is empty, or has ids that are not in the vocabulary.
            GenerationError: The logits contain a NaN, or llama.cpp fails or is interrupted.
        """
        given = [self._pair(index, pair) for index, pair in enumerate(pairs)]
        found: list[list[float]] = [[] for _ in given]

        def requests() -> Iterator[Request]:
            for (context, tokens), known in zip(given, found, strict=True):
                watch = partial(_note_logprob, tokens, known)
                yield Request([*context, *tokens[:-1]], _NEXT, watch=watch, n_rows=len(tokens))

        for _ in self._read(requests()):
            pass
        return found

    def _pair(self, index: int, pair: Any) -> tuple[list[int], list[int]]:
        """Return the context and the continuation of a pair for `logprobs`. Raises ValueError."""
        parts = [*pair] if isinstance(pair, Sequence) and not isinstance(pair, str) else []
        for at, read in enumerate((self.prompt_tokens, self.tokenize)[: len(parts)]):
            if isinstance(parts[at], str):
                parts[at] = read(parts[at])
        found = [self.weights.ids(f"pairs[{index}][{at}]", part) for at, part in enumerate(parts)]
        if len(found) != 2 or not all(found):
            raise OptionError(
                f"pairs[{index}]", f"must have tokens of a context and of its continuation, not {shown(pair)}"
            )
        return found[0], found[1]

    def _read(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Yield the answers to requests made for their logits; raise the error of one that fails."""
        n_interrupts = self.core.thread.n_interrupts
        for answer in self.answer_all(requests):
            if answer.finish_reason == "overflow":
                raise ContextOverflowError(answer.prompt_tokens, self.n_ctx)
            if answer.error is not None:
                raise GenerationError(str(answer.error)) from answer.error
            if answer.finish_reason != "interrupted":
                yield answer
        if self.core.thread.n_interrupts != n_interrupts:
            raise GenerationError("interrupted")

    def interrupt(self) -> None:
        """End all answers as soon as possible, with finish_reason "interrupted".

        On a CPU, this also stops the prefill of a prompt midway. May be called from another thread or a
        signal handler.
        """
        self.core.thread.cancel()

    def forget(self) -> None:
        """Empty the KV caches, so that later results do not depend on earlier prompts."""
        self.core.thread.call_when_idle(self.core.engine.forget)

    @property
    def n_cached(self) -> int:
        """Number of tokens in the KV cache of the last prompt and its answer."""
        return len(self.core.engine.last_slot.tokens)

    def save_cache(self, path: str | PathLike[str], most_bytes: int) -> bool:
        """Write the KV cache of the last prompt and its answer to a file, for `load_cache`.

        Args:
            path: The file, which is replaced atomically; or a link to it.
            most_bytes: Nothing is written if the file would be larger.

        Returns:
            Whether the file was written.

        Raises:
            OSError: The file cannot be written, or is a pipe or a device; it is unchanged.
        """
        check_types(path=(path, str | PathLike))
        file = regular(Path(path).resolve())

        def save() -> bool:
            context, slot = self.core.engine.context, self.core.engine.last_slot
            if not (slot.tokens and context.is_copied(slot.seq_id)) or slot.n_bytes > most_bytes:
                return False
            user_files(context).write(file, slot.snapshot())
            return True

        most_bytes = Range(0, whole=True).check("most_bytes", most_bytes)
        return self.core.thread.call_when_idle(save)

    def load_cache(self, path: str | PathLike[str]) -> int:
        """Load the KV cache from a file written by `save_cache`, for a prompt with the same beginning.

        A file that is missing, damaged, another user's, or from another model file, `kv_type`, `n_parallel`
        or llama.cpp build leaves the cache empty.

        Returns:
            Number of tokens in the cache.
        """

        check_types(path=(path, str | PathLike))

        def load() -> int:
            self.core.engine.last_slot = slot = self.core.engine.slots[0]
            slot.truncate(0)
            with suppress(OSError):
                if (snapshot := user_files(self.core.engine.context).read(Path(path))) is not None:
                    slot.read(snapshot)
            return len(slot.tokens)

        return self.core.thread.call_when_idle(load)

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
            before = self.n_ctx, self.n_parallel, self.core.engine.context.n_outputs
            self.core.engine.context.close()  # its memory is needed
            try:
                self.core.engine.use(self._make_context(n_ctx, n_parallel, n_outputs))
            except BaseException:
                self.core.engine.use(self._make_context(*before))
                raise

        self.core.thread.call_when_idle(reallocate)


def read_rows(
    model: Model, sequences: Iterable[tuple[Sequence[int], int]]
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
            yield Request(tokens, _NEXT, watch=rows.append, n_rows=n_rows)

    answers = model._read(requests())
    return ((answer.index, np.stack(found.pop(answer.index))) for answer in answers)


def _note_logprob(tokens: Sequence[int], known: list[float], row: NDArray[np.float32]) -> None:
    """Append the log-probability of the first of `tokens` that is not known yet."""
    known.append(log_probabilities(row, tokens[len(known)], 0)[0])


def _conversation(prompt: Prompt) -> Prompt:
    """Return a prompt, with a text turned into a user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
