"""Conversations on disk: nothing is lost, nothing is overwritten; and their export."""

import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from mink_local.chat.conversation.export import export
from mink_local.chat.conversation.store import (
    _FROM_VERSION_1,
    ConversationStore,
    SamplingInfo,
    StoredMessage,
    StoreError,
)
from mink_local.errors import MinkError
from tests.chat.conftest import add, converse, locked

INFO = SamplingInfo("model", "min-k:tau=3", 5.0, 7)


def begin(store: ConversationStore, *branch: StoredMessage) -> int:
    """Store a new conversation; return its id."""
    return store.save(None, branch, "model", "Be brief.")


def test_a_message_grows(tmp_path: Path) -> None:
    """Another program sees each state that is stored."""
    store, other = (ConversationStore(tmp_path / "folder" / "c.db") for _ in range(2))
    user, answer = StoredMessage("user", "Hello"), StoredMessage("assistant", parts=[INFO, INFO])
    begin(store, user, answer)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "folder", tmp_path / "folder" / "c.db")]
    assert os.name != "posix" or modes == [0o700, 0o600]
    for reasoning, content in (("We", ""), ("ll", "Hi "), ("", "😀")):
        answer.add(reasoning, content)
        store.save(1, [user, answer], "model", "Be brief.")
    assert other.branch(answer.id) == [user, replace(answer, parts=[INFO])]
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("Well", "Hi 😀", None)
    answer.finish_reason, answer.tokens, answer.k, answer.seconds = "stop", [1, 2], [3, 1, 1], 0.5
    answer.is_kept = False
    store.save(1, [user, answer], "model", "Be brief.")
    assert other.branch(answer.id) == [user, answer]
    latest = other.find()
    assert (latest.id, latest.system, latest.turns, latest.title, latest.head) == (
        1, "Be brief.", 1, "Hello", answer.id,
    )  # fmt: skip


def test_a_deleted_text_is_in_no_file(tmp_path: Path) -> None:
    """Nor is an earlier state of an answer."""
    store = ConversationStore(tmp_path / "c.db")
    branch = [StoredMessage("user", "a pelican " * 2000), StoredMessage("assistant")]
    number = begin(store, *branch)
    for text in ("an ostrich ", "and an emu " * 900):
        branch[-1].add("", text)
        store.save(number, branch, "model", None)
    store.delete(number)
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert [word for word in (b"pelican", b"ostrich", b"emu") if word in found] == []
    assert (store.conversations(), store.messages(number)) == ([], [])
    assert begin(store, StoredMessage("user", "Another one.")) == number + 1  # it is not given again


@pytest.mark.parametrize("n", [1, 501, 3000])
def test_a_conversation_of_any_length_is_deleted(tmp_path: Path, n: int) -> None:
    store = ConversationStore(tmp_path / "c.db")
    kept = converse(store, "Another one.", "Yes.")
    converse(store, *(f"pelican {i}" for i in range(2 * n)))
    store.delete(2)
    assert (store.messages(2), store.messages(1)) == ([], kept)
    assert b"pelican" not in (tmp_path / "c.db").read_bytes()


def test_a_first_message_without_an_answer_is_found(tmp_path: Path) -> None:
    """Whether it was interrupted or the program was killed; but not one that was answered and taken back."""
    store = ConversationStore(tmp_path / "c.db")
    message = StoredMessage("user", "What is this?")
    number = begin(store, message)
    store.save(number, [], "model", None)  # as after Ctrl-C
    for found in (store.find(), *store.conversations()):
        assert (found.id, found.head, found.turns, found.title) == (number, None, 1, "What is this?")
        assert store.branch(found.end) == [message]
    export(store, store.find(), tmp_path / "c.md")
    assert "What is this?" in (tmp_path / "c.md").read_text(encoding="utf-8")
    store.save(number, [message, StoredMessage("assistant", "It is.", finish_reason="stop")], "model", None)
    store.save(number, [], "model", None)
    assert [one.turns for one in store.conversations()] == [0]
    with pytest.raises(MinkError):
        store.find()


