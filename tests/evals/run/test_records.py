"""The folder of a run: records, lock, manifest, and what a kill or a full disk leaves."""

import json
import os
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.errors import RunError
from mink_local.evals.run.manifest import Manifest
from mink_local.evals.run.records import RECORDS, Response, RunFolder, read_responses
from mink_local.evals.tasks.base import Question, Verdict

RECORD = Response(
    model="tiny",
    task="gsm8k",
    sampler="min-k:tau=3",
    temperature=5.0,
    order=None,
    repeat=0,
    question_id="7",
    seed=1,
    prompt_sha256="00",
    prompt_tokens=20,
    response="Four\nand\u2028“20”: \U0001f600",
    n_tokens=9,
    finish_reason="stop",
    k=[1, 2, 300],
    seconds=0.5,
    strict=Verdict(None, False),
    flexible=Verdict("20", True),
)
RECORDS_OF_FOUR = [replace(RECORD, question_id=str(i)) for i in range(4)]
QUESTION = Question("0", "What is 1 + 1?", "2")
WANTED: dict[str, Any] = {
    "seed": 0,
    "ctx": None,
    "models": {"tiny": {"path": "/models/tiny.gguf", "sha256": "aa"}},
    "tasks": {"gsm8k": {"data": "gsm8k.jsonl", "data_sha256": "bb", "max_tokens": 64}},
}


def write(folder: Path, records: list[Response]) -> None:
    with closing(RunFolder(folder)) as store:
        Manifest(store, WANTED, {"gsm8k": [QUESTION]})
        for record in records:
            store.append(record)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "new" / "run", RECORDS_OF_FOUR[:3])
    write(tmp_path / "new" / "run", RECORDS_OF_FOUR[3:])
    assert list(read_responses(tmp_path / "new" / "run")) == RECORDS_OF_FOUR
    assert (tmp_path / "new" / "run" / RECORDS).read_bytes().count(b"\n") == 4


def test_every_jsonl_of_records_is_read_and_no_key_twice(tmp_path: Path) -> None:
    """Such as the records of another machine, put beside."""
    write(tmp_path, RECORDS_OF_FOUR[:2])
    (tmp_path / "other.jsonl").write_bytes(b"".join(record.line() for record in RECORDS_OF_FOUR))
    (tmp_path / "notes.jsonl").write_text('{"note": "no record"}\n')
    assert sorted(read_responses(tmp_path), key=lambda record: record.question_id) == RECORDS_OF_FOUR


