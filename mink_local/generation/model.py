"""A loaded GGUF model, and the generation of text: one answer, or many at a time."""

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from typing import Literal, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ContextOverflowError, ModelError
from mink_local.generation.answer import Answer, Prompt, Request, TextStream, are_tokens
from mink_local.generation.engine import Batch
from mink_local.generation.logprobs import Likelihood, Scorer
from mink_local.generation.parallel import make_context
from mink_local.generation.template import ChatTemplate, Message
from mink_local.llama.constraints import Constraints
from mink_local.llama.context import RANDOM_SEED, Context
from mink_local.llama.token_sampler import SamplingBuffers
from mink_local.llama.weights import Weights
from mink_local.samplers import Sampler

log = logging.getLogger("mink_local")

Sampling = Literal["auto", "host", "graph"]

_Answer = TypeVar("_Answer", bound=Answer)


class Model:
    """A model that is ready to write. Not for several threads at once; `load_model` makes one.

    n_ctx: tokens that a prompt and its answer share.
    n_parallel: for how many answers at a time there are KV caches. Where nobody has said how many, that is
        one, for `chat`, and `complete` makes others as it needs them.
    placement: where its layers are, and why, as half a sentence.
    sampling: where tokens are drawn by default: "graph", "host", or "auto" (see `load_model`).
    """

    def __init__(
        self,
        name: str,
        weights: Weights,
        context: Context,
        placement: str,
        sampling: Sampling = "auto",
        n_parallel_is_open: bool = False,
        today: date | None = None,
    ) -> None:
        self.name = name
        self.placement = placement
        # Attached samplers have llama.cpp build its graph anew, which is dear where answers come and go.
        self._chat_in_graph = sampling == "graph" or (sampling == "auto" and weights.on_gpu)
        self._batch_in_graph = sampling == "graph"
        self._weights = weights
        self._buffers = SamplingBuffers(weights.n_vocab)
        self._use(context)
        self._n_parallel_is_open = n_parallel_is_open
        self._template = ChatTemplate(weights, today)
        if self._template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def _use(self, context: Context) -> None:
        self.n_ctx, self.n_parallel = context.n_ctx, context.n_seq
        self._batch = Batch(context)
        self._many: Batch | None = None  # what `complete` makes for itself

    @property
    def _batches(self) -> list[Batch]:
        return [self._batch] if self._many is None else [self._batch, self._many]

    @property
    def can_think(self) -> bool:
        """Whether the chat template knows of thoughts, `<think>…</think>` before an answer."""
        return self._template.can_think

    @property
    def has_think_switch(self) -> bool:
        """Whether the chat template can be told to have the model think aloud or not."""
        return self._template.has_think_switch

    def opens_thought(self, messages: Sequence[Message], think: bool | None = None) -> bool:
        """Whether the prompt that messages make ends inside a thought."""
        return self._template.opens_thought(self.tokens(messages, think))

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text in which control tokens are text."""
        return self._weights.tokenize(text, add_special=False, parse_special=False)

    def texts(self, tokens: Iterable[int]) -> list[str]:
        """What every token adds to the text; nothing, where it is the beginning of a character."""
        stream = TextStream()
        return [stream.push(self._weights.piece(token)) for token in tokens]

    def logits(
        self, messages: Sequence[Message], begun: Sequence[int] = (), think: bool | None = None
    ) -> NDArray[np.float32]:
        """The raw logits (V,) of the token that follows the tokens `begun` of an answer, a copy."""
        self._batch.context.interrupted = False
        return self._batch.logits([*self.tokens(messages, think), *begun]).copy()

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of the prompt that messages make, the opening of the answer included, or of a text."""
        return len(self.tokens(prompt))

    def chat(
        self,
        messages: Sequence[Message],
        *,
        sampler: Sampler | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        constraints: Constraints | None = None,
        think: bool | None = None,
        begun: Sequence[int] = (),
    ) -> "Reply":
        """Answer a conversation: an iterator of pieces of text, which generates as it is read.

        begun: tokens that the answer begins with, which goes on from there. The other options are
        those of `Request`. One seed, which is `Reply.seed`, gives one text, in any
        process on one machine and build, as long as the same part of the prompt is in the KV cache:
        llama.cpp's sums depend in their last bits on what is evaluated together.

        The KV cache is kept between calls: only what is new at the end of a conversation is
        evaluated. Raises ValueError for an option out of range, ContextOverflowError for a prompt that
        leaves no room to answer, MinkError where the chat template refuses the messages.
        """
        request = Request(messages, sampler, temperature, max_tokens, seed, stop, constraints, think)
        prompt = self.tokens(messages, think)
        reply = self._answer(Reply, request, [*prompt, *begun], self.n_ctx)
        if reply.finish_reason == "overflow":
            raise ContextOverflowError(reply.prompt_tokens, self.n_ctx)
        reply.in_thought = self._template.opens_thought(prompt)
        self._batch.context.interrupted = False
        reply.write(self._batch, self._chat_in_graph)
        return reply

    def generate(
        self,
        prompts: Iterable[Prompt],
        *,
        sampler: Sampler | None = None,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        constraints: Constraints | None = None,
        think: bool | None = None,
    ) -> Iterator[Answer]:
        """Answer many prompts, several at a time, each on its own: answers in order of completion.

        prompts: lists of messages; texts or lists of token ids to be continued. The other options are those
        of `Request`; prompt number i has the seed `seed + i`, modulo 2^32 - 1. See `complete`.
        """
        if seed is None:
            seed = secrets.randbelow(RANDOM_SEED)
        return self.complete(
            Request(
                prompt, sampler, temperature, max_tokens, (seed + i) % RANDOM_SEED, stop, constraints, think
            )
            for i, prompt in enumerate(prompts)
        )

    def complete(self, requests: Iterable[Request]) -> Iterator[Answer]:
        """Answer many requests, `n_parallel` at a time: answers in order of completion.

        Where nobody has said how many, as many as suit memory and device, in KV caches that are made for
        them. Otherwise requests are taken from the iterable as there is room for them. What requests
        that follow each other with the same prompt have in common, the prompt and the answers as
        long as they are the same, is evaluated once; so is a beginning that prompts share.
        A prompt that does not fit the context gives an answer with the finish_reason "overflow", and
        the rest goes on. A text may differ in places from the one that `chat` gives for the same seed:
        llama.cpp's sums depend in their last bits on what is evaluated together.

        Raises ValueError and MinkError as `chat` does, and GenerationError where logits are broken.
        """
        batch = self._batch
        asked: Iterable[tuple[Request, list[int]]] = self._tokenized(requests)
        if self._n_parallel_is_open:
            asked = list(asked)
            batch = self._batch_for(asked)
        context = batch.context
        context.interrupted = False
        answers = (
            self._answer(Answer, request, prompt, context.n_ctx, index)
            for index, (request, prompt) in enumerate(asked)
        )
        written = batch.run(answers, self._batch_in_graph)
        return (answer for answer, _ in written if answer.finish_reason)

    def _tokenized(self, requests: Iterable[Request]) -> Iterator[tuple[Request, list[int]]]:
        """Requests with their prompts' tokens, which those that follow each other with one prompt share."""
        before: Request | None = None
        tokens: list[int] = []
        for request in requests:
            if before is None or (request.prompt, request.think) != (before.prompt, before.think):
                tokens = self.tokens(request.prompt, request.think)
            before = request
            yield request, tokens

    def _batch_for(self, asked: Sequence[tuple[Request, list[int]]]) -> Batch:
        """A batch with room for these requests, beside that of `chat`, which keeps its conversation."""
        if len(asked) < 2:
            return self._batch
        longest = max(len(prompt) + (request.max_tokens or self.n_ctx) for request, prompt in asked)
        n_ctx = min(longest, self.n_ctx)
        if self._many is None or self._many.context.n_ctx < n_ctx:
            self._many = None  # its memory is wanted
            self._many = Batch(make_context(self._weights, n_ctx, self._batch.context.n_threads, "auto"))
        return self._many

    def likelihoods(
        self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], n_parallel: int | Literal["auto"] = "auto"
    ) -> list[Likelihood]:
        """How likely continuations are, each after its context: pairs of token ids, of at least one each.

        Contexts that begin alike are evaluated once if they follow each other. Raises as `Scorer.score` does.
        """
        longest = max((len(context) + len(continuation) for context, continuation in pairs), default=1)
        scorer = Scorer(self._weights, longest, self._batch.context.n_threads, n_parallel)
        return sorted(scorer.score(pairs), key=lambda likelihood: likelihood.index)

    def interrupt(self) -> None:
        """End the answers that are being written as soon as possible, a prompt that is being read
        included (on a CPU), with the finish_reason "interrupted".

        May be called from another thread, or from a signal handler.
        """
        for batch in self._batches:
            batch.context.interrupted = True

    def forget(self) -> None:
        """Empty the KV caches: what is evaluated next does not depend on what was before."""
        for batch in self._batches:
            for slot in batch.slots:
                slot.cut(0)

    def reserve(self, n_ctx: int, n_parallel: int | Literal["auto"] = "auto") -> None:
        """Make anew the KV caches, for `n_parallel` answers at a time that share `n_ctx` tokens each with
        their prompts; what was in them is lost.

        See `make_context` for "auto" and for what is done where memory is short. Raises ValueError for a
        number out of range, ModelError where there is no memory for one answer.
        """
        n_ctx_before, n_parallel_before = self.n_ctx, self.n_parallel
        n_threads = self._batch.context.n_threads
        del self._batch, self._many  # their memory is wanted
        try:
            self._use(make_context(self._weights, n_ctx, n_threads, n_parallel))
            self._n_parallel_is_open = False
        except (ModelError, ValueError):
            self._use(make_context(self._weights, n_ctx_before, n_threads, n_parallel_before))
            raise

    def tokens(self, prompt: Prompt, think: bool | None = None) -> list[int]:
        """The token ids of a prompt: of messages by the chat template, the opening of the answer included;
        of a text with the beginning that the vocabulary asks for, unless it has that already.

        think: see `Request`.

        Raises ValueError for a prompt of no tokens, and of ids that the vocabulary has not.
        """
        if isinstance(prompt, str):
            begun = bool(self._weights.bos) and prompt.startswith(self._weights.bos)
            tokens = self._weights.tokenize(prompt, add_special=not begun, parse_special=True)
        elif are_tokens(prompt):
            tokens = list(prompt)
        else:
            return self._template.tokens(cast(Sequence[Message], prompt), think)
        if not tokens:
            raise ValueError("the prompt is empty")
        if not 0 <= min(tokens) <= max(tokens) < self._weights.n_vocab:
            raise ValueError(f"the prompt's token ids must be from 0 to {self._weights.n_vocab - 1}")
        return tokens

    def _answer(
        self, kind: type[_Answer], request: Request, prompt: list[int], n_ctx: int, index: int = 0
    ) -> _Answer:
        raw = isinstance(request.prompt, str) or are_tokens(request.prompt)
        stop = () if raw else self._template.stop
        return kind(request, prompt, n_ctx, self._weights, self._buffers, stop, index)


class Reply(Answer, Iterator[str]):
    """An answer as it is written: iterate over it for the pieces of text.

    in_thought: whether the prompt ended inside a thought, which the text goes on with.
    """

    in_thought = False

    def write(self, batch: Batch, in_graph: bool) -> None:
        """Have it written by `batch`, as far as it is iterated over."""
        self._batch = batch
        self._pieces = (text for _, text in batch.run([self], in_graph) if text)

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def unread_tokens(self) -> int:
        """How many tokens of the prompt are still to be evaluated; for another thread to watch."""
        pending = [len(slot.pending) for slot in self._batch.slots if self in (slot.job or ())]
        return sum(pending) if not self.k else 0

    def interrupt(self) -> None:
        """See `Model.interrupt`."""
        self._batch.context.interrupted = True
