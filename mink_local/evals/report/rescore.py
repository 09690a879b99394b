"""Verdicts computed again from stored responses, without a model."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.run.records import Response
from mink_local.evals.tasks import find_task
from mink_local.evals.tasks.base import Question, score

CHUNK = 500  # responses to score in one go; fewer are not worth another process


def rescore(run: RecordedRun) -> RecordedRun:
    """Return the run with the verdicts of this version's tasks. The records on disk do not change.

    It scores in several processes, because an answer of MATH500 can take long. Raises TaskNotFoundError.
    """
    for task in {response.task for response in run.responses}:
        find_task(task)
    questions = [run.questions[r.task, r.question_id] for r in run.responses]
    workers = min(-(-len(questions) // CHUNK), os.cpu_count() or 1, 61)  # Windows takes at most 61
    if workers == 1:
        return replace(run, responses=list(map(_rescore, run.responses, questions)))
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        return replace(run, responses=list(pool.map(_rescore, run.responses, questions, chunksize=CHUNK)))


def _rescore(response: Response, question: Question) -> Response:
    verdicts = score(find_task(response.task), question, response.response, response.finish_reason)
    return replace(response, strict=verdicts[0], flexible=verdicts[1])
