"""How a file's next-token distributions diverge from the base's, at every position of a chunk of text.

The divergence is the Kullback–Leibler divergence D(base ‖ file) of the full distributions at temperature 1,
in nats, as in llama.cpp's llama-perplexity (tools/perplexity/README.md). Sums are float64.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mink_local.evals.frontier.sums import log_softmax
from mink_local.samplers import Sampler, Workspace

Logits = NDArray[np.float32]


@dataclass
class Divergence:
    """The figures for every position of a chunk; `add` appends one.

    Attributes:
        kld: Divergence in nats.
        base_logprob: Log-probability of the following token under the base.
        logprob: Log-probability of the following token under the file.
        same_top: 1 where both have the same most probable token.
        same_set: By sampler, 1 where it keeps the same candidates.
        k_is_1: By sampler, 1 where it keeps a single candidate, for the base and for the file.
    """

    kld: list[float] = field(default_factory=list)
    base_logprob: list[float] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    same_top: list[int] = field(default_factory=list)
    same_set: dict[str, list[int]] = field(default_factory=dict)
    k_is_1: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def add(self, base: Logits, file: Logits, token: int, candidates: "CandidateSets") -> None:
        """Append a position.

        Args:
            base: The base's raw logits, (V,) or longer; tokens beyond the common vocabulary are ignored.
            file: The file's raw logits.
            token: The token that follows.
            candidates: Determines the samplers' candidates.

        Raises:
            GenerationError: A logit is NaN, or none is finite.
        """
        rows = [np.ascontiguousarray(row[: candidates.n_vocab]) for row in (base, file)]
        log_p, log_q = (log_softmax(row) for row in rows)
        self.kld.append(max(0.0, float(np.exp(log_p) @ (log_p - log_q))))  # below 0 only by rounding
        self.base_logprob.append(float(log_p[token]))
        self.logprob.append(float(log_q[token]))
        self.same_top.append(int(rows[0].argmax() == rows[1].argmax()))
        in_base, in_file = (candidates(row) for row in rows)
        for name, kept in in_base.items():
            self.same_set.setdefault(name, []).append(int(np.array_equal(kept, in_file[name])))
            self.k_is_1.setdefault(name, []).append((int(kept.size == 1), int(in_file[name].size == 1)))


def compare(base: Logits, file: Logits, tokens: Sequence[int], candidates: "CandidateSets") -> Divergence:
    """Return the figures for the last positions of a chunk.

    Args:
        base: Raw logits before each of the last tokens, (positions, V); the same for `file`.
        tokens: The chunk.
    """
    found = Divergence()
    for row, other, token in zip(base, file, tokens[-len(base) :], strict=True):
        found.add(row, other, token, candidates)
    return found


def most_probable(logits: Logits, n: int) -> list[tuple[int, float]]:
    """Return a row's `n` most probable tokens with their probabilities, largest first."""
    log_p = log_softmax(logits)
    best = np.argsort(-log_p, kind="stable")[:n]
    return [(int(token), float(np.exp(log_p[token]))) for token in best]


class CandidateSets:
    """The candidates that samplers keep, at temperature 1.

    Args:
        samplers: Stateless samplers.
        n_vocab: Length of the rows.
    """

    def __init__(self, samplers: Sequence[Sampler], n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._workspace = Workspace(n_vocab)
        self._selectors = {str(one): one.selector(1.0, self._workspace) for one in samplers}

    def __call__(self, row: Logits) -> dict[str, NDArray[np.int32]]:
        """Return the sorted ids of a row's candidates, by sampler."""
        return {name: np.sort(self._workspace.ids[: select(row)]) for name, select in self._selectors.items()}
