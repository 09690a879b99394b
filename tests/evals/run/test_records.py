"""The records of a run, as they are read, and those that are of another run."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mink_local.evals.run.records import (
    RECORDS,
    Response,
    methods,
    read_run,
    scored,
    seed_of,
)
from mink_local.evals.store import Rows, to_line
from mink_local.evals.tasks import Verdict
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import parse
from tests.support.made_run import change, records, write_run
from tests.support.mink_eval import MinkEval
from tests.support.records import FOUR, RESPONSE

# As mink-eval 0.1 wrote it: its records must stay readable.
OLD_LINE = (
    b'{"model":"tiny","task":"gsm8k","sampler":"min-k:tau=3","temperature":5.0,"order":null,"repeat":0,'
    b'"question_id":"7","response":"Four\\nand\\u2028\\u201c20\\u201d: \\ud83d\\ude00","n_tokens":9,'
    b'"finish_reason":"stop","k":[1,2,300],"strict":{"answer":null,"correct":false},'
    b'"flexible":{"answer":"20","correct":true},"seed":1,"prompt_sha256":"00","prompt_tokens":20,"seconds":0.5}\n'
)


def read(path: Path, *lines: bytes) -> Rows[Response]:
    path.write_bytes(b"".join(lines))
    rows: Rows[Response] = Rows()
    rows.read(path, Response)
    return rows


def test_stored_runs_are_read_and_continued_in_their_format(tmp_path: Path) -> None:
    assert json.loads(to_line(RESPONSE)) == {
        **json.loads(OLD_LINE), "thoughts_cut": False, "last": None, "n_reasoning": None,
    }  # fmt: skip
    assert read(tmp_path / RECORDS, OLD_LINE).by_key == {RESPONSE.key: RESPONSE}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model": 3}, "model"),
        ({"sampler": "min-k\x1b[2J"}, "sampler"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e400}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"repeat": 1.5}, "repeat"),
        ({"n_tokens": 2**63}, "n_tokens"),
        ({"k": [1, "2"]}, "k"),
        ({"strict": {"answer": None}}, "correct"),
        ({"seed": None}, "seed"),
    ],
)
def test_damage_names_the_field(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    wrong = json.dumps({**json.loads(OLD_LINE), **changes}).replace("Infinity", "1e400").encode() + b"\n"
    second = to_line(FOUR[1]).replace(b"\n", b"\r\n")
    rows = read(tmp_path / RECORDS, to_line(FOUR[0]), b"\r\n", wrong, second, b'{"mod')
    assert list(rows.by_key.values()) == FOUR[:2]
    damaged, cut = rows.problems
    assert damaged.startswith(f"{RECORDS}, line 3: ")
    assert field in damaged
    assert cut == f"{RECORDS}, line 5: cut short"


def test_a_file_of_others_may_lack_what_is_not_reported(tmp_path: Path) -> None:
    line = json.loads(OLD_LINE)
    for name in ("seed", "prompt_sha256", "prompt_tokens", "seconds"):
        del line[name]
    assert list(read(tmp_path / RECORDS, json.dumps(line).encode()).by_key) == [RESPONSE.key]


def test_an_open_ended_response_has_no_verdicts(tmp_path: Path) -> None:
    line = json.loads(OLD_LINE) | {"strict": None, "flexible": None}
    (found,) = read(tmp_path / RECORDS, json.dumps(line).encode()).by_key.values()
    assert found.flexible is None
    assert found.strict is None


MANIFEST: dict[str, Any] = {
    "seed": 7,
    "models": {"tiny": {}, "tiny-model": {}},
    "tasks": {"gsm8k": {"max_tokens": 100}},
}


def test_seeds() -> None:
    seeds = {
        seed_of(run, task, question, repeat)
        for run in (0, 1)
        for task in ("a", "b")
        for question in ("1", "11")
        for repeat in (0, 1)
    }
    assert len(seeds) == 16
    assert all(0 <= seed < RANDOM_SEED for seed in seeds)
    assert seed_of(0, "gsm8k", "0", 0) == 2826138680  # of records that exist


ONCE = ("greedy", 0.0, 0)


@pytest.mark.parametrize(
    ("samplers", "temperatures", "repeats", "greedy", "wanted"),
    [
        (["min-k"], [1], 1, True, [ONCE, ("min-k", 1.0, 0)]),
        (["min-k", "greedy"], [0], 2, True, [ONCE]),
        (
            ["min-k", "greedy", "top-p", "min-k"], [1, 5, 0, 1.0], 2, True,
            [ONCE, *((name, t, i) for name in ("min-k", "top-p") for t in (1.0, 5.0) for i in (0, 1))],
        ),
        (["min-k"], [1], 1, False, [("min-k", 1.0, 0)]),
        (["min-k"], [1, 0], 1, False, [ONCE, ("min-k", 1.0, 0)]),
        (["greedy"], [1], 1, False, [ONCE]),
    ],
)  # fmt: skip
def test_greedy_is_wanted_once(
    samplers: list[str],
    temperatures: list[float],
    repeats: int,
    greedy: bool,
    wanted: list[tuple[str, float, int]],
) -> None:
    found = methods(list(map(parse, samplers)), temperatures, repeats, greedy)
    assert found == [(parse(name), *rest) for name, *rest in wanted]


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
    assert run.notes == []


@pytest.mark.parametrize(
    "manifest", [None, "", "[" * 100_000, '{"seed": 7}', json.dumps(MANIFEST | {"sessions": [3]})]
)
def test_a_manifest_is_not_needed(folder: Path, manifest: str | None) -> None:
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest, encoding="utf-8")
    run = read_run(folder)
    assert run.manifest == {}
    assert any("manifest.json" in note for note in run.notes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"seed": seed_of(7, "gsm8k", "1", 1)}, None),
        ({"seed": 5}, "--seed"),
        ({"model": "other-model"}, None),  # as if asked on another machine
        ({"task": "aqua"}, "aqua"),
        ({"question_id": "99"}, "99"),
        ({"prompt_sha256": "ab"}, "prompt"),
        ({"prompt_sha256": ""}, None),  # as if the record had none
    ],
)
def test_records_of_another_run_are_left_out(folder: Path, changes: dict[str, Any], why: str | None) -> None:
    """Also of another file, such as another machine's."""
    (folder / "manifest.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(b"".join(lines[:5]))
    other = json.loads(lines[-1]) | changes
    (folder / "worker-2.jsonl").write_bytes(b"".join(lines[5:-1]) + json.dumps(other).encode())
    run = read_run(folder)
    assert len(run.responses) == len(lines) - bool(why)
    assert (why or "") in "".join(run.notes)


def test_an_unknown_task_keeps_its_verdicts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, tasks=("gsm8k",), n_questions=1))
    known = run.responses[0]
    unknown = replace(known, task="gsm9k", strict=Verdict("nonsense", correct=True))
    run.questions["gsm9k", known.question_id] = run.questions["gsm8k", known.question_id]
    run.responses = [known, unknown]
    again = scored(run)
    assert again.responses[1] == unknown
    assert any("gsm9k" in note for note in again.notes)


