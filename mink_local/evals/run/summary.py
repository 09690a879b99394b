"""The numbers of a run as pandas frames: responses, cells, and comparisons of cells.

Source: M. Chen et al. (2021), arXiv:2107.03374, for unbiased pass@k.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import comb
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mink_local.errors import ReportError
from mink_local.evals.measurement import frame
from mink_local.evals.run.records import SCORINGS, RecordedRun
from mink_local.evals.stats import ALPHA, holm, paired_test, share
from mink_local.samplers import SAMPLERS, MinK, Sampler, default_samplers, parse

GROUP = ["task", "model"]
CELL = [*GROUP, "sampler", "temperature"]
PLACE = ["question_id", "repeat"]

_NUMBERS = [
    *("questions", "responses", "complete", "truncated", "thoughts_cut", "overflowed", "mean_tokens"),
    *("k_is_1", "k_95", "k_99", "k_max", "distinct"),
]
_ACCURACY = ["scoring", "accuracy", "spread", "no_answer"]
_ATTEMPTS = [*CELL, "scoring", "questions", "k", "pass"]
_COMPARISON = [
    *(*CELL, "scoring", "kind", "against", "common_questions", "difference", "won", "lost"),
    *("won_questions", "lost_questions", "p", "p_holm", "better", "worse"),
]


class Baseline(NamedTuple):
    """What cells are compared with, all else being equal.

    Attributes:
        kind: What differs: "sampler", "model" or "temperature", or "default" for a sampler's options.
        value: The sampler, model or temperature; None for the default options.
    """

    kind: str
    value: Any = None

    def __str__(self) -> str:
        if self.kind == "default":
            return "the default options"
        return f"T = {self.value:g}" if self.kind == "temperature" else str(self.value)


@dataclass(frozen=True)
class Summary:
    """All numbers of a report.

    Attributes:
        responses: A row per response; greedy ones are copied to every temperature and repeat of their task
            and model, since a run generates them once.
        verdicts: A row per response and scoring; none if the task is open-ended.
        cells: A row per cell and scoring, in the order of the tables; a single one without scoring if the
            task is open-ended.
        comparisons: A row per cell, scoring and baseline.
        attempts: A row per cell, scoring and k, with pass@k; empty without repeats.
        baselines: What the cells are compared with, except for samplers' default options.
        scorings: Scorings with tables of their own: strict is omitted if it agrees with flexible everywhere.
    """

    responses: pd.DataFrame
    verdicts: pd.DataFrame
    cells: pd.DataFrame
    comparisons: pd.DataFrame
    attempts: pd.DataFrame
    baselines: Sequence[Baseline]
    scorings: Sequence[str]

    @property
    def baseline(self) -> str | None:
        """The sampler that the others are compared with, if any."""
        return next((one.value for one in self.baselines if one.kind == "sampler"), None)

    def of(self, task: str, model: str) -> "Summary":
        """Return the rows of one task and model."""
        frames = {name: value for name, value in vars(self).items() if isinstance(value, pd.DataFrame)}
        return replace(
            self,
            **{name: one[(one["task"] == task) & (one["model"] == model)] for name, one in frames.items()},
        )


def summarise(run: RecordedRun, against: tuple[str, Any] | None = None) -> Summary:
    """Return the numbers of a run.

    Whatever varies is compared: samplers with Min-k, either with the paper's options or the run's first one;
    models with the first one; variants of a sampler with its default options.

    Args:
        run: The run.
        against: What to compare with instead: the fields of a `Baseline`.

    Raises:
        ReportError: The run does not contain `against`.
    """
    responses = _responses(run)
    flexible, strict = (_verdicts(responses, scoring) for scoring in SCORINGS)
    verdicts = pd.concat([flexible, strict]).sort_index(kind="stable")
    baselines = [Baseline(*against)] if against else _baselines(responses)
    for kind, value in baselines:
        if value not in responses[kind].array:
            there = ", ".join(map(str, responses[kind].unique()))
            raise ReportError(f"{value} is not in this run: choose from {there}")
    compared = baselines if against else [*baselines, Baseline("default")]
    tested = [one.value for one in baselines if one.kind == "sampler"]
    comparisons = chain.from_iterable(_comparisons(verdicts, one, tested) for one in compared)
    return Summary(
        responses,
        verdicts,
        _cells(responses, verdicts),
        pd.DataFrame(list(comparisons), columns=_COMPARISON),
        pd.DataFrame(list(_attempts(verdicts)), columns=_ATTEMPTS),
        baselines,
        SCORINGS[:1] if flexible["correct"].equals(strict["correct"]) else SCORINGS,
    )


def _responses(run: RecordedRun) -> pd.DataFrame:
    found = frame(run.responses).rename(columns={"response": "text"})
    order = {
        "sampler": sorted(found["sampler"].unique(), key=sampler_rank).index,
        "model": list(found["model"].unique()).index,
    }
    return with_copies(found, GROUP, ["temperature", "repeat"]).sort_values(
        CELL, key=lambda column: column.map(order.get(column.name, lambda value: value)), ignore_index=True
    )


def with_copies(rows: pd.DataFrame, group: Sequence[str], place: Sequence[str]) -> pd.DataFrame:
    """Return rows in which the greedy ones, generated once, are copied to every `place` of their group.

    The column `copied` marks the copies. In a group without others they stay at place 0.
    """
    once, sampled = rows[rows["temperature"] == 0], rows[rows["temperature"] > 0]
    places = sampled[[*group, *place]].drop_duplicates()
    copies = once.drop(columns=list(place)).merge(places, how="left", on=list(group))
    copies = copies.fillna(dict.fromkeys(place, 0))
    return pd.concat([copies.assign(copied=True), sampled.assign(copied=False)])


def sampler_rank(sampler: str) -> tuple[bool, int, str]:
    """Return a sort key: the paper's Min-k first, then by the order of `SAMPLERS`, then by text."""
    names = list(SAMPLERS)
    name = sampler.partition(":")[0]
    return (sampler != str(MinK()), names.index(name) if name in names else len(names), sampler)


