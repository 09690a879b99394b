"""What a judge says: win rates of one sampler over another.

The unit of observation is the question: the win rate is the mean over questions of a question's share of
wins, with ties counting half, and its p-value tests the same mean.
"""

from collections.abc import Iterator, Mapping, Sequence
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

QUESTION = ["task", "question_id"]
CELL = ["task", "model", "sampler", "against", "temperature"]
PAIR = [*CELL, "repeat", "question_id"]
_FAMILY = ["task", "model"]  # what a table is about, whose rows are corrected together
_RATED = ["judge", *CELL]
_RATE = ["pairs", "missing", "questions", *columns_of(None, "win_rate"), "won_tied_lost", "p"]
_RATE += ["identical"]

HOW_TO_READ = (
    "As in the paper, every pair of responses is judged once, in a random order, by five criteria "
    "(helpfulness, relevance, accuracy, creativity, level of detail). Win rate: the mean over questions of a "
    "question's share of wins. A tie is no win, so that two equal samplers have less than 50% if there are "
    "ties; identical responses are a tie that nobody is asked about. Its 95% interval is Clopper and "
    "Pearson's, with an effective number of questions: read p, not whether it contains 50%. p is from the "
    "exact two-sided sign-flip test of wins against losses; Holm's, which decides, is corrected over the "
    "rows of a table.",
    "A judge is a model with preferences of its own, for instance for long answers: the table shows what it "
    "prefers, not what people do.",
)


def win_rates(pairs: pd.DataFrame) -> pd.DataFrame:
    """Return a row with the win rate for each judge, task, model, sampler and temperature.

    Args:
        pairs: A row per pair and judge, as returned by `judged_pairs`. `outcome` is 1 if `sampler` wins, 0
            for a tie, -1 if it loses, NaN without a judgement.
    """
    rows = []
    for key, group in pairs.groupby(_RATED, sort=False):
        found = group.dropna(subset="outcome")
        row = dict(zip(_RATED, key, strict=True)) | {"identical": group["identical"].sum()}
        row |= {"pairs": len(group), "missing": len(group) - len(found)}
        rows.append(row | (_outcomes(found) if len(found) else {}))
    return corrected(pd.DataFrame(rows, columns=[*_RATED, *_RATE]), _FAMILY)


def _outcomes(found: pd.DataFrame) -> dict[str, Any]:
    """Return the win rate of judged pairs, and its test."""
    questions = found.groupby(QUESTION).outcome.agg(["sum", "size"]).astype(int)
    test = paired_test(list(questions["sum"]), list(questions["size"]))
    rate = mean_by_question(found, (found.outcome == 1).astype(float))
    won = ":".join(str((found.outcome == sign).sum()) for sign in (1, 0, -1))
    return {"questions": test.n, **columns_of(rate, "win_rate"), "won_tied_lost": won, "p": test.p}


def corrected(rows: pd.DataFrame, family: Sequence[str]) -> pd.DataFrame:
    """Return rows with `p_holm`: Holm's correction of `p` over the rows of a table."""
    tested = rows.dropna(subset="p").groupby(list(family), sort=False)["p"]
    return rows.assign(p_holm=tested.transform(lambda p: holm(p.tolist())))


def judged_pairs(judgements: pd.DataFrame) -> pd.DataFrame:
    """Return a row per pair and judge; of several judgements of a pair, the last one counts."""
    last = judgements.drop_duplicates(["judge", *PAIR], keep="last")
    side = np.where(last.order == "first is A", 1, -1)
    outcome = last.winner.map({"A": 1.0, "B": -1.0, "tie": 0.0}) * side
    return last.assign(outcome=outcome, identical=last.attempts == 0)


def mean_by_question(rows: pd.DataFrame, values: pd.Series) -> Interval:
    """Return the mean over questions of a question's mean value; `values`, 0 to 1, has one per row."""
    return share(list(values.groupby([rows[name] for name in QUESTION]).mean()))


def report_judgements(results: Results) -> Report:
    """Return the report on judgements by models."""
    pairs = judged_pairs(results.frame)
    rates = win_rates(pairs)
    findings = [finding for _, own in pairs.groupby("judge", sort=False) for finding in _findings(own)]
    tables = [rate_table(" · ".join(part), rows) for part, rows in rates.groupby(_FAMILY, sort=False)]
    sections = [
        Section("Win rates by a model", tables, findings),
        Section("How to read this", HOW_TO_READ),
    ]
    return judged_report("judge", "Win rates by a model", results, sections, rates)


def _findings(pairs: pd.DataFrame) -> Iterator[str]:
    """Yield what a judge has judged, and how far it can be trusted."""
    judge = str(pairs.judge.iloc[0])
    yield f"{judge} judged {count(len(pairs), 'pair')}; identical: {pairs.identical.sum():,}."
    seen = pairs[~pairs.identical & pairs.winner.notna()]
    if len(seen):
        first = mean_by_question(seen, seen.winner.map({"A": 1.0, "tie": 0.5, "B": 0.0}))
        yield (
            f"Position: the answer shown first wins {percent(first.value)}% [{percent(first.low)}–"
            f"{percent(first.high)}] of the time (ties count half; 50% if unbiased)."
        )
    if missing := int(pairs.outcome.isna().sum()):
        yield f"{count(missing, 'pair')} without a readable judgement excluded."
    if n_cut := int(pairs.is_cut.sum()):
        yield f"In {count(n_cut, 'pair')}, it saw only the beginning of a long response."
    if judge.partition(" at ")[0] in set(pairs.model):
        yield "It wrote some of the responses itself, and may prefer its own style."


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
    "won_tied_lost": ("won:tied:lost", str),
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
