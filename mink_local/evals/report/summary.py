"""The numbers of a report: the cells of the grid, and every method compared with Min-k."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from mink_local.errors import ReportError
from mink_local.evals.report import stats
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.repeats import MOST, Attempts, Diversity, Votes, attempts, diversity
from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import NO_ANSWER, Verdict
from mink_local.samplers import SAMPLERS, MinK, label

Scoring = Literal["strict", "flexible"]
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)


@dataclass(frozen=True)
class Method:
    """A sampler, as `str(sampler)`, together with where its temperature acts: a row of a table."""

    sampler: str
    order: str | None

    @property
    def name(self) -> str:
        """The label without the order."""
        return str(self).partition(" (")[0]

    @property
    def short_order(self) -> str:
        """ "T first", "T last", or nothing if the cutoff does not depend on temperature."""
        return str(self).partition(" (")[2].rstrip(")")

    def __str__(self) -> str:
        return label(self.sampler)


Kind = Literal["sampler", "model", "temperature"]


@dataclass(frozen=True)
class Baseline:
    """A sampler, model or temperature that every other one is compared with, all else being equal."""

    kind: Kind
    value: str | float

    def key_for(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the key of the cell to compare with: model, task, sampler, temperature."""
        place = {"model": 0, "sampler": 2, "temperature": 3}[self.kind]
        return (*key[:place], self.value, *key[place + 1 :])

    def __str__(self) -> str:
        return f"T = {self.value:g}" if self.kind == "temperature" else str(self.value)


@dataclass(frozen=True)
class Comparison:
    """The difference between a cell and the baseline's cell.

    `adjusted` is the paired test's p-value after Holm's correction over the family, and `visible` the
    difference that it finds with a chance of 80% at the level of the family's next step.
    """

    paired: stats.PairedTest
    adjusted: float
    visible: float | None

    @property
    def better(self) -> bool:
        return self.significant and self.paired.difference > 0

    @property
    def worse(self) -> bool:
        return self.significant and self.paired.difference < 0

    @property
    def significant(self) -> bool:
        return self.adjusted <= stats.ALPHA


