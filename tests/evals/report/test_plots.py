"""The pictures: which there are, and that their lines and points are the cells'."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.container import BarContainer
from scipy.stats import ttest_1samp

from mink_local.evals.report import plots
from mink_local.evals.report.plots import (
    accuracy_figure,
    attempts_figure,
    bins_figure,
    cutoffs_figure,
    diversity_figure,
    plot_pictures,
)
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.summary import Method, Summary, summarise
from tests.support.made_run import change, judge, write_run

MIN_K, SIGMA = "min-k:tau=3", "top-n-sigma:n=1"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"


def make(folder: Path, **options: Any) -> Summary:
    chosen: dict[str, Any] = {
        "samplers": (MIN_K, SIGMA, FIRST, LAST),
        "temperatures": (1.0, 10.0),
        "n_questions": 20,
    }
    write_run(folder, tasks=("gsm8k",), **chosen | options)
    return summarise(read_run(folder))


def lines_of(axis: Any) -> dict[str, Any]:
    """Return the lines of a panel that are in its legend."""
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def test_a_panel_has_the_accuracies_of_a_method_and_the_baseline(tmp_path: Path) -> None:
    summary = make(tmp_path)
    task = summary.tasks[0]
    axes = accuracy_figure(summary, task, "flexible").axes
    assert [axis.get_title() for axis in axes] == ["top-p:p=0.9", SIGMA]
    shown = {**lines_of(axes[0]), **lines_of(axes[1])}
    for label, sampler in ((MIN_K, MIN_K), ("T first", FIRST), ("T last", LAST), (SIGMA, SIGMA)):
        t, value = shown[label].get_data()
        assert list(t) == [1, 10]
        assert list(value) == pytest.approx(
            [100 * task.cells[sampler, t].accuracy["flexible"].value for t in (1.0, 10.0)]
        )
    assert (
        len({(line.get_color(), line.get_marker()) for line in shown.values()}) == 3
    )  # SIGMA: a first line too
    assert (shown["T first"].get_linestyle(), shown["T last"].get_linestyle()) == ("--", "-")


def test_markers_are_hollow_without_a_significant_difference(tmp_path: Path) -> None:
    make(tmp_path, samplers=(MIN_K, SIGMA))
    judge(
        tmp_path,
        lambda r: int(r["question_id"]) < (20 if r["sampler"] == SIGMA and r["temperature"] == 10 else 5),
    )
    summary = summarise(read_run(tmp_path))
    axis: Any
    [axis] = accuracy_figure(summary, summary.tasks[0], "strict").axes
    hollow = [line.get_xydata().tolist() for line in axis.lines if line.get_markerfacecolor() == "white"]
    assert hollow == [[[1, 25]]]


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0, 1.5, 5.0])
def test_one_temperature_is_in_the_middle_of_its_panel(tmp_path: Path, temperature: float) -> None:
    summary = make(tmp_path, n_questions=2, samplers=(MIN_K, SIGMA))
    change(tmp_path, lambda r: r["temperature"] == 1 and r.update(temperature=temperature) is None)
    summary = summarise(read_run(tmp_path))
    figure = accuracy_figure(summary, summary.tasks[0], "strict")
    figure.draw_without_rendering()
    axis = figure.axes[0]
    x, _ = axis.transAxes.inverted().transform(axis.transData.transform((temperature, 0)))
    assert x == pytest.approx(0.5)


@pytest.mark.parametrize("samplers", [(MIN_K, SIGMA), (MIN_K, SIGMA, FIRST, "min-p:p=0.1")])
def test_captions_are_within_the_picture(tmp_path: Path, samplers: tuple[str, ...]) -> None:
    summary = make(tmp_path, samplers=samplers, n_questions=2)
    for make_figure in (partial(accuracy_figure, summary), diversity_figure):
        figure: Any = make_figure(summary.tasks[0], "strict")
        figure.draw_without_rendering()
        note, panel = figure._suptitle.get_window_extent(), figure.axes[0].title.get_window_extent()
        assert note.x1 <= figure.bbox.x1
        assert panel.y1 <= note.y0 < note.y1 <= figure.bbox.y1


def test_a_point_has_diversity_accuracy_and_the_marker_of_its_temperature(tmp_path: Path) -> None:
    """No text lies over points and lines; greedy, the same at every temperature, is one point."""
    task = make(tmp_path, samplers=("greedy", FIRST, LAST)).tasks[0]
    figure: Any = diversity_figure(task, "strict")
    greedy, both = figure.axes
    line: Any = lines_of(both)["T last"]
    cells: Any = [task.cells[LAST, t] for t in (1.0, 10.0)]
    wanted = [[100 * c.diversity.ead, 100 * c.accuracy["strict"].value] for c in cells]
    assert line.get_xydata().tolist() == wanted
    legend = {line.get_label(): line.get_marker() for line in figure.legends[0].get_lines()}
    assert legend == {"T = 1": "o", "T = 10": "s"}
    for point, marker in zip(wanted, legend.values(), strict=True):
        assert marker in [line.get_marker() for line in both.lines if line.get_xydata().tolist() == [point]]
    assert [len(line.get_xdata()) for line in lines_of(greedy).values()] == [1]
    assert not any(axis.texts for axis in figure.axes)


def test_attempts_are_lines_of_methods(tmp_path: Path) -> None:
    task = make(tmp_path, samplers=(MIN_K, "greedy", FIRST), repeats=4).tasks[0]
    passed, hot, majority, _ = attempts_figure(task, "flexible").axes
    assert (passed.get_title(), hot.get_title()) == ("T = 1", "T = 10")
    for axis, name in ((passed, "passed"), (majority, "majority")):
        shown = lines_of(axis)
        assert list(shown) == [MIN_K, "greedy", "top-p:p=0.9 (T first)"]
        for line, sampler in zip(shown.values(), (MIN_K, "greedy", FIRST), strict=True):
            found = task.cells[sampler, 1.0].attempts["flexible"]
            assert line.get_xydata().tolist() == [[a.k, 100 * getattr(a, name).value] for a in found]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_the_frontier_is_of_points_that_no_other_beats(pairs: list[tuple[int, int]]) -> None:
    """A corner that is a point is not beaten in both, and the stairs are above every point."""
    stairs = plots._frontier(np.array(pairs, np.float64)).tolist()
    assert stairs == sorted(stairs, key=lambda corner: (corner[0], -corner[1]))
    for x, y in pairs:
        assert max(height for right, height in stairs if right >= x) >= y
    for x, y in pairs:
        beaten = any(a >= x and b >= y and (a, b) != (x, y) for a, b in pairs)
        assert beaten or [x, y] in stairs


def test_sizes_fall_from_one_hundred_percent(tmp_path: Path) -> None:
    task = make(tmp_path).tasks[0]
    axes = cutoffs_figure(task).axes
    assert [axis.get_title() for axis in axes] == [str(method) for method in task.methods]
    line: Any = axes[0].lines[0]
    x, y = line.get_data()
    sizes = [k for response in task.cells[MIN_K, 1.0].responses for k in response.k]
    assert (x[0], y[0], max(x)) == (1, 100, max(sizes))
    assert y[-1] == pytest.approx(100 * sizes.count(max(sizes)) / len(sizes))


def test_the_sizes_of_min_k_are_compared_between_temperatures(tmp_path: Path) -> None:
    """At T = 1 and at T = 5, with what counting says; for one temperature there is nothing to compare."""
    task = make(tmp_path, samplers=(MIN_K, "greedy"), temperatures=(1.0, 5.0), n_questions=6).tasks[0]
    axis: Any
    [axis] = bins_figure(task, Method(MIN_K, None)).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["T = 1", "T = 5"]
    lows = (1, 2, 3, 4, 5, 9, 17, 33)
    bins = {label.get_text(): i for i, label in enumerate(axis.get_xticklabels())}
    assert list(bins) == ["1", "2", "3", "4", "5–8", "9–16", "17–32", "33+"]
    bars = [container for container in axis.containers if isinstance(container, BarContainer)]
    for t, container in zip((1.0, 5.0), bars, strict=True):
        shares: dict[str, list[int]] = {}
        for response in task.cells[MIN_K, t].responses:
            shares.setdefault(response.question_id, []).extend(response.k)
        heights = [bar.get_height() for bar in container]
        for name, fits in (
            ("1", lambda k: k == 1),
            ("5–8", lambda k: 5 <= k <= 8),
            ("33+", lambda k: k >= 33),
        ):
            means = [100 * sum(map(fits, k)) / len(k) for k in shares.values()]
            assert heights[bins[name]] == pytest.approx(np.mean(means))
            mean, half = task.cells[MIN_K, t].cutoff_shares(lows)[:, bins[name]]
            expected = ttest_1samp(means, 0).confidence_interval()
            assert (100 * (mean - half), 100 * (mean + half)) == pytest.approx(tuple(expected))
        assert sum(heights) == pytest.approx(100)


@pytest.mark.parametrize("share", [1, 2, 9])
def test_axes_of_sizes_have_several_ticks(tmp_path: Path, share: int) -> None:
    """One k in ten, in two or in all, is 3: the shares lie in one decade."""
    make(tmp_path, samplers=(MIN_K,), temperatures=(1.0,), n_questions=1)
    change(tmp_path, lambda r: r.update(k=[1] * share + [3]))
    figure = cutoffs_figure(summarise(read_run(tmp_path)).tasks[0])
    figure.draw_without_rendering()
    for ticks in (figure.axes[0].xaxis, figure.axes[0].yaxis):
        low, high = sorted(ticks.get_view_interval())
        assert sum(low <= tick <= high for tick in ticks.get_majorticklocs()) >= 2


@pytest.mark.parametrize(
    ("edit", "stems"),
    [
        ({}, ["accuracy", "attempts", "diversity", "k"]),
        ({"k": []}, ["accuracy", "attempts", "diversity"]),
        ({"response": ""}, ["accuracy", "attempts", "k"]),
        ({"repeat": 0}, ["accuracy", "k"]),
        ({"strict": {"answer": None, "correct": False}}, ["accuracy", "attempts", "diversity", "k"]),
    ],
)
def test_there_is_a_picture_for_what_is_known(tmp_path: Path, edit: dict[str, Any], stems: list[str]) -> None:
    make(tmp_path, samplers=(MIN_K,), temperatures=(0.5,), n_questions=1)
    summary = summarise(read_run(change(tmp_path, lambda r: r.update(edit))))
    pictures = list(plot_pictures(summary, summary.tasks[0]))
    scorings = ("flexible",) if "strict" in edit else ("strict", "flexible")
    expected = [f"1-{name}-{s}" for name in stems if name != "k" for s in scorings]
    expected += ["1-k"] if "k" in stems else []
    assert [picture.stem for picture in pictures] == expected
    assert all(b"<svg" in picture.svg for picture in pictures)
    assert (
        pictures[0].description
        == f"{scorings[0].capitalize()} accuracy against temperature, gsm8k with tiny-model"
    )
    assert list(plot_pictures(summary, summary.tasks[0])) == pictures
