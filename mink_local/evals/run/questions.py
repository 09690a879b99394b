"""The questions of a run, in `DIR/questions.jsonl`: scoring and the report need no data and no model."""

import json
from typing import Any

from mink_local.evals.run.records import take, take_name
from mink_local.evals.tasks.base import Question


def question_line(task: str, question: Question) -> str:
    """Return a question's line of the file."""
    fields = {
        "task": task,
        "question_id": question.id,
        "prompt": question.prompt,
        "gold": question.gold,
        "choices": list(question.choices),
        "order": list(question.order),
    }
    return json.dumps(fields) + "\n"


def parse_question(value: Any) -> tuple[str, Question]:
    """Return task and question of a parsed line. Raises ValueError that says what is wrong with it."""
    question = Question(
        take_name(value, "question_id"),
        take(value, "prompt", str),
        take(value, "gold", str),
        tuple(map(str, take(value, "choices", list))),
        tuple(take(value, "order", list)),
    )
    return take_name(value, "task"), question
