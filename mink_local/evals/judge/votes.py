"""The votes of people on a sheet, read with its key: win rates, exact tests, agreement of the raters."""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from mink_local.cli import printable
from mink_local.errors import ReportError
from mink_local.evals.bootstrap import LEVELS, resampled_counts
from mink_local.evals.judge.preferences import RESAMPLES, PairPlace, WinRate, interval, win_rate
from mink_local.evals.judge.sheet import KEY
from mink_local.evals.report.format import count, escape_markdown, p_value, percent, show_file
from mink_local.evals.report.tables import ReportTable, TableEntry
from mink_local.evals.run.records import as_run_error
from mink_local.files import write_atomic
from mink_local.samplers import label

HOW_TO_READ = (
    "Win rate of the first method: the mean over prompts of its votes, in which a tie counts half, with its "
    f"95% bootstrap interval over prompts ({RESAMPLES:,} resamples). p is exact and two-sided: the binomial "
    "test of won against lost; with several votes on a prompt, they change sign together.",
    "Fleiss' κ is the agreement of the raters beyond chance, on the pairs that all of them voted on: 1 is "
    "full agreement, 0 is chance; 95% bootstrap interval over prompts.",
)


class Ballot(NamedTuple):
    """One rater's votes: "left", "right" or "tie" by the pair's name."""

    rater: str
    votes: Mapping[str, str]


@dataclass(frozen=True)
class Kappa:
    """Fleiss' κ of raters on `n_pairs` pairs, with its 95% bootstrap interval over prompts."""

    value: float
    low: float
    high: float
    n_pairs: int


@dataclass(frozen=True)
class VotedRow:
    """The votes on pairs of two methods. `part` is their model, task and temperature, or "all"."""

    first: str
    second: str
    part: str
    pairs: int
    win_rate: WinRate
    kappa: Kappa | None


def fleiss(counts: Mapping[Hashable, Sequence[Sequence[int]]]) -> Kappa | None:
    """Return the agreement of raters, all of whom have voted on each pair.

    Args:
        counts: For each prompt its pairs; for each pair the number of votes for each category.

    None if it is not defined: fewer than two raters or pairs, or all votes alike.
    """
    table = np.array([pair for pairs in counts.values() for pair in pairs], np.float64)
    if len(table) < 2 or table[0].sum() < 2 or (table.sum(0) > 0).sum() < 2:
        return None
    n_raters = table[0].sum()
    agreements = (table * (table - 1)).sum(1) / (n_raters * (n_raters - 1))
    rows = np.column_stack([table, agreements, np.ones(len(table))])
    starts = np.cumsum([0, *(len(pairs) for pairs in counts.values())])[:-1]
    sums = np.add.reduceat(rows, starts)  # of each prompt
    low, high = np.nanquantile(_kappas(resampled_counts(len(sums), RESAMPLES) @ sums), LEVELS)
    return Kappa(float(_kappas(rows.sum(0))), float(low), float(high), len(table))


