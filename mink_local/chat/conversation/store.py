"""Conversations on disk: a SQLite file in which a message is a row.

The messages of a conversation are a tree: another answer to the same message, or an edited message, is
a sibling, and `head` is the last message of the current branch. So two programs never write the same
message. An answer is stored when it begins, then twice a second, and at its end: a program that is killed
loses the last second. `alive` tells an answer that is being written from one that was cut off.

Messages know whether the store has them: what cannot be stored now is stored with what comes next.
"""

import json
import logging
import os
import shutil
import sqlite3
import time
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, get_origin, get_type_hints

from mink_local.chat.settings import in_words
from mink_local.cli import command_line_text
from mink_local.errors import MinkError
from mink_local.files import private_file, replaced, user_folder

if TYPE_CHECKING:
    from mink_local.generation.answer import Answer

log = logging.getLogger("mink_local")

Role = Literal["user", "assistant"]

_TITLE = 200  # characters of a message that a list shows
_PATIENCE_MS = 1000  # milliseconds for another program that has locked the file
_FIRST, _LAST = 86_400.0, 253_402_128_000.0  # times that have a date, in 1970 and 9999
_ALIVE_SECONDS = 3.0  # since its last sign of life; then a program that was writing an answer has ended
_VERSION = 2
_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS conversation (
    id INTEGER PRIMARY KEY,
    name TEXT UNIQUE,
    model TEXT NOT NULL,
    system TEXT,
    head INTEGER REFERENCES message ON DELETE SET NULL,
    updated REAL NOT NULL,
    settings TEXT NOT NULL DEFAULT '{{}}'  -- JSON: see Conversation
);
CREATE TABLE IF NOT EXISTS message (
    id INTEGER PRIMARY KEY,
    conversation INTEGER NOT NULL REFERENCES conversation ON DELETE CASCADE,
    parent INTEGER REFERENCES message ON DELETE CASCADE,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    thinking TEXT NOT NULL,  -- the reasoning
    how TEXT NOT NULL,  -- JSON: SamplingInfo
    outcome TEXT,       -- JSON: see StoredMessage.as_exported; NULL while it is being generated
    created REAL NOT NULL,
    alive REAL NOT NULL DEFAULT 0  -- when a program was writing it, or was about to answer it
);
CREATE INDEX IF NOT EXISTS message_parent ON message (conversation, parent);
PRAGMA user_version = {_VERSION};
COMMIT;
"""
_PIECES = """
coalesce((SELECT group_concat(text, '') FROM
    (SELECT text FROM piece WHERE piece.message = message.id AND thinking = {} ORDER BY id)), '')
"""
_FROM_VERSION_1 = (  # in which each token of an answer was a row until the answer ended
    "ALTER TABLE message ADD COLUMN alive REAL NOT NULL DEFAULT 0",
    f"UPDATE message SET content = content || {_PIECES.format(0)} WHERE id IN (SELECT message FROM piece)",
    f"UPDATE message SET thinking = thinking || {_PIECES.format(1)} WHERE id IN (SELECT message FROM piece)",
    "DROP TABLE piece",
    "PRAGMA user_version = 2",
)
_BRANCH = """
WITH RECURSIVE branch (id, parent) AS (
    SELECT id, parent FROM message WHERE id = {head}
    UNION SELECT message.id, message.parent FROM message JOIN branch ON message.id = branch.parent
)
"""
_EXISTS = "model != ''"  # a conversation that was not deleted
# The first message of a conversation that has no head, if it is the newest one and was never answered.
_UNANSWERED = """
SELECT id FROM message AS first
WHERE conversation.head IS NULL
    AND id = (SELECT max(id) FROM message AS root
              WHERE root.conversation = conversation.id AND root.parent IS NULL)
    AND NOT EXISTS (SELECT 1 FROM message AS answer
                    WHERE answer.conversation = conversation.id AND answer.parent = first.id)
"""
_CONVERSATIONS = f"""
SELECT id, name, model, system, settings, head, ({_UNANSWERED}) AS unanswered, updated,
    ({_BRANCH.format(head=f"coalesce(conversation.head, ({_UNANSWERED}))")}
     SELECT count(*) FROM message WHERE role = 'user' AND id IN (SELECT id FROM branch)) AS turns,
    coalesce((SELECT beginning(CAST(content AS BLOB), CAST(outcome AS BLOB)) FROM message
              WHERE conversation = conversation.id AND parent IS NULL ORDER BY id DESC LIMIT 1), '') AS title
