"""The walk of the tree of candidates, beside sampling and beside a walk that shares nothing."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.coverage.answers import AnswerSet, Vocabulary
from mink_local.evals.coverage.run import METHODS
from mink_local.evals.coverage.tree import Distribution, GridCell, TokenProbabilities, walk
from mink_local.generation.model import Model
from mink_local.generation.rows import Row, RowReader
from mink_local.samplers import Greedy, LlamaDefault, MinK, MinP, Sampler, TopK, TopP

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
PROMPT = "Name a day of the week.\nSunday\nName a day.\nmonday.\nName a day of the week.\n"
CELLS = [
    *(GridCell(sampler, t) for sampler in METHODS for t in (0.7, 1.5, math.inf)),
    GridCell(TopK(6), 2.0),
    GridCell(TopK(40), math.inf),
]
REST = 0.02

Tokens = tuple[int, ...]


@dataclass
class KeptRows:
    """Evaluates sequences as `rows` does, each once, and keeps its row."""

    rows: RowReader
    kept: dict[Tokens, NDArray[np.float32]] = field(default_factory=dict)
    n_evaluated: int = 0

    @property
    def n_parallel(self) -> int:
        return self.rows.n_parallel

    def __call__(self, sequences: Iterable[tuple[Sequence[int], int]]) -> Iterator[Row]:
        wanted = [tuple(tokens) for tokens, _ in sequences]
        missing = [tokens for tokens in wanted if tokens not in self.kept]
        self.n_evaluated += len(missing)
        for row in self.rows((tokens, 1) for tokens in missing):
            self.kept[missing[row.sequence]] = row.logits.copy()
        for i, tokens in enumerate(wanted):
            yield Row(i, len(tokens), self.kept[tokens].copy())

    def row(self, tokens: Tokens) -> NDArray[np.float32]:
        return next(self([(tokens, 1)])).logits


@dataclass(frozen=True)
class Tree:
    """The tree of PROMPT in the embedded model."""

    model: Model
    prompt: list[int]
    rows: KeptRows
    vocabulary: Vocabulary

    def walk(self, cells: Sequence[GridCell], rest: float = REST, nodes: int = 3000) -> Distribution:
        probabilities = TokenProbabilities(cells, self.model.weights.n_vocab)
        days = AnswerSet([[day] for day in DAYS])
        rows: RowReader = self.rows  # type: ignore[assignment]
        return walk(self.prompt, days, self.vocabulary, probabilities, rows, rest, nodes)


@pytest.fixture(scope="module")
def tree(smollm2: Model) -> Iterator[Tree]:
    with smollm2.rows(128, 8) as rows:
        yield Tree(smollm2, smollm2.tokens(PROMPT), KeptRows(rows), Vocabulary(smollm2.weights))


@pytest.fixture(scope="module")
def found(tree: Tree) -> Distribution:
    return tree.walk(CELLS)


def plain(row: NDArray[np.float32], cell: GridCell) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The candidates of a row and their probabilities, by the definition."""
    ids, logits = cell.sampler.candidates(row, min(cell.temperature, 1e6))
    weights = np.exp((logits.astype(np.float64) - logits[0]) / cell.temperature)
    return ids.astype(np.int64), weights / weights.sum()


INVALID, OPEN = -1, -2


def classify(text: str, ended: bool) -> int:
    """Return the day that the beginning of an answer is, or INVALID, or OPEN if it can become a day."""
    start = text.lstrip(" \n\t\"'*`")
    if len(text) - len(start) > 4:
        return INVALID
    start, line_break, _ = start.replace("’", "'").replace("“", '"').replace("”", '"').lower().partition("\n")
    if not start:
        return INVALID if ended else OPEN
    start = start.removeprefix("the ")
    name = start.rstrip(" \t\"'*`.!")
    day = next((i for i, day in enumerate(DAYS) if day.lower() == name and len(start) - len(name) <= 4), None)
    if ended or line_break:
        return INVALID if day is None else day
    begins = any(day.lower().startswith(start) for day in DAYS) or "the ".startswith(start)
    return OPEN if begins or day is not None else INVALID


class Classes:
    """What every token after the beginning of an answer leads to: a day, INVALID or OPEN, int64 (V,)."""

    def __init__(self, model: Model) -> None:
        self._weights = model.weights
        self._known: dict[bytes, NDArray[np.int64]] = {}
        possible = set(b"".join(map(str.encode, DAYS)) + b"MONDAYTUESWHRFI mondaytueswhrfi\t\"'*`.!")
        pieces = ((token, model.weights.piece(token)) for token in range(model.weights.n_vocab))
        self._possible = [
            (token, piece)
            for token, piece in pieces
            if piece and possible.issuperset(piece.partition(b"\n")[0])
        ]  # no day has other characters

    def __call__(self, tokens: Tokens) -> NDArray[np.int64]:
        before = b"".join(map(self._weights.piece, tokens))
        if before not in self._known:
            classes = np.full(self._weights.n_vocab, INVALID)
            for token, piece in self._possible:
                classes[token] = classify((before + piece.replace(b"\r", b"\n")).decode(), ended=False)
            for token in self._weights.end_tokens:
                classes[token] = classify(before.decode(), ended=True)
            self._known[before] = classes
        return self._known[before]


@dataclass
class Plain:
    """A walk of one cell from the root down, which shares nothing and keeps every node."""

    tree: Tree
    cell: GridCell
    classes: Classes
    least: float
    days: NDArray[np.float64] = field(default_factory=lambda: np.zeros(len(DAYS)))
    invalid: float = 0.0
    rest: float = 0.0

    def walk(self, tokens: Tokens = (), mass: float = 1.0) -> "Plain":
        classes = self.classes(tokens)
        ids, p = plain(self.tree.rows.row((*self.tree.prompt, *tokens)), self.cell)
        for token, probability in zip(ids, mass * p, strict=True):
            kind = classes[token]
            if kind == INVALID:
                self.invalid += probability
            elif kind >= 0:
                self.days[kind] += probability
            elif probability < self.least:
                self.rest += probability
            else:
                self.walk((*tokens, int(token)), probability)
        return self


