"""Write the tables of docs/results.md and README.md from docs/results/*.md; with --check, only compare.

.venv/bin/python scripts/results.py [--check]
.venv/bin/python scripts/results.py --from FOLDER       first remake docs/results from the runs in FOLDER

FOLDER holds the folders that the commands in docs/results.md write: FOLDER/accuracy-gsm8k and so on.

Tables are enclosed in <!-- begin: NAME --> and <!-- end -->, and are the reports' own: docs/results/NAME.md.
NAME.csv has their numbers as data: an interval has three columns, HEAD, HEAD_low and HEAD_high, and there is
the number of clusters (questions, prompts, texts or chunks) that it is over. The rest is written by hand.
Numbers with a decimal point or a % sign must be in the tables named in <!-- from: NAME … --> at the end of a
paragraph, or of a table's row, whose second cell is checked; in docs/results.md no number with a decimal
point may be without.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

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
    "kv-types": Source("kv-1.5b", "Divergence", "quants"),
}
FIGURES = {  # the run, and the file's name in its report
    **{f"accuracy-{task}": (f"accuracy-{task}", "1-accuracy") for task in ("gsm8k", "aqua")},
    **{f"frontier-{kind}": (f"frontier-{kind}", "frontier") for kind in _KINDS},
    **{f"coverage-{size}": (f"coverage-{size}", "coverage") for size in ("0.5b", "1.5b")},
    **{f"quants-{size}": (f"quants-{size}", "quants-size") for size in ("0.5b", "1.5b")},
}
_TEXTS = ("texts-open", "texts-math", "texts-code")  # runs that others read
_ADVISED = {"prose": "open", "prose, hot": "open", "code": "code"}  # texts that advice is for; else "math"

_BLOCK = re.compile(r"(<!-- begin: ([^\n]+) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_FROM = re.compile(r"\s*<!-- from: (.+) -->(?: \|)?$")
_NUMBER = re.compile(r"(?<![\w.=,])[-−+]?\d[\d,]*(?:\.\d+(?![\w.])|(?=%))")
_KNOWN = re.compile(r"(?<![\w.=,])[-−+]?\d[\d,]*(?:\.\d+)?")


# From runs to docs/results


def remake(folder: Path) -> Iterator[str]:
    """Write the tables and figures of the runs in a folder, with their data; yield what it lacks."""
    for name in dict.fromkeys((*TABLES, *FIGURES, "advice", "runs")):
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
        table, data = (advice if name == "advice" else runs)(folder)
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


def runs(folder: Path) -> tuple[Table, pd.DataFrame]:
    """Return a row per run: its models, the versions it was made with, and its day."""
    rows = []
    for run in dict.fromkeys([*(one.run for one in TABLES.values()), *_TEXTS]):
        if manifest := read_manifest(folder / run):
            roles = [manifest[role]["name"] for role in ("model", "reference", "base") if role in manifest]
            models = [*manifest.get("models", {}), *manifest.get("judges", {}), *roles]
            versions = [f"{name} {version}" for name, version in manifest["versions"].items()]
            day = manifest["sessions"][0]["started"][:10]
            rows.append([run, ", ".join(models), ", ".join(versions), day])
    frame = pd.DataFrame(rows, columns=["run", "models", "made with", "on"])
    return Table("runs", frame, numbers=False), frame


# From docs/results to the pages


def read(name: str) -> str:
    """Return a table as Markdown; empty if there is none of this name."""
    path = RESULTS / f"{name}.md"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def with_tables(text: str) -> str:
    """Return a page with all tables filled in that there are."""
    return _BLOCK.sub(lambda block: block[1] + (read(block[2]) or block[3]), text)


# What is checked


def unfounded(text: str, every: bool) -> Iterator[str]:
    """Yield the numbers written by hand that are not in the tables named after them.

    Args:
        text: A page.
        every: Whether numbers with a decimal point need a table.
    """
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#] ?)", _FENCED.sub("", _BLOCK.sub("", text))):
        source = _FROM.search(paragraph)
        said = re.sub(r"`[^`]*`|\]\([^)]*\)", "", _FROM.sub("", paragraph))
        said = said.split(" | ")[1] if said.startswith("| ") else said
        if source:
            known = [number for name in source[1].split() for number in _KNOWN.findall(read(name))]
            for number in _NUMBER.findall(said):
                if not any(_is_same(number, one) for one in known):
                    yield f"{number} is not in {source[1]}: {said[:60]}"
        elif every:
            for number in _NUMBER.findall(said):
                if "." in number:
                    yield f"{number} has no <!-- from: … -->: {said[:60]}"


def _is_same(number: str, known: str) -> bool:
    """Return whether a number is another one rounded; one written without a sign may have any."""
    wanted, value = _float(number), _float(known)
    if number[0] not in "+−-":
        wanted, value = abs(wanted), abs(value)
    return round(value, len(number.partition(".")[2])) == wanted


def _float(number: str) -> float:
    return float(number.replace("−", "-").replace(",", ""))


def complaints(text: str, every: bool) -> Iterator[str]:
    """Yield what is wrong with a page; for `every`, see `unfounded`."""
    missing = [block[1] for block in _BLOCK.findall(text) if not read(block[1])]
    yield from (f"there is no docs/results/{name}.md" for name in missing)
    yield from unfounded(text, every)
    if with_tables(text) != text:
        yield f"a table differs from docs/results: update it with {sys.argv[0]}"


def main() -> None:
    problems: list[str] = []
    if "--from" in sys.argv:
        problems += remake(Path(sys.argv[sys.argv.index("--from") + 1]))
    for path in PAGES:
        if "--check" not in sys.argv:
            path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
        found = complaints(path.read_text(encoding="utf-8"), every=path in PAGES[:2])
        problems += [f"{path.name}: {problem}" for problem in found]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
