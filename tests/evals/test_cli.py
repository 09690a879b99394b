"""What `mink-eval` says about wrong input, in one sentence."""

import os
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import click
import pytest

from mink_local.evals.cli import cli
from mink_local.evals.tasks import TASKS
from mink_local.models.placement import PlacementOptions
from tests.evals.conftest import Write
from tests.support.made_run import write_run
from tests.support.mink_eval import MINK_EVAL, MinkEval, read_responses
from tests.support.python import output_of


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["run", "gsm9k"], 2, "gsm9k"),
        (["run"], 2, "TASK"),
        (["run", "no/such.jsonl"], 2, str(Path("no/such.jsonl"))),
        (["run", "gsm8k", "--sampler", "max-k"], 2, "max-k"),
        (["run", "gsm8k", "--model", "parrot"], 2, "parrot"),
        (["run", "gsm8k", "--temp", "nan"], 2, "nan"),
        (["run", "gsm8k", "--temp", "-1"], 2, "-1"),
        (["run", "gsm8k", "--limit", "0"], 2, "at least 1"),
        (["run", "gsm8k", "--parallel", "0"], 2, "--parallel"),
        (["run", "gsm8k", "--parallel", "many"], 2, "'many'"),
        (["run", "gsm8k", "--data", "no/such"], 1, str(Path("no/such"))),
        (["run", "gsm8k", "--data", str(Path(__file__).parent)], 1, str(Path(__file__).parent)),
        (["run", "gsm8k", "--data", "long" * 999], 1, "longlong"),
        (["run", "gpqa"], 1, "gpqa_main.csv"),
        (["run", "gsm8k", "aqua", "--data", __file__], 2, "TASK="),
        (["run", "gsm8k", "--data", f"aqua={__file__}"], 1, "aqua="),
        (["run", "gsm8k", "--data", __file__, "--data", __file__], 2, "twice for gsm8k"),
        (["run", "gsm8k", "--rpc", "pc2"], 2, "'pc2'"),
        (["run", "gsm8k", "--rpc", "pc2:1", "--ray", "local"], 2, "--rpc"),
        (["run", "gsm8k", "--data", __file__], 1, f"{__file__}, line 1"),
        (["run", "sample-math", "--out", __file__], 2, Path(__file__).name),
        (["run", "sample-math", "--model", __file__], 1, "GGUF"),
        (["report", ".", "--against", "q05-Q2_K"], 2, "model=q05-Q2_K"),
        (["frontier", "--reference", "smollm2-135m", "--text", "x"], 2, "'--model'"),
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
    result.refused(status, complaint)
    assert result.stdout == ""
    assert result.stderr.startswith("mink-eval: ")
    assert list(tmp_path.iterdir()) == []


def test_models_of_one_name_have_their_folders_names(
    tmp_path: Path, here: list[object], tiny_path: Path, mink_eval: MinkEval
) -> None:
    other = tmp_path / "larger" / tiny_path.name
    other.parent.mkdir()
    shutil.copy(tiny_path, other)
    mink_eval.run(*here, "--model", other, "-n", 2, "--limit", 1, "-t", 0, "--out", tmp_path / "run")
    names = {record.model for record in read_responses(tmp_path / "run")}
    assert names == {tiny_path.stem, f"larger/{tiny_path.stem}"}
    again = tmp_path / "again" / "larger" / tiny_path.name
    again.parent.mkdir(parents=True)
    shutil.copy(tiny_path, again)
    refused = mink_eval("run", "gsm8k", *here, "--model", other, "--model", again)
    refused.refused(2, f"larger/{tiny_path.stem}")


def test_own_files(write: Write, mink_eval: MinkEval) -> None:
    mine, other = (write({"question": "Why?"}, name=name) for name in ("mine.jsonl", "mine.json"))
    mink_eval("run", mine, other).refused(2)
    mink_eval("run", mine, "--data", mine).refused(2)


def test_the_tasks_are_in_the_help(mink_eval: MinkEval) -> None:
    assert {*TASKS} <= {*re.findall("[a-z0-9-]+", mink_eval("run", "--help").stdout)}


def test_results_that_no_command_reads_are_refused(tmp_path: Path, mink_eval: MinkEval) -> None:
    manifest = tmp_path / "manifest.json"
    for content, named in (('{"format": 1, "measures": "steps"}', "mink-eval steps"), ("{", manifest)):
        manifest.write_text(content)
        mink_eval("report", tmp_path).refused(1, named)
        assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_the_files_are_there_though_the_reader_of_the_output_has_left(tmp_path: Path) -> None:
    run = write_run(tmp_path, tasks=("essay",), samplers=("greedy",), n_questions=1)
    read, write = os.pipe()
    os.close(read)
    finished = subprocess.run([*MINK_EVAL, "report", run], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (finished.returncode, finished.stderr) == (0, b"")
    assert (run / "report" / "report.html").exists()


def test_help_imports_no_library_of_reports() -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(('llama_cpp', 'matplotlib', 'pandas')); "
        "from mink_local.evals.cli import main; main()"
    )
    assert "--sampler" in output_of("-c", program, "run", "--help")


def test_help_has_few_commands_and_placement_at_the_end() -> None:
    assert len(cli.commands) <= 8
    placement = {"cpu_moe", *(field.name for field in fields(PlacementOptions))}
    for name in ("run", "frontier", "judge", "quants"):
        names = [str(option.name) for option in cli.commands[name].params]
        assert set(names[-len(placement) :]) == placement


def test_an_option_means_the_same_in_all_commands() -> None:
    """Its names, what it takes and whether it is repeatable; a default and a range may differ."""
    kinds = (click.types.FloatParamType, click.types.IntParamType, click.Choice, click.Path, click.ParamType)
    found: dict[str, set[tuple[object, ...]]] = {}
    for command in cli.commands.values():
        for option in command.params:
            if isinstance(option, click.Option):
                kind = next(kind for kind in kinds if isinstance(option.type, kind))
                meaning = (*sorted(option.opts), kind, option.multiple, option.is_flag)
                found.setdefault(str(option.name), set()).add(meaning)
    assert {name: meanings for name, meanings in found.items() if len(meanings) > 1} == {}
