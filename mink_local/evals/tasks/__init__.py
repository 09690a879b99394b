"""Tasks: their questions, and how responses to them are scored."""

from mink_local.evals.tasks.base import Question, Task, Verdict, score
from mink_local.evals.tasks.datasets import TASKS, find_task, recorded_scorer, recorded_task

__all__ = [
    "TASKS",
    "Question",
    "Task",
    "Verdict",
    "find_task",
    "recorded_scorer",
    "recorded_task",
    "score",
]
