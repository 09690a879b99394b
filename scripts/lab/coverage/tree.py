"""The distribution over the answers to a prompt, computed by walking the tree of candidates.

A node is the beginning of an answer. It is evaluated once: its row of logits yields every sampler's
candidates and their probabilities at every temperature. Tokens that make the answer invalid are not nodes.

An answer ends at an end token, or at the first line break after its first letter or digit. It is valid if
it is one of the accepted names. Case and the shape of quotation marks, apostrophes and dashes do not matter;
accents and a leading "the" are optional. Up to four characters of white space or " ' * ` may surround the
name, and . and ! may follow it.
"""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ConstraintError, DataError
from mink_local.evals.settings import SamplerSetting, cuts
from mink_local.llama.guide import Guide
from mink_local.llama.weights import Weights
from mink_local.samplers import Workspace

MOST_TOKENS = 64  # per answer; longer ones stay unexplored
_NEGLIGIBLE = 1e-8  # nodes with less probability than this stay unexplored
_WORTHWHILE = 0.1  # nodes below this share of a batch's largest probability wait for a later batch

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_BEFORE = " \t\n\"'*`"
_AFTER = _BEFORE + ".!"
_MOST_MARKS = 4  # at either end: code vocabularies have hundreds of whitespace tokens
_ALIKE = {"'": "‘’ʼ′", '"': "“”„«»", "-": "‐‑–—−", "\n": "\r"}
_PLAIN = str.maketrans({other: mark for mark, others in _ALIKE.items() for other in others})
_ARTICLE = "the "


def fold(text: str) -> str:
    """Return a text in lower case and with plain punctuation."""
    return text.casefold().translate(_PLAIN)


def normalise(name: str) -> str:
    """Return a name in a form in which equivalent names are equal; empty if it is only punctuation."""
    decomposed = unicodedata.normalize("NFD", _bare(name))
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _bare(name: str) -> str:
    folded = fold(unicodedata.normalize("NFC", name))
    return folded.strip(_AFTER).removeprefix(_ARTICLE).strip(_AFTER)


