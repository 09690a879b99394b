"""The distribution over the answers to a prompt, computed by walking the tree of candidates.

A node is the beginning of an answer. It is evaluated once: its row of logits yields every sampler's
candidates and their probabilities at every temperature. Tokens that make the answer invalid are not nodes.

An answer ends at an end token, or at the first line break after its first letter or digit. It is valid if
it is one of the accepted names. Case and the shape of quotation marks, apostrophes and dashes do not matter;
accents and a leading "the" are optional. Up to four characters of white space or " ' * ` may surround the
name, and . and ! may follow it.
"""

import codecs
import functools
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.evals.settings import SamplerSetting, cuts
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
_SHAPES = str.maketrans("‘’ʼ′“”„«»‐‑–—−\r", '\'\'\'\'"""""-----\n')
_ARTICLE = "the "


def fold(text: str) -> str:
    """Return a text in lower case and with plain punctuation, character by character."""
    return text.casefold().translate(_SHAPES)


def decoded(data: bytes) -> tuple[str, bytes] | None:
    """Split UTF-8 bytes into folded text and the start of an incomplete character; None if invalid."""
    try:
        text, n_decoded = codecs.utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return None
    return fold(text), data[n_decoded:]


def normalise(name: str) -> str:
    """Return a name in a form in which equivalent names are equal; empty if it is only punctuation."""
    decomposed = unicodedata.normalize("NFD", _bare(name))
    return "".join(c for c in decomposed if unicodedata.category(c) != "Mn")


def _bare(name: str) -> str:
    folded = fold(unicodedata.normalize("NFC", name))
    return folded.strip(_AFTER).removeprefix(_ARTICLE).strip(_AFTER)


@dataclass(frozen=True)
class Open:
    """The beginning of an answer that may still become valid.

    Attributes:
        text: The name so far, folded, with any marks after it; before the name, a space per mark.
        partial: The first bytes of an incomplete character.
    """

    text: str = ""
    partial: bytes = b""


Step = Open | int | None
"""What a text is: the beginning of an answer, a complete one by its index, or neither, whatever follows."""


class AnswerSet:
    """The valid answers to one prompt, each a sequence of its accepted names."""

    def __init__(self, answers: Sequence[Sequence[str]]) -> None:
        self._n = len(answers)
        self._answers = {
            article + name: i
            for i, names in enumerate(answers)
            for one in names
            for name in (_bare(one), normalise(one))
            for article in ("", _ARTICLE)
        }
        self._beginnings = {name[:n] for name in self._answers for n in range(len(name) + 1)}

    def __len__(self) -> int:
        return self._n

    def advance(self, state: Open, data: bytes) -> Step:
        """Return an answer's state after more bytes."""
        text = decoded(state.partial + data)
        return self.step(state.text + text[0], text[1]) if text else None

    def step(self, text: str, partial: bytes = b"") -> Step:
        """Return the state of an answer that starts with a folded text and part of a character."""
        name = text.lstrip(_BEFORE)
        n_before = len(text) - len(name)
        if n_before > _MOST_MARKS:
            return None
        name, line_break, _ = name.partition("\n")
        if line_break or name not in self._beginnings:
            bare = name.rstrip(_AFTER)
            if bare not in self._answers or len(name) - len(bare) > _MOST_MARKS:
                return None
            if line_break:
                return self._answers[bare]
        if partial and partial not in self._beginnings_of_characters:
            return None
        return Open(name or " " * n_before, partial)

    def end(self, state: Open) -> int | None:
        """Return the index of an answer that ends here; None if it is invalid."""
        step = None if state.partial else self.step(state.text + "\n")
        return step if isinstance(step, int) else None

    @functools.cached_property
    def _beginnings_of_characters(self) -> set[bytes]:
        """All proper prefixes, as UTF-8 bytes, of characters that may occur in a valid answer."""
        alphabet = {*"".join(self._answers), *_AFTER}
        found: set[bytes] = set()
        for character in map(chr, (*range(0x80, 0xD800), *range(0xE000, 0x10000))):
            if alphabet.issuperset(fold(character)):
                encoded = character.encode()
                found.update(encoded[:n] for n in range(1, len(encoded)))
        return found


class Vocabulary:
    """A model's tokens by the text they add.

    A token without text makes an answer invalid, unless it is an end token.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._by_start: dict[str, dict[str, list[tuple[int, str, bytes]]]] = {}  # one character, then two
        self._inner: list[int] = []  # tokens that begin in the middle of a character
        for token in range(weights.n_vocab):
            data = weights.piece(token)
            if not data or token in weights.end_tokens:
                continue
            text = decoded(data)
            if text is None:
                self._inner.append(token)
            else:
                starts = self._by_start.setdefault(text[0][:1], {})
                starts.setdefault(text[0][:2], []).append((token, *text))

    def continuations(self, answers: AnswerSet, state: Open) -> tuple[dict[int, Open], dict[int, int]]:
        """Return the tokens that may lead from a state to a valid answer; all others make it invalid.

        Returns:
            The tokens that leave the answer open, each with the state after it, and the tokens that complete
            a valid answer, each with the answer's index.
        """
        steps = dict(self._steps(answers, state))
        goes_on = {token: step for token, step in steps.items() if isinstance(step, Open)}
        ended = {token: step for token, step in steps.items() if isinstance(step, int)}
        whole = answers.end(state)
        if whole is not None:
            ended |= dict.fromkeys(sorted(self._weights.end_tokens), whole)
        return goes_on, ended

    def _steps(self, answers: AnswerSet, state: Open) -> Iterator[tuple[int, Step]]:
        """Yield the tokens that may follow a state, each with the answer's state after it."""
        if state.partial:
            for token in self._inner:
                yield token, answers.advance(state, self._weights.piece(token))
            return
        for first, starts in self._by_start.items():
            if answers.step(state.text + first) is None:
                continue
            for start, tokens in starts.items():
                if answers.step(state.text + start) is None:
                    continue
                for token, folded, partial in tokens:
                    yield token, answers.step(state.text + folded, partial)


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

        Raises:
            GenerationError: The row has a NaN, or no finite logit.
        """
        found = np.zeros((len(self._temperatures), len(tokens)))
        for select, members in self._cuts:
            members = members[wanted[members]]
            if not members.size:
                continue
            k = select(row)
            if k <= 0:
                raise GenerationError("the model gave a NaN among its logits: its file is damaged")
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
    state: Open
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
    vocabulary: Vocabulary,
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

    Raises:
        GenerationError: A row of logits has a NaN, or llama.cpp fails.
    """
    n = len(probabilities)
    found = Distribution(np.zeros((n, len(answers))), np.zeros(n))
    nodes = [_Node((), Open(), np.ones(n))]
    # Many nodes share a state, for example if they differ only in case or in the marks before the name.
    continuations = functools.cache(functools.partial(vocabulary.continuations, answers))
    while nodes and found.n_nodes < most_nodes:
        reach = np.stack([node.reach for node in nodes])
        largest = reach[:, found.rest > most_rest].max(axis=1, initial=0)
        if not largest.any():
            break
        batch = _take(nodes, largest, min(n_parallel, most_nodes - found.n_nodes))
        for i, (row,) in rows(([*prompt, *node.tokens], 1) for node in batch):
            nodes += _expand(batch[i], *continuations(batch[i].state), probabilities, row, found)
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
    goes_on: dict[int, Open],
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
    for (token, state), of_node in zip(goes_on.items(), kept.T, strict=True):
        if of_node.any():
            yield _Node((*node.tokens, token), state, of_node.copy())
