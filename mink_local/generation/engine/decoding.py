"""An answer being generated: from logits to a token, from tokens to text."""

import math
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.checks import shown
from mink_local.errors import GenerationError, OptionError
from mink_local.generation.answer import Answer, FinishReason, Loop, Piece, Splitter, TopLogprobs
from mink_local.generation.format.reasoning_budget import (
    CLOSING,
    LOOP_CLOSING,
    ReasoningBudget,
    before_constrained,
    closing,
)
from mink_local.generation.format.text import ReasoningSplitter, text_decoder
from mink_local.generation.format.tool_calls import ToolParser
from mink_local.generation.loops import LoopFinder
from mink_local.generation.request import Edit
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constrainer
from mink_local.llama.guide import Guide
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.samplers import kernels
from mink_local.samplers.base import scratch

_LARGEST = np.finfo(np.float32).max


class CacheFile(NamedTuple):
    """A file with the cache of a prompt's beginning: how many tokens that has, and the file's bytes."""

    path: Path
    n_tokens: int
    n_bytes: int


class Decoding:
    """Samples an answer's tokens and fills in the answer.

    Args:
        answer: The answer.
        prompt: Token ids; the last ones are `Request.prefix`.
        reasoning: Separates reasoning from the answer's content; it has read what stands before the prefix.
        parser: Finds tool calls in the content; None if there can be none.
        stop: Strings that end the answer, like the request's own.
        texts: Texts of control tokens that stand around reasoning, or are part of tool calls.

    Attributes:
        client: Who asks for the answer: those of several clients wait in turn.
        turn: When it is this one's.
        cache_file: Has a beginning of the prompt; None if it need not be read.
        places: Where in the prompt to make checkpoints.
        stop_tokens: The token ids that end the answer, besides the model's own.
        sampler: What samples the next token: reasoning and the answer may have a sampler each.
        must_follow: The token ids that come next, whatever is sampled.
        ahead: Those of them that are evaluated, and appended when somebody has looked at their logits.

    Raises:
        ValueError: The constraints, the prefix or the stop tokens do not fit the model.
    """

    def __init__(
        self,
        answer: Answer,
        prompt: Sequence[int],
        weights: Weights,
        buffers: SamplingBuffers,
        reasoning: ReasoningSplitter,
        parser: ToolParser | None,
        stop: Sequence[str],
        texts: Mapping[int, bytes],
    ) -> None:
        request = answer.request
        params = request.params
        answer.seed = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed % RANDOM_SEED
        answer.prompt = prompt
        self.answer = answer
        self.client = ""
        self.turn = 0
        self.cache_file: CacheFile | None = None
        self.places: Sequence[int] = ()
        self.must_follow: deque[int] = deque()
        self.ahead: deque[int] = deque()
        self._params = params
        self._weights = weights
        self._texts = texts
        self._max_tokens = 0
        self.stop_tokens = frozenset(weights.ids("stop_token_ids", params.stop_token_ids))
        constrainer, prefix = Constrainer(), list(request.prefix)
        if params.constraints is not None:
            given = prompt[: len(prompt) - len(prefix)]
            asked = request.enable_thinking, params.reasoning_budget
            before = before_constrained(params.constraints, reasoning, texts, *asked)
            constrainer = Constrainer(params.constraints, weights, given, prefix, before)
        self._constrainer = constrainer
        self._decoder = text_decoder()
        self._splitter = Splitter(reasoning, parser, reasoning_in_content=not request.split_reasoning)
        self._budget = ReasoningBudget(params.reasoning_budget)
        self._read_prefix(prefix)
        # Without `self`: a circle would keep a dropped model in memory until the next garbage collection.
        self._splitter.stop_at(
            (*params.stop, *stop),
            lambda text: len(answer.tokens) > params.min_tokens and constrainer.may_end(answer.text + text),
        )
        settings = [(params, answer.seed)]  # of the answer and, if they are others, of reasoning
        if params.has_phases:
            settings.append((params.while_reasoning, (answer.seed + RANDOM_SEED // 2) % RANDOM_SEED))
        shared = weights.n_vocab, constrainer, buffers
        self._samplers = [
            TokenSampler(each.effective_sampler, each.temperature, seed, *shared) for each, seed in settings
        ]
        self.sampler = self._samplers[0]
        self._loops = LoopFinder()  # of the reasoning, and then of what follows
        self._note_phase()
        self._looks_on = request.watch is not None or params.logprobs is not None
        # Until the answer has its least length, and from then on.
        self._bans: tuple[NDArray[np.int32], ...] = ()
        if params.ignore_eos or params.min_tokens > 0:
            ends = weights.end_tokens if params.ignore_eos else frozenset[int]()
            self._bans = tuple(
                np.array(list(each), np.int32) for each in (weights.end_tokens | self.stop_tokens, ends)
            )
        self._logprob: float | None = None
        self._top_logprobs: TopLogprobs = ()

    def _read_prefix(self, tokens: Sequence[int]) -> None:
        """Read what the answer begins with, perhaps also a part of what ends its reasoning."""
        pieces = []
        self._end_used_up_reasoning()
        for token in tokens:
            if self.must_follow and self.must_follow.popleft() != token:  # it goes on in its own way
                self.must_follow.clear()
                self.answer.reasoning_cut = False
            pieces.append(self._splitter.feed(self._text_of(token)))
            self._end_used_up_reasoning()
        prefix = self.answer.prefix = Piece("".join(pieces))
        prefix.reasoning = "".join(piece.reasoning for piece in pieces)
        prefix.content = "".join(piece.content for piece in pieces)

    def begin(self, evaluated_tokens: int, n_ctx: int) -> None:
        """Start the answer in a slot of `n_ctx` tokens, `evaluated_tokens` of the prompt not yet in it."""
        self.answer.evaluated_tokens = evaluated_tokens
        self.answer.began = time.perf_counter()
        room = n_ctx - self.answer.prompt_tokens
        most = self._params.max_tokens
        self._max_tokens = room if most is None else min(room, most)
        if self._params.prompt_logprobs is not None:  # the first token has none
            self.answer.prompt_logprobs, self.answer.prompt_top_logprobs = [None], [()]

    @property
    def n_prompt_outputs(self) -> int:
        """Number of tokens at the end of the prompt whose logits are needed."""
        n_tokens = self.answer.prompt_tokens
        return min(self.answer.request.n_rows, n_tokens) if self._params.prompt_logprobs is None else n_tokens

    def record(self, logits: NDArray[np.float32], position: int) -> Iterator[Piece]:
        """Take raw logits, float32 (V,), after `position` tokens: of the prompt, or before one of `ahead`.

        Yields the text that such a token adds. Raises GenerationError for a NaN, if log-probabilities are
        wanted.
        """
        answer, count = self.answer, self._params.prompt_logprobs
        if position > answer.prompt_tokens - answer.request.n_rows:
            self._show(logits)
        if position >= answer.prompt_tokens:
            yield self._append_seen(logits, self.ahead.popleft(), 0)
        elif count is not None:
            logprob, top = log_probabilities(logits, answer.prompt[position], count)
            answer.prompt_logprobs.append(logprob)
            answer.prompt_top_logprobs.append(top)

    def forced(self) -> int | None:
        """Return the token that must come next, if there is one, instead of a sampled one.

        Raises NoTokenLeftError if the constraints leave none.
        """
        # After the first token, `take_from` has seen to all that the constraints leave no choice about.
        return self._forced() if self.must_follow or not self.answer.tokens else None

    def take_from(self, logits: NDArray[np.float32], token: int | None, k: int) -> Iterator[Piece]:
        """Append the token that comes after raw logits, float32 (V,), and those that must follow it.

        Yields the text that each adds. Those whose logits are looked at wait for these in `ahead`.

        Args:
            logits: The logits.
            token: The token; None if it has to be sampled here.
            k: From how many candidates a `RowSampler` sampled it; 0 if it is forced, below 0 if it could not.

        Raises GenerationError if a logit is NaN, none is finite, or the constraints leave no token.
        """
        self._show(logits)
        if token is None or k < 0:  # a row that cannot be sampled from raises the error here
            row = edited(logits, self.answer.request.edit)
            token, k = self.sampler(row, self.answer.n_tokens + 1), self.sampler.k
        elif k > 0:
            self.sampler.took(token, k)
        yield self._append_seen(logits, token, k)
        while self.answer.finish_reason is None and len(self.ahead) < self.n_left:
            if (token := self._forced()) is None:
                return
            if self._looks_on:
                self.ahead.append(token)
            else:
                yield self.append(token, 0)

    def _append_seen(self, logits: NDArray[np.float32], token: int, k: int) -> Piece:
        """Append a token, with its log-probability if that is wanted."""
        if self._params.logprobs is not None:
            self._logprob, self._top_logprobs = log_probabilities(logits, token, self._params.logprobs)
        return self.append(token, k)

    def _show(self, logits: NDArray[np.float32]) -> None:
        """Let the request watch logits: a copy, as they are llama.cpp's, and other answers may share them."""
        if (watch := self.answer.request.watch) is not None:
            watch(logits.copy())

    def take(self, token: int, k: int) -> Iterator[Piece]:
        """Append a token that a `RowSampler` has sampled, of an answer that need not be told at once.

        Yields the text that it adds.
        """
        self.sampler.took(token, k)
        yield self.append(token, k)

    @cached_property
    def is_compiled(self) -> bool:
        """Whether a `RowSampler` can sample its tokens."""
        is_own = all(each.program is not None for each in self._samplers)
        return self.answer.request.edit is None and is_own

    @property
    def is_told_at_once(self) -> bool:
        """Whether the next token depends on the text, or something looks at each row of logits."""
        depends = self._constrainer.guide is not None or len(self.must_follow) > 0
        return depends or self._looks_on or not self.is_compiled

    @property
    def guide(self) -> Guide | None:
        """The guide of whose masks a `RowSampler` needs the next, if there is one."""
        return self._constrainer.guide if self.is_compiled else None

    @property
    def has_phases(self) -> bool:
        """Whether `sampler` changes between reasoning and the answer."""
        return len(self._samplers) > 1

    @property
    def is_banning(self) -> bool:
        """Whether it bans tokens that would end it."""
        return bool(self._bans)

    def update_bans(self) -> None:
        """Ban what must not be the next token."""
        self.sampler.banned = self._bans[self.answer.n_tokens >= self._params.min_tokens]

    @property
    def n_left(self) -> int:
        """Number of tokens until the answer has its greatest length."""
        return max(1, self._max_tokens - self.answer.n_tokens)

    def _forced(self) -> int | None:
        """Return the token that must come next, if there is one, having told the sampler."""
        if not self.must_follow and (forced := self._constrainer.forced()):
            self.must_follow.extend(takewhile(lambda token: token not in self.stop_tokens, forced))
        if not self.must_follow:
            return None
        token = self.must_follow.popleft()
        self._constrainer.accept(token)
        return token

    def append(self, token: int, k: int) -> Piece:
        """Append a token sampled from k candidates, or forced (k = 0); return the text now certain."""
        answer = self.answer
        if self._max_tokens == 0:
            return self.end("length")
        if self._ends(token):
            answer.stopped_by = token if token in self.stop_tokens else None
            piece = self._piece("", token, k, "stop")
            piece.is_end_token = True
            return piece
        answer.tokens.append(token)
        answer.k.append(k)
        if self._logprob is not None:
            answer.logprobs.append(self._logprob)
            answer.top_logprobs.append(self._top_logprobs)
            for each in (token, *(each for each, _ in self._top_logprobs)):
                answer.token_bytes[each] = self._weights.piece(each)
        text = self._text_of(token)
        reason: FinishReason | None = "length" if len(answer.tokens) == self._max_tokens else None
        if self._loops.since is None and self._loops.feed(text):
            reason = self._note_loop() or reason
        if self._constrainer.is_over and not self.ahead:
            reason = "stop"
        piece = self._piece(text, token, k, reason)
        self._note_phase()
        if self._splitter.in_reasoning:
            answer.n_reasoning += 1
            self._end_used_up_reasoning()
        return piece

    def _text_of(self, token: int) -> str:
        """Return the text that the next token adds; count it if it is reasoning."""
        text = self._decoder.decode(self._texts.get(token) or self._weights.piece(token))
        if self._splitter.in_reasoning:
            self._budget.add(text)
        return text

    def _note_phase(self) -> None:
        """Have the next token sampled as its phase wants, which the text has got to."""
        reasons, borders = self._splitter.reasons, self.answer.phase_borders
        if reasons != len(borders) % 2:
            borders.append(self.answer.n_tokens)
            self.sampler = self._samplers[-1 if reasons else 0]
            self._loops = LoopFinder(self.answer.n_tokens)

    def _note_loop(self) -> FinishReason | None:
        """Note where the text repeats itself, and end it if that is wanted; return why the answer ends."""
        in_reasoning, wanted = self._splitter.reasons, self._params.end_loops
        is_ended = wanted == "all" or (wanted == "reasoning" and in_reasoning)
        self.answer.loops.append(Loop(self._loops.since or 0, in_reasoning, is_ended))
        if not is_ended:
            return None
        if not in_reasoning:
            return "repetition"
        self._end_reasoning(LOOP_CLOSING)
        return None

    def _end_used_up_reasoning(self) -> None:
        if self._splitter.in_reasoning and self._budget.is_used_up:
            self._end_reasoning(CLOSING if self._params.reasoning_budget else "")

    def _end_reasoning(self, default: str) -> None:
        """Have what ends the reasoning follow, unless that has begun: a message, and the closing tag."""
        if not (self.must_follow or self.ahead):
            asked = self._params.reasoning_message
            message = default if asked is None or not default else asked and f"\n\n{asked}"
            self.must_follow.extend(closing(self._weights, self._splitter.marks, message))
            self.answer.reasoning_cut = True

    def end(self, reason: FinishReason, error: Exception | None = None) -> Piece:
        """End the answer; return the text that was held back."""
        self.answer.error = error
        return self._piece("", None, 0, reason)

    def _ends(self, token: int) -> bool:
        """Return whether a token ends the answer; a stop token with a text only where a stop string may."""
        if token in self._weights.end_tokens:
            return True
        if token not in self.stop_tokens:
            return False
        if self._weights.piece(token) and not self._splitter.in_content:
            return False
        return self._constrainer.may_end(self.answer.text + self._splitter.waiting)

    def _piece(self, text: str, token: int | None, k: int, reason: FinishReason | None = None) -> Piece:
        answer = self.answer
        is_final, is_cut = reason is not None, reason not in (None, "stop")
        if is_final:
            text += self._decoder.decode(b"", final=True)
        piece = self._splitter.feed(text, is_final=is_final, is_cut=is_cut)
        if self._splitter.stopped_by is not None:
            reason, answer.stopped_by = "stop", self._splitter.stopped_by
        if reason is not None:
            answer.seconds = time.perf_counter() - answer.began if answer.began else 0.0
            answer.has_cut_call = self._splitter.has_cut_call
            piece.finish_reason = answer.finish_reason = reason
        piece.token, piece.k = token, k
        if token is not None and self._logprob is not None:
            piece.logprob, piece.top_logprobs = self._logprob, self._top_logprobs
        answer.add(piece)
        return piece


def edited(logits: NDArray[np.float32], edit: Edit | None) -> NDArray[np.float32]:
    """Return what a request's `edit` makes of raw logits (V,). Raises OptionError if that is no row."""
    if edit is None:
        return logits
    row = logits.copy()
    found = edit(row)
    row = np.asarray(row if found is None else found)
    if row.shape != logits.shape or row.dtype.kind not in "fiu":
        raise OptionError(
            "edit", f"must change its array, or return logits {logits.shape}, not {shown(found)}"
        )
    row = np.ascontiguousarray(row, np.float32)
    if np.isnan(row).any() > np.isnan(logits).any() or (row > -np.inf).any() < (logits > -np.inf).any():
        raise OptionError("edit", "must make no logit NaN, and leave one that is not -inf")
    return row


def log_probabilities(logits: NDArray[np.float32], token: int, count: int) -> tuple[float, TopLogprobs]:
    """Return a token's log-probability at temperature 1, and those of the `count` most probable tokens.

    Raises:
        GenerationError: A logit is NaN, or none is finite.
    """
    workspace = scratch(logits.size)
    work, ids = workspace.work, workspace.ids
    total = float(kernels.log_total(logits, work))
    if math.isnan(total):
        raise GenerationError("the model's logits contain a NaN: its file is damaged")

    def log_probability(token: int) -> float:
        return float(min(logits[token], _LARGEST)) - total

    k = kernels.top_k(logits, np.array([count], np.float64), work, ids) if count else 0
    pairs = [(token, log_probability(token)) for token in ids[:k].tolist()]
    return log_probability(token), tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))
