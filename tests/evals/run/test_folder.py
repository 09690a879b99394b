"""The folder of a run: its lock, and what a kill or a full disk leaves."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mink_local.errors import RunError
from mink_local.evals.run.folder import RECORDS, RunFolder
from mink_local.evals.run.manifest import Manifest
from mink_local.evals.run.records import read_responses, to_line
from tests.support.records import FOUR, RESPONSE, WANTED, disk_of, write_records


@settings(max_examples=40)
@given(cut=st.integers(1, len(to_line(RESPONSE))))
def test_a_line_cut_anywhere_is_mended(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("run")
    write_records(folder, FOUR)
    path = folder / RECORDS
    os.truncate(path, path.stat().st_size - cut)
    whole = 4 if cut == 1 else 3  # of one that lacks its line end alone nothing is lost
    assert len(list(read_responses(folder))) == whole  # a reader beside a run that is writing
    write_records(folder, FOUR[whole:])
    assert list(read_responses(folder)) == FOUR
    assert path.read_bytes() == b"".join(to_line(record) for record in FOUR)


@pytest.mark.parametrize("torn", [b"\0" * 5000, b'{"model"', to_line(RESPONSE) * 40 + b"{"])
def test_what_a_power_failure_leaves_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    write_records(tmp_path, FOUR)
    before = (tmp_path / RECORDS).read_bytes()
    with (tmp_path / RECORDS).open("ab") as stream:
        stream.write(torn)
    write_records(tmp_path, [])
    assert (tmp_path / RECORDS).read_bytes() == before + torn[: torn.rfind(b"\n") + 1]


@pytest.mark.posix
def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    write_records(tmp_path, [])
    fits = len(to_line(RESPONSE)) * 5 // 2
    with closing(RunFolder(tmp_path)) as folder:
        with disk_of(fits):
            folder.append(FOUR[0])
            folder.append(FOUR[1])
            with pytest.raises(RunError, match=r"cannot be written: File too large\. The records are kept"):
                folder.append(FOUR[2])
        assert (tmp_path / RECORDS).read_bytes() == b"".join(to_line(r) for r in FOUR[:2])
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
    (tmp_path / "bare" / RECORDS).write_bytes(to_line(RESPONSE))
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
