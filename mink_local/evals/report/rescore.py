"""Verdicts computed again from stored responses, without a model."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from mink_local.evals.report.reading import Run
from mink_local.evals.run.records import Response
from mink_local.evals.tasks import find_task
from mink_local.evals.tasks.base import Question, Verdict, score

AT_ONCE = 500  # responses; fewer than this are not worth another process

Verdicts = tuple[Verdict, Verdict]


def rescore(run: Run) -> Run:
    """The run with the verdicts that this version's tasks reach. The records on disk stay as they are.

    In several processes, since an answer of MATH500 can take long. Raises DataError for an unknown task.
    """
    for task in {response.task for response in run.responses}:
        find_task(task)
    chunks = [run.responses[at : at + AT_ONCE] for at in range(0, len(run.responses), AT_ONCE)]
    asked = [[run.questions[r.task, r.question_id] for r in chunk] for chunk in chunks]
    judged = (verdicts for given in _judge_all(chunks, asked) for verdicts in given)
    responses = [
        replace(response, strict=strict, flexible=flexible)
        for response, (strict, flexible) in zip(run.responses, judged, strict=True)
    ]
    return replace(run, responses=responses)


def _judge_all(
    chunks: Sequence[Sequence[Response]], asked: Sequence[Sequence[Question]]
) -> Iterator[list[Verdicts]]:
    if len(chunks) == 1:
        yield _judge(chunks[0], asked[0])
        return
    workers = min(len(chunks), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(_judge, chunks, asked)


def _judge(responses: Sequence[Response], questions: Sequence[Question]) -> list[Verdicts]:
    return [
        score(find_task(response.task), question, response.response, response.finish_reason)
        for response, question in zip(responses, questions, strict=True)
    ]
