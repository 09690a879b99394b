"""lm-evaluation-harness over HTTP, with a task of our own and no network."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import RunningServer

MODEL = "smollm2-135m"
QUESTIONS = """{"question": "The capital of France is", "answer": 0}
{"question": "Question: What is the capital of France? Answer:", "answer": 0}
"""
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_choice: [" Paris", " banana"]
metric_list: [{metric: acc}]
""",
    "text": """
output_type: generate_until
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 8}
metric_list: [{metric: exact_match}]
""",
}
COMMON = """
dataset_path: json
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def evaluate(server: RunningServer, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    (tmp_path / "questions.jsonl").write_text(QUESTIONS)
    data = f"dataset_kwargs: {{data_files: {{test: '{tmp_path / 'questions.jsonl'}'}}}}"
    for name, task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: {name}\n{data}{COMMON}{task}")

    def run(task: str, kind: str, path: str, model: str = MODEL, *options: str) -> dict[str, Any]:
        """Return the first sample of the harness's log."""
        arguments = f"model={model},base_url={server.url}/v1/{path},num_concurrent=2,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", arguments]
        command += ["--tasks", task, "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
        environment = os.environ | {
            "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"
        }  # fmt: skip
        result = subprocess.run(
            [*command, "--log_samples", *options],
            capture_output=True,
            text=True,
            env=environment,
            timeout=300,
        )
        assert result.returncode == 0, result.stderr[-3000:]
        [samples] = tmp_path.glob("out/**/samples_*.jsonl")
        return dict(json.loads(samples.read_text().splitlines()[0]))

    return run


def test_choices_are_scored_by_echoed_log_probabilities(evaluate: Callable[..., dict[str, Any]]) -> None:
    sample = evaluate("choice", "local-completions", "completions")
    (paris, _), (banana, _) = sample["filtered_resps"]
    assert banana < paris < 0
    assert sample["acc"] == 1


def test_texts_are_generated(evaluate: Callable[..., dict[str, Any]]) -> None:
    assert evaluate("text", "local-completions", "completions")["resps"][0][0]


def test_chats_are_answered_with_a_presets_temperature(evaluate: Callable[..., dict[str, Any]]) -> None:
    sample = evaluate(
        "text", "local-chat-completions", "chat/completions", f"{MODEL}:min-k-t5", "--apply_chat_template"
    )
    assert sample["resps"][0][0]
