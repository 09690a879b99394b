"""The folder of a measurement: rows survive kills and full disks, and settings only grow."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mink_local.errors import RunError
from mink_local.evals.store import MANIFEST, ROWS, Rows, Store, public, read_manifest
from tests.support.records import disk_of

SETTINGS: dict[str, Any] = {"seed": 0, "stop": [], "models": {"tiny": {"path": "/a/tiny", "sha256": "aa"}}}


class Number(msgspec.Struct, frozen=True):
    name: str
    value: int

    @property
    def key(self) -> str:
        return self.name


def opened(folder: Path, **changes: Any) -> Store[Number]:
    store = Store[Number](folder, "numbers", SETTINGS | changes)
    store.read(read)
    return store


def read(folder: Path, _: object, check: Callable[[Number], str | None] = lambda _: None) -> Rows[Number]:
    rows = Rows[Number]()
    rows.read(folder / ROWS, Number, check)
    return rows


def write(folder: Path, *names: str) -> None:
    with opened(folder) as store:
        for name in names:
            store.append(Number(name, len(name)))


@pytest.mark.parametrize("n_lost", range(1, 24, 4))
def test_half_a_line_is_removed_and_the_rest_is_kept(tmp_path: Path, n_lost: int) -> None:
    write(tmp_path, "a", "b")
    path = tmp_path / ROWS
    path.write_bytes(path.read_bytes()[:-n_lost])
    for found in (["a"], ["a", "c"]):
        with opened(tmp_path) as store:
            assert (list(store.found.by_key), store.found.problems) == (found, [])
            if found == ["a"]:
                store.append(Number("c", 3))
    assert path.read_bytes().count(b"\n") == 2


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
    names = ["a", "\u2028", "long " * 999]
    write(tmp_path, *names, "b")
    with (tmp_path / ROWS).open("ab") as stream:
        stream.write(b'\xff\n[]\n{"name": "c"}\n{"name": "d", "value": true}\n{"name": "a", "value": 3}\n\n')
        stream.write(b'{"name": "e", "value": NaN}\n' + b"[" * 100_000 + b"\n")
    with Store[Number](tmp_path, "numbers", SETTINGS) as store:
        store.read(partial(read, check=lambda row: "b is bad" if row.name == "b" else None))
        assert store.found.by_key == {name: Number(name, len(name)) for name in names}
        numbers = [problem.partition(":")[0] for problem in store.found.problems]
        assert numbers == [f"{ROWS}, line {i}" for i in (4, 5, 6, 7, 8, 9, 11, 12)]
        assert "`value`" in store.found.problems[3]
    assert "8 lines skipped" in caplog.text
    assert "and 3 more" in caplog.text


@pytest.mark.posix
def test_a_pipe_in_place_of_the_rows_is_not_waited_for(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / ROWS).unlink()
    os.mkfifo(tmp_path / ROWS)
    for look in (lambda: opened(tmp_path), lambda: read(tmp_path, None)):
        with pytest.raises(RunError, match=ROWS):
            look()


def test_what_is_added_is_kept(tmp_path: Path) -> None:
    """And the place of a file may change."""
    write(tmp_path)
    other = {"other": {"path": "/b", "sha256": "bb"}}
    moved = {"tiny": {"path": "/elsewhere/tiny", "sha256": "aa"}}
    with opened(tmp_path, models=other, ctx=None) as store:
        store.agree({"models": {"tiny": {"template": "cc"}}}, learned=True)
        store.note(command="mink-eval numbers")
    with opened(tmp_path, models=moved):
        pass
    manifest = read_manifest(tmp_path)
    assert manifest["models"] == {"tiny": {**moved["tiny"], "template": "cc"}, **other}
    assert [manifest[name] for name in ("ctx", "command", "measures")] == [
        None,
        "mink-eval numbers",
        "numbers",
    ]


@pytest.mark.parametrize("name", ["path", "data", "data_sha256"])
def test_a_model_may_have_the_name_of_a_setting(tmp_path: Path, name: str) -> None:
    write(tmp_path, "a")
    settings = {name: {"sha256": "aa", "path": "/a"}}
    with opened(tmp_path, models=settings):
        pass
    assert public(read_manifest(tmp_path))["models"] == {"tiny": {"sha256": "aa"}, name: {"sha256": "aa"}}
    with pytest.raises(RunError, match=f"models {name} sha256"):
        opened(tmp_path, models={name: {"sha256": "bb"}})


def fail(folder: Path, error: BaseException, **changes: Any) -> None:
    with opened(folder, **changes) as store:
        store.keep("questions.jsonl", "[]")
        store.begin_session(threads=1)
        raise error


def test_a_start_without_a_row_binds_nobody(tmp_path: Path) -> None:
    """Whether it fails, is refused or is interrupted before the first one."""
    for error in (RunError("no"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(tmp_path, error, seed=1)
        assert {path.name for path in tmp_path.iterdir()} <= {".lock"}  # which Windows removes
    with opened(tmp_path, seed=2) as store:
        store.keep("questions.jsonl", "[]")
        store.append(Number("a", 1))
        assert {path.name for path in tmp_path.iterdir()} == {".lock", MANIFEST, ROWS, "questions.jsonl"}
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for changes in ({"ctx": 3}, {"models": {"more": {"sha256": "cc"}}}):
        with pytest.raises(RunError):
            fail(tmp_path, RunError("it cannot be loaded"), seed=2, **changes)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_is_changed_is_refused_and_every_change_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a")
    before = (tmp_path / MANIFEST).read_bytes()
    changes: dict[str, Any] = {"seed": 1, "stop": ["x"], "models": {"tiny": {"sha256": "zz"}}}
    with pytest.raises(RunError) as raised:
        opened(tmp_path, revision=2, **changes)
    for change in ("revision was not given", "seed was 0", 'models tiny sha256 was "aa"', "stop was"):
        assert change in str(raised.value)
    assert (tmp_path / MANIFEST).read_bytes() == before
    with opened(tmp_path) as store, pytest.raises(RunError, match="seed"):
        store.agree({"seed": 3})


@pytest.mark.parametrize("change", [{"ctx": 0}, {"stop": ["x"], "tasks": {"gsm8k": {"budget": 0}}}])
def test_a_value_that_is_missing_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    """Neither added to what was measured without it, nor left out of what was measured with it."""
    first: dict[str, Any] = {"tasks": {"gsm8k": {"shots": 4}}}
    without = first | {"ctx": None}
    with opened(tmp_path, **first):
        pass
    with opened(tmp_path, **without):
        pass
    with pytest.raises(RunError, match="not given"):
        opened(tmp_path, **first | change)
    with opened(tmp_path / "with", **first | change):
        pass
    given: dict[str, Any] = {"ctx": None, "tasks": {"gsm8k": {"budget": None}}}
    with pytest.raises(RunError, match="not given"):
        opened(tmp_path / "with", **first | given)


def test_one_process_has_the_folder(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from mink_local.evals.store import Store\n"
        f"with Store(Path(sys.argv[1]), 'numbers', {SETTINGS}): print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline().rstrip() == b"locked"
        with pytest.raises(RunError, match="another mink-eval"):
            opened(tmp_path)
        other.kill()
        other.wait()
    write(tmp_path, "a")  # the lock of a killed process is gone


@pytest.mark.parametrize(
    "content",
    [
        "{",
        pytest.param("[" * 100_000, id="nested"),
        {"models": 3},
        {"format": 99},
        {"measures": "letters"},
        None,
    ],
)
def test_a_folder_that_cannot_be_continued_is_refused_unchanged(
    tmp_path: Path, content: str | dict[str, Any] | None
) -> None:
    write(tmp_path, "a")
    manifest = tmp_path / MANIFEST
    if content is None:
        manifest.unlink()
    else:
        changed = content if isinstance(content, str) else json.dumps(read_manifest(tmp_path) | content)
        manifest.write_text(changed)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RunError, match="choose another"):
        opened(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(RunError, match=ROWS):
        opened(tmp_path / ROWS)  # a file in the folder's place
