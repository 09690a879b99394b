"""Recomputes the last columns of the rivals' tables in docs/results.md:  python -m scripts.lab.rivals_tables

From the rows in docs/results: sums per text, and validity and coverage per prompt. A curve goes through a
method's settings in the order of its option, as do those of `mink-eval frontier`.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mink_local.evals.frontier.report import most_entropy
from mink_local.evals.stats import Interval, resample

RESULTS = Path(__file__).parents[2] / "docs" / "results"
LAST = ",order=temperature-last"
METHODS = {
    "min-k, floor": [f"min-k:tau=3,floor={value}" for value in ("0.7", "1.4", "2.3", "3")],
    "min-p (T last)": [f"min-p:p={value}{LAST}" for value in ("0.35", "0.2", "0.1", "0.05")],
    "top-n-sigma": [f"top-n-sigma:n={value}" for value in ("0.5", "0.7", "1", "1.5")],
    "diff-sampling": [f"diff-sampling:p={value}" for value in ("0", "0.5", "0.7", "0.9")],
    "top-p (T last)": [f"top-p:p={value}{LAST}" for value in ("0.5", "0.7", "0.9", "0.95")],
    "p-step": [f"p-step:step={value}" for value in ("0.8", "0.6", "0.5", "0.4")],
    "min-k, τ": [f"min-k:tau={value}" for value in ("1", "3", "10", "30")],
}

Floats = NDArray[np.float64]


def means(rows: pd.DataFrame, column: str, samplers: list[str], weights: Floats) -> Floats:
    """Return the means of a column over clusters, then over each resample: (1 + resamples, samplers)."""
    sums = rows[column][samplers].to_numpy(float)
    whole = sums.sum(axis=0, keepdims=True) / weights.sum()
    found: Floats = np.vstack([whole, resample(sums) / resample(weights)[:, None]])
    return found


def of_texts(kind: str) -> dict[str, Floats]:
    """Return the entropy of each method at half a point of tail mass above greedy's."""
    rows = pd.read_csv(RESULTS / "rivals-texts.csv").query(f"texts == '{kind}' and split == 'test'")
    wide = rows.pivot(index="text", columns="sampler", values=["sum_tail_mass", "sum_entropy", "positions"])
    n = wide["positions"]["greedy"].to_numpy(float)
    found = {}
    for name, settings in METHODS.items():
        tail, entropy = (means(wide, f"sum_{x}", ["greedy", *settings], n) for x in ("tail_mass", "entropy"))
        found[name], _ = most_entropy(tail, entropy, tail[:, 0] + 0.005)
    return found


def of_prompts() -> dict[str, Floats]:
    """Return the coverage of each method at a validity of 5 points below greedy's."""
    rows = pd.read_csv(RESULTS / "rivals-prompts.csv").query("split == 'test'")
    wide = rows.pivot(index="prompt", columns="sampler", values=["valid", "coverage"])
    n = np.ones(len(wide))
    found = {}
    for name, settings in METHODS.items():
        valid, coverage = (means(wide, column, ["greedy", *settings], n) for column in ("valid", "coverage"))
        found[name], _ = most_entropy(-valid, coverage, 0.05 - valid[:, 0])
    return found


def main() -> None:
    """Print each method's value, and its difference from Min-k with a floor, with their intervals."""
    for title, found, n in (
        ("rivals-prose", of_texts("prose"), 8),
        ("rivals-math", of_texts("math"), 8),
        ("rivals-ideas", of_prompts(), 30),
    ):
        print(f"{title}: value, minus Min-k with a floor")
        for name, values in found.items():
            gain = values - found["min-k, floor"]
            both = (Interval.of(one[0], one[1:], n) for one in (values, gain))
            print(f"  {name:15}", *(f"{value:+.3f} ({low:+.3f} to {high:+.3f})" for value, low, high in both))


if __name__ == "__main__":
    main()
