"""The folder of a measurement: rows survive kills and full disks, and settings only grow."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mink_local.errors import RunError
from mink_local.evals import store as module
from mink_local.evals.store import MANIFEST, ROWS, Store, read_manifest
from tests.support.records import disk_of

SETTINGS: dict[str, Any] = {"seed": 0, "stop": [], "models": {"tiny": {"path": "/a/tiny", "sha256": "aa"}}}


class Number(msgspec.Struct, frozen=True):
    name: str
    value: int

    @property
    def key(self) -> str:
        return self.name


def opened(folder: Path, revision: int = 1, **changes: Any) -> Store[Number]:
    store = Store[Number](folder, "numbers", SETTINGS | changes, revision=revision)
    store.read(Number)
    return store


def write(folder: Path, *names: str) -> None:
    with opened(folder) as store:
        for name in names:
            store.append(Number(name, len(name)))


def test_rows_are_there_again(tmp_path: Path) -> None:
    write(tmp_path, "a", "\u2028", "long " * 999)
    with opened(tmp_path) as store:
        assert list(store.found.by_key) == ["a", "\u2028", "long " * 999]
        assert store.found.by_key["a"] == Number("a", 1)
        assert store.found.files == {ROWS: 3}


@pytest.mark.parametrize("n_bytes", range(1, 24, 4))
def test_half_a_line_is_removed_and_the_rest_is_kept(tmp_path: Path, n_bytes: int) -> None:
    write(tmp_path, "a")
    whole = (tmp_path / ROWS).read_bytes()
    (tmp_path / ROWS).write_bytes(whole + whole[:n_bytes])
    with opened(tmp_path) as store:
        assert list(store.found.by_key) == ["a"]
        store.append(Number("b", 2))
    assert (tmp_path / ROWS).read_bytes().count(b"\n") == 2
    with opened(tmp_path) as store:
        assert (list(store.found.by_key), store.found.problems) == (["a", "b"], [])


def test_a_last_line_without_its_end_is_whole(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    (tmp_path / ROWS).write_bytes((tmp_path / ROWS).read_bytes()[:-1])
    write(tmp_path, "c")
    with opened(tmp_path) as store:
        assert list(store.found.by_key) == ["a", "b", "c"]


@pytest.mark.posix
@pytest.mark.parametrize("n_bytes", [600, 620, 640])
def test_a_full_disk_leaves_whole_rows(tmp_path: Path, n_bytes: int) -> None:
    with disk_of(n_bytes), pytest.raises(RunError, match=ROWS):
        write(tmp_path, *(f"number {i}" for i in range(999)))
    n = (tmp_path / ROWS).read_bytes().count(b"\n")
    with opened(tmp_path) as store:
        assert len(store.found.by_key) == n > 10
        assert store.found.problems == []


def test_damaged_lines_are_all_named_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "a", "b")
    with (tmp_path / ROWS).open("ab") as stream:
        stream.write(b'\xff\n[]\n{"name": "c"}\n{"name": "d", "value": true}\n{"name": "a", "value": 3}\n\n')
        stream.write(b'{"name": "e", "value": NaN}\n' + b"[" * 100_000 + b"\n")
    with Store[Number](tmp_path, "numbers", SETTINGS) as store:
        store.read(Number, lambda row: "b is bad" if row.name == "b" else None)
        assert list(store.found.by_key) == ["a"]
        numbers = [problem.partition(":")[0] for problem in store.found.problems]
        assert numbers == [f"{ROWS}, line {i}" for i in (2, 3, 4, 5, 6, 7, 9, 10)]
        assert "`value`" in store.found.problems[3]
    assert "8 lines left out" in caplog.text
    assert "and 3 more" in caplog.text


def test_what_is_added_is_kept(tmp_path: Path) -> None:
    write(tmp_path)
    other = {"other": {"path": "/b", "sha256": "bb"}}
    with opened(tmp_path, models=other, ctx=None) as store:
        store.agree({"models": {"tiny": {"template": "cc"}}})
        store.note(command="mink-eval numbers")
    manifest = read_manifest(tmp_path)
    assert manifest["models"] == {"tiny": {**SETTINGS["models"]["tiny"], "template": "cc"}, **other}
    kept = [manifest[name] for name in ("ctx", "command", "measures")]
    assert kept == [None, "mink-eval numbers", "numbers"]
    with opened(tmp_path, models={"tiny": {"path": "/elsewhere/tiny", "sha256": "aa"}}):
        pass


def test_what_is_changed_is_refused_and_every_change_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a")
    before = (tmp_path / MANIFEST).read_bytes()
    changes: dict[str, Any] = {"seed": 1, "stop": ["x"], "models": {"tiny": {"sha256": "zz"}}}
    with pytest.raises(RunError) as raised:
        opened(tmp_path, revision=2, **changes)
    for change in (
        "revision was 1 and is 2",
        "seed was 0 and is 1",
        'models tiny sha256 was "aa" and is "zz"',
    ):
        assert change in str(raised.value)
    assert (tmp_path / MANIFEST).read_bytes() == before
    with opened(tmp_path) as store, pytest.raises(RunError, match="seed"):
        store.agree({"seed": 3})


def test_other_versions_are_told_and_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        store.begin_session(threads=1)
    assert caplog.text == ""
    monkeypatch.setattr(module, "versions", lambda: {"mink-local": "9.9", "llama.cpp": "b9"})
    with opened(tmp_path) as store:
        store.begin_session(threads=2)
    assert "9.9" in caplog.text
    sessions = read_manifest(tmp_path)["sessions"]
    assert [session["threads"] for session in sessions] == [1, 2]
    assert sessions[1]["versions"]["llama.cpp"] == "b9"


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from mink_local.evals.store import Store\n"
        "with Store(Path(sys.argv[1]), 'numbers', {}): print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(RunError, match="another mink-eval"):
            opened(tmp_path)
        other.kill()
        other.wait()
    write(tmp_path, "a")  # the lock of a killed process is gone


@pytest.mark.parametrize("content", ["{", {"models": 3}, {"format": 99}, {"measures": "letters"}, None])
def test_a_folder_that_cannot_be_continued_is_refused_unchanged(
    tmp_path: Path, content: str | dict[str, Any] | None
) -> None:
    write(tmp_path, "a")
    if isinstance(content, dict):
        content = json.dumps(read_manifest(tmp_path) | content)
    (tmp_path / MANIFEST).unlink()
    if content is not None:
        (tmp_path / MANIFEST).write_text(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match="--out"):
        opened(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        opened(tmp_path / "file")