HANGS = "regex:(a|a)*$"  # for years, on the response below
NAMED = ["cProfile:run", "planted:ran", "planted", "regex:(", ":", "os:system:x", HANGS]


@pytest.mark.parametrize("scorer", NAMED)
def test_a_report_runs_nothing_that_a_folder_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mink_eval: MinkEval, scorer: str
) -> None:
    """And keeps the verdicts that the users of the function got, as the run's other command does."""
    folder, proof = write_run(tmp_path / "run", tasks=("mine",), n_questions=2), tmp_path / "proof"
    monkeypatch.chdir(folder)
    Path("planted.py").write_text(f"open({str(proof)!r}, 'w')\nran = print\n", encoding="utf-8")
    verdict = {"answer": "nonsense", "correct": True}
    response = "a" * 80 + "b" if scorer == HANGS else f"open({str(proof)!r}, 'w')"
    change(folder, lambda r: r.update(response=response, strict=verdict, flexible=verdict))
    manifest = {**MANIFEST, "measures": "run", "tasks": {"mine": {"rule": f"scorer={scorer}"}}}
    Path("manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    before = list(sys.path)
    shown = mink_eval("report", folder).succeeded().stdout
    assert not proof.exists()
    assert "planted" not in sys.modules
    assert sys.path == before
    assert "100.0" in shown


def test_a_report_scores_whatever_verdicts_are_recorded(tmp_path: Path) -> None:
    """By the answer of the question as it is now; those of earlier versions are only read."""
    run = read_run(write_run(tmp_path, tasks=("gsm8k",), n_questions=1))
    (first, *_), question = scored(run).responses, run.questions["gsm8k", "0"]
    nonsense = Verdict("nonsense", correct=True)
    run.responses = [replace(first, flexible=one, strict=one) for one in (nonsense, None)]
    assert scored(run).responses == [first, first]
    run.questions[question.key] = msgspec.structs.replace(question, gold="-7.5")
    right = replace(first, response="The final answer is -7.5", finish_reason="stop")
    run.responses = [first, right]
    assert [one.flexible and one.flexible.correct for one in scored(run).responses] == [False, True]
