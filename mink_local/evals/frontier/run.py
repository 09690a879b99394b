"""A measurement from texts to report, in one folder, which continues if it was stopped."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich import progress as bars
from rich.console import Console
from rich.table import Table

from mink_local.evals.frontier import report
from mink_local.evals.frontier.measure import TextSums, TwoModels, sums_file
from mink_local.evals.frontier.results import YARDSTICK, FrontierResults
from mink_local.evals.frontier.settings import default_settings
from mink_local.evals.frontier.sums import NOISE_LEVELS
from mink_local.evals.frontier.texts import (
    WRITER,
    MeasuredText,
    WrittenTexts,
    messages,
    plain_texts,
    read_paragraphs,
    read_prompts,
    sample,
    task_prompts,
)
from mink_local.evals.report.format import count, show_file, temperature_name
from mink_local.evals.run.data import locate
from mink_local.evals.run.folder import locked
from mink_local.evals.run.manifest import file_sha256, versions
from mink_local.evals.run.records import as_run_error
from mink_local.evals.run.worker import DATE
from mink_local.evals.tasks import find_task
from mink_local.files import write_atomic
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.interrupts import on_interrupt, until_interrupted
from mink_local.models.catalog import resolve
from mink_local.samplers import label

_SECONDS = "seconds.json"
_SHORT = 256  # tokens of a context that is not used
_LINE_SECONDS = 30.0  # between two lines of progress, if no terminal shows it


@dataclass(frozen=True)
class TextSource:
    """The texts: answers to a task's questions or to a file's prompts, or a file of plain text."""

    task: str | None
    data: Path | None
    prompts: Path | None
    text: Path | None

    @property
    def path(self) -> Path:
        """The file. Raises DataError or TaskNotFoundError if there is none."""
        if self.task is not None:
            return locate(find_task(self.task), self.data)
        path = self.prompts or self.text
        assert path is not None
        return path

    def items(self, seed: int) -> list[str]:
        """Return all prompts or paragraphs. Raises DataError."""
        if self.task is not None:
            return task_prompts(find_task(self.task), self.path, seed)
        return read_prompts(self.path) if self.prompts else read_paragraphs(self.path)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that a user asks for; the options of the command."""

    source: TextSource
    model: str
    reference: str
    limit: int
    temperatures: Sequence[float]
    wanted: Sequence[float]
    max_tokens: int
    seed: int
    out: Path
    gpu_layers: Any
    threads: int | None
    quiet: bool


def run_frontier(asked: Measurement) -> None:
    """Measure, write the report to the folder and print its main table.

    Raises MinkError, whose text says what is wrong; KeyboardInterrupt after Ctrl-C.
    """
    items = sample(asked.source.items(asked.seed), asked.limit, asked.seed)
    files = {role: resolve(name) for role, name in (("model", asked.model), ("reference", asked.reference))}
    with ExitStack() as opened:
        opened.enter_context(locked(asked.out))
        models = [
            opened.enter_context(
                load_model(
                    str(file.path),
                    n_ctx=_SHORT,
                    n_gpu_layers=asked.gpu_layers,
                    n_threads=asked.threads,
                    date=DATE,
                )
            )
            for file in files.values()
        ]
        about: dict[str, Any] = {
            role: {"name": file.name, "sha256": file_sha256(file.path)} for role, file in files.items()
        }
        session = _Session(asked, about, *models)
        with on_interrupt(session.interrupt, terminate=True):
            texts = session.texts(items)
            sums = session.measure(texts)
        results = _results(session, texts, sums)
    wanted = [points / 100 for points in asked.wanted]
    about |= {"command": _command(), "versions": versions(), "seconds": session.seconds}
    about |= {"texts": session.about_texts | {"words": session.texts_in_words}, "written": _now()}
    _write(asked.out, results, wanted, about)
    _print(results, asked.out)


