"""What a sampler is compared with, by common random numbers: answers differ because their samplers do."""

from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers import Order, Sampler, Selector, Workspace, default_samplers


def compared_with(sampler: Sampler) -> list[Sampler]:
    """Return a sampler, then all other registered ones with default options, all in both orders."""
    own = [sampler]
    if "order" in (field.name for field in fields(sampler)):  # type: ignore[arg-type]
        own += [replace(sampler, order=one) for one in get_args(Order) if one != sampler.order]  # type: ignore[type-var]
    others = (other for other in default_samplers() if other.name != sampler.name)
    return own + [other for other in others if not other.is_stateful]


@dataclass(frozen=True)
class SampledToken:
    """A sampled token with its rank, from 1, and its step's k candidates, from rank `first` on."""

    token: int
    rank: int
    first: int
    k: int

    def keeps(self, rank: int) -> bool:
        """Return whether the token at a rank was a candidate."""
        return self.first <= rank < self.first + self.k


@dataclass(frozen=True, eq=False)
class CommonNumbers(Sampler):
    """Take another sampler's candidates, and sample with random numbers shared by several answers.

    The sampled token is the candidate with the largest `logit / temperature + g`, where g is a Gumbel random
    number that depends on the seed, the step and the token. So tokens follow the softmax of the candidates;
    and two methods that read the same logits at the same temperature sample different tokens only if one
    keeps a token that the other cuts, or cuts the token that the other samples.

    Args:
        sampler: Selects the candidates; not mirostat, which does its own sampling.
        seed: At least 0; answers with the same seed share their random numbers.
        steps: Receives the tokens of one answer, including the one that ends it.
    """

    sampler: Sampler
    seed: int
    steps: list[SampledToken] = field(default_factory=list)

    name = "common-numbers"

    @property
    def tokens(self) -> list[int]:
        """Ids of the sampled tokens."""
        return [step.token for step in self.steps]

    @property
    def k(self) -> list[int]:
        """The number of candidates for each of them."""
        return [step.k for step in self.steps]

    def selector(self, temperature: float, workspace: Workspace, random: Random | None = None) -> Selector:  # noqa: ARG002
        """Return a function, for one answer, that leaves only the sampled token of a row as a candidate."""
        select = self.sampler.checked_selector(temperature, workspace)

        def sample(row: NDArray[np.float32]) -> int:
            k = select(row)
            if k <= 0:  # the kernel's error
                return k
            ids = workspace.ids[:k]
            numbers = np.random.default_rng([self.seed, len(self.steps)]).standard_exponential(row.size)
            logits = row[ids].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):  # at temperatures near 0
                scores = (logits - logits.max()) / temperature - np.log(numbers[ids])
            token = int(ids[np.nanargmax(scores)])
            rank, first = (int(np.count_nonzero(row > logit)) + 1 for logit in (row[token], logits.max()))
            self.steps.append(SampledToken(token, rank, first, k))
            workspace.ids[0] = token
            return 1

        return sample

    def __str__(self) -> str:
        return str(self.sampler)
