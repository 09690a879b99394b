"""People as judges: a blind sheet, a page that shows pairs of responses and collects votes.

Which sampler is on which side is recorded in a separate file, the key, which raters do not get.
"""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, cycle
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import pandas as pd

from mink_local.errors import ReportError
from mink_local.evals.judge.judgements import ORDERS, PairKey, ResponsePair, response_pairs, samplers_of
from mink_local.evals.judge.report import PEOPLE, report_votes
from mink_local.evals.report.report import Report, render
from mink_local.evals.run.recorded_run import read_run
from mink_local.evals.store import write_file
from mink_local.evals.tables import count

KEY, PAGE = "key.json", "sheet.html"

Side = Literal["left", "tie", "right"]


@dataclass(frozen=True)
class SheetPair(PairKey):
    """A pair of a sheet, and the sampler on each side; identical responses are a tie that nobody is shown."""

    left: str
    right: str
    identical: bool = False


class SheetKey(msgspec.Struct):
    """The key to a sheet; `pairs` maps the opaque names on the page to pairs."""

    sheet: str
    seed: int
    methods: list[str]
    pairs: dict[str, SheetPair]


class Ballot(msgspec.Struct):
    """One rater's votes, as saved by the page."""

    sheet: str
    rater: str
    votes: dict[str, Side]


Content = TypeVar("Content", SheetKey, Ballot)


def write_sheet(
    folder: Path, samplers: Sequence[str], n: int, seed: int, temperatures: Sequence[float], out: Path
) -> str:
    """Write the page and its key for pairs from the run in `folder`; return a summary of the contents.

    Args:
        samplers: At least two samplers, as text; all are compared with each other.
        n: Maximum number of pairs. Identical responses are among them, as ties, but not on the page.
        seed: Seed for the order and the sides.
        temperatures: Temperatures of the pairs; empty for all.
        out: Folder for the page and the key.

    Raises:
        ReportError: The run has no such pairs, or `out` contains another sheet, whose key would be lost.
        RunError: A file cannot be written.
    """
    run = read_run(folder)
    samplers_of(run, samplers)
    pairs = [pair for a, b in combinations(samplers, 2) for pair in response_pairs(run, a, b)]
    pairs = [pair for pair in pairs if not temperatures or pair.key.temperature in temperatures]
    if all(pair.identical for pair in pairs):
        why = "all responses are identical" if pairs else "they have no question in common"
        raise ReportError(f"nothing to compare between these samplers in {folder}: {why}")
    rng = random.Random(seed)
    entries, key = [], {}
    for pair in _chosen(pairs, n, rng):
        name, swap = rng.randbytes(6).hex(), rng.random() < 0.5
        left, right = (1, 0) if swap else (0, 1)
        sides = pair.samplers[left], pair.samplers[right]
        key[name] = SheetPair(**asdict(pair.key), left=sides[0], right=sides[1], identical=pair.identical)
        if not pair.identical:
            entries.append([name, pair.question, pair.texts[left], pair.texts[right]])
    sheet = hashlib.sha256(json.dumps(entries).encode()).hexdigest()[:16]
    if (out / KEY).exists() and _read(out / KEY, SheetKey).sheet != sheet:
        raise ReportError(
            f"{out / KEY} is the key to another sheet, whose votes would be unreadable without it: choose "
            "another folder with --out"
        )
    content = msgspec.json.encode(SheetKey(sheet, seed, list(samplers), key))
    write_file(out / KEY, msgspec.json.format(content))  # first: the page is worthless without it
    write_file(out / PAGE, render_sheet(sheet, entries))
    n_same = len(key) - len(entries)
    same = f", and {n_same:,} of identical responses, which count as ties" if n_same else ""
    return f"{count(len(entries), 'pair')} of {len(pairs):,}{same}"


def _chosen(pairs: list[ResponsePair], n: int, rng: random.Random) -> list[ResponsePair]:
    """Return at most `n` pairs in random order: alike many of all samplers, temperatures, models and tasks,
    and from as many questions as possible."""
    rng.shuffle(pairs)
    cells: dict[tuple[Any, ...], list[ResponsePair]] = {}
    for pair in pairs:
        cell = (pair.samplers, pair.key.temperature, pair.key.model, pair.key.task)
        cells.setdefault(cell, []).append(pair)
    chosen: list[ResponsePair] = []
    asked: Counter[tuple[str, str]] = Counter()
    turns = cycle(cells.values())
    while len(chosen) < min(n, len(pairs)):
        if cell_pairs := next(turns):
            pair = min(cell_pairs, key=lambda one: asked[one.key.task, one.key.question_id])
            cell_pairs.remove(pair)
            asked[pair.key.task, pair.key.question_id] += 1
            chosen.append(pair)
    rng.shuffle(chosen)
    return chosen


def render_sheet(sheet: str, entries: Sequence[Sequence[str]]) -> str:
    """Return the page for pairs: each an opaque name, the question, and the left and right responses.

    Anything written by a model or a task is shown as text and cannot run, as on the report's page.
    """
    data = {"sheet": sheet, "pairs": entries}
    return render(Path(__file__).parent, "sheet", n_pairs=len(entries), data=data)


def votes_report(folder: Path, paths: Iterable[Path]) -> Report:
    """Return the report on the votes, one file per rater, on the sheet in `folder`.

    Raises ReportError if a file is unusable, two files are from the same rater, or there are no votes.
    """
    key = _read(folder / KEY, SheetKey)
    raters: set[str] = set()
    rows, n_votes = [], 0
    for path in paths:
        ballot = _read(path, Ballot)
        if ballot.sheet != key.sheet or not ballot.votes.keys() <= key.pairs.keys():
            raise ReportError(f"{path} contains votes on another sheet: give that sheet's folder")
        if ballot.rater in raters:
            raise ReportError(f"two files contain votes by {ballot.rater}: give only the later one")
        raters.add(ballot.rater)
        rows += [_judgement(ballot.rater, key, key.pairs[name], side) for name, side in ballot.votes.items()]
        n_votes += len(ballot.votes)
        same = [pair for name, pair in key.pairs.items() if pair.identical and name not in ballot.votes]
        rows += [_judgement(ballot.rater, key, pair, "tie") for pair in same]
    if not n_votes:
        raise ReportError("nobody has voted yet")
    return report_votes(pd.DataFrame(rows), len(key.pairs))


def saved_votes(folder: Path) -> list[Path]:
    """Return the files with votes next to a sheet's key, named as the page saves them."""
    return sorted(folder.glob("votes-*.json"))


def _judgement(rater: str, key: SheetKey, pair: SheetPair, side: Side) -> dict[str, object]:
    """Return a vote as the rater's judgement in one order."""
    first, second = sorted((pair.left, pair.right), key=key.methods.index)
    return {
        "judge": rater,
        **asdict(pair),
        "sampler": first,
        "against": second,
        "order": ORDERS[pair.left != first],
        "winner": {"left": "A", "tie": "tie", "right": "B"}[side],
        "attempts": 0 if pair.identical else 1,
        "is_cut": False,
        "protocol": PEOPLE,
    }


def _read(path: Path, kind: type[Content]) -> Content:
    """Return a sheet's key or a rater's votes. Raises ReportError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = "the key to a sheet" if kind is SheetKey else "a file of votes saved by a sheet"
        raise ReportError(f"{path} is not {what}: {error}") from None
