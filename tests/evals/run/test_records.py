"""The records of a run: reading, lock, and what a kill or a full disk leaves."""

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mink_local.errors import RunError
from mink_local.evals.run.manifest import Manifest
from mink_local.evals.run.records import (
    CUT_SHORT,
    RECORDS,
    Complaint,
    RunFolder,
    parse_response,
    read_lines,
    read_responses,
)
from tests.support.records import FOUR, RESPONSE, WANTED, disk_of, write_records

# As mink-eval 0.1 wrote it: its records must stay readable.
OLD_LINE = (
    b'{"model":"tiny","task":"gsm8k","sampler":"min-k:tau=3","temperature":5.0,"order":null,"repeat":0,'
    b'"question_id":"7","response":"Four\\nand\\u2028\\u201c20\\u201d: \\ud83d\\ude00","n_tokens":9,'
    b'"finish_reason":"stop","k":[1,2,300],"strict":{"answer":null,"correct":false},'
    b'"flexible":{"answer":"20","correct":true},"seed":1,"prompt_sha256":"00","prompt_tokens":20,"seconds":0.5}\n'
)


def test_the_format_of_a_line_is_that_of_stored_runs() -> None:
    assert RESPONSE.line() == OLD_LINE
    assert parse_response(json.loads(OLD_LINE)) == RESPONSE


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_records(tmp_path / "new" / "run", FOUR[:3])
    write_records(tmp_path / "new" / "run", FOUR[3:])
    assert list(read_responses(tmp_path / "new" / "run")) == FOUR
    assert (tmp_path / "new" / "run" / RECORDS).read_bytes().count(b"\n") == 4


def test_every_jsonl_of_records_is_read_and_no_key_twice(tmp_path: Path) -> None:
    """The records of another machine, for example, may be put into the folder."""
    write_records(tmp_path, FOUR[:2])
    (tmp_path / "other.jsonl").write_bytes(b"".join(record.line() for record in FOUR))
    (tmp_path / "notes.jsonl").write_text('{"note": "no record"}\n')
    assert sorted(read_responses(tmp_path), key=lambda record: record.question_id) == FOUR


@settings(max_examples=40)
@given(cut=st.integers(1, len(RESPONSE.line())))
def test_a_line_cut_anywhere_is_mended(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_records(folder, FOUR)
    path = folder / RECORDS
    os.truncate(path, path.stat().st_size - cut)
    whole = 4 if cut == 1 else 3  # of one that lacks its line end alone nothing is lost
    assert len(list(read_responses(folder))) == whole  # a reader beside a run that is writing
    write_records(folder, FOUR[whole:])
    assert list(read_responses(folder)) == FOUR
    assert path.read_bytes() == b"".join(record.line() for record in FOUR)


@pytest.mark.parametrize("torn", [b"\0" * 5000, b'{"model"', RESPONSE.line() * 40 + b"{"])
def test_what_a_power_failure_leaves_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    write_records(tmp_path, FOUR)
    before = (tmp_path / RECORDS).read_bytes()
    with (tmp_path / RECORDS).open("ab") as stream:
        stream.write(torn)
    write_records(tmp_path, [])
    assert (tmp_path / RECORDS).read_bytes() == before + torn[: torn.rfind(b"\n") + 1]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    write_records(tmp_path, FOUR)
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


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": 3}, '"model" cannot be 3'),
        ({"sampler": "min-k\x1b[2J"}, '"sampler" cannot be "min-k\\u001b[2J"'),
        ({"temperature": -1}, '"temperature" cannot be -1.0'),
        ({"temperature": True}, '"temperature" cannot be true'),
        ({"repeat": 1.0}, '"repeat" cannot be 1.0'),
        ({"k": [1, "2"]}, '"k" cannot be "2"'),
        ({"strict": {"answer": None}}, 'no "correct"'),
        ({"seed": None}, '"seed" cannot be null'),
    ],
)
def test_a_complaint_names_the_field(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    path = tmp_path / RECORDS
    wrong = json.dumps({**json.loads(OLD_LINE), **changes}).encode() + b"\n"
    path.write_bytes(FOUR[0].line() + b"\r\n" + wrong + FOUR[1].line().replace(b"\n", b"\r\n") + b'{"mod')
    items = list(read_lines(path, parse_response))
    assert items == [(1, FOUR[0]), (3, complaint), (4, FOUR[1]), (5, CUT_SHORT)]
    assert [isinstance(item, Complaint) for _, item in items] == [False, True, False, True]


def test_a_file_of_others_may_lack_what_is_not_reported() -> None:
    line = json.loads(OLD_LINE)
    for name in ("seed", "prompt_sha256", "prompt_tokens", "seconds"):
        del line[name]
    assert parse_response(line).key == RESPONSE.key


@pytest.mark.posix
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    write_records(tmp_path, [])
    fits = len(RESPONSE.line()) * 5 // 2
    with closing(RunFolder(tmp_path)) as folder:
        with disk_of(fits):
            folder.append(FOUR[0])
            folder.append(FOUR[1])
            with pytest.raises(RunError, match=r"cannot be written: File too large\. The records are kept"):
                folder.append(FOUR[2])
        assert (tmp_path / RECORDS).read_bytes() == b"".join(r.line() for r in FOUR[:2])
        folder.append(FOUR[2])
    assert list(read_responses(tmp_path)) == FOUR[:3]


@pytest.mark.posix
def test_a_manifest_that_does_not_fit_leaves_the_old_one(tmp_path: Path) -> None:
    write_records(tmp_path, FOUR)
    before = (tmp_path / "manifest.json").read_text()
    with (
        closing(RunFolder(tmp_path)) as folder,
        disk_of(20),
        pytest.raises(RunError, match=r"manifest.json cannot"),
    ):
        Manifest(folder, WANTED, {})
    assert (tmp_path / "manifest.json").read_text() == before


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with closing(RunFolder(tmp_path)), pytest.raises(RunError, match="another mink-eval is writing to"):
        RunFolder(tmp_path)
    RunFolder(tmp_path).close()


@pytest.mark.posix  # whose error messages it has
def test_folders_that_hold_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / RECORDS).write_bytes(RESPONSE.line())
    for name, complaint in [
        ("file", "file cannot be written: File exists"),
        ("file/run", "run cannot be written: Not a directory"),
        ("full", "full holds other files and no run"),
        ("bare", r"bare has records and no manifest.json"),
    ]:
        with pytest.raises(RunError, match=complaint):
            RunFolder(tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


@pytest.mark.linux
def test_a_folder_that_may_not_be_written() -> None:
    with pytest.raises(RunError, match="/proc/run cannot be written: "):  # not even by root
        RunFolder(Path("/proc/run"))


def test_a_run_that_was_killed_at_once_can_be_started_again(tmp_path: Path) -> None:
    for name in (RECORDS, ".lock", "questions.jsonl", ".manifest.json.k1ll3d.part"):
        (tmp_path / name).touch()
    RunFolder(tmp_path).close()