FROM conversation
"""
_TOUCH = "UPDATE message SET alive = ? WHERE id = ?"
_CONTAINS = "instr(casefold(CAST({} AS BLOB)), ?)"
_NEWEST = "ORDER BY updated DESC, id DESC"


@dataclass(frozen=True)
class SamplingInfo:
    """The settings and the prompt that tokens of an answer were sampled with.

    Attributes:
        first_token: Index in the answer of the first token sampled with these settings.
        first_message: Index in the branch of the first message that fitted the context.
        reasoning_sampler: What sampled the reasoning, if that was another; its temperature comes with it.
        reasoning: Whether the chat template was told to have the model reason; None if it was told nothing.
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
    reasoning: bool | None = None
    constraints: dict[str, Any] = field(default_factory=dict)
    prompt: str = ""
    reasoning_sampler: str | None = None
    reasoning_temperature: float | None = None

    @property
    def while_reasoning(self) -> "SamplingInfo | None":
        """The settings of the reasoning, if they are others."""
        if self.reasoning_sampler is None or self.reasoning_temperature is None:
            return None
        return replace(self, sampler=self.reasoning_sampler, temperature=self.reasoning_temperature)


@dataclass
class StoredMessage:
    """One message of a conversation; an answer grows while it is generated.

    Attributes:
        content: The text; of an answer without its reasoning.
        attached: How many characters of the content, at its beginning, are files.
        parent: The id of the message before it.
        parts: How an answer was sampled: one part, unless it was continued.
        id: 0 until it is in a store.
        created: In seconds since 1970.
        finish_reason: That of `Answer`. None while the answer is being generated, and if the
            program was killed then; only the text is known in that case.
        tokens: Ids of the tokens of an answer, without the one that ended it.
        k: Number of candidates of each token, 0 if unknown; one more if a token ended the answer.
        chosen: Indices of tokens that the user chose, not the sampler.
        borders: Indices of the tokens with which reasoning began, and the answer, in turn.
        repeated: Characters at the end that say again what was said, if that ended the answer.
        first_token_s: Time until the first piece of text, in seconds.
        seconds: Time until the end.
        is_kept: Whether the store has all of it.
        repeats_since: The number of the token, from 1, since which the answer repeated itself, if that ended
            it or its reasoning; not stored.
    """

    role: Role
    content: str = ""
    parent: int | None = None
    reasoning: str = ""
    parts: list[SamplingInfo] = field(default_factory=list)
    id: int = 0
    created: float = field(default_factory=time.time)
    finish_reason: str | None = None
    tokens: list[int] = field(default_factory=list)
    k: list[int] = field(default_factory=list)
    chosen: list[int] = field(default_factory=list)
    borders: list[int] = field(default_factory=list)
    attached: int = 0
    repeated: int = 0
    prompt_tokens: int = 0
    evaluated_tokens: int = 0
    first_token_s: float = 0.0
    seconds: float = 0.0
    is_kept: bool = field(default=False, compare=False, repr=False)
    repeats_since: int | None = field(default=None, compare=False, repr=False)

    @property
    def settings(self) -> str:
        """The sampler and the temperature of an answer in words, "" if they are unknown."""
        return "".join(in_words(how, how.while_reasoning) for how in self.parts[-1:])

    def sampling_of(self, at: int) -> SamplingInfo:
        """Return how a token was sampled: the parts of a continued answer may differ, and its phases."""
        part = [part for part in self.parts if part.first_token <= at][-1]
        is_reasoning = bisect(self.borders, at) % 2 == 1
        return (is_reasoning and part.while_reasoning) or part

    @property
    def is_unfinished(self) -> bool:
        """Whether it is an answer that is being generated, or was when the program was killed."""
        return self.role == "assistant" and self.finish_reason is None

    @property
    def files(self) -> str:
        """What the content begins with if files are attached."""
        return self.content[: self.attached]

    @property
    def typed(self) -> str:
        """The content without attached files."""
        return self.content[self.attached :]

    @property
    def n_new(self) -> int:
        """The number of tokens that were sampled last, without those before an answer was continued."""
        return len(self.tokens) - (self.parts[-1].first_token if self.parts else 0)

    def add(self, reasoning: str, content: str) -> None:
        """Add what the answer has grown by; the store lacks it then."""
        self.reasoning += reasoning
        self.content += content
        self.is_kept = False

    def end(self, answer: "Answer", seconds: float) -> None:
        """Take what is known of an answer that has ended, besides its text; the store lacks it then."""
        self.finish_reason = answer.finish_reason
        n, before = len(self.tokens), [at for at in self.borders if at <= len(self.tokens)]
        # Reasoning that goes on does not begin again.
        self.borders = before + [n + at for at in answer.phase_borders[len(before) % 2 :]]
        self.tokens += answer.tokens
        self.k += answer.k
        self.prompt_tokens = answer.prompt_tokens
        self.evaluated_tokens = answer.evaluated_tokens
        self.seconds = seconds
        self.is_kept = False

    @property
    def to_evaluate(self) -> str:
        """The content that the conversation goes on from: without a loop, which the model would take up."""
        return self.content[: max(0, len(self.content) - self.repeated)]

    def as_exported(self) -> dict[str, Any]:
        """Return the message as exports have it.

        `how` is the first of the parts; `outcome` is what is known of an answer that ended, with the other
        parts as `continued`, or of a message with files.
        """
        values = asdict(self)
        parts = values.pop("parts")
        del values["is_kept"], values["repeats_since"]
        outcome = {name: values.pop(name) for name in _OUTCOME}
        values["how"] = parts[0] if parts else None
        values["outcome"] = (
            {**outcome, "continued": parts[1:]} if self.finish_reason or self.attached else None
        )
        return values


