"""A measurement of the answers to closed prompts, in one folder, which continues if it was stopped."""

import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from mink_local.errors import DataError, RunError
from mink_local.evals.coverage import measures, report
from mink_local.evals.coverage.answers import AnswerSet, Vocabulary
from mink_local.evals.coverage.prompts import BUNDLED, ClosedPrompt, read_prompts
from mink_local.evals.coverage.tree import MOST_TOKENS, Distribution, GridCell, TokenProbabilities, walk
from mink_local.evals.report.format import show_file
from mink_local.evals.run.folder import locked
from mink_local.evals.run.manifest import file_sha256, versions
from mink_local.evals.run.records import as_run_error
from mink_local.evals.run.worker import DATE
from mink_local.files import write_atomic
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.models.catalog import resolve
from mink_local.samplers import (
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Mirostat,
    PLess,
    Sampler,
    TopNSigma,
    TopP,
)

METHODS: tuple[Sampler, ...] = (
    MinK(),
    MinK(floor=1.0),
    LlamaDefault(),
    MinP(order="temperature-last"),
    MinP(),
    TopP(order="temperature-last"),
    TopP(),
    TopNSigma(),
    PLess(),
    MinP(p=0.0, order="temperature-last"),
    Greedy(),
)
"""The methods that are measured if none is named; min-p with p = 0 keeps every token."""

ORACLE = (
    1.0,
    0.7,
    0.4,
    0.2,
    0.1,
    0.05,
    0.02,
    0.01,
    0.005,
    0.002,
)  # p of min-p, from which the oracle chooses
_FORMAT = 1
_SHOWN = 3  # answers of a distribution that are kept by name


@dataclass(frozen=True, kw_only=True)
class CoverageOptions:
    """All that a user asks for; the options of the command."""

    model: str
    samplers: Sequence[Sampler]
    temperatures: Sequence[float]
    prompts: Path | None
    limit: int | None
    rest: float
    nodes: int
    out: Path
    parallel: Any
    gpu_layers: Any
    threads: int | None
    quiet: bool


def run_coverage(asked: CoverageOptions) -> None:
    """Measure, write the report to the folder and print its main table.

    Raises MinkError, whose text says what is wrong.
    """
    for sampler in asked.samplers:
        if isinstance(sampler, Mirostat):
            raise DataError(
                "mirostat has no distribution of its own: its candidates depend on what it sampled"
            )
    path = asked.prompts or BUNDLED
    prompts = read_prompts(path)[: asked.limit]
    file = resolve(asked.model)
    cells = _cells([*(asked.samplers or METHODS), Greedy()], asked.temperatures)
    cuts = _cells([MinP(p, "temperature-last") for p in ORACLE], asked.temperatures)
    about: dict[str, Any] = {
        "format": _FORMAT,
        "model": {"name": file.name, "sha256": file_sha256(file.path)},
        "prompts": {"file": path.name, "sha256": file_sha256(path)},
        "rest": asked.rest,
        "nodes": asked.nodes,
        "samples": measures.N_SAMPLES,
        "versions": versions(),
        "methods": _as_json(cells),
        "oracle": _as_json(cuts),
    }
    with locked(asked.out):
        store = _Store(asked.out, about)
        missing = [prompt for prompt in prompts if prompt.id not in store.results]
        if missing:
            with load_model(
                str(file.path), n_ctx=256, n_gpu_layers=asked.gpu_layers, n_threads=asked.threads, date=DATE
            ) as model:
                _measure(model, missing, [*cells, *cuts], len(cells), asked, store)
        results = report.CoverageResults(about, [store.results[prompt.id] for prompt in prompts])
        store.write("coverage.svg", report.picture(results))
        store.write("coverage.md", report.as_markdown(results, "coverage.svg"))
        report.show(Console(), results)
        show_file(Console(), asked.out / "coverage.md")


def _cells(samplers: Sequence[Sampler], temperatures: Sequence[float]) -> list[GridCell]:
    """Return every sampler at every temperature, and greedy once."""
    found = []
    for sampler in dict.fromkeys(samplers):
        at = [1.0] if isinstance(sampler, Greedy) else sorted(set(temperatures))
        found += [GridCell(sampler, temperature) for temperature in at]
    return found


