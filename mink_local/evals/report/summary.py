"""From responses to numbers: the cells of the grid, and every method against Min-k."""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

from mink_local.errors import ReportError
from mink_local.evals.report.reading import Run
from mink_local.evals.report.stats import (
    ALPHA,
    Accuracy,
    Paired,
    Steps,
    accuracy,
    compare,
    distinct,
    distinct_2,
    holm,
    visible_difference,
)
from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import Question
from mink_local.samplers import SAMPLERS, MinK

Scoring = Literal["strict", "flexible"]
SCORINGS: tuple[Scoring, ...] = get_args(Scoring)


@dataclass(frozen=True)
class Method:
    """A sampler as a row of a table. `name` is what `--sampler` takes, without the order."""

    sampler: str
    order: str | None

    @property
    def name(self) -> str:
        name, _, options = self.sampler.partition(":")
        kept = ",".join(option for option in options.split(",") if not option.startswith("order="))
        return f"{name}:{kept}" if kept else name

    @property
    def short_order(self) -> str:
        return self.order.replace("temperature", "T").replace("-", " ") if self.order else ""

    def __str__(self) -> str:
        return f"{self.name}, {self.short_order}" if self.order else self.name


@dataclass(frozen=True, eq=False)
class Cell:
    """All responses of one model to one task under one method and temperature."""

    method: Method
    temperature: float
    responses: Sequence[Response]

    def outcomes(self, scoring: Scoring) -> dict[tuple[str, int], bool]:
        return {(r.question_id, r.repeat): getattr(r, scoring).correct for r in self.responses}

    @cached_property
    def accuracy(self) -> dict[Scoring, Accuracy]:
        return {scoring: accuracy(self.outcomes(scoring)) for scoring in SCORINGS}

    @property
    def n_questions(self) -> int:
        return self.accuracy["strict"].n_questions

    @cached_property
    def no_answer(self) -> dict[Scoring, float]:
        """Share of responses in which no answer was found."""
        return {
            "strict": self._share(lambda r: r.strict.answer is None),
            "flexible": self._share(lambda r: r.flexible.answer is None),
        }

    @cached_property
    def truncated(self) -> float:
        """Share of responses that the token limit ended; they count as wrong."""
        return self._share(lambda r: r.finish_reason == "length")

    @cached_property
    def overflowed(self) -> float:
        """Share of responses that are empty because the prompt did not fit the context."""
        return self._share(lambda r: r.finish_reason == "overflow")

    @cached_property
    def mean_tokens(self) -> float:
        return statistics.fmean(r.n_tokens for r in self.responses)

    @cached_property
    def steps(self) -> Steps:
        return Steps.of(r.k for r in self.responses)

    @cached_property
    def distinct(self) -> float | None:
        """Mean over questions of the share of different texts; None with one response a question."""
        return self._over_repeats(distinct)

    @cached_property
    def distinct_2(self) -> float | None:
        return self._over_repeats(distinct_2)

    def _over_repeats(self, measure: Callable[[list[str]], float | None]) -> float | None:
        """Only over questions with all repeats: both measures fall with the number of responses."""
        texts: dict[str, list[str]] = {}
        for response in self.responses:
            texts.setdefault(response.question_id, []).append(response.response)
        repeats = max(map(len, texts.values()))
        values = [measure(given) for given in texts.values() if len(given) == repeats > 1]
        measured = [value for value in values if value is not None]
        return statistics.fmean(measured) if measured else None

    def _share(self, holds: Callable[[Response], bool]) -> float:
        return statistics.fmean(map(holds, self.responses))


@dataclass(frozen=True)
class Comparison:
    """A cell against Min-k's at the same temperature. adjusted: the p-value after Holm's correction over
    the family. visible: see `visible_difference`, at the level of the family's next step."""

    group: "Group"
    scoring: Scoring
    cell: Cell
    paired: Paired
    adjusted: float
    visible: float | None

    @property
    def better(self) -> bool:
        return self._significant and self.paired.won > self.paired.lost and self.paired.difference > 0

    @property
    def worse(self) -> bool:
        return self._significant and self.paired.won < self.paired.lost and self.paired.difference < 0

    @property
    def _significant(self) -> bool:
        return self.adjusted <= ALPHA


@dataclass(eq=False)
class Group:
    """One model on one task: a table of methods × temperatures.

    `comparisons`: by scoring and (sampler, temperature), of every cell but Min-k's own.
    """

    model: str
    task: str
    questions: dict[str, Question]
    methods: list[Method]
    temperatures: list[float]
    cells: dict[tuple[str, float], Cell]
    comparisons: dict[Scoring, dict[tuple[str, float], Comparison]]

    @property
    def n_questions(self) -> int:
        """Of the cell with most; a cell with fewer is not complete."""
        return max(cell.n_questions for cell in self.cells.values())

    @property
    def n_repeats(self) -> int:
        return max(len(cell.accuracy["strict"].repeats) for cell in self.cells.values())

    @property
    def incomplete(self) -> list[Cell]:
        full = max(len(cell.responses) for cell in self.cells.values())
        return [cell for cell in self.cells.values() if len(cell.responses) < full]

    def rows(self) -> Iterable[tuple[Method, list[Cell | None]]]:
        for method in self.methods:
            yield method, [self.cells.get((method.sampler, t)) for t in self.temperatures]