class _Session:
    """Two loaded models that write and measure the texts."""

    def __init__(self, asked: Measurement, about: dict[str, Any], model: Model, reference: Model) -> None:
        self._asked, self._about, self._reference = asked, about, reference
        self.settings = default_settings(sorted(set(asked.temperatures)))
        self._pair = TwoModels(model, reference, self.settings)
        self._stopped = False
        source = asked.source
        self.about_texts: dict[str, object] = {
            "source": source.task or source.path.name,
            "data_sha256": file_sha256(source.path),
            "seed": asked.seed,
        }
        if not source.text:
            self.about_texts |= {
                "reference_sha256": about["reference"]["sha256"],
                "max_tokens": asked.max_tokens,
                "sampler": str(WRITER),
                "temperature": 1.0,
            }

    @property
    def seconds(self) -> dict[str, float]:
        """The time that writing and measuring took, in all sessions."""
        path = self._asked.out / _SECONDS
        with as_run_error(path, "read"):
            found: dict[str, float] = json.loads(path.read_bytes()) if path.exists() else {}
        return found

    @property
    def texts_in_words(self) -> str:
        name = self.about_texts["source"]
        if self._asked.source.text:
            return f"paragraphs of {name}"
        return (
            f"answers that {self._about['reference']['name']} wrote to prompts of {name} with {WRITER} at "
            f"temperature 1, at most {self._asked.max_tokens} tokens each"
        )

    def interrupt(self) -> None:
        self._stopped = True
        self._reference.interrupt()
        self._pair.interrupt()

    def texts(self, items: Sequence[tuple[int, str]]) -> list[MeasuredText]:
        """Return the texts; those that are missing are written first."""
        reference = self._reference
        if self._asked.source.text:
            return plain_texts(items, reference)
        written = WrittenTexts(self._asked.out / "texts.jsonl", self.about_texts)
        n_missing = len(items) - len(written.of(items))
        if n_missing:
            longest = max(reference.count_tokens(messages(prompt)) for _, prompt in items)
            reference.reserve(longest + self._asked.max_tokens, "auto")
            answers = written.write(items, reference, self._asked.max_tokens, self._asked.seed)
            texts = until_interrupted(answers, self.interrupt)
            with self._watching("writing", n_missing, "texts") as advance, closing(texts):
                for _ in texts:
                    advance(1)
            reference.reserve(_SHORT, 1)  # the memory of many answers at a time is free again
        if self._stopped:
            raise KeyboardInterrupt
        return written.of(items)

    def measure(self, texts: Sequence[MeasuredText]) -> TextSums:
        """Return the sums of the texts; those that are missing are measured first."""
        key = {
            "model": self._about["model"]["sha256"],
            "reference": self._about["reference"]["sha256"],
            "texts": self.about_texts,
            "settings": [(str(one.sampler), one.temperature) for one in self.settings],
            "levels": NOISE_LEVELS,
            "versions": versions(),
        }
        sums = TextSums(sums_file(self._asked.out, key), len(self.settings))
        missing = [text for text in texts if text.key not in sums.records]
        if missing:
            n_positions = sum(text.n_positions for text in missing)
            measured = until_interrupted(self._pair.measure(missing), self.interrupt)
            with self._watching("measuring", n_positions, "positions") as advance, closing(measured):
                for text, text_sums in measured:
                    sums.add(text.key, text.n_positions, text_sums)
                    advance(text.n_positions)
        if self._stopped:
            raise KeyboardInterrupt
        return sums

    @contextmanager
    def _watching(self, doing: str, total: int, of: str) -> Iterator[Any]:
        """Show progress on standard error while the block runs, and note its time; yield its `advance(n)`."""
        began = last = time.monotonic()
        done = 0
        console = Console(stderr=True)
        shown = bars.Progress(
            bars.TextColumn("{task.description}"), bars.BarColumn(), bars.MofNCompleteColumn(),
            bars.TextColumn(of), bars.TimeRemainingColumn(), console=console, transient=True,
            disable=self._asked.quiet or not console.is_terminal,
        )  # fmt: skip
        number = shown.add_task(doing, total=total)

        def advance(n: int) -> None:
            nonlocal done, last
            done += n
            shown.update(number, completed=done)
            now = time.monotonic()
            if (
                not self._asked.quiet
                and not console.is_terminal
                and (now - last > _LINE_SECONDS or done == total)
            ):
                last = now
                left = (now - began) / done * (total - done)
                print(f"{doing}: {done:,} of {total:,} {of}, {left:.0f} s left", file=sys.stderr, flush=True)

        try:
            with shown:
                yield advance
        finally:
            self._note_seconds(doing, time.monotonic() - began)

    def _note_seconds(self, doing: str, seconds: float) -> None:
        """Add to the time that the folder's sessions took together."""
        so_far = self.seconds
        path = self._asked.out / _SECONDS
        with as_run_error(path):
            write_atomic(path, json.dumps(so_far | {doing: round(so_far.get(doing, 0) + seconds, 1)}))


def _results(session: _Session, texts: Sequence[MeasuredText], sums: TextSums) -> FrontierResults:
    records = [sums.records[text.key] for text in texts]
    positions = np.array([n for n, _ in records], np.int64)
    return FrontierResults(session.settings, positions, np.stack([array for _, array in records]))


def _write(folder: Path, results: FrontierResults, wanted: Sequence[float], about: dict[str, Any]) -> None:
    content: dict[str, str | bytes] = {
        "frontier.svg": report.picture(results),
        "frontier.json": report.to_text(report.as_json(results, wanted, about)),
        "frontier.md": report.as_markdown(results, wanted, about, "frontier.svg"),
    }
    for name, data in content.items():
        with as_run_error(folder / name):
            write_atomic(folder / name, data)


def _print(results: FrontierResults, folder: Path) -> None:
    console = Console()
    temperature = max((t for t in results.temperatures if math.isfinite(t)), default=math.inf)
    console.print(
        f"\nThe defaults at T = {temperature_name(temperature)}, "
        f"{count(results.n_positions, 'position')} of {count(results.n_texts, 'text')}",
        style="bold", highlight=False,
    )  # fmt: skip
    table = Table("method", "noise, %", "entropy, nats", "k = 1, %", f"gain on {YARDSTICK}")
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for one in results.defaults(temperature, report.LEVEL):
        figures = one.result.figures
        noise, entropy = figures[f"noise_{report.LEVEL:g}"], figures["entropy"]
        gain = one.gain
        table.add_row(
            label(str(one.result.setting.sampler)),
            f"{100 * noise.value:.2f}",
            f"{entropy.value:.3f}",
            f"{100 * figures['k_is_1'].value:.0f}",
            f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]" if gain else "–",
        )
    console.print(table, markup=False)
    show_file(console, folder / "frontier.md")


def _command() -> str:
    """Return what was typed, of paths only the names: a report is for showing to others."""
    words = (Path(word).name if Path(word).exists() else word for word in sys.argv[1:])
    return shlex.join(["mink-eval", *words])


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
