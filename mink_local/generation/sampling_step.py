"""One step of an answer: its candidates, the cliff, what each method keeps, how surprising its token is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.weights import Weights
from mink_local.samplers import Eta, Greedy, MinK, MinP, Mirostat, PLess, Sampler, TopK, TopNSigma, TopP

METHODS: tuple[Sampler, ...] = (
    MinK(),
    TopNSigma(),
    MinP(),
    MinP(order="temperature-last"),
    TopP(),
    TopP(order="temperature-last"),
    TopK(),
    Eta(),
    PLess(),
)
"""Methods that a step is compared by; min-p and top-p as in their papers, then as by default in llama.cpp."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SamplingStep:
    """The candidates of one step, largest logit first; ranks count from 0.

    Attributes:
        row: The logits (V,) as the sampler saw them: under bias, penalties and grammar.
        ids: Tokens with a finite logit in `row`; the arrays below are parallel to this one.
        logits: Their logits in `row`.
        own: The model's own logits, before bias, penalties and grammar.
        weights: Those of Min-k, after each candidate; NaN for the last.
        p: Probabilities at temperature 1, before the cut.
        temperature: Above 0.
        sampler: The sampler of the step.
        k: How many candidates it keeps.
        methods: The methods of `kept`.
        sampled: The rank of the sampled token.
    """

    row: NDArray[np.float32]
    ids: NDArray[np.int64]
    logits: Floats
    own: Floats
    weights: Floats
    p: Floats
    temperature: float
    sampler: Sampler
    k: int
    methods: tuple[Sampler, ...]
    sampled: int

    @property
    def cliff(self) -> int:
        """The number of candidates before the largest weighted drop."""
        return int(np.nanargmax(self.weights)) + 1 if len(self.ids) > 1 else 1

    @cached_property
    def p_hot(self) -> Floats:
        """Probabilities at `temperature`, before the cut."""
        return _softmax(self.logits / self.temperature)

    @cached_property
    def p_sampled(self) -> Floats:
        """The probabilities that the token is sampled with: at `temperature`, after the cut."""
        kept = np.zeros(len(self.ids))
        kept[: self.k] = _softmax(self.logits[: self.k] / self.temperature)
        return kept

    @cached_property
    def kept(self) -> dict[str, int]:
        """The number of candidates that each method keeps at `temperature`, by its name with options."""
        return {str(method): n for method, n in self._kept}

    @cached_property
    def _kept(self) -> list[tuple[Sampler, int]]:
        return [(method, method.cutoff(self.row, self.temperature)) for method in self.methods]

    @property
    def cuts(self) -> list[tuple[str, int]]:
        """The number of candidates that each method keeps, by a short name; orders are one at T = 1."""
        return list({_short(method, self.temperature): n for method, n in self._kept}.items())

    @property
    def entropy(self) -> float:
        """The entropy of the model's probabilities at temperature 1, in bits."""
        return _entropy(self.p)

    @property
    def surprise(self) -> float:
        """-log2 of the sampled token's probability at temperature 1, in bits."""
        return _surprise(self.p[self.sampled])

    @property
    def is_constrained(self) -> bool:
        """True if bias, penalties or a grammar changed a logit."""
        return len(self.ids) < self.row.size or not np.array_equal(self.own, self.logits)

    def at(self, temperature: float) -> "SamplingStep":
        """Return the step as it would be at another temperature > 0; nothing is sorted again."""
        k = self.sampler.cutoff(self.row, temperature) if self.sampler.order else self.k
        return replace(self, temperature=temperature, k=k)

    def shown_ranks(self, rows: int) -> list[int]:
        """Return the ranks that a table of so many rows shows: the first, and the sampled one."""
        first = list(range(min(rows, len(self.ids))))
        return first if self.sampled < len(first) else [*first[:-1], self.sampled]


