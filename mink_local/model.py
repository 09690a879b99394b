"""A loaded GGUF model, and the generation of text."""

import codecs
import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from mink_local.constraints import Constrainer, Constraints
from mink_local.draw import Draw
from mink_local.errors import ContextOverflowError, GenerationError
from mink_local.kernels import flag_is_set
from mink_local.llamacpp import N_BATCH, RANDOM_SEED, Context, Weights
from mink_local.samplers import Greedy, MinK, Sampler
from mink_local.template import ChatTemplate, Message

if TYPE_CHECKING:
    from mink_local.graph import GraphDraw

log = logging.getLogger("mink_local")

FinishReason = Literal["stop", "length", "interrupted"]
Sampling = Literal["auto", "host", "graph"]


class Model:
    """A model that is ready to chat. Not for several threads at once; `load_model` makes one.

    n_ctx: tokens that a prompt and its answer share.
    placement: where its layers are, and why, as half a sentence.
    sampling: where tokens are drawn by default: "graph", "host", or "auto" (see `load_model`).
    """

    def __init__(
        self, name: str, weights: Weights, context: Context, placement: str, sampling: Sampling = "auto"
    ) -> None:
        self.name = name
        self.placement = placement
        self.n_ctx = context.n_ctx
        self._in_graph = sampling == "graph" or (sampling == "auto" and weights.on_gpu)
        self._weights = weights
        self._context = context
        self._context.ask_between_nodes(flag_is_set.address)
        self._template = ChatTemplate(weights)
        self._cached: list[int] = []  # the tokens that the KV cache holds for certain
        self._replies = 0  # how many were begun: only the last may go on
        if self._template.is_plain:
            log.warning("%s has no chat template: its turns are plain text (User: … Assistant: …)", name)

    def count_tokens(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that `messages` make, the opening of the answer included."""
        return len(self._template.tokens(messages))

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
    ) -> "Reply":
        """Answer a conversation: an iterator of pieces of text, which generates as it is read.

        messages: dicts with "role" and "content", as llama-cpp-python takes them.
        sampler: MinK() by default.
        temperature: > 0 divides the logits of the tokens that stand; 0 takes the largest logit.
        max_tokens: the context is the limit by default.
        seed: 0 to 2^32 - 2, by default a random one, which is `Reply.seed`. One seed gives one text,
            in any process on one machine and build, as long as the same part of the prompt is in the
            KV cache: llama.cpp's sums depend in their last bits on what is evaluated together.
        stop: strings that end the answer and are not part of it.
        constraints: penalties, logit bias, a grammar: what changes the logits before the cut.

        The KV cache is kept between calls: only what is new at the end of a conversation is
        evaluated. Raises ValueError for an option out of range, ContextOverflowError for a prompt that
        leaves no room to answer, MinkError where the chat template refuses the messages.
        """
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, not {temperature}")
        if max_tokens is not None and max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        if seed is None:
            seed = secrets.randbelow(RANDOM_SEED)
        if not 0 <= seed < RANDOM_SEED:
            raise ValueError(f"seed must be from 0 to {RANDOM_SEED - 1}, not {seed}")
        if isinstance(stop, str) or not all(stop):
            raise ValueError("stop must be a list of strings that are not empty")
        prompt = self._template.tokens(messages)
        room = self.n_ctx - len(prompt)
        if room < 1:
            raise ContextOverflowError(len(prompt), self.n_ctx)
        self._context.interrupted = False
        self._replies += 1
        return Reply(
            model=self,
            prompt=prompt,
            sampler=Greedy() if temperature == 0 else sampler or MinK(),
            temperature=temperature,
            max_tokens=min(room, max_tokens or room),
            seed=seed,
            stop=(*stop, *self._template.stop),
            constrainer=Constrainer(constraints, self._weights, prompt) if constraints else None,
        )

    def _graph_draw(
        self, sampler: Sampler, temperature: float, seed: int, constrained: bool
    ) -> "GraphDraw | None":
        """What draws inside the graph, attached; None, with a warning if it was wanted, where a token
        is to be drawn on the host."""
        self._context.detach()  # what an earlier answer may have left there
        if not self._in_graph:
            return None
        from mink_local.graph import GraphDraw, has_graph

        if constrained:
            log.warning("penalties, bias and grammar have no graph form: tokens are drawn on the host")
            return None
        if not has_graph(sampler):
            log.warning("%s has no graph form: its tokens are drawn on the host", sampler)
            return None
        draw = GraphDraw(sampler, temperature, seed, self._context)
        if draw.attach():
            return draw
        log.warning("%s: this device lacks an operation of its graph form: drawn on the host", sampler)
        return None

    def _logits_instead(self) -> bool:
        """Evaluate the last token again, for its logits; False where it was interrupted."""
        tokens = self._cached.copy()
        return self._extend(tokens[-self._rewind(tokens) :])

    def _rewind(self, tokens: Sequence[int]) -> int:
        """Forget what the KV cache holds beyond its common beginning with `tokens`; returns how many
        of those are left to evaluate. The last one always is: its logits are wanted."""
        reused = _common_prefix(self._cached, tokens[:-1])
        if not self._context.truncate(reused):  # a recurrent model cannot forget just its end
            self._context.clear()
            reused = 0
        del self._cached[reused:]
        return len(tokens) - reused

    def _extend(self, tokens: Sequence[int]) -> bool:
        """Evaluate `tokens` behind those in the KV cache; False where it was interrupted."""
        for start in range(0, len(tokens), N_BATCH):
            batch = tokens[start : start + N_BATCH]
            last = start + N_BATCH >= len(tokens)
            if not self._context.decode(batch, len(self._cached), output=last):
                return False
            self._cached += batch
        return True


class Reply(Iterator[str]):
    """An answer as it is written: iterate over it for the pieces of text.

    prompt_tokens: length of the prompt.
    evaluated_tokens: how many of those were not in the KV cache and had to be evaluated; known from
        the first piece on.
    n_tokens: tokens of the answer so far, without the one that ends it.
    k: the number of candidates at every step so far, the one that ended it included; with mirostat
        the number that it kept.
    finish_reason: "stop" (the model, or a stop string, ended it), "length" (max_tokens, or the
        context is full), "interrupted"; None while it goes on.
    """

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        sampler: Sampler,
        temperature: float,
        max_tokens: int,
        seed: int,
        stop: tuple[str, ...],
        constrainer: Constrainer | None = None,
    ) -> None:
        self.seed = seed
        self.prompt_tokens = len(prompt)
        self.evaluated_tokens = 0
        self.n_tokens = 0
        self.k: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._model = model
        self._number = model._replies
        self._max_tokens = max_tokens
        self._how = sampler, temperature, seed
        self._constrained = constrainer is not None
        self._draw = Draw(sampler, temperature, seed, model._weights.n_vocab, constrainer)
        self._pieces = self._until_stop(self._decode_utf8(self._generate(prompt)), stop)

    def __next__(self) -> str:
        return next(self._pieces)

    def interrupt(self) -> None:
        """End the answer as soon as possible, a prompt that is being read included (on a CPU).

        May be called from another thread, or from a signal handler.
        """
        self._model._context.interrupted = True

    def _generate(self, prompt: list[int]) -> Iterator[int]:
        """Decode, cut, draw, and again: the one loop that every answer comes from."""
        model, context, weights = self._model, self._model._context, self._model._weights
        self.evaluated_tokens = model._rewind(prompt)
        graph = model._graph_draw(*self._how, self._constrained)
        going = model._extend(prompt[-self.evaluated_tokens :])
        while going and not context.interrupted:
            step = len(self.k) + 1
            if graph is None:
                token, k = self._draw(context.logits(), step=step), self._draw.k
            elif (drawn := graph.next()) is not None:
                token, k = drawn, graph.k
            else:
                log.warning(
                    "the graph cannot make sure of the cut at step %d: on from here on the host", step
                )
                graph.detach()
                graph = None
                going = model._logits_instead()
                continue
            self.k.append(k)
            if weights.ends_generation(token):
                self.finish_reason = "stop"
                return
            self.n_tokens += 1
            yield token
            if self.n_tokens == self._max_tokens:
                self.finish_reason = "length"
                return
            if model._replies != self._number:
                raise GenerationError("another answer was begun on this model before this one ended")
            going = model._extend([token])
        self.finish_reason = "interrupted"

    def _decode_utf8(self, tokens: Iterable[int]) -> Iterator[str]:
        """Text as soon as its characters are whole; bytes that are none become U+FFFD."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            if text := decoder.decode(self._model._weights.piece(token)):
                yield text
        if text := decoder.decode(b"", final=True):
            yield text

    def _until_stop(self, pieces: Iterable[str], stop: tuple[str, ...]) -> Iterator[str]:
        """Text up to the first stop string; what might be the beginning of one is held back."""
        held = ""
        for piece in pieces:
            held += piece
            ends = [at for string in stop if (at := held.find(string)) >= 0]
            if ends:
                self.finish_reason = "stop"
                held = held[: min(ends)]
                break
            safe = len(held) - max((_overlap(held, string) for string in stop), default=0)
            if safe:
                yield held[:safe]
                held = held[safe:]
        if held:
            yield held


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that `string` starts with."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
