"""`mink-eval steps`: Min-k's k over the steps of continuations, and what decided it: the paper's Figure 6.

A text's first tokens are continued without a chat template, at every temperature with the same seed. At each
step, k is the position of the cliff unless the fallback, or a `floor`, keeps more.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from mink_local.errors import GenerationError, ReportError
from mink_local.evals.figures import NOTE, Picture, panels
from mink_local.evals.frontier.measure import read_paragraphs
from mink_local.evals.inputs import DATE, file_sha256
from mink_local.evals.measurement import Measurement, Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.run.records import seed_of
from mink_local.evals.settings import described, settings_report
from mink_local.evals.stats import share
from mink_local.evals.store import Store
from mink_local.evals.tables import Format, Table, count, percent, temperature_name, with_interval
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.models.catalog import resolve
from mink_local.samplers import MinK

_SHOWN = 64  # tokens of a text that are continued; a shorter text is continued at its end


@dataclass(frozen=True)
class TracedText:
    """The steps of a text's continuation at one temperature.

    Attributes:
        text: The text's key.
        k: Number of candidates at every step.
        cliff: Position of the cliff at every step.
    """

    text: str
    temperature: float
    k: list[int]
    cliff: list[int]

    @property
    def key(self) -> tuple[str, float]:
        return self.text, self.temperature


class Steps(Measurement[TracedText]):
    """The continuations of texts at every temperature.

    Args:
        model: Name or path of the model.
        text: A file whose paragraphs, separated by blank lines, are the texts.
        sampler: A Min-k.
        temperatures: Temperatures, compared with each other.
        limit: Maximum number of texts, chosen at random; a larger number adds to them.
        max_tokens: Length of a continuation.
        n_parallel: Number of continuations at a time.
        placement: Options of `load_model`.

    Raises:
        MinkError: The model or the text does not exist.
    """

    measures, noun, row_type = "steps", "continuations", TracedText

    def __init__(
        self,
        model: str,
        text: Path,
        sampler: MinK,
        temperatures: Sequence[float],
        limit: int,
        max_tokens: int,
        n_parallel: Any = "auto",
        **placement: Any,
    ) -> None:
        self._file, self._sampler, self._temperatures = resolve(model), sampler, list(temperatures)
        self._max_tokens, self._n_parallel, self._placement = max_tokens, n_parallel, placement
        texts = {one.key: one.text for one in read_paragraphs(text)}
        self._texts = {key: texts[key] for key in sorted(texts)[:limit]}  # the keys are hashes
        self._model: Model | None = None
        self.settings = {
            "model": described(self._file),
            "texts": {"source": text.name, "path": str(text), "sha256": file_sha256(text)},
            "sampler": str(sampler),
            "max_tokens": max_tokens,
        }

    def plan(self) -> list[tuple[str, float]]:
        return [(key, temperature) for key in self._texts for temperature in self._temperatures]

    def measure(
        self, keys: Sequence[tuple[str, float]], store: Store[TracedText]
    ) -> Generator[TracedText, None, None]:
        path = str(self._file.path)
        with load_model(path, n_ctx=256, date=DATE, **self._placement) as self._model:  # until `reserve`
            n_ctx = min(_SHOWN + self._max_tokens, self._model.weights.n_ctx_train)
            self._model.reserve(n_ctx, self._n_parallel)
            store.begin_session(placement=self._model.placement)
            cliffs: list[list[int]] = [[] for _ in keys]
            every = (self._request(self._model, *key, own) for key, own in zip(keys, cliffs, strict=True))
            requests = takewhile(lambda _: not self.interrupted, every)
            for answer in self._model.answer_all(requests):
                if self.interrupted:
                    return
                if answer.finish_reason == "error":
                    raise GenerationError(f"a continuation failed: {answer.error}")
                k = [int(size) for size in answer.k]
                yield TracedText(*keys[answer.index], k, cliffs[answer.index][: len(k)])

    def _request(self, model: Model, key: str, temperature: float, cliffs: list[int]) -> Request:
        """Return the request for a continuation whose cliffs are appended to `cliffs`."""
        tokens = model.weights.tokenize(self._texts[key], add_special=True, parse_special=False)
        rule = MinK(tau=0, alpha=self._sampler.alpha, decay=self._sampler.decay)

        def watch(logits: NDArray[np.float32]) -> None:
            cliffs.append(rule.cutoff(logits))

        params = SamplingParams(
            sampler=self._sampler,
            temperature=temperature,
            max_tokens=self._max_tokens,
            seed=seed_of(0, "steps", key, 0),
        )
        return Request(tokens[:_SHOWN], params, watch=watch)

    def interrupt(self) -> None:
        super().interrupt()
        if self._model:
            self._model.interrupt()

    @staticmethod
    def report(results: Results) -> Report:
        frame = results.frame
        n_temperatures = frame["temperature"].nunique()
        complete = frame.groupby("text").filter(lambda text: len(text) == n_temperatures)
        continued = complete[complete["k"].map(len) > 0]  # a model may end a text at once
        if continued["temperature"].nunique() < n_temperatures:
            raise ReportError(f"{results.folder} has no text continued at every temperature yet")
        found = by_temperature(continued)
        n_texts = complete["text"].nunique()
        manifest = results.manifest
        title = f"k over the steps of {manifest['sampler']}, {manifest['model']['name']}"
        lead = Picture.of("steps", title, lambda: _figure(continued))
        how_to_read = (
            f"{count(n_texts, 'text')} from {manifest['texts']['source']}: the first {_SHOWN} tokens of "
            f"each, or all if it is shorter, are continued by up to {manifest['max_tokens']}, without a chat "
            "template. Fallback: the steps at which it kept more candidates than there are before the cliff "
            "(or the floor did, if the sampler has one). In brackets: 95% intervals over texts.",
        )
        table = Table(title, found.rename(columns=_HEADS), 1, _FORMATS)
        return settings_report(
            results,
            title,
            [Section("k over steps", [table], lead=lead), Section("How to read this", how_to_read)],
            table,
            (n_texts, frame["text"].nunique() - n_texts, "text"),
            settings=found,
        )


def by_temperature(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row per temperature: k over all steps, and the share of steps that the fallback decided."""
    found = []
    for temperature, own in rows.groupby("temperature"):
        k, cliff = (np.concatenate(list(own[name])) for name in ("k", "cliff"))
        k_95, k_max = np.quantile(k, (0.95, 1), method="inverted_cdf")
        decided = [float(np.mean(np.array(row.k) > row.cliff)) for row in own.itertuples()]
        found.append(
            {
                "temperature": temperature,
                "steps": len(k),
                "mean_k": float(k.mean()),
                "k_is_1": float((k == 1).mean()),
                "k_95": int(k_95),
                "k_max": int(k_max),
                "fallback": share(decided),
                "mean_cliff": float(cliff.mean()),
            }
        )
    return pd.DataFrame(found)


