"""Write the tables of docs/results.md and README.md from docs/results/*.csv; with --check, only compare.

.venv/bin/python scripts/results.py [--check]
.venv/bin/python scripts/results.py --from FOLDER       first remake docs/results from the runs in FOLDER

FOLDER holds the folders that the commands in docs/results.md write: FOLDER/accuracy-gsm8k and so on.

Tables are enclosed in <!-- begin: NAME --> and <!-- end -->. Their cells come from docs/results/NAME.csv,
where an interval has three columns: HEAD, HEAD_low and HEAD_high. The rest is written by hand. Numbers with a
decimal point or a % sign must be in the files named in <!-- from: NAME … --> at the end of a paragraph, or of
a table's row, whose second cell is checked; in docs/results.md no number with a decimal point may be without.
Command lines must be accepted by their programs.
"""

import csv
import io
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import click

from mink_local.chat.commands.set_show import ADVICE
from mink_local.errors import MinkError
from mink_local.evals.cli import MEASUREMENTS
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report
from mink_local.evals.store import read_manifest
from mink_local.evals.tables import Cell, Table

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "docs" / "results.md", ROOT / "README.md")


class Source(NamedTuple):
    """Where a table comes from.

    Attributes:
        run: Folder of the run.
        titles: Parts of the titles of the report's tables, which are joined by their first column.
        columns: Columns to show, each with its head on the page; empty for all.
        at: The temperature of the rows to show; empty for all.
        rows: Names in the first column of the rows to show; empty for all.
        against: What the report is to compare with; see `Results`.
    """

    run: str
    titles: Sequence[str]
    columns: Mapping[str, str] = MappingProxyType({})
    at: str = ""
    rows: Sequence[str] = ()
    against: tuple[str, Any] | None = None


_LOST = ("Divergence and perplexity", "Positions with the same candidates")
_QUANTS = {
    "file": "file",
    "MB": "MB",
    "bits": "bits per weight",
    "KLD mean": "divergence, nats",
    "99%": "its 99%",
    "same top, %": "same top token, %",
    "PPL ratio": "perplexity ratio",
    "min-k:tau=3": "same Min-k candidates (a single one), %",
}
_DEFAULTS = {
    "method": "at T = 5",
    "tail mass, %": "tail mass, %",
    "entropy": "entropy, nats",
    "k = 1, %": "steps with one candidate, %",
    "mean k": "mean k",
    "gain": "gain, nats",
}
_IN_BRIEF = ("file", "MB", "KLD mean", "min-k:tau=3")

