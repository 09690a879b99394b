"""Methods that differ in an option: which are found, their heatmaps, and the differences from the default."""

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.report.ablations import sweeps, variants
from mink_local.evals.report.format import points
from mink_local.evals.report.plots import accuracy_figure, heatmap_figure, plot_pictures
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.stats import compare
from mink_local.evals.report.summary import Summary, summarise
from mink_local.evals.report.tables import TableEntry, ablations_table, ablations_to_csv, grid_tables
from tests.support.made_run import change, write_run

MIN_K = "min-k:tau=3"
TAUS = ("min-k:tau=0", MIN_K, "min-k:tau=10")
MIN_P = [
    f"min-p:p={p},order=temperature-{order}" for order in ("first", "last") for p in ("0.05", "0.1", "0.2")
]
OTHERS = ("min-k:tau=3,alpha=0.5", "min-k:tau=3,decay=log", "min-k:tau=3,normalize=false", "top-p:p=0.5")


def make(folder: Path, samplers: Any) -> Summary:
    write_run(folder, tasks=("gsm8k",), samplers=samplers, temperatures=(1.0, 5.0), n_questions=12, repeats=1)
    return summarise(read_run(folder))


def test_values_of_one_option_are_found(tmp_path: Path) -> None:
    task = make(tmp_path, (*TAUS, *OTHERS, *MIN_P, "another:x=1", "greedy")).tasks[0]
    found = [(s.name, s.option, s.fixed, {v: m.sampler for v, m in s.methods.items()}) for s in sweeps(task)]
    assert found == [
        ("min-k", "tau", "", dict(zip((0, 3, 10), TAUS, strict=True))),
        ("min-p", "p", "T first", dict(zip((0.05, 0.1, 0.2), MIN_P[:3], strict=True))),
        ("min-p", "p", "T last", dict(zip((0.05, 0.1, 0.2), MIN_P[3:], strict=True))),
    ]


def test_other_options_are_the_same_in_a_sweep(tmp_path: Path) -> None:
    """α = 0.25 to 1 at two values of τ, and τ at two values of α: two sweeps of α alone."""
    pairs = [f"min-k:tau={t},alpha={a}" for t in (0, 3) for a in (0.25, 0.5, 1)]
    found = sweeps(make(tmp_path, pairs).tasks[0])
    assert [(s.option, s.fixed, list(s.methods)) for s in found] == [
        ("alpha", "", [0.25, 0.5, 1]),
        ("alpha", "tau=0", [0.25, 0.5, 1]),
    ]


@pytest.mark.slow
def test_a_heatmap_has_the_accuracies(tmp_path: Path) -> None:
    make(tmp_path, (*TAUS, "min-p"))
    change(tmp_path, lambda r: r["sampler"] != TAUS[0] or r["temperature"] == 1)
    summary = summarise(read_run(tmp_path))
    task = summary.tasks[0]
    axis: Any
    [axis] = heatmap_figure(task, sweeps(task), "flexible").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["0", "3", "10"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "5"]
    shown = {text.get_position(): text.get_text() for text in axis.texts if "–" not in text.get_text()}
    assert shown == {
        (x, y): f"{100 * task.cells[tau, t].accuracy['flexible'].value:.1f}"
        for y, tau in enumerate(TAUS)
        for x, t in enumerate((1.0, 5.0))
        if (tau, t) != (TAUS[0], 5.0)
    }
    assert any(picture.stem == "1-min-k-tau-strict" for picture in plot_pictures(summary, task))
    assert [axis.get_title() for axis in accuracy_figure(summary, task, "strict").axes] == ["min-p"]


def test_variants_are_compared_with_the_defaults(tmp_path: Path) -> None:
    summary = make(tmp_path, (MIN_K, *OTHERS, *MIN_P))
    task = summary.tasks[0]
    changed = variants(task)
    assert {m.sampler: default.sampler for m, default in changed.items()} == {
        **dict.fromkeys(OTHERS[:3], MIN_K),
        **{MIN_P[i]: MIN_P[1] for i in (0, 2)},
        **{MIN_P[i]: MIN_P[4] for i in (3, 5)},
    }
    table = ablations_table(task, "strict")
    assert table.title in [other.title for other in grid_tables(task)]
    lines = list(csv.DictReader(io.StringIO(ablations_to_csv(summary) or "")))
    in_csv = {(r["sampler"], r["temperature"]): r for r in lines if r["scoring"] == "strict"}
    assert len(table.rows) == len(changed) == len(lines) / 4  # temperatures, scorings
    for (method, default), row in zip(changed.items(), table.rows, strict=True):
        for t, entry in zip((1.0, 5.0), row[1:], strict=True):
            first, second = (task.cells[m.sampler, t].outcomes("strict") for m in (method, default))
            paired = compare(first, second)
            line = in_csv[method.sampler, f"{t:g}"]
            assert float(line["difference"]) == pytest.approx(paired.difference)
            assert (float(line["low"]), float(line["high"])) == pytest.approx(paired.interval)
            assert (line["default"], line["questions"]) == (default.sampler, "12")
            assert entry == TableEntry(points(paired.difference), " to ".join(map(points, paired.interval)))


def test_without_the_default_there_is_no_comparison(tmp_path: Path) -> None:
    summary = make(tmp_path, (TAUS[0], TAUS[2], OTHERS[1]))
    task = summary.tasks[0]
    assert (variants(task), sweeps(task)) == ({}, [])
    assert not any("minus" in table.title for table in grid_tables(task))
    assert ablations_to_csv(summary) is None
