"""Scoring stored responses again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals.report import rescore as module
from mink_local.evals.report.recorded_run import read_run
from mink_local.evals.report.rescore import rescore
from mink_local.evals.tasks import Verdict
from tests.support.made_run import change, write_run


@pytest.mark.parametrize("in_one_process", [True, False])
def test_stored_responses_are_scored_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_one_process: bool
) -> None:
    write_run(tmp_path, samplers=("min-k:tau=3",), temperatures=(1.0,), n_questions=6)
    recorded = read_run(tmp_path)
    monkeypatch.setattr(module, "CHUNK", 500 if in_one_process else 15)  # of 24 responses

    def misjudge(record: dict[str, Any]) -> None:
        if int(record["question_id"]) < 5:
            record["strict"] = {"answer": "nonsense", "correct": not record["strict"]["correct"]}

    changed = read_run(change(tmp_path, misjudge))
    assert changed.responses != recorded.responses
    before = (tmp_path / "records.jsonl").read_bytes()
    assert rescore(changed) == recorded
    assert (tmp_path / "records.jsonl").read_bytes() == before


def test_an_unknown_task_keeps_its_verdicts(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, tasks=("gsm8k",), n_questions=1))
    known = run.responses[0]
    unknown = replace(known, task="gsm9k", strict=Verdict("nonsense", correct=True))
    run.questions["gsm9k", known.question_id] = run.questions["gsm8k", known.question_id]
    run.responses = [known, unknown]
    assert rescore(run).responses == [known, unknown]
