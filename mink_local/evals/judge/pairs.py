"""Pairs of responses of two methods to one question."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

from mink_local.errors import ReportError
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.run.records import Response
from mink_local.evals.tasks.base import without_reasoning


@dataclass(frozen=True)
class PairKey:
    """The fields that tell two methods' pairs of responses apart."""

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

    key: PairKey
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
            is_greedy = not (a.temperature and b.temperature)
            if is_greedy or (a.temperature, a.repeat) == (b.temperature, b.repeat):
                temperature, repeat = max(a.temperature, b.temperature), max(a.repeat, b.repeat)
                yield ResponsePair(
                    PairKey(model, task, temperature, repeat, question_id),
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
