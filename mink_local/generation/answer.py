"""One answer: what was asked for, and how it grows from logits to tokens to text."""

import codecs
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.template import Message
from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.context import RANDOM_SEED
from mink_local.llama.token_sampler import SamplingBuffers, TokenSampler
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, MinK, Sampler

FinishReason = Literal["stop", "length", "interrupted", "overflow"]
Prompt = str | Sequence[Message] | Sequence[int]


def are_tokens(prompt: Sequence[Message] | Sequence[int]) -> TypeGuard[Sequence[int]]:
    return len(prompt) > 0 and isinstance(prompt[0], int)


@dataclass(frozen=True)
class Request:
    """What an answer is asked for with.

    prompt: messages, dicts with "role" and "content", which the chat template makes a prompt of; or what
        is to be continued as it is: a text, whose control tokens are read as such, or its token ids.
    sampler: MinK() by default.
    temperature: > 0 divides the logits of the tokens that stand; 0 takes the largest logit.
    max_tokens: the context is the limit by default.
    seed: 0 to 2^32 - 2; by default a random one.
    stop: strings that end the answer and are not part of it.
    constraints: penalties, logit bias, a grammar: what changes the logits before the cut.
    think: the switch of a chat template that has the model think aloud, or not; None leaves it alone, and
        a template without the switch knows nothing of it.

    Raises ValueError for an option out of range.
    """

    prompt: Prompt
    sampler: Sampler | None = None
    temperature: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stop: Sequence[str] = ()
    constraints: Constraints | None = None
    think: bool | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be a finite number of at least 0, not {self.temperature}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.seed is not None and not 0 <= self.seed < RANDOM_SEED:
            raise ValueError(f"seed must be from 0 to {RANDOM_SEED - 1}, not {self.seed}")
        if isinstance(self.stop, str) or not all(self.stop):
            raise ValueError("stop must be a list of strings that are not empty")

    @property
    def rule(self) -> Sampler:
        """The sampler that applies."""
        return Greedy() if self.temperature == 0 else self.sampler or MinK()


class Answer:
    """An answer as it grows.

    index: the place of its request among those that were given together.
    seed: what its random numbers come from.
    prompt_tokens: length of the prompt.
    evaluated_tokens: how many of those were not in the KV cache and had to be evaluated; known from
        the first piece on.
    text: all of it so far.
    tokens: the ids of the answer so far, without the one that ends it; n_tokens: how many.
    k: the number of candidates at every step so far, the one that ended it included; with mirostat
        the number that it kept.
    finish_reason: "stop" (the model, or a stop string, ended it), "length" (max_tokens, or the
        context is full), "interrupted", "overflow" (the prompt does not fit the context); None while
        it goes on.
    seconds: from when it was given a sequence to its end.
    """

    def __init__(
        self,
        request: Request,
        prompt: Sequence[int],
        n_ctx: int,
        weights: Weights,
        buffers: SamplingBuffers,
        stop: Sequence[str] = (),
        index: int = 0,
    ) -> None:
        """prompt: its tokens. n_ctx: what prompt and answer share. stop: strings that end it besides those
        of the request."""
        self.index = index
        self.request = request
        self.prompt = prompt
        self.seed = secrets.randbelow(RANDOM_SEED) if request.seed is None else request.seed
        self.prompt_tokens = len(prompt)
        self.evaluated_tokens = 0
        self.text = ""
        self.tokens: list[int] = []
        self.k: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.seconds = 0.0
        self._began = 0.0
        room = n_ctx - len(prompt)
        if room < 1:
            self.finish_reason = "overflow"
        self._max_tokens = min(room, request.max_tokens or room)
        self._weights = weights
        self._stream = TextStream((*request.stop, *stop))
        constraints = request.constraints
        constrainer = Constrainer(constraints, weights, prompt) if constraints else None
        self._draw = TokenSampler(
            request.rule, request.temperature, self.seed, weights.n_vocab, constrainer, buffers
        )

    @property
    def n_tokens(self) -> int:
        return len(self.tokens)

    def begin(self, evaluated_tokens: int) -> None:
        """It has a sequence, in which so many tokens of the prompt are to be evaluated."""
        self.evaluated_tokens = evaluated_tokens
        self._began = time.perf_counter()

    def draw(self, logits: NDArray[np.float32]) -> int:
        """The next token, drawn from raw logits (V,). Raises as `TokenSampler` does."""
        return self._draw(logits, step=len(self.k) + 1)

    def accept(self, token: int, k: int | None = None) -> str:
        """Take a token, by default one that `draw` has drawn, as the next; returns the text that has
        become certain."""
        self.k.append(self._draw.k if k is None else k)
        if self._weights.ends_generation(token):
            return self.end("stop")
        self.tokens.append(token)
        text = self._stream.push(self._weights.piece(token))
        self.text += text
        if self._stream.stopped:
            return text + self.end("stop")
        if self.n_tokens == self._max_tokens:
            return text + self.end("length")
        return text

    def end(self, reason: FinishReason) -> str:
        """Nothing follows; returns the text that was held back."""
        text = self._stream.close()
        self.text += text
        self.finish_reason = "stop" if self._stream.stopped else reason
        self.seconds = time.perf_counter() - self._began
        return text


class TextStream:
    """Text from the bytes of tokens, up to the first of the strings `stop`.

    Characters come when they are whole, bytes that are none as U+FFFD; what might be the beginning of
    a stop string is held back.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._stop = stop
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, data: bytes, final: bool = False) -> str:
        """The text that has become certain."""
        if self.stopped:
            return ""
        self._held += self._decoder.decode(data, final)
        ends = [at for string in self._stop if (at := self._held.find(string)) >= 0]
        self.stopped = bool(ends)
        if ends:
            safe = min(ends)
        elif final:
            safe = len(self._held)
        else:
            safe = len(self._held) - max((_overlap(self._held, string) for string in self._stop), default=0)
        text, self._held = self._held[:safe], self._held[safe:]
        return text

    def close(self) -> str:
        """What is left when nothing follows."""
        return self.push(b"", final=True)


def _overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that `string` starts with."""
    longest = min(len(text), len(string) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(string[:n])), 0)
