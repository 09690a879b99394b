"""The progress of a run on standard error, as bars or log lines, and its summary."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import progress as bars
from rich.console import Console, Group
from rich.table import Column, Table

from mink_local.evals.run.progress import Progress, Tally
from mink_local.evals.run.records import Response
from mink_local.samplers import label

_LOG_SECONDS = 30.0

Show = Callable[[Response], None]


@contextmanager
def watching(progress: Progress, quiet: bool) -> Iterator[Show]:
    """Show the progress while the block runs; yield a function to call with every response that is added."""
    console = Console(stderr=True)
    if quiet:
        yield lambda _: None
    elif console.is_terminal and not console.is_dumb_terminal:
        with _bars(progress, console) as show:
            yield show
    else:
        yield _log_lines(progress)


@contextmanager
def _bars(progress: Progress, console: Console) -> Iterator[Show]:
    """A bar for every model and task that this process works on."""
    name = bars.TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"))
    numbers = bars.TextColumn("{task.fields[numbers]}", table_column=Column(no_wrap=True))
    columns = (name, bars.BarColumn(bar_width=None), numbers)
    with bars.Progress(*columns, console=console, transient=True, expand=True) as shown, _logging_above():
        numbered = {
            group: shown.add_task(_heading(*group), visible=False, total=tally.wanted, numbers="")
            for group, tally in progress.tasks.items()
        }

        def update(group: tuple[str, str]) -> None:
            tally = progress.tasks[group]
            text = f"{tally.done} of {tally.wanted}  strict {_share(tally, tally.strict)}  " \
                f"flexible {_share(tally, tally.flexible)}  {duration(tally.seconds_left)} left"  # fmt: skip
            shown.update(numbered[group], completed=tally.done, visible=True, numbers=text)

        for group, tally in progress.tasks.items():
            if tally.done < tally.wanted:
                update(group)
                break
        yield lambda response: update((response.model, response.task))


@contextmanager
def _logging_above() -> Iterator[None]:
    """Have log messages written above the bars: through the standard error that rich has replaced."""
    handlers = [h for h in logging.getLogger().handlers if isinstance(h, logging.StreamHandler)]
    before = [handler.setStream(sys.stderr) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in zip(handlers, before, strict=True):
            if stream is not None:
                handler.setStream(stream)


def _log_lines(progress: Progress) -> Show:
    """Return a function that prints a plain line every half minute, and one at the end."""
    last = time.monotonic()

    def show(response: Response) -> None:
        nonlocal last
        total, now = progress.total, time.monotonic()
        if now - last >= _LOG_SECONDS or total.done == total.wanted:
            last = now
            print(
                f"{response.task}, {response.model}: {total.done} of {total.wanted} responses "
                f"({total.done / total.wanted:.0%}), strict {_share(total, total.strict)}, "
                f"flexible {_share(total, total.flexible)}, {total.tokens_per_second:.0f} tokens/s, "
                f"{duration(total.seconds_left)} left",
                file=sys.stderr,
                flush=True,
            )

    return show


def summary(progress: Progress) -> Group:
    """Return the counts of every cell, in a table for every model and task."""
    tables: dict[tuple[str, str], Table] = {}
    for cell, tally in progress.cells.items():
        group = (cell.model, cell.task)
        if group not in tables:
            tables[group] = _table(_heading(*group))
        counts = (tally.strict, tally.flexible, tally.unanswered, tally.truncated)
        n = str(tally.done) if tally.done == tally.wanted else f"{tally.done}/{tally.wanted}"
        shares = (_share(tally, count) for count in counts)
        tables[group].add_row(label(cell.sampler), f"{cell.temperature:g}", n, *shares)
    return Group(*tables.values())


def _table(title: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1, 0, 0),
        header_style="dim",
    )
    table.add_column("sampler", no_wrap=True, overflow="ellipsis")
    for heading in ("T", "n", "strict", "flexible", "no answer", "truncated"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def duration(seconds: float | None) -> str:
    """Return "1:02:03" or "2:03", and "–" for None."""
    if seconds is None:
        return "–"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _share(tally: Tally, count: int) -> str:
    return f"{count / tally.done:.1%}" if tally.done else "–"


def _heading(model: str, task: str) -> str:
    return f"{task} · {model}"
