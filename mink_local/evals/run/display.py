"""How a run looks while it goes on, on standard error: a live view in a terminal, a line now and then in a
log file; and its summary in the end."""

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mink_local.evals.run.progress import Cell, Progress, Tally, summed

_LOG_SECONDS = 30.0
_FIXED_LINES = 6  # of the live view: bar, a blank one, heading, column heads, what is left out, cursor

Tick = Callable[[], None]


@contextmanager
def watching(progress: Progress, quiet: bool) -> Iterator[Tick]:
    """Show the progress while the block runs, which calls what it is given after every change."""
    console = Console(stderr=True)
    if quiet:
        yield lambda: None
    elif console.is_terminal and not console.is_dumb_terminal:
        live = Live(
            get_renderable=lambda: view(progress, console.height),
            console=console,
            refresh_per_second=2,
            transient=True,
        )
        with live, _log_above_view():
            yield lambda: None
    else:
        log = _LogLines(progress)
        yield log.tick


@contextmanager
def _log_above_view() -> Iterator[None]:
    """Warnings go through the standard error that the live view has put in the place of the real one."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


class _LogLines:
    """A plain line every half minute, and one for the end."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._last = time.monotonic()

    def tick(self) -> None:
        total, now = self._progress.total, time.monotonic()
        if now - self._last >= _LOG_SECONDS or total.done == total.wanted:
            self._last = now
            print(_line(self._progress), file=sys.stderr, flush=True)


def _line(progress: Progress) -> str:
    total, cell = progress.total, progress.current
    where = f"{cell.task}, {cell.model}: " if cell else ""
    return (
        f"{where}{total.done} of {total.wanted} responses ({total.done / total.wanted:.0%}), "
        f"strict {_share(total, total.strict)}, flexible {_share(total, total.flexible)}, "
        f"{total.tokens_per_second:.0f} tokens/s, {duration(total.seconds_left)} left"
    )


def view(progress: Progress, height: int) -> RenderableType:
    """All of it in a window of so many lines: the bar, the model and task at hand, the others summed up."""
    parts: dict[tuple[str, str], list[Cell]] = {}
    for cell in progress.cells:
        parts.setdefault((cell.model, cell.task), []).append(cell)
    current = progress.current or next(iter(progress.cells))
    at_hand = (current.model, current.task)
    others = [part for part in parts if part != at_hand][: height // 4]
    room = max(1, height - _FIXED_LINES - len(others))
    cells = parts[at_hand]
    table = _list(progress, cells) if len(cells) <= room else _matrix(progress, cells, room)
    rest = _table(("", "done", "left", "strict", "flexible"))
    rest.show_header = False
    for part in others:
        rest.add_row(_heading(part), *_numbers(progress, parts[part]), style="dim")
    return Group(_bar(progress.total), Text(), Text(_heading(at_hand), style="bold"), table, rest)


def _list(progress: Progress, cells: Sequence[Cell]) -> Table:
    """A line for every cell."""
    table = _table(("method", "T", "done", "left", "strict", "flexible"))
    for cell in cells:
        table.add_row(label(cell.sampler), f"{cell.temperature:g}", *_numbers(progress, [cell]))
    return table


def _matrix(progress: Progress, cells: Sequence[Cell], room: int) -> Table:
    """A line for every method, with accuracies by temperature. All of a question's responses are made before
    the next question, so that the cells of a method are equally far."""
    temperatures = sorted({cell.temperature for cell in cells})
    table = _table(("strict/flexible %", "done", "left", *(f"T={t:g}" for t in temperatures)))
    by_method: dict[str, dict[float, Cell]] = {}
    for cell in cells:
        by_method.setdefault(cell.sampler, {})[cell.temperature] = cell
    for sampler, at in list(by_method.items())[:room]:
        tallies = [progress.cells[at[t]] if t in at else Tally() for t in temperatures]
        table.add_row(label(sampler), *_numbers(progress, list(at.values()))[:2], *map(_both, tallies))
    if len(by_method) > room:
        table.add_row(f"… and {len(by_method) - room} more")
    return table


def _both(tally: Tally) -> str:
    if not tally.done:
        return "–" if tally.wanted else ""
    return f"{100 * tally.strict / tally.done:.0f}/{100 * tally.flexible / tally.done:.0f}"


def _numbers(progress: Progress, cells: Sequence[Cell]) -> tuple[str, ...]:
    tally = summed([progress.cells[cell] for cell in cells])
    shares = (_share(tally, count) for count in (tally.strict, tally.flexible))
    return f"{tally.done}/{tally.wanted}", duration(tally.seconds_left), *shares


def _bar(total: Tally) -> Table:
    grid = Table.grid(padding=(0, 1), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_column(no_wrap=True)
    grid.add_row(
        f"{total.done} of {total.wanted}",
        ProgressBar(total=total.wanted, completed=total.done),
        f"{total.done / total.wanted:.0%}  {total.tokens_per_second:.0f} tokens/s  "
        f"{duration(total.seconds_left)} left",
    )
    return grid


def _table(headings: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", title_style="bold")
    for i, heading in enumerate(headings):
        table.add_column(heading, justify="right" if i else "left", no_wrap=True, overflow="ellipsis")
    return table


def label(sampler: str) -> str:
    """A method's name, short enough for a table."""
    name, _, options = sampler.partition(":")
    kept = [option for option in options.split(",") if option and not option.startswith("order=")]
    order = re.search("order=temperature-(first|last)", options)
    return name + (f":{','.join(kept)}" if kept else "") + (f" (T {order[1]})" if order else "")


def duration(seconds: float | None) -> str:
    """ "1:02:03" or "2:03"; "–" where it is not known."""
    if seconds is None:
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _share(tally: Tally, count: int) -> str:
    return f"{count / tally.done:.1%}" if tally.done else "–"


def summary(progress: Progress) -> Group:
    """The tallies of every cell, a table for every model and task."""
    tables: dict[tuple[str, str], Table] = {}
    for cell, tally in progress.cells.items():
        part = (cell.model, cell.task)
        if part not in tables:
            tables[part] = _table(("method", "T", "n", "strict", "flexible", "no answer", "truncated"))
            tables[part].title, tables[part].title_justify = _heading(part), "left"
        counts = (tally.strict, tally.flexible, tally.unanswered, tally.truncated)
        n = str(tally.done) if tally.done == tally.wanted else f"{tally.done}/{tally.wanted}"
        row = (label(cell.sampler), f"{cell.temperature:g}", n, *(_share(tally, count) for count in counts))
        tables[part].add_row(*row)
    return Group(*tables.values())


def _heading(part: tuple[str, str]) -> str:
    model, task = part
    return f"{task} · {model}"
