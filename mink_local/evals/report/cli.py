"""`mink-eval report DIR`: what a run's records say, in the terminal and as files in DIR/report."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from mink_local.cli import run as run_program
from mink_local.errors import ReportError
from mink_local.evals.report.findings import HOW_TO_READ, findings
from mink_local.evals.report.page import Picture, Section, render_page
from mink_local.evals.report.plots import pictures
from mink_local.evals.report.reading import Run, read_run
from mink_local.evals.report.rescore import rescore
from mink_local.evals.report.summary import SCORINGS, Group, Summary, summarise
from mink_local.evals.report.tables import (
    Table,
    accuracy_table,
    comparisons_table,
    diversity_table,
    escape,
    made_with_table,
    rates_table,
    steps_table,
    to_csv,
)
from mink_local.samplers import parse

SHOWN = 5


def _sampler(_: click.Context, __: click.Parameter, text: str | None) -> str | None:
    try:
        return text and str(parse(text))
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--rescore",
    "again",
    is_flag=True,
    help="Judge the stored responses again, with this version's tasks; the records are not changed.",
)
@click.option(
    "--against",
    callback=_sampler,
    metavar="SAMPLER",
    help="The method to compare the others with.  [default: min-k]",
)
def report(folder: Path, again: bool, against: str | None) -> None:
    """Say what the run in DIR shows, also while it is still going on.

    Prints the tables and writes to DIR/report: report.html with everything and a browser of the
    responses, report.md, table.csv, and the pictures as PNG and SVG.
    """
    run = read_run(folder)
    notes = [_left_out(run.problems)] if run.problems else []
    if again:
        recorded, run = run, rescore(run)
        notes.append(_rescored(recorded, run))
    out = folder / "report"
    try:
        summary = summarise(run, against)
        with _writing(out):  # before anything is drawn
            out.mkdir(exist_ok=True)
        for note in notes:
            click.echo(f"mink-eval: {note}", err=True)
        console = Console()
        _print(console, summary)
        with console.status("Drawing the pictures …"):
            path = _write_all(out, run, summary, notes)
    except ModuleNotFoundError as error:
        raise click.UsageError(
            f'the report needs {error.name}: type  python -m pip install "mink-local[eval]"'
        ) from None
    console.print(f"\n{path}", style="bold", highlight=False, soft_wrap=True, markup=False)


def _left_out(problems: Sequence[str]) -> str:
    more = len(problems) - SHOWN
    named = "; ".join(problems[:SHOWN]) + (f"; and {more} more" if more > 0 else "")
    return f"{len(problems)} line{'s' * (len(problems) > 1)} left out: {named}."


def _rescored(recorded: Run, run: Run) -> str:
    pairs = list(zip(recorded.responses, run.responses, strict=True))
    changed = (f"{sum(getattr(a, s) != getattr(b, s) for a, b in pairs)} {s}" for s in SCORINGS)
    return f"Judged again: {' and '.join(changed)} of {len(pairs)} verdicts differ from the recorded ones."


def _tables(summary: Summary, group: Group) -> Iterator[Table]:
    for scoring in SCORINGS:
        yield accuracy_table(summary, group, scoring)
    yield rates_table(group)
    if any(cell.distinct is not None for cell in group.cells.values()):
        yield diversity_table(group)
    if any(cell.steps.n for cell in group.cells.values()):
        yield steps_table(group)


def _print(console: Console, summary: Summary) -> None:
    for group in summary.groups:
        for table in _tables(summary, group):
            for part in table.rich(console.width):
                console.print(part)
    for heading, sentences in findings(summary).items():
        console.print(f"\n{heading}", style="bold", highlight=False, markup=False)
        for sentence in sentences:
            console.print(f"• {sentence}", highlight=False, markup=False)


def _write_all(out: Path, run: Run, summary: Summary, notes: Sequence[str]) -> Path:
    """Every file of DIR/report, each whole or not at all; return the page's path."""
    sections = [_section(summary, group) for group in summary.groups]
    title = f"Min-k evaluation: {', '.join(dict.fromkeys(group.task for group in summary.groups))}"
    files = {
        f"{p.stem}.{kind}": getattr(p, kind) for s in sections for p in s.pictures for kind in ("png", "svg")
    }
    files["table.csv"] = to_csv(summary)
    files["report.md"] = _markdown(run, summary, title, sections, notes)
    files["report.html"] = render_page(run, summary, title, sections, notes)
    with _writing(out):
        for name, content in files.items():
            _write(out / name, content if isinstance(content, bytes) else content.encode("utf-8", "replace"))
    return out / "report.html"


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"the report cannot be written to {out}: {error.strerror}") from None


def _write(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _section(summary: Summary, group: Group) -> Section:
    compared = [comparisons_table(summary, group, s) for s in SCORINGS if group.comparisons[s]]
    title = f"{group.task} with {group.model}"
    return Section(title, list(_tables(summary, group)), compared, list(_drawn(summary, group)))


def _drawn(summary: Summary, group: Group) -> Iterator[Picture]:
    import matplotlib

    number = summary.groups.index(group) + 1
    # The salt makes the same run give the same file; a $ in a sampler's name is a $.
    with matplotlib.rc_context({"svg.hashsalt": "mink-local", "text.parse_math": False}):
        for stem, shows, figure in pictures(summary, group):
            figure.draw_without_rendering()
            figure.set_layout_engine("none")  # the layout is made, and takes as long as the drawing
            png, svg = io.BytesIO(), io.BytesIO()
            figure.savefig(png, format="png", dpi=120)
            figure.savefig(svg, format="svg", metadata={"Date": None})
            yield Picture(f"{number}-{stem}", shows, png.getvalue(), svg.getvalue())


def _markdown(
    run: Run, summary: Summary, title: str, sections: Sequence[Section], notes: Sequence[str]
) -> str:
    parts = [f"# {escape(title)}", "## What this run shows", *map(escape, notes)]
    for heading, sentences in findings(summary).items():
        parts += [f"### {escape(heading)}", "\n".join(f"- {escape(sentence)}" for sentence in sentences)]
    for section in sections:
        parts.append(f"## {escape(section.title)}")
        for table in (*section.tables, *section.comparisons):
            parts += [f"### {escape(table.title)}", table.markdown()]
        parts += [f"![{escape(picture.shows)}]({picture.stem}.svg)" for picture in section.pictures]
    parts += ["## How to read this", *map(escape, HOW_TO_READ)]
    if run.made_with:
        made_with = made_with_table(run.made_with)
        parts += [f"## {made_with.title}", made_with.markdown()]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    run_program(report, "mink-eval report")


if __name__ == "__main__":
    main()
