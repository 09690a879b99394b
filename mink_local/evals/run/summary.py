"""The numbers of a run as pandas frames: responses, cells, and comparisons of cells.

Source: M. Chen et al. (2021), arXiv:2107.03374, for unbiased pass@k.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import comb
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mink_local.errors import ReportError
from mink_local.evals.measurement import frame
from mink_local.evals.run.records import RecordedRun, known_parts
from mink_local.evals.settings import arm_of
from mink_local.evals.stats import ALPHA, Interval, PairedTest, holm, paired_test, share
from mink_local.evals.tables import columns_of
from mink_local.evals.tasks.base import CUT_OFF
from mink_local.generation.loops import LoopFinder
from mink_local.samplers import SAMPLERS, MinK

GROUP = ["task", "model"]
CELL = [*GROUP, "sampler", "temperature"]
PLACE = ["question_id", "repeat"]

_COMPARISON = [
    *(*CELL, "kind", "against", "common_questions", "repeats", "disagreement", "accuracy", "other_accuracy"),
    *("difference", "difference_low", "difference_high", "cut_off", "other_cut_off", "could_turn"),
    *("won", "lost", "won_questions", "lost_questions", "p", "p_holm", "better", "worse"),
]
EVERY = "every sampler"
_PLACES_OF_GREEDY = {"sampler": ("temperature", "repeat"), "arm": ("repeat",)}
"""What greedy's responses are compared at, by what differs."""
ENOUGH_TO_TURN = 0.05  # share of cut-off responses


class Baseline(NamedTuple):
    """What cells are compared with, all else being equal.

    Attributes:
        kind: What differs: "sampler", "model" or "temperature"; "arm" is sampler and temperature together.
        value: The sampler, model, temperature or arm; `EVERY` for all pairs of samplers.
    """

    kind: str
    value: Any

    def __str__(self) -> str:
        return f"T = {self.value:g}" if self.kind == "temperature" else str(self.value)


@dataclass(frozen=True)
class Summary:
    """All numbers of a report. Intervals have three columns: NAME, NAME_low and NAME_high.

    Attributes:
        responses: A row per response; greedy ones are at temperature 0, once per question.
        cells: A row per cell, in the order of the tables; without accuracy if the task is open-ended.
        categories: A row per cell and category of questions; empty without categories.
        comparisons: A row per cell and baseline.
        attempts: A row per cell and k, with pass@k; empty without repeats.
        baselines: What the cells are compared with.
    """

    responses: pd.DataFrame
    cells: pd.DataFrame
    categories: pd.DataFrame
    comparisons: pd.DataFrame
    attempts: pd.DataFrame
    baselines: Sequence[Baseline]

    @property
    def judged(self) -> pd.DataFrame:
        """The responses that have verdicts."""
        return self.responses.dropna(subset="correct")

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
    models with the first one.

    Args:
        run: The run.
        against: What to compare with instead: the fields of a `Baseline`.

    Raises:
        ReportError: The run does not contain `against`.
    """
    responses = _responses(run)
    judged = responses.dropna(subset="correct")
    baselines = [Baseline(*against)] if against else _baselines(run, responses)
    for baseline in baselines:
        there = responses[baseline.kind].unique()
        if baseline.value not in (EVERY, *there):
            choices = ", ".join(str(Baseline(baseline.kind, value)) for value in there)
            raise ReportError(f"{baseline} is not in this run: choose from {choices}")
    comparisons = chain.from_iterable(_comparisons(judged, baseline) for baseline in baselines)
    return Summary(
        responses,
        _cells(responses),
        _categories(judged),
        pd.DataFrame(list(comparisons), columns=_COMPARISON),
        _attempts(judged),
        baselines,
    )


def _responses(run: RecordedRun) -> pd.DataFrame:
    found = frame(run.responses).rename(columns={"response": "text"})
    for name in ("n_tokens", "n_reasoning"):
        found[name] = pd.to_numeric(found[name])  # None becomes NaN
    found["category"] = [run.questions[response.question].category for response in run.responses]
    for scoring, name in (("flexible", "correct"), ("strict", "strictly_correct"), ("last", "last_correct")):
        found[name] = pd.Series([verdict and verdict.correct for verdict in found[scoring]], dtype=float)
    found["is_cut"] = found["finish_reason"].isin(CUT_OFF).astype(float)
    found["looped"] = list(map(has_loop, found["text"]))
    found["answered"] = [verdict is not None and verdict.answer is not None for verdict in found["flexible"]]
    order = {
        "sampler": sorted(found["sampler"].unique(), key=sampler_rank).index,
        "model": list(found["model"].unique()).index,
    }
    found["arm"] = list(map(arm_of, found["sampler"], found["temperature"]))
    return found.sort_values(
        CELL, key=lambda column: column.map(order.get(column.name, lambda value: value)), ignore_index=True
    )


def sampler_rank(sampler: str) -> tuple[bool, int, str]:
    """Return a sort key: the paper's Min-k first, then by the order of `SAMPLERS`, then by text."""
    names = list(SAMPLERS)
    name = sampler.partition(":")[0]
    return (sampler != str(MinK()), names.index(name) if name in names else len(names), sampler)


