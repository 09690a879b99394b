"""Conversations on disk: nothing is lost, nothing is overwritten."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mink_local.chat.conversation.store import ConversationStore, SamplingInfo, StoredMessage
from mink_local.errors import MinkError
from tests.chat.conftest import converse

INFO = SamplingInfo("model", "min-k:tau=3", 5.0, 7)


def test_a_message_grows_by_pieces_and_is_folded(tmp_path: Path) -> None:
    """Another program sees every piece at once, and what a killed program left."""
    store, other = ConversationStore(tmp_path / "c.db"), ConversationStore(tmp_path / "c.db")
    [user] = converse(store, "Hello", system="Be brief.")
    answer = StoredMessage("assistant", parent=user.id, parts=[INFO, INFO])
    store.add(1, answer)
    for text, is_reasoning in (("Well", True), ("Hi ", False), ("😀", False)):
        store.append(answer, text, is_reasoning)
    assert other.branch(answer.id) == [user, replace(answer, parts=[INFO])]
    assert (answer.thinking, answer.content, answer.finish_reason) == ("Well", "Hi 😀", None)
    answer.finish_reason, answer.tokens, answer.k, answer.seconds = "stop", [1, 2], [3, 1, 1], 0.5
    store.finish(answer)
    assert other.branch(answer.id) == [user, answer]
    latest = other.find()
    assert (latest.id, latest.system, latest.turns, latest.title, latest.head) == (
        1, "Be brief.", 1, "Hello", answer.id,
    )  # fmt: skip


def test_branches() -> None:
    store = ConversationStore()
    user, answer = converse(store, "one", "a")
    other, edited = StoredMessage("assistant", "b", user.id), StoredMessage("user", "two")
    store.add(1, other)
    store.add(1, edited)
    assert store.get(1).head == edited.id
    assert store.branch(answer.id) == [user, answer]
    assert store.messages(1) == [user, answer, other, edited]
    store.change(1, head=answer.id)
    assert store.get(1).turns == 1
    store.delete(1)
    assert (store.conversations(), store.messages(1)) == ([], [])
    with pytest.raises(MinkError):
        store.add(1, StoredMessage("user", "three"))


def test_names(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "c.db")
    with pytest.raises(MinkError):
        store.find()
    one, two = store.begin("model", None), store.begin("model", None)
    store.change(one, name="fruit")
    store.change(one, name="fruit")
    with pytest.raises(MinkError, match="another conversation 'fruit'"):
        store.change(two, name="fruit")
    assert store.find("fruit").id == store.find(str(one)).id == one
    for name in ("veg", "9999999999999999999999", "'; DROP TABLE conversation; --"):
        with pytest.raises(MinkError):
            store.find(name)


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that a user who may not write there can reach; root is that user for the test."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    if os.geteuid() != os.getuid():
        os.seteuid(os.getuid())
    folder.chmod(0o700)
    shutil.rmtree(folder)


@pytest.mark.posix
def test_a_file_that_can_only_be_read(elsewhere: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is listed and continued, and what is new is kept in memory."""
    path = elsewhere / "c.db"
    store = ConversationStore(path)
    converse(store, "Hello")
    store.close()
    path.chmod(0o444)
    elsewhere.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)
    store = ConversationStore(path)
    assert [one.title for one in store.conversations()] == ["Hello"]
    assert caplog.messages == []
    store.add(1, StoredMessage("user", "Hello again"))
    assert "readonly" in caplog.text
    assert [message.content for message in store.messages(1)] == ["Hello", "Hello again"]
    for change in (partial(store.delete, 1), partial(store.change, 1, name="fruit")):
        with pytest.raises(MinkError):  # the file still has it
            change()
    with pytest.raises(MinkError, match="Permission denied"):
        ConversationStore(elsewhere / "new.db")


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database " * 99)
    for path in (tmp_path / "text.db", tmp_path, tmp_path / "text.db" / "c.db"):
        with pytest.raises(MinkError, match="cannot be opened"):
            ConversationStore(path)
    ConversationStore(tmp_path / "new.db")._db.execute("PRAGMA user_version = 99")
    with pytest.raises(MinkError, match="a newer version"):
        ConversationStore(tmp_path / "new.db")


@pytest.mark.posix
def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    ConversationStore(tmp_path / "folder" / "c.db")
    assert stat.S_IMODE((tmp_path / "folder").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "folder" / "c.db").stat().st_mode) == 0o600


def test_a_full_disk_costs_the_store_not_the_conversation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ConversationStore(tmp_path / "c.db")
    [message] = converse(store, "kept")
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    for _ in range(3):
        store.append(message, "x" * 9000)
    assert "disk is full" in caplog.text
    assert len(caplog.records) == 1
    assert store.messages(1) == [message]
    assert message.content == "kept" + "x" * 27000


WRITER = """
import sys
from pathlib import Path
from mink_local.chat.conversation.store import ConversationStore, StoredMessage
store = ConversationStore(Path(sys.argv[1]))
message = StoredMessage("user")
store.add(store.begin("model", None), message)
for i in range(10**9):
    store.append(message, f"{i} ")
    print(message.id, i, flush=True)
"""


def test_a_kill_loses_nothing_that_was_shown(tmp_path: Path) -> None:
    """Two writers at once, killed while they write."""
    path = tmp_path / "c.db"
    ConversationStore(path).close()
    command = [sys.executable, "-c", WRITER, str(path)]
    root = Path(__file__).parents[2]
    writers = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, text=True) for _ in range(2)]
    shown = {}
    for writer in writers:
        assert writer.stdout
        lines = [writer.stdout.readline() for _ in range(50)]
        writer.kill()
        lines += writer.communicate()[0].splitlines(keepends=True)
        ident, last = [line for line in lines if line.endswith("\n")][-1].split()
        shown[int(ident)] = int(last)
    store = ConversationStore(path)
    for number, n in shown.items():
        [kept] = store.branch(number)
        assert kept.content.split() in ([str(i) for i in range(n + more)] for more in (1, 2))
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
