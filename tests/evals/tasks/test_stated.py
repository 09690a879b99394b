"""Responses of `stated/*.txt` and the answer that a person reads in each: flexible scoring agrees on all.

A line is `answer | response`; `-` is no answer and ⏎ a new line. A line `options: …` gives the options of the
lines below it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mink_local.evals.tasks import TASKS, score
from tests.conftest import shared
from tests.support.scoring import verdicts

FOLDER = Path(__file__).parent / "stated"


def corpus(name: str) -> Iterator[tuple[str | None, str, tuple[str, ...]]]:
    options: tuple[str, ...] = ()
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("options: "):
            options = tuple(line.removeprefix("options: ").split(" / "))
        else:
            answer, _, response = line.partition(" | ")
            yield None if answer == "-" else answer, response.replace("⏎", "\n"), options


@pytest.mark.parametrize("name", [path.name for path in sorted(FOLDER.iterdir())])
def test_flexible_reads_what_a_person_reads(name: str) -> None:
    task = name.split(".")[0].split("-")[0]
    wrong = []
    for answer, response, options in corpus(name):
        verdict = verdicts(task, response, answer or ("A" if options else "0"), options)[1]
        read = answer if task == "math500" and verdict.correct else verdict.answer
        if read != answer:
            wrong.append(f"{response!r}: {read} and not {answer}")
    assert wrong == [], "\n".join([f"{len(wrong)} wrong", *wrong])


# form of a response to GSM8K with a published solution in it, and the least share that is read
FORMS = {
    "{solution}\n#### {gold}": 1.0,
    "{solution}": 0.18,  # what ends in "So …"
    "Answer: {solution}": 0.18,
    "### Answer\n\n{solution}": 0.18,
    "To find the answer: {solution}": 0.18,
    "The final answer is {gold}. {solution}": 0.99,
    "The answer is ${gold}.\n\nExplanation:\n{solution}": 1.0,
    "The final answer is {gold} ({last}).": 1.0,
}


@pytest.mark.parametrize(("form", "share"), FORMS.items(), ids=FORMS)
def test_published_solutions_are_never_misread(form: str, share: float) -> None:
    path = shared("data/gsm8k_test.jsonl")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines()[::4])
    read: Counter[bool | None] = Counter()
    for question, row in zip(TASKS["gsm8k"].read(path, seed=0)[::4], rows, strict=True):
        solution = re.sub("<<.*?>>", "", row["answer"]).partition("\n####")[0]
        last = solution.rpartition("\n")[2]
        response = form.format(solution=solution, last=last, gold=question.gold)
        verdict = score(TASKS["gsm8k"], question, response, "stop")[1]
        read[verdict.correct if verdict.answer else None] += 1
    assert read[False] == 0
    assert read[True] >= share * read.total()


@pytest.mark.parametrize(
    ("task", "column", "share"), [("aqua", "rationale", 0.9), ("math500", "solution", 0.99)]
)
def test_published_rationales_are_never_misread(task: str, column: str, share: float) -> None:
    path = shared(f"data/{task}_test.jsonl")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    read: Counter[bool | None] = Counter()
    for question, row in zip(TASKS[task].read(path, seed=0), rows, strict=True):
        verdict = score(TASKS[task], question, row[column], "stop")[1]
        read[verdict.correct if verdict.answer else None] += 1
    assert read[False] == 0
    assert read[True] >= share * read.total()
