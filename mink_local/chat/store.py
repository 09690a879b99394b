"""Conversations on disk: a SQLite file in which every token is committed before it is shown.

The messages of a conversation are a tree: another answer to the same message, or an edited message, is
a sibling, and `head` is the end of the branch that is being talked on. Nothing that was written is ever
written over. A message that is being written grows by pieces, one row each; they are folded into it when
it is finished. Where the program was killed they stay, and reading joins them.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path

from mink_local.errors import MinkError

Role = Literal["user", "assistant"]
Statement = tuple[str, tuple[object, ...]]

log = logging.getLogger("mink_local")

_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS conversation (
    id INTEGER PRIMARY KEY,
    name TEXT UNIQUE,
    model TEXT NOT NULL,
    system TEXT,
    head INTEGER REFERENCES message ON DELETE SET NULL,
    updated REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS message (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    parent INTEGER REFERENCES message ON DELETE CASCADE,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    thinking TEXT NOT NULL,
    how TEXT NOT NULL,  -- JSON: model, sampler, temperature, seed
    outcome TEXT,       -- JSON: finish_reason, seconds, tokens, k; NULL while it is being written
    created REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS message_parent ON message (conversation, parent);
CREATE TABLE IF NOT EXISTS piece (
    id INTEGER PRIMARY KEY,
    message INTEGER NOT NULL REFERENCES message ON DELETE CASCADE,
    thinking INTEGER NOT NULL,
    text TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS piece_message ON piece (message, id);
"""


