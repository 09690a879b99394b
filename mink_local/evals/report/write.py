"""Print the tables of a run, and write its report to DIR/report."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from mink_local.evals.report.document import Document, make_document
from mink_local.evals.report.page import render_page
from mink_local.evals.report.recorded_run import RecordedRun, read_run
from mink_local.evals.report.rescore import rescore, tasks_of
from mink_local.evals.report.summary import SCORINGS, Summary, summarise
from mink_local.evals.store import as_run_error
from mink_local.evals.tables import listed, show_file, to_csv, to_json
from mink_local.files import write_atomic


def report_run(folder: Path, against: str | None = None) -> None:
    """Print a run's tables, and write all of its report to DIR/report.

    The run may still be going on. `against` is as for `summarise`. Raises ReportError if the folder holds no
    run or not what is compared with, RunError if a file cannot be read or written, and ModuleNotFoundError if
    a library of the extra "eval" is not installed.
    """
    console = Console()
    recorded = read_run(folder)
    with console.status("Judging the responses …"):
        run = rescore(recorded)
    notes = [*([recorded.left_out] if recorded.left_out else []), *run.remarks, *_judged_again(recorded, run)]
    out = folder / "report"
    summary = summarise(run, against)
    for note in notes:
        print(f"mink-eval: {note}", file=sys.stderr)
    with console.status("Plotting …"):
        document = make_document(run, summary, notes)
        page = render_page(document, run, summary.baseline)
    _print(console, document)
    with as_run_error(out):
        out.mkdir(exist_ok=True)
        _write_all(out, _files(document, page, summary))
    show_file(console, out / "report.html")


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


def _print(console: Console, document: Document) -> None:
    for section in document.sections:
        for table in section.tables:
            table.print(console)
    for section in document.sections:
        console.print(f"\n{section.title}", style="bold", highlight=False, markup=False)
        for sentence in section.findings:
            console.print(f"• {sentence}", highlight=False, markup=False)
    for sentence in document.findings:
        console.print(f"• {sentence}", highlight=False, markup=False)


def _files(document: Document, page: str, summary: Summary) -> dict[str, str | bytes]:
    """Return the report's files by name."""
    frames = {"table": summary.cells, "comparisons": summary.comparisons, "repeats": summary.attempts}
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    made_with = document.made_with
    about = {"made_with": [] if made_with is None else made_with.frame.to_numpy().tolist()}
    return {
        **{f"{picture.stem}.svg": picture.svg for picture in document.pictures},
        **{f"{name}.csv": to_csv(frame) for name, frame in frames.items()},
        "report.json": to_json(about, **frames),
        "report.md": document.markdown(),
        "report.html": page,
    }


def _write_all(out: Path, files: Mapping[str, str | bytes]) -> None:
    """Write every file of DIR/report, each whole or not at all, and remove what an earlier report left."""
    for name, content in files.items():
        write_atomic(
            out / name, content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        )
    for path in out.iterdir():
        if path.suffix in (".csv", ".svg") and path.name not in files:
            path.unlink()
