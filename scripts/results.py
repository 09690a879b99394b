"""Write the tables and figures of results.md, quantizations.md and the README from docs/results/*.csv.

\b
.venv/bin/python scripts/results.py
.venv/bin/python scripts/results.py FOLDER       first write docs/results/*.csv from the runs in FOLDER

FOLDER holds the folders that the commands in docs/results.md write: FOLDER/accuracy-gsm8k and so on. Each
becomes RUN.csv, RUN-comparisons.csv and the like, and RUN-rows.csv, which has a row per setting and question,
text, prompt or chunk.

All CSV files are alike: names and settings come first, a temperature is a number, a share is from 0 to 1, and
an interval is three columns, NAME, NAME_low and NAME_high. Tables are enclosed in <!-- begin: NAME --> and
<!-- end -->. The rest is written by hand; tests/test_results.py compares its numbers with the tables, and
`python -m scripts.lab.recompute` the tables with what was counted.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
import pandas as pd
from matplotlib.figure import Figure

from mink_local.errors import MinkError
from mink_local.evals.cli import MEASUREMENTS
from mink_local.evals.figures import Picture, accuracy_figure, dots
from mink_local.evals.frontier.report import frontier_figure, tail_mass_table
from mink_local.evals.frontier.sums import FIGURES as SUMS
from mink_local.evals.measurement import Results
from mink_local.evals.quants.report import (
    DIVERGENCE,
    PREDICTIONS,
    files_table,
    kinds_table,
    size_figure,
)
from mink_local.evals.run.records import read_run, scored
from mink_local.evals.run.summary import summarise
from mink_local.evals.store import read_manifest
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    of_interval,
    p_value,
    percent,
    points,
    temperature_name,
    to_csv,
)
from mink_local.samplers import MinK, default_samplers, label
from scripts.lab.coverage.measure import best_table, coverage_figure

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (*(ROOT / "docs" / name for name in ("results.md", "quantizations.md")), ROOT / "README.md")
BLOCK = re.compile(r"(<!-- begin: ([^\n]+) -->\n).*?(?=<!-- end -->)", re.DOTALL)

RUNS = (
    *("full-gsm8k", "accuracy-gsm8k", "accuracy-aqua", "zero-shot-gsm8k", "few-shot-gsm8k", "math500"),
    *("rivals-gsm8k", "ablations-gsm8k", "options-gsm8k"),
    *("frontier-open", "frontier-math", "frontier-code", "coverage-0.5b", "coverage-1.5b"),
    *("quants-0.5b", "quants-1.5b", "kv-1.5b"),
)
LLAMA = "llama-default:k=40,p=0.95,min_p=0.05"
_LAST, _FIRST = ",order=temperature-last", ",order=temperature-first"
_IN_BRIEF = [
    *("greedy", "min-k:tau=3", "min-k:tau=3,floor=1", f"min-p:p=0.1{_LAST}", LLAMA),
    *(f"top-p:p=0.9{_LAST}", f"top-p:p=0.9{_FIRST}"),
]
# What is advised for kinds of text, and on which texts it was measured.
_ADVICE = (
    ("prose", "--floor 1.8 --temp 1", "open"),
    ("prose, hot", "--floor 1.4 --temp 5", "open"),
    ("code", "--floor 0 --temp 1", "code"),
    ("mathematics", "--floor 0 --temp 1", "math"),
    ("mathematics, one answer", "--temp 0", "math"),
)


# From runs to docs/results


def remake(folder: Path) -> Iterator[str]:
    """Write the data of the runs in a folder; yield what it lacks."""
    for run in RUNS:
        try:
            found = data_of(folder / run)
        except (MinkError, LookupError) as error:
            yield f"{run} is not remade: {error}"
        else:
            for name, frame in found.items():
                (RESULTS / f"{run}{name}.csv").write_text(to_csv(frame), encoding="utf-8")


def data_of(run: Path) -> dict[str, pd.DataFrame]:
    """Return a run's frames, by what their files' names end in. Raises MinkError if there is none."""
    measures = read_manifest(run).get("measures", "run")
    if measures == "run":
        return _of_responses(run)
    results = Results(
        run, resolve_name({**MEASUREMENTS, "coverage": "scripts.lab.coverage.measure:Walks"}[measures])
    )
    report = results.kind.report(results)
    if measures == "quants":
        return {"": report.csv["quants"], "-kinds": report.csv["quants-kinds"], "-rows": _of_chunks(results)}
    settings, n = (
        report.frames["settings"],
        {key: report.about[key] for key in report.about if key[:2] == "n_"},
    )
    found = {"": settings.assign(**{key[2:]: value for key, value in n.items()}), "-rows": results.frame}
    if measures == "frontier":
        gain = report.frames["defaults"].filter(like="gain")
        at = report.frames["at_tail_mass"]
        sums = pd.DataFrame(results.frame["sums"].tolist(), columns=[f"sum_{name}" for name in SUMS])
        found[""] = found[""].join(gain)
        found["-at-tail-mass"] = at.assign(is_behind=at["behind_low"] > 0, texts=report.about["n_texts"])
        found["-rows"] = results.frame.drop(columns="sums").join(sums)
    return found


def _of_responses(run: Path) -> dict[str, pd.DataFrame]:
    """Return the frames of a run of questions, whose temperatures are compared with the lowest one, too."""
    recorded = scored(read_run(run))
    found = summarise(recorded)
    temperatures = sorted(set(found.cells["temperature"]) - {0.0})
    others = [summarise(recorded, ("temperature", one)).comparisons for one in temperatures[:1]]
    every = [found.comparisons, *(others if len(temperatures) > 1 else [])]
    columns = ["task", "model", "sampler", "temperature", "repeat", "question_id", "finish_reason"]
    rows = [
        {name: getattr(one, name) for name in columns}
        | {"correct": one.flexible and one.flexible.correct, "last_correct": one.last and one.last.correct}
        for one in recorded.responses
    ]
    frames = {"": found.cells, "-comparisons": pd.concat(every), "-repeats": found.attempts}
    return {name: frame for name, frame in {**frames, "-rows": pd.DataFrame(rows)}.items() if len(frame)}


def _of_chunks(results: Results) -> pd.DataFrame:
    """Return the means of each file on each chunk."""
    frame = results.frame
    for name in ("kld", "base_logprob", "logprob", "same_top"):
        frame[name] = [sum(map(float, getattr(one, name))) / len(one.kld) for one in frame["divergence"]]
    return frame.drop(columns="divergence")


# From docs/results to the pages


def frame(name: str) -> pd.DataFrame:
    """Return a file of docs/results."""
    return pd.read_csv(RESULTS / f"{name}.csv")


def grid(rows: pd.DataFrame, cell: Callable[[Any], Cell]) -> Table:
    """Return a table with a row per sampler and a column per temperature."""
    heads = {one: f"T = {temperature_name(one)}" for one in sorted(rows["temperature"].unique())}
    return Table.grid(
        "", rows.assign(method=rows["sampler"].map(label)), cell, "method", "temperature", heads
    )


def cells(run: str, cell: Callable[[Any], Cell]) -> Table:
    """Return a grid of a run's cells."""
    return grid(everywhere(frame(run)), cell)