@given(cut=st.integers(1, len(RECORD.line())))
def test_a_line_cut_anywhere_is_mended(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    write(folder, RECORDS_OF_FOUR)
    path = folder / RECORDS
    os.truncate(path, path.stat().st_size - cut)
    whole = 4 if cut == 1 else 3  # of one that lacks its line end alone nothing is lost
    assert len(list(read_responses(folder))) == whole  # a reader beside a run that is writing
    write(folder, RECORDS_OF_FOUR[whole:])
    assert list(read_responses(folder)) == RECORDS_OF_FOUR
    assert path.read_bytes() == b"".join(record.line() for record in RECORDS_OF_FOUR)


@pytest.mark.parametrize("torn", [b"\0" * 5000, b'{"model"', RECORD.line() * 40 + b"{"])
def test_what_a_power_failure_leaves_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    write(tmp_path, RECORDS_OF_FOUR)
    before = (tmp_path / RECORDS).read_bytes()
    with (tmp_path / RECORDS).open("ab") as stream:
        stream.write(torn)
    write(tmp_path, [])
    assert (tmp_path / RECORDS).read_bytes() == before + torn[: torn.rfind(b"\n") + 1]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write(tmp_path, RECORDS_OF_FOUR)
    lines = (tmp_path / RECORDS).read_bytes().splitlines(keepends=True)
    for damage in (
        b"{\n",
        b"17\n",
        b'{"response": ""}\n',
        b"\xff\n",
        lines[0].replace(b'"correct"', b'"right"'),
    ):
        (tmp_path / RECORDS).write_bytes(b"".join([*lines[:2], damage, lines[3]]))
        with pytest.raises(RunError, match=r"line 3 of .*records.jsonl is not a record"):
            list(read_responses(tmp_path))


@contextmanager
def disk_of(n_bytes: int) -> Iterator[None]:
    """No file can be written beyond so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    write(tmp_path, [])
    fits = len(RECORD.line()) * 5 // 2
    with closing(RunFolder(tmp_path)) as store:
        with disk_of(fits):
            store.append(RECORDS_OF_FOUR[0])
            store.append(RECORDS_OF_FOUR[1])
            with pytest.raises(RunError, match=r"cannot be written: File too large\. The records are kept"):
                store.append(RECORDS_OF_FOUR[2])
        assert (tmp_path / RECORDS).read_bytes() == b"".join(r.line() for r in RECORDS_OF_FOUR[:2])
        store.append(RECORDS_OF_FOUR[2])
    assert list(read_responses(tmp_path)) == RECORDS_OF_FOUR[:3]


def test_a_manifest_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, RECORDS_OF_FOUR)
    before = (tmp_path / "manifest.json").read_text()
    with (
        closing(RunFolder(tmp_path)) as store,
        disk_of(20),
        pytest.raises(RunError, match=r"manifest.json cannot"),
    ):
        Manifest(store, WANTED, {})
    assert (tmp_path / "manifest.json").read_text() == before


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path)), pytest.raises(RunError, match="another mink-eval is writing to"):
        RunFolder(tmp_path)
    RunFolder(tmp_path).close()


def test_folders_that_are_none_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / RECORDS).write_bytes(RECORD.line())
    for name, complaint in [
        ("file", "file cannot be written: File exists"),
        ("file/run", "run cannot be written: Not a directory"),
        ("full", "full holds other files and no run"),
        ("bare", r"bare has records and no manifest.json"),
    ]:
        with pytest.raises(RunError, match=complaint):
            RunFolder(tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_a_folder_that_may_not_be_written() -> None:
    with pytest.raises(RunError, match="/proc/run cannot be written: "):  # not even by root
        RunFolder(Path("/proc/run"))


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
        ({"models/tiny/sha256": "ff"}, "model tiny was another file than /models/tiny.gguf"),
        ({"tasks/gsm8k/data_sha256": "ff"}, "the data of gsm8k was another than gsm8k.jsonl"),
        ({"tasks/gsm8k/max_tokens": 65}, "--max-tokens was 64 for gsm8k and is 65"),
        ({"seed": 1, "ctx": 512}, "--seed was 0 and is 1; --ctx was not given and is 512"),
    ],
)
def test_what_would_mix_is_refused(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    write(tmp_path, RECORDS_OF_FOUR)
    before = (tmp_path / "manifest.json").read_text()
    with closing(RunFolder(tmp_path)) as store, pytest.raises(RunError) as error:
        Manifest(store, changed(**changes), {"gsm8k": [QUESTION]})
    assert f"{tmp_path} was started with other settings: {complaint}. " in str(error.value)
    assert "name another folder with --out" in str(error.value)
    assert (tmp_path / "manifest.json").read_text() == before


def test_another_version_question_or_template_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, [])
    with closing(RunFolder(tmp_path)) as store:
        with pytest.raises(RunError, match="question 0 of gsm8k has another text or answer"):
            Manifest(store, WANTED, {"gsm8k": [replace(QUESTION, gold="3")]})
        Manifest(store, WANTED, {}).begin_session("tiny", "11", {})
        Manifest(store, WANTED, {}).begin_session("tiny", "11", {})
        with pytest.raises(RunError, match="the chat template of tiny is another"):
            Manifest(store, WANTED, {}).begin_session("tiny", "22", {})
        monkeypatch.setattr("mink_local.evals.run.manifest.__version__", "9.9")
        with pytest.raises(RunError, match=r"mink-local was .* and is 9\.9"):
            Manifest(store, WANTED, {})


def test_more_of_everything_is_added(tmp_path: Path) -> None:
    write(tmp_path, [])
    more = changed(**{"models/large": {"path": "", "sha256": "cc"}})
    more["tasks"]["aqua"] = more["tasks"]["gsm8k"]
    with closing(RunFolder(tmp_path)) as store:
        Manifest(store, more, {"aqua": [QUESTION], "gsm8k": [QUESTION, replace(QUESTION, id="1")]})
        Manifest(store, WANTED, {"gsm8k": [QUESTION]}).begin_session("tiny", "11", {"n_parallel": 4})
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["models"]) == {"tiny", "large"}
    assert set(manifest["tasks"]) == {"gsm8k", "aqua"}
    assert manifest["sessions"][0]["n_parallel"] == 4
    lines = [json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()]
    assert [(line["task"], line["question_id"]) for line in lines] == [
        ("gsm8k", "0"), ("aqua", "0"), ("gsm8k", "1"),
    ]  # fmt: skip
    kept = {"prompt": "What is 1 + 1?", "gold": "2", "choices": [], "order": []}
    assert lines[0] == {"task": "gsm8k", "question_id": "0", **kept}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "seed": 0}', "\udcff"]
)
def test_a_damaged_manifest_is_one_sentence(tmp_path: Path, content: str) -> None:
    write(tmp_path, [])
    (tmp_path / "manifest.json").write_text(content, errors="surrogateescape")
    with closing(RunFolder(tmp_path)) as store, pytest.raises(RunError, match=r"manifest.json is"):
        Manifest(store, WANTED, {})


def test_a_manifest_of_the_future_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [])
    (tmp_path / "manifest.json").write_text('{"format": 2}')
    with (
        closing(RunFolder(tmp_path)) as store,
        pytest.raises(RunError, match="of another version of mink-eval"),
    ):
        Manifest(store, WANTED, {})
