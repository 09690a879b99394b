"""The figures of every setting at one position, exact, by sums over the sorted logits.

Every method keeps a prefix of the logits sorted from the largest down. So one sort serves all of them: with
k candidates and weights `w_i = exp((l_i - l_1) / T)`, the probability of candidate i is
`w_i / (w_1 + … + w_k)`, and each figure is a quotient of sums over the first k.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.frontier.settings import MeasuredSetting
from mink_local.samplers import Eta, PLess, Sampler, TopP, Workspace
from mink_local.samplers.compile import compiled

NOISE_LEVELS = (0.01, 0.001)
"""A token is noise if the reference gives it less probability than this, at temperature 1."""

FIGURES = (*(f"noise_{level:g}" for level in NOISE_LEVELS), "surprise", "entropy", "k_is_1", "k")
"""Noise is a probability; entropy and the expected surprise under the reference, -Σ q log p, are in nats."""

Floats = NDArray[np.float64]


@dataclass
class _Cut:
    """A sampler at a temperature that it sees; settings with the same cut share one."""

    sampler: Sampler
    seen: float
    k: int = 0


@dataclass
class _AtTemperature:
    """The settings of one temperature: their indices, and those of their cuts."""

    temperature: float
    settings: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)


class PositionFigures:
    """The arithmetic of one position for a list of settings; `add` sums up over positions.

    Attributes:
        sums: float64 (settings, FIGURES), over the positions that were added.
    """

    def __init__(self, settings: Sequence[MeasuredSetting], n_vocab: int) -> None:
        self._n_vocab = n_vocab
        self._cuts: list[_Cut] = []
        self._by_temperature: dict[float, _AtTemperature] = {}
        numbers: dict[tuple[str, bytes], int] = {}
        for i, setting in enumerate(settings):
            sampler, seen = setting.sampler, setting.seen
            number = numbers.setdefault(
                (sampler.name, sampler.kernel_options(seen).tobytes()), len(self._cuts)
            )
            if number == len(self._cuts):
                self._cuts.append(_Cut(sampler, seen))
            group = self._by_temperature.setdefault(setting.temperature, _AtTemperature(setting.temperature))
            group.settings.append(i)
            group.cuts.append(number)
        workspace = Workspace(n_vocab)
        self._by_kernel = [
            (cut, cut.sampler.selector(cut.seen, workspace))
            for cut in self._cuts
            if not isinstance(cut.sampler, _BY_SUMS)
        ]
        self._by_sums: dict[float, list[_Cut]] = {}
        for cut in self._cuts:
            if isinstance(cut.sampler, _BY_SUMS):
                self._by_sums.setdefault(cut.seen, []).append(cut)
        self._keys = np.empty(n_vocab, np.uint64)
        self._n_settings = len(settings)
        self.reset()

    def reset(self) -> None:
        """Begin with no position."""
        self.sums = np.zeros((self._n_settings, len(FIGURES)))

    def add(self, logits: NDArray[np.float32], reference: NDArray[np.float32]) -> None:
        """Add a position.

        Args:
            logits: Raw logits of the model, of at least `n_vocab` tokens; what is beyond them does not count.
            reference: Those of the reference.

        Raises:
            GenerationError: There is a NaN among them, or no logit is finite.
        """
        row = np.ascontiguousarray(logits[: self._n_vocab])
        ids, x = _sorted(row, self._keys)
        log_p = _log_softmax(reference[: self._n_vocab])[ids]
        for cut, select in self._by_kernel:
            cut.k = select(row)
        for seen, cuts in self._by_sums.items():
            _cut_by_sums(cuts, x / seen)
        for group in self._by_temperature.values():
            k = np.array([self._cuts[cut].k for cut in group.cuts])
            sizes, inverse = np.unique(k, return_inverse=True)
            tempered = x[: sizes[-1]] / group.temperature
            figures = _figures(tempered, np.exp(tempered), log_p, _LOG_LEVELS, sizes)
            self.sums[group.settings, :4] += figures[inverse]
            self.sums[group.settings, 4] += k == 1
            self.sums[group.settings, 5] += k


_LOG_LEVELS = np.log(NOISE_LEVELS)
_BY_SUMS = (TopP, Eta, PLess)  # their kernels sum over the whole row, which the sorted row has done already


def _cut_by_sums(cuts: Sequence[_Cut], x: Floats) -> None:
    """Find the cuts of methods that see `x`: sorted logits minus the largest, divided by the temperature."""
    reached, squares, products = _running_sums(x, np.exp(x))
    total = reached[-1]
    log_total = math.log(total)
    for cut in cuts:
        if isinstance(cut.sampler, TopP):
            if cut.sampler.p == 1:
                cut.k = x.size
            else:
                cut.k = min(x.size, int(np.searchsorted(reached, cut.sampler.p * total)) + 1)
            continue
        if isinstance(cut.sampler, Eta):
            log_epsilon = math.log(cut.sampler.epsilon)
            entropy = log_total - products / total
            lowest = log_total + min(log_epsilon, log_epsilon / 2 - entropy)
        else:
            lowest = math.log(squares / total)
        cut.k = max(1, x.size - int(np.searchsorted(x[::-1], lowest)))


def _sorted(row: NDArray[np.float32], keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], Floats]:
    """Return the tokens with a finite logit, largest first, and their logits minus the largest."""
    if np.isnan(row).any():
        raise GenerationError("the model gave a NaN among its logits: its file is damaged")
    _write_keys(row.view(np.int32), keys)
    keys.sort()
    ids = (keys & 0xFFFFFFFF).astype(np.int64)
    values = np.minimum(row[ids], np.finfo(np.float32).max).astype(np.float64)
    n = int(np.isfinite(values).sum())
    if n == 0:
        raise GenerationError("the model gave no finite logit: its file is damaged")
    return ids[:n], values[:n] - values[0]


def _log_softmax(row: NDArray[np.float32]) -> Floats:
    """Return the log-probabilities of a row. Raises GenerationError for a NaN, or if none is finite."""
    x = row.astype(np.float64)
    x -= x.max()
    x -= math.log(np.exp(x).sum())
    if np.isnan(x[0]):
        raise GenerationError("the reference gave a NaN among its logits: its file is damaged")
    return x


@compiled
def _write_keys(bits, keys):  # type: ignore[no-untyped-def]
    """Write keys whose ascending order is that of the descending logits, equal ones by token id."""
    for i in range(bits.size):
        b = np.int32(0) if bits[i] == np.int32(-0x80000000) else bits[i]  # -0.0 is 0.0
        ascending = np.uint32(b) ^ (np.uint32(0xFFFFFFFF) if b < 0 else np.uint32(0x80000000))
        keys[i] = (np.uint64(~ascending & np.uint32(0xFFFFFFFF)) << np.uint64(32)) | np.uint64(i)


@compiled
def _running_sums(x, weights):  # type: ignore[no-untyped-def]
    """Return the running sum of the weights, float64 (n,), the sum of their squares and that of w * x."""
    reached = np.empty(x.size)
    total, squares, products = 0.0, 0.0, 0.0
    for i in range(x.size):
        w = weights[i]
        total += w
        squares += w * w
        products += w * x[i]
        reached[i] = total
    return reached, squares, products


@compiled
def _figures(x, weights, log_p, log_levels, sizes):  # type: ignore[no-untyped-def]
    """Return noise at both levels, surprise and entropy, float64 (len(sizes), 4), of the first k candidates.

    `x`: logits minus the largest, divided by the temperature, and `weights` their exponentials; `sizes`: the
    numbers k, ascending.
    """
    figures = np.empty((sizes.size, 4))
    total, noise, deep_noise, surprise, products = 0.0, 0.0, 0.0, 0.0, 0.0
    i = 0
    for j in range(sizes.size):
        while i < sizes[j]:
            w, log = weights[i], log_p[i]
            total += w
            noise += w if log < log_levels[0] else 0.0
            deep_noise += w if log < log_levels[1] else 0.0
            surprise -= w * log
            products += w * x[i]
            i += 1
        figures[j, 0] = noise / total
        figures[j, 1] = deep_noise / total
        figures[j, 2] = surprise / total
        figures[j, 3] = math.log(total) - products / total
    return figures