@dataclass(frozen=True, eq=False)
class CellResult:
    """All responses of one cell; `comparisons` with the baseline are by scoring, and it has none.

    `n_repeats`: the most responses to a question that any cell of the model and task has. `copied`: they are
    copies of responses that were generated once, for all temperatures and repeats.
    """

    method: Method
    temperature: float
    responses: Sequence[Response]
    n_repeats: int
    copied: bool = False
    comparisons: dict[Scoring, Comparison] = field(default_factory=dict)

    @cached_property
    def asked(self) -> set[tuple[str, int]]:
        """The question id and repeat of every response."""
        return {(r.question_id, r.repeat) for r in self.responses}

    def outcomes(self, scoring: Scoring) -> dict[tuple[str, int], bool]:
        """Return the correctness of every response that has a verdict, by question id and repeat."""
        verdicts = {(r.question_id, r.repeat): getattr(r, scoring) for r in self.responses}
        return {key: verdict.correct for key, verdict in verdicts.items() if verdict}

    @cached_property
    def accuracy(self) -> dict[Scoring, stats.Accuracy]:
        return {scoring: stats.accuracy(self.outcomes(scoring)) for scoring in SCORINGS}

    def spread(self, scoring: Scoring) -> float | None:
        """Return the standard deviation of the repeats' accuracies, if there are repeats."""
        return None if self.copied else self.accuracy[scoring].spread

    @property
    def n_questions(self) -> int:
        return len({question_id for question_id, _ in self.asked})

    @cached_property
    def no_answer(self) -> dict[Scoring, float]:
        return {s: statistics.fmean(getattr(r, s).answer is None for r in self.responses) for s in SCORINGS}

    def ended(self, finish_reason: str) -> float:
        """Return the share of responses with this finish reason."""
        return statistics.fmean(r.finish_reason == finish_reason for r in self.responses)

    @cached_property
    def mean_tokens(self) -> float:
        return statistics.fmean(r.n_tokens for r in self.responses)

    @cached_property
    def mean_seconds(self) -> float:
        return statistics.fmean(r.seconds for r in self.responses)

    def tokens_per_correct(self, scoring: Scoring) -> float | None:
        """Return all tokens over the number of correct responses; None if none is correct."""
        correct = sum(self.outcomes(scoring).values())
        return sum(r.n_tokens for r in self.responses) / correct if correct else None

    @cached_property
    def cutoffs(self) -> stats.CutoffCounts:
        return stats.CutoffCounts.of(r.k for r in self.responses)

    def cutoff_shares(self, lows: Sequence[int]) -> NDArray[np.float64]:
        """Return the shares of steps with a k from `lows[i]` to the next of them, or more for the last.

        Returns:
            float64 (2, len(lows)): the mean over questions, and half of its 95% interval, Student's.
        """
        sizes: dict[str, list[int]] = {}
        for response in self.responses:
            sizes.setdefault(response.question_id, []).extend(response.k)
        shares = np.array([np.histogram(k, [*lows, math.inf])[0] / len(k) for k in sizes.values() if k])
        n = len(shares)
        half = t.isf(0.025, n - 1) * shares.std(axis=0, ddof=1) / n**0.5 if n > 1 else 0 * shares[0]
        return np.array([shares.mean(axis=0), half])

    @cached_property
    def repeated(self) -> list[list[Response]]:
        """The responses to each question that has `n_repeats`; none with one response a question."""
        asked: dict[str, list[Response]] = {}
        for response in self.responses:
            asked.setdefault(response.question_id, []).append(response)
        return [given for given in asked.values() if len(given) == self.n_repeats > 1]

    @cached_property
    def votes(self) -> dict[Scoring, list[Votes]]:
        """The votes on each question that has all repeats. A truncated response has none."""

        def verdict(response: Response, scoring: Scoring) -> Verdict:
            return NO_ANSWER if response.finish_reason == "length" else getattr(response, scoring)

        repeated = [] if any(r.open_ended for r in self.responses) else self.repeated
        return {s: [Votes.of([verdict(r, s) for r in given[:MOST]]) for given in repeated] for s in SCORINGS}

    def n_answers(self, scoring: Scoring) -> float | None:
        """Return the mean number of different answers to a question; None with one response a question."""
        votes = self.votes[scoring]
        return statistics.fmean(vote.n_answers for vote in votes) if votes else None

    @cached_property
    def attempts(self) -> dict[Scoring, list[Attempts]]:
        """The accuracies of k responses; empty with one response a question."""
        return {scoring: attempts(votes) for scoring, votes in self.votes.items() if votes}

    @cached_property
    def diversity(self) -> Diversity | None:
        """The diversity of the responses to a question; None with one response a question."""
        return diversity([[r.response for r in given] for given in self.repeated])


