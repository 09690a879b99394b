"""Measurements: `plan`, `measure` and `report`, carried out in a folder so that they can be resumed.

A complete measurement, of prompt lengths:

    @dataclass(frozen=True)
    class Length:
        prompt: str
        model: str
        n_tokens: int

        @property
        def key(self) -> tuple[str, str]:
            return self.prompt, self.model

    class Lengths(Measurement[Length]):
        measures, noun, row_type = "lengths", "prompts", Length

        def __init__(self, file: ModelFile, prompts: Sequence[str]) -> None:
            self.file, self.prompts = file, prompts
            self.settings = {"models": {file.name: {"sha256": file_sha256(file.path)}}}

        def plan(self) -> list[tuple[str, str]]:
            return [(prompt, self.file.name) for prompt in self.prompts]

        def measure(
            self, keys: Sequence[tuple[str, str]], store: Store[Length]
        ) -> Generator[Length, None, None]:
            with load_model(str(self.file.path)) as model:
                store.begin_session(model=self.file.name, placement=str(model.placement))
                for prompt, name in keys:
                    if self.interrupted:
                        return
                    yield Length(prompt, name, len(model.tokenize(prompt)))

        @staticmethod
        def report(results: Results) -> Report:
            table = Table("Tokens of a prompt", results.frame[["model", "prompt", "n_tokens"]], keys=2)
            return Report("lengths", "Lengths of prompts", [], [Section("Lengths", [table])], [table])

    carry_out(Lengths(resolve("smollm2-135m"), ["Hello", "Good morning"]), Path("lengths"))
"""

import dataclasses
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from rich import progress as bars
from rich.console import Console

from mink_local.cli import printable
from mink_local.errors import GenerationError, ReportError
from mink_local.evals.store import ROWS, R, Rows, Store, read_manifest
from mink_local.interrupts import on_interrupt

if TYPE_CHECKING:
    from mink_local.evals.report.report import Report

_FIRST_LOG_SECONDS, _LOG_SECONDS = 8.0, 30.0
_TICK_SECONDS = 0.5


@dataclass(frozen=True)
class Results:
    """Everything in a measurement's folder, even an unfinished one's; it is read when it is asked for.

    Attributes:
        against: What the user wants compared with, if anything: a kind and a name; see `Baseline`.
        scorer: The user's function for a run's responses, if it is to score them again.
    """

    folder: Path
    kind: "type[Measurement[Any]]"
    against: tuple[str, Any] | None = None
    scorer: str = ""

    @cached_property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.folder)

    @cached_property
    def rows(self) -> Rows[Any]:
        """The measurement's rows. Raises ReportError if none is usable."""
        rows = self.kind.recorded(self.folder, self.manifest)
        if not rows.by_key:
            why = f": {rows.problems[0]}" if rows.problems else " yet"
            raise ReportError(f"{self.folder} contains no {self.kind.noun}{why}")
        return rows

    @cached_property
    def frame(self) -> Any:
        """The rows as a pandas frame with a column per field."""
        return frame(self.rows.by_key.values())


class Measurement(ABC, Generic[R]):
    """Base class of measurements.

    Attributes:
        measures: Name of the command, recorded in the manifest.
        noun: What rows are called, in the plural.
        row_type: Type of a row: a dataclass with a `key`.
        file: Name of the file that holds the rows.
        settings: What the rows depend on; see `store`.
        interrupted: True after `interrupt`.
    """

    measures: ClassVar[str]
    noun: ClassVar[str]
    row_type: ClassVar[type[Any]]
    file: ClassVar[str] = ROWS

    settings: Mapping[str, Any]
    interrupted = False

    @abstractmethod
    def plan(self) -> Sequence[Hashable]:
        """Return the keys of all wanted rows."""

    @abstractmethod
    def measure(self, keys: Sequence[Any], store: Store[R]) -> Generator[R, None, None]:
        """Yield a row for every key, in any order, and close what it opens.

        It ends soon after `interrupt`, if need be with a GenerationError.
        """

    @staticmethod
    @abstractmethod
    def report(results: Results) -> "Report":
        """Return the report on a folder's results. Raises ReportError if there is nothing to report on."""

    def interrupt(self) -> None:
        """Make `measure` end soon; called in the main thread by a signal handler."""
        self.interrupted = True

    def status(self) -> str:
        """Return what to show beside the number of rows, such as the speed; called at any time."""
        return ""

    def seconds_left(self, n_new: int, n_left: int, seconds: float) -> float | None:
        """Return how long it will take; None if that is not known yet.

        Args:
            n_new: Number of rows since the start.
            n_left: Number of rows that are missing.
            seconds: Time since the start.
        """
        return seconds / n_new * n_left if n_new else None

    def conclude(self, results: Results) -> None:
        """Report on the results once all rows are there. Raises MinkError if they are not as wanted."""
        report_on(results)

    def prepare(self, store: Store[R]) -> None:
        """Do what must happen before rows are read, such as noting other settings. Raises RunError."""

    @classmethod
    def recorded(cls, folder: Path, manifest: Mapping[str, Any]) -> Rows[R]:  # noqa: ARG003
        """Return the rows in a folder, without lines that are unusable."""
        rows = Rows[R]()
        rows.read(folder / cls.file, cls.row_type)
        return rows


