"""Verdicts computed again from stored responses, without a model."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.run.records import Response
from mink_local.evals.tasks import find_task
from mink_local.evals.tasks.base import Question, score

CHUNK = 500  # responses to score in one go; fewer are not worth another process


def rescore(run: RecordedRun) -> RecordedRun:
    """Return the run with the verdicts of this version's tasks. The records on disk do not change.

    It scores in several processes, because an answer of MATH500 can take long.

    Raises:
        TaskNotFoundError: A task is unknown.
    """
    for task in {response.task for response in run.responses}:
        find_task(task)
    chunks = [run.responses[start : start + CHUNK] for start in range(0, len(run.responses), CHUNK)]
    questions = [[run.questions[r.task, r.question_id] for r in chunk] for chunk in chunks]
    if len(chunks) == 1:
        rescored = [_rescore(chunks[0], questions[0])]
    else:
        workers = min(len(chunks), os.cpu_count() or 1, 61)  # Windows takes at most 61
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            rescored = list(pool.map(_rescore, chunks, questions))
    return replace(run, responses=[response for chunk in rescored for response in chunk])


def _rescore(responses: Sequence[Response], questions: Sequence[Question]) -> list[Response]:
    rescored = []
    for response, question in zip(responses, questions, strict=True):
        task = find_task(response.task)
        strict, flexible = score(task, question, response.response, response.finish_reason)
        rescored.append(replace(response, strict=strict, flexible=flexible))
    return rescored