class _Store:
    """The results in `DIR/coverage.json`, which is written anew after every prompt."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self._folder, self._about = folder, about
        self.results: dict[str, dict[str, Any]] = {}
        path = folder / "coverage.json"
        with as_run_error(path, "read"):
            found = path.read_bytes() if path.exists() else b""
        if found:
            self._continue(path, found)

    def _continue(self, path: Path, found: bytes) -> None:
        try:
            content = json.loads(found)
            before, results = content["about"], {row["id"]: row for row in content["results"]}
            different = [name for name in self._about if before.get(name) != self._about[name]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RunError(f"{path} is damaged: name another --out") from None
        if different:
            raise RunError(
                f"{path} was measured with other settings ({', '.join(different)}): give those, or name "
                "another folder with --out"
            )
        self.results = results

    def add(self, row: dict[str, Any]) -> None:
        """Keep the result of a prompt."""
        self.results[row["id"]] = row
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in self.results.values())
        about = json.dumps(self._about, ensure_ascii=False)
        self.write("coverage.json", f'{{"about": {about},\n"results": [\n{rows}\n]}}\n')

    def write(self, name: str, content: str | bytes) -> None:
        """Write a file of the folder whole or not at all. Raises RunError."""
        with as_run_error(self._folder / name):
            write_atomic(self._folder / name, content)


def _measure(
    model: Model,
    prompts: Sequence[ClosedPrompt],
    cells: Sequence[GridCell],
    n_methods: int,
    asked: CoverageOptions,
    store: _Store,
) -> None:
    """Measure prompts one after the other, and keep each result."""
    tokens = {prompt.id: _tokens(model, prompt) for prompt in prompts}
    vocabulary = Vocabulary(model.weights)
    probabilities = TokenProbabilities(cells, model.weights.n_vocab)
    began = time.monotonic()
    with model.rows(max(map(len, tokens.values())) + MOST_TOKENS, asked.parallel) as rows:
        for done, prompt in enumerate(prompts, start=1):
            start = time.monotonic()
            answers = AnswerSet(prompt.answers)
            found = walk(tokens[prompt.id], answers, vocabulary, probabilities, rows, asked.rest, asked.nodes)
            seconds = time.monotonic() - start
            store.add(_row(prompt, found, n_methods, seconds))
            if not asked.quiet:
                left = (time.monotonic() - began) / done * (len(prompts) - done)
                print(
                    f"{done} of {len(prompts)}  {prompt.id}: {found.n_nodes} nodes, at most "
                    f"{100 * found.rest.max():.1f}% unexplored, {seconds:.0f} s; {left / 60:.0f} min left",
                    file=sys.stderr,
                    flush=True,
                )


def _tokens(model: Model, prompt: ClosedPrompt) -> list[int]:
    """Return the token ids of a prompt. Raises DataError if they leave no room for an answer."""
    switch = False if model.has_thinking_switch else None
    tokens = model.tokens([{"role": "user", "content": prompt.text}], switch)
    longest = model.weights.n_ctx_train - MOST_TOKENS
    if len(tokens) > longest:
        raise DataError(
            f"the prompt {prompt.id!r} is {len(tokens)} tokens, and with an answer the model's context holds "
            f"{longest}: shorten it"
        )
    return tokens


def _row(prompt: ClosedPrompt, found: Distribution, n_methods: int, seconds: float) -> dict[str, Any]:
    """Return the measures of one prompt: lists with an item for every cell."""
    likely = np.argsort(-found.answers[:n_methods], axis=1, kind="stable")[:, :_SHOWN]
    return {
        "id": prompt.id,
        "n_answers": len(prompt.answers),
        "n_nodes": found.n_nodes,
        "seconds": round(seconds, 1),
        "valid": _rounded(found.valid),
        "rest": _rounded(found.rest),
        "coverage": _rounded(measures.coverage(found.answers)),
        "evenness": _rounded(measures.evenness(found.answers)),
        "top": [
            {prompt.answers[i][0]: round(p[i], 3) for i in best if p[i] > 0.0005}
            for p, best in zip(found.answers[:n_methods].tolist(), likely.tolist(), strict=True)
        ],
    }


def _rounded(values: measures.Floats) -> list[float]:
    return [round(max(0.0, value), 4) for value in values.tolist()]


def _as_json(cells: Sequence[GridCell]) -> list[list[str | float]]:
    return [
        [str(sampler), "inf" if math.isinf(temperature) else temperature] for sampler, temperature in cells
    ]
