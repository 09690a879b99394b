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
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path

from mink_local.errors import MinkError
from mink_local.files import private_file

Role = Literal["user", "assistant"]
_Sql = tuple[str, tuple[object, ...]]  # a statement and its parameters

log = logging.getLogger("mink_local")

_DELETED = "this conversation was deleted in another window: /clear begins a new one"
_PATIENCE = 30  # seconds for another program that has locked the file
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
    how TEXT NOT NULL,  -- JSON: SamplingInfo
    outcome TEXT,       -- JSON: Outcome; NULL while it is being generated
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
    """The settings and the prompt that tokens of an answer were sampled with.

    Attributes:
        first_token: Index in the answer of the first token that was sampled so.
        first_message: Index in the branch of the first message that fitted the context.
        thinking: The switch of the chat template.
        constraints: The options of `Constraints` that were given.
        prompt: The digest of the prompt's token ids, without the answer's tokens before `first_token`.
    """

    model: str
    sampler: str
    temperature: float
    seed: int
    first_token: int = 0
    first_message: int = 0
    system: str | None = None
    thinking: bool | None = None
    constraints: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of an answer that ended; fields of the same name as those of `Reply` are those."""

    finish_reason: str | None
    tokens: list[int] = field(default_factory=list)  # without the one that ended the answer
    k: list[int] = field(default_factory=list)  # one more, if a token ended the answer; 0 if it is not known
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_s: float = 0.0  # until the first piece of text
    seconds: float = 0.0
    continued: list[SamplingInfo] = field(default_factory=list)  # how the later parts were sampled
    chosen: list[int] = field(default_factory=list)  # indices of tokens that the user chose, not the sampler
    repeated: int = 0  # characters at the end that say again what was said, if that ended the answer


@dataclass(frozen=True)
class StoredMessage:
    """One message of a conversation; `created` is in seconds since 1970."""

    id: int
    parent: int | None
    role: Role
    content: str
    thinking: str  # the reasoning of an answer, without its marks
    how: SamplingInfo | None  # None for a user's message
    outcome: Outcome | None  # None if the program was killed, or the answer is still being generated
    created: float

    @property
    def to_evaluate(self) -> str:
        """The content that the conversation goes on from: without a loop, which the model would take up."""
        repeated = self.outcome.repeated if self.outcome else 0
        return self.content[: max(0, len(self.content) - repeated)]

    @property
    def parts(self) -> list[SamplingInfo]:
        """How the parts of an answer were sampled: one part, unless it was continued."""
        return [self.how, *(self.outcome.continued if self.outcome else [])] if self.how else []


@dataclass(frozen=True)
class Conversation:
    """A conversation as a list shows it, without its messages."""

    id: int
    name: str | None
    model: str
    system: str | None
    head: int | None  # the id of the last message of the current branch
    updated: float  # when the last message was added, in seconds since 1970
    turns: int  # the user's messages in the current branch
    title: str  # the first 200 characters of the first message


def default_path() -> Path:
    """Return where conversations are kept: under the user's data folder."""
    return user_data_path("mink-local") / "conversations.db"


