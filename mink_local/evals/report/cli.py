"""`mink-eval report DIR`: tables of a run in the terminal, and a report in DIR/report."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from mink_local.errors import ReportError
from mink_local.evals.report.document import Document, make_document
from mink_local.evals.report.findings import findings
from mink_local.evals.report.page import render_page
from mink_local.evals.report.recorded_run import RecordedRun, read_run
from mink_local.evals.report.rescore import rescore
from mink_local.evals.report.summary import SCORINGS, Summary, summarise
from mink_local.evals.report.tables import grid_tables, to_csv
from mink_local.files import write_atomic
from mink_local.models.options import SamplerType
from mink_local.samplers import Sampler

PROBLEMS_SHOWN = 5


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--rescore",
    "again",
    is_flag=True,
    help="Score the stored responses again with this version's tasks. The records do not change.",
)
@click.option(
    "--against",
    type=SamplerType(),
    help="The sampler to compare the others with.  [default: min-k]",
)
def report(folder: Path, again: bool, against: Sampler | None) -> None:
    """Report on the run in DIR, which may still be going on.

    Prints tables and writes to DIR/report: report.html with tables, pictures and a browser of all
    responses, report.md, table.csv, and the pictures as SVG.
    """
    run = read_run(folder)
    notes = [_left_out(run.problems)] if run.problems else []
    if again:
        recorded, run = run, rescore(run)
        notes.append(_rescored(recorded, run))
    out = folder / "report"
    try:
        summary = summarise(run, str(against) if against else None)
        _make_folder(out)  # before the plots, which take long
        for note in notes:
            click.echo(f"mink-eval: {note}", err=True)
        console = Console()
        _print(console, summary)
        with console.status("Plotting …"):
            document = make_document(run, summary, notes)
            page = render_page(document, run, summary)
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f'the report needs {error.name}: type  python -m pip install "mink-local[eval]"'
        ) from None
    _write_all(out, document, page, to_csv(summary))
    console.print(f"\n{out / 'report.html'}", style="bold", highlight=False, soft_wrap=True, markup=False)


def _left_out(problems: Sequence[str]) -> str:
    more = len(problems) - PROBLEMS_SHOWN
    named = "; ".join(problems[:PROBLEMS_SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"{len(problems)} line{'s' * (len(problems) > 1)} left out: {named}."


def _rescored(recorded: RecordedRun, run: RecordedRun) -> str:
    pairs = list(zip(recorded.responses, run.responses, strict=True))
    changed = (f"{sum(getattr(a, s) != getattr(b, s) for a, b in pairs)} {s}" for s in SCORINGS)
    return f"Scored again: {' and '.join(changed)} of {len(pairs)} verdicts differ from the recorded ones."


def _print(console: Console, summary: Summary) -> None:
    for task in summary.tasks:
        for table in grid_tables(task):
            for part in table.rich(console.width):
                console.print(part)
    console.print("\nWhat this run shows", style="bold")
    for sentence in findings(summary):
        console.print(f"• {sentence}", highlight=False, markup=False)


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(exist_ok=True)
    except OSError as error:
        raise _not_written(out, error) from None


def _write_all(out: Path, document: Document, page: str, table: str) -> None:
    """Write every file of DIR/report, each whole or not at all."""
    files: dict[str, str | bytes] = {f"{p.stem}.svg": p.svg for s in document.sections for p in s.pictures}
    files |= {"table.csv": table, "report.md": document.markdown(), "report.html": page}
    try:
        for name, content in files.items():
            text = content.encode("utf-8", "replace") if isinstance(content, str) else content
            write_atomic(out / name, text)
    except OSError as error:
        raise _not_written(out, error) from None


def _not_written(out: Path, error: OSError) -> ReportError:
    return ReportError(f"the report cannot be written to {out}: {error.strerror}")
