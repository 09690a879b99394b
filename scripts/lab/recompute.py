"""Recomputes tables of docs/results from what was counted and measured, by NumPy and SciPy alone.

    python -m scripts.lab.recompute

Accuracies follow from the number of right answers, paired tests from the questions won and lost, and the
rivals' tables from rows: sums per text (rivals-texts.csv), validity and coverage per prompt
(rivals-prompts.csv). Nothing is imported from the package, so that agreement means something. Prints how many
numbers of each table were compared, and how far the worst one is off; exits with 1 if one is.
"""

import csv
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom, norm, t

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LEAST = 1e-6  # what counts as a difference: some tables were written with seven digits
ENDS = ("", "_low", "_high")
BASELINE = "min-k, floor"

Floats = NDArray[np.float64]
Row = dict[str, str]
Compared = tuple[float, float]
"""A number of a table, and what it should be."""


def read(name: str) -> list[Row]:
    """Return the rows of a CSV file of docs/results."""
    with (RESULTS / f"{name}.csv").open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


# Accuracies and paired tests, from counts


def proportion(right: int, n: int) -> tuple[float, float, float]:
    """Return a share with Clopper and Pearson's interval."""
    low = beta.ppf(0.025, right, n - right + 1) if right else 0.0
    high = beta.ppf(0.975, right + 1, n - right) if right < n else 1.0
    return right / n, float(low), float(high)


def paired(won: int, lost: int, n: int) -> tuple[float, float, float, float]:
    """Return a paired difference with Bonett and Price's interval, and McNemar's exact p.

    Where p is above 0.05, the interval reaches 0.
    """
    p = min(1.0, 2 * float(binom.cdf(min(won, lost), won + lost, 0.5)))
    center = (won - lost) / (n + 2)
    half = float(norm.ppf(0.975)) * math.sqrt(((won + lost + 2) / (n + 2) - center**2) / (n + 2))
    low, high = max(-1.0, center - half), min(1.0, center + half)
    if p > 0.05:
        low, high = min(low, 0.0), max(high, 0.0)
    return (won - lost) / n, low, high, p


def holm(p_values: list[float]) -> list[float]:
    """Return p-values as Holm corrects them for one another."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = highest
    return adjusted


def family_of(row: Row) -> tuple[str, ...]:
    """Return what tests have in common that are corrected for one another: of models, all of a task."""
    return row["kind"], row["against"], row["task"], "" if row["kind"] == "model" else row["model"]


def is_counted(row: Row) -> bool:
    """Return whether a row follows from counts: not if questions were answered several times each."""
    return row.get("repeats", "1") == "1" and row.get("responses") in (None, row.get("questions"))


def accuracies(rows: list[Row]) -> Iterator[Compared]:
    """Yield the accuracies of a run's table, with their intervals."""
    for row in rows:
        n = int(row["questions"])
        found = proportion(round(float(row["accuracy"]) * n), n)
        yield from ((float(row[f"accuracy{end}"]), one) for end, one in zip(ENDS, found, strict=True))


def tests(rows: list[Row]) -> Iterator[Compared]:
    """Yield the differences of a run's paired tests, with their intervals and p-values."""
    for common in dict.fromkeys(map(family_of, rows)):
        family = [row for row in rows if family_of(row) == common]
        found = [paired(*(int(row[name]) for name in ("won", "lost", "common_questions"))) for row in family]
        corrected = holm([p for *_, p in found])
        for row, (*difference, p), p_holm in zip(family, found, corrected, strict=True):
            yield float(row["accuracy"]) - float(row["other_accuracy"]), difference[0]
            yield from (
                (float(row[f"difference{end}"]), one) for end, one in zip(ENDS, difference, strict=True)
            )
            yield from ((float(row["p"]), p), (float(row["p_holm"]), p_holm))


# The rivals' tables, from rows


class Split:
    """A split's means over its clusters, texts or prompts, and over 2,000 resamples of them (seed 0).

    Args:
        rows: A row per cluster and sampler.
        cluster: The column that names the cluster.
        weight: The column of a cluster's weight; empty for 1.
    """

    def __init__(self, rows: list[Row], cluster: str, weight: str = "") -> None:
        self._rows = {(row[cluster], row["sampler"]): row for row in rows}
        self._clusters = sorted({row[cluster] for row in rows})
        self.n, self._weight = len(self._clusters), weight
        counts = np.random.default_rng(0).multinomial(self.n, np.full(self.n, 1 / self.n), 2000)
        self._counts = np.vstack([np.ones(self.n), counts])

    def means(self, column: str, samplers: list[str]) -> Floats:
        """Return means, float64 (1 + resamples, samplers)."""
        values, weights = (
            np.array([[float(self._rows[one, sampler][name]) if name else 1.0 for sampler in samplers]
                      for one in self._clusters])
            for name in (column, self._weight)
        )  # fmt: skip
        found: Floats = (self._counts @ values) / (self._counts @ weights)
        return found

    def interval(self, means: Floats) -> tuple[float, float, float]:
        """Return the first mean, with percentiles of the others as far apart as Student's of so few."""
        tail = norm.sf(t.isf(0.025, self.n - 1) * math.sqrt(self.n / (self.n - 1)))
        low, high = np.quantile(means[1:], (tail, 1 - tail))
        return float(means[0]), float(low), float(high)


