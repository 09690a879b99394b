"""One report for all measurements: its parts, the files that it is written to, and what a terminal shows."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, Template, select_autoescape
from markupsafe import Markup
from rich.console import Console

from mink_local.cli import printable, show
from mink_local.evals.figures import Picture
from mink_local.evals.store import write_file
from mink_local.evals.tables import Table, escape_markdown, to_csv, to_json

Part = Table | Picture | str
_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of a report about one subject, such as a model and a task.

    `lead` and `findings` open the report; `parts`, texts being paragraphs, follow in reading order, and
    `more` holds tables for a closer look.
    """

    title: str
    parts: Sequence[Part]
    findings: Sequence[str] = ()
    lead: Picture | None = None
    more: Sequence[Table] = ()


@dataclass(frozen=True)
class Report:
    """What a measurement has found.

    Attributes:
        name: Name of its files, without an ending.
        notes: Caveats to read first.
        printed: Tables that a terminal shows.
        findings: Sentences about several sections.
        about: What the JSON says besides the frames.
        frames: Frames of the JSON.
        csv: Frames with a CSV file each, by the files' names without an ending.
        extra: Contents of further files, by their names.
        folder: Folder of its own for the files; empty for the measurement's.
        responses: What the page's browser of responses unpacks, if anything; see `run.report.pack`.
    """

    name: str
    title: str
    notes: Sequence[str]
    sections: Sequence[Section]
    printed: Sequence[Table]
    findings: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    frames: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    csv: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    extra: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    responses: bytes = b""

    @property
    def pictures(self) -> list[Picture]:
        parts = [part for section in self.sections for part in (section.lead, *section.parts)]
        return [part for part in parts if isinstance(part, Picture)]


def publish(report: Report, folder: Path) -> None:
    """Write a report's files to a measurement's folder, then print its tables and sentences.

    Raises RunError if a file cannot be written.
    """
    out = folder / report.folder
    for name, content in files_of(report).items():
        write_file(out / name, content)
    show(printed(report, out / f"{report.name}.html"))


def files_of(report: Report) -> dict[str, str | bytes]:
    """Return a report's files: NAME.html, .md and .json, CSV files, and the figures with their data."""
    files: dict[str, str | bytes] = {**report.extra}
    for picture in report.pictures:
        files |= {f"{picture.stem}.svg": picture.svg, f"{picture.stem}.pdf": picture.pdf}
    data = {picture.stem: picture.data for picture in report.pictures if picture.data is not None}
    files |= {f"{name}.csv": to_csv(frame) for name, frame in {**data, **report.csv}.items()}
    files[f"{report.name}.md"] = markdown(report).encode("utf-8", "replace")
    files[f"{report.name}.html"] = page(report).encode("utf-8", "replace")
    return files | {f"{report.name}.json": to_json(report.about, **report.frames)}


def printed(report: Report, path: Path) -> str:
    """Return what a terminal shows of a report: some tables, all sentences, and the path of its page."""
    console = Console(markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        for table in report.printed:
            table.print(console)
        for note in report.notes:
            console.print(printable(note))
        for section in report.sections:
            if section.findings:
                console.print(f"\n{section.title}", style="bold")
            for sentence in section.findings:
                console.print(f"• {printable(sentence)}")
        for sentence in report.findings:
            console.print(f"• {printable(sentence)}")
        console.print(f"\n{path}", style="bold", soft_wrap=True)
    return captured.get()


def markdown(report: Report) -> str:
    """Return a report as Markdown, with links to the figures' SVG files."""
    text = _template("page.md").render(report=report)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _template(name: str) -> Template:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["escaped"] = escape_markdown
    return environment.get_template(name)


def page(report: Report) -> str:
    """Return a report as a single HTML file that needs no network.

    Anything written by a model, a task or a user is shown as text and cannot run: texts among the template's
    values are escaped, the page's Content-Security-Policy allows only its own style and script, and embedded
    images, and responses are packed data that the script displays as text nodes.
    """
    style, script = ((_FOLDER / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return _template("page.html").render(
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
        report=report,
        image=lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        data=base64.b64encode(report.responses).decode(),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