TABLES = {
    **{
        f"{name}-{task}": Source(run, [title], against=against)
        for task, run in (("full", "full-gsm8k"), ("gsm8k", "accuracy-gsm8k"), ("aqua", "accuracy-aqua"))
        for name, title, against in (
            ("accuracy", "flexible accuracy, %", None),
            ("cut-off", "cut off at the token limit", None),
            ("candidates", "steps with one candidate", None),
            ("against-min-k", "flexible, against min-k:tau=3", None),
            ("temperatures", "flexible, against T = 1", ("temperature", 1.0)),
        )
    },
    "noise-judge": Source("accuracy-gsm8k/noise", ["judged by qwen2.5-coder-1.5b"]),
    "noise-reference": Source("accuracy-gsm8k/noise", ["judged by log-probability"]),
    "noise-calibration": Source("accuracy-gsm8k/noise", ["Calibration"]),
    "ablations": Source("ablations-gsm8k", ["flexible accuracy, %"]),
    "ablations-minus": Source("ablations-gsm8k", ["default options, points"]),
    "options": Source("options-gsm8k", ["flexible accuracy, %"]),
    "options-minus": Source("options-gsm8k", ["default options, points"]),
    "repeats": Source("repeats-gsm8k", ["any of k responses right"]),
    "distinct": Source("repeats-gsm8k", ["distinct responses"]),
    **{
        f"defaults-{kind}": Source(f"frontier-{kind}", ["Defaults"], _DEFAULTS, "5")
        for kind in ("open", "math", "code")
    },
    **{
        f"tail-mass-{kind}": Source(f"frontier-{kind}", ["Maximum entropy at equal tail mass, T = 5"])
        for kind in ("open", "math", "code")
    },
    "tail-mass": Source(
        "frontier-open",
        ["All settings"],
        {name: _DEFAULTS[name] for name in ("method", "tail mass, %", "entropy")},
        "5",
        [
            *("greedy", "min-k:tau=3", "min-k:tau=3,floor=1", "min-p:p=0.1 (T last)"),
            *("llama-default:k=40,p=0.95,min_p=0.05", "top-p:p=0.9 (T last)", "top-p:p=0.9 (T first)"),
        ],
    ),
    **{
        f"coverage-{size}-{below}": Source(f"coverage-{size}", [f"at most {below} point"])
        for size in ("0.5b", "1.5b")
        for below in ((1, 5) if size == "1.5b" else (5,))
    },
    **{f"quants-{size}": Source(f"quants-{size}", _LOST, _QUANTS) for size in ("0.5b", "1.5b")},
    "quants": Source("quants-0.5b", _LOST, {name: _QUANTS[name] for name in _IN_BRIEF}),
    "kv-types": Source("kv-1.5b", _LOST, _QUANTS),
}
FIGURES = {  # the run, and the file's name in its report
    **{
        f"{name}-{task}": (f"accuracy-{task}", f"1-{subject}")
        for task in ("gsm8k", "aqua")
        for name, subject in (("accuracy", "accuracy"), ("candidates", "k"))
    },
    "noise-judge": ("accuracy-gsm8k/noise", "noise-2"),
    "noise-reference": ("accuracy-gsm8k/noise", "noise-1"),
    **{f"frontier-{kind}": (f"frontier-{kind}", "frontier") for kind in ("open", "math", "code")},
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
_ENDS = re.compile(r"([-−+]?[\d.,]+)(?:–| to )([-−+]?[\d.,]+)")


# From runs to docs/results


def remake(folder: Path) -> Iterator[str]:
    """Write the CSV files and figures of the runs in a folder; yield what it lacks."""
    tables, figures = (f"{name}.csv" for name in TABLES), (f"{name}.svg" for name in FIGURES)
    for name in (*tables, *figures, "advice.csv", "runs.csv"):
        try:
            (RESULTS / name).write_bytes(remade(folder, name))
        except (MinkError, LookupError) as error:
            yield f"{name} is not remade: {error}"


def remade(folder: Path, name: str) -> bytes:
    """Return a file of docs/results. Raises MinkError or LookupError if the runs in `folder` lack it."""
    stem, _, kind = name.rpartition(".")
    if kind == "svg":
        run, of = FIGURES[stem]
        return svg_of(folder / run, of)
    others = {"advice": advice, "runs": runs}
    rows = others[stem](folder) if stem in others else rows_of(folder, TABLES[stem])
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


@cache
def report_of(run: Path, against: tuple[str, Any] | None = None) -> Report:
    """Return the report on a run. Raises MinkError if there is none."""
    kind = resolve_name(MEASUREMENTS[read_manifest(run).get("measures", "run")])
    report: Report = kind.report(Results(run, kind, against))
    return report


def svg_of(run: Path, stem: str) -> bytes:
    """Return a figure of a report. Raises LookupError if it has none of this name."""
    return {picture.stem: picture.svg for picture in report_of(run).pictures}[stem]


def table_of(run: Path, title: str, against: tuple[str, Any] | None = None) -> Table:
    """Return the table of a report with a part of its title. Raises LookupError if there is none."""
    parts = [part for one in report_of(run, against).sections for part in (*one.parts, *one.more)]
    tables = [part for part in parts if isinstance(part, Table) and title in part.title]
    if not tables:
        raise LookupError(f"{run} has no table {title!r}")
    return tables[0]


def rows_of(folder: Path, source: Source) -> list[list[str]]:
    """Return the rows of a CSV file, heads first. Raises MinkError or LookupError."""
    tables = [table_of(folder / source.run, title, source.against) for title in source.titles]
    columns: dict[str, list[Cell]] = {}
    for table in tables:
        columns |= dict(zip(table.columns, map(list, zip(*table.rows, strict=True)), strict=True))
    names = [cell.text for cell in next(iter(columns.values()))]
    chosen = [i for i in range(len(names)) if not source.at or columns["T"][i].text == source.at]
    if source.rows:
        place = {names[i]: i for i in chosen}
        chosen = [place[name] for name in source.rows]
    shown = source.columns or {name: name for name in columns}
    spread = [
        one for name, head in shown.items() for one in _spread(head, [columns[name][i] for i in chosen])
    ]
    return [list(row) for row in zip(*spread, strict=True)]


def _spread(head: str, cells: Sequence[Cell]) -> Iterator[list[str]]:
    """Yield a column with its head, and two more if all that is below its cells is an interval."""
    texts = [f"**{cell.text}**" if cell.bold else cell.text for cell in cells]
    ends = [_ENDS.fullmatch(cell.below) if cell.below else None for cell in cells]
    if any(ends) and all(end or not cell.below for end, cell in zip(ends, cells, strict=True)):
        yield [head, *texts]
        for number, name in enumerate(("low", "high"), start=1):
            yield [f"{head}_{name}", *(end[number] if end else "" for end in ends)]
    else:
        below = (f" ({cell.below})" if cell.below else "" for cell in cells)
        yield [head, *map("".join, zip(texts, below, strict=True))]


def advice(folder: Path) -> list[list[str]]:
    """Return what `/help advice` says, with the figures of the frontier's runs."""
    head, usual = "tail mass, %", "tail mass of llama.cpp's default cuts, %"
    rows = [["for", "options", head, f"{head}_low", f"{head}_high"]]
    rows[0] += [usual, f"{usual}_low", f"{usual}_high", "entropy, nats"]
    for kind, options, *_ in ADVICE:
        given = dict(re.findall(r"--(\w+) (\S+)", options))
        found = report_of(folder / f"frontier-{_ADVISED.get(kind, 'math')}").frames["settings"]
        floor = given.get("floor", "0")
        sampler = "greedy" if given["temp"] == "0" else "min-k:tau=3" + f",floor={floor}" * (floor != "0")
        at = found[found["temperature"] == max(1.0, float(given["temp"]))].set_index("sampler")
        tails = (at.loc[one, "tail_mass"] for one in (sampler, "llama-default:k=40,p=0.95,min_p=0.05"))
        numbers = [f"{100 * end:.1f}" for tail in tails for end in tail]
        rows.append([kind, f"`{options}`", *numbers, f"{at.loc[sampler, 'entropy'].value:.2f}"])
    return rows


def runs(folder: Path) -> list[list[str]]:
    """Return a row per run: its models, the versions it was made with, and its day."""
    rows = [["run", "models", "made with", "on"]]
    for run in dict.fromkeys([*(one.run for one in TABLES.values()), *_TEXTS]):
        if manifest := read_manifest(folder / run):
            roles = [manifest[role]["name"] for role in ("model", "reference", "base") if role in manifest]
            models = [*manifest.get("models", {}), *manifest.get("judges", {}), *roles]
            versions = [f"{name} {version}" for name, version in manifest["versions"].items()]
            day = manifest["sessions"][0]["started"][:10]
            rows.append([run, ", ".join(models), ", ".join(versions), day])
    return rows


# From docs/results to the pages


@cache
def read(name: str) -> list[list[str]]:
    """Return the rows of a CSV file, heads first; none if there is no such file."""
    path = RESULTS / f"{name}.csv"
    return list(csv.reader(io.StringIO(path.read_text("utf-8"), newline=""))) if path.exists() else []


def table(name: str) -> str:
    """Return a CSV file as a Markdown table, with intervals in brackets after their values."""
    heads, *rows = read(name)
    shown = [i for i, head in enumerate(heads) if not head.endswith(("_low", "_high"))]
    lines = [[heads[i] for i in shown], ["---", *["--:"] * (len(shown) - 1)]]
    for row in rows:
        lines.append([_cell(heads, row, i) for i in shown])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(heads: list[str], row: list[str], i: int) -> str:
    value = row[i].replace("_", "\\_")
    if f"{heads[i]}_low" not in heads or not row[i + 1]:
        return value
    low, high = row[i + 1 : i + 3]
    return f"{value} ({low} to {high})" if low[0] in "+−" else f"{value} ({low}–{high})"


def with_tables(text: str) -> str:
    """Return a page with all tables filled in for which there is a file."""
    return _BLOCK.sub(lambda block: block[1] + (table(block[2]) if read(block[2]) else block[3]), text)


# What is checked


def unfounded(text: str, every: bool) -> Iterator[str]:
    """Yield the numbers written by hand that are not in the files named after them.

    Args:
        text: A page.
        every: Whether numbers with a decimal point need a file.
    """
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#] ?)", _FENCED.sub("", _BLOCK.sub("", text))):
        source = _FROM.search(paragraph)
        said = re.sub(r"`[^`]*`|\]\([^)]*\)", "", _FROM.sub("", paragraph))
        said = said.split(" | ")[1] if said.startswith("| ") else said
        if source:
            entries = [entry for name in source[1].split() for row in read(name) for entry in row]
            known = [number for entry in entries for number in _KNOWN.findall(entry)]
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


def command_lines(text: str) -> list[str]:
    """Return a page's command lines of this project's programs, without what is piped into them."""
    inline = re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))
    lines = [line for line in inline if len(line.split()) > 2]
    for language, block in _FENCED.findall(text):
        if not language:
            lines += block.replace("\\\n", " ").splitlines()
    lines += re.findall(r"<!-- begin: (.*) -->", text)
    found = {line[line.index("mink-") :] for line in lines if re.match(r"(.*\| )?mink-\w+ ", line)}
    return sorted(found)