@dataclass(eq=False)
class TaskResult:
    """The grid of one model on one task: methods, the baseline first, × temperatures, ascending.

    `baseline` is the method that the others are compared with, if they are compared with one. `chance` is
    the accuracy of guessing, if all questions have the same number of choices. `recorded` responses are
    there of those `asked` for, if it is known how many were.
    """

    model: str
    task: str
    chance: float | None
    methods: list[Method]
    temperatures: list[float]
    cells: dict[tuple[str, float], CellResult]
    recorded: int
    asked: int | None
    baseline: Method | None = None

    @property
    def title(self) -> str:
        return f"{self.task} with {self.model}"

    @property
    def n_questions(self) -> int:
        return len({r.question_id for cell in self.cells.values() for r in cell.responses})

    @property
    def n_repeats(self) -> int:
        return next(iter(self.cells.values())).n_repeats

    @cached_property
    def open_ended(self) -> bool:
        """True if responses have no verdicts: there is no accuracy, and no comparison."""
        return any(r.open_ended for cell in self.cells.values() for r in cell.responses)

    @property
    def cut_off(self) -> float:
        """The share of responses at the lowest temperature that the token limit cut off."""
        coldest = [cell for cell in self.cells.values() if cell.temperature == self.temperatures[0]]
        weights = [len(cell.responses) for cell in coldest]
        return statistics.fmean((cell.ended("length") for cell in coldest), weights)

    @cached_property
    def no_answer(self) -> dict[Scoring, float]:
        """The share of all responses in which a scoring finds no answer."""
        cells = self.cells.values()
        weights = [len(cell.responses) for cell in cells]
        return {s: statistics.fmean((cell.no_answer[s] for cell in cells), weights) for s in SCORINGS}

    @property
    def strict_is_silent(self) -> bool:
        """True if strict finds less than a tenth of the answers that flexible does: it shows the format."""
        if self.open_ended:
            return False
        return 1 - self.no_answer["strict"] < 0.1 * (1 - self.no_answer["flexible"])

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        """Strict and flexible, the one to read first; none if the questions are open-ended."""
        if self.open_ended:
            return ()
        return SCORINGS[::-1] if self.strict_is_silent else SCORINGS

    @cached_property
    def incomplete(self) -> list[CellResult]:
        """The cells without a response to a question and repeat that another cell has."""
        full = set().union(*(cell.asked for cell in self.cells.values()))
        return [cell for cell in self.cells.values() if cell.asked != full]

    @cached_property
    def repeated(self) -> list[CellResult]:
        """The cells with several responses to a question, row by row."""
        return [cell for method in self.methods for cell in self.row(method) if cell.repeated]

    def row(self, method: Method) -> list[CellResult]:
        """Return the cells of a method, at ascending temperatures."""
        cells = (self.cells.get((method.sampler, t)) for t in self.temperatures)
        return [cell for cell in cells if cell]

    def comparisons(self, scoring: Scoring) -> list[tuple[CellResult, Comparison]]:
        """Return every cell that is compared with the baseline, row by row, and the comparison."""
        cells = (cell for method in self.methods for cell in self.row(method))
        return [(cell, cell.comparisons[scoring]) for cell in cells if scoring in cell.comparisons]

    def winners(self, scoring: Scoring, temperature: float) -> set[Method]:
        """Return the methods that are significantly better at a temperature than the baseline.

        If the baseline is significantly better than every other method, return the baseline.
        """
        column = [pair for pair in self.comparisons(scoring) if pair[0].temperature == temperature]
        if self.baseline and column and all(comparison.worse for _, comparison in column):
            return {self.baseline}
        return {cell.method for cell, comparison in column if comparison.better}


@dataclass
class Summary:
    """All numbers of a report; `against` is None if the run has no Min-k."""

    tasks: list[TaskResult]
    against: Baseline | None

    @property
    def baseline(self) -> str | None:
        """The sampler that the others are compared with, if they are compared with one."""
        return str(self.against) if self.against and self.against.kind == "sampler" else None

    @property
    def scorings(self) -> tuple[Scoring, ...]:
        orders = {task.scorings for task in self.tasks if not task.open_ended}
        return orders.pop() if len(orders) == 1 else SCORINGS if orders else ()

    def family(self, scoring: Scoring) -> list[Comparison]:
        """Return the comparisons that are corrected together: those of the whole run under one scoring."""
        return [comparison for task in self.tasks for _, comparison in task.comparisons(scoring)]


def summarise(run: RecordedRun, against: str | None = None) -> Summary:
    """Return the numbers of a run.

    The others are compared with the sampler whose `str()` is `against`, or with the same method in
    "model=NAME" or at "temp=T": by default with Min-k with the paper's options, or else with the first Min-k
    of the run. Raises ReportError if it is not in the run.
    """
    orders = {r.sampler: r.order for r in run.responses}
    baseline = _baseline(run, sorted(orders, key=_rank), against)
    samplers = sorted(orders, key=lambda sampler: (sampler != (baseline and baseline.value), *_rank(sampler)))
    methods = [Method(sampler, orders[sampler]) for sampler in samplers]
    cells: dict[tuple[str, str], dict[tuple[str, float], list[Response]]] = {}
    for r in _repeat_greedy(run.responses):
        cells.setdefault((r.model, r.task), {}).setdefault((r.sampler, r.temperature), []).append(r)
    tasks = [_task_result(run, model, task, methods, cells[model, task]) for model, task in sorted(cells)]
    if baseline:
        for task in tasks:
            same = (method for method in task.methods if method.sampler == baseline.value)
            task.baseline = next(same, None)
        for scoring in SCORINGS:
            _compare_all([task for task in tasks if not task.open_ended], scoring, baseline)
    return Summary(tasks, baseline)


