"""The numbers of a run, as pandas frames: its responses, its cells, and cells compared with each other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mink_local.errors import ReportError
from mink_local.evals.measurement import frame
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.repeats import attempt_sizes, majority_at, pass_at, self_bleu, votes
from mink_local.evals.stats import ALPHA, holm, paired_test, share
from mink_local.samplers import SAMPLERS, MinK, Sampler, parse

SCORINGS = ("flexible", "strict")


class CellKey(NamedTuple):
    """A place in the grid of a run: the report gives one accuracy for each."""

    task: str
    model: str
    sampler: str
    temperature: float


KEY = list(CellKey._fields)


class Baseline(NamedTuple):
    """A sampler, model or temperature that every other one is compared with, all else being equal."""

    kind: str  # a field of `CellKey`
    value: Any

    def other(self, key: CellKey) -> CellKey | None:
        """Return the cell that a cell is compared with."""
        found = key._replace(**{self.kind: self.value})
        return None if found == key else found

    def __str__(self) -> str:
        return f"T = {self.value:g}" if self.kind == "temperature" else str(self.value)


@dataclass(frozen=True)
class Summary:
    """All numbers of a report.

    Attributes:
        responses: A row for each response; greedy ones are copied to every temperature and repeat of their
            task and model, since a run generates them once.
        cells: A row for each cell and scoring, in the order of the tables; one without scoring if the task is
            open-ended.
        comparisons: A row for each cell and scoring and for what it is compared with.
        attempts: A row for each cell, scoring and k, with pass@k and maj@k; empty without repeats.
        baselines: What the cells are compared with.
        scorings: Those that have tables: strict is left out if it agrees with flexible everywhere.
    """

    responses: pd.DataFrame
    cells: pd.DataFrame
    comparisons: pd.DataFrame
    attempts: pd.DataFrame
    baselines: Sequence[Baseline]
    scorings: Sequence[str]

    @property
    def baseline(self) -> str | None:
        """The sampler that the others are compared with, if they are."""
        return next((str(one.value) for one in self.baselines if one.kind == "sampler"), None)


def summarise(run: RecordedRun, against: str | None = None) -> Summary:
    """Return the numbers of a run.

    What varies is compared: other samplers with Min-k, with the paper's options or else the first one of the
    run; other models with the first one; variants of a sampler with its default options. `against` names one
    sampler, "model=NAME" or "temp=T" instead. Raises ReportError if it is not in the run.
    """
    responses = _responses(run)
    baselines = _baselines(responses, against)
    cells = pd.DataFrame(list(_cells(responses)))
    attempts = pd.DataFrame(list(_attempts(responses)))
    others: list[tuple[str, str, Callable[[CellKey], CellKey | None]]] = [
        (one.kind, str(one), one.other) for one in baselines
    ]
    if against is None:
        others.append(("default", "the default options", _default))
    comparisons = pd.DataFrame(
        [row for kind, name, other in others for row in _comparisons(responses, kind, name, other)]
    )
    judged = responses.dropna(subset=["flexible"])
    agree = bool((judged["flexible"] == judged["strict"]).all())
    return Summary(responses, cells, comparisons, attempts, baselines, SCORINGS[:1] if agree else SCORINGS)


def _responses(run: RecordedRun) -> pd.DataFrame:
    found = frame(run.responses).rename(columns={"response": "text"})
    for scoring in SCORINGS:
        verdicts = list(found[scoring])
        answers = [verdict and verdict["answer"] for verdict in verdicts]
        found[f"{scoring} answer"] = pd.Series(answers, dtype=object)
        found[scoring] = [float(verdict["correct"]) if verdict else np.nan for verdict in verdicts]
    once, sampled = found[found["temperature"] == 0], found[found["temperature"] > 0]
    places = sampled[["task", "model", "temperature", "repeat"]].drop_duplicates()
    copies = once.drop(columns=["temperature", "repeat"]).merge(places, how="left", on=["task", "model"])
    copies = copies.fillna({"temperature": 0.0, "repeat": 0})  # of a task that is only run greedily
    found = pd.concat([copies.assign(copied=True), sampled.assign(copied=False)], ignore_index=True)
    samplers = sorted(found["sampler"].unique(), key=sampler_rank)
    models = list(dict.fromkeys(response.model for response in run.responses))
    order = found.assign(sampler=found["sampler"].map(samplers.index), model=found["model"].map(models.index))
    return found.loc[order.sort_values(KEY, kind="stable").index].reset_index(drop=True)


def sampler_rank(sampler: str) -> tuple[bool, int, str]:
    """Return a sort key: Min-k of the paper, then the order of `SAMPLERS`, then the text."""
    names = list(SAMPLERS)
    name = sampler.partition(":")[0]
    return (sampler != str(MinK()), names.index(name) if name in names else len(names), sampler)


def _baselines(responses: pd.DataFrame, against: str | None) -> list[Baseline]:
    names: dict[str, Sequence[Any]] = {name: list(responses[name].unique()) for name in KEY}
    if against is None:
        min_k = [sampler for sampler in names["sampler"] if sampler.partition(":")[0] == MinK.name]
        found = [Baseline("sampler", min_k[0])] if min_k and len(names["sampler"]) > 1 else []
        return [*found, *([Baseline("model", names["model"][0])] if len(names["model"]) > 1 else [])]
    kind, equals, name = against.partition("=")
    kinds = {"model": "model", "temp": "temperature"}
    if not equals or kind not in kinds:
        kind, name = "sampler", against
    known = {f"{value:g}" if kind == "temp" else str(value): value for value in names[kinds.get(kind, kind)]}
    if name not in known:
        hint = f"; for a model write model={name}" if name in names["model"] else ""
        raise ReportError(f"{name} is not in this run: it has {', '.join(known)}{hint}")
    return [Baseline(kinds.get(kind, kind), known[name])]


def scorings_of(cell: pd.DataFrame) -> Sequence[str]:
    """Return the scorings that responses have verdicts of: none if they are open-ended."""
    return () if cell["flexible"].isna().any() else SCORINGS


def by_cell(responses: pd.DataFrame) -> Iterator[tuple[CellKey, pd.DataFrame]]:
    """Yield the responses of each cell."""
    for key, cell in responses.groupby(KEY, sort=False):
        yield CellKey(*key), cell


def _cells(responses: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for _, part in responses.groupby(["task", "model"], sort=False):
        wanted = set(zip(part["question_id"], part["repeat"], strict=True))
        for key, cell in by_cell(part):
            numbers = {
                **key._asdict(),
                "questions": cell["question_id"].nunique(),
                "responses": len(cell),
                "complete": len(cell) == len(wanted),
                "truncated": (cell["finish_reason"] == "length").mean(),
                "overflowed": (cell["finish_reason"] == "overflow").mean(),
                "mean_tokens": cell["n_tokens"].mean(),
                **_cutoffs(cell),
                **_diversity(cell, part["repeat"].nunique()),
            }
            for scoring in scorings_of(part) or (None,):
                yield {"scoring": scoring, **numbers, **(_accuracy(cell, scoring) if scoring else {})}


def _accuracy(cell: pd.DataFrame, scoring: str) -> dict[str, Any]:
    questions = cell.groupby("question_id")[scoring].mean()
    repeats = cell.groupby("repeat")[scoring].mean()
    n_right = cell[scoring].sum()
    return {
        "accuracy": share(questions.tolist()),
        "spread": None if cell["copied"].iloc[0] or len(repeats) < 2 else repeats.std(),
        "no_answer": cell[f"{scoring} answer"].isna().mean(),
        "tokens_per_correct": cell["n_tokens"].sum() / n_right if n_right else None,
    }


def _cutoffs(cell: pd.DataFrame) -> dict[str, Any]:
    sizes = np.concatenate([np.asarray(k, np.int64) for k in cell["k"]])
    if not len(sizes):
        return {}
    names = {"k_95": 0.95, "k_99": 0.99, "k_max": 1}
    quantiles = np.quantile(sizes, list(names.values()), method="inverted_cdf")
    return {"k_is_1": (sizes == 1).mean(), **dict(zip(names, quantiles.tolist(), strict=True))}


def repeated(cell: pd.DataFrame, n_repeats: int) -> list[pd.DataFrame]:
    """Return the responses to each question of a cell that has all repeats; none with one response each."""
    questions = (question for _, question in cell.groupby("question_id", sort=False))
    return [question for question in questions if len(question) == n_repeats > 1]


def _diversity(cell: pd.DataFrame, n_repeats: int) -> dict[str, Any]:
    texts = [question["text"].tolist() for question in repeated(cell, n_repeats)]
    if not any(text.split() for texts_of_question in texts for text in texts_of_question):
        return {}
    return {
        "self_bleu": np.mean([self_bleu(one) for one in texts]),
        "distinct": np.mean([len(set(one)) / len(one) for one in texts]),
    }


def _attempts(responses: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for _, part in responses.groupby(["task", "model"], sort=False):
        n = part["repeat"].nunique()
        for key, cell in by_cell(part):
            questions = repeated(cell, n)
            for scoring in scorings_of(part) if questions else ():
                ballots = [_votes(question, scoring) for question in questions]
                for k in attempt_sizes(n):
                    yield {
                        **key._asdict(),
                        "scoring": scoring,
                        "questions": len(questions),
                        "k": k,
                        "pass": share([pass_at(n, one.count(0), k) for one in ballots]),
                        "maj": share([majority_at(one, k) for one in ballots]),
                    }


def _votes(question: pd.DataFrame, scoring: str) -> list[int]:
    """Return the votes on a question; a truncated response has none."""
    answers = question[f"{scoring} answer"].where(question["finish_reason"] != "length")
    texts = [answer if isinstance(answer, str) else None for answer in answers]
    return votes(texts, (question[scoring] == 1).tolist())


def _comparisons(
    responses: pd.DataFrame, kind: str, name: str, other: Callable[[CellKey], CellKey | None]
) -> Iterator[dict[str, Any]]:
    """Yield the comparison of each cell with its other one, corrected together under each scoring.

    Greedy's copies are one comparison between models, and none between temperatures.
    """
    cells = dict(by_cell(responses))
    pairs = [(key, cells[found]) for key in cells if (found := other(key)) in cells]
    if kind in ("model", "temperature"):
        coldest = {key[:3]: min(one.temperature for one in cells if one[:3] == key[:3]) for key, _ in pairs}
        pairs = [
            (key, one)
            for key, one in pairs
            if not cells[key]["copied"].iloc[0] or (kind == "model" and key.temperature == coldest[key[:3]])
        ]
    for scoring in SCORINGS:
        rows = [
            {**key._asdict(), "scoring": scoring, "kind": kind, "against": name}
            | _compare(cells[key], one, scoring)
            for key, one in pairs
            if scorings_of(cells[key]) and scorings_of(one)
        ]
        for row, adjusted in zip(rows, holm([row["p"] for row in rows]), strict=True):
            sign = np.sign(row["difference"].value) if adjusted <= ALPHA else 0
            yield {**row, "p_holm": adjusted, "better": sign > 0, "worse": sign < 0}


def _compare(first: pd.DataFrame, second: pd.DataFrame, scoring: str) -> dict[str, Any]:
    """Return the paired test of two cells.

    A question with fewer common repeats than others is left out: it is one that is being answered, and its
    short responses come first.
    """
    places = ["question_id", "repeat"]
    gains = (first.set_index(places)[scoring] - second.set_index(places)[scoring]).dropna()
    sums = gains.groupby(level=0).agg(["sum", "size"])
    n_repeats = int(sums["size"].max()) if len(sums) else 1
    complete = sums[sums["size"] == n_repeats]
    test = paired_test(complete["sum"].astype(int).tolist(), n_repeats)
    return {
        "common_questions": test.n,
        "difference": test.difference,
        "won": test.won,
        "lost": test.lost,
        "p": test.p,
    }


def sampler_of(text: str) -> Sampler | None:
    """Return the sampler of a text; None if it is of another version."""
    try:
        return parse(text)
    except ValueError:
        return None


def _default(key: CellKey) -> CellKey | None:
    """Return the cell of the same sampler with its default options and the same order, if it has others."""
    sampler = sampler_of(key.sampler)
    if sampler is None:
        return None
    default = type(sampler)(**({"order": sampler.order} if sampler.order else {}))
    return None if default == sampler else key._replace(sampler=str(default))


@dataclass(frozen=True)
class Sweep:
    """Samplers that differ in the value of one numeric option, `samplers`, by ascending value.

    `name` is the sampler's, and `fixed` has its other options if they are not the defaults.
    """

    name: str
    option: str
    fixed: str
    samplers: dict[float, str]


def sweeps(texts: Sequence[str], fewest: int = 3) -> list[Sweep]:
    """Return the options that have `fewest` values or more among samplers alike in all else, by name."""
    found: dict[tuple[str, str, str], dict[float, str]] = {}
    for text in texts:
        sampler = sampler_of(text)
        for field in fields(sampler) if sampler else ():  # type: ignore[arg-type]
            if sampler and type(field.default) in (int, float):
                rest = text.replace(f"{field.name}={getattr(sampler, field.name):g}", "")
                fixed = rest.partition(":")[2].strip(",").replace(",,", ",")
                values = found.setdefault((sampler.name, field.name, fixed), {})
                values[getattr(sampler, field.name)] = text
    return [
        Sweep(*key, dict(sorted(found[key].items()))) for key in sorted(found) if len(found[key]) >= fewest
    ]
