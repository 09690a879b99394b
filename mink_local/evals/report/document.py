"""The report as a document: what `report.html` and `report.md` both say."""

from collections.abc import Sequence
from dataclasses import dataclass

from mink_local.evals.report.findings import HOW_TO_READ, findings
from mink_local.evals.report.format import escape_markdown
from mink_local.evals.report.plots import Picture, plot_pictures
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.summary import Summary, TaskResult
from mink_local.evals.report.tables import ReportTable, comparisons_table, grid_tables, made_with_table


@dataclass(frozen=True)
class Section:
    """The part of a report about one model and task."""

    title: str
    tables: Sequence[ReportTable]
    comparisons: Sequence[ReportTable]
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Document:
    """A report without the responses; `notes` are what the reader must know first."""

    title: str
    notes: Sequence[str]
    findings: Sequence[str]
    sections: Sequence[Section]
    made_with: ReportTable | None

    def markdown(self) -> str:
        """Return the document as Markdown, with links to the pictures' SVG files."""
        parts = [f"# {escape_markdown(self.title)}", "## What this run shows"]
        parts += map(escape_markdown, self.notes)
        parts.append("\n".join(f"- {escape_markdown(sentence)}" for sentence in self.findings))
        for section in self.sections:
            parts.append(f"## {escape_markdown(section.title)}")
            for table in (*section.tables, *section.comparisons):
                parts += [f"### {escape_markdown(table.title)}", table.markdown()]
            parts += [f"![{escape_markdown(p.description)}]({p.stem}.svg)" for p in section.pictures]
        parts += ["## How to read this", *map(escape_markdown, HOW_TO_READ)]
        if self.made_with:
            parts += [f"## {self.made_with.title}", self.made_with.markdown()]
        return "\n\n".join(parts) + "\n"


def make_document(run: RecordedRun, summary: Summary, notes: Sequence[str]) -> Document:
    """Return the report of a run, with its pictures."""
    return Document(
        f"Min-k evaluation: {', '.join(dict.fromkeys(task.task for task in summary.tasks))}",
        notes,
        findings(summary),
        [_section(summary, task) for task in summary.tasks],
        made_with_table(run.made_with) if run.made_with else None,
    )


def _section(summary: Summary, task: TaskResult) -> Section:
    compared = [scoring for scoring in task.scorings if task.comparisons(scoring)]
    comparisons = [comparisons_table(task, scoring, summary.against) for scoring in compared]
    return Section(task.title, grid_tables(task), comparisons, list(plot_pictures(summary, task)))
