"""The manifest of a run: what is kept of its settings, and with which others it is refused."""

import hashlib
import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mink_local.errors import RunError
from mink_local.evals.run.folder import RunFolder
from mink_local.evals.run.manifest import Manifest
from tests.support.records import FOUR, QUESTION, WANTED, write_records


def changed(**changes: Any) -> dict[str, Any]:
    """WANTED with some values replaced, "/" in their names leading down."""
    wanted: dict[str, Any] = json.loads(json.dumps(WANTED))
    for path, value in changes.items():
        *way, last = path.split("/")
        entry = wanted
        for name in way:
            entry = entry[name]
        entry[last] = value
    return wanted


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"seed": 1}, "--seed was 0 and is 1"),
        ({"ctx": 512}, "--ctx was not given and is 512"),
        ({"stop": ["\nQ:", "A"]}, '--stop was not given and is "\\nQ:" "A"'),
        ({"tasks/gsm8k/shots": 2}, "--shots was 0 for gsm8k and is 2"),
        ({"models/tiny/sha256": "ff"}, "model tiny was another file than /models/tiny.gguf"),
        ({"tasks/gsm8k/data_sha256": "ff"}, "the data of gsm8k was another than gsm8k.jsonl"),
        ({"tasks/gsm8k/max_tokens": 65}, "--max-tokens was 64 for gsm8k and is 65"),
        ({"seed": 1, "ctx": 512}, "--seed was 0 and is 1; --ctx was not given and is 512"),
    ],
)
def test_what_would_mix_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    write_records(tmp_path, FOUR)
    before = (tmp_path / "manifest.json").read_text()
    with closing(RunFolder(tmp_path)) as folder, pytest.raises(RunError) as error:
        Manifest(folder, changed(**changes), {"gsm8k": [QUESTION]})
    assert f"{tmp_path} was started with other settings: {complaint}. " in str(error.value)
    assert "name another folder with --out" in str(error.value)
    assert (tmp_path / "manifest.json").read_text() == before


def test_another_version_question_or_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(tmp_path, [])
    with closing(RunFolder(tmp_path)) as folder:
        with pytest.raises(RunError, match="question 0 of gsm8k has another text or answer"):
            Manifest(folder, WANTED, {"gsm8k": [replace(QUESTION, gold="3")]})
        Manifest(folder, WANTED, {}).begin_session("tiny", "11", {})
        Manifest(folder, WANTED, {}).begin_session("tiny", "11", {})
        with pytest.raises(RunError, match="the chat template of tiny is another"):
            Manifest(folder, WANTED, {}).begin_session("tiny", "22", {})
        monkeypatch.setattr("mink_local.evals.run.manifest.__version__", "9.9")
        with pytest.raises(RunError, match=r"mink-local was .* and is 9\.9"):
            Manifest(folder, WANTED, {})


def test_more_of_everything_is_added(tmp_path: Path) -> None:
    write_records(tmp_path, [])
    more = changed(**{"models/large": {"path": "", "sha256": "cc"}})
    more["tasks"]["aqua"] = more["tasks"]["gsm8k"]
    with closing(RunFolder(tmp_path)) as folder:
        Manifest(folder, more, {"aqua": [QUESTION], "gsm8k": [QUESTION, replace(QUESTION, id="1")]})
        Manifest(folder, WANTED, {"gsm8k": [QUESTION]}).begin_session("tiny", "11", {"n_parallel": 4})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["models"]) == {"tiny", "large"}
    assert set(manifest["tasks"]) == {"gsm8k", "aqua"}
    assert manifest["sessions"][0]["n_parallel"] == 4
    written = (tmp_path / "questions.jsonl").read_bytes()
    assert manifest["questions_sha256"] == hashlib.sha256(written).hexdigest()
    lines = [json.loads(line) for line in written.splitlines()]
    assert [(line["task"], line["question_id"]) for line in lines] == [
        ("gsm8k", "0"), ("aqua", "0"), ("gsm8k", "1"),
    ]  # fmt: skip
    kept = {"prompt": "What is 1 + 1?", "gold": "2", "choices": [], "order": []}
    assert lines[0] == {"task": "gsm8k", "question_id": "0", **kept}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "seed": 0}', "\udcff"]
)
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, content: str) -> None:
    write_records(tmp_path, [])
    (tmp_path / "manifest.json").write_text(content, errors="surrogateescape")
    with closing(RunFolder(tmp_path)) as folder, pytest.raises(RunError, match=r"manifest.json is"):
        Manifest(folder, WANTED, {})


def test_a_manifest_of_the_future_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path, [])
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    with (
        closing(RunFolder(tmp_path)) as folder,
        pytest.raises(RunError, match="of another version of mink-eval"),
    ):
        Manifest(folder, WANTED, {})


def test_what_is_asked_for_grows(tmp_path: Path) -> None:
    grown = changed(**{"asked/samplers": ["top-p"], "asked/questions": {"gsm8k": 9}})
    write_records(tmp_path, [])
    for wanted in (WANTED, grown, grown, WANTED):
        with closing(RunFolder(tmp_path)) as folder:
            Manifest(folder, wanted, {})
    content = json.loads((tmp_path / "manifest.json").read_text())
    assert content["asked"] == [WANTED["asked"], grown["asked"]]


def test_a_run_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    """Its manifest says nothing of stop strings and examples, which it did not have, nor what was asked."""
    write_records(tmp_path, FOUR)
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    del content["stop"], content["asked"]
    path.write_text(json.dumps(content))
    with closing(RunFolder(tmp_path)) as folder:
        Manifest(folder, WANTED, {})
        with pytest.raises(RunError, match='--stop was not given and is "x"'):
            Manifest(folder, changed(stop=["x"]), {})
    assert "asked" not in json.loads(path.read_text())
