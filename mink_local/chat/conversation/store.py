"""Conversations on disk: a SQLite file in which every token is committed before it is shown.

The messages of a conversation are a tree: another answer to the same message, or an edited message, is
a sibling, and `head` is the last message of the current branch. Nothing is ever overwritten. While an
answer is generated, each piece of its text is a row of its own; the pieces are folded into the message at
the end. If the program is killed, the pieces stay, and reading the message joins them.
"""

import json
import logging
import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_data_path

from mink_local.errors import MinkError
from mink_local.files import private_file

Role = Literal["user", "assistant"]

log = logging.getLogger("mink_local")

_DELETED = "this conversation was deleted in another window: /clear begins a new one"
_PATIENCE = 30  # seconds for another program that has locked the file
_VERSION = 1
_SCHEMA = f"""
BEGIN IMMEDIATE;
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
    outcome TEXT,       -- JSON: see StoredMessage.as_exported; NULL while it is being generated
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
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_BRANCH = """
WITH RECURSIVE branch (id, parent) AS (
    SELECT id, parent FROM message WHERE id = {head}
    UNION ALL SELECT message.id, message.parent FROM message JOIN branch ON message.id = branch.parent
)
"""
_CONVERSATIONS = f"""
SELECT id, name, model, system, head, updated,
    ({_BRANCH.format(head="conversation.head")}
     SELECT count(*) FROM message WHERE role = 'user' AND id IN (SELECT id FROM branch)) AS turns,
    coalesce((SELECT substr(content, 1, 200) FROM message
              WHERE conversation = conversation.id AND parent IS NULL ORDER BY id DESC LIMIT 1), '') AS title
FROM conversation
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


@dataclass
class StoredMessage:
    """One message of a conversation; an answer grows while it is generated.

    Attributes:
        content: The text; of an answer without its reasoning, which is `thinking`.
        parent: The id of the message before it.
        parts: How an answer was sampled: one part, unless it was continued.
        id: 0 until it is in a store.
        created: In seconds since 1970.
        finish_reason: That of `Answer`, or "repetition". None while the answer is being generated, and if the
            program was killed then; only the text is known in that case.
        tokens: Ids of the tokens of an answer, without the one that ended it.
        k: Number of candidates of each token, 0 if unknown; one more if a token ended the answer.
        chosen: Indices of tokens that the user chose, not the sampler.
        repeated: Characters at the end that say again what was said, if that ended the answer.
        first_token_s: Time until the first piece of text, in seconds.
        seconds: Time until the end.
    """

    role: Role
    content: str = ""
    parent: int | None = None
    thinking: str = ""
    parts: list[SamplingInfo] = field(default_factory=list)
    id: int = 0
    created: float = field(default_factory=time.time)
    finish_reason: str | None = None
    tokens: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    repeated: int = 0
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_s: float = 0.0
    seconds: float = 0.0

    @property
    def to_evaluate(self) -> str:
        """The content that the conversation goes on from: without a loop, which the model would take up."""
        return self.content[: max(0, len(self.content) - self.repeated)]

    def as_exported(self) -> dict[str, Any]:
        """Return the message as exports have it.

        `how` is the first of the parts; `outcome` is what is known of an answer that ended, with the other
        parts as `continued`.
        """
        values = asdict(self)
        parts = values.pop("parts")
        outcome = {name: values.pop(name) for name in _OUTCOME}
        values["how"] = parts[0] if parts else None
        values["outcome"] = {**outcome, "continued": parts[1:]} if self.finish_reason else None
        return values

    def as_row(self) -> dict[str, Any]:
        """Return the columns of the message, for the database."""
        row = self.as_exported()
        row["how"] = json.dumps(row["how"])
        row["outcome"] = row["outcome"] and json.dumps(row["outcome"])
        return row