def highest(cost: Floats, gain: Floats, bound: Floats) -> Floats:
    """Return the highest gain at a cost of at most `bound` on straight lines through a method's settings.

    Args:
        cost: float64 (n, settings), of greedy and then of the settings in the order of their option.
        gain: float64 (n, settings).
        bound: float64 (n,).
    """
    best = np.empty(len(bound))
    for row, (x, y, most) in enumerate(zip(cost, gain, bound, strict=True)):
        reached = [y[i] for i in range(len(x)) if i == 0 or x[i] <= most + 1e-12]
        for i in range(1, len(x)):
            if (x[i - 1] - most) * (x[i] - most) < 0:
                reached.append(y[i - 1] + (most - x[i - 1]) / (x[i] - x[i - 1]) * (y[i] - y[i - 1]))
        best[row] = max(reached)
    return best


def of_texts(kind: str) -> Callable[[list[Row]], Iterator[Compared]]:
    """Return the function that recomputes the rivals' table of a kind of text."""
    rows = [row for row in read("rivals-texts") if row["texts"] == kind]
    development, test = (
        Split([row for row in rows if row["split"] == split], "text", "positions")
        for split in ("development", "test")
    )

    def tail_and_entropy(split: Split, samplers: list[str]) -> tuple[Floats, Floats]:
        return split.means("sum_tail_mass", samplers), split.means("sum_entropy", samplers)

    def compared(table: list[Row]) -> Iterator[Compared]:
        most: dict[str, Floats] = {}
        for row in sorted(table, key=lambda row: row["method"] != BASELINE):
            settings = row["settings"].split("; ")
            tail, entropy = (one[0] for one in tail_and_entropy(development, ["greedy", *settings]))
            within = [i for i in range(1, len(tail)) if tail[i] <= tail[0] + 0.005]
            place = max(within, key=lambda i: entropy[i]) if within else 1 + int(np.argmin(tail[1:]))
            yield float(row["chosen"] == settings[place - 1]), 1.0
            tails, entropies = tail_and_entropy(test, ["greedy", *settings])
            yield float(row["is_bound"] == str(tails[0, -1] <= tails[0, 0] + 0.005)), 1.0
            most[row["method"]] = highest(tails, entropies, tails[:, 0] + 0.005)
            yield from numbers(row, test, {
                "tail_mass": tails[:, place], "entropy": entropies[:, place],
                "most_entropy": most[row["method"]],
                "minus_min_k_floor": most[row["method"]] - most[BASELINE],
            })  # fmt: skip

    return compared


def of_prompts(table: list[Row]) -> Iterator[Compared]:
    """Yield the numbers of the rivals' table of coverage."""
    rows = read("rivals-prompts")
    development, test = (
        Split([row for row in rows if row["split"] == split], "prompt") for split in ("development", "test")
    )
    most: dict[str, Floats] = {}
    for row in sorted(table, key=lambda row: row["method"] != BASELINE):
        settings = row["settings"].split("; ")
        valid, coverage = (
            development.means(name, ["greedy", *settings])[0] for name in ("valid", "coverage")
        )
        within = [i for i in range(1, len(valid)) if valid[i] >= valid[0] - 0.05]
        place = max(within, key=lambda i: coverage[i]) if within else 1 + int(np.argmax(valid[1:]))
        yield float(row["chosen"] == settings[place - 1]), 1.0
        valids, coverages = (test.means(name, ["greedy", *settings]) for name in ("valid", "coverage"))
        yield float(row["is_bound"] == str(valids[0, -1] >= valids[0, 0] - 0.05)), 1.0
        most[row["method"]] = highest(-valids, coverages, 0.05 - valids[:, 0])
        yield from numbers(row, test, {
            "validity": valids[:, place], "coverage": coverages[:, place],
            "coverage_at_equal_validity": most[row["method"]],
            "minus_min_k_floor": most[row["method"]] - most[BASELINE],
        })  # fmt: skip


def numbers(row: Row, split: Split, means: dict[str, Floats]) -> Iterator[Compared]:
    """Yield the numbers of a row with their intervals, and what they should be."""
    for name, values in means.items():
        for end, one in zip(ENDS, split.interval(values), strict=True):
            yield float(row[f"{name}{end}"]), one


def recomputed() -> Iterator[tuple[str, list[Compared]]]:
    """Yield each table that can be recomputed: its name, and its numbers with what they should be."""
    for path in sorted(RESULTS.glob("*.csv")):
        rows = list(filter(is_counted, read(path.stem)))
        if rows and "p_holm" in rows[0]:
            yield path.stem, list(tests(rows))
        elif rows and "accuracy" in rows[0]:
            yield path.stem, list(accuracies(rows))
    for kind in ("prose", "math"):
        yield f"rivals-{kind}", list(of_texts(kind)(read(f"rivals-{kind}")))
    yield "rivals-ideas", list(of_prompts(read("rivals-ideas")))


def main() -> None:
    """Print how far each table is from what is recomputed."""
    furthest = 0.0
    for name, found in recomputed():
        off = max(abs(shown - right) for shown, right in found)
        furthest = max(furthest, off)
        print(f"{name:28} {len(found):4} numbers, at most {off:.0e} off")
    sys.exit(int(furthest > LEAST))


if __name__ == "__main__":
    main()
