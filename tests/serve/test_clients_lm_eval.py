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

    def run(tasks: str, kind: str, path: str, model: str = MODEL, *options: str) -> dict[str, Any]:
        """Return the first sample of each task, from the harness's log."""
        arguments = f"model={model},base_url={server.url}/v1/{path},num_concurrent=2,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", arguments]
        command += ["--tasks", tasks, "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
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
        logs = {task: next(tmp_path.glob(f"out/**/samples_{task}_*.jsonl")) for task in tasks.split(",")}
        return {task: json.loads(log.read_text().splitlines()[0]) for task, log in logs.items()}

    return run


def test_choices_are_scored_by_echoed_log_probabilities_and_texts_generated(
    evaluate: Callable[..., dict[str, Any]],
) -> None:
    samples = evaluate("choice,text", "local-completions", "completions")
    paris, banana = (float(logprob) for logprob, _ in samples["choice"]["filtered_resps"])
    assert banana < paris < 0
    assert samples["choice"]["acc"] == 1
    assert samples["text"]["resps"][0][0]


def test_chats_are_answered_with_a_presets_temperature(evaluate: Callable[..., dict[str, Any]]) -> None:
    model = f"{MODEL}:min-k-t5"
    samples = evaluate("text", "local-chat-completions", "chat/completions", model, "--apply_chat_template")
    assert samples["text"]["resps"][0][0]
