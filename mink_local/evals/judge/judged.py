"""A run that is judged: win rates, position bias, and what a reader must know."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from mink_local.errors import ReportError
from mink_local.evals.judge.judges import Judge
from mink_local.evals.judge.judging import (
    ORDERS,
    PROMPT,
    Judgement,
    OrderedPair,
    judge_pairs,
    open_judgements,
)
from mink_local.evals.judge.preferences import (
    RESAMPLES,
    ResponsePair,
    WinRate,
    interval,
    mean_share,
    response_pairs,
    samplers_of,
    win_rate,
)
from mink_local.evals.report.format import count, escape_markdown, p_value, percent, show_file
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.stats import ALPHA, Share, holm
from mink_local.evals.report.tables import ReportTable, TableEntry
from mink_local.evals.run.records import as_run_error
from mink_local.files import write_atomic
from mink_local.samplers import label

HOW_TO_READ = (
    "Every pair of responses is judged in both orders. A method wins a pair if both orders prefer it; if "
    "the orders disagree, the pair is a tie. Identical responses are a tie that is not asked for. Win rate: "
    "ties count half, mean over questions.",
    f"Intervals are 95%, by bootstrap over questions ({RESAMPLES:,} resamples; Wilson's if all questions "
    "agree). p is exact and two-sided: the binomial test of wins against losses, in which the pairs of one "
    "question change sign together; Holm's is corrected for all rows.",
    "A judge is a model with preferences of its own, for example for long answers: the table shows what it "
    "prefers, not what people do.",
)
_PLACES = {"A": 1.0, "tie": 0.5, "B": 0.0}  # how much the first place wins


@dataclass(frozen=True)
class JudgedPair:
    """A pair with its judgements, in the order of `ORDERS`: none if the responses are identical."""

    pair: ResponsePair
    judgements: Sequence[Judgement]

    @cached_property
    def preferences(self) -> list[int] | None:
        """For each order 1 if it prefers the first, -1 the second, 0 neither; None if one is missing."""
        signs = []
        for judgement, sign in zip(self.judgements, (1, -1), strict=False):
            if judgement.winner is None:
                return None
            signs.append({"A": sign, "B": -sign, "tie": 0}[judgement.winner])
        return signs

    @property
    def outcome(self) -> int | None:
        """1 if the first wins, 0 for a tie, -1 if the first loses; None if a judgement is missing."""
        if self.preferences is None:
            return None
        return self.preferences[0] if len(set(self.preferences)) == 1 else 0

    @property
    def is_cut(self) -> bool:
        """True if the judge saw the beginning of a response only."""
        return any(max(map(len, self.pair.texts)) > judgement.characters for judgement in self.judgements)

    @property
    def inconsistent(self) -> bool:
        """True if the two orders disagree."""
        return len(set(self.preferences or ())) == 2


@dataclass(frozen=True)
class JudgedRow:
    """The pairs of one model, task, method and temperature; no `win_rate` if all are missing."""

    model: str
    task: str
    sampler: str
    temperature: float
    pairs: int
    identical: int
    inconsistent: int
    missing: int
    win_rate: WinRate | None
    p_holm: float | None = None


def judged(
    pairs: Sequence[ResponsePair],
    known: Mapping[tuple[str, str, str], Judgement],
    judge: tuple[str, str],
    characters: int,
) -> list[JudgedPair]:
    """Return the pairs with a judge's judgements, which must be among those known."""
    return [
        JudgedPair(
            pair,
            []
            if pair.identical
            else [known[*judge, OrderedPair(pair, o).digest(characters)] for o in ORDERS],
        )
        for pair in pairs
    ]


