"""Settings, each a sampler at a temperature; the sweep of all samplers; measurements of settings."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from mink_local.errors import DataError, GenerationError
from mink_local.evals.answering import DATE, file_sha256
from mink_local.evals.measurement import Measurement, Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.store import R, Store, public
from mink_local.evals.tables import Table, count
from mink_local.generation.engine.slots import N_OUTPUTS
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model, read_rows
from mink_local.models.catalog import ModelFile
from mink_local.samplers import Greedy, Sampler, default_samplers, parse_setting

HOT = 1e6  # the temperature that samplers see for infinity: close to uniform, but still ordered


@dataclass(frozen=True)
class Phases(Sampler):
    """Two samplers: one for the answer, and one while the model reasons, at a temperature of its own."""

    sampler: Sampler
    reasoning_sampler: Sampler
    reasoning_temperature: float

    def __str__(self) -> str:
        return f"{arm_of(self.reasoning_sampler, self.reasoning_temperature)} / {self.sampler}"


def sampling_of(sampler: Sampler) -> dict[str, Any]:
    """Return the fields of `SamplingParams` for a sampler, which may be two."""
    return vars(sampler) if isinstance(sampler, Phases) else {"sampler": sampler}


class SamplerSetting(NamedTuple):
    """A sampler at a temperature above 0; at infinity, all candidates are equally probable."""

    sampler: Sampler
    temperature: float

    @classmethod
    def parse(cls, text: str) -> "SamplerSetting":
        """Return the setting of a text such as `min-k@5`, or `min-k@1 / greedy@0`. Raises ValueError."""
        sampler, temperature, reasoning = parse_setting(text)
        if reasoning is None:
            return cls(sampler, temperature)
        answer = sampler if temperature else Greedy()  # which is the same at every temperature
        return cls(Phases(answer, *reasoning), temperature or 1.0)

    @property
    def key(self) -> tuple[str, float]:
        """The sampler as text, and the temperature."""
        return str(self.sampler), self.temperature

    @property
    def as_text(self) -> tuple[str, str]:
        """The key as stored in rows: the temperature is text as well, because JSON has no infinity."""
        return str(self.sampler), repr(float(self.temperature)).removesuffix(".0")

    @property
    def curve(self) -> str:
        """The sampler's name with its order: what the settings of a sweep have in common."""
        name, order = self.sampler.name, self.sampler.order
        return f"{name} ({order.replace('temperature-', 'T ')})" if order else name

    @property
    def option(self) -> str:
        """The swept option and its value, such as "p=0.1"; empty for a sampler without a sweep."""
        if self.sampler.sweep is None:
            return ""
        name, _ = self.sampler.sweep
        return f"{name}={getattr(self.sampler, name):g}"

    @property
    def is_default(self) -> bool:
        """True if every option but the order has its default."""
        return self.sampler in default_samplers()


def arm_of(sampler: object, temperature: float) -> str:
    """Return a setting's text, SAMPLER@T."""
    return f"{sampler}@{repr(float(temperature)).removesuffix('.0')}"


def described(file: ModelFile) -> dict[str, Any]:
    """Return what a manifest records about a model file."""
    return {"name": file.name, "path": str(file.path), "sha256": file_sha256(file.path)}


