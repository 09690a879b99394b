"""The report of a run: what is printed, and the files in DIR/report.

The page is a single HTML file with the report and all responses; it needs no network.
"""

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from rich.console import Console

from mink_local.cli import printable
from mink_local.evals.report.document import Document, make_document
from mink_local.evals.report.recorded_run import RecordedRun, read_run, rescore
from mink_local.evals.report.summary import Baseline, sampler_rank, summarise
from mink_local.evals.store import as_run_error, write_file
from mink_local.evals.tables import Table, show_file, to_csv, to_json
from mink_local.evals.tasks.base import Verdict
from mink_local.samplers import label


def report_run(folder: Path, chosen: tuple[str, Any] | None = None) -> None:
    """Print a run's tables, and write the full report to DIR/report.

    The run may still be in progress. `chosen` is what to compare with, as for `summarise`. Raises ReportError
    if the folder contains no run or nothing to compare with, RunError if a file cannot be read or written,
    and ModuleNotFoundError if a library of the extra "eval" is not installed.
    """
    console, out = Console(), folder / "report"
    recorded = read_run(folder)
    with console.status("Scoring responses …"):
        run = rescore(recorded)
    summary = summarise(run, chosen)
    with console.status("Drawing figures …"):
        document = make_document(run, summary)
        against = next((one for one in summary.baselines if one.kind != "temperature"), None)
        page = document_files("report", document, run, against)
    for section in document.sections:
        for part in section.parts:
            if isinstance(part, Table):
                part.print(console)
    print_findings(console, document)
    frames = {"table": summary.cells, "comparisons": summary.comparisons, "repeats": summary.attempts}
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    made_with = document.made_with.frame.to_numpy().tolist() if document.made_with else []
    files = {
        **page,
        **{f"{name}.csv": to_csv(frame) for name, frame in frames.items()},
        "report.json": to_json({"made_with": made_with}, **frames),
    }
    for name, content in files.items():
        write_file(out / name, content)
    with as_run_error(out):
        for path in out.iterdir():
            if path.suffix in (".csv", ".svg") and path.name not in files:  # from an earlier report
                path.unlink()
    show_file(console, out / "report.html")


def print_findings(console: Console, document: Document) -> None:
    """Print a document's sentences."""
    for note in document.notes:
        console.print(printable(note), highlight=False, markup=False)
    for section in document.sections:
        console.print(f"\n{section.title}", style="bold", highlight=False, markup=False)
        for sentence in section.findings:
            console.print(f"• {sentence}", highlight=False, markup=False)
    for sentence in document.findings:
        console.print(f"• {sentence}", highlight=False, markup=False)


def document_files(
    name: str, document: Document, run: RecordedRun | None = None, against: Baseline | None = None
) -> dict[str, str | bytes]:
    """Return a document's files: NAME.html, NAME.md, and the figures that NAME.md links to.

    Args:
        run: The run whose responses to include in the page, if any.
        against: What the page's response browser compares them with.
    """
    return {
        **{f"{picture.stem}.svg": picture.svg for picture in document.pictures},
        f"{name}.md": document.markdown().encode("utf-8", "replace"),
        f"{name}.html": render_page(document, run, against).encode("utf-8", "replace"),
    }


def render_page(document: Document, run: RecordedRun | None = None, against: Baseline | None = None) -> str:
    """Return the page's HTML.

    Anything written by a model, a task or a user is shown as text and cannot run: see `render`; and responses
    are packed data that the script displays as text nodes.

    Args:
        document: The report.
        run: The questions and responses, if the page includes them.
        against: The sampler or model that the response browser compares the others with.
    """
    return render(
        Path(__file__).parent,
        "page",
        document=document,
        n_responses=len(run.responses) if run else 0,
        image=lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        data=base64.b64encode(pack(run, against)).decode() if run else "",
    )


def render(folder: Path, name: str, **values: Any) -> str:
    """Return the page made from NAME.html, .css and .js in a folder.

    Texts among the template's values are escaped, and the page's Content-Security-Policy allows only its own
    style and script, and embedded images.
    """
    style, script = ((folder / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(f"{name}.html").render(
        style=Markup(style), script=Markup(script), policy=policy, **values
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _packed(verdict: Verdict | None) -> tuple[str | None, int | None]:
    return (verdict.answer, int(verdict.correct)) if verdict else (None, None)


def pack(run: RecordedRun, against: Baseline | None) -> bytes:
    """Return questions, cells and responses as gzipped JSON, which `unpack` in page.js reads.

    A response starts with the indices of its cell and its question.
    """
    cells = sorted(
        {response.key[:4] for response in run.responses},
        key=lambda cell: (*cell[:2], cell[3], *sampler_rank(cell[2])),
    )
    cell_numbers = {cell: number for number, cell in enumerate(cells)}
    question_numbers = {key: number for number, key in enumerate(run.questions)}
    content = {
        "baseline": [against.kind, against.value] if against else [None, None],
        "questions": [[task, q.id, q.prompt, q.gold] for (task, _), q in run.questions.items()],
        "cells": [[*cell, label(cell[2])] for cell in cells],
        "responses": [
            [
                cell_numbers[r.key[:4]],
                question_numbers[r.task, r.question_id],
                r.repeat,
                r.response,
                *_packed(r.strict),
                *_packed(r.flexible),
                r.finish_reason,
                r.n_tokens,
                len(r.k) - r.k.count(0),
                r.k.count(1),
                max(r.k, default=0),
            ]
            for r in run.responses
        ],
    }
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 6, mtime=0)
