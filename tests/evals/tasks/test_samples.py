"""The bundled samples: their answers are right."""

import json
import re
from fractions import Fraction

import pytest

from mink_local.evals.run.questions import locate
from mink_local.evals.tasks import TASKS


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


@pytest.mark.parametrize("name", ["sample-math", "sample-choice"])
def test_every_answer_is_recomputed(name: str) -> None:
    questions = TASKS[name].read(locate(TASKS[name]), seed=0)
    for row, question in zip(rows(name), questions, strict=True):
        solution = row["rationale"] if question.choices else row["answer"]
        right = worked(solution)
        shown = [
            Fraction(re.findall(r"-?[\d.]+(?:/\d+)?", choice.replace(",", ""))[0])
            for choice in question.choices or [question.gold]
        ]
        gold = "ABCDE".index(question.gold) if question.choices else 0
        assert [i for i, one in enumerate(shown) if one == right] == [gold], row["question"]
        if question.choices:
            assert solution.endswith(f"Answer: {question.gold}")
        else:
            assert len(solution.splitlines()[:-1]) == solution.count("<<"), row["question"]