@dataclass
class Summary:
    """`baseline`: the sampler that the others are compared with, None where the run has no Min-k."""

    groups: list[Group]
    baseline: str | None

    def family(self, scoring: Scoring) -> list[Comparison]:
        """All comparisons that are corrected together: those of the whole run under one scoring."""
        return [c for group in self.groups for c in group.comparisons[scoring].values()]

    def winners(self, group: Group, scoring: Scoring, temperature: float) -> set[str]:
        """The samplers of a column that stand out for a reason: those significantly better than Min-k, or
        Min-k itself where it is significantly better than every other."""
        column = [c for (_, t), c in group.comparisons[scoring].items() if t == temperature]
        if self.baseline and column and all(c.worse for c in column):
            return {self.baseline}
        return {c.cell.method.sampler for c in column if c.better}


def summarise(run: Run, against: str | None = None) -> Summary:
    """The grid of a run. against: the `str()` of the sampler to compare with; by default Min-k as the
    paper has it, or else the first Min-k of the run. Raises ReportError where `against` is not in it."""
    orders = {r.sampler: r.order for r in run.responses}
    baseline = _baseline(sorted(orders, key=_rank), against)
    samplers = sorted(orders, key=lambda sampler: (sampler != baseline, *_rank(sampler)))
    methods = {sampler: Method(sampler, orders[sampler]) for sampler in samplers}
    cells: dict[tuple[str, str], dict[tuple[str, float], list[Response]]] = {}
    for r in _spread(run.responses):
        cells.setdefault((r.model, r.task), {}).setdefault((r.sampler, r.temperature), []).append(r)
    groups = [_group(run, *key, methods, cells[key]) for key in sorted(cells)]
    for scoring in SCORINGS:
        _compare(groups, scoring, baseline)
    return Summary(groups, baseline)


def _spread(responses: Sequence[Response]) -> Iterator[Response]:
    """The responses, with those of temperature 0, which a run asks for once (greedy), standing at every
    temperature and repeat of their model and task: they would be the same there."""
    drawn: dict[tuple[str, str], set[tuple[float, int]]] = {}
    for r in responses:
        if r.temperature:
            drawn.setdefault((r.model, r.task), set()).add((r.temperature, r.repeat))
    for r in responses:
        if r.temperature or (r.model, r.task) not in drawn:
            yield r
        else:
            for temperature, repeat in sorted(drawn[r.model, r.task]):
                yield replace(r, temperature=temperature, repeat=repeat)


def _rank(sampler: str) -> tuple[int, str]:
    names = list(SAMPLERS)
    name = sampler.partition(":")[0]
    return (names.index(name) if name in names else len(names), sampler)


def _baseline(samplers: Sequence[str], against: str | None) -> str | None:
    if against and against not in samplers:
        raise ReportError(f"{against} is not in this run: its samplers are {', '.join(samplers)}")
    kinds = [sampler for sampler in samplers if sampler.partition(":")[0] == MinK.name]
    paper = str(MinK())
    return against or (paper if paper in kinds else next(iter(kinds), None))


def _group(
    run: Run,
    model: str,
    task: str,
    methods: dict[str, Method],
    responses: dict[tuple[str, float], list[Response]],
) -> Group:
    present = {sampler for sampler, _ in responses}
    cells = {key: Cell(methods[key[0]], key[1], given) for key, given in responses.items()}
    questions = {question.id: question for (of, _), question in run.questions.items() if of == task}
    temperatures = sorted({temperature for _, temperature in responses})
    rows = [method for sampler, method in methods.items() if sampler in present]
    return Group(model, task, questions, rows, temperatures, cells, {s: {} for s in SCORINGS})


def _compare(groups: Sequence[Group], scoring: Scoring, baseline: str | None) -> None:
    """Fill in every group's comparisons under one scoring, corrected together."""
    found = []
    for group in groups:
        for method, cells in group.rows():
            for temperature, cell in zip(group.temperatures, cells, strict=True):
                other = group.cells.get((baseline or "", temperature))
                if cell and other and method.sampler != baseline:
                    found.append((group, cell, compare(cell.outcomes(scoring), other.outcomes(scoring))))
    adjusted, level = holm([paired.p for _, _, paired in found])
    for (group, cell, paired), p in zip(found, adjusted, strict=True):
        visible = visible_difference(paired.n_questions, paired.won + paired.lost, level)
        group.comparisons[scoring][cell.method.sampler, cell.temperature] = Comparison(
            group, scoring, cell, paired, p, visible
        )
