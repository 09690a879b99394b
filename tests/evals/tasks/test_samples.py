"""The bundled samples: their answers are right, and they copy no published question."""

import json
import re
from fractions import Fraction
from pathlib import Path

from mink_local.evals.run.data import locate
from mink_local.evals.tasks import TASKS
from tests.conftest import shared


def value(expression: str) -> Fraction:
    """What an expression of numbers, + - * / and brackets comes to, exactly."""
    assert re.fullmatch(r"[\d.+\-*/() ]+", expression)
    result = eval(re.sub(r"\d+(?:\.\d+)?", r"Fraction('\g<0>')", expression), {"Fraction": Fraction})
    assert isinstance(result, Fraction)
    return result


def worked(solution: str) -> Fraction:
    """The last of a solution's worked steps <<expression=result>>, each of which is right."""
    steps = re.findall(r"<<([^<>=]+)=([^<>=]+)>>(\S+)", solution)
    assert steps
    for expression, result, shown in steps:
        assert value(expression) == value(result)
        assert shown.rstrip(".").removesuffix(":") == result
    return value(steps[-1][1])


def rows(name: str) -> list[dict[str, str]]:
    path = locate(TASKS[name])
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_answer_of_sample_math_is_recomputed() -> None:
    questions = TASKS["sample-math"].read(locate(TASKS["sample-math"]), seed=0)
    assert len(questions) >= 40
    for row, question in zip(rows("sample-math"), questions, strict=True):
        assert worked(row["answer"]) == Fraction(question.gold), row["question"]
        assert len(row["answer"].splitlines()[:-1]) == row["answer"].count("<<"), row["question"]


def test_every_answer_of_sample_choice_is_recomputed() -> None:
    questions = TASKS["sample-choice"].read(locate(TASKS["sample-choice"]), seed=0)
    assert len(questions) >= 40
    for row, question in zip(rows("sample-choice"), questions, strict=True):
        right = worked(row["rationale"])
        values = [
            Fraction(re.findall(r"-?[\d.]+(?:/\d+)?", choice.replace(",", ""))[0])
            for choice in question.choices
        ]
        fits = [letter for letter, shown in zip("ABCDE", values, strict=True) if shown == right]
        assert fits == [question.gold], row["question"]
        assert row["rationale"].endswith(f"Answer: {question.gold}")


def test_the_samples_copy_nothing_from_the_published_sets() -> None:
    published_words = {
        tuple(json.loads(line)["question"].lower().split()[start : start + 8])
        for name in ("gsm8k", "aqua")
        for line in published(name).read_text(encoding="utf-8").split("\n")
        if line
        for start in range(max(1, len(json.loads(line)["question"].split()) - 7))
    }
    for name in ("sample-math", "sample-choice"):
        for row in rows(name):
            words = row["question"].lower().split()
            copied = [
                words[at : at + 8]
                for at in range(len(words) - 7)
                if tuple(words[at : at + 8]) in published_words
            ]
            assert not copied


def published(name: str) -> Path:
    return shared(f"data/{name}_test.jsonl")
