"""`mink-eval coverage`: its files, going on after a stop, and what it refuses."""

import json
from pathlib import Path

import pytest

from mink_local.evals.coverage.tree import walk
from tests.support.mink_eval import Finished, MinkEval

PROMPTS: list[dict[str, object]] = [
    {"id": "coin", "prompt": "Name one side of a coin.", "answers": [["heads", "obverse"], "tails"]},
    {"id": "digit", "prompt": "Name one digit.", "answers": list("0123456789")},
    {"id": "day", "prompt": "Name one day of the weekend.", "answers": ["Saturday", "Sunday"]},
]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS), "utf-8")
    return path


@pytest.fixture
def coverage(mink_eval: MinkEval, tiny_path: Path, prompts: Path) -> "Coverage":
    return Coverage(mink_eval, tiny_path, prompts)


class Coverage:
    """`coverage(folder, *options)` measures two methods with a small random model."""

    def __init__(self, mink_eval: MinkEval, model: Path, prompts: Path) -> None:
        self._run = mink_eval
        self._options = ["-m", model, "--threads", 1, "--prompts", prompts, "-s", "top-p", "-s", "min-k"]

    def __call__(self, folder: Path, *options: object) -> Finished:
        return self._run("coverage", *self._options, "--out", folder, *options)


def content(folder: Path) -> dict[str, object]:
    """Return what a folder's JSON holds, except the times."""
    found: dict[str, object] = json.loads((folder / "coverage.json").read_text("utf-8"))
    rows = found["results"]
    assert isinstance(rows, list)
    assert all(row.pop("seconds") >= 0 for row in rows)
    return found


def test_a_run_writes_table_picture_and_figures(coverage: Coverage, tmp_path: Path) -> None:
    finished = coverage(tmp_path / "out", "-t", 0.5, "-t", "inf")
    assert finished.status == 0, finished.stderr
    assert "3 of 3  day: " in finished.stderr
    found = content(tmp_path / "out")
    about, rows = found["about"], found["results"]
    assert isinstance(about, dict)
    assert isinstance(rows, list)
    assert about["methods"] == [
        ["top-p:p=0.9,order=temperature-first", 0.5], ["top-p:p=0.9,order=temperature-first", "inf"],
        ["min-k:tau=3", 0.5], ["min-k:tau=3", "inf"], ["greedy", 1.0],
    ]  # fmt: skip
    assert [row["id"] for row in rows] == ["coin", "digit", "day"]
    n_cells = len(about["methods"]) + len(about["oracle"])
    for row in rows:
        assert {len(row[name]) for name in ("valid", "rest", "coverage", "evenness")} == {n_cells}
        assert len(row["top"]) == len(about["methods"])
        assert max(row["rest"]) <= about["rest"] == 0.01
    text = (tmp_path / "out" / "coverage.md").read_text("utf-8")
    assert "| top-p:p=0.9 (T first) | ∞ |" in text
    assert "| greedy | 1 |" in text
    assert (tmp_path / "out" / "coverage.svg").read_text("utf-8").startswith("<?xml")


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(
    coverage: Coverage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert coverage(tmp_path / "whole", "-t", 1).status == 0
    walked = []

    def stopped(*arguments: object) -> object:
        walked.append(arguments)
        if len(walked) == 2:
            raise KeyboardInterrupt
        return walk(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr("mink_local.evals.coverage.run.walk", stopped)
        assert coverage(tmp_path / "parts", "-t", 1).status == 130
    assert len(content(tmp_path / "parts")["results"]) == 1  # type: ignore[arg-type]
    finished = coverage(tmp_path / "parts", "-t", 1)
    assert finished.status == 0
    assert "1 of 2  digit" in finished.stderr
    assert content(tmp_path / "parts") == content(tmp_path / "whole")
    again = coverage(tmp_path / "parts", "-t", 1)
    assert (again.status, again.stderr) == (0, "")
    other = coverage(tmp_path / "parts", "-t", 2)
    assert other.status == 1
    assert "was measured with other settings (methods, oracle): give those, or name another" in other.stderr
    (tmp_path / "parts" / "coverage.json").write_text("{}")
    assert "coverage.json is damaged: name another --out" in coverage(tmp_path / "parts", "-t", 1).stderr


@pytest.mark.parametrize(
    ("options", "status", "error"),
    [
        (("-t", "0"), 2, "0"),
        (("-t", "nan"), 2, "nan"),
        (("-s", "mirostat"), 1, "mirostat has no distribution of its own"),
        (("--rest", "0"), 2, "--rest"),
        (("--prompts", "none.jsonl"), 1, "none.jsonl cannot be read"),
    ],
)
def test_what_is_refused(
    coverage: Coverage, tmp_path: Path, options: tuple[str, ...], status: int, error: str
) -> None:
    finished = coverage(tmp_path / "out", *options)
    assert finished.status == status
    assert error in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "out" / "coverage.json").exists()


def test_a_prompt_that_is_too_long(coverage: Coverage, tmp_path: Path) -> None:
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({**PROMPTS[0], "prompt": "heads or tails? " * 5000}) + "\n")
    finished = coverage(tmp_path / "out", "--prompts", long)
    assert finished.status == 1
    assert "the prompt 'coin' is" in finished.stderr
    assert finished.stderr.rstrip().endswith("shorten it")
