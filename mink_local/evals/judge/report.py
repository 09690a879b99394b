"""What a judge says: win rates of one sampler over another.

The unit of observation is the question: the win rate is the mean over questions of a question's share of
wins, with ties counting half, and its p-value tests the same mean.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
    columns_of,
    count,
    p_value,
    percent,
    temperature_name,
)
from mink_local.samplers import label

BOTH_ORDERS, PAPER = "both orders", "the paper's protocol"
N_ORDERS = {BOTH_ORDERS: 2, PAPER: 1}
"""Protocols: how a pair is judged, and in how many orders."""

QUESTION = ["task", "question_id"]
CELL = ["task", "model", "sampler", "against", "temperature"]
PAIR = [*CELL, "repeat", "question_id"]
_FAMILY = ["task", "model", "protocol"]  # what a table is about, whose rows are corrected together
_RATED = ["judge", "protocol", *CELL]
_RATE = ["pairs", "missing", "questions", *columns_of(None, "win_rate"), "won:tied:lost", "p"]
_RATE += ["identical", "inconsistent"]

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
    "of questions: read p, not whether it contains 50%.",
    "A judge is a model with preferences of its own, for instance for long answers: the table shows what it "
    "prefers, not what people do.",
)


def win_rates(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row with the win rate for each judge, protocol, task, model, sampler and temperature.

    Args:
        pairs: A row per pair and judge, as returned by `judged_pairs`. `outcome` is 1 if `sampler` wins, 0
            for a tie, -1 if it loses, NaN without a judgement.
    """
    rows = []
    for key, group in pairs.groupby(_RATED, sort=False):
        found = group.dropna(subset="outcome")
        row = dict(zip(_RATED, key, strict=True)) | group[["identical", "inconsistent"]].sum().to_dict()
        row |= {"pairs": len(group), "missing": len(group) - len(found)}
        rows.append(row | (_outcomes(found) if len(found) else {}))
    return corrected(pd.DataFrame(rows, columns=[*_RATED, *_RATE]), _FAMILY)


def _outcomes(found: pd.DataFrame) -> dict[str, Any]:
    """Return the win rate of judged pairs, and its test."""
    questions = found.groupby(QUESTION).outcome.agg(["sum", "size"]).astype(int)
    test = paired_test(list(questions["sum"]), list(questions["size"]))
    rate = Interval(*((1 + gain) / 2 for gain in test.difference))
    if found.protocol.iloc[0] == PAPER:
        rate = mean_by_question(found, (found.outcome == 1).astype(float))
    won = ":".join(str((found.outcome == sign).sum()) for sign in (1, 0, -1))
    return {"questions": test.n, **columns_of(rate, "win_rate"), "won:tied:lost": won, "p": test.p}


def corrected(rows: pd.DataFrame, family: Sequence[str]) -> pd.DataFrame:
    """Return rows with `p_holm`: Holm's correction of `p` over the rows of a table."""
    tested = rows.dropna(subset="p").groupby(list(family), sort=False)["p"]
    return rows.assign(p_holm=tested.transform(lambda p: holm(p.tolist())))


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
    rates = win_rates(pairs)
    findings = [
        finding
        for (judge, protocol), own in results.frame.groupby(["judge", "protocol"], sort=False)
        for finding in _findings(own, pairs[(pairs.judge == judge) & (pairs.protocol == protocol)])
    ]
    tables = [
        rate_table(" · ".join(dict.fromkeys(part)), rows) for part, rows in rates.groupby(_FAMILY, sort=False)
    ]
    sections = [
        Section("Win rates by a model", tables, findings),
        Section("How to read this", [*ABOUT_MODELS, *HOW_TO_READ]),
    ]
    return judged_report("judge", "Win rates by a model", results, sections, rates)


def _findings(judgements: pd.DataFrame, pairs: pd.DataFrame) -> list[str]:
    """Return what a judge has judged by one protocol, and how far it can be trusted."""
    judge, protocol = str(pairs.judge.iloc[0]), pairs.protocol.iloc[0]
    found = [
        f"{judge} judged {count(len(pairs), 'pair')} by {protocol}; identical: {pairs.identical.sum():,}."
    ]
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
        if disagree.value >= 0.5:
            found.append("The orders disagree for most pairs: this judge says little about these samplers.")
    if missing := int(pairs.outcome.isna().sum()):
        found.append(f"{count(missing, 'pair')} without a readable judgement excluded.")
    if n_cut := int(pairs.is_cut.sum()):
        found.append(f"In {count(n_cut, 'pair')}, it saw only the beginning of a long response.")
    if judge.partition(" at ")[0] in set(judgements.model):
        found.append("It wrote some of the responses itself, and may prefer its own style.")
    return found


def judged_report(
    name: str, title: str, results: Results, sections: Sequence[Section], rates: pd.DataFrame
) -> Report:
    notes = list(filter(None, [results.rows.left_out]))
    tables = [part for part in sections[0].parts if isinstance(part, Table)]
    said = {"notes": [*notes, *sections[0].findings]}
    return Report(name, title, notes, sections, tables, about=said, frames={"rows": rates}, csv={name: rates})


_COLUMNS: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "against": ("against", label),
    "temperature": ("T", temperature_name),
    "judge": ("judge", str),
    "pairs": ("pairs", str),
    "questions": ("questions", str),
    "win_rate": ("win rate, %", percent),
    "won:tied:lost": ("won:tied:lost", str),
    "inconsistent": ("disagree", str),
    "identical": ("identical", str),
    "missing": ("missing", str),
    "p": ("p", str),
}


def rate_table(
    title: str, rows: pd.DataFrame, more: Mapping[str, tuple[str, Format]] = MappingProxyType({})
) -> Table:
    """Return the table of a family of rows, without empty columns; `more` are further columns."""
    p_values = [
        Cell(p_value(p), f"Holm {p_value(adjusted)}", bold=adjusted <= ALPHA) if p == p else Cell()
        for p, adjusted in zip(rows.p, rows.p_holm, strict=True)
    ]
    shown = rows.assign(p=p_values).dropna(axis="columns", how="all")
    if rows.get("judge", pd.Series()).nunique() == 1:
        shown = shown.drop(columns="judge")
    keys = sum(name in ("sampler", "against", "temperature", "judge") for name in shown)
    return Table.of(title, shown, {**_COLUMNS, **more}, keys)


def _in_words(found: Interval) -> str:
    return f"{percent(found.value)}% [{percent(found.low)}–{percent(found.high)}]"
