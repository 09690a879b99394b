"""Read what the commands of docs/results.md have written to docs/results."""

import csv
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mink_local.bench.decode import DecodeSpeed
from mink_local.evals.coverage.report import BELOW_GREEDY, CoverageResults, Point, curve_name
from mink_local.samplers import Sampler

RESULTS = Path(__file__).parents[1] / "docs" / "results"

Estimate = tuple[float, float, float]  # a value, and the ends of its 95% interval


class Accuracies:
    """Accuracies of an evaluation, by flexible scoring, and their differences from another method's.

    Args:
        name: The folder of the evaluation's report.
    """

    def __init__(self, name: str) -> None:
        self._rows = _by_cell(RESULTS / name / "table.csv")
        self.n_questions = max(int(row["questions"]) for row in self._rows.values())

    def accuracy(self, sampler: Sampler, temperature: float) -> Estimate:
        return _estimate(self._of(sampler, temperature), "accuracy", "low", "high")

    def difference(self, sampler: Sampler, temperature: float) -> Estimate:
        """Return the cell's accuracy minus that of what it is compared with, on the same questions."""
        row = self._of(sampler, temperature)
        return _estimate(row, "difference", "difference_low", "difference_high")

    def k_is_1(self, sampler: Sampler, temperature: float) -> float:
        return float(self._of(sampler, temperature)["k_is_1"])

    def significant(self, sampler: Sampler, temperature: float) -> int:
        """Return 1 if the difference is significantly above 0 (after Holm), -1 if below, 0 if neither."""
        row = self._of(sampler, temperature)
        if row["significant"] != "True":
            return 0
        return 1 if float(row["difference"]) > 0 else -1

    def _of(self, sampler: Sampler, temperature: float) -> Mapping[str, str]:
        return self._rows[str(sampler), temperature]


def ablated(sampler: Sampler, temperature: float) -> Estimate:
    """Return the accuracy of a variant of Min-k minus that of its defaults."""
    rows = _by_cell(RESULTS / "heatmap" / "ablations.csv")
    return _estimate(rows[str(sampler), temperature], "difference", "low", "high")


def _by_cell(path: Path) -> dict[tuple[str, float], Mapping[str, str]]:
    """Return the rows of a CSV file that are of flexible scoring, by sampler and temperature."""
    rows = csv.DictReader(path.read_text(encoding="utf-8").splitlines())
    return {(row["sampler"], float(row["temperature"])): row for row in rows if row["scoring"] == "flexible"}


def _estimate(row: Mapping[str, str], *names: str) -> Estimate:
    value, low, high = (float(row[name]) for name in names)
    return value, low, high


def frontier(name: str, sampler: Sampler, temperature: float) -> dict[str, Estimate]:
    """Return what `mink-eval frontier` found for a setting: values with the ends of their intervals."""
    found: dict[str, Estimate] = _row(_frontier(name)["rows"], sampler, temperature)
    return found


def gain(name: str, sampler: Sampler, temperature: float) -> Estimate:
    """Return a method's entropy minus that of min-p, temperature last, at the same noise, in nats."""
    rows = [row for row in _frontier(name)["defaults"] if row["level"] == 0.01]
    value, low, high = _row(rows, sampler, temperature)["gain_on_min-p (T last)"]
    return value, low, high


@cache
def _frontier(name: str) -> Any:
    return json.loads((RESULTS / name / "frontier.json").read_text(encoding="utf-8"))


def _row(rows: Iterable[Any], sampler: Sampler, temperature: float) -> Any:
    place = (str(sampler), temperature)
    return next(row for row in rows if (row["sampler"], float(row["temperature"])) == place)


def most_covered(name: str, sampler: Sampler) -> Point:
    """Return where a method covers most with a validity at most 1 point below greedy's."""
    results = _coverage(name)
    [curve] = [curve for curve in results.curves if curve.name == curve_name(str(sampler))]
    best = curve.best(results.greedy.valid.value - BELOW_GREEDY[0])
    assert best, f"{sampler} is less valid at every temperature"
    return best


@cache
def _coverage(name: str) -> CoverageResults:
    document = json.loads((RESULTS / name / "coverage.json").read_text(encoding="utf-8"))
    return CoverageResults(document["about"], document["results"])


def step_times() -> list[DecodeSpeed]:
    """Return what `mink-bench decode` measured."""
    text = (RESULTS / "decode" / "decode.json").read_text(encoding="utf-8")
    return [DecodeSpeed(**fields) for fields in json.loads(text)]