@dataclass(frozen=True)
class How:
    """What an answer was drawn with."""

    model: str
    sampler: str
    temperature: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How an answer ended.

    tokens: the ids that were drawn, the thought's included, without the one that ended it. k: the number of
    candidates at every step, the one that ended it included. prompt_tokens, evaluated_tokens: as in `Reply`.
    first_token_s, seconds: until the first piece, and for all of it.
    """

    finish_reason: str | None
    tokens: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Message:
    """One message of a conversation. `how` and `outcome` are an answer's; `outcome` is None where it was
    not finished: the program was killed, or is still writing it."""

    id: int
    parent: int | None
    role: Role
    content: str
    thinking: str
    how: How | None
    outcome: Outcome | None
    created: float


@dataclass(frozen=True)
class Conversation:
    """What the list shows of a conversation. `title` is the beginning of its first message."""

    id: int
    name: str | None
    model: str
    system: str | None
    head: int | None
    updated: float
    turns: int
    title: str


def default_path() -> Path:
    return user_data_path("mink-local") / "conversations.db"


class Store:
    """The conversations in the file at `path`, or in memory where that is None.

    Several programs may have it open at once. Where the file can no longer be written to (the disk is full,
    say) everything goes on in memory, with a warning. Raises MinkError where it cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        try:
            if path:
                _make_private(path)
            self._db = _connect(path or ":memory:")
            _set_up(self._db)
        except (OSError, sqlite3.Error) as error:
            raise MinkError(
                f"the conversations in {path} cannot be opened ({error}): move them away, or take --no-store"
            ) from None

    def close(self) -> None:
        self._db.close()

    def _write(self, *statements: Statement) -> int:
        """Execute in one transaction; returns the id of the row that the first inserted."""
        try:
            return _execute(self._db, statements)
        except sqlite3.IntegrityError:
            raise
        except sqlite3.DatabaseError as error:
            log.warning("the conversation is no longer being kept: %s", error)
            on_disk, self._db = self._db, _connect(":memory:")
            on_disk.backup(self._db)
            on_disk.close()
            return _execute(self._db, statements)

    def begin(self, model: str, system: str | None) -> int:
        """Start a conversation; returns its id."""
        sql = "INSERT INTO conversation (model, system, updated) VALUES (?, ?, ?)"
        return self._write((sql, (model, system, time.time())))

    def add(
        self, conversation: int, parent: int | None, role: Role, content: str = "", how: How | None = None
    ) -> int:
        """Put a message behind `parent`, which makes it the head; returns its id."""
        now = time.time()
        return self._write(
            (
                "INSERT INTO message (conversation, parent, role, content, thinking, how, created) "
                "VALUES (?, ?, ?, ?, '', ?, ?)",
                (conversation, parent, role, content, json.dumps(vars(how) if how else None), now),
            ),
            (
                "UPDATE conversation SET head = last_insert_rowid(), updated = ? WHERE id = ?",
                (now, conversation),
            ),
        )

    def append(self, message: int, text: str, thinking: bool = False) -> None:
        """Add a piece to a message that is being written."""
        sql = "INSERT INTO piece (message, thinking, text) VALUES (?, ?, ?)"
        self._write((sql, (message, thinking, text)))

    def finish(self, message: int, outcome: Outcome) -> None:
        """Fold the pieces of a message into it and note how it ended."""
        whole = self.message(message)
        self._write(
            (
                "UPDATE message SET content = ?, thinking = ?, outcome = ? WHERE id = ?",
                (whole.content, whole.thinking, json.dumps(vars(outcome)), message),
            ),
            ("DELETE FROM piece WHERE message = ?", (message,)),
        )

    def set_head(self, conversation: int, message: int | None) -> None:
        self._write(("UPDATE conversation SET head = ? WHERE id = ?", (message, conversation)))

    def set_system(self, conversation: int, system: str | None) -> None:
        self._write(("UPDATE conversation SET system = ? WHERE id = ?", (system, conversation)))

    def set_model(self, conversation: int, model: str) -> None:
        self._write(("UPDATE conversation SET model = ? WHERE id = ?", (model, conversation)))

    def rename(self, conversation: int, name: str) -> None:
        """Raises MinkError where another conversation has the name."""
        try:
            self._write(("UPDATE conversation SET name = ? WHERE id = ?", (name, conversation)))
        except sqlite3.IntegrityError:
            raise MinkError(f"there is another conversation {name!r}: choose another name") from None

    def delete(self, conversation: int) -> None:
        self._write(("DELETE FROM conversation WHERE id = ?", (conversation,)))

    def message(self, message: int) -> Message:
        row = self._db.execute("SELECT * FROM message WHERE id = ?", (message,)).fetchone()
        pieces = self._db.execute(
            "SELECT thinking, text FROM piece WHERE message = ? ORDER BY id", (message,)
        ).fetchall()
        how, outcome = (json.loads(row[key]) if row[key] else None for key in ("how", "outcome"))
        return Message(
            id=row["id"],
            parent=row["parent"],
            role=row["role"],
            content=row["content"] + "".join(text for thought, text in pieces if not thought),
            thinking=row["thinking"] + "".join(text for thought, text in pieces if thought),
            how=_read(How, how),
            # Pieces left behind an end: a continuation was killed, and the tokens noted are not all.
            outcome=None if pieces else _read(Outcome, outcome),
            created=row["created"],
        )

    def branch(self, head: int | None) -> list[Message]:
        """The messages from the first to `head`."""
        messages = []
        while head is not None:
            messages.append(self.message(head))
            head = messages[-1].parent
        return messages[::-1]

    def children(self, conversation: int, parent: int | None) -> list[Message]:
        """What was ever put behind a message, oldest first; None asks for the first messages."""
        rows = self._db.execute(
            "SELECT id FROM message WHERE conversation = ? AND parent IS ? ORDER BY id",
            (conversation, parent),
        ).fetchall()
        return [self.message(row["id"]) for row in rows]

    def messages(self, conversation: int) -> list[Message]:
        """Every message of every branch, oldest first."""
        rows = self._db.execute("SELECT id FROM message WHERE conversation = ? ORDER BY id", (conversation,))
        return [self.message(row["id"]) for row in rows.fetchall()]

    def conversations(self) -> list[Conversation]:
        """All of them, the one talked in last first."""
        return self._conversations("1")

    def latest(self) -> Conversation:
        """Raises MinkError where there is none yet."""
        found = self._conversations("head IS NOT NULL", limit=1)
        if not found:
            raise MinkError("there is no conversation to continue yet")
        return found[0]

    def find(self, name: str) -> Conversation:
        """The conversation of a name, or of a number as the list shows it. Raises MinkError."""
        found = self._conversations("name = ?", name)
        if not found and name.isdecimal():
            found = self._conversations("conversation.id = ?", int(name[:18]))
        if not found:
            raise MinkError(f"there is no conversation {name!r}: --list shows those there are")
        return found[0]

    def get(self, conversation: int) -> Conversation:
        return self._conversations("conversation.id = ?", conversation)[0]

    def _conversations(self, where: str, *arguments: object, limit: int = -1) -> list[Conversation]:
        rows = self._db.execute(
            f"""SELECT id, name, model, system, head, updated,
                (WITH RECURSIVE branch (parent, role) AS (
                    SELECT parent, role FROM message WHERE id = conversation.head
                    UNION ALL SELECT message.parent, message.role FROM message JOIN branch
                    ON message.id = branch.parent
                 ) SELECT count(*) FROM branch WHERE role = 'user') AS turns,
                (SELECT substr(content, 1, 200) FROM message
                 WHERE conversation = conversation.id AND parent IS NULL ORDER BY id DESC LIMIT 1) AS title
                FROM conversation WHERE {where} ORDER BY updated DESC, id DESC LIMIT {limit}""",
            arguments,
        ).fetchall()
        return [Conversation(**{**dict(row), "title": row["title"] or ""}) for row in rows]


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=10, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    return db


def _set_up(db: sqlite3.Connection) -> None:
    """Make the tables where there are none."""
    db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode a commit outlives the program at once, and the machine's power a little later.
    db.execute("PRAGMA synchronous = NORMAL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        statements = [(sql, ()) for sql in _SCHEMA.split(";\n")]
        _execute(db, [*statements, (f"PRAGMA user_version = {_VERSION}", ())])
    elif version > _VERSION:
        db.close()
        raise sqlite3.DatabaseError("a newer version of this program wrote them")


def _execute(db: sqlite3.Connection, statements: Sequence[Statement]) -> int:
    db.execute("BEGIN IMMEDIATE")
    try:
        ids = [db.execute(sql, arguments).lastrowid for sql, arguments in statements]
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return ids[0] or 0


def _read(kind: type[Any], values: dict[str, Any] | None) -> Any:
    """A dataclass from what was written of it, by this version or by one with fewer or more fields."""
    if values is None:
        return None
    names = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})


def _make_private(path: Path) -> None:
    """Create the file where it is missing, for its owner alone: conversations are nobody else's."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
