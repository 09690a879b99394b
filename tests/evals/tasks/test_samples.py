"""The bundled samples: their answers are right, and they copy no published question."""

import json
import re
from fractions import Fraction

import pytest

from mink_local.evals.run.questions import locate
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


def test_the_samples_copy_nothing_from_the_published_sets() -> None:
    published_words = {
        tuple(json.loads(line)["question"].lower().split()[start : start + 8])
        for name in ("gsm8k", "aqua")
        for line in shared(f"data/{name}_test.jsonl").read_text(encoding="utf-8").split("\n")
        if line
        for start in range(max(1, len(json.loads(line)["question"].split()) - 7))
    }
    for name in ("sample-math", "sample-choice"):
        for row in rows(name):
            words = row["question"].lower().split()
            assert not published_words.intersection(tuple(words[at : at + 8]) for at in range(len(words) - 7))