_HEADS = {
    "temperature": "T",
    "mean_k": "mean k",
    "k_is_1": "k = 1, %",
    "k_95": "k of 95%",
    "k_max": "max",
    "fallback": "by the fallback, %",
    "mean_cliff": "mean cliff",
}
_FORMATS: dict[str, Format] = {
    "T": temperature_name,
    "steps": "{:,}".format,
    "mean k": "{:.2f}".format,
    "k = 1, %": percent,
    "k of 95%": "{:,}".format,
    "max": "{:,}".format,
    "by the fallback, %": with_interval(percent),
    "mean cliff": "{:.2f}".format,
}


def _figure(rows: pd.DataFrame) -> Figure:
    """Draw k at every step of every text, a panel per temperature: what the fallback decided in colour."""
    temperatures = sorted(rows["temperature"].unique())
    figure, axes = panels([f"T = {temperature_name(t)}" for t in temperatures], "step", "k, candidates")
    for temperature, axis in zip(temperatures, axes.values(), strict=True):
        own = rows[rows["temperature"] == temperature]
        step, k, cliff = (
            np.concatenate(list(parts))
            for parts in (own["k"].map(lambda one: np.arange(1, len(one) + 1)), own["k"], own["cliff"])
        )
        for name, chosen, colour in (("cliff", k <= cliff, "#0072B2"), ("fallback", k > cliff, "#D55E00")):
            drawn = f"{name}, {percent(float(chosen.mean()))}%"
            axis.plot(step[chosen], k[chosen], ".", color=colour, alpha=0.15, markersize=3, label=drawn,
                      rasterized=True)  # fmt: skip
        mean = pd.Series(k).groupby(step).mean()
        axis.plot(mean.index, mean, color="black", linewidth=1, label="mean")
        legend = axis.legend(frameon=False, fontsize="x-small", loc="upper right")
        for handle in legend.legend_handles:
            handle.set_alpha(1)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    figure.suptitle("Points: steps of all texts, by what decided k.", **NOTE)
    return figure
