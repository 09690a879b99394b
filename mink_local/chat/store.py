"""Conversations on disk: a SQLite file in which every token is committed before it is shown.

The messages of a conversation are a tree: another answer to the same message, or an edited message, is
a sibling, and `head` is the last message of the current branch. Nothing is ever overwritten. While an
answer is generated, each piece of its text is a row of its own; the pieces are folded into the message at
the end. If the program is killed, the pieces stay, and reading the message joins them.
"""

import json
import logging
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path

from mink_local.errors import MinkError
from mink_local.files import private_file

Role = Literal["user", "assistant"]
_Sql = tuple[str, tuple[object, ...]]  # a statement and its parameters

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
    outcome TEXT,       -- JSON: finish_reason, seconds, tokens, k; NULL while it is being generated
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
class SamplingInfo:
    """The model and the sampling settings of an answer."""

    model: str
    sampler: str
    temperature: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """The result of an answer that ended.

    Attributes:
        finish_reason: As in `Reply`.
        tokens: Sampled token ids, reasoning included, without the one that ended the answer.
        k: The number of candidates at every step, including the step that ended the answer.
        prompt_tokens: As in `Reply`.
        evaluated_tokens: As in `Reply`.
        first_token_s: Seconds until the first piece of text.
        seconds: Seconds for the whole answer.
    """

    finish_reason: str | None
    tokens: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_s: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class StoredMessage:
    """One message of a conversation.

    Attributes:
        thinking: The reasoning of an answer, without its marks.
        how: Model and sampling settings of an answer; None for a user's message.
        outcome: The result of an answer; None if it is not finished: the program was killed, or it is
            still being generated.
        created: Seconds since 1970.
    """

    id: int
    parent: int | None
    role: Role
    content: str
    thinking: str
    how: SamplingInfo | None
    outcome: Outcome | None
    created: float


@dataclass(frozen=True)
class Conversation:
    """A conversation as a list shows it, without its messages.

    Attributes:
        head: The id of the last message of the current branch.
        updated: When the last message was added, in seconds since 1970.
        turns: The number of the user's messages in the current branch.
        title: The first 200 characters of the first message.
    """

    id: int
    name: str | None
    model: str
    system: str | None
    head: int | None
    updated: float
    turns: int
    title: str


def default_path() -> Path:
    """Return where conversations are kept: under the user's data folder."""
    return user_data_path("mink-local") / "conversations.db"


