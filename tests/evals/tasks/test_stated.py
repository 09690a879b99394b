"""Responses of `stated/*.txt` and the answer that a person reads in each, and published solutions.

Flexible scoring never reads another answer than a person, and reads nearly all of theirs. A line is `answer |
response`; `-` is no answer and ⏎ a new line. A line `options: …` gives the options of the lines below it.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from mink_local.evals.tasks import TASKS, Verdict, score
from tests.conftest import shared
from tests.support.scoring import verdicts

FOLDER = Path(__file__).parent / "stated"
N_RESPONSES, N_ANSWERS = 1844, 1267
LEAST_READ = 0.97  # of the answers


def corpus(path: Path) -> Iterator[tuple[str | None, str, Verdict]]:
    """Yield the answer that a person reads, the response, and the flexible verdict."""
    options: tuple[str, ...] = ()
    task = path.stem.split("-")[0]
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("options: "):
            options = tuple(line.removeprefix("options: ").split(" / "))
        else:
            answer, _, response = line.partition(" | ")
            gold = ("A" if options else "0") if answer == "-" else answer
            response = response.replace("⏎", "\n")
            yield None if answer == "-" else answer, response, verdicts(task, response, gold, options)[1]


def test_flexible_reads_nearly_what_a_person_reads_and_nothing_else() -> None:
    responses = [one for path in sorted(FOLDER.iterdir()) for one in corpus(path)]
    wrong = [
        (response, verdict.answer, answer)
        for answer, response, verdict in responses
        if verdict.answer is not None and not (answer and verdict.correct)
    ]
    assert wrong == []
    answers = [verdict for answer, _, verdict in responses if answer]
    assert (len(responses), len(answers)) == (N_RESPONSES, N_ANSWERS)
    assert sum(verdict.correct for verdict in answers) >= LEAST_READ * N_ANSWERS


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


@pytest.mark.parametrize(
    ("task", "column", "form", "share"),
    [
        *(("gsm8k", "answer", *one) for one in FORMS.items()),
        ("aqua", "rationale", "{solution}", 0.88),
        ("math500", "solution", "{solution}", 0.99),
    ],
)
def test_published_solutions_are_never_misread(task: str, column: str, form: str, share: float) -> None:
    path = shared(f"data/{task}_test.jsonl")
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    found: Counter[bool | None] = Counter()  # right, wrong and no answers
    pairs = zip(TASKS[task].read(path, seed=0), rows, strict=True)
    for question, row in islice(pairs, 0, None, 4 if task == "gsm8k" else 1):
        solution = re.sub("<<.*?>>", "", row[column]).partition("\n####")[0]
        last = solution.rpartition("\n")[2]
        response = form.format(solution=solution, last=last, gold=question.gold)
        verdict = score(TASKS[task], question, response, "stop")[1]
        found[verdict.correct if verdict.answer else None] += 1
    assert found[False] == 0
    assert found[True] >= share * found.total()
