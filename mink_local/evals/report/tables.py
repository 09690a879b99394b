"""The tables of a report: each once, and written out for a terminal, as Markdown and as CSV."""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table as RichTable
from rich.text import Text

from mink_local.evals.report.summary import SCORINGS, Cell, Comparison, Group, Scoring, Summary

BETTER, WORSE, INCOMPLETE = "▲", "▼", "*"


@dataclass(frozen=True)
class Entry:
    """`text`, with what belongs `below` it in smaller print."""

    text: str
    below: str = ""
    bold: bool = False


@dataclass(frozen=True)
class Table:
    """The first column holds names, the others numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]

    def rich(self, width: int) -> Iterator[RichTable | Text]:
        """For a terminal of `width` columns: the title, and as few tables as show every number uncut."""
        yield Text(f"\n{self.title}", style="bold")
        for columns in self._fitting(width):
            table = RichTable()
            for index in columns:
                table.add_column(
                    Text(self.columns[index]), justify="right" if index else "left", no_wrap=True
                )
            for row in self.rows:
                table.add_row(*(_rich(row[index]) for index in columns))
            yield table

    def _fitting(self, width: int) -> Iterator[list[int]]:
        widths = [max(map(len, self._column(index))) + 3 for index in range(len(self.columns))]
        columns, room = [0], width - widths[0] - 1
        for index in range(1, len(widths)):
            if widths[index] > room and len(columns) > 1:
                yield columns
                columns, room = [0], width - widths[0] - 1
            columns.append(index)
            room -= widths[index]
        yield columns

    def _column(self, index: int) -> Iterator[str]:
        yield self.columns[index]
        for row in self.rows:
            yield row[index].text
            yield row[index].below

    def markdown(self) -> str:
        rule = ["---", *["--:"] * (len(self.columns) - 1)]
        rows = [[_markdown(entry) for entry in row] for row in self.rows]
        lines = [[escape(name) for name in self.columns], rule, *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rich(entry: Entry) -> Text:
    text = Text(entry.text, style="bold" if entry.bold else "")
    return text.append(f"\n{entry.below}", style="dim not bold") if entry.below else text


def _markdown(entry: Entry) -> str:
    text = f"**{escape(entry.text)}**" if entry.bold else escape(entry.text)
    return f"{text} ({escape(entry.below)})" if entry.below else text


def escape(text: str) -> str:
    """Text as Markdown shows it unchanged, in a table too. (A name may be anything that a user typed.)"""
    for character in "\\`*_[]<>|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def points(difference: float) -> str:
    return f"{100 * difference:+.1f}".replace("-", "−")


def _where(group: Group) -> str:
    return f"{group.task} · {group.model}"


def accuracy_table(summary: Summary, group: Group, scoring: Scoring) -> Table:
    """The paper's Table 1 for one model and task: methods × temperatures."""
    title = f"{_where(group)} · {scoring} accuracy, %"
    winners = {t: summary.winners(group, scoring, t) for t in group.temperatures}

    def entry(cell: Cell) -> Entry:
        value = cell.accuracy[scoring]
        spread = "" if value.spread is None else f"±{percent(value.spread)}"
        comparison = group.comparisons[scoring].get((cell.method.sampler, cell.temperature))
        mark = (BETTER if comparison.better else WORSE if comparison.worse else "") if comparison else ""
        star = INCOMPLETE if cell in group.incomplete else ""
        return Entry(
            f"{percent(value.value)}{spread}{mark}{star}",
            f"{percent(value.low)}–{percent(value.high)}",
            cell.method.sampler in winners[cell.temperature],
        )

    return _grid(group, title, entry)


def rates_table(group: Group) -> Table:
    title = f"{_where(group)} · no answer found, strict / flexible; cut off at the token limit, %"
    return _grid(group, title, _rates)


def _rates(cell: Cell) -> Entry:
    none = " / ".join(percent(cell.no_answer[scoring]) for scoring in SCORINGS)
    return Entry(none, f"cut off {percent(cell.truncated)}")


def diversity_table(group: Group) -> Table:
    title = f"{_where(group)} · distinct responses and distinct-2, % ({group.n_repeats} a question)"
    return _grid(group, title, _diversity)