def _baselines(run: RecordedRun, responses: pd.DataFrame) -> list[Baseline]:
    samplers, models = responses["sampler"].unique(), responses["model"].unique()
    found = []
    arms = [arm for arm in arms_of(run.manifest) if arm in set(responses["arm"])]
    if arms:
        found = [Baseline("arm", arms[0])]
    elif len(samplers) > 1:
        min_k = [name for name in samplers if name.partition(":")[0] == MinK.name]
        found = [Baseline("sampler", name) for name in min_k[:1]]
    if len(models) > 1:
        found.append(Baseline("model", models[0]))
    return found


def arms_of(manifest: Mapping[str, Any]) -> list[str]:
    """Return the arms of a run that was asked for nothing else: others are compared with the first."""
    known = known_parts(manifest)
    if known is None or any(one.samplers for one in known.asked):
        return []
    return [f"{sampler}@{temperature}" for one in known.asked for sampler, temperature in one.settings]


def _cells(responses: pd.DataFrame) -> pd.DataFrame:
    found = []
    for _, part in responses.groupby(GROUP, sort=False):
        n_wanted = len(part[PLACE].drop_duplicates())
        for key, cell in part.groupby(CELL, sort=False):
            is_greedy = cell["temperature"].iloc[0] == 0
            found.append(
                {
                    **dict(zip(CELL, key, strict=True)),
                    "questions": cell["question_id"].nunique(),
                    "responses": len(cell),
                    "complete": len(cell) == (part["question_id"].nunique() if is_greedy else n_wanted),
                    "truncated": cell["is_cut"].mean(),
                    "thoughts_cut": cell["thoughts_cut"].mean(),
                    "overflowed": (cell["finish_reason"] == "overflow").mean(),
                    "looped": cell["looped"].mean(),
                    "tokens": cell["n_tokens"].sum(),
                    "mean_tokens": cell["n_tokens"].mean(),
                    "mean_reasoning_tokens": cell["n_reasoning"].mean(),
                    **_cutoffs(cell),
                    "distinct": _distinct(cell, part["repeat"].nunique()),
                    **_accuracy(cell.dropna(subset="correct")),
                }
            )
    return pd.DataFrame(found)


def _accuracy(cell: pd.DataFrame) -> dict[str, Any]:
    """Return a cell's accuracy by each scoring; None without verdicts."""
    is_judged = len(cell) > 0
    if_right = cell[["correct", "is_cut"]].max(axis=1).groupby(cell["question_id"]).mean()
    repeats = cell.groupby("repeat")["correct"].mean()
    return {
        **columns_of(_mean(cell, "correct"), "accuracy"),
        **columns_of(_mean(cell, "strictly_correct"), "strict_accuracy"),
        **columns_of(_mean(cell.dropna(subset="last_correct"), "last_correct"), "last_accuracy"),
        "spread": None if len(repeats) < 2 else repeats.std(),
        "accuracy_if_cut_off_were_right": if_right.mean() if is_judged else None,
        "no_answer": 1 - cell["answered"].mean() if is_judged else None,
    }