def carry_out(measurement: Measurement[Any], folder: Path, *, quiet: bool = False) -> None:
    """Measure the rows that a folder lacks, then report on all of them.

    Ctrl-C and SIGTERM end it; complete rows are kept.

    Raises:
        MinkError: The measurement cannot continue. All measured rows are kept.
        KeyboardInterrupt: After Ctrl-C or SIGTERM.
    """
    with Store[Any](folder, measurement.measures, measurement.settings, rows=measurement.file) as store:
        measurement.prepare(store)
        store.read(measurement.recorded)
        keys = list(dict.fromkeys(measurement.plan()))
        try:
            _measure(measurement, keys, store, quiet)
        finally:
            n_done = sum(key in store.found.by_key for key in keys)
            if n_done < len(keys):
                print(
                    f"{n_done:,} of {len(keys):,} {measurement.noun} are in {folder}; run the same command "
                    "again to resume."
                )
    measurement.conclude(Results(folder, type(measurement)))


def report_on(results: Results) -> "Report":
    """Write and print the report on a folder's results, and return it. Raises MinkError."""
    from mink_local.evals.report.report import publish

    with Console(stderr=True).status("Making the report …"):
        report = results.kind.report(results)
    publish(report, results.folder)
    return report


def _measure(measurement: Measurement[Any], keys: Sequence[Hashable], store: Store[Any], quiet: bool) -> None:
    missing = [key for key in keys if key not in store.found.by_key]
    if not missing:
        return
    n_done = len(keys) - len(missing)
    with (
        progress(measurement, len(keys), n_done, quiet=quiet) as advance,
        on_interrupt(measurement.interrupt, terminate=True),
        closing(measurement.measure(missing, store)) as rows,
    ):
        try:
            for row in rows:
                store.append(row)
                advance()
        except GenerationError:
            if not measurement.interrupted:  # else it ended what a model was reading
                raise
    if measurement.interrupted:
        raise KeyboardInterrupt


@contextmanager
def progress(
    measurement: Measurement[Any], total: int, done: int, *, quiet: bool = False
) -> Iterator[Callable[[], None]]:
    """Show progress on standard error: a bar on a terminal, else a line after 8 s and every half minute.

    Args:
        measurement: What is measured.
        total: Number of rows.
        done: Number of rows from earlier sessions.
        quiet: Show nothing.

    Yields:
        A function to call after each row.
    """
    console = Console(stderr=True)
    has_bar = console.is_terminal and not console.is_dumb_terminal and not quiet
    columns = (bars.BarColumn(bar_width=None), bars.TextColumn("{task.description}", markup=False))
    bar = bars.Progress(*columns, console=console, transient=True, expand=True, disable=not has_bar)
    number = bar.add_task("", total=total, completed=done)
    [rows] = bar.tasks
    began, ended = time.monotonic(), threading.Event()

    def text() -> str:
        n, seconds = int(rows.completed), time.monotonic() - began
        left = measurement.seconds_left(n - done, total - n, seconds)
        parts = (f"{n:,} of {total:,} {measurement.noun}", measurement.status())
        return printable(", ".join([*filter(None, parts), f"{'?' if left is None else duration(left)} left"]))

    def tick() -> None:
        due = _FIRST_LOG_SECONDS
        while not ended.wait(_TICK_SECONDS):
            bar.update(number, description=text())
            if not (has_bar or quiet) and time.monotonic() - began >= due:
                due += _LOG_SECONDS
                print(text(), file=sys.stderr, flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    with bar:
        bar.update(number, description=text())
        ticker.start()
        try:
            yield partial(bar.advance, number)
        finally:
            ended.set()
            ticker.join()
            if not (has_bar or quiet) and rows.completed > done:
                print(text(), file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return a duration as "1:02:03"."""
    return str(timedelta(seconds=round(seconds)))


def frame(rows: Iterable[Any]) -> Any:
    """Return dataclasses as a pandas frame with Python strings, which may contain lone surrogates."""
    import pandas as pd

    found = list(rows)

    def column(name: str) -> Any:
        values = [getattr(row, name) for row in found]  # an old row's __dict__ lacks new fields
        is_number = all(isinstance(value, int | float) for value in values)
        return pd.Series(values, dtype=None if is_number else object)

    names = [field.name for field in dataclasses.fields(found[0])] if found else []
    return pd.DataFrame({name: column(name) for name in names})