def old_file(path: Path) -> Path:
    """Write a file of version 1, with an answer that was cut off by a kill; return its path."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript((Path(__file__).parent / "data" / "conversations.sql").read_text(encoding="utf-8"))
    return path


def test_a_file_of_version_1_is_changed_once(tmp_path: Path) -> None:
    """As a whole, after a copy beside it; the text that a kill left in pieces is that of its message."""
    path = old_file(tmp_path / "c.db")
    with closing(sqlite3.connect(path)) as db:
        texts = dict(db.execute("SELECT id, content FROM message"))
        for message, text in db.execute("SELECT message, text FROM piece WHERE NOT thinking ORDER BY id"):
            texts[message] += text
    store = ConversationStore(path)
    assert {message.id: message.content for message in store.messages(1)} == texts
    copy = tmp_path / "c-version-1.db"
    assert os.name != "posix" or copy.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (1,)
    copy.unlink()
    assert len(ConversationStore(path).messages(1)) == len(texts)
    assert [file.name for file in tmp_path.iterdir()] == ["c.db"]


def test_a_change_of_version_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = old_file(tmp_path / "c.db")
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(
            "mink_local.chat.conversation.store._FROM_VERSION_1", (*_FROM_VERSION_1[:-1], "no SQL")
        )
        with pytest.raises(StoreError):
            ConversationStore(path).conversations()
    assert path.read_bytes() == before
    assert len(ConversationStore(path).messages(1)) > 4


def test_names(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "c.db")
    with pytest.raises(MinkError):
        store.find()
    one, two = begin(store), store.save(None, [], "/odd\udcff.gguf", None)
    store.rename(one, "fruit")
    store.rename(one, "fruit")
    with pytest.raises(MinkError, match="another conversation 'fruit'"):
        store.rename(two, "fruit")
    assert store.find("fruit").id == store.find(str(one)).id == one
    assert store.get(two).model == "/odd\ufffd.gguf"
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
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_file_that_can_only_be_read(elsewhere: Path, is_killed: bool) -> None:
    """It is listed and read, also what is only in its log; what is new stays with its message."""
    path = elsewhere / "c.db"
    store = ConversationStore(path)
    converse(store, "Hi" if is_killed else "Hello")
    store.close()
    if is_killed:  # before what it wrote last was in the file itself
        code = (
            f"import sqlite3, os; db = sqlite3.connect({str(path)!r}); "
            "db.execute('PRAGMA journal_mode = WAL'); "
            "db.execute('UPDATE message SET content = ?', ('Hello',)); db.commit(); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        assert (elsewhere / "c.db-wal").stat().st_size
    for file in elsewhere.iterdir():
        file.chmod(0o444)
    elsewhere.chmod(0o555)
    if os.getuid() == 0:
        os.seteuid(65534)
    store = ConversationStore(path)
    assert [one.title for one in store.conversations()] == ["Hello"]
    message = StoredMessage("user", "Hello again")
    changes = (
        partial(store.save, 1, [message], "model", None),
        partial(store.delete, 1),
        partial(store.rename, 1, "fruit"),
    )
    for save in changes:
        with pytest.raises(StoreError, match="readonly"):
            save()
    assert (message.id, message.is_kept) == (0, False)
    with pytest.raises(StoreError, match="Permission denied"):
        ConversationStore(elsewhere / "new.db").find()


def test_files_that_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database " * 99)
    for path in (tmp_path / "text.db", tmp_path, tmp_path / "text.db" / "c.db"):
        with pytest.raises(StoreError, match=re.escape(str(path))):
            ConversationStore(path).conversations()
    begin(ConversationStore(tmp_path / "new.db"))
    with closing(sqlite3.connect(tmp_path / "new.db")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="a newer version"):
        ConversationStore(tmp_path / "new.db").conversations()


WINDOW = """
import random, sys, time
from pathlib import Path
from mink_local.chat.conversation.store import ConversationStore, StoredMessage, StoreError
path, name, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
store, random = ConversationStore(path), random.Random(name)
branches = [[], []]  # one in a conversation that all windows have, one in its own
conversations = [1, None]
end, turn = time.monotonic() + seconds, 0
while time.monotonic() < end:
    turn += 1
    which = random.randrange(2)
    answer = StoredMessage("assistant")
    before = branches[which][:random.randrange(9) * 2]
    branch = branches[which] = [*before, StoredMessage("user", f"{name} asks {turn}"), answer]
    pieces = [f"{name}.{turn}.{i} " for i in range(random.randrange(1, 9))]
    for piece in [*pieces, ""]:
        answer.add("", piece)
        time.sleep(random.random() / 50)  # as a model does; SQLite's locks are not fair to those who wait
        if not piece:
            answer.finish_reason = "stop"
        while True:
            try:
                conversations[which] = store.save(conversations[which], branch, "model", None)
                break
            except StoreError:
                pass
    print(" ".join(str(message.id) for message in branch), "|", answer.content, flush=True)