@pytest.fixture(scope="module")
def classes(smollm2: Model) -> Classes:
    return Classes(smollm2)


def test_the_model_gives_valid_answers_and_invalid_ones(found: Distribution) -> None:
    """Else the tests below would show nothing."""
    assert (found.valid > 0.5).sum() > 10
    assert ((found.valid > 0.02) & (found.valid < 0.8)).sum() > 10
    assert ((found.answers > 0.01).sum(axis=1) > 3).sum() > 10


def test_valid_invalid_and_rest_are_all_there_is(found: Distribution) -> None:
    assert found.valid + found.invalid + found.rest == pytest.approx(np.ones(len(CELLS)), abs=1e-12)
    assert (found.answers >= 0).all()
    assert (found.invalid >= 0).all()
    assert found.rest.min() > -1e-6
    assert found.rest.max() <= REST


@pytest.mark.slow
@pytest.mark.parametrize("number", range(0, len(CELLS), 5))
def test_a_walk_that_shares_nothing_finds_the_same(
    tree: Tree, found: Distribution, classes: Classes, number: int
) -> None:
    one = Plain(tree, CELLS[number], classes, least=2e-3).walk()
    assert one.days.sum() + one.invalid + one.rest == pytest.approx(1)
    slack = found.rest[number] + one.rest + 1e-5
    assert np.abs(found.answers[number] - one.days).max() <= slack
    assert abs(found.invalid[number] - one.invalid) <= slack


@pytest.mark.parametrize(
    "cell",
    [
        GridCell(MinP(order="temperature-last"), math.inf),
        pytest.param(GridCell(LlamaDefault(), 1.5), marks=pytest.mark.slow),
        pytest.param(GridCell(TopP(), 0.7), marks=pytest.mark.slow),
        pytest.param(GridCell(MinP(p=0.0, order="temperature-last"), 0.7), marks=pytest.mark.slow),
    ],
    ids=lambda cell: f"{cell.sampler}-{cell.temperature}",
)
def test_200_000_samples_are_distributed_so(
    tree: Tree, found: Distribution, classes: Classes, cell: GridCell
) -> None:
    """Sampled from the same rows; tokens that several samples share are sampled together."""
    random = np.random.default_rng(5)
    n = 200_000
    counts = np.zeros(len(DAYS) + 1)  # the last: invalid
    groups: list[tuple[Tokens, int]] = [((), n)]
    while groups:
        tokens, size = groups.pop()
        ids, p = plain(tree.rows.row((*tree.prompt, *tokens)), cell)
        sampled = random.multinomial(size, p)
        for token, count in zip(ids[sampled > 0], sampled[sampled > 0], strict=True):
            kind = classes(tokens)[token]
            if kind == OPEN:
                groups.append(((*tokens, int(token)), int(count)))
            else:
                counts[kind] += count
    number = CELLS.index(cell)
    expected = np.append(found.answers[number], found.invalid[number])
    error = np.abs(counts / n - expected)
    assert (error <= found.rest[number] + 4.5 * np.sqrt(expected * (1 - expected) / n) + 1e-5).all()
    assert counts[:-1].sum() > 1000


def test_more_nodes_only_take_from_what_is_not_explored(tree: Tree, found: Distribution) -> None:
    few = tree.walk(CELLS, nodes=5)
    assert few.n_nodes == 5
    assert few.rest.max() > REST
    assert (few.answers <= found.answers + 1e-6).all()
    assert (few.invalid <= found.invalid + 1e-6).all()
    assert (found.answers.sum(axis=1) <= few.valid + few.rest + 1e-6).all()


def test_every_node_is_evaluated_once_for_all_methods(tree: Tree) -> None:
    cells = CELLS[3:9]
    rows = KeptRows(tree.rows.rows)
    together = replace(tree, rows=rows).walk(cells)
    assert together.n_nodes == rows.n_evaluated
    assert together.n_nodes < sum(tree.walk([cell]).n_nodes for cell in cells)


@pytest.mark.parametrize("temperature", [1e-3, 0.7, 1.0, 5.0, math.inf])
@pytest.mark.parametrize("sampler", [*METHODS, TopK(6)], ids=str)
def test_probabilities_are_those_of_the_definition(tree: Tree, sampler: Sampler, temperature: float) -> None:
    row, cell = tree.rows.row(tuple(tree.prompt)), GridCell(sampler, temperature)
    others = [GridCell(MinK(), 2.0), cell, GridCell(sampler, 3.0), GridCell(TopP(), 1.0)]
    tokens = np.argsort(-row)[[0, 1, 2, 3, 5, 8, 20, 100, 1000, 10_000, 40_000]].astype(np.int64)
    wanted = np.array([True, True, True, False])
    p = TokenProbabilities(others, row.size)(row, tokens, wanted)
    assert not p[3].any()
    for found, one in zip(p[:3], others[:3], strict=True):
        expected = dict(zip(*(array.tolist() for array in plain(row, one)), strict=True))
        assert found == pytest.approx([expected.get(token, 0.0) for token in tokens.tolist()], rel=1e-4)


def test_a_damaged_model_is_named(tree: Tree) -> None:
    row = np.full(tree.model.weights.n_vocab, np.nan, np.float32)
    with pytest.raises(GenerationError, match="a NaN among its logits"):
        TokenProbabilities([GridCell(Greedy(), 1.0)], row.size)(row, np.array([3]), np.array([True]))
