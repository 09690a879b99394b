"""Several responses to a question: how many attempts or votes find its answer, and how diverse the texts are.

Sources: M. Chen et al. (2021), arXiv:2107.03374, for pass@k without bias; X. Wang et al. (2023),
arXiv:2203.11171, for the majority; S. Liu et al. (2022), arXiv:2202.13587, for EAD, with the mean over
n = 1 to 5 of R. Kirk et al. (2024), arXiv:2310.06452; Y. Zhu et al. (2018), arXiv:1802.01886, for self-BLEU.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from itertools import chain
from math import comb
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.helpers import extract_all_word_ngrams

from mink_local.evals.report.stats import Share, share
from mink_local.evals.tasks.base import Verdict
from mink_local.evals.tasks.math500 import normalized

MOST = 256  # responses to a question that vote; more take long
WORDS = 50  # of a text that count for its diversity, from its beginning
VOCABULARY = 50_000  # different words that EAD takes a text to be made of


@dataclass(frozen=True)
class Votes:
    """Counts of the responses to a question that are right, give each wrong answer, and give none."""

    right: int
    wrong: tuple[int, ...]
    none: int

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> "Votes":
        """Return the votes of responses with these verdicts.

        All correct answers are one. Wrong ones are the same if they are the same number or, without spaces,
        case and LaTeX for looks, the same text: 18, 18.0 and $18$.
        """
        wrong = Counter(_form(v.answer) for v in verdicts if not v.correct and v.answer is not None)
        none = sum(not v.correct and v.answer is None for v in verdicts)
        right = sum(v.correct for v in verdicts)
        return cls(right, tuple(sorted(wrong.values())), none)

    @property
    def n(self) -> int:
        return self.right + sum(self.wrong) + self.none

    @property
    def n_answers(self) -> int:
        """The number of different answers."""
        return bool(self.right) + len(self.wrong)

    def passes(self, k: int) -> float:
        """Return the chance that at least one of k of the responses is right."""
        return 1 - comb(self.n - self.right, k) / comb(self.n, k)

    def majority(self, k: int) -> float:
        """Return the chance that the answer given most often by k of the responses is right.

        Answers that are given equally often share the chance. No answer is no vote, and without a vote
        the majority is wrong.
        """
        return float(_majorities(self)[k])


def _form(answer: str) -> Decimal | str:
    text = normalized(answer)
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


@lru_cache(maxsize=10_000)
def _majorities(votes: Votes) -> NDArray[np.float64]:
    """Return the chance of `majority` for k = 0 … n, exact: over all subsets of k, float64 (n + 1,).

    If the right answer has `most` votes, no other answer may have more, and those that have as many tie.
    `ways[i, j]` counts the ways to choose i responses that are not right such that j answers tie.
    """
    n = votes.n
    chances = np.zeros(n + 1)
    for most in range(1, votes.right + 1):
        rivals = [size for size in votes.wrong if size >= most]
        free = n - votes.right - sum(rivals)  # responses whose answers cannot have that many votes
        ways = np.zeros((n + 1, len(rivals) + 1))
        ways[: free + 1, 0] = [comb(free, i) for i in range(free + 1)]
        for size in rivals:
            with_rival = np.zeros_like(ways)
            for i in range(most):
                with_rival[i:] += comb(size, i) * ways[: n + 1 - i]
            with_rival[most:, 1:] += comb(size, most) * ways[: n + 1 - most, :-1]
            ways = with_rival
        shared = ways @ (1 / np.arange(1, len(rivals) + 2))
        chances[most:] += comb(votes.right, most) * shared[: n + 1 - most]
    return chances / [float(comb(n, k)) for k in range(n + 1)]


@dataclass(frozen=True)
class Attempts:
    """Accuracy of k responses to a question: any of them is right, or their majority is."""

    k: int
    passed: Share
    majority: Share


def attempts(questions: Sequence[Votes]) -> list[Attempts]:
    """Return the accuracies with k = 1, 2, 4, … and all n responses, and every question must have n."""
    n = questions[0].n
    sizes = sorted({*(2**i for i in range(n.bit_length())), n})
    return [
        Attempts(
            k, share([votes.passes(k) for votes in questions]), share([v.majority(k) for v in questions])
        )
        for k in sizes
    ]


@dataclass(frozen=True)
class Diversity:
    """Measures of how different the responses to a question are, as means over questions.

    Except for `distinct`, only the first `WORDS` words of a response count, which white space separates, so
    that responses of any greater length are alike.

    Attributes:
        ead: The share of n-grams of words that are distinct, in relation to what is expected of as many
            samples from `VOCABULARY` words that are all as probable; mean over n = 1 to 5.
        self_bleu: BLEU-4 of a response against the others, 0 to 100 if all are the same; mean over responses.
        words: The mean number of words that count.
        distinct: The share of responses that are distinct: 1 / n if all are the same.
    """

    ead: float
    self_bleu: float
    words: float
    distinct: float


def diversity(questions: Sequence[Sequence[str]]) -> Diversity | None:
    """Return the diversity of several responses to each question; None if there are no words."""
    words = [[text.split()[:WORDS] for text in texts] for texts in questions]
    if not any(chain.from_iterable(words)):
        return None
    return Diversity(
        fmean(map(ead, words)),
        fmean(self_bleu([" ".join(text) for text in texts]) for texts in words),
        fmean(map(len, chain.from_iterable(words))),
        fmean(len(set(texts)) / len(texts) for texts in questions),
    )


def ead(texts: Sequence[Sequence[str]]) -> float:
    """Return the expectation-adjusted distinct n-grams of texts together, mean over n; 0 without words."""
    shares = []
    for n in range(1, 6):
        found = [tuple(text[i : i + n]) for text in texts for i in range(len(text) - n + 1)]
        expected = VOCABULARY * (1 - (1 - 1 / VOCABULARY) ** len(found))
        shares += [len(set(found)) / expected] if found else []
    return fmean(shares) if shares else 0.0


def self_bleu(texts: Sequence[str]) -> float:
    """Return the mean of each text's BLEU-4 against the others: sacrebleu's, of a sentence.

    The n-grams of a text are counted once for all sentences.
    """
    counted = [extract_all_word_ngrams(text, 1, 4) for text in texts]
    counts = defaultdict(list)
    for ngram, count in chain.from_iterable(ngrams.items() for ngrams, _ in counted):
        counts[ngram].append(count)
    highest = {ngram: sorted((0, *given))[-2:] for ngram, given in counts.items()}
    lengths = Counter(length for _, length in counted)
    scores = []
    for ngrams, length in counted:
        correct, total = [0] * 4, [0] * 4
        for ngram, count in ngrams.items():
            second, first = highest[ngram]
            correct[len(ngram) - 1] += min(count, second if count == first else first)
            total[len(ngram) - 1] += count
        others = lengths - Counter([length])
        nearest = min(others, key=lambda other: (abs(other - length), other))
        bleu = BLEU.compute_bleu(correct, total, length, nearest, smooth_method="exp", effective_order=True)
        scores.append(bleu.score)
    return fmean(scores)
