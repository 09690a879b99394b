"""The walk of the tree of candidates, beside a plain walk of one setting."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.evals.settings import SamplerSetting
from mink_local.generation.model import Model, read_rows
from mink_local.samplers import MinK, Sampler, TopK, TopP
from scripts.lab.coverage.measure import standard_samplers
from scripts.lab.coverage.tree import AnswerSet, Distribution, TokenProbabilities, walk

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
METHODS = [
    sampler
    for sampler in standard_samplers()
    if sampler.name in ("min-k", "min-p", "top-p", "llama-default", "p-less", "greedy", "typical")
]
PROMPT = "Name a day of the week.\nSunday\nName a day.\nmonday.\nName a day of the week.\n"
CELLS = [
    *(SamplerSetting(sampler, t) for sampler in METHODS for t in (0.7, 1.5, math.inf)),
    SamplerSetting(TopK(6), 2.0),
    SamplerSetting(TopK(40), math.inf),
]
REST = 0.02

Tokens = tuple[int, ...]


@dataclass
class KeptRows:
    """Evaluates sequences as `model` does, each once, and keeps its row."""

    model: Model
    kept: dict[Tokens, NDArray[np.float32]] = field(default_factory=dict)

    def __call__(
        self, sequences: Iterable[tuple[Sequence[int], int]]
    ) -> Iterator[tuple[int, NDArray[np.float32]]]:
        wanted = [tuple(tokens) for tokens, _ in sequences]
        missing = [tokens for tokens in wanted if tokens not in self.kept]
        for i, (row,) in read_rows(self.model, ((tokens, 1) for tokens in missing)):
            self.kept[missing[i]] = row
        for i, tokens in enumerate(wanted):
            yield i, self.kept[tokens][None].copy()

    def row(self, tokens: Tokens) -> NDArray[np.float32]:
        ((_, (row,)),) = self([(tokens, 1)])
        return np.asarray(row)


@dataclass(frozen=True)
class Tree:
    """The tree of PROMPT in the embedded model."""

    model: Model
    prompt: list[int]
    rows: KeptRows
    answers: AnswerSet

    def walk(self, cells: Sequence[SamplerSetting], rest: float = REST, nodes: int = 3000) -> Distribution:
        probabilities = TokenProbabilities(cells, self.model.weights.n_vocab)
        return walk(self.prompt, self.answers, probabilities, self.rows, 8, rest, nodes)


@pytest.fixture(scope="module")
def tree() -> Iterator[Tree]:
    with load_model("smollm2-135m", n_ctx=128, n_parallel=8) as model:
        answers = AnswerSet([[day] for day in DAYS], model.weights)
        yield Tree(model, model.prompt_tokens(PROMPT), KeptRows(model), answers)


@pytest.fixture(scope="module")
def found(tree: Tree) -> Distribution:
    return tree.walk(CELLS)


def plain(row: NDArray[np.float32], cell: SamplerSetting) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The candidates of a row and their probabilities, by the definition."""
    ids, logits = cell.sampler.candidates(row, min(cell.temperature, 1e6))
    weights = np.exp((logits.astype(np.float64) - logits[0]) / cell.temperature)
    return ids.astype(np.int64), weights / weights.sum()


def plain_walk(tree: Tree, cell: SamplerSetting, least: float) -> Distribution:
    """A walk of one cell token by token, of every node with a probability of at least `least`."""
    found = Distribution(np.zeros((1, len(DAYS))), np.zeros(1))
    nodes: list[tuple[Tokens, float]] = [((), 1.0)]
    while nodes:
        tokens, mass = nodes.pop()
        goes_on, ended = tree.answers.continuations(tokens)
        ids, p = plain(tree.rows.row((*tree.prompt, *tokens)), cell)
        for token, probability in zip(ids.tolist(), mass * p, strict=True):
            if token in ended:
                found.answers[0, ended[token]] += probability
            elif token not in goes_on:
                found.invalid += probability
            elif probability >= least:
                nodes.append(((*tokens, token), probability))
    return found


def test_valid_invalid_and_rest_are_all_there_is(found: Distribution) -> None:
    assert found.valid + found.invalid + found.rest == pytest.approx(np.ones(len(CELLS)), abs=1e-12)
    assert (found.answers >= 0).all()
    assert (found.invalid >= 0).all()
    assert found.rest.min() > -1e-6
    assert found.rest.max() <= REST
    assert (found.valid > 0.5).sum() > 10  # else the tests below would show nothing
    assert ((found.valid > 0.02) & (found.valid < 0.8)).sum() > 10
    assert ((found.answers > 0.01).sum(axis=1) > 3).sum() > 10


@pytest.mark.parametrize("number", range(0, len(CELLS), 5))
def test_a_plain_walk_of_one_setting_finds_the_same(tree: Tree, found: Distribution, number: int) -> None:
    one = plain_walk(tree, CELLS[number], least=2e-3)
    slack = found.rest[number] + one.rest + 1e-5
    assert np.abs(found.answers[number] - one.answers).max() <= slack
    assert abs(found.invalid[number] - one.invalid) <= slack


def test_more_nodes_only_take_from_what_is_not_explored(tree: Tree, found: Distribution) -> None:
    few = tree.walk(CELLS, nodes=5)
    assert few.n_nodes == 5
    assert few.rest.max() > REST
    assert (few.answers <= found.answers + 1e-6).all()
    assert (few.invalid <= found.invalid + 1e-6).all()
    assert (found.answers.sum(axis=1) <= few.valid + few.rest + 1e-6).all()


def test_every_node_is_evaluated_once_for_all_methods(tree: Tree) -> None:
    cells = CELLS[3:9]
    rows = KeptRows(tree.model)
    together = replace(tree, rows=rows).walk(cells)
    assert together.n_nodes == len(rows.kept)
    assert together.n_nodes < sum(tree.walk([cell]).n_nodes for cell in cells)


@pytest.mark.parametrize("temperature", [1e-3, 0.7, 1.0, 5.0, math.inf])
@pytest.mark.parametrize("sampler", [*METHODS, TopK(6)], ids=str)
def test_probabilities_are_those_of_the_definition(tree: Tree, sampler: Sampler, temperature: float) -> None:
    row, cell = tree.rows.row(tuple(tree.prompt)), SamplerSetting(sampler, temperature)
    others = [SamplerSetting(MinK(), 2.0), cell, SamplerSetting(sampler, 3.0), SamplerSetting(TopP(), 1.0)]
    tokens = np.argsort(-row)[[0, 1, 2, 3, 5, 8, 20, 100, 1000, 10_000, 40_000]].astype(np.int64)
    wanted = np.array([True, True, True, False])
    p = TokenProbabilities(others, row.size)(row, tokens, wanted)
    assert not p[3].any()
    for found, one in zip(p[:3], others[:3], strict=True):
        expected = dict(zip(*(array.tolist() for array in plain(row, one)), strict=True))
        assert found == pytest.approx([expected.get(token, 0.0) for token in tokens.tolist()], rel=1e-4)
