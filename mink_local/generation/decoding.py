"""An answer being generated: from logits to a token, from tokens to text."""

import secrets
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mink_local.generation.answer import Answer, FinishReason, Piece, TopLogprobs
from mink_local.generation.reasoning_budget import ReasoningBudget
from mink_local.generation.slots import logprob
from mink_local.generation.text import TextStream
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constrainer
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.token_sampler import TokenSampler
from mink_local.llama.weights import Weights
from mink_local.samplers import TopK, kernels


class Decoding:
    """Samples an answer's tokens and fills in the answer.

    The prompt ends with `Request.prefix`; the strings in `stop` end the answer, like the request's own;
    control tokens in `texts` have these texts. Raises ValueError if the constraints or the stop tokens do not
    fit the model.
    """

    def __init__(
        self,
        answer: Answer,
        prompt: Sequence[int],
        n_ctx: int,
        weights: Weights,
        buffers: SamplingBuffers,
        stop: Sequence[str],
        texts: Mapping[int, bytes],
    ) -> None:
        params = answer.request.params
        answer.seed = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed
        answer.prompt_tokens = len(prompt)
        self.answer = answer
        self.prompt = prompt
        self._params = params
        self._weights = weights
        self._texts = texts
        self._began = 0.0
        room = n_ctx - len(prompt)
        if room < 1:
            answer.finish_reason = "overflow"
        self._max_tokens = min(room, params.max_tokens or room)
        weights.require_ids("stop_token_ids", params.stop_token_ids)
        self._stop_tokens = frozenset(params.stop_token_ids)
        prefix = b"".join(map(weights.piece, answer.request.prefix))
        self._stream = TextStream((*params.stop, *stop), prefix)
        constraints = params.constraints
        self._sampler = TokenSampler(
            params.effective_sampler,
            params.temperature,
            answer.seed,
            weights.n_vocab,
            Constrainer(constraints, weights, prompt, buffers) if constraints else None,
            buffers,
        )
        self._budget: ReasoningBudget | None = None
        if params.reasoning_budget is not None and params.limits_reasoning:
            self._budget = ReasoningBudget(
                params.reasoning_budget, answer.reasoning_state, weights, answer.request.prefix
            )
        self._logprob: float | None = None
        self._top_logprobs: TopLogprobs = ()

    def begin(self, evaluated_tokens: int) -> None:
        """Start the answer in a slot where `evaluated_tokens` of the prompt have yet to be evaluated."""
        self.answer.evaluated_tokens = evaluated_tokens
        self._began = time.perf_counter()
        if self._params.prompt_logprobs is not None:  # the first token has none
            self.answer.prompt_logprobs, self.answer.prompt_top_logprobs = [None], [()]

    @property
    def has_begun(self) -> bool:
        """Whether the answer has a slot, or had one."""
        return self._began > 0

    @property
    def n_prompt_outputs(self) -> int:
        """Number of tokens at the end of the prompt whose logits are needed."""
        return 1 if self._params.prompt_logprobs is None else len(self.prompt)

    def record(self, logits: NDArray[np.float32], position: int) -> None:
        """Record a prompt token's log-probability, if requested, given raw logits, float32 (V,).

        Raises GenerationError for a NaN.
        """
        answer, count = self.answer, self._params.prompt_logprobs
        if count is not None:
            answer.prompt_logprobs.append(logprob(logits, self.prompt[position]))
            answer.prompt_top_logprobs.append(_top_logprobs(logits, count))

    def sample(self, logits: NDArray[np.float32]) -> Piece:
        """Append a token sampled from raw logits, float32 (V,); return the text that it adds.

        Raises GenerationError if a logit is NaN, none is finite, or the constraints leave no token.
        """
        if (watch := self.answer.request.watch) is not None:
            watch(logits)
        params = self._params
        token = self._budget.forced if self._budget else None
        if token is None:
            token, k = self._sampled(logits), self._sampler.k
        else:
            self._sampler.accept(token)
            k = 0
        if params.logprobs is not None:
            self._logprob = logprob(logits, token)
            self._top_logprobs = _top_logprobs(logits, params.logprobs)
        return self.append(token, k)

    def _sampled(self, logits: NDArray[np.float32]) -> int:
        params, step = self._params, len(self.answer.tokens) + 1
        if params.ignore_eos or step <= params.min_tokens:
            logits = self._without_ends(logits, step <= params.min_tokens)
        return self._sampler(logits, step)

    def append(self, token: int, k: int) -> Piece:
        """Append a token sampled from k candidates, or forced (k = 0); return the text now certain."""
        answer = self.answer
        if token in self._stop_tokens or self._weights.ends_generation(token):
            answer.stopped_by = token if token in self._stop_tokens else None
            piece = self._piece("", token, k, "stop")
            piece.is_end_token = True
            return piece
        answer.tokens.append(token)
        answer.k.append(k)
        if self._budget is not None:
            self._budget.add(token)
            answer.reasoning_cut = self._budget.is_used_up
        if self._logprob is not None:
            answer.logprobs.append(self._logprob)
            answer.top_logprobs.append(self._top_logprobs)
        text = self._stream.push(self._texts.get(token) or self._weights.piece(token))
        if self._stream.stopped_by is not None:
            return self._piece(text, token, k, "stop")
        if len(answer.tokens) == self._max_tokens:
            return self._piece(text, token, k, "length")
        return self._piece(text, token, k)

    def end(self, reason: FinishReason, error: str | None = None) -> Piece:
        """End the answer; return the text that was held back."""
        self.answer.error = error
        return self._piece("", None, 0, reason)

    def _piece(self, text: str, token: int | None, k: int, reason: FinishReason | None = None) -> Piece:
        answer = self.answer
        if reason is not None:
            text += self._stream.close()
            answer.finish_reason = reason
            if self._stream.stopped_by is not None:
                answer.finish_reason = "stop"
                answer.stopped_by = self._stream.stopped_by
            answer.seconds = time.perf_counter() - self._began if self._began else 0.0
        answer.text += text
        piece = Piece(text)
        piece.token, piece.k = token, k
        if token is not None:
            piece.logprob, piece.top_logprobs = self._logprob, self._top_logprobs
        return piece

    def _without_ends(self, logits: NDArray[np.float32], too_short: bool) -> NDArray[np.float32]:
        """Return the logits with the model's end tokens banned; if `too_short`, also the request's own."""
        banned = self._weights.end_tokens | (self._stop_tokens if too_short else frozenset())
        ids = [token for token in banned if not np.isnan(logits[token])]  # must not hide a NaN
        row = logits.copy()
        row[ids] = -np.inf
        return row


def _top_logprobs(logits: NDArray[np.float32], count: int) -> TopLogprobs:
    """Return the most probable tokens with their log-probabilities."""
    if count == 0:
        return ()
    ids, largest = TopK(count).candidates(logits)
    first = float(kernels.log_probability(logits, int(ids[0])))
    differences = largest.astype(np.float64) - largest[0]
    return tuple(zip(ids.tolist(), (first + differences).tolist(), strict=True))
