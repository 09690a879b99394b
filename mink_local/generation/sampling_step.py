"""One step of an answer: its candidates, the cliff, and what each sampler keeps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mink_local.llama.constraints import Constrainer, Constraints
from mink_local.llama.token_data import SamplingBuffers
from mink_local.llama.weights import Weights
from mink_local.samplers import Chain, Greedy, MinK, Sampler

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class SamplingStep:
    """The candidates of one step, largest logit first; ranks count from 0.

    Attributes:
        row: The logits (V,) as the sampler saw them: after bias, penalties and grammar.
        ids: Tokens with a finite logit in `row`; the arrays below are parallel to this one.
        logits: Their logits.
        p: Probabilities at temperature 1, before the cut.
        temperature: Above 0.
        sampler: The sampler used for the step.
        first: The first rank that it keeps.
        k: The number of candidates it keeps, from that rank on.
        compared: The samplers in `kept`.
        sampled: The rank of the sampled token.
    """

    row: NDArray[np.float32]
    ids: NDArray[np.int64]
    logits: Floats
    p: Floats
    temperature: float
    sampler: Sampler
    first: int
    k: int
    compared: tuple[Sampler, ...]
    sampled: int

    @cached_property
    def weights(self) -> Floats:
        """Min-k's weight of the drop after each candidate, by the sampler's options; NaN for the last."""
        min_k = next((each for each in self.sampler.members if isinstance(each, MinK)), MinK())
        ranks = np.arange(1.0, len(self.ids) + 1)
        decay = np.log(ranks + 1) if min_k.decay == "log" else ranks**min_k.alpha
        spread = self.logits[0] - self.logits[-1] + 1e-8 if min_k.normalize else 1.0
        return np.append(self.logits[:-1] - self.logits[1:], np.nan) / spread / decay

    @property
    def cliff(self) -> int:
        """The number of candidates before the largest weighted drop."""
        return int(np.nanargmax(self.weights)) + 1 if len(self.ids) > 1 else 1

    @cached_property
    def p_sampled(self) -> Floats:
        """Probabilities at `temperature`, after the cut: those the token is sampled with."""
        kept = np.zeros(len(self.ids))
        run = slice(self.first, self.first + self.k)
        kept[run] = _softmax(self.logits[run] / self.temperature)
        return kept

    def keeps(self, rank: int) -> bool:
        """Return whether the sampler keeps a candidate."""
        return self.first <= rank < self.first + self.k

    @cached_property
    def kept(self) -> dict[Sampler, int]:
        """The number of candidates that each of the `compared` samplers keeps at `temperature`."""
        kept = {sampler: sampler.cutoff(self.row, self.temperature) for sampler in self.compared}
        if self.sampler in kept:
            kept[self.sampler] = self.k
        return kept

    @cached_property
    def cuts(self) -> list[tuple[str, int | None, int | None]]:
        """Sampler names, and how many candidates they keep: before temperature and after it.

        A chain's members come first, numbered, each with what it leaves. At temperature 1, and for samplers
        that do not look at probabilities, the second number is None.
        """
        table: dict[str, dict[bool, int]] = {}
        for i, (member, left) in enumerate(zip(self.sampler.members, self.left, strict=False), start=1):
            table[f"{i}. {member.name}"] = {self._comes_after(member): left}
        for sampler, k in self.kept.items():
            if sampler == self.sampler and table:
                continue
            table.setdefault(sampler.name, {}).setdefault(self._comes_after(sampler), k)
        return [(name, row.get(False), row.get(True)) for name, row in table.items()]

    @cached_property
    def left(self) -> list[int]:
        """The number of candidates left after each member of a chain; empty for any other sampler."""
        members = self.sampler.members
        chains = [Chain(*members[:n]) for n in range(1, len(members))]
        left = [chain.cutoff(self.row, self.temperature) for chain in chains]
        return [*left, self.k] if left else []

    def _comes_after(self, sampler: Sampler) -> bool:
        """Return whether a sampler sees different probabilities because it cuts after temperature."""
        return sampler.order == "temperature-first" and self.temperature != 1

    @property
    def entropy(self) -> float:
        """The entropy of the probabilities at temperature 1, in bits."""
        positive = self.p[self.p > 0]
        return float(-(positive * np.log2(positive)).sum())

    def at(self, temperature: float) -> "SamplingStep":
        """Return the step as it would be at another temperature > 0; nothing is sorted again."""
        moved = replace(self, temperature=temperature)
        return moved.of(self.sampler) if self.sampler.order else moved

    def of(self, sampler: Sampler) -> "SamplingStep":
        """Return the step with another sampler's cut."""
        kept, _ = sampler.candidates(self.row, self.temperature)
        first = int(np.flatnonzero(self.ids == kept[0])[0])
        return replace(self, sampler=sampler, first=first, k=len(kept))

    def shown_ranks(self, rows: int) -> list[int]:
        """Return the ranks for a table of `rows` rows: the first ones, and always the sampled one."""
        first = list(range(min(rows, len(self.ids))))
        return first if self.sampled < len(first) else [*first[:-1], self.sampled]


def sampling_step(
    logits: NDArray[np.float32],
    sampled: int,
    temperature: float,
    compared: Sequence[Sampler] = (),
    *,
    sampler: Sampler | None = None,
    k: int | None = None,
) -> SamplingStep:
    """Return the candidates of a step, and which of them samplers keep.

    Args:
        logits: Logits (V,) as the sampler sees them.
        sampled: Id of the sampled token, whose logit must be finite.
        temperature: The answer's temperature; 0 means greedy, which is compared with others at temperature 1.
        compared: The samplers to compare.
        sampler: The sampler used for the step; None means Min-k.
        k: How many candidates the sampler kept, if known: a stateful one may vary.
    """
    sampler = Greedy() if temperature == 0 else sampler or MinK()
    temperature = temperature or 1.0
    order = np.argsort(-logits.astype(np.float64), kind="stable")
    order = order[np.isfinite(logits[order])]
    ordered = logits[order].astype(np.float64)
    step = SamplingStep(
        row=logits,
        ids=order,
        logits=ordered,
        p=_softmax(ordered),
        temperature=temperature,
        sampler=sampler,
        first=0,
        k=len(order),
        compared=tuple(compared),
        sampled=int(np.flatnonzero(order == sampled)[0]),
    ).of(sampler)
    if sampler.is_stateful and k is not None and k != step.k:
        return replace(step, first=0, k=k)  # mirostat's cut, or xtc did not cut at this step
    return step


def constrained_row(
    constraints: Constraints,
    weights: Weights,
    prompt: Sequence[int],
    first: int,
    before: str,
    logits: NDArray[np.float32],
    tokens: Sequence[int],
) -> NDArray[np.float32]:
    """Return the logits (V,) of a step as its sampler saw them.

    Args:
        constraints: The answer's constraints.
        weights: The model.
        prompt: Token ids before the answer.
        first: Index of the first token under these constraints.
        before: The grammar of what may come before a constrained answer.
        logits: The raw logits (V,).
        tokens: Token ids of the answer before the step.

    Raises:
        GenerationError: The constraints do not allow these tokens.
    """
    constrainer = Constrainer(constraints, weights, prompt, tokens[:first], before)
    for token in tokens[first:]:
        constrainer.accept(token)
    return constrainer.apply(logits, SamplingBuffers(weights.n_vocab)).copy()


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())
