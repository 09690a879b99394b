"""The report as a document: what `report.html` and `report.md` both say."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mink_local.evals.report.findings import HOW_TO_READ, run_findings, task_findings
from mink_local.evals.report.format import escape_markdown
from mink_local.evals.report.plots import Picture, plot_pictures
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.summary import Summary, TaskResult
from mink_local.evals.report.tables import (
    ReportTable,
    attempts_table,
    comparisons_table,
    grid_tables,
    made_with_table,
)


@dataclass(frozen=True)
class Section:
    """The part of a report about one model and task.

    `lead` is the picture of the accuracy to be read first, or of k if there is no accuracy; it and the
    `findings` open the report. `parts` follow in the order in which they are to be read.
    """

    title: str
    lead: Picture | None
    findings: Sequence[str]
    parts: Sequence[ReportTable | Picture]
    comparisons: Sequence[ReportTable]


@dataclass(frozen=True)
class Document:
    """A report without the responses; `notes` are what the reader must know first."""

    title: str
    notes: Sequence[str]
    sections: Sequence[Section]
    findings: Sequence[str]
    made_with: ReportTable | None

    @property
    def pictures(self) -> list[Picture]:
        found = ([section.lead, *section.parts] for section in self.sections)
        return [part for parts in found for part in parts if isinstance(part, Picture)]

    def markdown(self) -> str:
        """Return the document as Markdown, with links to the pictures' SVG files."""
        parts = [f"# {escape_markdown(self.title)}", *map(escape_markdown, self.notes)]
        parts.append("## What this run shows")
        for section in self.sections:
            if len(self.sections) > 1:
                parts.append(f"### {escape_markdown(section.title)}")
            if section.lead:
                parts.append(_markdown(section.lead))
            parts.append(_bullets(section.findings))
        parts.append(_bullets(self.findings))
        for section in self.sections:
            parts.append(f"## {escape_markdown(section.title)}")
            parts += map(_markdown, (*section.parts, *section.comparisons))
        parts += ["## How to read this", *map(escape_markdown, HOW_TO_READ)]
        if self.made_with:
            parts.append(_markdown(self.made_with))
        return "\n\n".join(parts) + "\n"


def _markdown(part: ReportTable | Picture) -> str:
    if isinstance(part, Picture):
        return f"![{escape_markdown(part.description)}]({part.stem}.svg)"
    return f"### {escape_markdown(part.title)}\n\n{part.markdown()}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(sentence)}" for sentence in sentences)


def make_document(run: RecordedRun, summary: Summary, notes: Sequence[str]) -> Document:
    """Return the report of a run, with its pictures."""
    return Document(
        f"Min-k evaluation: {', '.join(dict.fromkeys(task.task for task in summary.tasks))}",
        notes,
        [_section(summary, task) for task in summary.tasks],
        run_findings(summary),
        made_with_table(run.manifest) if run.manifest else None,
    )


def _section(summary: Summary, task: TaskResult) -> Section:
    compared = [scoring for scoring in task.scorings if task.comparisons(scoring)]
    comparisons = [comparisons_table(task, scoring, summary.against) for scoring in compared]
    if task.repeated:
        comparisons += [attempts_table(task, scoring) for scoring in task.scorings]
    pictures = list(plot_pictures(summary, task))
    lead = pictures[0] if pictures else None
    parts = list(_in_order(grid_tables(task), pictures[1:]))
    return Section(task.title, lead, task_findings(summary, task), parts, comparisons)


def _in_order(tables: Sequence[ReportTable], pictures: Sequence[Picture]) -> Iterator[ReportTable | Picture]:
    """Yield every table with its pictures behind it, then the other pictures."""
    left = dict.fromkeys(pictures)
    for table in tables:
        yield table
        for picture in [picture for picture in left if picture.subject.startswith(table.subject)]:
            del left[picture]
            yield picture
    yield from left