def sampling_step(
    logits: NDArray[np.float32],
    sampled: int,
    temperature: float,
    methods: Sequence[Sampler] = METHODS,
    *,
    sampler: Sampler | None = None,
    k: int | None = None,
    own: NDArray[np.float32] | None = None,
) -> SamplingStep:
    """Return the candidates of a step, and what methods keep.

    Args:
        logits: (V,) as the sampler sees them.
        sampled: Id of the sampled token, whose logit must be finite.
        temperature: Of the sampler; 0 is greedy, which the methods are compared with at temperature 1.
        methods: The methods to compare.
        sampler: The sampler of the step; None is Min-k.
        k: How many candidates the sampler kept, if that is known; Mirostat's own number depends on the steps
            before.
        own: The model's own logits (V,), if bias, penalties or a grammar changed them.
    """
    sampler = Greedy() if temperature == 0 else sampler or MinK()
    temperature = temperature or 1.0
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    order = order[np.isfinite(logits[order])]
    ordered = logits[order].astype(np.float64)
    span = ordered[0] - ordered[-1] + 1e-8
    gaps = np.append(ordered[:-1] - ordered[1:], np.nan)
    if k is None or not isinstance(sampler, Mirostat):
        k = sampler.cutoff(logits, temperature)
    return SamplingStep(
        row=logits,
        ids=order,
        logits=ordered,
        own=ordered if own is None else own[order].astype(np.float64),
        weights=gaps / span / np.arange(1, len(order) + 1),
        p=_softmax(ordered),
        temperature=temperature,
        sampler=sampler,
        k=k,
        methods=tuple(methods),
        sampled=int(np.flatnonzero(order == sampled)[0]),
    )


def compared_with(sampler: Sampler) -> list[Sampler]:
    """Return the methods to compare a sampler with: `METHODS`, where it takes the place of its like."""
    like = [method for method in METHODS if (method.name, method.order) == (sampler.name, sampler.order)]
    return [sampler if method in like else method for method in METHODS]


@dataclass(frozen=True)
class TokenFigures:
    """Figures of a token in the model's own distribution: at temperature 1, before constraints and cut.

    Attributes:
        surprise: -log2 of the token's probability, in bits.
        entropy: Of the distribution, in bits.
        rank: 1 for the largest logit.
        top_p: How many candidates top-p keeps at p = 0.9.
    """

    surprise: float
    entropy: float
    rank: int
    top_p: int


def token_figures(logits: NDArray[np.float32], token: int) -> TokenFigures:
    """Return the figures of a token for the model's own logits (V,) of its step."""
    row = logits.astype(np.float64)
    p = _softmax(np.where(np.isfinite(row), row, -np.inf))
    return TokenFigures(
        surprise=_surprise(p[token]),
        entropy=_entropy(p),
        rank=int((row > row[token]).sum()) + 1,
        top_p=TopP().cutoff(logits),
    )


class ConstrainedRows:
    """The logits of an answer's steps under its constraints, in any order of the steps.

    Args:
        constraints: Those of the answer.
        weights: The model.
        prompt: Token ids before the answer.
        tokens: Token ids of the answer.
    """

    def __init__(
        self, constraints: Constraints, weights: Weights, prompt: Sequence[int], tokens: Sequence[int]
    ) -> None:
        self._make = partial(Constrainer, constraints, weights, prompt)
        self._has_grammar = constraints.grammar is not None or constraints.json_schema is not None
        self._tokens = tokens
        self._constrainer, self._at = self._make(), 0
        self._allowed = 0  # the grammar is known to allow so many tokens; it aborts at one that it bans
        self._anything = np.zeros(weights.n_vocab, np.float32)

    def row(self, logits: NDArray[np.float32], at: int) -> NDArray[np.float32]:
        """Return the logits (V,) of step `at` as its sampler saw them.

        Raises:
            ValueError: The grammar does not allow the tokens before it.
        """
        if at < self._at:
            self._constrainer, self._at = self._make(), 0
        for token in self._tokens[self._at : at]:
            if self._has_grammar and self._at >= self._allowed:
                if not np.isfinite(self._constrainer.apply(self._anything)[token]):
                    raise ValueError(f"the grammar does not allow token {self._at + 1} of the answer")
                self._allowed = self._at + 1
            self._constrainer.accept(token)
            self._at += 1
        return self._constrainer.apply(logits).copy()


def _short(method: Sampler, temperature: float) -> str:
    if method.order is None or temperature == 1:
        return method.name
    return f"{method.name}, T {method.order.removeprefix('temperature-')}"


def _entropy(p: Floats) -> float:
    positive = p[p > 0]
    return float(-(positive * np.log2(positive)).sum())


def _surprise(p: float) -> float:
    return float(-np.log2(max(p, np.finfo(float).tiny)))


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
