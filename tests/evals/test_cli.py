"""What `mink-eval` says about wrong input, in one sentence."""

import json
import shutil
from pathlib import Path

import click
import pytest

from mink_local.evals.cli import cli
from mink_local.evals.tasks import TASKS
from tests.support.mink_eval import MinkEval, read_responses
from tests.support.python import output_of


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["run", "gsm9k"], 2, "gsm9k"),
        (["run"], 2, "TASK"),
        (["run", "no/such.jsonl"], 1, "no/such.jsonl"),
        (["run", "gsm8k", "--sampler", "max-k"], 2, "max-k"),
        (["run", "gsm8k", "--model", "parrot"], 2, "parrot"),
        (["run", "gsm8k", "--temp", "nan"], 2, "nan"),
        (["run", "gsm8k", "--temp", "-1"], 2, "-1"),
        (["run", "gsm8k", "--limit", "0"], 2, "x>=1"),
        (["run", "gsm8k", "--parallel", "0"], 2, "'0'"),
        (["run", "gsm8k", "--parallel", "many"], 2, "'many'"),
        (["run", "gsm8k", "--data", "no/such"], 1, "no/such"),
        (["run", "gsm8k", "aqua", "--data", __file__], 2, "TASK="),
        (["run", "gsm8k", "--data", f"aqua={__file__}"], 2, "aqua="),
        (["run", "gsm8k", "--data", __file__, "--data", __file__], 2, "twice for gsm8k"),
        (["run", "gsm8k", "--workers", "2"], 2, "--executor ray"),
        (["run", "gsm8k", "--rpc", "pc2"], 2, "'pc2'"),
        (["run", "gsm8k", "--rpc", "pc2:1", "--executor", "ray"], 2, "--rpc"),
        (["run", "gsm8k", "--data", __file__], 1, f"{__file__}, line 1"),
        (["run", "sample-math", "--out", __file__], 2, __file__),
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


def test_own_files(tmp_path: Path, mink_eval: MinkEval) -> None:
    for name in ("mine.jsonl", "other/mine.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"question": "Why?"}\n')
    mink_eval("run", tmp_path / "mine.jsonl", tmp_path / "other" / "mine.jsonl").refused(2)
    mink_eval("run", tmp_path / "mine.jsonl", "--data", tmp_path / "mine.jsonl").refused(2)


def test_the_tasks_are_listed(mink_eval: MinkEval) -> None:
    listed = mink_eval("tasks").stdout
    assert [line.split()[0] for line in listed.splitlines()] == [*TASKS, "FILE.jsonl"]


@pytest.mark.parametrize(
    ("measures", "report"),
    [
        ("run", "report.page.report_run"),
        ("frontier", "frontier.measure.Frontier.report"),
        ("coverage", "coverage.measure.Walks.report"),
        ("judge", "judge.judgements.Judging.report"),
    ],
)
def test_every_folder_has_its_own_report(
    measures: str, report: str, tmp_path: Path, mink_eval: MinkEval, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the judgements and the votes that are in folders of it."""
    reported = []
    for name in (report, "judge.judgements.Judging.report", "judge.people.report_votes"):
        monkeypatch.setattr(f"mink_local.evals.{name}", lambda *_, name=name: reported.append(name))
    monkeypatch.setattr("mink_local.evals.measurement.read_results", lambda folder, _: folder)
    (tmp_path / "manifest.json").write_text(json.dumps({"measures": measures}))
    assert mink_eval("report", tmp_path).status == 0
    assert reported == [report]
    (tmp_path / "judge").mkdir()
    (tmp_path / "sheet").mkdir()
    (tmp_path / "sheet" / "votes-Ann.json").touch()
    assert mink_eval("report", tmp_path).status == 0
    assert reported[1:] == [report, "judge.judgements.Judging.report", "judge.people.report_votes"]


def test_help_imports_no_library_of_reports() -> None:
    program = (
        "import sys; sys.modules |= dict.fromkeys(('llama_cpp', 'matplotlib', 'pandas')); "
        "from mink_local.evals.cli import main; main()"
    )
    assert "--sampler" in output_of("-c", program, "run", "--help")


def test_an_option_means_the_same_in_all_commands() -> None:
    """Its names and type; a default may differ."""
    found: dict[str, set[tuple[object, ...]]] = {}
    for name, command in cli.commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and name != "lm-eval":
                found.setdefault(str(option.name), set()).add((*sorted(option.opts), option.multiple))
    assert {name: meanings for name, meanings in found.items() if len(meanings) > 1} == {}
