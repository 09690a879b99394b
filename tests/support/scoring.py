"""Scoring of responses, as a run does it."""

from mink_local.evals.tasks import TASKS, Question, Verdict, score
from mink_local.evals.tasks.base import Verdicts

OPTIONS = ("15%", "Apples", "3/8", "20 km/h", "None of these")


def verdicts(
    task: str, response: str, gold: str, choices: tuple[str, ...] = (), finish_reason: str = "stop"
) -> tuple[Verdict, Verdict]:
    """Return the strict and the flexible verdict of a task on a response."""
    return every_verdict(task, response, gold, choices, finish_reason)[:2]


def every_verdict(
    task: str, response: str, gold: str, choices: tuple[str, ...] = (), finish_reason: str = "stop"
) -> Verdicts:
    """Return these, and that on the last number or option."""
    return score(TASKS[task], Question("0", "", gold, choices), response, finish_reason)
