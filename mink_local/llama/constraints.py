"""Constraints on logits before sampling: logit bias, repetition penalties, a grammar."""

import ctypes
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.llama import grammar as gbnf
from mink_local.llama.constants import check_range
from mink_local.llama.log import logged, reason
from mink_local.llama.token_data import SamplingBuffers, fill_token_data, read_token_data
from mink_local.llama.weights import Weights

SLOW_SECONDS = 1.0  # thread time for one token; an ordinary grammar takes milliseconds
_LARGE = 1e30  # sums and products of options up to this stay finite in float32; inf - inf would be NaN
_RANGES = {
    "repeat_penalty": (1 / _LARGE, _LARGE),
    "frequency_penalty": (-_LARGE, _LARGE),
    "presence_penalty": (-_LARGE, _LARGE),
    "penalty_last_n": (0, _LARGE),
    "dry_multiplier": (0, _LARGE),
    "dry_base": (1, _LARGE),
    "dry_allowed_length": (0, 2**31 - 1),
    "dry_penalty_last_n": (0, _LARGE),
}


@dataclass(frozen=True)
class Constraints:
    """Options that modify the logits before sampling, with llama.cpp's names and defaults (all off).

    They are applied in this order, all before the sampler.

    Args:
        logit_bias: Added to the logits of tokens, by token id; -inf bans a token.
        repeat_penalty: Above 0. Divides positive and multiplies negative logits of tokens that occur in the
            last `penalty_last_n`, including the prompt (as in llama.cpp's server).
        frequency_penalty: Subtracted from the logits of these tokens once per occurrence.
        presence_penalty: Subtracted from the logits of these tokens once.
        penalty_last_n: Number of tokens to look back.
        dry_multiplier: At least 0. DRY subtracts `multiplier * base ** (length - allowed_length)` from the
            logit of a token that would continue a repetition of `length` tokens.
        dry_base: At least 1.
        dry_allowed_length: Longest repetition that goes unpenalized.
        dry_penalty_last_n: Number of tokens to search for repetitions.
        dry_sequence_breakers: Texts that end a repetition.
        grammar: GBNF with the start rule `root`; the answer ends where the grammar does.
        json_schema: A JSON schema, as text or as a dict, in place of a grammar.

    Raises:
        ValueError: An option is out of range.
    """

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    grammar: str | None = None
    json_schema: str | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            check_range(name, getattr(self, name), low, high)
        for token, bias in self.logit_bias.items():
            if bias != -math.inf:
                check_range(f"logit_bias of token {token}", bias, -_LARGE, _LARGE)
        if isinstance(self.dry_sequence_breakers, str) or not all(self.dry_sequence_breakers):
            raise ValueError("dry_sequence_breakers must be a list of non-empty strings")
        if self.grammar is None:
            return
        if not self.grammar.strip():
            raise ValueError("grammar is empty: give GBNF, or omit it")
        if "\0" in self.grammar:
            raise ValueError("grammar contains a NUL character: remove it")
        if self.json_schema is not None:
            raise ValueError("grammar and json_schema are mutually exclusive: give only one")


class Constrainer:
    """Applies constraints to rows of logits, using a llama.cpp chain over the whole vocabulary.

    Args:
        prompt: Tokens seen before the first step by the penalties, but not by the grammar.

    Raises:
        ValueError: A biased token is not in the vocabulary, or llama.cpp rejects the grammar or schema.
    """

    def __init__(
        self,
        constraints: Constraints,
        weights: Weights,
        prompt: Sequence[int],
        buffers: SamplingBuffers | None = None,
    ) -> None:
        self._buffers = buffers or SamplingBuffers(weights.n_vocab)
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        # The finalizer holds the weights: the samplers read their vocabulary.
        weakref.finalize(self, lambda chain, _: C.llama_sampler_free(chain), self._chain, weights)
        for sampler in (
            _logit_bias(constraints, weights),
            C.llama_sampler_init_penalties(
                weights.n_vocab,
                _history(constraints.penalty_last_n, weights),
                constraints.repeat_penalty,
                constraints.frequency_penalty,
                constraints.presence_penalty,
            ),
            _dry(constraints, weights),
        ):
            C.llama_sampler_chain_add(self._chain, sampler)
        for token in prompt:
            self.accept(token)
        if (sampler := _grammar(constraints, weights)) is not None:
            C.llama_sampler_chain_add(self._chain, sampler)

    def apply(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the constrained logits (V,), -inf for banned tokens; valid until the next call.

        A row with a NaN is returned unchanged: a ban must not hide that a model is broken.

        Raises:
            GenerationError: The grammar took over a second, which stalls all other answers.
        """
        buffers, array = self._buffers, self._buffers.array
        if fill_token_data(logits, buffers.records):
            return logits
        array.size, array.selected, array.sorted = logits.size, -1, False
        began = time.thread_time()
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        if (seconds := time.thread_time() - began) > SLOW_SECONDS:
            raise GenerationError(f"the grammar takes {seconds:.1f} s for one token: simplify it")
        read_token_data(buffers.records, buffers.logits)
        return buffers.logits

    def accept(self, token: int) -> None:
        """Feed a sampled token to penalties and grammar; a token the grammar bans aborts the process."""
        C.llama_sampler_accept(self._chain, token)


def _history(last_n: int, weights: Weights) -> int:
    """Return `last_n`, capped at the longest context: llama.cpp allocates an entry per token."""
    return min(last_n, weights.n_ctx_train)


def _logit_bias(constraints: Constraints, weights: Weights) -> Any:
    weights.require_ids("logit_bias", constraints.logit_bias)
    biases = (C.llama_logit_bias * len(constraints.logit_bias))()
    for entry, (token, bias) in zip(biases, constraints.logit_bias.items(), strict=True):
        entry.token, entry.bias = token, bias
    return C.llama_sampler_init_logit_bias(weights.n_vocab, len(biases), biases)


def _dry(constraints: Constraints, weights: Weights) -> Any:
    breakers = [text.encode("utf-8", "replace") for text in constraints.dry_sequence_breakers]
    return C.llama_sampler_init_dry(
        weights.vocab,
        constraints.dry_multiplier,
        constraints.dry_base,
        constraints.dry_allowed_length,
        _history(constraints.dry_penalty_last_n, weights),
        (ctypes.c_char_p * len(breakers))(*breakers),
        len(breakers),
    )


def _grammar(constraints: Constraints, weights: Weights) -> Any:
    text = constraints.grammar
    if constraints.json_schema is not None:
        text = gbnf.from_json_schema(constraints.json_schema)
    if text is None:
        return None
    if not weights.trust:
        gbnf.check(text, weights.path)
    with logged(weights.verbose):
        sampler = C.llama_sampler_init_grammar(weights.vocab, text.encode("utf-8", "replace"), gbnf.ROOT)
    if not sampler:
        raise ValueError(f"the grammar does not parse: {reason()}")
    return sampler
