"""Reading a run's folder: what is in it, and what is left out and named."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mink_local.evals.run.records import mark_of, read_run, rescore
from mink_local.evals.tasks import Verdict
from tests.support.made_run import records, write_run

MANIFEST: dict[str, Any] = {
    "seed": 7,
    "models": {"tiny-model": {}},
    "tasks": {"gsm8k": {"max_tokens": 100}},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, tasks=("gsm8k",), samplers=("min-k:tau=3", "greedy"), n_questions=2)


def test_questions_responses_and_manifest_are_read(folder: Path) -> None:
    model = {"path": "/home/me", "sha256": "ab"}
    manifest = MANIFEST | {"ctx": None, "models": {"tiny-model": model}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    run = read_run(folder)
    assert [(r.question_id, r.response, r.k, r.strict and r.strict.correct) for r in run.responses] == [
        (r["question_id"], r["response"], r["k"], r["strict"]["correct"]) for r in records(folder)
    ]
    assert list(run.questions) == [("gsm8k", "0"), ("gsm8k", "1")]
    assert run.questions["gsm8k", "1"].prompt.startswith("Question 1 of gsm8k")
    assert run.manifest == {
        **manifest,
        "models": {"tiny-model": {"sha256": "ab"}},
    }  # without this machine's folders
    assert run.notes == run.problems == []


@pytest.mark.parametrize(
    "manifest", [None, "", "[" * 100_000, '{"seed": 7}', json.dumps(MANIFEST | {"sessions": [3]})]
)
def test_a_manifest_is_not_needed(folder: Path, manifest: str | None) -> None:
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    assert read_run(folder).manifest == {}


def test_records_of_other_files_are_read_if_they_are_of_this_run(folder: Path) -> None:
    questions = folder / "questions.jsonl"
    manifest = MANIFEST | {"questions_sha256": hashlib.sha256(questions.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    assert read_run(folder).notes == []
    (folder / "records.jsonl").write_bytes(b"".join(lines[:5]))
    other = json.loads(lines[-1]) | {"model": "other-model"}
    (folder / "worker-2.jsonl").write_bytes(b"".join(lines[5:-1]) + json.dumps(other).encode())
    run = read_run(folder)
    assert len(run.responses) == len(lines) - 1
    left_out, others = run.notes
    assert "other-model" in left_out
    assert others.startswith(f"{len(lines) - 6} ")
    assert "worker-2.jsonl" in others
    assert len(run.problems) == 1
    questions.write_text(questions.read_text(encoding="utf-8").replace('"gold": "', '"gold": "9'))
    assert "questions.jsonl" in read_run(folder).notes[-1]


def test_an_unknown_task_keeps_its_verdicts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, tasks=("gsm8k",), n_questions=1))
    known = run.responses[0]
    unknown = replace(known, task="gsm9k", strict=Verdict("nonsense", correct=True))
    run.questions["gsm9k", known.question_id] = run.questions["gsm8k", known.question_id]
    run.responses = [known, unknown]
    again = rescore(run)
    assert again.responses == [known, unknown]
    assert "gsm9k" in again.notes[0]


def test_only_what_these_scorers_have_not_scored_is_scored_again(tmp_path: Path) -> None:
    """And what was edited since: a verdict, a text, or the answer of a question."""
    run = read_run(write_run(tmp_path, tasks=("gsm8k",), n_questions=1))
    plain, question = rescore(run).responses[0], run.questions["gsm8k", "0"]
    marked = replace(plain, flexible=Verdict("nonsense", correct=True))  # what these scorers would not say
    marked = replace(marked, scored=mark_of(question, marked))
    run.responses = [marked, replace(marked, strict=marked.flexible), replace(marked, scored="")]
    again = rescore(run)
    assert again.responses[0] == marked
    assert [one.flexible for one in again.responses[1:]] == [plain.flexible] * 2
    assert again.notes[-1].startswith("2 flexible and 1 strict of 3 ")
    run.questions[question.key] = msgspec.structs.replace(question, gold="9")
    assert rescore(run).responses[0].flexible != marked.flexible
