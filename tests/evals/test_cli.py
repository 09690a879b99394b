"""What `mink-eval` says about wrong input, in one sentence."""

import shutil
from pathlib import Path

import pytest

from tests.support.mink_eval import MinkEval


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["run", "gsm9k"], 2, "unknown task 'gsm9k'"),
        (["run"], 2, "Missing argument"),
        (["run", "no/such.jsonl"], 1, "no/such.jsonl cannot be read: No such file or directory"),
        (["run", "gsm8k", "--sampler", "max-k"], 2, "unknown sampler 'max-k': the samplers are min-k"),
        (["run", "gsm8k", "--model", "parrot"], 2, "unknown model 'parrot'"),
        (["run", "gsm8k", "--temp", "nan"], 2, "nan is not a finite number"),
        (["run", "gsm8k", "--temp", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["run", "gsm8k", "--limit", "0"], 2, "0 is not in the range x>=1"),
        (["run", "gsm8k", "--parallel", "0"], 2, "'0' is neither auto nor a number from 1"),
        (["run", "gsm8k", "--parallel", "many"], 2, "'many' is neither auto nor a number from 1"),
        (["run", "gsm8k", "--data", "no/such"], 1, "there is no file no/such"),
        (["run", "gsm8k", "aqua", "--data", __file__], 2, "names no task: write TASK="),
        (["run", "gsm8k", "--data", f"aqua={__file__}"], 2, "is for a task that is not run"),
        (["run", "gsm8k", "--data", __file__, "--data", __file__], 2, "--data is given twice for gsm8k"),
        (["run", "gsm8k", "--workers", "2"], 2, "are Ray's: give --executor ray too"),
        (["run", "gsm8k", "--rpc", "pc2"], 2, "'pc2' is not HOST:PORT"),
        (["run", "gsm8k", "--rpc", "pc2:1", "--executor", "ray"], 2, "--rpc is for one worker"),
        (["run", "gsm8k", "--data", __file__], 1, f"{__file__}, line 1"),
        (["run", "sample-math", "--out", __file__], 1, "cannot be written: File exists"),
        (["run", "sample-math", "--model", __file__], 1, "is not a GGUF file"),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path,
    arguments: list[str],
    status: int,
    complaint: str,
    mink_eval: MinkEval,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = mink_eval(*arguments)
    assert (result.status, result.stdout) == (status, "")
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("mink-eval: ")
    assert complaint in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_of_one_name_are_refused(tmp_path: Path, tiny_path: Path, mink_eval: MinkEval) -> None:
    other = tmp_path / tiny_path.name
    shutil.copy(tiny_path, other)
    result = mink_eval("run", "gsm8k", "--model", tiny_path, "--model", other)
    assert result.status == 2
    assert "have the same name: rename one" in result.stderr


def test_own_files(tmp_path: Path, mink_eval: MinkEval) -> None:
    for name in ("mine.jsonl", "other/mine.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"question": "Why?"}\n')
    two = mink_eval("run", tmp_path / "mine.jsonl", tmp_path / "other" / "mine.jsonl")
    assert "two files have the same name: rename one." in two.stderr
    data = mink_eval("run", tmp_path / "mine.jsonl", "--data", tmp_path / "mine.jsonl")
    assert "is for a task that has a name: leave it out." in data.stderr
