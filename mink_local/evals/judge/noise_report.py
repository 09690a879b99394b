"""The report of semantic noise: its share by sampler and temperature, and how well each judge knows it.

A reference is judged like a judge: a response collapses at the first sentence whose mean log-probability is
below a threshold, which is the one that is right most often on the calibration's responses.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from mink_local.errors import ReportError
from mink_local.evals.figures import GREY, NOTE, Picture, looks
from mink_local.evals.judge.splices import COHERENT, WHOLE
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.run.summary import sampler_rank, with_copies
from mink_local.evals.stats import share
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    count,
    grid,
    percent,
    points,
    with_interval,
)
from mink_local.samplers import label

GROUP = ["judge", "task", "model"]
CELL = [*GROUP, "sampler", "temperature"]
_LEAST = 1e-3  # the figure's lower end, which stands for 0
_percent = with_interval(percent)

HOW_TO_READ = (
    "Semantic noise: the share of a response's characters from its collapse on, 0 if it is coherent; the "
    "mean over questions, with 95% intervals over questions: Clopper and Pearson's, with an effective number "
    "of questions, because a bootstrap of responses without noise has no width. The collapse is the first "
    "sentence of nonsense, endless repetition or another topic, as the judge sees it (the paper's section "
    "4.5 and appendix D). Greedy decoding is run once, and its row repeats those responses.",
    "A judge errs: its calibration says how often and by how many sentences, on responses of this run that "
    "collapse at a known sentence into what top-p wrote at T = 10 (word salad), into repetition of their "
    "last sentence, or into prose on other topics; a tenth are whole. Error of the noise: the noise as "
    "judged minus the true one, in points. Without an answer that can be read, or with a response too long "
    "to be shown whole whose beginning is coherent, there is no judgement.",
    "Log-probability: no judge, but a reference model; a response collapses at the first sentence whose mean "
    "log-probability is below a threshold: the one that names the right sentence of the calibration most "
    "often, all kinds counting alike. In the calibration, each response is judged by the threshold that "
    "suits all others best. Repetition is probable: it is hardly ever found.",
)


def noise_of(lengths: list[int], sentence: int) -> float:
    """Return the semantic noise of a response, given its sentences' lengths and the first of the collapse."""
    return 0.0 if sentence == COHERENT else sum(lengths[sentence - 1 :]) / sum(lengths)


def first_below(scores: list[float], threshold: float) -> int:
    """Return the first sentence, from 1, with a score below a threshold, or `COHERENT`."""
    return next((number for number, score in enumerate(scores, 1) if score < threshold), COHERENT)


