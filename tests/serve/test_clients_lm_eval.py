"""lm-evaluation-harness over HTTP, with a task of our own and no network."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local.generation.model import Model
from tests.support.server import RunningServer

MODEL = "smollm2-135m"
# Two choices with long endings as in PIQA, and four short ones as in ARC.
QUESTIONS = """\
{"question": "The capital of France is", "answer": 0, "choices": ["Paris", "banana"]}
{"question": "To boil an egg,", "answer": 1, "choices": ["freeze it first.", "put it into boiling water."]}
{"question": "To dry wet hands,", "answer": 0, "choices": ["rub them with a towel.", "put them in water."]}
{"question": "Which is a planet? Answer:", "answer": 2, "choices": ["iron", "a dog", "Mars", "rain"]}
{"question": "Which animal flies? Answer:", "answer": 3, "choices": ["pig", "cow", "cat", "eagle"]}
{"question": "What do plants need? Answer:", "answer": 0, "choices": ["light", "a car", "gold", "tea"]}
"""
TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_choice: choices
metric_list: [{metric: acc}, {metric: acc_norm}]
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
        """Return the samples of each task, from the harness's log."""
        out = tmp_path / kind
        arguments = f"model={model},base_url={server.url}/v1/{path},num_concurrent=2,max_retries=1"
        command = [sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", arguments]
        command += ["--tasks", tasks, "--include_path", str(tmp_path), "--output_path", str(out)]
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
        logs = {task: next(out.rglob(f"samples_{task}_*.jsonl")) for task in tasks.split(",")}
        return {task: list(map(json.loads, log.read_text().splitlines())) for task, log in logs.items()}

    return run


def test_choices_are_scored_as_in_process_and_texts_generated(
    evaluate: Callable[..., dict[str, Any]], smollm2: Model
) -> None:
    samples = evaluate("choice,text", "local-completions", "completions")
    assert len(samples["choice"]) == 6
    assert samples["choice"][0]["acc"] == 1
    for served in samples["choice"]:
        asked, choices = served["doc"]["question"], served["doc"]["choices"]
        context = smollm2.prompt_tokens(asked)
        wholes = [smollm2.prompt_tokens(f"{asked} {choice}") for choice in choices]
        scored = smollm2.logprobs([(context, whole[len(context) :]) for whole in wholes])
        found = [float(logprob) for logprob, _ in served["filtered_resps"]]
        assert found == pytest.approx(list(map(sum, scored)), abs=0.2)
    assert samples["text"][0]["resps"][0][0]


def test_chats_are_answered_with_a_presets_temperature(evaluate: Callable[..., dict[str, Any]]) -> None:
    model = f"{MODEL}:min-k-t5"
    samples = evaluate("text", "local-chat-completions", "chat/completions", model, "--apply_chat_template")
    assert samples["text"][0]["resps"][0][0]