def _verdicts(responses: pd.DataFrame, scoring: str) -> pd.DataFrame:
    """Return the responses that have verdicts, with those of one scoring: `correct` and `answer`."""
    found = responses.dropna(subset=scoring)
    verdicts = found[scoring]
    return found.assign(
        scoring=scoring,
        correct=[float(verdict.correct) for verdict in verdicts],
        answer=pd.Series([verdict.answer for verdict in verdicts], found.index, dtype=object),
    )


def _baselines(responses: pd.DataFrame) -> list[Baseline]:
    samplers, models = responses["sampler"].unique(), responses["model"].unique()
    found = []
    if len(samplers) > 1:
        min_k = [name for name in samplers if name.partition(":")[0] == MinK.name]
        found = [Baseline("sampler", name) for name in min_k[:1]]
    if len(models) > 1:
        found.append(Baseline("model", models[0]))
    return found


def parsed(text: str) -> Sampler | None:
    """Return the sampler of a text; None if another version wrote it."""
    try:
        return parse(text)
    except ValueError:
        return None


def default_options(text: str) -> str:
    """Return a sampler's text with its default options, but the same order."""
    if (sampler := parsed(text)) is None:
        return text
    alike = (one for one in default_samplers() if (one.name, one.order) == (sampler.name, sampler.order))
    return str(next(alike, sampler))  # a chain has no default


def _cells(responses: pd.DataFrame, verdicts: pd.DataFrame) -> pd.DataFrame:
    cells, accuracies = [], []
    for _, part in responses.groupby(GROUP, sort=False):
        n_wanted = len(part[PLACE].drop_duplicates())
        for key, cell in part.groupby(CELL, sort=False):
            cells.append(
                {
                    **dict(zip(CELL, key, strict=True)),
                    "questions": cell["question_id"].nunique(),
                    "responses": len(cell),
                    "complete": len(cell) == n_wanted,
                    "truncated": (cell["finish_reason"] == "length").mean(),
                    "thoughts_cut": cell["thoughts_cut"].mean(),
                    "overflowed": (cell["finish_reason"] == "overflow").mean(),
                    "mean_tokens": cell["n_tokens"].mean(),
                    **_cutoffs(cell),
                    "distinct": _distinct(cell, part["repeat"].nunique()),
                }
            )
    for key, cell in verdicts.groupby([*CELL, "scoring"], sort=False):
        accuracies.append({**dict(zip([*CELL, "scoring"], key, strict=True)), **_accuracy(cell)})
    numbers = pd.DataFrame(accuracies, columns=[*CELL, *_ACCURACY])
    found = pd.DataFrame(cells, columns=[*CELL, *_NUMBERS]).merge(numbers, how="left", on=CELL)
    return found[["scoring", *CELL, *_NUMBERS, *_ACCURACY[1:]]]


def _accuracy(cell: pd.DataFrame) -> dict[str, Any]:
    questions = cell.groupby("question_id")["correct"].mean()
    repeats = cell.groupby("repeat")["correct"].mean()
    return {
        "accuracy": share(questions.tolist()),
        "spread": None if cell["copied"].iloc[0] or len(repeats) < 2 else repeats.std(),
        "no_answer": cell["answer"].isna().mean(),
    }