def _kappas(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return κ from sums over pairs, float64 (…, categories + 2): votes for each category, agreement, 1.

    NaN if all votes are alike.
    """
    votes, agreement, n_pairs = sums[..., :-2], sums[..., -2], sums[..., -1]
    chance = ((votes / votes.sum(-1, keepdims=True)) ** 2).sum(-1)
    kappas: NDArray[np.float64] = (agreement / n_pairs - chance) / np.where(chance < 1, 1 - chance, np.nan)
    return kappas


def read_votes(path: Path, key: Mapping[str, Any]) -> Ballot:
    """Return the votes in a file that a sheet's page has saved.

    Raises ReportError if the file cannot be read, is of another sheet, or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
        sheet, rater, votes = content["sheet"], content["rater"], dict(content["votes"])
        fits = isinstance(rater, str) and set(votes.values()) <= {"left", "right", "tie"}
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        fits = False
    if not fits:
        raise ReportError(f"{path} is not a file of votes that a sheet has saved")
    if sheet != key["sheet"] or not votes.keys() <= key["pairs"].keys():
        raise ReportError(f"{path} has the votes on another sheet: name the folder of that sheet")
    return Ballot(rater, votes)


def read_key(path: Path) -> dict[str, Any]:
    """Return the key of a sheet. Raises ReportError if it cannot be read."""
    try:
        key: dict[str, Any] = json.loads(path.read_bytes())
        if all({"left", "right", *PairPlace._fields} <= pair.keys() for pair in key["pairs"].values()):
            return {name: key[name] for name in ("sheet", "seed", "methods", "pairs")}
    except FileNotFoundError:
        raise ReportError(f"there is no {path}: write a sheet first, with mink-eval sheet") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ReportError(f"{path} is not the key of a sheet")


def voted_rows(key: Mapping[str, Any], ballots: Sequence[Ballot]) -> list[VotedRow]:
    """Return the outcome for every two methods: of all votes, and by model, task and temperature."""
    rows = []
    for first, second in combinations(key["methods"], 2):
        pairs = {
            name: pair
            for name, pair in key["pairs"].items()
            if {pair["left"], pair["right"]} == {first, second}
        }
        parts: dict[str, list[str]] = {"all": list(pairs)}
        for name, pair in sorted(pairs.items(), key=lambda one: one[1]["temperature"]):
            part = f"{pair['task']} · {pair['model']} · T = {pair['temperature']:g}"
            parts.setdefault(part, []).append(name)
        for part, names in list(parts.items())[: 1 if len(parts) == 2 else None]:
            found = _row(first, second, part, {name: pairs[name] for name in names}, ballots)
            rows += [found] if found else []
    return rows


def _row(
    first: str, second: str, part: str, pairs: Mapping[str, Any], ballots: Sequence[Ballot]
) -> VotedRow | None:
    """Return the row of these pairs; None if nobody has voted on them."""
    outcomes: list[tuple[Hashable, int]] = []
    counts: dict[Hashable, list[list[int]]] = {}
    for name, pair in pairs.items():
        sides = {pair["left"]: "left", pair["right"]: "right"}
        sign = {sides[first]: 1, "tie": 0, sides[second]: -1}
        signs = [sign[ballot.votes[name]] for ballot in ballots if name in ballot.votes]
        prompt = (pair["task"], pair["question_id"])
        outcomes += [(prompt, one) for one in signs]
        if len(signs) == len(ballots):
            counts.setdefault(prompt, []).append([signs.count(one) for one in (1, 0, -1)])
    voted = sum(any(name in ballot.votes for ballot in ballots) for name in pairs)
    return VotedRow(first, second, part, voted, win_rate(outcomes), fleiss(counts)) if outcomes else None


def report_votes(folder: Path, paths: Iterable[Path]) -> None:
    """Print what the votes in files say, and write it beside the sheet's key, as votes.md and votes.json.

    Raises ReportError if a file cannot be used, two are of one rater, or there are no votes.
    """
    key = read_key(folder / KEY)
    ballots = [read_votes(path, key) for path in paths]
    raters = [ballot.rater for ballot in ballots]
    if len(set(raters)) < len(raters):
        twice = next(rater for rater in raters if raters.count(rater) > 1)
        raise ReportError(f"two files have votes of {twice}: give the later one only")
    rows = voted_rows(key, ballots)
    if not rows:
        raise ReportError("nobody has voted on a pair yet")
    voted = (f"{rater} {len(votes):,}" for rater, votes in ballots)
    note = f"{count(len(ballots), 'rater')} voted on {len(key['pairs']):,} pairs: {', '.join(voted)}."
    tables = _tables(rows)
    console = Console()
    for table in tables:
        for shown in table.rich(console.width):
            console.print(shown)
    console.print(f"\n• {printable(note)}", highlight=False, markup=False)
    parts = ["# Votes of people", escape_markdown(note)]
    for table in tables:
        parts += [f"## {escape_markdown(table.title)}", table.markdown()]
    parts += ["## How to read this", *map(escape_markdown, HOW_TO_READ)]
    content = {
        **{name: key[name] for name in ("sheet", "seed", "methods")},
        "pairs": len(key["pairs"]),
        "raters": {rater: len(votes) for rater, votes in ballots},
        "rows": [asdict(row) for row in rows],
    }
    with as_run_error(folder):
        write_atomic(folder / "votes.md", "\n\n".join(parts) + "\n")
        write_atomic(folder / "votes.json", json.dumps(content, indent=1) + "\n")
    show_file(console, folder / "votes.md")


def _tables(rows: Iterable[VotedRow]) -> list[ReportTable]:
    """Return a table for every two methods."""
    columns = ("pairs", "voted on", "win rate", "won:tied:lost", "p", "Fleiss' κ")
    tables: dict[tuple[str, str], list[list[TableEntry]]] = {}
    for row in rows:
        tables.setdefault((row.first, row.second), []).append(_entries(row))
    return [
        ReportTable(f"{label(first)} against {label(second)}, %", columns, entries)
        for (first, second), entries in tables.items()
    ]


def _entries(row: VotedRow) -> list[TableEntry]:
    found, kappa = row.win_rate, row.kappa
    return [
        TableEntry(row.part),
        TableEntry(f"{row.pairs:,}"),
        TableEntry(percent(found.rate.value), interval(found.rate)),
        TableEntry(found.counts),
        TableEntry(p_value(found.p)),
        _kappa_entry(kappa) if kappa else TableEntry(),
    ]


def _kappa_entry(kappa: Kappa) -> TableEntry:
    value, low, high = (f"{number:.2f}".replace("-", "−") for number in (kappa.value, kappa.low, kappa.high))
    return TableEntry(value, f"{low} to {high}; {count(kappa.n_pairs, 'pair')}")