def fit_threshold(rows: pd.DataFrame) -> float:
    """Return the threshold that names the right sentence of spliced responses most often.

    All kinds of collapse, and whole responses, count alike: the few whole ones stand for most of what is
    judged. Of thresholds that are right as often, the middle one is returned.

    Args:
        rows: Rows of a reference with `scores`, `kind` and `known`.
    """
    lows = [np.minimum.accumulate(scores) for scores in rows["scores"]]  # an answer changes only at these
    steps = np.unique(np.concatenate(lows))
    thresholds = np.concatenate([[-np.inf], (steps[1:] + steps[:-1]) / 2, [np.inf]])
    right = np.zeros(len(thresholds))
    weights = 1 / rows.groupby("kind")["kind"].transform("size")
    for low, known, weight in zip(lows, rows["known"], weights, strict=True):
        below = low < thresholds[:, None]
        right += weight * (np.where(below.any(axis=1), below.argmax(axis=1) + 1, COHERENT) == known)
    best = np.flatnonzero(np.isclose(right, right.max()))
    return float(thresholds[best[len(best) // 2]])


def judged(rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows with a `sentence`, and their `noise`; and a caveat for a reference without one."""
    found, notes = [], []
    for judge, own in rows.groupby("judge", sort=False):
        if own["scores"].notna().all():
            known = own[own["kind"] != ""]
            if known.empty:
                notes.append(f"{judge}: without a threshold; fit it with --calibrate.")
                continue
            threshold = fit_threshold(known)
            others = {one: fit_threshold(known.drop(one)) for one in known.index} if len(known) > 1 else {}
            own = own.assign(
                sentence=[
                    first_below(scores, others.get(index, threshold))
                    for index, scores in own["scores"].items()
                ]
            )
        found.append(own.dropna(subset="sentence"))
    every = pd.concat(found) if found else rows[:0]
    every = every.assign(sentence=every["sentence"].astype(int))
    return every.assign(noise=[noise_of(row.lengths, row.sentence) for row in every.itertuples()]), notes


def cells(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per judge, task, model, sampler and temperature with its noise as an interval.

    Greedy responses are copied to every temperature.
    """
    every = with_copies(rows, GROUP, ["temperature"])
    found = [
        {
            **dict(zip(CELL, key, strict=True)),
            "questions": cell["question_id"].nunique(),
            "responses": len(cell),
            "collapsed": float((cell["sentence"] != COHERENT).mean()),
            "noise": share(cell.groupby("question_id")["noise"].mean().tolist()),
        }
        for key, cell in every.groupby(CELL, sort=False)
    ]
    rank = {sampler: sampler_rank(sampler) for sampler in every["sampler"].unique()}
    found.sort(key=lambda cell: (*(cell[name] for name in GROUP), rank[cell["sampler"]], cell["temperature"]))
    return pd.DataFrame(found, columns=[*CELL, "questions", "responses", "collapsed", "noise"])


def calibration(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per judge and kind of splice: how often and by how much it is off.

    Args:
        rows: Judged rows of spliced responses.
    """
    off = (rows["sentence"] - rows["known"].astype(int)).abs()
    both = (rows["sentence"] != COHERENT) & (rows["kind"] != WHOLE)
    rows = rows.assign(
        exact=off == 0,
        near=(off <= 1) & (both | (off == 0)),
        missed=(rows["sentence"] == COHERENT) & (rows["kind"] != WHOLE),
        off=off.where(both),
        error=rows["noise"] - [noise_of(row.lengths, int(row.known)) for row in rows.itertuples()],
    )
    found = rows.groupby(["judge", "kind"], sort=False)
    return found.agg(
        responses=("exact", "size"),
        exact=("exact", lambda right: share(right.astype(float).tolist())),
        near=("near", "mean"),
        missed=("missed", "mean"),
        off=("off", "median"),
        error=("error", "mean"),
    ).reset_index()


def said_of(judge: str, known: pd.DataFrame) -> str:
    """Return a sentence on how good a judge is, by its calibration."""
    own = known[known["judge"] == judge]
    if own.empty:
        return f"{judge} was not calibrated: how good it is, is unknown; add --calibrate."
    weights = own["responses"].to_numpy()
    mean = {name: float(np.average(own[name], weights=weights)) for name in ("near", "error")}
    exact = float(np.average([one.value for one in own["exact"]], weights=weights))
    broken, whole = own[own["kind"] != WHOLE], own[own["kind"] == WHOLE]
    missed = float(np.average(broken["missed"], weights=broken["responses"])) if len(broken) else 0.0
    alarms = "".join(
        f", calls {percent(1 - one.value)}% of the whole ones collapsed" for one in whole["exact"]
    )
    return (
        f"Calibration: {judge} names the right sentence in {percent(exact)}% of "
        f"{count(int(weights.sum()), 'response')} whose collapse is known, one within a sentence of it in "
        f"{percent(mean['near'])}%{alarms}, and misses {percent(missed)}% of the collapses; its noise is off "
        f"by {points(mean['error'])} points on average."
    )


def report(results: Results) -> Report:
    """Return the report on semantic noise. Raises ReportError if nothing has been judged yet."""
    frame = results.frame
    rows, notes = judged(frame)
    is_known = rows["kind"] != ""
    known, own = calibration(rows[is_known]), cells(rows[~is_known])
    if rows.empty:
        raise ReportError(f"{results.folder} contains no judgement that can be read: {'; '.join(notes)}")
    n_missing = int(frame["sentence"].isna().sum() - frame["scores"].notna().sum())
    if n_missing:
        notes.append(f"{count(n_missing, 'response')} without a judgement excluded.")
    parts = enumerate(own.groupby(GROUP, sort=False), start=1)
    sections = [_section(number, list(map(str, key)), part) for number, (key, part) in parts]
    judges = list(rows["judge"].unique())
    calibrated = [_calibration_table(known)] if len(known) else []
    findings = [said_of(judge, known) for judge in judges]
    about = Section("How good the judges are", calibrated, findings)
    tables = [part for section in (*sections, about) for part in section.parts if isinstance(part, Table)]
    return Report(
        "noise",
        "Semantic noise",
        [*filter(None, [results.rows.left_out]), *notes],
        [*sections, about, Section("How to read this", HOW_TO_READ)],
        tables,
        frames={"cells": own, "calibration": known},
        csv={"noise": own},
    )


def _section(number: int, key: Sequence[str], part: pd.DataFrame) -> Section:
    judge, task, model = key
    title = f"{task} with {model}, judged by {judge}"
    shown = part.assign(
        method=part["sampler"].map(label),
        cell=[
            Cell(_percent(row.noise).text, f"{_percent(row.noise).below}, collapsed {percent(row.collapsed)}")
            for row in part.itertuples()
        ],
    )
    table = Table(
        f"{title}: semantic noise, % (below: responses that collapse, %)",
        grid(shown, "method", "temperature", "cell"),
    )
    picture = Picture.of(f"noise-{number}", f"Semantic noise, {title}", lambda: _figure(part))
    return Section(title, [table], lead=picture if part["temperature"].nunique() > 1 else None)


def _calibration_table(known: pd.DataFrame) -> Table:
    heads = {
        "judge": "judge",
        "kind": "collapse",
        "responses": "responses",
        "exact": "right, %",
        "near": "within 1, %",
        "missed": "missed, %",
        "off": "off by",
        "error": "error of the noise",
    }
    formats: dict[str, Format] = {
        "right, %": _percent,
        "within 1, %": percent,
        "missed, %": percent,
        "off by": "{:g}".format,
        "error of the noise": points,
    }
    shown = known.assign(missed=known["missed"].where(known["kind"] != WHOLE))
    return Table("Calibration on responses whose collapse is known", shown.rename(columns=heads), 2, formats)


def _figure(part: pd.DataFrame) -> Figure:
    """Draw noise over temperature, a line per sampler with its intervals; greedy is a grey line."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axis = figure.subplots()
    samplers = list(part["sampler"].unique())
    look_of = looks(samplers)
    for place, sampler in enumerate(samplers):
        line = part[part["sampler"] == sampler]
        value, low, high = np.clip(np.array(list(line["noise"])).T, _LEAST, 1)
        style = look_of[sampler] | ({"color": GREY} if sampler == "greedy" else {})
        shift = 1.03 ** (place - (len(samplers) - 1) / 2)  # so that no interval covers another
        axis.errorbar(
            line["temperature"] * shift, value, (value - low, high - value), **style,
            markersize=5, linewidth=1.2, elinewidth=0.8, capsize=2, label=label(sampler),
        )  # fmt: skip
    temperatures = sorted(part["temperature"].unique())
    axis.set(
        xscale="log", yscale="log", ylim=(0.8 * _LEAST, 1.2), xlabel="temperature", ylabel="semantic noise"
    )
    axis.set_xticks(temperatures, [f"{t:g}" for t in temperatures])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda noise, _: f"{100 * noise:g}%")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    figure.suptitle(f"Bars: 95% intervals. At the lower end: {100 * _LEAST:g}% or less.", **NOTE)
    return figure
