"""Folders like those of `mink-eval run`, with responses that no model generated, to test the report."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from mink_local.evals.run.records import methods
from mink_local.evals.tasks import TASKS, Question, score
from mink_local.samplers import Sampler, parse

SAMPLERS = (
    "min-k:tau=3",
    "greedy",
    "top-k:k=20",
    "top-p:p=0.9,order=temperature-first",
    "top-p:p=0.9,order=temperature-last",
    "min-p:p=0.1,order=temperature-first",
    "min-p:p=0.1,order=temperature-last",
    "top-n-sigma:n=1",
)
TEMPERATURES = (1.0, 2.0, 5.0, 10.0)
WORDS = "she sells the eggs so each day there are twice as many left and we add 3 then divide by 2 to get"
NOISE = [
    *"жñ漢🙂∑",
    "<script>alert(1)</script>",
    "</script>",
    "&amp;",
    "[bold]",
    "|",
    "**",
    "א",
    "\u2028",
    "{{7*7}}",
]


def write_run(
    folder: Path,
    models: Sequence[str] = ("tiny-model",),
    tasks: Sequence[str] = ("gsm8k", "aqua"),
    samplers: Sequence[str] = SAMPLERS,
    temperatures: Sequence[float] = TEMPERATURES,
    repeats: int = 2,
    n_questions: int = 30,
    seed: int = 1,
) -> Path:
    """Write questions.jsonl and records.jsonl to `folder`, and return it."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    questions = [_question(task, number, rng) for task in tasks for number in range(n_questions)]
    _write(folder / "questions.jsonl", questions)
    chosen = methods(list(map(parse, samplers)), temperatures, repeats, greedy=False)
    wanted = list(product(models, chosen))
    records = (_record(question, model, *method, rng) for question in questions for model, method in wanted)
    _write(folder / "records.jsonl", records)
    return folder


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of records.jsonl."""
    return [json.loads(line) for line in (folder / "records.jsonl").read_bytes().splitlines()]


def change(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> Path:
    """Edit every record in place, and drop those for which `edit` returns False. Return the folder."""
    _write(folder / "records.jsonl", [line for line in records(folder) if edit(line) is not False])
    return folder


def judge(folder: Path, is_correct: Callable[[dict[str, Any]], bool]) -> Path:
    """Replace the verdicts of every record, strict and flexible. Return the folder."""

    def edit(line: dict[str, Any]) -> None:
        line["strict"] = line["flexible"] = {"answer": "1", "correct": is_correct(line)}

    return change(folder, edit)


def _write(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as stream:
        stream.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _question(task: str, number: int, rng: random.Random) -> dict[str, Any]:
    text = " ".join(rng.choices(WORDS.split(), k=rng.randint(12, 50)))
    choices = [str(number) for number in rng.sample(range(999), 5)] if task == "aqua" else []
    return {
        "task": task,
        "question_id": str(number),
        "prompt": f"Question {number} of {task}: if {text}, how many are left? <b>&</b>",
        "gold": rng.choice("ABCDE") if choices else str(rng.randint(0, 2000)),
        "choices": choices,
        "order": [],
    }


def _record(
    question: dict[str, Any], model: str, method: Sampler, temperature: float, repeat: int, rng: random.Random
) -> dict[str, Any]:
    sampler, finish_reason = str(method), rng.choice(["stop", "stop", "stop", "length"])
    response = " ".join(rng.choices([*WORDS.split(), *NOISE], k=rng.randint(20, 80)))
    if finish_reason == "stop":
        response += f"\n\n{_ending(question, rng)}"
    asked = Question(*(question[name] for name in ("question_id", "prompt", "gold", "choices")))
    task = TASKS.get(question["task"])  # one without a name is open-ended
    verdicts = [asdict(v) for v in score(task, asked, response, finish_reason) if v] if task else [None, None]
    sizes = [1, 1, 2, rng.randint(3, 49152)] if sampler != "greedy" else [1]
    k = rng.choices(sizes, k=rng.randint(20, 80))
    return {
        "model": model,
        "task": question["task"],
        "sampler": sampler,
        "temperature": temperature,
        "order": method.order,
        "repeat": repeat,
        "question_id": question["question_id"],
        "prompt_sha256": sha256(question["prompt"].encode()).hexdigest(),
        "prompt_tokens": 60,
        "response": response,
        "n_tokens": len(k),
        "finish_reason": finish_reason,
        "k": k,
        "seconds": 0.5,
        "strict": verdicts[0],
        "flexible": verdicts[1],
    }


def _ending(question: dict[str, Any], rng: random.Random) -> str:
    """Return the last sentence, of which half is right, and one in five is only for flexible extraction."""
    right, boxed = rng.random() < 0.5, rng.random() < 0.2
    if question["choices"]:
        letter = question["gold"] if right else rng.choice("ABCDE")
        return f"The answer is **{letter}**." if boxed else f"The answer is ({letter})."
    number = question["gold"] if right else rng.randint(0, 2000)
    return f"The final answer is \\(\\boxed{{{number}}}\\)" if boxed else f"The final answer is {number}"
