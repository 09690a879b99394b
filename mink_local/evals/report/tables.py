"""The tables of a report, for a terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from mink_local.evals.report.ablations import ablations, variants
from mink_local.evals.report.format import count, escape_markdown, p_value, percent, points
from mink_local.evals.report.repeats import Attempts
from mink_local.evals.report.summary import (
    SCORINGS,
    Baseline,
    CellResult,
    Comparison,
    Method,
    Scoring,
    Summary,
    TaskResult,
)


@dataclass(frozen=True)
class TableEntry:
    """A text, with another one `below` it in smaller print."""

    text: str = ""
    below: str = ""
    bold: bool = False


@dataclass(frozen=True)
class ReportTable:
    """A table whose first column holds names and whose other columns hold numbers, or else sentences.

    Pictures whose subject begins with the table's belong to it.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[TableEntry]]
    numbers: bool = True
    subject: str = "none"

    def rich(self, width: int) -> Iterator[Table | Text]:
        """Yield the title and, for a terminal of `width` columns, as few tables as show every number whole.

        (One table would be folded, and break numbers in the middle.)
        """
        yield Text(f"\n{self.title}", style="bold")
        entries = zip(*([TableEntry(name) for name in self.columns], *self.rows), strict=True)
        names, *numbers = (max(len(t) for e in column for t in (e.text, e.below)) + 3 for column in entries)
        n = max(1, (width - names - 1) // max(numbers))
        for start in range(1, len(self.columns), n):
            yield self._rich_part([0, *range(start, min(start + n, len(self.columns)))])

    def _rich_part(self, columns: Sequence[int]) -> Table:
        table = Table()
        for column in columns:
            table.add_column(Text(self.columns[column]), justify="right" if column else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*(_rich(row[column]) for column in columns))
        return table

    def markdown(self) -> str:
        rule = ["---", *["--:" if self.numbers else "---"] * (len(self.columns) - 1)]
        rows = [[_markdown(entry) for entry in row] for row in self.rows]
        lines = [[escape_markdown(name) for name in self.columns], rule, *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rich(entry: TableEntry) -> Text:
    text = Text(entry.text, style="bold" if entry.bold else "")
    return text.append(f"\n{entry.below}", style="dim not bold") if entry.below else text


def _markdown(entry: TableEntry) -> str:
    text = f"**{escape_markdown(entry.text)}**" if entry.bold else escape_markdown(entry.text)
    return f"{text} ({escape_markdown(entry.below)})" if entry.below else text


def grid_tables(task: TaskResult) -> list[ReportTable]:
    """Return the tables of methods × temperatures that have numbers for this model and task."""
    title = f"{task.task} · {task.model} ·"
    tables = [accuracy_table(task, scoring) for scoring in task.scorings]
    if variants(task):
        tables += [ablations_table(task, scoring) for scoring in task.scorings]
    if task.open_ended:
        tables.append(_grid(task, f"{title} mean tokens; cut off at the token limit, %", _lengths))
    else:
        rates = f"{title} no answer found, strict / flexible; cut off at the token limit, %"
        tables.append(_grid(task, rates, _rates))
        first = task.scorings[0]
        costs = f"{title} mean tokens; tokens per correct answer ({first}), seconds a response"
        tables.append(_grid(task, costs, partial(_costs, first)))
    if task.repeated:
        of = f"accuracy of {task.n_repeats} responses: any right / the majority right, %"
        for scoring in task.scorings:
            attempts = partial(_all_attempts, scoring)
            tables.append(_grid(task, f"{title} {scoring} {of}", attempts, f"attempts-{scoring}"))
    if any(cell.diversity for cell in task.cells.values()):
        answers = "" if task.open_ended else ", different answers"
        text = f"{title} EAD, %; self-BLEU-4{answers} ({task.n_repeats} responses a question)"
        diversity = partial(_diversity, next(iter(task.scorings), None))
        tables.append(_grid(task, text, diversity, "diversity"))
    if any(cell.cutoffs.n_steps for cell in task.cells.values()):
        cutoffs = f"{title} steps with one candidate, %, and the k of 95%, 99% and all steps"
        tables.append(_grid(task, cutoffs, _cutoffs, "k"))
    return tables


def accuracy_table(task: TaskResult, scoring: Scoring) -> ReportTable:
    """Return accuracies with intervals and significance, laid out as in the paper's Table 1."""
    winners = {t: task.winners(scoring, t) for t in task.temperatures}

    def entry(cell: CellResult) -> TableEntry:
        value, comparison = cell.accuracy[scoring], cell.comparisons.get(scoring)
        spread = cell.spread(scoring)
        text = percent(value.value) + ("" if spread is None else f"±{percent(spread)}")
        if comparison:
            text += "▲" * comparison.better + "▼" * comparison.worse
        text += "*" * (cell in task.incomplete)
        bold = cell.method in winners[cell.temperature]
        return TableEntry(text, f"{percent(value.low)}–{percent(value.high)}", bold)

    title = f"{task.task} · {task.model} · {scoring} accuracy, %"
    return _grid(task, title, entry, f"accuracy-{scoring}")


def _rates(cell: CellResult) -> TableEntry:
    no_answer = " / ".join(percent(cell.no_answer[scoring]) for scoring in SCORINGS)
    return TableEntry(no_answer, f"cut off {percent(cell.ended('length'))}")


def _lengths(cell: CellResult) -> TableEntry:
    return TableEntry(f"{cell.mean_tokens:.1f}", f"cut off {percent(cell.ended('length'))}")


def _costs(scoring: Scoring, cell: CellResult) -> TableEntry:
    per_correct = cell.tokens_per_correct(scoring)
    tokens = "–" if per_correct is None else f"{per_correct:,.0f}"
    return TableEntry(f"{cell.mean_tokens:.1f}", f"{tokens}, {cell.mean_seconds:.1f} s")


def attempts_table(task: TaskResult, scoring: Scoring) -> ReportTable:
    """Return pass@k and maj@k with intervals: a row for every method and temperature that has repeats."""
    sizes = sorted({one.k for cell in task.repeated for one in cell.attempts[scoring]})
    of = f"{scoring} accuracy of k responses: any right / the majority right, %"
    rows = []
    for cell in task.repeated:
        if not cell.copied or cell.temperature == task.temperatures[0]:
            temperature = "all" if cell.copied else f"{cell.temperature:g}"
            entries = {one.k: _attempt(one) for one in cell.attempts[scoring]}
            numbers = (entries.get(k, TableEntry()) for k in sizes)
            rows.append([TableEntry(str(cell.method)), TableEntry(temperature), *numbers])
    columns = ["method", "T", *(f"k = {k}" for k in sizes)]
    return ReportTable(f"{task.task} · {task.model} · {of}", columns, rows)


def _all_attempts(scoring: Scoring, cell: CellResult) -> TableEntry:
    return _attempt(cell.attempts[scoring][-1]) if cell.repeated else TableEntry()


def _attempt(one: Attempts) -> TableEntry:
    shares = (one.passed, one.majority)
    below = " / ".join(f"{percent(share.low)}–{percent(share.high)}" for share in shares)
    return TableEntry(" / ".join(percent(share.value) for share in shares), below)


def _diversity(scoring: Scoring | None, cell: CellResult) -> TableEntry:
    if not cell.diversity:
        return TableEntry()
    below = f"{cell.diversity.self_bleu:.1f}"
    if scoring:
        below += f", {cell.n_answers(scoring):.1f}"
    return TableEntry(percent(cell.diversity.ead), below)


def ablations_table(task: TaskResult, scoring: Scoring) -> ReportTable:
    """Return the differences between the accuracies of variants and of their sampler's default options."""
    tests = {found.cell: found.paired for found in ablations(task, scoring)}

    def entry(cell: CellResult) -> TableEntry:
        if cell not in tests:
            return TableEntry()
        return TableEntry(points(tests[cell].difference), " to ".join(map(points, tests[cell].interval)))

    of = f"{scoring} accuracy minus that of the sampler's default options, points"
    return _grid(task, f"{task.task} · {task.model} · {of}", entry, methods=list(variants(task)))


def _cutoffs(cell: CellResult) -> TableEntry:
    if not cell.cutoffs.n_steps:
        return TableEntry()
    quantiles = " ".join(f"{cell.cutoffs.quantile(q):,}" for q in (0.95, 0.99, 1))
    return TableEntry(percent(cell.cutoffs.share(1)), f"≤ {quantiles}")


def _grid(
    task: TaskResult,
    title: str,
    entry: Callable[[CellResult], TableEntry],
    subject: str = "none",
    methods: Sequence[Method] | None = None,
) -> ReportTable:
    columns = ["method", *(f"T = {temperature:g}" for temperature in task.temperatures)]
    rows = []
    for method in task.methods if methods is None else methods:
        entries = {cell.temperature: entry(cell) for cell in task.row(method)}
        numbers = (entries.get(temperature, TableEntry()) for temperature in task.temperatures)
        rows.append([TableEntry(method.name, method.short_order), *numbers])
    return ReportTable(title, columns, rows, subject=subject)


def comparisons_table(task: TaskResult, scoring: Scoring, baseline: Baseline | None) -> ReportTable:
    """Return every comparison of this model and task with the baseline, under one scoring."""
    title = f"{task.task} · {task.model} · {scoring}, against {baseline} on the same questions"
    columns = ("method", "T", "questions", "difference", "won", "lost", "p", "p, Holm", "visible")
    rows = [_comparison(cell, comparison) for cell, comparison in task.comparisons(scoring)]
    return ReportTable(title, columns, rows)


def _comparison(cell: CellResult, comparison: Comparison) -> list[TableEntry]:
    paired = comparison.paired
    return [
        TableEntry(str(cell.method)),
        TableEntry(f"{cell.temperature:g}"),
        TableEntry(str(paired.n_questions)),
        TableEntry(points(paired.difference), " to ".join(map(points, paired.interval))),
        TableEntry(str(paired.won)),
        TableEntry(str(paired.lost)),
        TableEntry(p_value(paired.p)),
        TableEntry(p_value(comparison.adjusted), bold=comparison.better or comparison.worse),
        TableEntry("none" if comparison.visible is None else percent(comparison.visible)),
    ]


def made_with_table(manifest: Mapping[str, Any]) -> ReportTable:
    """Return the settings of a run: a row for each, for each model and task, and for each environment."""
    rows = [[TableEntry(name), TableEntry(value)] for name, value in _settings(manifest)]
    return ReportTable("What the run was made with", ("setting", "value"), rows, numbers=False)


def _settings(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in manifest.items():
        if key in ("models", "tasks") and isinstance(value, dict):
            yield from ((f"{key[:-1]} {name}", _in_words(entry)) for name, entry in value.items())
        elif key == "asked" and isinstance(value, list):
            yield from (("asked for", _in_words(grid)) for grid in value)
        elif key == "sessions" and isinstance(value, list):
            yield from _sessions(value)
        elif key != "format":
            yield key.replace("_", " "), _in_words(value)


def _sessions(sessions: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the environments in which the run was started, each once: a run may be killed many times."""
    times: dict[str, list[str]] = {}
    for session in sessions:
        entry = dict(session) if isinstance(session, dict) else {}
        started = str(entry.pop("started", "?"))
        times.setdefault(_in_words(entry), []).append(started)
    for environment, starts in times.items():
        span = starts[0] if len(starts) == 1 else f"{starts[0]} to {starts[-1]}"
        yield f"started {count(len(starts), 'time')}", f"{span}: {environment}"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{str(key).replace('_', ' ')} {_in_words(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "none"
    return "not given" if value is None else str(value)


def to_csv(summary: Summary) -> str:
    """Return a line for every cell and scoring, with no scoring if the task is open-ended.

    Accuracies, rates and differences are shares, not percent.
    """
    cells = [(task, cell) for task in summary.tasks for method in task.methods for cell in task.row(method)]
    asked = [(task, cell, scoring) for task, cell in cells for scoring in task.scorings or (None,)]
    return _as_csv([_csv_row(summary, *row) for row in asked])


def repeats_to_csv(summary: Summary) -> str | None:
    """Return a line for every cell, scoring and k, with pass@k and maj@k as shares; None without repeats."""
    rows = [
        _place(task, cell, scoring)
        | {"questions": len(cell.repeated), "k": one.k}
        | {"pass": one.passed.value, "pass_low": one.passed.low, "pass_high": one.passed.high}
        | {"maj": one.majority.value, "maj_low": one.majority.low, "maj_high": one.majority.high}
        for task in summary.tasks
        for cell in task.repeated
        for scoring in task.scorings
        for one in cell.attempts[scoring]
    ]
    return _as_csv(rows) if rows else None


def ablations_to_csv(summary: Summary) -> str | None:
    """Return a line for every variant, temperature and scoring, in shares; None without variants."""
    rows = [
        _place(task, found.cell, scoring)
        | {"default": found.default.sampler, "questions": found.paired.n_questions}
        | {"difference": found.paired.difference}
        | dict(zip(("low", "high"), found.paired.interval, strict=True))
        for task in summary.tasks
        for scoring in task.scorings
        for found in ablations(task, scoring)
    ]
    return _as_csv(rows) if rows else None


def _as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _place(task: TaskResult, cell: CellResult, scoring: Scoring | None) -> dict[str, object]:
    return {
        "model": task.model,
        "task": task.task,
        "scoring": scoring,
        "sampler": cell.method.sampler,
        "order": cell.method.order,
        "temperature": f"{cell.temperature:g}",
    }


def _csv_row(
    summary: Summary, task: TaskResult, cell: CellResult, scoring: Scoring | None
) -> dict[str, object]:
    value = scoring and cell.accuracy[scoring]
    comparison = cell.comparisons.get(scoring) if scoring else None
    paired = comparison.paired if comparison else None
    return _place(task, cell, scoring) | {
        "questions": cell.n_questions,
        "responses": len(cell.responses),
        "accuracy": value and value.value,
        "low": value and value.low,
        "high": value and value.high,
        "spread": scoring and cell.spread(scoring),
        "no_answer": scoring and cell.no_answer[scoring],
        "truncated": cell.ended("length"),
        "overflowed": cell.ended("overflow"),
        "mean_tokens": cell.mean_tokens,
        "mean_seconds": cell.mean_seconds,
        "tokens_per_correct": scoring and cell.tokens_per_correct(scoring),
        "ead": cell.diversity and cell.diversity.ead,
        "self_bleu": cell.diversity and cell.diversity.self_bleu,
        "words": cell.diversity and cell.diversity.words,
        "distinct": cell.diversity and cell.diversity.distinct,
        "answers": scoring and cell.n_answers(scoring),
        "k_is_1": cell.cutoffs.share(1),
        "against": summary.against if comparison else None,
        "common_questions": paired and paired.n_questions,
        "difference": paired and paired.difference,
        "difference_low": paired and paired.interval[0],
        "difference_high": paired and paired.interval[1],
        "won": paired and paired.won,
        "lost": paired and paired.lost,
        "p": paired and paired.p,
        "p_holm": comparison and comparison.adjusted,
        "significant": comparison and (comparison.better or comparison.worse),
        "visible": comparison and comparison.visible,
    }
