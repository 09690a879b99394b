"""Progress on standard error: a bar on a terminal, else a line every half minute."""

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import TracebackType

from rich import progress as bars
from rich.console import Console
from rich.table import Column

_LOG_SECONDS = 30.0
_SPEED_SECONDS = 3600.0  # from which the bar computes the time left


class Progress:
    """Progress through `total` items; a context manager.

    Args:
        noun: What an item is, in the plural.
        total: Items.
        done: Those that are there from earlier sessions.
        quiet: Show nothing.
    """

    def __init__(self, noun: str, total: int, done: int = 0, quiet: bool = False) -> None:
        self.done, self.new = done, 0
        self._noun, self._total, self._quiet = noun, total, quiet
        self._console = Console(stderr=True)
        self._opened = ExitStack()
        self._began = self._said = time.monotonic()
        self._bar: bars.Progress | None = None

    def __enter__(self) -> "Progress":
        if not self._quiet and self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = bars.Progress(
                bars.BarColumn(bar_width=None),
                bars.TextColumn("{task.description}", table_column=Column(no_wrap=True)),
                bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True, min_width=5)),
                "left",
                console=self._console,
                transient=True,
                expand=True,
                speed_estimate_period=_SPEED_SECONDS,
            )
            self._task = self._bar.add_task(self._counts(""), total=self._total, completed=self.done)
            self._opened.enter_context(self._bar)
            self._opened.enter_context(_logging_above())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def advance(self, n: int = 1, status: str = "") -> None:
        """Count `n` more items, and show a status behind the counts."""
        self.done, self.new = self.done + n, self.new + n
        if self._bar:
            self._bar.update(self._task, completed=self.done, description=self._counts(status))
            return
        now = time.monotonic()
        is_due = now - self._said >= _LOG_SECONDS or self.done == self._total
        if is_due and not self._quiet:
            self._said = now
            left = self.seconds / self.new * (self._total - self.done)
            counts = f"{self._counts(status)}, {duration(left)} left"
            print(counts, file=sys.stderr, flush=True)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return max(1e-3, time.monotonic() - self._began)

    def _counts(self, status: str) -> str:
        counts = f"{self.done:,} of {self._total:,} {self._noun}"
        return f"{counts}, {status}" if status else counts


@contextmanager
def _logging_above() -> Iterator[None]:
    """Write log messages above the bar: through the standard error that rich has replaced."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


def duration(seconds: float) -> str:
    """Return "1:02:03"."""
    return str(timedelta(seconds=round(seconds)))
