"""Win rates of one sampler over another, as judged by a model.

The unit of observation is the question: the win rate is the mean over questions of a question's share of
wins, with ties counting half, and its p-value tests the same mean.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.stats import ALPHA, Interval, holm, paired_test, share
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    count,
    p_value,
    percent,
    temperature_name,
    with_interval,
)
from mink_local.samplers import label

BOTH_ORDERS, PAPER = "both orders", "the paper's protocol"
N_ORDERS = {BOTH_ORDERS: 2, PAPER: 1}
"""Protocols: how a pair is judged, and in how many orders."""

QUESTION = ["task", "question_id"]
CELL = ["task", "model", "sampler", "against", "temperature"]
PAIR = [*CELL, "repeat", "question_id"]
_FAMILY = ["task", "model", "protocol"]  # what a table is about, whose rows are corrected together
_RATE = ["pairs", "missing", "questions", "win_rate", "won:tied:lost", "p", "p_holm"]

HOW_TO_READ = (
    "Win rate: the mean over questions of a question's share of wins, with ties counting half, or by the "
    "paper's protocol nothing. Identical responses are a tie that nobody is asked about. p is from the exact "
    "two-sided sign-flip test of wins against losses; Holm's, which decides, is corrected over the rows of "
    "a table. The 95% interval, over questions, is that of the test, and excludes 50% if p is at most 0.05.",
)
ABOUT_MODELS = (
    "Both orders: every pair of responses is judged in both orders. A sampler wins a pair if it is preferred "
    "in both; if the orders disagree, the pair is a tie.",
    "The paper's protocol: every pair is judged in one random order by five criteria (helpfulness, "
    "relevance, accuracy, creativity, level of detail), and only a win counts, so that two equal samplers "
    "have less than 50% if there are ties. Its interval is Clopper and Pearson's, with an effective number "
    "of questions: whether 50% is in it says nothing, p decides.",
    "A judge is a model with preferences of its own, for instance for long answers: the table shows what it "
    "prefers, not what people do.",
)


def win_rates(pairs: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return a row with the win rate for every group of judged pairs; a group has one protocol.

    Args:
        pairs: A row per pair and judge, as returned by `judged_pairs`. `outcome` is 1 if `sampler` wins, 0
            for a tie, -1 if it loses, NaN without a judgement.
        by: The columns to group by.
    """
    rows: list[dict[str, Any]] = []
    for key, group in pairs.groupby(list(by), sort=False):
        found = group.dropna(subset="outcome")
        row = dict(zip(by, key, strict=True))
        row["pairs"] = len(group.drop_duplicates(PAIR))
        row["missing"] = len(group) - len(found)
        if len(found):
            questions = found.groupby(QUESTION).outcome.agg(["sum", "size"]).astype(int)
            row["questions"] = len(questions)
            test = paired_test(list(questions["sum"]), list(questions["size"]))
            row["win_rate"] = Interval(*((1 + gain) / 2 for gain in test.difference))
            if found.protocol.iloc[0] == PAPER:
                row["win_rate"] = mean_by_question(found, (found.outcome == 1).astype(float))
            row["won:tied:lost"] = ":".join(str((found.outcome == sign).sum()) for sign in (1, 0, -1))
            row["p"] = test.p
        rows.append(row)
    families: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "p" in row:
            families.setdefault(tuple(row.get(name) for name in _FAMILY), []).append(row)
    for family in families.values():
        for row, adjusted in zip(family, holm([row["p"] for row in family]), strict=True):
            row["p_holm"] = adjusted
    return pd.DataFrame(rows, columns=[*by, *_RATE])


