"""Responses of `stated/*.txt` and the answer that a person reads in each: flexible scoring agrees on all.

A line is `answer | response`; `-` is no answer and ⏎ a new line. A line `options: …` gives the options of the
lines below it.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
