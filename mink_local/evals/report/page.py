"""One HTML file with the whole report and all responses, which asks the network for nothing."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mink_local.evals.report.findings import HOW_TO_READ, findings
from mink_local.evals.report.reading import Run
from mink_local.evals.report.summary import Summary
from mink_local.evals.report.tables import Table, made_with_table

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Picture:
    """`stem` is its files' name, `shows` what a reader sees in it."""

    stem: str
    shows: str
    png: bytes
    svg: bytes


@dataclass(frozen=True)
class Section:
    """What a report has on one model and task."""

    title: str
    tables: Sequence[Table]
    comparisons: Sequence[Table]
    pictures: Sequence[Picture]


def render_page(
    run: Run, summary: Summary, title: str, sections: Sequence[Section], notes: Sequence[str]
) -> str:
    """The page's text. Whatever a model, a task or a user wrote stands in it as text: the template escapes
    it, the responses are packed data that the script shows as text nodes, and a Content-Security-Policy
    lets no script run but the page's own."""
    from jinja2 import Environment, FileSystemLoader
    from markupsafe import Markup

    style, script = ((FOLDER / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(
        title=title,
        notes=notes,
        findings=findings(summary),
        how_to_read=HOW_TO_READ,
        sections=sections,
        made_with=made_with_table(run.made_with) if run.made_with else None,
        n_responses=len(run.responses),
        image=lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        style=Markup(style),
        script=Markup(script),
        policy=policy,
        data=base64.b64encode(pack(run, summary)).decode(),
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def pack(run: Run, summary: Summary) -> bytes:
    """Questions, cells and responses as gzip of JSON; a response begins with its cell and its question."""
    questions = {key: number for number, key in enumerate(run.questions)}
    methods = {method.sampler: method for group in summary.groups for method in group.methods}
    order = {sampler: number for number, sampler in enumerate(methods)}
    cells = sorted(
        {(r.model, r.task, r.sampler, r.temperature) for r in run.responses},
        key=lambda cell: (*cell[:2], cell[3], order[cell[2]]),
    )
    numbers = {key: number for number, key in enumerate(cells)}
    content = {
        "baseline": summary.baseline,
        "questions": [[task, q.id, q.prompt, q.gold] for (task, _), q in run.questions.items()],
        "cells": [[*cell, str(methods[cell[2]])] for cell in cells],
        "responses": [
            [
                numbers[r.model, r.task, r.sampler, r.temperature],
                questions[r.task, r.question_id],
                r.repeat,
                r.response,
                r.strict.answer,
                int(r.strict.correct),
                r.flexible.answer,
                int(r.flexible.correct),
                r.finish_reason,
                r.n_tokens,
                len(r.k),
                r.k.count(1),
                max(r.k, default=0),
            ]
            for r in run.responses
        ],
    }
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 6, mtime=0)
