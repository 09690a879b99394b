"""Measures validity and coverage of answers to closed prompts, for every sampler and temperature."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mink_local.errors import DataError, ReportError
from mink_local.evals.figures import GREY, Picture, dots
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.settings import SamplerSetting, SettingsMeasurement, settings_report
from mink_local.evals.stats import FEW, share
from mink_local.evals.tables import ENDS, Format, Table, columns_of, count, percent, temperature_name
from mink_local.evals.tasks.base import Text, json_rows, read_each_once
from mink_local.generation.model import Model
from mink_local.models.catalog import resolve
from mink_local.samplers import Greedy, MinK, MinP, Sampler, default_samplers, label
from scripts.lab.coverage.tree import (
    MOST_TOKENS,
    AnswerSet,
    TokenProbabilities,
    normalise,
    walk,
)

N_SAMPLES = 100
_BELOW_GREEDY = (0.01, 0.05)  # allowed drop of mean validity below greedy's, for the tables with the best T

Floats = NDArray[np.float64]

BUNDLED = Path(__file__).with_name("prompts.jsonl")

_Name = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]
_Names = Annotated[tuple[_Name, ...], msgspec.Meta(min_length=1)]


class ClosedPrompt(msgspec.Struct, frozen=True):
    """A prompt whose valid answers can be listed: a line of a prompts file.

    Attributes:
        id: Name used in the report.
        prompt: The user message.
        answers: The valid answers, at least two: each is a name or a list of accepted names, the usual one
            first.
    """

    id: Text
    prompt: Text
    answers: Annotated[tuple[_Names | _Name, ...], msgspec.Meta(min_length=2)]

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The accepted names for each answer."""
        return [(names,) if isinstance(names, str) else names for names in self.answers]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


def read_prompts(path: Path) -> list[ClosedPrompt]:
    """Return the prompts in a file.

    Raises:
        DataError: The file cannot be read, a line is not a `ClosedPrompt` as JSON, an id or prompt occurs
            twice, or a name is only punctuation or stands for two answers.
    """
    return read_each_once(path, json_rows(path, ClosedPrompt), _checked)


def _checked(prompt: ClosedPrompt, _: int) -> ClosedPrompt:
    """Return the prompt. Raises DataError if a name is only punctuation or stands for two answers."""
    owners: dict[str, tuple[str, ...]] = {}
    for names in prompt.names:
        for name in names:
            normalised = normalise(name)
            if not normalised:
                raise DataError(f"{name!r} has no letter or digit")
            other = owners.setdefault(normalised, names)
            if other is not names:
                raise DataError(f"{name!r} stands for two answers, {other[0]!r} and {names[0]!r}")
    return prompt


@dataclass(frozen=True)
class Coverage:
    """A prompt measured with one setting.

    Attributes:
        prompt: The prompt's id.
        temperature: The temperature as text, because JSON has no infinity.
        n_nodes: Number of evaluated nodes of the tree, which all settings share.
        valid: Total probability of the valid answers.
        unexplored: Probability of answers that were neither complete nor invalid when the walk ended.
        distinct: Expected number of distinct valid answers in `N_SAMPLES` samples.
        coverage: `distinct` relative to its value for a uniform distribution over the valid answers.
    """

    prompt: str
    sampler: str
    temperature: str
    n_nodes: int
    valid: float
    unexplored: float
    distinct: float
    coverage: float

    @property
    def key(self) -> tuple[str, str, str]:
        return self.prompt, self.sampler, self.temperature


def standard_samplers() -> list[Sampler]:
    """Return the samplers measured by default; the last one keeps every token."""
    defaults = (sampler for sampler in default_samplers() if not sampler.is_stateful)
    return [*defaults, MinK(floor=1.0), MinP(p=0.0, order="temperature-last")]


def expected_distinct(probabilities: Floats) -> Floats:
    """Return the exact expected number of distinct valid answers in `N_SAMPLES` samples.

    Args:
        probabilities: Probability of each valid answer, (..., answers).
    """
    missed = np.log1p(-np.minimum(probabilities, 1 - 1e-16))
    return np.asarray(abs(np.expm1(N_SAMPLES * missed)).sum(axis=-1))  # a zero has no sign