_OUTCOME = (
    "finish_reason", "tokens", "k", "chosen", "borders", "attached", "repeated", "prompt_tokens",
    "evaluated_tokens", "first_token_s", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class Conversation:
    """A conversation as a list shows it, without its messages."""

    id: int
    name: str | None
    model: str
    system: str | None
    settings: dict[str, str | None]  # the sampling settings that are not the defaults, as /set takes them
    head: int | None  # the id of the last message of the current branch
    unanswered: int | None  # that of a first message, if it has no head
    updated: float  # when the last message was added, in seconds since 1970
    turns: int  # the user's messages in the current branch
    title: str  # the first 200 characters of the first message, after its files

    @property
    def end(self) -> int | None:
        """The id of the message that the conversation goes on from."""
        return self.head or self.unanswered

    @property
    def label(self) -> str:
        """What it is called as the source of a setting."""
        return f"conversation {self.name or self.id}"


def default_path() -> Path:
    """Return where conversations are kept: under the user's data folder."""
    return user_folder("data") / "conversations.db"


class StoreError(MinkError):
    """The file of conversations cannot be read or written, perhaps only for now."""


class DeletedError(MinkError):
    """Another program has deleted the conversation."""

    def __init__(self) -> None:
        super().__init__("this conversation was deleted in another window: /clear begins a new one")


class ConversationStore:
    """The conversations of one SQLite file, or of memory.

    Several programs may have the file open at once. It is opened when it is first needed. A file that another
    program has locked is waited for, but only once: until a call succeeds, further ones fail immediately. All
    methods raise StoreError if the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None
        self._has_failed = False

    @property
    def is_on_disk(self) -> bool:
        """Whether conversations are kept."""
        return self._path is not None

    def open(self) -> None:
        """Open the file now, to learn whether it can be."""
        with self._transaction():
            pass

    def close(self) -> None:
        """Close the file; another call opens it again."""
        if self._db:
            self._db.close()
            self._db = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Yield the open database; a block that fails changes nothing in it."""
        try:
            patience = 0 if self._has_failed else _PATIENCE_MS
            self._db = self._db or _open(self._path, patience)
            self._db.execute(f"PRAGMA busy_timeout = {patience}")
            with self._db:
                yield self._db
        except sqlite3.IntegrityError:
            raise
        except (OSError, sqlite3.Error) as error:
            self._has_failed = True
            reason = error.strerror if isinstance(error, OSError) else error
            raise StoreError(f"{self._path}: {reason}") from None
        self._has_failed = False

    def save(
        self,
        conversation: int | None,
        branch: Sequence[StoredMessage],
        model: str,
        system: str | None,
        settings: Mapping[str, str | None] | None = None,
    ) -> int:
        """Store what the store lacks of a branch, and make it the current one of its conversation.

        Args:
            conversation: Its id; None begins one.
            branch: From the first message to the last, which becomes the head; perhaps none.
            model: With which the conversation goes on.
            system: The system prompt.
            settings: See `Conversation`; None for none.

        Returns:
            The conversation's id.

        Raises:
            DeletedError: There is no conversation with the id.
        """
        model = command_line_text(model)
        end = branch[-1].created if branch else 0.0
        is_growing = branch and branch[-1].finish_reason is None and not branch[-1].is_kept
        ids: list[int | None] = [None]  # the first message has no parent
        with self._transaction() as db:
            if conversation is None:
                begin = "INSERT INTO conversation (model, updated) VALUES (?, ?)"
                conversation = db.execute(begin, (model, end)).lastrowid or 0
            change = "UPDATE conversation SET model = ?, system = ?, updated = max(updated, ?)"
            where = f"WHERE id = ? AND {_EXISTS}"
            if not db.execute(f"{change} {where}", (model, system, end, conversation)).rowcount:
                raise DeletedError
            for message in branch:
                ids.append(message.id if message.is_kept else self._keep(db, conversation, ids[-1], message))
            change = "UPDATE conversation SET head = ?, settings = ? WHERE id = ?"
            db.execute(change, (ids[-1], json.dumps(settings or {}), conversation))
            db.execute("UPDATE message SET alive = 0 WHERE conversation = ? AND alive", (conversation,))
            if is_growing:
                db.execute(_TOUCH, (time.time(), ids[-1]))
        for message, parent, number in zip(branch, ids, ids[1:], strict=False):
            message.id, message.parent, message.is_kept = number or 0, parent, True
        return conversation

    def _keep(
        self, db: sqlite3.Connection, conversation: int, parent: int | None, message: StoredMessage
    ) -> int:
        """Insert a message, or replace it; return its id."""
        row = {**message.as_exported(), "conversation": conversation, "parent": parent}
        outcome = row["outcome"] and json.dumps(row["outcome"])
        row |= {"thinking": row["reasoning"], "how": json.dumps(row["how"]), "outcome": outcome}
        if message.id:
            columns = "content = :content, thinking = :thinking, outcome = :outcome"
            db.execute(f"UPDATE message SET {columns} WHERE id = :id", row)
            return message.id
        insert = (
            "INSERT INTO message (conversation, parent, role, content, thinking, how, outcome, created) "
            "VALUES (:conversation, :parent, :role, :content, :thinking, :how, :outcome, :created)"
        )
        return db.execute(insert, row).lastrowid or 0

    def touch(self, message: StoredMessage) -> None:
        """Tell other programs that this one is still writing an answer, or about to answer a message."""
        with self._transaction() as db:
            db.execute(_TOUCH, (time.time(), message.id))

    def is_being_written(self, message: StoredMessage) -> bool:
        """Return whether a running program is writing an answer, or is about to answer a message."""
        alive = self._rows("SELECT alive FROM message WHERE id = ?", (message.id,))
        return message.finish_reason is None and any(time.time() - row[0] < _ALIVE_SECONDS for row in alive)

    def rename(self, conversation: int, name: str) -> None:
        """Name a conversation. Raises MinkError if another one has the name."""
        try:
            with self._transaction() as db:
                db.execute("UPDATE conversation SET name = ? WHERE id = ?", (name, conversation))
        except sqlite3.IntegrityError:
            raise MinkError(f"there is another conversation {name!r}: choose another name") from None

    def delete(self, conversation: int) -> None:
        """Delete a conversation with its messages, so that the file does not hold their text any more.

        An empty row stays, or SQLite would reuse the id while another window may still have the conversation.
        """
        empty = "model = '', name = NULL, system = NULL, settings = '{}', updated = 0"
        with self._transaction() as db:
            # SQLite does not follow more than 1000 messages from one to the next.
            db.execute("UPDATE message SET parent = NULL WHERE conversation = ?", (conversation,))
            db.execute("DELETE FROM message WHERE conversation = ?", (conversation,))
            db.execute(f"UPDATE conversation SET {empty} WHERE id = ?", (conversation,))

    def branch(self, head: int | None) -> list[StoredMessage]:
        """Return the messages from the first to `head`."""
        return self._messages(f"id IN ({_BRANCH.format(head='?')} SELECT id FROM branch)", head)

    def messages(self, conversation: int) -> list[StoredMessage]:
        """Return every message of every branch, oldest first."""
        return self._messages("conversation = ?", conversation)

    def following(self, conversation: int, message: int | None) -> list[StoredMessage]:
        """Return all that ever came after a message, oldest first; None for the beginning."""
        return self._messages("conversation = ? AND parent IS ?", conversation, message)

    def conversations(self, text: str = "") -> list[Conversation]:
        """Return all conversations, the most recent first.

        With a text: those that contain it; their titles show its last occurrence.
        """
        conversations = self._conversations("1")
        if not text:
            return conversations
        wanted = text.casefold()
        named = f"SELECT id, name FROM conversation WHERE {_CONTAINS.format('name')}"
        said = f"SELECT conversation, content FROM message WHERE {_CONTAINS.format('content')} ORDER BY id"
        found = {row[0]: row[1] for sql in (named, said) for row in self._rows(sql, (wanted,))}
        return [
            replace(one, title=_around(wanted, found[one.id])) for one in conversations if one.id in found
        ]

    def find(self, name: str = "") -> Conversation:
        """Return the conversation of a name, or of a number that a list shows; without one the most recent.

        Raises MinkError if there is none.
        """
        number = int(name[:18]) if name.isdecimal() else None
        where = f"name = ? OR id = ? OR (? = '' AND coalesce(head, ({_UNANSWERED})))"
        if found := self._conversations(where, name, number, name, limit=1):
            return found[0]
        hint = f" {name!r}: see --list, or /list in a chat" if name else " to continue yet"
        raise MinkError(f"there is no conversation{hint}")

    def get(self, conversation: int) -> Conversation:
        """Return the conversation with an id. Raises MinkError if another program has deleted it."""
        if found := self._conversations("id = ?", conversation):
            return found[0]
        raise DeletedError

    def _messages(self, where: str, *arguments: object) -> list[StoredMessage]:
        rows = self._rows(f"SELECT * FROM message WHERE {where} ORDER BY id", arguments)
        return list(map(_message, rows))

    def _conversations(self, where: str, *arguments: object, limit: int = -1) -> list[Conversation]:
        """Return the most recent conversations, all without a `limit`; damaged ones are left out."""
        wanted = f"SELECT id FROM conversation WHERE {_EXISTS} AND ({where}) {_NEWEST} LIMIT {limit}"
        rows = self._rows(f"{_CONVERSATIONS} WHERE id IN ({wanted}) {_NEWEST}", arguments)
        return list(filter(None, map(_conversation, rows)))

    def _rows(self, query: str, arguments: Sequence[object] = ()) -> list[sqlite3.Row]:
        with self._transaction() as db:
            return db.execute(query, arguments).fetchall()


def _open(path: Path | None, patience: int) -> sqlite3.Connection:
    """Open a file, a copy in memory of one that cannot be written, or a database in memory.

    Args:
        path: The file; None for memory.
        patience: Milliseconds to wait for another program that has locked it.
    """
    if path is None or not path.exists() or all(map(_is_writable, (path, path.resolve().parent))):
        db = _connect(private_file(path) if path else ":memory:", patience)
        with suppress(sqlite3.OperationalError):  # a program of version 1 has it open
            db.execute("PRAGMA journal_mode = DELETE")
        _bring_up_to_date(db, path)
        return db
    db = _connect(":memory:", patience)
    with TemporaryDirectory() as folder:  # even to read, SQLite has to write beside a file
        copy = Path(folder, path.name)
        for end in ("", "-wal", "-journal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{path.resolve()}{end}", f"{copy}{end}")
        with closing(sqlite3.connect(copy)) as readable:
            readable.backup(db)
    _bring_up_to_date(db, None)
    db.execute("PRAGMA query_only = ON")
    return db


def _is_writable(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _connect(path: Path | str, patience: int) -> sqlite3.Connection:
    """Open a database in which a change begins a transaction, at once as the only writer."""
    db = sqlite3.connect(
        path, timeout=patience / 1000, isolation_level="IMMEDIATE", uri=isinstance(path, str)
    )
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")
    db.text_factory = _text
    db.create_function("casefold", 1, lambda data: _text(data).casefold(), deterministic=True)
    db.create_function("beginning", 2, _beginning, deterministic=True)
    return db


def _bring_up_to_date(db: sqlite3.Connection, path: Path | None) -> None:
    """Create the tables of a new file; change those of version 1, of which a copy stays beside it."""
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == 0:
        db.executescript(_SCHEMA)
    elif version > _VERSION:
        db.close()
        raise sqlite3.DatabaseError("a newer version of this program wrote them")
    elif version < _VERSION:
        if path:
            old = path.with_name(f"{path.stem}-version-{version}{path.suffix}")
            with replaced(old) as unfinished, closing(sqlite3.connect(private_file(unfinished))) as copy:
                db.backup(copy)
        with db:
            db.execute("BEGIN IMMEDIATE")
            if db.execute("PRAGMA user_version").fetchone()[0] == version:  # and no other program was faster
                for change in _FROM_VERSION_1:
                    db.execute(change)


def _text(data: bytes | None) -> str:
    """Return a text of the database, also one that is damaged."""
    return (data or b"").decode(errors="replace")


def _object(text: str | None) -> dict[str, Any]:
    """Return a JSON object of the database; an empty one if there is none, or it is damaged."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _beginning(content: bytes, outcome: bytes | None) -> str:
    """Return the first characters of a message, after its files."""
    attached = _object(_text(outcome)).get("attached", 0)
    return _text(content)[attached if isinstance(attached, int) else 0 :][:_TITLE]


# What the values of fields are instances of, where the type itself cannot tell.
_ORIGINS: dict[Any, Any] = {float: float | int, Literal: str, list: list, dict: dict}


def _fitting(kind: type, stored: Mapping[str, object]) -> dict[str, Any]:
    """Return the values that are fields of a dataclass, by name and by type.

    A damaged row, or one of another version, may have others.
    """
    types = {
        name: _ORIGINS.get(get_origin(hint) or hint, hint) for name, hint in get_type_hints(kind).items()
    }
    return {name: value for name, value in stored.items() if name in types and isinstance(value, types[name])}


def _conversation(row: sqlite3.Row) -> Conversation | None:
    """Return a conversation from its row; None, and a warning, if the row is damaged."""
    settings = {key: text for key, text in _object(row["settings"]).items() if isinstance(text, str | None)}
    try:
        return Conversation(**_fitting(Conversation, {**dict(row), "settings": settings}))
    except TypeError:
        log.warning("conversation %s is damaged and left out", row["id"])
        return None


def _message(row: sqlite3.Row) -> StoredMessage:
    """Return a message from its row.

    Of an answer whose row is damaged only the text is known, as if the program had been killed.
    """
    texts = [str(row["content"]), str(row["thinking"])]
    outcome = _object(row["outcome"])
    later = outcome.pop("continued", [])
    infos = filter(None, [_object(row["how"]), *(later if isinstance(later, list) else ())])
    role = "user" if row["role"] == "user" else "assistant"
    known = {**outcome, **dict(row), "role": role, "content": texts[0], "reasoning": texts[1]}
    message = StoredMessage(**_fitting(StoredMessage, known))
    with suppress(TypeError, AttributeError):
        # 0.1.0 stored under another name whether the model was to reason.
        known_infos = ({"reasoning": info.get("thinking"), **info} for info in infos)
        message.parts = [SamplingInfo(**_fitting(SamplingInfo, info)) for info in known_infos]
    message.is_kept = True
    return message


def time_of(seconds: float) -> datetime:
    """Return a stored time as the local one; the nearest that there is, if it is damaged."""
    return datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST))


def _around(wanted: str, text: str) -> str:
    """Return a text from a little before a place on; `wanted` is casefolded, which may change its length."""
    place = text.casefold().find(wanted)
    ends = accumulate(len(character.casefold()) for character in text)
    start = next((i for i, end in enumerate(ends) if end > place), 0) - 12
    return text if start <= 0 else f"…{text[start:]}"