@dataclass(frozen=True)
class JudgedTable:
    """Win rates against one method, by one judge.

    Attributes:
        asked_for: What the table was made with, for its JSON file.
        first_place: How often the answer that is shown first wins, ties counted half; None if none was asked.
        disagreement: How often the two orders of a pair disagree.
        n_problems: Lines of the run that cannot be used.
    """

    judge: str
    against: str
    asked_for: Mapping[str, Any]
    rows: Sequence[JudgedRow]
    first_place: Share | None
    disagreement: Share | None
    n_cut: int
    judge_is_judged: bool
    n_problems: int

    @classmethod
    def of(
        cls, pairs: Sequence[JudgedPair], against: str, asked_for: Mapping[str, Any], n_problems: int
    ) -> "JudgedTable":
        groups: dict[tuple[str, str, str, float], list[JudgedPair]] = {}
        for one in pairs:
            place = one.pair.place
            key = (place.model, place.task, one.pair.samplers[0], place.temperature)
            groups.setdefault(key, []).append(one)
        rows = [_row(*key, group) for key, group in groups.items()]
        adjusted = iter(holm([row.win_rate.p for row in rows if row.win_rate])[0])
        rows = [replace(row, p_holm=next(adjusted)) if row.win_rate else row for row in rows]
        asked = [one for one in pairs if not one.pair.identical]
        places = [(_question(one), _PLACES[j.winner]) for one in asked for j in one.judgements if j.winner]
        complete = [(_question(one), float(one.inconsistent)) for one in asked if one.preferences is not None]
        judge = asked_for["judge"]
        return cls(
            judge,
            against,
            asked_for,
            rows,
            mean_share(places) if places else None,
            mean_share(complete) if complete else None,
            sum(one.is_cut for one in asked),
            judge in {one.pair.place.model for one in pairs},
            n_problems,
        )

    @property
    def notes(self) -> list[str]:
        """Sentences about the judge, for the reader to know before the table."""
        n_pairs = sum(row.pairs for row in self.rows)
        identical, missing = (
            sum(getattr(row, name) for row in self.rows) for name in ("identical", "missing")
        )
        notes = [
            f"{self.judge} judges {count(n_pairs, 'pair')} of responses against {label(self.against)}; "
            f"{identical:,} of them are identical."
        ]
        if self.first_place and self.disagreement:
            first, disagree = _in_words(self.first_place), _in_words(self.disagreement)
            notes.append(
                f"Position: the answer that is shown first wins {first} of the time (ties count half; "
                f"without bias 50%), and the two orders disagree in {disagree} of the pairs."
            )
            if not self.first_place.low <= 0.5 <= self.first_place.high:
                place = "first" if self.first_place.value > 0.5 else "second"
                notes.append(f"The judge prefers the {place} place, whatever is there.")
            if self.disagreement.value >= 0.5:
                notes.append("The orders disagree in most pairs: this judge says little about these methods.")
        if missing:
            notes.append(
                f"{count(missing, 'pair')} without a readable judgement in both orders are left out."
            )
        if self.n_cut:
            notes.append(
                f"In {count(self.n_cut, 'pair')} the judge saw only the beginning of a long response."
            )
        if self.n_problems:
            lines = count(self.n_problems, "line")
            notes.append(f"{lines} of the run's records cannot be used: mink-eval report names them.")
        if self.judge_is_judged:
            notes.append("The judge has written responses itself: it may prefer what it would write.")
        return notes

    def tables(self) -> list[ReportTable]:
        """Return a table for each model and task."""
        parts: dict[tuple[str, str], list[list[TableEntry]]] = {}
        for row in self.rows:
            parts.setdefault((row.model, row.task), []).append(_entries(row))
        columns = ("method", "T", "win rate", "won:tied:lost", "identical", "missing", "p")
        return [
            ReportTable(f"{task} · {model} · win rate against {label(self.against)}, %", columns, rows)
            for (model, task), rows in parts.items()
        ]

    def write(self, folder: Path) -> None:
        """Write judge.md and judge.json, each whole or not at all. Raises OSError."""
        parts = ["# Win rates by a judge", *map(escape_markdown, self.notes)]
        for table in self.tables():
            parts += [f"## {escape_markdown(table.title)}", table.markdown()]
        parts += ["## How to read this", *map(escape_markdown, HOW_TO_READ)]
        write_atomic(folder / "judge.md", "\n\n".join(parts) + "\n")
        content = {
            **self.asked_for,
            "against": self.against,
            "prompt": PROMPT,
            "first_place": self.first_place and asdict(self.first_place),
            "disagreement": self.disagreement and asdict(self.disagreement),
            "pairs_cut": self.n_cut,
            "rows": [asdict(row) for row in self.rows],
        }
        write_atomic(folder / "judge.json", json.dumps(content, indent=1) + "\n")


def _question(one: JudgedPair) -> tuple[str, str]:
    return one.pair.place.task, one.pair.place.question_id