class Walks(SettingsMeasurement[Coverage, ClosedPrompt]):
    """The validity and coverage of every setting on every prompt.

    Args:
        model: Name or path of the model.
        samplers: Empty for the `standard_samplers`; must not be stateful. Greedy is always measured.
        temperatures: Temperatures for every sampler.
        prompts: A file with prompts to use instead of the bundled ones; see `read_prompts`.
        limit: Number of prompts, counted from the first; None for all.
        rest: Explore until at most this much probability is left for every setting.
        nodes: Maximum number of nodes to evaluate per prompt.
        parallel: Number of nodes evaluated at a time.
        placement: Options of `load_model`.

    Raises:
        DataError: The prompts file is invalid.
    """

    measures, noun, row_type = "coverage", "settings of prompts", Coverage

    def __init__(
        self,
        model: str,
        *,
        samplers: Sequence[Sampler] = (),
        temperatures: Sequence[float] = (0.25, 0.5, 1.0, 1.5, 2.0, 5.0, 10.0, float("inf")),
        prompts: Path | None = None,
        limit: int | None = None,
        rest: float = 0.01,
        nodes: int = 2000,
        parallel: int | Literal["auto"] = 16,
        **placement: Any,
    ) -> None:
        settings = [
            SamplerSetting(sampler, temperature)
            for sampler in (samplers or standard_samplers())
            for temperature in temperatures
            if sampler != Greedy()
        ]
        found = {prompt.id: prompt for prompt in read_prompts(prompts or BUNDLED)[:limit]}
        super().__init__(
            found, [*settings, SamplerSetting(Greedy(), 1.0)], {"model": resolve(model)}, placement
        )
        self._limits, self.session = (rest, nodes), {"parallel": parallel}
        self.settings["prompts"] = {prompt.id: {"sha256": prompt.sha256} for prompt in found.values()}
        self.settings["walk"] = {"rest": rest, "nodes": nodes, "samples": N_SAMPLES}

    def measure_units(
        self,
        units: Sequence[tuple[ClosedPrompt, list[SamplerSetting]]],
        models: Sequence[Model],
        opened: ExitStack,
    ) -> Iterator[Coverage]:
        (model,) = models
        switch = False if model.has_thinking_switch else None  # reasoning is off if possible
        tokens = [
            model.prompt_tokens([{"role": "user", "content": prompt.prompt}], switch) for prompt, _ in units
        ]
        lengths = [
            (len(ids) + MOST_TOKENS, f"the prompt {prompt.id!r} with an answer")
            for (prompt, _), ids in zip(units, tokens, strict=True)
        ]
        self.reserve(opened, model, lengths, self.session["parallel"])
        for (prompt, settings), prompt_tokens in zip(units, tokens, strict=True):
            probabilities = TokenProbabilities(settings, model.weights.n_vocab)
            answers = AnswerSet(prompt.names, model.weights)
            rows = partial(self.rows_of, model)
            found = walk(prompt_tokens, answers, probabilities, rows, model.n_parallel, *self._limits)
            distinct = expected_distinct(found.answers)
            most = float(expected_distinct(np.full(len(answers), 1 / len(answers))))
            for i, setting in enumerate(settings):
                yield Coverage(
                    prompt.id,
                    *setting.as_text,
                    found.n_nodes,
                    valid=float(found.valid[i]),
                    unexplored=max(0.0, float(found.rest[i])),
                    distinct=float(distinct[i]),
                    coverage=float(distinct[i]) / most,
                )

    @staticmethod
    def report(results: Results) -> Report:
        found, n_prompts, n_left_out = means(results.frame)
        manifest = results.manifest
        greedy = found.loc[found["sampler"] == str(Greedy()), "valid"].iloc[0]
        tables = [
            best_table(
                f"Most coverage with validity at most {count(round(100 * below), 'point')} below greedy's "
                f"{percent(greedy)}%",
                found,
                below,
            )
            for below in _BELOW_GREEDY
            if n_prompts >= FEW and below < greedy
        ]
        title = f"Validity and coverage of {manifest['model']['name']}, {count(n_prompts, 'prompt')}"
        how_to_read = (
            "The distribution over answers is computed, not sampled. Validity is the probability of a valid "
            "answer. Coverage is the expected number of distinct valid answers in "
            f"{manifest['walk']['samples']} samples, relative to what it would be if all valid answers were "
            "equally likely. Unexplored is the largest probability, on any prompt, of answers that were "
            "neither complete nor invalid when the walk ended: validity may be higher by that much. All "
            "other numbers are means over prompts, with 95% intervals. At T = ∞, all candidates are equally "
            "likely; a sampler that cuts after temperature sees T = 10⁶. The best temperature is chosen on "
            "these same prompts."
        )
        whole = _table("All samplers and temperatures", found)
        own = Section(
            "Validity and coverage",
            [*tables, whole],
            lead=Picture.of("coverage", title, lambda: coverage_figure(found)),
        )
        return settings_report(
            results,
            title,
            [own, Section("How to read this", [how_to_read])],
            (tables or [whole])[-1],
            (n_prompts, n_left_out, "prompt"),
            settings=found,
        )