def judged_pairs(judgements: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pair, judge and protocol.

    `inconsistent` is whether the orders disagree. Of several judgements of a pair, the last one counts.
    """
    last = judgements.drop_duplicates(["judge", "protocol", *PAIR, "order"], keep="last")
    side = np.where(last.order == "first is A", 1, -1)
    last = last.assign(sign=last.winner.map({"A": 1.0, "B": -1.0, "tie": 0.0}) * side)
    pairs = last.groupby(["judge", "protocol", *PAIR], sort=False).agg(
        n=("sign", "count"),
        low=("sign", "min"),
        high=("sign", "max"),
        n_attempts=("attempts", "max"),
        is_cut=("is_cut", "any"),
    )
    agree = pairs.low == pairs.high
    pairs["identical"] = pairs.n_attempts == 0
    complete = pairs.n == pairs.index.get_level_values("protocol").map(N_ORDERS)
    pairs["inconsistent"] = complete & ~agree
    pairs["outcome"] = pairs.low.where(agree, 0.0).where(complete)
    return pairs.reset_index()


def mean_by_question(rows: pd.DataFrame, values: pd.Series) -> Interval:
    """Return the mean over questions of a question's mean value; `values`, 0 to 1, has one per row."""
    return share(list(values.groupby([rows[name] for name in QUESTION]).mean()))


def report_judgements(results: Results) -> Report:
    """Return the report on judgements by models."""
    pairs = judged_pairs(results.frame)
    by = ["judge", "protocol", *CELL]
    sums = pairs.groupby(by, sort=False)[["identical", "inconsistent"]].sum().reset_index()
    rates = win_rates(pairs, by).merge(sums, on=by)
    findings = [
        finding
        for (judge, protocol), own in results.frame.groupby(["judge", "protocol"], sort=False)
        for finding in _findings(own, pairs[(pairs.judge == judge) & (pairs.protocol == protocol)])
    ]
    return _report("judge", "Win rates by a model", rates, results.rows.left_out, findings, ABOUT_MODELS)


def missing_share(judgements: pd.DataFrame, judge: str) -> float:
    """Return the share of pairs shown to a judge that lack a readable judgement in both orders."""
    pairs = judged_pairs(judgements[judgements.judge == judge])
    shown = pairs[~pairs.identical]
    return float(shown.outcome.isna().mean()) if len(shown) else 0.0


def _findings(judgements: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return what a judge has judged by one protocol, and how far it can be trusted."""
    judge, protocol = str(pairs.judge.iloc[0]), pairs.protocol.iloc[0]
    n_identical = f"{pairs.identical.sum():,} of them are identical"
    found = [f"{judge} judged {count(len(pairs), 'pair')} by {protocol}; {n_identical}."]
    seen = judgements[(judgements.attempts > 0) & judgements.winner.notna()]
    complete = pairs[(~pairs.identical) & pairs.outcome.notna()]
    if len(complete):
        first = mean_by_question(seen, seen.winner.map({"A": 1.0, "tie": 0.5, "B": 0.0}))
        disagree = mean_by_question(complete, complete.inconsistent.astype(float))
        position = (
            f"the answer shown first wins {_in_words(first)} of the time (ties count half; 50% if unbiased)"
        )
        also = f", and the two orders disagree for {_in_words(disagree)} of the pairs" * (
            protocol == BOTH_ORDERS
        )
        found.append(f"Position: {position}{also}.")
        if not first.low <= 0.5 <= first.high:
            place = "first" if first.value > 0.5 else "second"
            found.append(f"It prefers whichever answer is shown {place}.")
        if disagree.value >= 0.5:
            found.append("The orders disagree for most pairs: this judge says little about these samplers.")
    if missing := int(pairs.outcome.isna().sum()):
        found.append(f"{count(missing, 'pair')} without a readable judgement excluded.")
    if n_cut := int(pairs.is_cut.sum()):
        found.append(f"In {count(n_cut, 'pair')}, it saw only the beginning of a long response.")
    if judge.partition(" at ")[0] in set(judgements.model):
        found.append("It wrote some of the responses itself, and may prefer its own style.")
    return found


def _report(
    name: str,
    title: str,
    rates: pd.DataFrame,
    left_out: str | None,
    findings: Sequence[str],
    about: Sequence[str],
) -> Report:
    notes = list(filter(None, [left_out]))
    tables = [_table(part, rows) for part, rows in rates.groupby(_FAMILY, sort=False)]
    sections = [Section(title, tables, findings), Section("How to read this", [*about, *HOW_TO_READ])]
    said = {"notes": [*notes, *findings]}
    return Report(name, title, notes, sections, tables, about=said, frames={"rows": rates})


_HEADINGS = {
    "sampler": "method",
    "against": "against",
    "temperature": "T",
    "judge": "judge",
    "pairs": "pairs",
    "win_rate": "win rate, %",
    "won:tied:lost": "won:tied:lost",
    "inconsistent": "disagree",
    "identical": "identical",
    "missing": "missing",
    "p": "p",
}


def _table(part: Iterable[str], rows: pd.DataFrame) -> Table:
    """Return the table for a task, model and protocol, without empty columns."""
    p_values = [
        Cell(p_value(p), f"Holm {p_value(adjusted)}", bold=adjusted <= ALPHA) if p == p else Cell()
        for p, adjusted in zip(rows.p, rows.p_holm, strict=True)
    ]
    shown = rows.assign(p=p_values, sampler=rows.sampler.map(label), against=rows.against.map(label))
    columns = [name for name in _HEADINGS if name in shown and shown[name].notna().any()]
    if rows.get("judge", pd.Series()).nunique() == 1:
        columns.remove("judge")
    formats: dict[str, Format] = {"T": temperature_name, "win rate, %": with_interval(percent)}
    keys = sum(name in ("sampler", "against", "temperature", "judge") for name in columns)
    frame = shown[columns].rename(columns=_HEADINGS)
    return Table(" · ".join(dict.fromkeys(part)), frame, keys, formats)


def _in_words(found: Interval) -> str:
    return f"{percent(found.value)}% [{percent(found.low)}–{percent(found.high)}]"