def _row(model: str, task: str, sampler: str, temperature: float, pairs: Sequence[JudgedPair]) -> JudgedRow:
    outcomes = [(_question(one), one.outcome) for one in pairs]
    found = [(question, outcome) for question, outcome in outcomes if outcome is not None]
    return JudgedRow(
        model,
        task,
        sampler,
        temperature,
        pairs=len(pairs),
        identical=sum(one.pair.identical for one in pairs),
        inconsistent=sum(one.inconsistent for one in pairs),
        missing=len(pairs) - len(found),
        win_rate=win_rate(found) if found else None,
    )


def _entries(row: JudgedRow) -> list[TableEntry]:
    found = row.win_rate
    return [
        TableEntry(label(row.sampler)),
        TableEntry(f"{row.temperature:g}"),
        TableEntry(percent(found.rate.value), interval(found.rate)) if found else TableEntry(),
        TableEntry(found.counts if found else "", f"{row.inconsistent:,} disagree"),
        TableEntry(f"{row.identical:,}"),
        TableEntry(f"{row.missing:,}"),
        _p(found.p, row.p_holm) if found and row.p_holm is not None else TableEntry(),
    ]


def _p(p: float, adjusted: float) -> TableEntry:
    return TableEntry(p_value(p), f"Holm {p_value(adjusted)}", bold=adjusted <= ALPHA)


def _in_words(share: Share) -> str:
    return f"{percent(share.value)}% [{interval(share)}]"


def judge_run(folder: Path, judge: Judge, against: str, limit: int | None, characters: int) -> None:
    """Have a judge compare the methods of the run in `folder` with one of them; print and write the outcome.

    Args:
        limit: Only so many questions of a task; None is all.
        characters: Most characters of a response that the judge sees.

    Raises:
        ReportError: The folder holds no run, or nothing to compare.
        JudgeError: The judge cannot be asked.
        RunError: DIR/judge cannot be written.
    """
    run = read_run(folder)
    others = [sampler for sampler in samplers_of(run, [against]) if sampler != against]
    asked = {key for number, key in _numbered(run.questions) if limit is None or number < limit}
    pairs = [
        pair
        for sampler in others
        for pair in response_pairs(run, sampler, against)
        if (pair.place.task, pair.place.question_id) in asked
    ]
    if not pairs:
        raise ReportError(
            f"{folder} has no two methods' responses to one question: there is nothing to judge"
        )
    out = folder / "judge"
    console, screen = Console(), Console(stderr=True)
    with open_judgements(out) as (known, add):
        ordered = [OrderedPair(pair, order) for pair in pairs if not pair.identical for order in ORDERS]
        wanted = {(judge.name, judge.sha256, one.digest(characters)): one for one in ordered}
        missing = [one for key, one in wanted.items() if key not in known]
        places = {key: number for number, key in enumerate(run.questions)}
        missing.sort(key=lambda one: (places[one.pair.place.task, one.pair.place.question_id], one.order))
        with Progress(console=screen, transient=True, disable=not screen.is_terminal) as progress:
            bar = progress.add_task(f"{judge.name}", total=len(wanted), completed=len(wanted) - len(missing))

            def record(judgement: Judgement) -> None:
                add(judgement)
                progress.advance(bar)

            judge_pairs(judge, missing, characters, record)
        found = judged(pairs, known, (judge.name, judge.sha256), characters)
    asked_for = {
        "judge": judge.name,
        "judge_sha256": judge.sha256,
        "limit": limit,
        "max_chars": characters,
        "made_with": {key: value for key, value in run.made_with.items() if re.search("sha256|version", key)},
    }
    table = JudgedTable.of(found, against, asked_for, len(run.problems))
    for part in table.tables():
        for shown in part.rich(console.width):
            console.print(shown)
    console.print()
    for sentence in table.notes:
        console.print(f"• {sentence}", highlight=False, markup=False)
    with as_run_error(out):
        table.write(out)
    show_file(console, out / "judge.md")


def _numbered(questions: Iterable[tuple[str, str]]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Yield the questions, each with its number within its task."""
    numbers: dict[str, int] = {}
    for task, question_id in questions:
        numbers[task] = numbers.get(task, -1) + 1
        yield numbers[task], (task, question_id)