def everywhere(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows in which greedy's, which is measured once, at temperature 0, is at every other one."""
    is_once = rows["temperature"] == 0
    temperatures = rows.loc[~is_once, ["temperature"]].drop_duplicates()
    copies = rows[is_once].drop(columns="temperature").merge(temperatures, how="cross")
    order = rows["sampler"].unique().tolist()
    return pd.concat([rows[~is_once], copies]).sort_values(
        "sampler", key=lambda column: column.map(order.index), kind="stable"
    )


def accuracies(run: str) -> Table:
    """Return a run's accuracies; ▼ marks those significantly below the first method's."""
    compared = tests_of(run, "sampler") if (RESULTS / f"{run}-comparisons.csv").exists() else pd.DataFrame()
    worse = {(row.sampler, row.temperature) for row in compared.itertuples() if row.worse}

    def cell(row: Any) -> Cell:
        shown = of_interval(row, "accuracy", percent)
        return Cell(shown.text + "▼" * ((row.sampler, row.temperature) in worse), shown.below)

    return cells(run, cell)


def tests_of(run: str, kind: str) -> pd.DataFrame:
    """Return a run's paired tests of samplers, or of temperatures."""
    found = frame(f"{run}-comparisons")
    return found[found["kind"] == kind]


def minus(run: str) -> Table:
    """Return the differences of a run's methods from the first."""
    return grid(tests_of(run, "sampler"), lambda row: of_interval(row, "difference", points))


_COMPARED: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "temperature": ("T", temperature_name),
    "common_questions": ("questions", str),
    "difference": ("difference", points),
    "won": ("won", str),
    "lost": ("lost", str),
    "p": ("p", p_value),
    "marks": ("p, Holm", str),
}


