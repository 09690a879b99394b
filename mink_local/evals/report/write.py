"""Print the tables of a run, and write its report to DIR/report."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from mink_local.errors import ReportError
from mink_local.evals.report.document import Document, make_document
from mink_local.evals.report.findings import findings
from mink_local.evals.report.format import listed, show_file
from mink_local.evals.report.page import render_page
from mink_local.evals.report.recorded_run import RecordedRun, read_run
from mink_local.evals.report.rescore import rescore, tasks_of
from mink_local.evals.report.summary import SCORINGS, Summary, summarise
from mink_local.evals.report.tables import ablations_to_csv, grid_tables, repeats_to_csv, to_csv
from mink_local.files import write_atomic

PROBLEMS_SHOWN = 5


def write_report(folder: Path, against: str | None = None) -> None:
    """Print a report's tables, and write all of it to DIR/report.

    The run may still be going on. `against` is as for `summarise`. Raises ReportError if the folder holds no
    run or not what is compared with, or the report cannot be written; ModuleNotFoundError if a library of the
    extra "eval" is not installed.
    """
    console = Console()
    run = read_run(folder)
    notes = [*([_left_out(run.problems)] if run.problems else []), *run.remarks]
    with console.status("Judging the responses …"):
        recorded, run = run, rescore(run)
    notes += _judged_again(recorded, run)
    out = folder / "report"
    summary = summarise(run, against)
    try:
        out.mkdir(exist_ok=True)  # before the plots, which take long
        for note in notes:
            print(f"mink-eval: {note}", file=sys.stderr)
        _print(console, summary)
        with console.status("Plotting …"):
            document = make_document(run, summary, notes)
            page = render_page(document, run, summary)
        tables = {
            "table.csv": to_csv(summary),
            "repeats.csv": repeats_to_csv(summary),
            "ablations.csv": ablations_to_csv(summary),
        }
        _write_all(out, document, page, tables)
    except OSError as error:
        raise ReportError(f"the report cannot be written to {out}: {error.strerror}") from None
    show_file(console, out / "report.html")


def _left_out(problems: Sequence[str]) -> str:
    more = len(problems) - PROBLEMS_SHOWN
    named = "; ".join(problems[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"{len(problems)} line{'s' * (len(problems) > 1)} left out: {named}."


def _judged_again(recorded: RecordedRun, run: RecordedRun) -> Iterator[str]:
    """Yield how many verdicts are not the recorded ones, and which tasks this version does not have."""
    unknown = [name for name, task in tasks_of(run).items() if task is None]
    if unknown:
        yield f"This version does not have the task {listed(unknown)}: the recorded verdicts are shown."
    pairs = list(zip(recorded.responses, run.responses, strict=True))
    changed = {s: sum(getattr(a, s) != getattr(b, s) for a, b in pairs) for s in SCORINGS}
    if any(changed.values()):
        numbers = listed(f"{n} {scoring}" for scoring, n in changed.items())
        yield (
            f"{numbers} of {len(pairs)} recorded verdicts differ from those of this version, which are "
            "shown: another version of mink-eval gave them, or they were edited."
        )


def _print(console: Console, summary: Summary) -> None:
    for task in summary.tasks:
        for table in grid_tables(task):
            for part in table.rich(console.width):
                console.print(part)
    console.print("\nWhat this run shows", style="bold")
    for sentence in findings(summary):
        console.print(f"• {sentence}", highlight=False, markup=False)


def _write_all(out: Path, document: Document, page: str, tables: Mapping[str, str | None]) -> None:
    """Write every file of DIR/report, each whole or not at all."""
    for picture in document.pictures:
        write_atomic(out / f"{picture.stem}.svg", picture.svg)
    for name, text in {**tables, "report.md": document.markdown(), "report.html": page}.items():
        if text is not None:
            write_atomic(out / name, text.encode("utf-8", "replace"))