def _mean(cell: pd.DataFrame, name: str) -> Interval | None:
    """Return the mean over questions of a share, with its interval; None without any."""
    return share(cell.groupby("question_id")[name].mean().tolist()) if len(cell) else None


def _categories(judged: pd.DataFrame) -> pd.DataFrame:
    by = [*CELL, "category"]
    each = judged.assign(category=judged["category"].str.split("\n")).explode("category", ignore_index=True)
    found = [
        {
            **dict(zip(by, key, strict=True)),
            "questions": cell["question_id"].nunique(),
            **columns_of(_mean(cell, "correct"), "accuracy"),
        }
        for key, cell in each[each["category"] != ""].groupby(by, sort=False)
    ]
    return pd.DataFrame(found, columns=[*by, "questions", *columns_of(None, "accuracy")])


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


def _comparisons(judged: pd.DataFrame, baseline: Baseline) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each cell with its counterpart, or with those of all other samplers.

    Those of a task and model are corrected together; if models are compared, those of a task.

    A question with fewer common repeats than others is excluded: it is still being answered, and its short
    responses come first. Greedy's copies make a single comparison between models, and none between
    temperatures.
    """
    varies = baseline.kind
    pairs = pd.concat([_pairs(judged, varies, others) for others in _counterparts(judged, baseline)])
    gains = pairs.assign(gain=pairs["correct"] - pairs["other_correct"])
    by_question = gains.groupby([*CELL, "other", "question_id"], sort=False)
    questions = by_question.agg(
        gain=("gain", "sum"),
        size=("gain", "size"),
        correct=("correct", "mean"),
        other_correct=("other_correct", "mean"),
        cut_off=("is_cut", "mean"),
        other_cut_off=("other_is_cut", "mean"),
    )
    both = questions["correct"] * questions["other_correct"]
    questions["disagreement"] = questions["correct"] + questions["other_correct"] - 2 * both
    for _, family in questions.groupby(level=GROUP[:1] if varies == "model" else GROUP, sort=False):
        found = [(key, *_tested(cell)) for key, cell in family.groupby(level=[*CELL, "other"], sort=False)]
        adjusted = holm([test.p for _, test, *_ in found])
        for ((*cell, other), test, means, flips), p_holm in zip(found, adjusted, strict=True):
            gain = test.difference.value if p_holm <= ALPHA else 0.0
            against = str(other if baseline.value == EVERY else baseline)
            *means, cut_off, other_cut_off = means
            cut = (cut_off, other_cut_off, _could_turn(test.difference.value, gain, cut_off, other_cut_off))
            of_test = (test.n, *means, *test.difference, *cut, test.won, test.lost, *flips, test.p)
            values = (*cell, varies, against, *of_test, p_holm, gain > 0, gain < 0)
            yield dict(zip(_COMPARISON, values, strict=True))


def _counterparts(judged: pd.DataFrame, baseline: Baseline) -> Iterator[Mapping[Any, Any]]:
    """Yield what each value of what varies is compared with; for all pairs, one mapping per sampler."""
    values = judged[baseline.kind].unique()
    if baseline.value != EVERY:
        yield {one: baseline.value for one in values if one != baseline.value}
        return
    for number, value in enumerate(values):
        yield dict.fromkeys(values[number + 1 :], value)


def _pairs(judged: pd.DataFrame, varies: str, others: Mapping[Any, Any]) -> pd.DataFrame:
    """Return responses with the verdict, `other_correct`, on their counterpart of what `varies`."""
    judged = _with_greedy_at(_PLACES_OF_GREEDY.get(varies, ()), judged)
    first = judged[judged[varies].isin(list(others))]
    first = first.assign(other=first[varies].map(others).astype(judged[varies].dtype))
    differs = ("sampler", "temperature") if varies == "arm" else (varies,)
    same = [name for name in (*CELL, *PLACE) if name not in differs]
    other = judged[[*same, varies, "correct", "is_cut"]]
    other = other.drop_duplicates([*same, varies]).rename(
        columns={varies: "other", "correct": "other_correct", "is_cut": "other_is_cut"}
    )
    return first.merge(other, on=[*same, "other"])


def _with_greedy_at(places: Sequence[str], judged: pd.DataFrame) -> pd.DataFrame:
    """Return responses with greedy's, which were generated once, at all `places` of their task and model."""
    greedy, sampled = judged[judged["temperature"] == 0], judged[judged["temperature"] > 0]
    if sampled.empty or not places:
        return judged
    every = sampled[[*GROUP, *places]].drop_duplicates()
    copies = greedy.drop(columns=list(places)).merge(every, how="left", on=list(GROUP))
    return pd.concat([copies.fillna(dict.fromkeys(places, 0)), sampled])