def comparisons(run: str, kind: str) -> Table:
    """Return a run's paired tests of samplers, or of temperatures."""
    found = tests_of(run, kind)
    marks = [
        Cell(f"{p_value(row.p_holm)}{'▲' * row.better}{'▼' * row.worse}", bold=row.better or row.worse)
        for row in found.itertuples()
    ]
    return Table.of("", found.assign(marks=marks), _COMPARED, 2)


def cut_off(name: str, number: Format) -> Callable[[Any], Cell]:
    """Return the function that shows a number of a cell, and how many responses were cut off."""
    return lambda row: Cell(str(number(getattr(row, name))), f"cut off {percent(row.truncated)}")


def candidates(row: Any) -> Cell:
    """Return the share of a cell's steps with one candidate, and the k of 95%, 99% and all steps."""
    return Cell(percent(row.k_is_1), f"≤ {row.k_95:,.0f} {row.k_99:,.0f} {row.k_max:,.0f}")


def steps(row: Any) -> Cell:
    """Return the share of steps that the fallback decided, and of those with one candidate."""
    shown = of_interval(row, "fallback", percent)
    return Cell(shown.text, f"{shown.below}, k = 1 at {percent(row.k_is_1)}")


_FRONTIER: dict[str, tuple[str, Format]] = {
    "sampler": ("at T = 5", label),
    "tail_mass": ("tail mass, %", lambda share: f"{100 * share:.2f}"),
    "entropy": ("entropy, nats", "{:.3f}".format),
    "k_is_1": ("steps with one candidate, %", percent),
    "k": ("mean k", "{:,.1f}".format),
    "gain": ("gain, nats", lambda nats: f"{nats:+.3f}".replace("-", "−")),
}


def defaults(kind: str) -> Table:
    """Return the frontier's figures of all defaults."""
    found = at_5(kind)
    shown = found["sampler"].isin([str(sampler) for sampler in default_samplers()])
    ends = [f"{name}{end}" for name in ("k_is_1", "k") for end in ("_low", "_high")]
    return Table.of("", found[shown].drop(columns=ends, errors="ignore"), _FRONTIER, 1)


def in_brief() -> Table:
    """Return the frontier's figures of a few settings on open text."""
    return Table.of("", of_samplers(at_5("open"), _IN_BRIEF), dict(list(_FRONTIER.items())[:3]), 1)


def at_5(kind: str) -> pd.DataFrame:
    """Return the frontier's settings at T = 5."""
    return frame(f"frontier-{kind}").query("temperature == 5")


def of_samplers(rows: pd.DataFrame, samplers: Sequence[str]) -> pd.DataFrame:
    """Return the rows of samplers, in that order."""
    return rows.set_index("sampler").loc[list(samplers)].reset_index()


def tail_mass(kind: str) -> Table:
    """Return the maximum entropy of each curve at equal tail mass."""
    return tail_mass_table("", frame(f"frontier-{kind}-at-tail-mass"))


