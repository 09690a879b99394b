"""The pictures: their numbers are those of the tables, and each is there if it shows anything."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mink_local.evals.figures import GREY, Picture, accuracy_figure, cutoffs_figure, look
from mink_local.evals.run.records import read_run
from mink_local.evals.run.report import run_report
from mink_local.evals.run.summary import Summary, summarise
from tests.support.made_run import change, write_run

MIN_K = "min-k:tau=3"
FIRST, LAST = "top-p:p=0.9,order=temperature-first", "top-p:p=0.9,order=temperature-last"


def make(folder: Path, **options: Any) -> Summary:
    chosen = {"tasks": ("gsm8k",), "samplers": (MIN_K, "greedy", FIRST, LAST), "temperatures": (1.0, 10.0)}
    return summarise(read_run(write_run(folder, **chosen | {"n_questions": 6} | options)))


def lines_of(axis: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axis.lines if not line.get_label().startswith("_")}


def test_a_panel_has_a_method_in_both_orders_and_the_baseline(tmp_path: Path) -> None:
    summary = make(tmp_path)
    figure = accuracy_figure(summary.cells, summary.baseline)
    assert [axis.get_title() for axis in figure.axes] == ["greedy", "top-p:p=0.9"]
    shown = lines_of(figure.axes[1])
    assert list(shown) == [MIN_K, "top-p:p=0.9 (T first)", "top-p:p=0.9 (T last)"]
    assert shown[MIN_K].get_color() == GREY
    for sampler, line in zip((MIN_K, FIRST, LAST), shown.values(), strict=True):
        cells = summary.cells
        accuracies = cells[cells["sampler"] == sampler]["accuracy"]
        assert line.get_xydata().tolist() == [[t, 100 * a] for t, a in zip((1, 10), accuracies, strict=True)]
        assert line.get_linestyle() == look(sampler)["linestyle"]


def pictures_of(folder: Path) -> dict[str, Picture]:
    return {picture.stem: picture for picture in run_report(read_run(folder)).pictures}


def test_sizes_fall_from_one_hundred_percent_and_greedy_has_no_panel(tmp_path: Path) -> None:
    summary = make(tmp_path)
    figure = cutoffs_figure(pictures_of(tmp_path)["1-k"].data)
    assert [axis.get_title() for axis in figure.axes] == [
        *(MIN_K, "top-p:p=0.9 (T first)", "top-p:p=0.9 (T last)")
    ]
    line: Any = figure.axes[0].lines[0]
    x, y = line.get_data()
    cell = summary.responses[
        (summary.responses["sampler"] == MIN_K) & (summary.responses["temperature"] == 1)
    ]
    sizes = np.concatenate(list(cell["k"]))
    assert (y[0], max(x)) == (1, sizes.max())
    for k in set(sizes.tolist()):
        assert y[x == k][0] == pytest.approx((sizes >= k).mean())


@pytest.mark.parametrize("share", [1, 2, 9])
def test_axes_of_sizes_have_several_ticks(tmp_path: Path, share: int) -> None:
    """One k in ten, in two or in all, is 3: the shares lie in one decade."""
    make(tmp_path, samplers=(MIN_K,), temperatures=(1.0,), n_questions=1)
    change(tmp_path, lambda r: r.update(k=[1] * share + [3]))
    figure = cutoffs_figure(pictures_of(tmp_path)["1-k"].data)
    figure.draw_without_rendering()
    [axis] = figure.axes
    assert axis.get_ylim()[0] > 0.5 / (share + 1)  # the axis ends below the rarest k
    for labels in (axis.get_xticklabels(which="both"), axis.get_yticklabels(which="both")):
        assert len([label for label in labels if label.get_text()]) >= 2


@pytest.mark.parametrize(
    ("temperatures", "edit", "stems"),
    [
        ((1.0, 5.0), {}, {"1-accuracy", "1-k"}),
        ((1.0, 5.0), {"k": []}, {"1-accuracy"}),
        ((1.0,), {}, {"1-k"}),
        ((1.0, 5.0), {"strict": None, "flexible": None}, {"1-k"}),
    ],
)
def test_there_is_a_picture_for_what_is_known(
    tmp_path: Path, temperatures: tuple[float, ...], edit: dict[str, Any], stems: set[str]
) -> None:
    make(tmp_path, samplers=(MIN_K,), temperatures=temperatures, n_questions=1)
    found = pictures_of(change(tmp_path, lambda r: r.update(edit)))
    assert found.keys() == stems
    for picture in found.values():
        assert b"<svg" in picture.svg
        assert picture.description.endswith("gsm8k with tiny-model")
        assert picture.data is not None
