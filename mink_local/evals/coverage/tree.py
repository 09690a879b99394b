"""The distribution over the answers to a prompt, computed by walking the tree of candidates.

A node is the beginning of an answer, and is evaluated once: its row of logits gives the candidates of every
method and their probabilities at every temperature. Tokens after which the answer is invalid are no nodes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.coverage.answers import AnswerSet, Open, Vocabulary
from mink_local.evals.settings import SamplerSetting, cuts
from mink_local.generation.rows import RowReader
from mink_local.samplers import Selector, Workspace

MOST_TOKENS = 64  # of an answer; what is longer stays unexplored
_NEGLIGIBLE = 1e-8  # mass of a node with a setting: it stays unexplored
_WORTHWHILE = 0.1  # of the largest mass: with less a node is not evaluated beside the one that has it

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class TokenProbabilities:
    """The probabilities with which every setting samples tokens; settings with the same cut share it."""

    def __init__(self, settings: Sequence[SamplerSetting], n_vocab: int) -> None:
        self._workspace = Workspace(n_vocab)
        self._is_kept = np.zeros(n_vocab, bool)
        self._temperatures = np.array([setting.temperature for setting in settings])
        self._cuts: list[tuple[Selector, Ids]] = [
            (sampler.selector(seen, self._workspace), np.array(members))
            for sampler, seen, members in cuts(settings)
        ]

    def __len__(self) -> int:
        return len(self._temperatures)

    def __call__(self, row: NDArray[np.float32], tokens: Ids, wanted: NDArray[np.bool_]) -> Floats:
        """Return the probabilities, (settings, tokens), of tokens in a row of raw logits, float32 (V,).

        Args:
            wanted: For which settings, bool (settings,); the others' probabilities are 0.

        Raises:
            GenerationError: The row has a NaN, or no finite logit.
        """
        found = np.zeros((len(self._temperatures), len(tokens)))
        below = row[tokens] - row.max()
        for select, members in self._cuts:
            members = members[wanted[members]]
            if not members.size:
                continue
            k = select(row)
            if k <= 0:
                raise GenerationError("the model gave a NaN among its logits: its file is damaged")
            kept, logits = self._kept(row, tokens, k)
            for i in members:
                t = np.float32(self._temperatures[i])
                with np.errstate(over="ignore", invalid="ignore"):  # at temperatures near 0 and at ∞
                    total = np.exp(logits / t).sum(dtype=np.float64)
                    found[i, kept] = np.exp(below[kept] / t, dtype=np.float64) / total
        return found

    def _kept(
        self, row: NDArray[np.float32], tokens: Ids, k: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Return which of the tokens are among the k candidates in the workspace, and the candidates' logits.

        The logits are relative to the largest.
        """
        if k == row.size:
            return np.ones(len(tokens), bool), row - row.max()
        ids = self._workspace.ids[:k]
        self._is_kept[ids] = True
        kept = self._is_kept[tokens]
        self._is_kept[ids] = False
        logits = row[ids]
        return kept, logits - logits.max()


@dataclass
class _Node:
    """The beginning of an answer, and the probability, (settings,), that it is sampled."""

    tokens: tuple[int, ...]
    state: Open
    reach: Floats


@dataclass
class Distribution:
    """The distribution over the answers to one prompt with every setting.

    Attributes:
        answers: Probability of each valid answer, (settings, answers).
        invalid: Probability of the invalid answers, (settings,).
        n_nodes: Nodes that were evaluated.
    """

    answers: Floats
    invalid: Floats
    n_nodes: int = 0

    @property
    def valid(self) -> Floats:
        """Probability of the valid answers together, (settings,)."""
        total: Floats = self.answers.sum(axis=1)
        return total

    @property
    def rest(self) -> Floats:
        """Mass that is not explored, (settings,): answers that were neither complete nor invalid yet."""
        rest: Floats = 1 - self.valid - self.invalid
        return rest


def walk(
    prompt: Sequence[int],
    answers: AnswerSet,
    vocabulary: Vocabulary,
    probabilities: TokenProbabilities,
    rows: RowReader,
    most_rest: float,
    most_nodes: int,
) -> Distribution:
    """Return the distribution over the answers to a prompt.

    The nodes with the largest mass with any setting are evaluated first, until no setting has more than
    `most_rest` of unexplored mass, or `most_nodes` are evaluated.

    Args:
        prompt: Token ids.
        rows: Evaluates the prompt with up to `MOST_TOKENS` tokens of an answer.

    Raises:
        GenerationError: A row of logits has a NaN, or llama.cpp fails.
    """
    n = len(probabilities)
    found = Distribution(np.zeros((n, len(answers))), np.zeros(n))
    nodes = [_Node((), Open(), np.ones(n))]
    known: dict[Open, tuple[dict[int, Open], dict[int, int]]] = {}
    while nodes and found.n_nodes < most_nodes:
        reach = np.stack([node.reach for node in nodes])
        largest = reach[:, found.rest > most_rest].max(axis=1, initial=0)
        if not largest.any():
            break
        batch = _take(nodes, largest, min(rows.n_parallel, most_nodes - found.n_nodes))
        for row in rows(([*prompt, *node.tokens], 1) for node in batch):
            node = batch[row.sequence]
            if node.state not in known:
                known[node.state] = vocabulary.continuations(answers, node.state)
            nodes += _expand(node, *known[node.state], probabilities, row.logits, found)
        found.n_nodes += len(batch)
    return found


def _take(nodes: list[_Node], largest: Floats, n: int) -> list[_Node]:
    """Remove up to n of the nodes with the largest mass, as far as it is worthwhile."""
    best = np.argsort(-largest, kind="stable")[:n]
    best = best[largest[best] >= largest[best[0]] * _WORTHWHILE]
    taken = [nodes.pop(i) for i in sorted(best, reverse=True)]
    return sorted(taken, key=lambda node: node.tokens)  # so that neighbours share a prefix


def _expand(
    node: _Node,
    goes_on: dict[int, Open],
    ended: dict[int, int],
    probabilities: TokenProbabilities,
    row: NDArray[np.float32],
    found: Distribution,
) -> Iterator[_Node]:
    """Add the answers that end after a node to what is found, and yield the nodes after it."""
    ids = np.array([*ended, *goes_on], np.int64)
    mass = node.reach[:, None] * probabilities(row, ids, node.reach > 0)
    found.invalid += np.maximum(0, node.reach - mass.sum(axis=1))
    of_answers, reach = np.split(mass, [len(ended)], axis=1)
    np.add.at(found.answers.T, list(ended.values()), of_answers.T)
    if len(node.tokens) + 1 == MOST_TOKENS:
        return
    kept = np.where(reach < _NEGLIGIBLE, 0, reach)
    for (token, state), of_node in zip(goes_on.items(), kept.T, strict=True):
        if of_node.any():
            yield _Node((*node.tokens, token), state, of_node.copy())