class ConversationStore:
    """The conversations of one SQLite file, or of memory.

    Several programs may have the file open at once. If the file can no longer be written (the disk is full,
    for example), a warning is logged and the conversations go on in memory.

    Args:
        path: The file, created if it is missing; None for memory.

    Raises:
        MinkError: The file cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        try:
            if path:
                private_file(path)
            self._db = _connect(path or ":memory:")
            _set_up(self._db)
        except (OSError, sqlite3.Error) as error:
            raise MinkError(
                f"the conversations in {path} cannot be opened ({error}): move them away, or take --no-store"
            ) from None

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _write(self, *statements: _Sql) -> int:
        """Execute statements in one transaction; return the id of the row that the first one inserted."""
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
        """Start a conversation; return its id."""
        sql = "INSERT INTO conversation (model, system, updated) VALUES (?, ?, ?)"
        return self._write((sql, (model, system, time.time())))

    def add(
        self,
        conversation: int,
        parent: int | None,
        role: Role,
        content: str = "",
        how: SamplingInfo | None = None,
    ) -> int:
        """Add a message after `parent` and make it the head; return its id."""
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
        """Add a piece of text to a message that is being generated."""
        sql = "INSERT INTO piece (message, thinking, text) VALUES (?, ?, ?)"
        self._write((sql, (message, thinking, text)))

    def finish(self, message: int, outcome: Outcome) -> None:
        """Fold the pieces of a message into it and store its outcome."""
        whole = self.message(message)
        self._write(
            (
                "UPDATE message SET content = ?, thinking = ?, outcome = ? WHERE id = ?",
                (whole.content, whole.thinking, json.dumps(vars(outcome)), message),
            ),
            ("DELETE FROM piece WHERE message = ?", (message,)),
        )

    def set_head(self, conversation: int, message: int | None) -> None:
        """Make a message the end of the current branch; None: before the first message."""
        self._write(("UPDATE conversation SET head = ? WHERE id = ?", (message, conversation)))

    def set_system(self, conversation: int, system: str | None) -> None:
        """Replace the system prompt of a conversation."""
        self._write(("UPDATE conversation SET system = ? WHERE id = ?", (system, conversation)))

    def set_model(self, conversation: int, model: str) -> None:
        """Replace the model of a conversation."""
        self._write(("UPDATE conversation SET model = ? WHERE id = ?", (model, conversation)))

    def rename(self, conversation: int, name: str) -> None:
        """Name a conversation. Raises MinkError if another one has the name."""
        try:
            self._write(("UPDATE conversation SET name = ? WHERE id = ?", (name, conversation)))
        except sqlite3.IntegrityError:
            raise MinkError(f"there is another conversation {name!r}: choose another name") from None

    def delete(self, conversation: int) -> None:
        """Delete a conversation and its messages."""
        self._write(("DELETE FROM conversation WHERE id = ?", (conversation,)))

    def message(self, message: int) -> StoredMessage:
        """Return a message, with the pieces that came until now if it is being generated."""
        row = self._db.execute("SELECT * FROM message WHERE id = ?", (message,)).fetchone()
        pieces = self._db.execute(
            "SELECT thinking, text FROM piece WHERE message = ? ORDER BY id", (message,)
        ).fetchall()
        how, outcome = (json.loads(row[key]) if row[key] else None for key in ("how", "outcome"))
        return StoredMessage(
            id=row["id"],
            parent=row["parent"],
            role=row["role"],
            content=row["content"] + "".join(text for thinking, text in pieces if not thinking),
            thinking=row["thinking"] + "".join(text for thinking, text in pieces if thinking),
            how=_from_json(SamplingInfo, how),
            # Pieces beside an outcome: the program was killed while it continued the answer, and the stored
            # tokens are not all.
            outcome=None if pieces else _from_json(Outcome, outcome),
            created=row["created"],
        )

    def branch(self, head: int | None) -> list[StoredMessage]:
        """Return the messages from the first to `head`."""
        messages = []
        while head is not None:
            messages.append(self.message(head))
            head = messages[-1].parent
        return messages[::-1]

    def children(self, conversation: int, parent: int | None) -> list[StoredMessage]:
        """Return every message that follows `parent`, oldest first; None asks for the first messages."""
        rows = self._db.execute(
            "SELECT id FROM message WHERE conversation = ? AND parent IS ? ORDER BY id",
            (conversation, parent),
        ).fetchall()
        return [self.message(row["id"]) for row in rows]

    def messages(self, conversation: int) -> list[StoredMessage]:
        """Return every message of every branch, oldest first."""
        rows = self._db.execute("SELECT id FROM message WHERE conversation = ? ORDER BY id", (conversation,))
        return [self.message(row["id"]) for row in rows.fetchall()]

    def conversations(self) -> list[Conversation]:
        """Return all conversations, the most recent first."""
        return self._conversations("1")

    def latest(self) -> Conversation:
        """Return the most recent conversation. Raises MinkError if there is none."""
        found = self._conversations("head IS NOT NULL", limit=1)
        if not found:
            raise MinkError("there is no conversation to continue yet")
        return found[0]

    def find(self, name: str) -> Conversation:
        """Return the conversation of a name, or of a number that a list shows. Raises MinkError."""
        found = self._conversations("name = ?", name)
        if not found and name.isdecimal():
            found = self._conversations("conversation.id = ?", int(name[:18]))
        if not found:
            raise MinkError(f"there is no conversation {name!r}: --list shows those there are")
        return found[0]

    def get(self, conversation: int) -> Conversation:
        """Return the conversation of an id."""
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
    """Create the tables of a new file."""
    db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode a commit survives the end of the program at once, and a power cut a little later.
    db.execute("PRAGMA synchronous = NORMAL")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        statements = [(sql, ()) for sql in _SCHEMA.split(";\n")]
        _execute(db, [*statements, (f"PRAGMA user_version = {_VERSION}", ())])
    elif version > _VERSION:
        db.close()
        raise sqlite3.DatabaseError("a newer version of this program wrote them")


def _execute(db: sqlite3.Connection, statements: Sequence[_Sql]) -> int:
    db.execute("BEGIN IMMEDIATE")
    try:
        ids = [db.execute(sql, arguments).lastrowid for sql, arguments in statements]
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    return ids[0] or 0


def _from_json(kind: type[Any], values: dict[str, Any] | None) -> Any:
    """Return a dataclass from stored fields; another version may have stored fewer or more."""
    if values is None:
        return None
    names = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})
