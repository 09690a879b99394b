"""Several responses to a question: how many attempts or votes find its answer, and how diverse the texts are.

Sources: M. Chen et al. (2021), arXiv:2107.03374, for pass@k without bias; X. Wang et al. (2023),
arXiv:2203.11171, for the majority; Y. Zhu et al. (2018), arXiv:1802.01886, for self-BLEU.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from math import comb
from statistics import fmean

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.helpers import extract_all_word_ngrams

from mink_local.evals.tasks.scoring import normalized

WORDS = 50  # of a text that count for its diversity, from its beginning
SUBSETS = 500  # of the responses to a question whose majority is counted
_RIGHT, _NONE = 0, -1  # votes


def pass_at(n: int, n_right: int, k: int) -> float:
    """Return the chance that at least one of k of n responses is right."""
    return 1 - comb(n - n_right, k) / comb(n, k)


def votes(answers: Sequence[str | None], rights: Sequence[bool]) -> list[int]:
    """Return the answers as numbers: 0 if right, -1 if there is none, and another one for each wrong answer.

    Wrong answers are the same if they are the same number or, without spaces, case and LaTeX for looks, the
    same text: 18, 18.0 and $18$.
    """
    numbers: dict[Decimal | str, int] = {}
    found = []
    for answer, right in zip(answers, rights, strict=True):
        if right:
            found.append(_RIGHT)
        elif answer is None:
            found.append(_NONE)
        else:
            found.append(numbers.setdefault(_form(answer), len(numbers) + 1))
    return found


def _form(answer: str) -> Decimal | str:
    text = normalized(answer)
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return number if number.is_finite() else text


def majority_at(votes: Sequence[int], k: int) -> float:
    """Return the chance that the answer given most often by k of the responses is right.

    Answers that are given equally often share the chance. No answer is no vote, and without a vote the
    majority is wrong. The mean over `SUBSETS` random choices of k, the same ones each time.
    """
    n_subsets = SUBSETS if 1 < k < len(votes) else 1
    if k == 1:
        return fmean(vote == _RIGHT for vote in votes)
    chances = np.random.default_rng(0).random((n_subsets, len(votes)))
    chosen = np.array(votes)[chances.argsort(axis=1)[:, :k]]
    counts = (chosen[:, :, None] == np.arange(max(votes) + 2)).sum(axis=1)
    most = counts.max(axis=1, keepdims=True)
    is_right = (counts[:, _RIGHT] == most[:, 0]) & (most[:, 0] > 0)
    return float((is_right / (counts == most).sum(axis=1)).mean())


def attempt_sizes(n: int) -> list[int]:
    """Return 1, 2, 4, … and n."""
    return sorted({*(2**i for i in range(n.bit_length())), n})


def self_bleu(texts: Sequence[str]) -> float:
    """Return the mean of each text's BLEU-4 against the others, 0 to 100: sacrebleu's, of a sentence.

    Of each text the first `WORDS` words count, so that responses of any greater length are alike. The n-grams
    of a text are counted once for all sentences.
    """
    counted = [extract_all_word_ngrams(" ".join(text.split()[:WORDS]), 1, 4) for text in texts]
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