_OUTCOME = (
    "finish_reason", "tokens", "k", "chosen", "repeated", "prompt_tokens", "evaluated_tokens",
    "first_token_s", "seconds",
)  # fmt: skip


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
        self._is_lost = False  # what is new is only in memory
        try:
            self._db = _open(path) if path else _connect(":memory:")
            _create_tables(self._db)
        except OSError as error:
            raise MinkError(f"the conversations in {path} cannot be opened: {error.strerror}") from None
        except sqlite3.Error as error:
            raise MinkError(
                f"the conversations in {path} cannot be opened ({error}): move them away, or take --no-store"
            ) from None

    def close(self) -> None:
        self._db.close()

    def begin(self, model: str, system: str | None) -> int:
        """Start a conversation; return its id."""
        insert = "INSERT INTO conversation (model, system, updated) VALUES (?, ?, ?)"
        return self._write((insert, (model, system, time.time())))

    def add(self, conversation: int, message: StoredMessage) -> None:
        """Add a message, make it the head of its conversation, and give it its id."""
        row = {**message.as_row(), "conversation": conversation}
        insert = (
            "INSERT INTO message (conversation, parent, role, content, thinking, how, outcome, created) "
            "VALUES (:conversation, :parent, :role, :content, :thinking, :how, :outcome, :created)"
        )
        head = (
            "UPDATE conversation SET head = last_insert_rowid(), updated = :created WHERE id = :conversation"
        )
        message.id = self._write((insert, row), (head, row))

    def append(self, message: StoredMessage, text: str, is_reasoning: bool = False) -> None:
        """Add a piece of text to a message that is being generated."""
        insert = "INSERT INTO piece (message, thinking, text) VALUES (?, ?, ?)"
        self._write((insert, (message.id, is_reasoning, text)))
        if is_reasoning:
            message.thinking += text
        else:
            message.content += text

    def finish(self, message: StoredMessage) -> None:
        """Fold the pieces of a message into it and store its outcome."""
        update = (
            "UPDATE message SET content = :content, thinking = :thinking, outcome = :outcome WHERE id = :id"
        )
        row = message.as_row()
        self._write((update, row), ("DELETE FROM piece WHERE message = :id", row))

    def change(self, conversation: int, **columns: object) -> None:
        """Replace the head, the system prompt, the model or the name; MinkError if another has the name."""
        assignments = ", ".join(f"{column} = ?" for column in columns)
        update = f"UPDATE conversation SET {assignments} WHERE id = ?"
        try:
            self._write((update, (*columns.values(), conversation)))
        except sqlite3.IntegrityError:
            name = columns.get("name")
            raise MinkError(f"there is another conversation {name!r}: choose another name") from None
        if "name" in columns:
            self._require_file()

    def delete(self, conversation: int) -> None:
        """Delete a conversation with its messages. Raises MinkError if the file still has it."""
        self._write(("DELETE FROM conversation WHERE id = ?", (conversation,)))
        self._require_file()

    def branch(self, head: int | None) -> list[StoredMessage]:
        """Return the messages from the first to `head`."""
        return self._messages(f"id IN ({_BRANCH.format(head='?')} SELECT id FROM branch)", head)

    def messages(self, conversation: int) -> list[StoredMessage]:
        """Return every message of every branch, oldest first."""
        return self._messages("conversation = ?", conversation)

    def conversations(self, text: str = "") -> list[Conversation]:
        """Return all conversations, the most recent first.

        With a text: those that contain it; their titles are the last places where it is.
        """
        conversations = self._conversations("1")
        if not text:
            return conversations
        wanted = text.casefold()
        named = "SELECT id, name FROM conversation WHERE instr(casefold(name), ?)"
        said = "SELECT conversation, content FROM message WHERE instr(casefold(content), ?) ORDER BY id"
        found = {row[0]: row[1] for sql in (named, said) for row in self._db.execute(sql, (wanted,))}
        return [
            replace(one, title=_around(wanted, found[one.id])) for one in conversations if one.id in found
        ]

    def find(self, name: str = "") -> Conversation:
        """Return the conversation of a name, or of a number that a list shows; without one the most recent.

        Raises MinkError if there is none.
        """
        number = int(name[:18]) if name.isdecimal() else None
        where = "name = ? OR id = ? OR (? = '' AND head IS NOT NULL)"
        if found := self._conversations(where, name, number, name):
            return found[0]
        hint = f" {name!r}: see --list, or /list in a chat" if name else " to continue yet"
        raise MinkError(f"there is no conversation{hint}")

    def get(self, conversation: int) -> Conversation:
        """Return the conversation with an id. Raises MinkError if another program has deleted it."""
        if found := self._conversations("id = ?", conversation):
            return found[0]
        raise MinkError(_DELETED)

    def _messages(self, where: str, *arguments: object) -> list[StoredMessage]:
        rows = self._db.execute(f"SELECT * FROM message WHERE {where} ORDER BY id", arguments).fetchall()
        pieces = "SELECT text, thinking FROM piece WHERE message = ? ORDER BY id"
        return [_message(row, self._db.execute(pieces, (row["id"],)).fetchall()) for row in rows]

    def _conversations(self, where: str, *arguments: object) -> list[Conversation]:
        query = f"{_CONVERSATIONS} WHERE {where} ORDER BY updated DESC, id DESC"
        return [Conversation(**row) for row in map(dict, self._db.execute(query, arguments))]

    def _write(self, *statements: tuple[str, Sequence[object] | dict[str, Any]]) -> int:
        """Execute statements in one transaction; return the id of the row that the first one inserted."""
        try:
            with self._db:
                ids = [self._db.execute(sql, values).lastrowid for sql, values in statements]
            return ids[0] or 0
        except sqlite3.IntegrityError as error:
            if "FOREIGN KEY" in str(error):
                raise MinkError(_DELETED) from None
            raise
        except sqlite3.DatabaseError as error:
            if self._is_lost:
                raise
            log.warning("the conversation is no longer being kept: %s", error)
            self._is_lost = True
            with closing(self._db) as on_disk:
                self._db = _connect(":memory:")
                on_disk.backup(self._db)
            return self._write(*statements)

    def _require_file(self) -> None:
        if self._is_lost:
            raise MinkError("the file of the conversations cannot be written: this is not changed there")