def means(rows: pd.DataFrame) -> tuple[pd.DataFrame, int, int]:
    """Return every setting's means over prompts.

    Args:
        rows: A row per prompt and setting, with the fields of `Coverage`.

    Returns:
        A row per setting, by sampler in the order of `rows` and by temperature, with `valid` and `coverage`
        with intervals, the mean of `distinct` and the largest `unexplored`; the number of prompts measured
        with every setting; and the number of other prompts.

    Raises:
        ReportError: No prompt was measured with every setting.
    """
    rows = rows.astype({"temperature": float})
    settings = ["sampler", "temperature"]
    n_settings = len(rows[settings].drop_duplicates())
    complete = rows.groupby("prompt").filter(lambda prompt: len(prompt) == n_settings)
    if complete.empty:
        raise ReportError("no prompt has been measured with every setting yet")
    complete["sampler"] = pd.Categorical(complete["sampler"], rows["sampler"].unique())
    found = pd.DataFrame(
        {
            **dict(zip(settings, key, strict=True)),
            **columns_of(share(cell["valid"].tolist()), "valid"),
            **columns_of(share(cell["coverage"].tolist()), "coverage"),
            "distinct": cell["distinct"].mean(),
            "unexplored": cell["unexplored"].max(),
        }
        for key, cell in complete.groupby(settings, observed=True)
    )
    n_prompts = complete["prompt"].nunique()
    return found, n_prompts, rows["prompt"].nunique() - n_prompts


def best(found: pd.DataFrame, below: float) -> pd.DataFrame:
    """Return each sampler at the temperature with the most coverage, if its validity is close to greedy's.

    The sampler with the most coverage comes first; one that is less valid at every temperature has empty
    cells.

    Args:
        found: A row per setting, as from `means`.
        below: How far the mean validity may be below greedy's, as a share.
    """
    greedy = found.loc[found["sampler"] == str(Greedy()), "valid"].iloc[0]
    enough = found[found["valid"] >= greedy - below]
    ranked = enough.sort_values("coverage", ascending=False, kind="stable").drop_duplicates("sampler")
    others = pd.DataFrame({"sampler": sorted(set(found["sampler"]) - set(ranked["sampler"]))})
    return pd.concat([ranked, others])


_COLUMNS: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "temperature": ("T", temperature_name),
    "valid": ("validity, %", percent),
    "coverage": ("coverage, %", percent),
    "distinct": ("distinct", "{:.1f}".format),
    "unexplored": ("unexplored, %", percent),
}


def _table(title: str, frame: pd.DataFrame) -> Table:
    return Table.of(title, frame, _COLUMNS, 2)


def best_table(title: str, found: pd.DataFrame, below: float) -> Table:
    """Return the table of `best`."""
    return _table(title, best(found, below).drop(columns=["distinct", "unexplored"], errors="ignore"))


def coverage_figure(found: pd.DataFrame) -> Figure:
    """Draw the coverage of each sampler at its `best` temperature, with its interval."""
    levels = {below: best(found, below).dropna(subset="coverage") for below in _BELOW_GREEDY}
    levels = {below: rows for below, rows in levels.items() if len(rows) > 1}  # not greedy alone
    names = list(levels[max(levels)]["sampler"])[::-1]
    figure = Figure(figsize=(6, 0.27 * len(names) + 1.2), layout="constrained")
    axis = figure.subplots()
    for number, (below, rows) in enumerate(levels.items()):
        heights = [names.index(name) + 0.13 - 0.26 * number for name in rows["sampler"]]
        shown = rows.assign(
            method=rows["sampler"], **{f"coverage{end}": 100 * rows[f"coverage{end}"] for end in ENDS}
        )
        dots(axis, shown, "coverage", heights, is_filled=not number)
        text = f"validity at most {count(round(100 * below), 'point')} below greedy's"
        axis.scatter([], [], 26, "white" if number else GREY, edgecolors=GREY, label=text)
    axis.set_yticks(range(len(names)), map(label, names), fontsize="small")
    axis.set(xlabel="coverage, %", xlim=(0, None), ylim=(-0.7, len(names) - 0.3))
    axis.grid(axis="x", linewidth=0.4)
    figure.legend(loc="outside upper right", frameon=False, fontsize="small")
    return figure