def advice() -> Table:
    """Return which settings are advised, with the frontier's figures."""
    rows = []
    for kind, options, texts in _ADVICE:
        given = dict(re.findall(r"--(\w+) (\S+)", options))
        floor, found = given.get("floor", "0"), frame(f"frontier-{texts}")
        sampler = "greedy" if given["temp"] == "0" else "min-k:tau=3" + f",floor={floor}" * (floor != "0")
        at = found[found["temperature"] == max(1.0, float(given["temp"]))]
        own, usual = of_samplers(at, [sampler, LLAMA]).itertuples()
        tails = (of_interval(one, "tail_mass", percent) for one in (own, usual))
        rows.append([kind, options, *tails, f"{own.entropy:.2f}"])
    heads = ["for", "options", "tail mass, %", "tail mass of llama.cpp's default cuts, %", "entropy, nats"]
    return Table("", pd.DataFrame(rows, columns=heads))


def coverage(run: str, below: int) -> Table:
    """Return each sampler's most coverage with validity at most so many points below greedy's."""
    return best_table("", frame(run), below / 100)


def files(run: str, names: Sequence[str]) -> Table:
    """Return figures of the files that `mink-eval quants` compared."""
    return files_table("", frame(run), names)


_RIVALS: dict[str, tuple[str, Format]] = {
    "method": ("method", str),
    "settings": ("its four settings", lambda texts: ", ".join(map(_option, texts.split("; ")))),
    "chosen": ("chosen", lambda text: _option(text)),
    "tail_mass": ("tail mass, %", lambda share: f"{100 * share:.2f}"),
    "entropy": ("entropy, nats", "{:.2f}".format),
    "validity": ("validity, %", percent),
    "coverage": ("coverage, %", percent),
    "most": ("most entropy at +0.5 points", str),
    "minus": ("minus Min-k with a floor", str),
}


def _option(sampler: str) -> str:
    return re.split("[:,]", sampler.partition(",order=")[0])[-1]


def rivals(name: str, most: str, head: str, number: Format, difference: Format) -> Table:
    """Return a table of the rivals; ≥ marks a method whose widest setting does not reach the level."""
    found = frame(name)
    reached = []
    for row in found.itertuples():
        shown = of_interval(row, most, number)
        reached.append(Cell("≥ " * row.is_bound + shown.text, shown.below))
    gains = [
        Cell() if row.method == "min-k, floor" else of_interval(row, "minus_min_k_floor", difference)
        for row in found.itertuples()
    ]
    columns = _RIVALS | {"most": (head, str)}
    return Table.of("", found.assign(most=reached, minus=gains), columns, 3)


def _nats(number: float) -> str:
    return f"{number:+.2f}".replace("-", "−")


def at_tail_mass(found: pd.DataFrame) -> Figure:
    """Return the figure of what each method reaches at equal tail mass, a panel per level, Min-k on top."""
    found = found.rename(columns={"curve": "method"})
    names = list(dict.fromkeys(found.sort_values("entropy")["method"]))
    names = [*(name for name in names if name != MinK.name), MinK.name]
    figure = Figure(figsize=(5.8, 0.54 * len(names) + 1.2), layout="constrained")
    axes = figure.subplots(2, 2, sharey=True).flatten()
    for axis, (wanted, rows) in zip(axes, found.groupby("wanted"), strict=True):
        dots(axis, rows, "entropy", list(map(names.index, rows["method"])))
        axis.set_title(f"+{100 * wanted:g} points of tail mass", fontsize="small")
        axis.set(xlim=(0, None), ylim=(-0.7, len(names) - 0.3))
        axis.set_yticks(range(len(names)), names, fontsize="small")
        axis.grid(axis="x", linewidth=0.4)
    figure.supxlabel("entropy, nats", fontsize="medium")
    return figure