"""


@pytest.mark.slow
def test_four_programs_lose_and_mix_nothing(tmp_path: Path) -> None:
    """They answer in one conversation and in their own, while the file is locked now and then."""
    path, seconds = tmp_path / "c.db", float(os.environ.get("MINK_TEST_SECONDS", "4"))
    store = ConversationStore(path)
    begin(store)
    windows = [
        subprocess.Popen(
            [sys.executable, "-c", WINDOW, str(path), name, str(seconds)], stdout=subprocess.PIPE, text=True
        )
        for name in "ABCD"
    ]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.4)
        with suppress(sqlite3.OperationalError), locked(path):
            time.sleep(0.2)
    written = [line for window in windows for line in window.communicate()[0].splitlines()]
    assert [window.returncode for window in windows] == [0] * 4
    assert len(written) > 40
    for line in written:
        ids, _, text = line.partition(" | ")
        branch = store.branch(int(ids.split()[-1]))
        assert [message.id for message in branch] == [int(number) for number in ids.split()]
        assert branch[-1].content == text
        assert {message.content.split(".")[0].split()[0] for message in branch} == {text[0]}
    asked = sum(message.role == "user" for one in store.conversations() for message in store.messages(one.id))
    assert asked == len(written)
    assert len(store.conversations()) == 5
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)


# Export


@pytest.fixture
def birds() -> ConversationStore:
    """One conversation with two answers to its message, the first one current."""
    store = ConversationStore()
    [user] = converse(store, "Say hi 日本語", system="Be brief.")
    info = SamplingInfo("parrot", "min-k:tau=3", 5.0, 7)
    reasoning = "They want a greeting."
    answer = StoredMessage("assistant", "**Hi!**", None, reasoning, [info], finish_reason="stop", k=[2, 1])
    add(store, StoredMessage("assistant", "Another"), user.id)
    add(store, answer, user.id)
    store.rename(1, "birds")
    return store


def test_formats(birds: ConversationStore, tmp_path: Path) -> None:
    for name in ("b.md", "b.json"):
        export(birds, birds.find(), tmp_path / name)
    assert (tmp_path / "b.md").read_text(encoding="utf-8") == (
        "# birds\n\n**System**\n\nBe brief.\n\n## User\n\nSay hi 日本語\n\n## parrot\n\n"
        "<details><summary>Reasoning</summary>\n\nThey want a greeting.\n\n</details>\n\n**Hi!**\n\n"
        "*min-k:tau=3, temperature 5, seed 7*\n"
    )
    whole = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    how = {"model": "parrot", "sampler": "min-k:tau=3", "temperature": 5.0, "seed": 7}
    answer = whole["messages"][1]
    assert {**answer, "content": "**Hi!**", "reasoning": "They want a greeting."} == answer
    assert {**answer["how"], **how} == answer["how"]
    assert answer["outcome"]["k"] == [2, 1]
    assert [message["content"] for message in whole["other_branches"]] == ["Another"]


def test_control_characters_in_an_export(birds: ConversationStore, tmp_path: Path) -> None:
    """A file that is shown by `cat` does not control the terminal; JSON still holds what there was."""
    evil = "\x1b]0;pwned\x07 \x9b31m \u202e"
    converse(birds, evil)
    for name in ("b.md", "b.json"):
        export(birds, birds.get(2), tmp_path / name)
        written = (tmp_path / name).read_text(encoding="utf-8")
        assert [code for code in "\x1b\x07\x9b\u202e" if code in written] == []
    assert json.loads(written)["messages"][0]["content"] == evil
    assert "␛]0;pwned␇ \ufffd31m \ufffd" in (tmp_path / "b.md").read_text(encoding="utf-8")


def test_a_token_that_is_banned_is_exported_as_json_can(birds: ConversationStore, tmp_path: Path) -> None:
    """Which has no infinity; other readers than Python's refuse the whole file."""
    how = SamplingInfo("parrot", "min-k", 1.0, 7, constraints={"logit_bias": {198: -math.inf, 5: 1.5}})
    add(birds, StoredMessage("assistant", "Hi", parts=[how], finish_reason="stop"), 1)
    export(birds, birds.find(), tmp_path / "b.json")
    whole = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert whole["messages"][1]["how"]["constraints"]["logit_bias"] == {"198": "-inf", "5": 1.5}


def test_a_failed_export_leaves_nothing_behind(birds: ConversationStore, tmp_path: Path) -> None:
    (tmp_path / "b.md").mkdir()
    with pytest.raises(MinkError, match="cannot be written"):
        export(birds, birds.find(), tmp_path / "b.md")
    assert [path.name for path in tmp_path.iterdir()] == ["b.md"]