@cache
def programs() -> dict[str, click.Command]:
    """Return this project's programs by name."""
    scripts = (one for one in entry_points(group="console_scripts") if one.name.startswith("mink-"))
    return {one.name: resolve_name(f"{one.module.removesuffix('.cli')}.cli:cli") for one in scripts}


def refused(line: str) -> str | None:
    """Return why a program refuses a command line, or None; the files that it names are made up."""
    name, *arguments = shlex.split(line, comments=True)
    command, context = programs()[name], None
    with TemporaryDirectory() as folder, chdir(folder):
        for word in arguments:
            _make_up(word)
        try:
            if isinstance(command, click.Group):
                context = click.Context(command, info_name=name)
                name, *arguments = arguments
                command = command.commands[name]
            command.make_context(name, arguments, parent=context)
        except KeyError:
            return f"there is no command {name}"
        except (click.UsageError, MinkError) as error:
            return str(getattr(error, "message", error))
    return None


def _make_up(word: str) -> None:
    """Make a file or a folder of what may be the name of one."""
    path = Path(word.rpartition("=")[2])
    if path.is_absolute() or not re.fullmatch(r"[\w.][\w./-]*", str(path)):
        return
    if path.suffix[1:].isalpha():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"question": "Why?"}')
    else:
        path.mkdir(parents=True, exist_ok=True)


def complaints(text: str, every: bool) -> Iterator[str]:
    """Yield what is wrong with a page; for `every`, see `unfounded`."""
    yield from (
        f"there is no docs/results/{block[1]}.csv" for block in _BLOCK.findall(text) if not read(block[1])
    )
    yield from unfounded(text, every)
    yield from (f"{line}: {why}" for line in command_lines(text) if (why := refused(line)))
    if with_tables(text) != text:
        yield f"a table differs from docs/results: update it with {sys.argv[0]}"


def main() -> None:
    problems: list[str] = []
    if "--from" in sys.argv:
        problems += remake(Path(sys.argv[sys.argv.index("--from") + 1]))
    for path in PAGES:
        if "--check" not in sys.argv:
            path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
        found = complaints(path.read_text(encoding="utf-8"), every=path == PAGES[0])
        problems += [f"{path.name}: {problem}" for problem in found]
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