def _open(path: Path) -> sqlite3.Connection:
    """Open a file, only for reading if it cannot be written."""
    if path.exists() and not all(map(_is_writable, (path, path.resolve().parent))):
        # In WAL mode even a reader writes, unless it is told that nobody writes meanwhile.
        return _connect(f"{path.absolute().as_uri()}?immutable=1")
    db = _connect(private_file(path))
    db.execute("PRAGMA journal_mode = WAL")
    # In WAL mode a commit survives the end of the program at once, and a power cut a little later.
    db.execute("PRAGMA synchronous = NORMAL")
    return db


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _connect(path: Path | str) -> sqlite3.Connection:
    """Open a database in which a change begins a transaction, at once as the only writer."""
    db = sqlite3.connect(path, timeout=_PATIENCE, isolation_level="IMMEDIATE", uri=isinstance(path, str))
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.create_function("casefold", 1, lambda text: text and text.casefold(), deterministic=True)
    return db


def _create_tables(db: sqlite3.Connection) -> None:
    """Create the tables of a new file."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        db.executescript(_SCHEMA)
    elif version > _VERSION:
        db.close()
        raise sqlite3.DatabaseError("a newer version of this program wrote them")


def _message(row: sqlite3.Row, pieces: Sequence[sqlite3.Row]) -> StoredMessage:
    """Return a message from its row and the pieces of text that are not folded into it."""
    how, outcome = json.loads(row["how"]), json.loads(row["outcome"] or "{}")
    if pieces:
        outcome = {}  # an earlier version was killed while it continued the answer in its place
    infos = [how, *outcome.get("continued", ())] if how else []
    parts = [SamplingInfo(**_known(SamplingInfo, info)) for info in infos]
    texts = [row["content"], row["thinking"]]
    for text, is_reasoning in pieces:
        texts[is_reasoning] += text
    outcome = _known(StoredMessage, outcome)
    return StoredMessage(
        row["role"], texts[0], row["parent"], texts[1], parts, row["id"], row["created"], **outcome
    )


def _known(kind: type[Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Return the stored fields that a dataclass has; another version may have stored more."""
    return {one.name: stored[one.name] for one in fields(kind) if one.name in stored}


def _around(wanted: str, text: str) -> str:
    """Return a text from a little before a place on."""
    start = text.casefold().find(wanted) - 12
    return text if start <= 0 else f"…{text[start:]}"
