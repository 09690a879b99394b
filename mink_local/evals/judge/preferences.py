"""Pairs of responses to one question, and how often one method is preferred to the other.

The unit of observation is the question: intervals resample questions, and tests flip the signs of
questions, however many pairs or votes a question has.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ReportError
from mink_local.evals.bootstrap import LEVELS
from mink_local.evals.report.format import percent
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.stats import PairedTest, Share
from mink_local.evals.report.stats import share as wilson_share
from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import without_reasoning

RESAMPLES = 10_000


class PairPlace(NamedTuple):
    """The fields that two methods' pairs of responses differ in."""

    model: str
    task: str
    temperature: float
    repeat: int
    question_id: str


@dataclass(frozen=True)
class ResponsePair:
    """The responses of two methods to one question, without reasoning.

    Attributes:
        samplers: The two samplers, each as text.
        question: The user's message.
        texts: The two responses.
    """

    place: PairPlace
    samplers: tuple[str, str]
    question: str
    texts: tuple[str, str]

    @property
    def identical(self) -> bool:
        return self.texts[0] == self.texts[1]


def response_pairs(run: RecordedRun, first: str, second: str) -> Iterator[ResponsePair]:
    """Yield the pairs of two samplers: the same model, question, temperature and repeat, in the run's order.

    A greedy response, which is generated once, is paired with every other one to its question.
    """
    found: dict[tuple[str, str, str], tuple[list[Response], list[Response]]] = {}
    for r in run.responses:
        if r.sampler in (first, second):
            found.setdefault((r.task, r.question_id, r.model), ([], []))[r.sampler == second].append(r)
    places = {key: number for number, key in enumerate(run.questions)}
    for (task, question_id, model), both in sorted(found.items(), key=lambda one: places[one[0][:2]]):
        for a, b in product(*both):
            if not (a.temperature and b.temperature) or (a.temperature, a.repeat) == (
                b.temperature,
                b.repeat,
            ):
                yield ResponsePair(
                    PairPlace(
                        model, task, max(a.temperature, b.temperature), max(a.repeat, b.repeat), question_id
                    ),
                    (first, second),
                    run.questions[task, question_id].prompt,
                    (without_reasoning(a.response), without_reasoning(b.response)),
                )


def samplers_of(run: RecordedRun, wanted: Iterable[str] = ()) -> list[str]:
    """Return the samplers of a run, as text. Raises ReportError if a wanted one is not among them."""
    samplers = list(dict.fromkeys(response.sampler for response in run.responses))
    for sampler in wanted:
        if sampler not in samplers:
            raise ReportError(f"{sampler} is not in this run: its samplers are {', '.join(samplers)}")
    return samplers


def interval(share: Share) -> str:
    """Return an interval in percent: "40.2–61.0"."""
    return f"{percent(share.low)}–{percent(share.high)}"


def mean_share(values: Iterable[tuple[Hashable, float]]) -> Share:
    """Return the mean over questions of the mean of a question's values, which are from 0 to 1.

    The interval is by bootstrap over questions, and Wilson's if all questions are alike. Raises ValueError
    if there are no values.
    """
    grouped: dict[Hashable, list[float]] = {}
    for question, value in values:
        grouped.setdefault(question, []).append(value)
    if not grouped:
        raise ValueError("there are no values to take a mean of")
    means = [fmean(group) for group in grouped.values()]
    if len(set(means)) == 1:  # so would be all resamples
        return wilson_share(means)
    return Share(fmean(means), *bootstrap_interval(np.array(means)))


def bootstrap_interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95% percentile bootstrap interval of the mean of `values` (n,), always the same."""
    levels, counts = np.unique(values, return_counts=True)  # a resample is how often each level occurs
    resamples = np.random.default_rng(0).multinomial(len(values), counts / len(values), RESAMPLES)
    low, high = np.quantile(resamples @ levels / len(values), LEVELS)
    return float(low), float(high)


@dataclass(frozen=True)
class WinRate:
    """The preference for one method over another.

    Attributes:
        rate: The share of wins, ties counted half.
        wins, ties, losses: Numbers of outcomes.
        p: Two-sided and exact, that neither method wins more: the binomial test of wins against losses. If a
            question has several outcomes, its wins minus its losses change sign together.
    """

    rate: Share
    n_questions: int
    wins: int
    ties: int
    losses: int
    p: float

    @property
    def counts(self) -> str:
        return f"{self.wins}:{self.ties}:{self.losses}"


def win_rate(outcomes: Sequence[tuple[Hashable, int]]) -> WinRate:
    """Return the win rate of pairs of a question and an outcome: 1 for a win, 0 for a tie, -1 for a loss.

    Raises ValueError if there are no outcomes.
    """
    gains: dict[Hashable, int] = {}
    for question, outcome in outcomes:
        gains[question] = gains.get(question, 0) + outcome
    signs = [outcome for _, outcome in outcomes]
    return WinRate(
        rate=mean_share((question, (1 + outcome) / 2) for question, outcome in outcomes),
        n_questions=len(gains),
        wins=signs.count(1),
        ties=signs.count(0),
        losses=signs.count(-1),
        p=PairedTest(np.array(list(gains.values()), np.int64), 1).p,
    )