def _tested(cell: pd.DataFrame) -> tuple[PairedTest, list[float], list[str]]:
    """Return the test of a cell's questions that have all repeats, some means, and the flips.

    The means are the number of repeats, the chance that a response of each differ in being right, both
    accuracies, and both shares of responses that were cut off.
    """
    n_repeats = int(cell["size"].max())
    cell = cell[cell["size"] == n_repeats].sort_index()
    gains, ids = cell["gain"].astype(int), cell.index.get_level_values("question_id")
    flips = [_listed(ids[gains > 0]), _listed(ids[gains < 0])]
    columns = ["disagreement", "correct", "other_correct", "cut_off", "other_cut_off"]
    means = cell[columns].mean().tolist()
    return paired_test(gains.tolist(), n_repeats), [n_repeats, *means], flips


def _could_turn(difference: float, gain: float, cut_off: float, other_cut_off: float) -> bool:
    """Return whether a comparison could end otherwise if cut-off responses were right.

    One with a significant `gain` could lose its sign; one without, of a `difference` that is not significant,
    may miss one if more are cut off on one side than on the other by more than `ENOUGH_TO_TURN`.
    """
    if gain:
        return difference - other_cut_off <= 0 if gain > 0 else difference + cut_off >= 0
    return abs(cut_off - other_cut_off) > ENOUGH_TO_TURN


def has_loop(text: str) -> bool:
    """Return whether a response repeats itself, in its reasoning or after it."""
    return any(LoopFinder().feed(part) for part in text.removeprefix("<think>").split("</think>"))


def _listed(ids: Iterable[str]) -> str:
    """Return ids in their natural order: 9 before 10."""
    return ", ".join(sorted(ids, key=lambda one: (len(one), one)))


def _attempts(judged: pd.DataFrame) -> pd.DataFrame:
    found = []
    for _, part in judged.groupby(GROUP, sort=False):
        n = part["repeat"].nunique()
        for key, cell in part.groupby(CELL, sort=False):
            rights = [int(question["correct"].sum()) for question in _repeated(cell, n)]
            for k in attempt_sizes(n) if rights else ():
                passed = share([pass_at(n, n_right, k) for n_right in rights])
                row = {**dict(zip(CELL, key, strict=True)), "questions": len(rights), "k": k}
                found.append({**row, **columns_of(passed, "passed")})
    return pd.DataFrame(found, columns=[*CELL, "questions", "k", *columns_of(None, "passed")])


def attempt_sizes(n: int) -> list[int]:
    """Return 1, 2, 4, … and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def pass_at(n: int, n_right: int, k: int) -> float:
    """Return the chance that at least one of k of n responses is right."""
    return 1 - comb(n - n_right, k) / comb(n, k)
