"""What is read in responses that models wrote: GPT-3, Qwen2.5-Coder and SmolLM2, to GSM8K, AQuA and MATH500.

`responses.jsonl` has ends of some of them with the answer stated last, the last number or option, and whether
each is right. `gpt3.txt` has all of GPT-3's, of which the first eight digits of their SHA-256 are followed by
the two verdicts: r is right, w wrong, and - no answer.
"""

import gzip
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.tasks import Verdict
from mink_local.evals.tasks.base import NO_ANSWER
from tests.conftest import shared
from tests.support.scoring import every_verdict

FOLDER = Path(__file__).parent
ENDS = [json.loads(line) for line in (FOLDER / "responses.jsonl").read_text(encoding="utf-8").splitlines()]
STATED = [  # response, gold, answer
    ("The answer isn't 64; it's 72.", "72", "72"),
    ("The answer is not 64, but 72.", "72", "72"),
    ("The answer is 50%.", "0.5", "50%"),
    ("La respuesta final es 72.", "72", "72"),
    ("La réponse est 72.", "72", "72"),
    ("Die Antwort ist 72.", "72", "72"),
    ("最终答案是72。", "72", "72"),
    ("So we get \\boxed{72} apples.\n\nQ: And 5 more?", "72", "72"),
    ("She pays 9 * 8 = 72 dollars.", "72", None),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: sha256(end["text"].encode()).hexdigest()[:8])
def test_the_answer_stated_last_and_the_last_one(end: dict[str, Any]) -> None:
    _, stated, last = every_verdict(end["task"], end["text"], end["gold"], tuple(end.get("choices", ())))
    right = end["right"]
    assert stated == Verdict(end["flexible"], right[0])
    assert (last or NO_ANSWER) == Verdict(end["last"], right[1])


@pytest.mark.parametrize(("response", "gold", "answer"), STATED)
def test_forms_that_no_recorded_response_has(response: str, gold: str, answer: str | None) -> None:
    _, stated, last = every_verdict("gsm8k", response, gold)
    assert stated == Verdict(answer, correct=answer is not None)
    assert last
    assert last.correct


def test_a_list_of_boxes_is_one_answer() -> None:
    assert every_verdict("math500", "So \\boxed{1} and \\boxed{-2}.", "1,-2").flexible.correct
    assert not every_verdict("math500", "So \\boxed{1} and \\boxed{-2}.", "-2").flexible.correct


@pytest.mark.parametrize("copied", ["The final answer is (answer).", "Thus, the answer is $(answer)$."])
def test_what_is_copied_from_the_prompt_is_no_answer(copied: str) -> None:
    for response, answer in ((copied, None), (f"So we get \\boxed{{5}}.\n\n{copied}", "5")):
        stated = every_verdict("math500", response, "5").flexible
        assert stated == Verdict(answer, correct=answer is not None)


def test_verdicts_on_the_responses_of_gpt_3() -> None:
    known = (FOLDER / "gpt3.txt").read_text(encoding="utf-8").split()
    found = []
    with gzip.open(shared("data/answers/gpt3.jsonl.gz"), "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            for text in (row["text"], row["prose"]):
                _, *both = every_verdict(row["task"], text, row["gold"], tuple(row["choices"] or ()))
                marks = ("-" if not one or one.answer is None else "wr"[one.correct] for one in both)
                found.append(sha256(text.encode()).hexdigest()[:8] + "".join(marks))
    assert found == known
