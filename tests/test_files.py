"""Files: written whole or not at all, hashed, private."""

import codecs
import os
from pathlib import Path
from typing import Literal

import platformdirs
import pytest
from platformdirs.windows import Windows

from mink_local.files import as_text, private_file, private_folder, regular, user_folder, write_atomic
from tests.support.records import disk_of
from tests.support.windows import refuse_open_files

posix = pytest.mark.posix


@pytest.mark.parametrize("text", ["", "a", "Grüße\r\nℓ 模型 😀", "\ufeff"])
def test_a_byte_order_mark_is_read_and_dropped(text: str) -> None:
    assert as_text(text.removeprefix("\ufeff").encode()) == text.removeprefix("\ufeff")
    assert as_text(codecs.BOM_UTF8 + text.encode()) == text
    assert as_text(codecs.BOM_UTF16_LE + text.encode("utf-16-le")) == text
    assert as_text(codecs.BOM_UTF16_BE + text.encode("utf-16-be")) == text


def test_other_bytes_are_no_text() -> None:
    for data in (b"\xff", "ü".encode("cp1252"), codecs.BOM_UTF16_LE + b"\0\xd8"):
        with pytest.raises(UnicodeDecodeError):
            as_text(data)
    assert as_text(b"\xff", "surrogateescape").encode("utf-8", "surrogateescape") == b"\xff"


def test_a_folder_of_windows_has_the_name_once_unless_it_was_there_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def find(name: str, appauthor: Literal[False] | None = None) -> Path:
        return Windows(name, appauthor).user_data_path

    monkeypatch.setattr(platformdirs, "user_data_path", find)
    monkeypatch.setattr("platformdirs.windows.get_win_folder", lambda _: str(tmp_path))
    assert user_folder("data") == tmp_path / "mink-local"
    earlier = tmp_path / "mink-local/mink-local"
    earlier.mkdir(parents=True)
    assert user_folder("data") == earlier


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_file_is_new_or_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_open_files(monkeypatch.setattr)
    write_atomic(tmp_path / "x", "σ\n")
    write_atomic(tmp_path / "x", "ℓ\r\n\n")
    write_atomic(tmp_path / "y", b"\0\n")
    write_atomic(tmp_path / ("n" * 255), "")
    assert contents(tmp_path) == {"x": "ℓ\r\n\n".encode(), "y": b"\0\n", "n" * 255: b""}


def test_a_target_that_cannot_be_replaced_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_open_files(monkeypatch.setattr)
    (tmp_path / "folder").mkdir()
    (tmp_path / "open").write_text("before")
    with (tmp_path / "open").open():
        for name in ("folder", "open", "no folder/x"):
            with pytest.raises(OSError):  # noqa: PT011
                write_atomic(tmp_path / name, "after")
    assert contents(tmp_path) == {"open": b"before"}


@posix
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the write fails halfway."""
    (tmp_path / "x").write_text("before")
    with disk_of(1000), pytest.raises(OSError):  # noqa: PT011
        write_atomic(tmp_path / "x", "y" * 100_000)
    assert contents(tmp_path) == {"x": b"before"}


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "x", "text")
    assert contents(tmp_path) == {}


@posix
def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    write_atomic(tmp_path / "new", "")
    os.umask(before)
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "link").symlink_to("secret")
    write_atomic(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "secret").read_text() == "text"
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


@posix
def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    pipe, empty = tmp_path / "pipe", Path(os.devnull)
    os.mkfifo(pipe)
    for endless in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match=str(endless)):
            regular(endless)
    for path in (empty, tmp_path, tmp_path / "missing"):
        assert regular(path) == path


@posix
def test_private_files_are_the_owners(tmp_path: Path) -> None:
    folder, file = tmp_path / "a" / "b", tmp_path / "c" / "d"
    assert private_folder(folder) == private_folder(folder) == folder
    private_file(file).write_text("kept")
    assert private_file(file).read_text() == "kept"
    assert [path.stat().st_mode & 0o777 for path in (folder, file.parent, file)] == [0o700, 0o700, 0o600]