def _repeat_greedy(responses: Sequence[Response]) -> Iterator[Response]:
    """Copy each greedy response to every temperature and repeat of its model and task.

    A run generates a response at temperature 0 once, since it would be the same again.
    """
    sampled: dict[tuple[str, str], set[tuple[float, int]]] = {}
    for r in responses:
        if r.temperature:
            sampled.setdefault((r.model, r.task), set()).add((r.temperature, r.repeat))
    for r in responses:
        if r.temperature or (r.model, r.task) not in sampled:
            yield r
        else:
            for temperature, repeat in sorted(sampled[r.model, r.task]):
                yield replace(r, temperature=temperature, repeat=repeat)


def _rank(sampler: str) -> tuple[int, str]:
    """Return a sort key: the order of `SAMPLERS`, then the text."""
    names = list(SAMPLERS)
    name = sampler.partition(":")[0]
    return (names.index(name) if name in names else len(names), sampler)


def _baseline(run: RecordedRun, samplers: Sequence[str], against: str | None) -> Baseline | None:
    if against is None:
        min_ks = [sampler for sampler in samplers if sampler.partition(":")[0] == MinK.name]
        paper = str(MinK())
        chosen = paper if paper in min_ks else next(iter(min_ks), None)
        return Baseline("sampler", chosen) if chosen else None
    kind, _, name = against.partition("=")
    if kind == "model":
        found = {model: Baseline("model", model) for model in sorted({r.model for r in run.responses})}
    elif kind == "temp":
        temperatures = sorted({r.temperature for r in run.responses if r.temperature})
        found = {f"{t:g}": Baseline("temperature", t) for t in temperatures}
    else:
        kind, name = "sampler", against
        found = {sampler: Baseline("sampler", sampler) for sampler in samplers}
    if name not in found:
        word = {"temp": "temperature"}.get(kind, kind)
        raise ReportError(f"{against} is not in this run: its {word}s are {', '.join(found)}")
    return found[name]


def _task_result(
    run: RecordedRun,
    model: str,
    task: str,
    methods: Sequence[Method],
    responses: dict[tuple[str, float], list[Response]],
) -> TaskResult:
    by_sampler = {method.sampler: method for method in methods}
    once = {r.sampler for r in run.responses if not r.temperature}
    n_repeats = len({r.repeat for given in responses.values() for r in given})
    cells = {
        (s, t): CellResult(by_sampler[s], t, given, n_repeats, s in once)
        for (s, t), given in responses.items()
    }
    n_choices = {len(question.choices) for (of, _), question in run.questions.items() if of == task}
    chance = 1 / min(n_choices) if len(n_choices) == 1 and min(n_choices) else None
    rows = [method for method in methods if any(sampler == method.sampler for sampler, _ in cells)]
    temperatures, recorded = sorted({t for _, t in cells}), [(r.model, r.task) for r in run.responses]
    n, asked = recorded.count((model, task)), run.asked.get((model, task))
    return TaskResult(model, task, chance, rows, temperatures, cells, n, asked)


def _compare_all(tasks: Sequence[TaskResult], scoring: Scoring, against: Baseline) -> None:
    """Compare every cell with the baseline's under one scoring, corrected together."""
    cells: dict[tuple[Any, ...], CellResult] = {
        (task.model, task.task, *key): cell for task in tasks for key, cell in task.cells.items()
    }
    found = [(cell, cells.get(against.key_for(key))) for key, cell in cells.items()]
    pairs = [(cell, other) for cell, other in found if other and other is not cell]
    if against.kind != "sampler":  # greedy's copies: one comparison between models, none between temperatures
        coldest = min((cell.temperature for cell in cells.values()), default=0.0)
        pairs = [(a, b) for a, b in pairs if not a.copied or a.temperature == b.temperature == coldest]
    tests = [stats.compare(cell.outcomes(scoring), other.outcomes(scoring)) for cell, other in pairs]
    adjusted, level = stats.holm([test.p for test in tests])
    for (cell, _), test, p in zip(pairs, tests, adjusted, strict=True):
        cell.comparisons[scoring] = Comparison(test, p, test.visible(level))