class ConversationStore:
    """The conversations of one SQLite file, or of memory.

    Several programs may have the file open at once. If the file can only be read, or no longer be written
    (the disk is full, for example), a warning is logged with the next message and the conversations go on in
    memory. Raises MinkError if it cannot be opened.
    """

    def __init__(self, path: Path | None = None) -> None:
        try:
            self._db = _open(path) if path else _connect(":memory:")
            _set_up(self._db)
        except OSError as error:
            raise MinkError(f"the conversations in {path} cannot be opened: {error.strerror}") from None
        except sqlite3.Error as error:
            raise MinkError(
                f"the conversations in {path} cannot be opened ({error}): move them away, or take --no-store"
            ) from None

    def close(self) -> None:
        self._db.close()

    def _write(self, *statements: _Sql) -> int:
        """Execute statements in one transaction; return the id of the row that the first one inserted."""
        try:
            return _execute(self._db, statements)
        except sqlite3.IntegrityError as error:
            if "FOREIGN KEY" in str(error):
                raise MinkError(_DELETED) from None
            raise
        except sqlite3.DatabaseError as error:
            log.warning("the conversation is no longer being kept: %s", error)
            on_disk, self._db = self._db, _connect(":memory:")
            on_disk.backup(self._db)
            on_disk.close()
            return _execute(self._db, statements)

    def begin(self, model: str, system: str | None) -> int:
        """Start a conversation; return its id."""
        return self._write(_insert("conversation", model=model, system=system, updated=time.time()))

    def add(
        self,
        conversation: int,
        parent: int | None,
        role: Role,
        content: str = "",
        how: SamplingInfo | None = None,
    ) -> int:
        """Add a message after `parent` and make it the head; return its id."""
        now, info = time.time(), json.dumps(vars(how) if how else None)
        row = {"conversation": conversation, "parent": parent, "role": role, "content": content}
        head = "UPDATE conversation SET head = last_insert_rowid(), updated = ? WHERE id = ?"
        return self._write(
            _insert("message", **row, thinking="", how=info, created=now), (head, (now, conversation))
        )

    def append(self, message: int, text: str, thinking: bool = False) -> None:
        """Add a piece of text to a message that is being generated."""
        self._write(_insert("piece", message=message, thinking=thinking, text=text))

    def finish(self, message: int, outcome: Outcome) -> None:
        """Fold the pieces of a message into it and store its outcome."""
        whole, result = self.message(message), json.dumps(asdict(outcome))
        self._write(
            _update("message", message, content=whole.content, thinking=whole.thinking, outcome=result),
            ("DELETE FROM piece WHERE message = ?", (message,)),
        )

    def change(self, conversation: int, **columns: object) -> None:
        """Replace the head, the system prompt, the model or the name; MinkError if another has the name."""
        try:
            self._write(_update("conversation", conversation, **columns))
        except sqlite3.IntegrityError:
            name = columns.get("name")
            raise MinkError(f"there is another conversation {name!r}: choose another name") from None

    def delete(self, conversation: int) -> None:
        self._write(("DELETE FROM conversation WHERE id = ?", (conversation,)))

    def message(self, message: int) -> StoredMessage:
        """Return a message, with the pieces that came until now if it is being generated."""
        found = self._db.execute("SELECT * FROM message WHERE id = ?", (message,)).fetchone()
        if found is None:
            raise MinkError(_DELETED)
        row = dict(found)
        del row["conversation"]
        row["how"] = _from_json(SamplingInfo, row["how"])
        row["outcome"] = _from_json(Outcome, row["outcome"])
        if row["outcome"]:
            row["outcome"].continued[:] = [_made(SamplingInfo, values) for values in row["outcome"].continued]
        pieces = "SELECT thinking, text FROM piece WHERE message = ? ORDER BY id"
        for thinking, text in self._db.execute(pieces, (message,)):
            row["thinking" if thinking else "content"] += text
            row["outcome"] = None  # earlier versions continued an answer in its place
        return StoredMessage(**row)

    def branch(self, head: int | None) -> list[StoredMessage]:
        """Return the messages from the first to `head`."""
        messages = []
        while head is not None:
            messages.append(self.message(head))
            head = messages[-1].parent
        return messages[::-1]

    def children(self, conversation: int, parent: int | None) -> list[StoredMessage]:
        """Return every message that follows `parent`, oldest first; None asks for the first messages."""
        return [message for message in self.messages(conversation) if message.parent == parent]

    def messages(self, conversation: int) -> list[StoredMessage]:
        """Return every message of every branch, oldest first."""
        rows = self._db.execute("SELECT id FROM message WHERE conversation = ? ORDER BY id", (conversation,))
        return [self.message(row["id"]) for row in rows.fetchall()]

    def conversations(self) -> list[Conversation]:
        """Return all conversations, the most recent first."""
        return self._conversations("1")

    def search(self, text: str) -> dict[int, str]:
        """Return the ids of the conversations that contain a text, each with the last place where it is."""
        wanted = text.casefold()
        named = "SELECT id, name FROM conversation WHERE instr(casefold(name), ?)"
        said = "SELECT conversation, content FROM message WHERE instr(casefold(content), ?) ORDER BY id"
        places = [tuple(row) for sql in (named, said) for row in self._db.execute(sql, (wanted,))]
        return {conversation: _around(wanted, place) for conversation, place in places}

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
            raise MinkError(f"there is no conversation {name!r}: see --list, or /list in a chat")
        return found[0]

    def get(self, conversation: int) -> Conversation:
        """Return the conversation with an id. Raises MinkError if another program has deleted it."""
        if found := self._conversations("conversation.id = ?", conversation):
            return found[0]
        raise MinkError(_DELETED)

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


def _open(path: Path) -> sqlite3.Connection:
    """Open a file, only for reading if it cannot be written."""
    try:
        private_file(path)
        db = _connect(path)
        db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode a commit survives the end of the program at once, and a power cut a little later.
        db.execute("PRAGMA synchronous = NORMAL")
    except (OSError, sqlite3.OperationalError) as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_READONLY) & 0xFF
        if code not in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN) or not path.exists():
            raise
        # In WAL mode even a reader writes, unless it is told that nobody writes meanwhile.
        db = _connect(f"{path.absolute().as_uri()}?immutable=1")
    return db


def _around(wanted: str, text: str) -> str:
    """Return a text from a little before a place on."""
    start = text.casefold().find(wanted) - 12
    return text if start <= 0 else f"…{text[start:]}"


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level=None, uri=isinstance(path, str))
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.create_function("casefold", 1, lambda text: text and text.casefold(), deterministic=True)
    return db


def _set_up(db: sqlite3.Connection) -> None:
    """Create the tables of a new file."""
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


def _insert(table: str, **columns: object) -> _Sql:
    places = ", ".join("?" * len(columns))
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({places})", tuple(columns.values())


def _update(table: str, row: int, **columns: object) -> _Sql:
    assignments = ", ".join(f"{column} = ?" for column in columns)
    return f"UPDATE {table} SET {assignments} WHERE id = ?", (*columns.values(), row)


def _from_json(kind: type[Any], text: str | None) -> Any:
    """Return a dataclass from stored fields; another version may have stored fewer or more."""
    values = json.loads(text or "null")
    return values and _made(kind, values)


def _made(kind: type[Any], values: dict[str, Any]) -> Any:
    names = {f.name for f in fields(kind)}
    return kind(**{name: value for name, value in values.items() if name in names})