def _diversity(cell: Cell) -> Entry:
    if cell.distinct is None:
        return Entry("")
    return Entry(
        percent(cell.distinct), f"d-2 {percent(cell.distinct_2)}" if cell.distinct_2 is not None else ""
    )


def steps_table(group: Group) -> Table:
    title = f"{_where(group)} · steps with one candidate, %, and the k of 95%, 99% and all steps"
    return _grid(group, title, _steps)


def _steps(cell: Cell) -> Entry:
    if not cell.steps.n:
        return Entry("")
    sizes = " ".join(f"{cell.steps.quantile(q):,}" for q in (0.95, 0.99, 1))
    return Entry(percent(cell.steps.share(1)), f"≤ {sizes}")


def _grid(group: Group, title: str, entry: Callable[[Cell], Entry]) -> Table:
    columns = ["method", *(f"T = {temperature:g}" for temperature in group.temperatures)]
    rows = [
        [Entry(method.name, method.short_order), *(entry(cell) if cell else Entry("") for cell in cells)]
        for method, cells in group.rows()
    ]
    return Table(title, columns, rows)


def comparisons_table(summary: Summary, group: Group, scoring: Scoring) -> Table:
    title = f"{_where(group)} · {scoring}, against {summary.baseline} on the same questions"
    columns = ("method", "T", "questions", "difference", "won", "lost", "p", "p, Holm", "visible")
    rows = [_comparison(c) for c in group.comparisons[scoring].values()]
    return Table(title, columns, rows)


def _comparison(c: Comparison) -> list[Entry]:
    paired = c.paired
    numbers = (
        f"{c.cell.temperature:g}",
        str(paired.n_questions),
        points(paired.difference),
        str(paired.won),
        str(paired.lost),
        p_value(paired.p),
        p_value(c.adjusted),
        "none" if c.visible is None else percent(c.visible),
    )
    significant = c.better or c.worse
    return [
        Entry(str(c.cell.method)),
        *(Entry(n, bold=significant and i == 6) for i, n in enumerate(numbers)),
    ]


def made_with_table(made_with: Mapping[str, str]) -> Table:
    rows = [[Entry(name), Entry(value)] for name, value in made_with.items()]
    return Table("What the run was made with", ("", ""), rows)


def p_value(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def to_csv(summary: Summary) -> str:
    """One line a cell and scoring; accuracies, rates and differences are shares, not percent."""
    rows = [
        _csv_row(summary, group, cell, scoring)
        for group in summary.groups
        for _, cells in group.rows()
        for cell in cells
        if cell
        for scoring in SCORINGS
    ]
    stream = io.StringIO()
    writer = csv.DictWriter(stream, rows[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _csv_row(summary: Summary, group: Group, cell: Cell, scoring: Scoring) -> dict[str, object]:
    value = cell.accuracy[scoring]
    return {
        "model": group.model,
        "task": group.task,
        "scoring": scoring,
        "sampler": cell.method.sampler,
        "order": cell.method.order,
        "temperature": f"{cell.temperature:g}",
        "questions": cell.n_questions,
        "responses": len(cell.responses),
        "accuracy": value.value,
        "low": value.low,
        "high": value.high,
        "spread": value.spread,
        "no_answer": cell.no_answer[scoring],
        "truncated": cell.truncated,
        "overflowed": cell.overflowed,
        "mean_tokens": cell.mean_tokens,
        "distinct": cell.distinct,
        "distinct_2": cell.distinct_2,
        "k_is_1": cell.steps.share(1),
        **_csv_comparison(summary, group.comparisons[scoring].get((cell.method.sampler, cell.temperature))),
    }


def _csv_comparison(summary: Summary, comparison: Comparison | None) -> dict[str, object]:
    names = (
        "against",
        "common_questions",
        "difference",
        "won",
        "lost",
        "p",
        "p_holm",
        "significant",
        "visible",
    )
    if comparison is None:
        return dict.fromkeys(names)
    paired = comparison.paired
    values = (paired.n_questions, paired.difference, paired.won, paired.lost, paired.p, comparison.adjusted)
    significant = comparison.better or comparison.worse
    return dict(zip(names, (summary.baseline, *values, significant, comparison.visible), strict=True))
