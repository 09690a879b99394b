"""Write the tables of docs/results.md, docs/quantizations.md and README.md from docs/results/*.md.

\b
.venv/bin/python scripts/results.py
.venv/bin/python scripts/results.py FOLDER       first remake docs/results from the runs in FOLDER

FOLDER holds the folders that the commands in docs/results.md write: FOLDER/accuracy-gsm8k and so on.

Tables are enclosed in <!-- begin: NAME --> and <!-- end -->, and are the reports' own: docs/results/NAME.md.
NAME.csv has their numbers as data: an interval has three columns, HEAD, HEAD_low and HEAD_high, and there is
the number of clusters (questions, prompts, texts or chunks) that it is over. The rest is written by hand;
tests/test_results.py compares its numbers with the tables.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import click
import pandas as pd

from mink_local.chat.commands.set_show import ADVICE
from mink_local.errors import MinkError
from mink_local.evals.cli import MEASUREMENTS
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report
from mink_local.evals.store import read_manifest
from mink_local.evals.tables import Table, of_interval, percent, to_csv

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (*(ROOT / "docs" / name for name in ("results.md", "quantizations.md")), ROOT / "README.md")


class Source(NamedTuple):
    """Where a table comes from.

    Attributes:
        run: Folder of the run.
        title: A part of the title of the report's table.
        data: Name of the report's CSV that has its numbers.
        at: The temperature of the rows to show; empty for all.
        rows: Names in the first column of the rows to show; empty for all.
        against: What the report is to compare with; see `Results`.
    """

    run: str
    title: str
    data: str
    at: str = ""
    rows: Sequence[str] = ()
    against: tuple[str, Any] | None = None


_IN_BRIEF = [
    *("greedy", "min-k:tau=3", "min-k:tau=3,floor=1", "min-p:p=0.1 (T last)"),
    *("llama-default:k=40,p=0.95,min_p=0.05", "top-p:p=0.9 (T last)", "top-p:p=0.9 (T first)"),
]
_KINDS = ("open", "math", "code")
TABLES = {
    **{
        f"{name}-{task}": Source(run, title, data, against=against)
        for task, run in (("full", "full-gsm8k"), ("gsm8k", "accuracy-gsm8k"), ("aqua", "accuracy-aqua"))
        for name, title, data, against in (
            ("accuracy", "· accuracy, %", "table", None),
            ("cut-off", "cut off at the token limit", "table", None),
            ("candidates", "steps with one candidate", "table", None),
            ("against-min-k", "against min-k:tau=3", "comparisons", None),
            ("temperatures", "against T = 1", "comparisons", ("temperature", 1.0)),
        )
    },
    **{
        f"{name}{what}": Source(run, title, "table")
        for name, run in (
            ("zero-shot", "zero-shot-gsm8k"),
            ("few-shot", "few-shot-gsm8k"),
            ("math500", "math500"),
        )
        for what, title in (("", "· accuracy, %"), ("-tokens", "cut off at the token limit"))
    },
    "math500-minus": Source("math500", "against min-k:tau=3", "comparisons"),
    "math500-temperatures": Source("math500", "against T = 1", "comparisons", against=("temperature", 1.0)),
    "rivals-gsm8k": Source("rivals-gsm8k", "· accuracy, %", "table"),
    "rivals-gsm8k-minus": Source("rivals-gsm8k", "against min-k:tau=1", "comparisons"),
    "ablations": Source("ablations-gsm8k", "· accuracy, %", "table"),
    "ablations-minus": Source("ablations-gsm8k", "against min-k:tau=3", "comparisons"),
    "options": Source("options-gsm8k", "· accuracy, %", "table"),
    "options-minus": Source("options-gsm8k", "against min-k:tau=3", "comparisons"),
    "repeats": Source("repeats-gsm8k", "any of k responses right", "repeats"),
    "distinct": Source("repeats-gsm8k", "distinct responses", "table"),
    **{f"defaults-{kind}": Source(f"frontier-{kind}", "Defaults", "frontier", "5") for kind in _KINDS},
    **{
        f"tail-mass-{kind}": Source(f"frontier-{kind}", "equal tail mass, T = 5", "frontier")
        for kind in _KINDS
    },
    "tail-mass": Source("frontier-open", "All settings", "frontier", "5", _IN_BRIEF),
    **{
        f"coverage-{size}-{below}": Source(f"coverage-{size}", f"at most {below} point", "coverage")
        for size in ("0.5b", "1.5b")
        for below in ((1, 5) if size == "1.5b" else (5,))
    },
    **{f"quants-{size}": Source(f"quants-{size}", "Divergence", "quants") for size in ("0.5b", "1.5b")},
    "quants-0.5b-kinds": Source("quants-0.5b", "by kind", "quants-kinds"),
    **{
        f"quants-{size}-predictions": Source(f"quants-{size}", "Predictions", "quants")
        for size in ("0.5b", "1.5b")
    },
    "kv-types": Source("kv-1.5b", "Divergence", "quants"),
}
FIGURES = {  # the run, and the file's name in its report
    **{f"accuracy-{task}": (f"accuracy-{task}", "1-accuracy") for task in ("gsm8k", "aqua")},
    **{f"frontier-{kind}": (f"frontier-{kind}", "frontier") for kind in _KINDS},
    **{f"coverage-{size}": (f"coverage-{size}", "coverage") for size in ("0.5b", "1.5b")},
    **{f"quants-{size}": (f"quants-{size}", "quants-size") for size in ("0.5b", "1.5b")},
}
_ADVISED = {"prose": "open", "prose, hot": "open", "code": "code"}  # texts that advice is for; else "math"

BLOCK = re.compile(r"(<!-- begin: ([^\n]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)


# From runs to docs/results


def remake(folder: Path) -> Iterator[str]:
    """Write the tables and figures of the runs in a folder, with their data; yield what it lacks."""
    for name in dict.fromkeys((*TABLES, *FIGURES, "advice")):
        try:
            for ending, content in remade(folder, name).items():
                (RESULTS / f"{name}{ending}").write_bytes(content)
        except (MinkError, LookupError) as error:
            yield f"{name} is not remade: {error}"


def remade(folder: Path, name: str) -> dict[str, bytes]:
    """Return the files of a name by their endings. Raises MinkError or LookupError if the runs lack it."""
    found: dict[str, bytes] = {}
    if name in FIGURES:
        run, stem = FIGURES[name]
        found[".svg"] = {one.stem: one.svg for one in report_of(folder / run).pictures}[stem]
    if name in TABLES:
        source = TABLES[name]
        report = report_of(folder / source.run, source.against)
        table, data = table_of(report, source), report.csv[source.data]
    elif name in FIGURES:
        return found
    else:
        table, data = advice(folder)
    return found | {".md": f"{table.markdown()}\n".encode(), ".csv": to_csv(data).encode()}


@cache
def report_of(run: Path, against: tuple[str, Any] | None = None) -> Report:
    """Return the report on a run. Raises MinkError if there is none."""
    kind = resolve_name(MEASUREMENTS[read_manifest(run).get("measures", "run")])
    report: Report = kind.report(Results(run, kind, against))
    return report


def table_of(report: Report, source: Source) -> Table:
    """Return the table of a report, with the rows to show. Raises LookupError if there is none."""
    parts = [part for section in report.sections for part in (*section.parts, *section.more)]
    tables = [part for part in parts if isinstance(part, Table) and source.title in part.title]
    if not tables:
        raise LookupError(f"{source.run} has no table {source.title!r}")
    shown = [[cell.text for cell in row] for row in tables[0].rows]
    place = tables[0].columns.index("T") if source.at else 0
    kept = [
        i
        for i, row in enumerate(shown)
        if (not source.at or row[place] == source.at) and (not source.rows or row[0] in source.rows)
    ]
    return replace(tables[0], frame=tables[0].frame.iloc[kept])


def advice(folder: Path) -> tuple[Table, pd.DataFrame]:
    """Return what `/help advice` says, with the figures of the frontier's runs, and their data."""
    rows, data = [], []
    for kind, options, *_ in ADVICE:
        given = dict(re.findall(r"--(\w+) (\S+)", options))
        found = report_of(folder / f"frontier-{_ADVISED.get(kind, 'math')}").frames["settings"]
        floor = given.get("floor", "0")
        sampler = "greedy" if given["temp"] == "0" else "min-k:tau=3" + f",floor={floor}" * (floor != "0")
        at = found[found["temperature"] == max(1.0, float(given["temp"]))]
        both = [at[at["sampler"] == one] for one in (sampler, "llama-default:k=40,p=0.95,min_p=0.05")]
        own, usual = (next(one.itertuples()) for one in both)
        tails = [of_interval(one, "tail_mass", percent) for one in (own, usual)]
        rows.append([kind, f"`{options}`", *tails, f"{own.entropy:.2f}"])
        data += [one.assign(**{"for": kind}) for one in both]
    heads = ["for", "options", "tail mass, %", "tail mass of llama.cpp's default cuts, %", "entropy, nats"]
    return Table("advice", pd.DataFrame(rows, columns=heads)), pd.concat(data)


# From docs/results to the pages


def read(name: str) -> str:
    """Return a table as Markdown."""
    return (RESULTS / f"{name}.md").read_text(encoding="utf-8")


def with_tables(text: str) -> str:
    """Return a page with all tables filled in."""
    return BLOCK.sub(lambda block: block[1] + read(block[2]), text)


@click.command(help=__doc__)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path | None) -> None:
    for problem in remake(folder) if folder else ():
        print(problem, file=sys.stderr)
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