def _cutoffs(cell: pd.DataFrame) -> dict[str, Any]:
    sizes = np.concatenate([np.asarray(k, np.int64) for k in cell["k"]])
    sizes = sizes[sizes > 0]  # leave out forced tokens
    if not len(sizes):
        return {}
    k_95, k_99, k_max = np.quantile(sizes, (0.95, 0.99, 1), method="inverted_cdf")
    return {"k_is_1": (sizes == 1).mean(), "k_95": k_95, "k_99": k_99, "k_max": k_max}


def _repeated(cell: pd.DataFrame, n_repeats: int) -> list[pd.DataFrame]:
    """Return the responses per question of a cell, for questions with all repeats; none without repeats."""
    questions = (question for _, question in cell.groupby("question_id", sort=False))
    return [question for question in questions if len(question) == n_repeats > 1]


def _distinct(cell: pd.DataFrame, n_repeats: int) -> float | None:
    """Return the mean share of distinct responses to a question; None without repeats or texts."""
    texts = [question["text"] for question in _repeated(cell, n_repeats)]
    if not any(text.strip() for of_question in texts for text in of_question):
        return None
    return fmean(of_question.nunique() / n_repeats for of_question in texts)


def _comparisons(
    verdicts: pd.DataFrame, baseline: Baseline, tested: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each cell with its counterpart.

    Those of a task and model under one scoring are corrected together; if models are compared, those of a
    task. Variants whose default options are among the `tested` baselines are not compared with them again.

    A question with fewer common repeats than others is excluded: it is still being answered, and its short
    responses come first. Greedy's copies make a single comparison between models, and none between
    temperatures.
    """
    varies = "sampler" if baseline.kind == "default" else baseline.kind
    others = {
        one: default_options(one) if baseline.kind == "default" else baseline.value
        for one in verdicts[varies].unique()
    }
    first = verdicts.assign(other=verdicts[varies].map(others).astype(verdicts[varies].dtype))
    first = first[first["other"] != first[varies]]
    if baseline.kind == "default":
        first = first[~first["other"].isin(tested)]
    if varies == "temperature":
        first = first[~first["copied"]]
    elif varies == "model":
        coldest = first.groupby([*GROUP, "sampler"])["temperature"].transform("min")
        first = first[~first["copied"] | (first["temperature"] == coldest)]
    same = [name for name in ("scoring", *CELL, *PLACE) if name != varies]
    other = verdicts[[*same, varies, "correct"]].rename(columns={varies: "other", "correct": "other_correct"})
    pairs = first.merge(other, on=[*same, "other"])
    gains = pairs.assign(gain=pairs["correct"] - pairs["other_correct"])
    questions = gains.groupby(["scoring", *CELL, "question_id"], sort=False)["gain"].agg(["sum", "size"])
    together = ["scoring", *(GROUP[:1] if varies == "model" else GROUP)]
    for (scoring, *_), family in questions.groupby(level=together, sort=False):
        tests, flips = {}, {}
        for key, cell in family.groupby(level=CELL, sort=False):
            n_repeats = int(cell["size"].max())
            complete = cell.loc[cell["size"] == n_repeats, "sum"].sort_index()
            tests[key] = paired_test(complete.astype(int).tolist(), n_repeats)
            ids = complete.index.get_level_values("question_id")
            flips[key] = (_listed(ids[complete > 0]), _listed(ids[complete < 0]))
        adjusted = holm([test.p for test in tests.values()])
        for (key, test), p_holm in zip(tests.items(), adjusted, strict=True):
            gain = test.difference.value if p_holm <= ALPHA else 0.0
            of_cell = (*key, scoring, baseline.kind, str(baseline))
            of_test = (test.n, test.difference, test.won, test.lost, *flips[key])
            found = (test.p, p_holm, gain > 0, gain < 0)
            yield dict(zip(_COMPARISON, (*of_cell, *of_test, *found), strict=True))


def _listed(ids: Iterable[str]) -> str:
    """Return ids in their natural order: 9 before 10."""
    return ", ".join(sorted(ids, key=lambda one: (len(one), one)))


def _attempts(verdicts: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for _, part in verdicts.groupby(GROUP, sort=False):
        n = part["repeat"].nunique()
        for key, cell in part.groupby([*CELL, "scoring"], sort=False):
            rights = [int(question["correct"].sum()) for question in _repeated(cell, n)]
            for k in attempt_sizes(n) if rights else ():
                passed = share([pass_at(n, n_right, k) for n_right in rights])
                yield dict(zip(_ATTEMPTS, (*key, len(rights), k, passed), strict=True))


def attempt_sizes(n: int) -> list[int]:
    """Return 1, 2, 4, … and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def pass_at(n: int, n_right: int, k: int) -> float:
    """Return the chance that at least one of k of n responses is right."""
    return 1 - comb(n - n_right, k) / comb(n, k)
