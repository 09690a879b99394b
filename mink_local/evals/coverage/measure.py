"""Measure validity and coverage of the answers to closed prompts, for every sampler and temperature."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import DataError
from mink_local.evals.coverage.answers import AnswerSet, Vocabulary
from mink_local.evals.coverage.prompts import BUNDLED, ClosedPrompt, read_prompts
from mink_local.evals.coverage.report import report
from mink_local.evals.coverage.tree import MOST_TOKENS, Distribution, TokenProbabilities, walk
from mink_local.evals.measurement import Results, carry_out
from mink_local.evals.settings import SamplerSetting, SettingsMeasurement
from mink_local.generation.model import Model
from mink_local.models.catalog import resolve
from mink_local.samplers import Greedy, MinK, MinP, Sampler, default_samplers

N_SAMPLES = 100
_SHOWN = 3  # answers of a distribution that a row names

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Coverage:
    """A prompt with one setting.

    Attributes:
        prompt: Its id.
        temperature: As text, because JSON has no infinity.
        n_answers: Number of valid answers.
        n_nodes: Nodes of the tree that were evaluated, for this and other settings together.
        valid: Probability of the valid answers together.
        unexplored: Probability of answers that were neither complete nor invalid when the walk ended.
        distinct: Expected number of different valid answers among `N_SAMPLES` samples.
        coverage: The same as a share of that of a uniform distribution over the valid answers.
        top: The most probable valid answers.
    """

    prompt: str
    sampler: str
    temperature: str
    n_answers: int
    n_nodes: int
    valid: float
    unexplored: float
    distinct: float
    coverage: float
    top: dict[str, float]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.prompt, self.sampler, self.temperature


def standard_samplers() -> list[Sampler]:
    """Return the samplers that are measured if none is named: the last one keeps every token."""
    defaults = (sampler for sampler in default_samplers() if not sampler.is_stateful)
    return [*defaults, MinK(floor=1.0), MinP(p=0.0, order="temperature-last")]


def expected_distinct(probabilities: Floats) -> Floats:
    """Return how many different valid answers are expected among `N_SAMPLES` samples, exactly.

    Args:
        probabilities: Of each valid answer, (..., answers); the rest of the mass is not valid.
    """
    missed = np.log1p(-np.minimum(probabilities, 1 - 1e-16))
    distinct: Floats = -np.expm1(N_SAMPLES * missed).sum(axis=-1)
    return distinct


def run_coverage(out: Path, *, quiet: bool = False, **options: Any) -> None:
    """Measure, write the report to the folder `out` and print its main table; see `Walks` for the options.

    Raises:
        MinkError: The measurement cannot go on.
        KeyboardInterrupt: After Ctrl-C or SIGTERM.
    """
    carry_out(Walks(**options), out, quiet=quiet)


class Walks(SettingsMeasurement[Coverage, ClosedPrompt]):
    """The walks of the trees of prompts.

    Args:
        model: Name or path of the model.
        samplers: The `standard_samplers` if none is given; greedy is always measured.
        prompts: A file of prompts instead of the bundled ones; see `read_prompts`.
        limit: Only the first prompts.
        rest: Walk until at most this probability is unexplored for every setting.
        nodes: Most nodes of the tree that are evaluated for a prompt.
        parallel: Nodes that are evaluated at a time.
        placement: Options of `load_model`.
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
        for sampler in samplers:
            if sampler.is_stateful:
                raise DataError(f"{sampler} has no distribution: its candidates depend on what was sampled")
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
        self.settings["prompts"] = {prompt.id: prompt.sha256 for prompt in found.values()}
        self.settings["walk"] = {"rest": rest, "nodes": nodes, "samples": N_SAMPLES}

    def measure_units(
        self,
        units: Sequence[tuple[ClosedPrompt, list[SamplerSetting]]],
        models: Sequence[Model],
        opened: ExitStack,
    ) -> Iterator[Coverage]:
        (model,) = models
        vocabulary = Vocabulary(model.weights)
        tokens = [_tokens(model, prompt) for prompt, _ in units]
        reader = self.reader(opened, model, max(map(len, tokens)) + MOST_TOKENS, self.session["parallel"])
        for (prompt, settings), prompt_tokens in zip(units, tokens, strict=True):
            probabilities = TokenProbabilities(settings, model.weights.n_vocab)
            answers = AnswerSet(prompt.names)
            found = walk(prompt_tokens, answers, vocabulary, probabilities, reader, *self._limits)
            yield from _measures(prompt, settings, found)

    def status(self, row: Coverage) -> str:
        return f"{row.prompt}: {row.n_nodes} nodes"

    @classmethod
    def report(cls, results: Results) -> None:
        report(results)


def _tokens(model: Model, prompt: ClosedPrompt) -> list[int]:
    """Return the token ids of a prompt. Raises DataError if they leave no room for an answer."""
    switch = False if model.has_thinking_switch else None
    tokens = model.prompt_tokens([{"role": "user", "content": prompt.prompt}], switch)
    longest = model.weights.n_ctx_train - MOST_TOKENS
    if len(tokens) > longest:
        raise DataError(
            f"the prompt {prompt.id!r} is {len(tokens)} tokens, and with an answer the model's context holds "
            f"{longest}: shorten it"
        )
    return tokens


def _measures(
    prompt: ClosedPrompt, settings: Sequence[SamplerSetting], found: Distribution
) -> Iterator[Coverage]:
    """Yield the row of every setting."""
    n = len(prompt.answers)
    most = float(expected_distinct(np.full(n, 1 / n)))
    distinct = expected_distinct(found.answers)
    for i, setting in enumerate(settings):
        p = found.answers[i]
        likely = np.argsort(-p, kind="stable")[:_SHOWN]
        yield Coverage(
            prompt.id,
            *setting.as_text,
            n,
            found.n_nodes,
            valid=float(found.valid[i]),
            unexplored=max(0.0, float(found.rest[i])),
            distinct=float(distinct[i]),
            coverage=float(distinct[i]) / most,
            top={prompt.names[j][0]: round(float(p[j]), 3) for j in likely if p[j] > 0.0005},
        )
