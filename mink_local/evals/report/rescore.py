"""Verdicts computed again from stored responses, without a model."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.run.records import Response
from mink_local.evals.tasks import recorded_task
from mink_local.evals.tasks.base import Question, Task, score

CHUNK = 500  # responses to score in one go; fewer are not worth another process


def rescore(run: RecordedRun) -> RecordedRun:
    """Return the run with the verdicts of this version's tasks. The records on disk do not change.

    It scores in several processes, because an answer of MATH500 can take long. Responses to a task that this
    version does not have keep their verdicts.
    """
    by_name = tasks_of(run)
    tasks = [by_name.get(response.task) for response in run.responses]
    questions = [run.questions[r.task, r.question_id] for r in run.responses]
    workers = min(-(-len(questions) // CHUNK), os.cpu_count() or 1, 61)  # Windows takes at most 61
    if workers == 1:
        return replace(run, responses=list(map(_rescore, run.responses, questions, tasks)))
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that threads hold
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        again = pool.map(_rescore, run.responses, questions, tasks, chunksize=CHUNK)
        return replace(run, responses=list(again))


def tasks_of(run: RecordedRun) -> dict[str, Task | None]:
    """Return by name the tasks whose responses have verdicts; None if this version does not have a task."""
    names = sorted({response.task for response in run.responses if not response.open_ended})
    return {name: recorded_task(name, _rule(run.manifest.get("tasks"), name)) for name in names}


def _rule(tasks: Any, name: str) -> str | None:
    """Return how a task scores, from a manifest, which may be damaged."""
    settings = tasks.get(name) if isinstance(tasks, dict) else None
    return settings.get("rule") if isinstance(settings, dict) else None


def _rescore(response: Response, question: Question, task: Task | None) -> Response:
    if task is None or response.open_ended:
        return response
    verdicts = score(task, question, response.response, response.finish_reason)
    return replace(response, strict=verdicts[0], flexible=verdicts[1])