_ACCURACY = (("full", "full-gsm8k"), ("gsm8k", "accuracy-gsm8k"), ("aqua", "accuracy-aqua"))
_TESTED = (("full", "full-gsm8k"), ("aqua", "accuracy-aqua"))
_KINDS = ("open", "math", "code")
_in_nats = ("most_entropy", "most entropy at +0.5 points", "{:.2f}".format, _nats)
TABLES: dict[str, Callable[[], Table]] = {
    **{f"accuracy-{task}": partial(accuracies, run) for task, run in _ACCURACY},
    **{f"temperatures-{task}": partial(comparisons, run, "temperature") for task, run in _TESTED},
    **{f"against-min-k-{task}": partial(comparisons, run, "sampler") for task, run in _TESTED},
    "cut-off-full": partial(cells, "full-gsm8k", cut_off("no_answer", percent)),
    "candidates-full": partial(cells, "full-gsm8k", candidates),
    **{
        f"{name}{what}": partial(form, run)
        for name, run in (("zero-shot", "zero-shot-gsm8k"), ("few-shot", "few-shot-gsm8k"), ("math500",) * 2)
        for what, form in (
            ("", accuracies),
            ("-tokens", partial(cells, cell=cut_off("mean_tokens", "{:.1f}".format))),
        )
    },
    "math500-minus": partial(comparisons, "math500", "sampler"),
    "math500-temperatures": partial(comparisons, "math500", "temperature"),
    "rivals-gsm8k": partial(accuracies, "rivals-gsm8k"),
    "rivals-gsm8k-minus": partial(comparisons, "rivals-gsm8k", "sampler"),
    "ablations": partial(accuracies, "ablations-gsm8k"),
    "ablations-minus": partial(minus, "ablations-gsm8k"),
    "options": partial(accuracies, "options-gsm8k"),
    "options-minus": partial(minus, "options-gsm8k"),
    **{f"defaults-{kind}": partial(defaults, kind) for kind in _KINDS},
    **{f"tail-mass-{kind}": partial(tail_mass, kind) for kind in _KINDS},
    "tail-mass": in_brief,
    "advice": advice,
    "coverage-1.5b-1": partial(coverage, "coverage-1.5b", 1),
    **{
        f"quants-{size}{what}": partial(files, f"quants-{size}", names)
        for size in ("0.5b", "1.5b")
        for what, names in (("", DIVERGENCE), ("-predictions", PREDICTIONS))
    },
    "quants-0.5b-kinds": lambda: kinds_table("", frame("quants-0.5b-kinds")),
    "kv-types": partial(files, "kv-1.5b", DIVERGENCE),
    "noise": partial(cells, "noise", lambda row: of_interval(row, "noise", percent)),
    "steps": partial(cells, "steps", steps),
    "rivals-prose": partial(rivals, "rivals-prose", *_in_nats),
    "rivals-math": partial(rivals, "rivals-math", *_in_nats),
    "rivals-ideas": partial(
        rivals,
        "rivals-ideas",
        "coverage_at_equal_validity",
        "coverage at validity 5 points below greedy's",
        percent,
        points,
    ),
}
FIGURES: dict[str, tuple[Callable[[pd.DataFrame], Figure], str]] = {  # and the file that they draw
    **{
        name: (partial(accuracy_figure, baseline="min-k:tau=3"), name)
        for name in ("accuracy-gsm8k", "accuracy-aqua")
    },
    **{f"frontier-{kind}": (frontier_figure, f"frontier-{kind}") for kind in _KINDS},
    "tail-mass-open": (at_tail_mass, "frontier-open-at-tail-mass"),
    **{name: (coverage_figure, name) for name in ("coverage-0.5b", "coverage-1.5b")},
    **{name: (size_figure, name) for name in ("quants-0.5b", "quants-1.5b")},
}


def read(name: str) -> str:
    """Return a table as Markdown."""
    return f"{TABLES[name]().markdown()}\n"


def drawn(name: str) -> bytes:
    """Return a figure as SVG."""
    draw, source = FIGURES[name]
    return Picture.of(name, "", lambda: draw(frame(source))).svg


def with_tables(text: str) -> str:
    """Return a page with all tables filled in."""
    return BLOCK.sub(lambda block: block[1] + read(block[2]), text)


@click.command(help=__doc__)
@click.argument("folder", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path))
def main(folder: Path | None) -> None:
    for problem in remake(folder) if folder else ():
        print(problem, file=sys.stderr)
    for name in FIGURES:
        (RESULTS / f"{name}.svg").write_bytes(drawn(name))
    for path in PAGES:
        path.write_text(with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