class RowMeasurement(Measurement[R]):
    """Base class of measurements that read rows of logits; an interrupt stops reading midway."""

    def __init__(self) -> None:
        self._models: list[Model] = []

    def interrupt(self) -> None:
        super().interrupt()
        for model in list(self._models):
            model.interrupt()

    def reserve(
        self, opened: ExitStack, model: Model, lengths: Iterable[tuple[int, str]], *limits: Any
    ) -> None:
        """Make room for sequences whose rows are to be read, which `interrupt` stops.

        Args:
            opened: Forgets the model.
            lengths: Number of tokens and name of each sequence to be read.
            limits: Remaining arguments of `Model.reserve`.

        Raises:
            DataError: A sequence exceeds the context the model was trained on.
        """
        longest, name = max(lengths)
        most = model.weights.n_ctx_train
        if longest > most:
            raise DataError(f"{name} has {longest:,} tokens but {model.name} holds {most:,}: shorten it")
        model.reserve(longest + 1, *limits)
        self._models.append(model)
        opened.callback(self._models.remove, model)

    def logits_of(self, model: Model, tokens: Sequence[int], n_rows: int) -> Iterator[NDArray[np.float32]]:
        """Yield the raw logits (V,) after each of the last `n_rows` tokens.

        Raises:
            GenerationError: llama.cpp fails, or `interrupt` was called.
        """
        for first in range(len(tokens) - n_rows, len(tokens), N_OUTPUTS):
            part = tokens[: first + N_OUTPUTS]
            ((_, rows),) = self.rows_of(model, [(part, len(part) - first)])
            yield from rows

    def rows_of(
        self, model: Model, sequences: Iterable[tuple[Sequence[int], int]]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield what `read_rows(model, sequences)` does; `interrupt` ends it even if it was called before.

        Raises:
            GenerationError: A row has a NaN, or no finite logit; llama.cpp fails; or `interrupt` was called.
        """
        found = read_rows(model, sequences)
        if self.interrupted:
            raise GenerationError("interrupted")
        for index, rows in found:
            if not np.isfinite(rows.max(axis=1)).all():  # a NaN is the maximum
                raise GenerationError(
                    f"{model.name} gave a NaN as a logit, or none that is finite: its file is damaged"
                )
            yield index, rows


Unit = TypeVar("Unit")


class SettingsMeasurement(RowMeasurement[R], Generic[R, Unit]):
    """Base class of measurements of settings on texts or prompts, keyed by unit and setting.

    Args:
        units: Texts or prompts, by key.
        files: Model files by role, as recorded in the manifest.
        placement: Options of `load_model`, for every file.

    Attributes:
        session: What the manifest records about a session, besides the placement.
    """

    def __init__(
        self,
        units: Mapping[str, Unit],
        settings: Iterable[SamplerSetting],
        files: Mapping[str, ModelFile],
        placement: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._units, self._files, self._placement = units, files, placement
        self._by_text = {one.as_text: one for one in settings}
        self.session: dict[str, Any] = {}
        self.settings: dict[str, Any] = {role: described(file) for role, file in files.items()}
        template = placement.get("chat_template")  # None for the model's own
        self.settings["template_sha256"] = template and hashlib.sha256(template.encode()).hexdigest()

    @abstractmethod
    def measure_units(
        self, units: Sequence[tuple[Unit, list[SamplerSetting]]], models: Sequence[Model], opened: ExitStack
    ) -> Iterator[R]:
        """Yield a row for each unit and each of its settings; see `measure`.

        Args:
            models: Models in the order of the files.
            opened: Closes what is entered into it.
        """

    def plan(self) -> list[tuple[str, str, str]]:
        return [(key, *setting) for key in self._units for setting in self._by_text]

    def measure(self, keys: Sequence[tuple[str, str, str]], store: Store[R]) -> Generator[R, None, None]:
        units = [
            (self._units[key], [self._by_text[sampler, temperature] for _, sampler, temperature in members])
            for key, members in groupby(keys, lambda key: key[0])
        ]
        with ExitStack() as opened:
            models = [
                opened.enter_context(load_model(str(file.path), n_ctx=256, date=DATE, **self._placement))
                for file in self._files.values()  # n_ctx: no answers are generated
            ]
            store.begin_session(placement=[str(model.placement) for model in models], **self.session)
            yield from self.measure_units(units, models, opened)


def settings_report(
    results: Results,
    title: str,
    sections: Sequence[Section],
    printed: Table,
    clusters: tuple[int, int, str],
    caveat: str | None = None,
    **frames: pd.DataFrame,
) -> Report:
    """Return the report of a measurement of settings.

    Args:
        clusters: Number of units that the intervals are over, number excluded because they lack a setting,
            and what a unit is called: (60, 0, "prompt").
        caveat: A note to read first, if any.
        frames: Content of the JSON; `settings` is also written as CSV.
    """
    name = results.manifest["measures"]
    n, n_left_out, noun = clusters
    notes = list(filter(None, [results.rows.left_out, caveat]))
    if n_left_out:
        notes.append(f"{count(n_left_out, noun)} excluded: not measured with every setting yet.")
    about = {**public(results.manifest), f"n_{noun}s": n}
    del about["sessions"]
    csv = {name: frames["settings"]}
    return Report(name, title, notes, sections, [printed], about=about, frames=frames, csv=csv)


def cuts(settings: Sequence[SamplerSetting]) -> Iterator[tuple[Sampler, float, list[int]]]:
    """Yield each cut, a sampler and the temperature it sees, with the indices of its settings.

    Settings whose temperature acts after the cut share the cut. At infinity, a sampler sees `HOT`.
    """
    members: dict[tuple[str, bytes], list[int]] = {}
    for i, (sampler, temperature) in enumerate(settings):
        options = sampler.kernel_options(min(temperature, HOT))
        members.setdefault((sampler.name, options.tobytes()), []).append(i)
    for numbers in members.values():
        sampler, temperature = settings[numbers[0]]
        yield sampler, sampler.seen(min(temperature, HOT)), numbers


def sweep(temperatures: Sequence[float]) -> list[SamplerSetting]:
    """Return the sweep of all registered samplers, in both orders, at every temperature.

    A curve's settings are consecutive, from few candidates to many. "Temperature first" is omitted at
    infinity, where it would see a uniform distribution and keep every token, and at 1, where it equals
    "temperature last". Stateful samplers are omitted too.
    """
    return [
        SamplerSetting(sampler, temperature)
        for temperature in sorted(set(temperatures))
        for sampler in _swept_samplers()
        if sampler.order != "temperature-first" or (temperature != 1 and math.isfinite(temperature))
    ]


def _swept_samplers() -> Iterator[Sampler]:
    for default in default_samplers():
        if default.is_stateful:
            continue
        if default.sweep is None:
            yield default
            continue
        option, values = default.sweep
        every = {*values, getattr(default, option)}
        for value in sorted(every, reverse=values[0] > values[-1]):
            yield replace(default, **{option: value})  # type: ignore[type-var]