class AnswerSet:
    """The valid answers to one prompt, and the tokens of a model that may lead to them.

    Args:
        answers: The accepted names of each answer.
        weights: The model.

    Raises:
        DataError: There are too many names, some thousands.
    """

    def __init__(self, answers: Sequence[Sequence[str]], weights: Weights) -> None:
        self._n, self._weights = len(answers), weights
        names = {
            name: i for i, one in enumerate(answers) for name in (*map(_bare, one), *map(normalise, one))
        }
        self._answers = {article + name: i for name, i in names.items() for article in ("", _ARTICLE)}
        before, after = (f"{_one_of(marks)}{{0,{_MOST_MARKS}}}" for marks in (_BEFORE, _AFTER))
        name = f"({_ARTICLE})?({'|'.join(map(_in_any_shape, names))})"
        self._grammar = rf"start: /(?i:{before}{name}{after})([\r\n](?s:.*))?/"
        try:
            Guide("grammar", self._grammar, weights)
        except ConstraintError as error:
            raise DataError(f"the {self._n:,} answers to a prompt are too many: {error}") from None

    def __len__(self) -> int:
        return self._n

    def index(self, text: bytes) -> int | None:
        """Return the index of the answer that a line break ends in a text; None if there is none."""
        name, line_break, _ = fold(text.decode(errors="ignore")).lstrip(_BEFORE).partition("\n")
        return self._answers.get(name.rstrip(_AFTER)) if line_break else None

    def continuations(self, tokens: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """Return the tokens that may follow the beginning of an answer; all others make it invalid.

        Returns:
            The tokens that leave the answer open, and those that complete a valid one, with its index.
        """
        guide = Guide("grammar", self._grammar, self._weights)
        guide.begin(tokens)
        bits = np.unpackbits(guide.mask().view(np.uint8), count=self._weights.n_vocab, bitorder="little")
        text = b"".join(map(self._weights.piece, tokens))
        ends = dict.fromkeys(self._weights.end_tokens, b"\n")
        found = {
            token: self.index(text + ends.get(token, self._weights.piece(token)))
            for token in np.flatnonzero(bits).tolist()
        }
        ended = {token: i for token, i in found.items() if i is not None}
        return [token for token in found if token not in ended], ended


def _in_any_shape(text: str) -> str:
    """Return a regular expression of a folded text."""
    return "".join(c if c.isalnum() else _one_of(c) for c in text)


def _one_of(marks: str) -> str:
    shapes = marks + "".join(_ALIKE.get(mark, "") for mark in marks)
    return "".join(["[", *map(r"\x{{{:x}}}".format, map(ord, shapes)), "]"])


class TokenProbabilities:
    """The probabilities with which each setting samples tokens; settings with the same cut share it."""

    def __init__(self, settings: Sequence[SamplerSetting], n_vocab: int) -> None:
        self._workspace = Workspace(n_vocab)
        self._every = np.arange(n_vocab)
        self._temperatures = np.array([setting.temperature for setting in settings])
        self._cuts = [
            (sampler.selector(seen, self._workspace), np.array(members))
            for sampler, seen, members in cuts(settings)
        ]

    def __len__(self) -> int:
        return len(self._temperatures)

    def __call__(self, row: NDArray[np.float32], tokens: Ids, wanted: NDArray[np.bool_]) -> Floats:
        """Return the probabilities, (settings, tokens), of tokens in a row of raw logits, float32 (V,).

        Args:
            wanted: The settings to compute, bool (settings,); the others' probabilities are 0.
        """
        found = np.zeros((len(self._temperatures), len(tokens)))
        for select, members in self._cuts:
            members = members[wanted[members]]
            if not members.size:
                continue
            k = select(row)
            ids = self._every if k == row.size else self._workspace.ids[:k]
            kept = np.isin(tokens, ids)
            largest = row[ids].max()
            logits, below = row[ids] - largest, row[tokens[kept]] - largest
            for i in members:
                t = np.float32(self._temperatures[i])
                with np.errstate(over="ignore", invalid="ignore"):  # at temperatures near 0 and at ∞
                    total = np.exp(logits / t).sum(dtype=np.float64)
                    found[i, kept] = np.exp(below / t, dtype=np.float64) / total
        return found


@dataclass
class _Node:
    """The beginning of an answer, and the probability, (settings,), that it is sampled."""

    tokens: tuple[int, ...]
    reach: Floats


@dataclass
class Distribution:
    """The distribution over the answers to one prompt with every setting.

    Attributes:
        answers: Probability of each valid answer, (settings, answers).
        invalid: Total probability of invalid answers, (settings,).
        n_nodes: Number of evaluated nodes.
    """

    answers: Floats
    invalid: Floats
    n_nodes: int = 0

    @property
    def valid(self) -> Floats:
        """Total probability of valid answers, (settings,)."""
        return np.asarray(self.answers.sum(axis=1))

    @property
    def rest(self) -> Floats:
        """Probability of answers that are neither complete nor invalid yet, (settings,)."""
        return 1 - self.valid - self.invalid


def walk(
    prompt: Sequence[int],
    answers: AnswerSet,
    probabilities: TokenProbabilities,
    rows: Callable[[Iterable[tuple[Sequence[int], int]]], Iterable[tuple[int, NDArray[np.float32]]]],
    n_parallel: int,
    most_rest: float,
    most_nodes: int,
) -> Distribution:
    """Return the distribution over the answers to a prompt.

    Nodes are evaluated in order of their largest probability under any setting, until every setting has at
    most `most_rest` probability unexplored, or `most_nodes` have been evaluated.

    Args:
        prompt: Token ids of the prompt.
        rows: `read_rows` of a model with room for the prompt and `MOST_TOKENS` tokens of an answer.
        n_parallel: Number of sequences to give to `rows` at a time.
    """
    n = len(probabilities)
    found = Distribution(np.zeros((n, len(answers))), np.zeros(n))
    nodes = [_Node((), np.ones(n))]
    while nodes and found.n_nodes < most_nodes:
        reach = np.stack([node.reach for node in nodes])
        largest = reach[:, found.rest > most_rest].max(axis=1, initial=0)
        if not largest.any():
            break
        batch = _take(nodes, largest, min(n_parallel, most_nodes - found.n_nodes))
        for i, (row,) in rows(([*prompt, *node.tokens], 1) for node in batch):
            nodes += _expand(batch[i], *answers.continuations(batch[i].tokens), probabilities, row, found)
        found.n_nodes += len(batch)
    return found


def _take(nodes: list[_Node], largest: Floats, n: int) -> list[_Node]:
    """Remove and return up to n nodes with the largest probability, except those with much less."""
    best = np.argsort(-largest, kind="stable")[:n]
    best = best[largest[best] >= largest[best[0]] * _WORTHWHILE]
    taken = [nodes.pop(i) for i in sorted(best, reverse=True)]
    return sorted(taken, key=lambda node: node.tokens)  # so that neighbours share a prefix


def _expand(
    node: _Node,
    goes_on: list[int],
    ended: dict[int, int],
    probabilities: TokenProbabilities,
    row: NDArray[np.float32],
    found: Distribution,
) -> Iterator[_Node]:
    """Add the answers that end after a node to `found`, and yield the nodes below it."""
    ids = np.array([*ended, *goes_on], np.int64)
    mass = node.reach[:, None] * probabilities(row, ids, node.reach > 0)
    found.invalid += np.maximum(0, node.reach - mass.sum(axis=1))
    of_answers, reach = np.split(mass, [len(ended)], axis=1)
    np.add.at(found.answers.T, list(ended.values()), of_answers.T)
    if len(node.tokens) + 1 == MOST_TOKENS:
        return
    kept = np.where(reach < _NEGLIGIBLE, 0, reach)
    for token, of_node in zip(goes_on, kept.T, strict=True):
        if of_node.any():
            yield _Node((*node.tokens, token), of_node.copy())
