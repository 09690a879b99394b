"""Reading a run's folder: what is in it, and what is left out and named."""

import hashlib
import json
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import ReportError
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.run.grid import seed_of
from tests.support.made_run import change, records, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_run(tmp_path, tasks=("gsm8k",), samplers=("min-k:tau=3", "greedy"), n_questions=2)


def test_questions_responses_and_manifest_are_read(folder: Path) -> None:
    (folder / "manifest.json").write_text(
        json.dumps(
            {"seed": 7, "ctx": None, "models": {"m": {"path": "/home/me", "sha256": "ab"}}, "tasks": []}
        )
    )
    run = read_run(folder)
    lines = records(folder)
    assert [(r.question_id, r.response, r.k, r.strict and r.strict.correct) for r in run.responses] == [
        (r["question_id"], r["response"], r["k"], r["strict"]["correct"]) for r in lines
    ]
    assert list(run.questions) == [("gsm8k", "0"), ("gsm8k", "1")]
    assert run.questions["gsm8k", "1"].prompt.startswith("Question 1 of gsm8k")
    assert run.made_with == {"seed": "7", "ctx": "None", "models m sha256": "ab"}
    assert run.problems == []


@pytest.mark.parametrize("manifest", [None, "", "[" * 100_000])
def test_a_manifest_is_not_needed(folder: Path, manifest: str | None) -> None:
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    assert read_run(folder).made_with == {}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"k": [1, -1]}, '"k" cannot be [1, -1]'),
        ({"strict": {"answer": None}}, 'no "correct"'),
        ({"model": "a\x1b[2Jb"}, '"model" cannot be "a\\u001b[2Jb"'),
        ({"question_id": "99"}, "question 99 of gsm8k is not in questions.jsonl"),
    ],
)
def test_a_bad_record_is_named_and_left_out(folder: Path, changes: dict[str, Any], problem: str) -> None:
    lines = records(folder)
    lines[2] |= changes
    (folder / "records.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    run = read_run(folder)
    assert len(run.responses) == len(lines) - 1
    assert len(run.problems) == 1
    assert run.problems[0].startswith(f"records.jsonl, line 3: {problem}")


def test_lines_that_are_not_records_are_named(folder: Path) -> None:
    path = folder / "records.jsonl"
    whole = path.read_bytes()
    first = whole.split(b"\n")[0]
    path.write_bytes(whole + b"[" * 100_000 + b'\n\xff\xfe\n[]\n"text"\n\n' + first + b"\n" + first[:-30])
    (folder / "notes.jsonl").write_text('{"note": "no records here"}\n', encoding="utf-8")
    questions = folder / "questions.jsonl"
    questions.write_bytes(questions.read_bytes() + b"{}\n")
    n = whole.count(b"\n")
    assert read_run(folder).problems == [
        'questions.jsonl, line 3: no "task"',
        f"records.jsonl, line {n + 1}: not JSON",
        f"records.jsonl, line {n + 2}: not JSON",
        f"records.jsonl, line {n + 3}: not a JSON object",
        f"records.jsonl, line {n + 4}: not a JSON object",
        f"records.jsonl, line {n + 6}: an earlier line has its response",
        f"records.jsonl, line {n + 7}: cut short",
    ]


def test_responses_asked_for_are_counted(folder: Path) -> None:
    """By brute force: what two commands ask for together, each response once, greedy once."""
    grids: list[dict[str, Any]] = [
        {"models": ["a"], "samplers": ["min-k", "greedy"], "temperatures": [0.0, 1.0, 5.0], "repeats": 1,
         "limit": 7, "questions": {"gsm8k": 7, "aqua": 2}},
        {"models": ["a", "b"], "samplers": ["min-k"], "temperatures": [1.0, 2.0], "repeats": 3,
         "limit": 4, "questions": {"gsm8k": 4}},
    ]  # fmt: skip
    wanted = set()
    for grid in grids:
        for model, (task, n) in product(grid["models"], grid["questions"].items()):
            for s, t, r, q in product(
                grid["samplers"], grid["temperatures"], range(grid["repeats"]), range(n)
            ):
                wanted.add((model, task, s, t, r, q) if t and s != "greedy" else (model, task, "", 0, 0, q))
                wanted.add((model, task, "", 0, 0, q))
    (folder / "manifest.json").write_text(json.dumps({"seed": 7, "asked": grids}))
    run = read_run(folder)
    assert run.asked == Counter((model, task) for model, task, *_ in wanted)
    assert run.made_with == {"seed": "7"}
    several: list[object] = [{"asked": 3}, {"asked": [{}]}, {"asked": [dict(grids[0], repeats="2")]}, [], 3]
    for damaged in several:
        (folder / "manifest.json").write_text(json.dumps(damaged))
        assert read_run(folder).asked == {}


@pytest.fixture
def described(folder: Path) -> Path:
    """A run whose manifest says what all its responses have in common."""
    manifest = {
        "seed": 7,
        "models": {"tiny-model": {}},
        "tasks": {"gsm8k": {"max_tokens": 100}},
        "sessions": [{"n_ctx_seq": 512}, {"n_ctx_seq": 256}],
        "questions_sha256": hashlib.sha256((folder / "questions.jsonl").read_bytes()).hexdigest(),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")

    def fit(r: dict[str, Any]) -> None:
        r.update(seed=seed_of(7, "gsm8k", r["question_id"], r["repeat"]), finish_reason="stop")

    return change(folder, fit)


def test_records_may_be_in_several_files_and_those_are_named(described: Path) -> None:
    lines = (described / "records.jsonl").read_bytes().splitlines(keepends=True)
    assert read_run(described).remarks == []
    (described / "records.jsonl").write_bytes(b"".join(lines[:5]))
    (described / "worker-2.jsonl").write_bytes(b"".join(lines[5:]))
    run = read_run(described)
    assert len(run.responses) == len(lines)
    assert run.remarks == [f"{len(lines) - 5} responses from worker-2.jsonl."]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"seed": 5}, "of a run with another --seed than 7"),
        ({"n_tokens": 101}, "of a run with another --max-tokens than 100"),
        ({"finish_reason": "length", "n_tokens": 64}, "of a run with another --max-tokens than 100"),
        ({"model": "other-model"}, "model other-model is not in manifest.json"),
        ({"prompt_sha256": "ab"}, "question 0 of gsm8k has another prompt in questions.jsonl"),
        ({"finish_reason": "length", "n_tokens": 100}, None),
        ({"finish_reason": "length", "n_tokens": 64, "prompt_tokens": 192}, None),  # the context was full
        ({"seed": 0, "prompt_sha256": ""}, None),  # as if the record had none
    ],
)
def test_responses_of_another_run_are_left_out(
    described: Path, changes: dict[str, Any], problem: str | None
) -> None:
    first, *others = records(described)
    (described / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in others), encoding="utf-8")
    (described / "other.jsonl").write_text(json.dumps(first | changes) + "\n", encoding="utf-8")
    run = read_run(described)
    assert run.problems == ([f"other.jsonl, line 1: {problem}"] if problem else [])
    assert run.remarks == ([] if problem else ["1 response from other.jsonl."])
    (described / "manifest.json").unlink()  # without it, no more is known than the prompt
    assert len(read_run(described).problems) == ("prompt_sha256" in changes and bool(problem))


def test_edited_questions_are_remarked(described: Path) -> None:
    path = described / "questions.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    lines[1]["gold"] = "99999"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert read_run(described).remarks == [
        "questions.jsonl was changed after the run wrote it: prompts or gold answers may be others."
    ]


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"holds no questions\.jsonl: is it the --out of a mink-eval run\?"):
        read_run(tmp_path)
    write_run(tmp_path, n_questions=1)
    (tmp_path / "records.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(ReportError, match="holds no responses yet: wait for the first one, or type"):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").write_text('{"response": 1}\n', encoding="utf-8")
    with pytest.raises(
        ReportError, match=r'holds no responses that can be used: records\.jsonl, line 1: no "model"'
    ):
        read_run(tmp_path)
    (tmp_path / "records.jsonl").unlink()
    (tmp_path / "questions.jsonl").unlink()
    (tmp_path / "questions.jsonl").mkdir()
    with pytest.raises(ReportError, match=r"questions\.jsonl cannot be read"):
        read_run(tmp_path)
