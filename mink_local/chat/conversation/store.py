"""Conversations on disk: a SQLite file in which a message is a row.

The messages of a conversation are a tree: another answer to the same message, or an edited message, is
a sibling, and `head` is the last message of the current branch. So two programs never write the same
message. An answer is stored when it begins, then twice a second, and at its end: a program that is killed
loses the last second.

Messages know whether the store has them: what cannot be stored now is stored with what comes next.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mink_local.chat.settings import in_words
from mink_local.cli import command_line_text
from mink_local.errors import MinkError
from mink_local.files import private_file, replaced, user_folder

if TYPE_CHECKING:
    from mink_local.generation.answer import Answer

Role = Literal["user", "assistant"]

_TITLE = 200  # characters of a message that a list shows
_PATIENCE_MS = 1000  # milliseconds for another program that has locked the file
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
    created REAL NOT NULL
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
    coalesce((SELECT substr(content, 1 + coalesce(json_extract(outcome, '$.attached'), 0), {_TITLE})
              FROM message WHERE conversation = conversation.id AND parent IS NULL
              ORDER BY id DESC LIMIT 1), '') AS title
FROM conversation
"""
_CONTAINS = "instr(casefold({}), ?)"
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
    def of_reasoning(self) -> str:
        """The sampler and the temperature of the reasoning in words, "" if they are those of the answer."""
        if self.reasoning_sampler is None or self.reasoning_temperature is None:
            return ""
        return in_words(self.reasoning_sampler, self.reasoning_temperature)


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
        return "".join(in_words(how.sampler, how.temperature, how.of_reasoning) for how in self.parts[-1:])

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


class DeletedError(StoreError):
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
        """Return the most recent conversations, all without a `limit`."""
        wanted = f"SELECT id FROM conversation WHERE {_EXISTS} AND ({where}) {_NEWEST} LIMIT {limit}"
        rows = self._rows(f"{_CONVERSATIONS} WHERE id IN ({wanted}) {_NEWEST}", arguments)
        return [Conversation(**{**dict(row), "settings": json.loads(row["settings"])}) for row in rows]

    def _rows(self, query: str, arguments: Sequence[object] = ()) -> list[sqlite3.Row]:
        with self._transaction() as db:
            return db.execute(query, arguments).fetchall()


def _open(path: Path | None, patience: int) -> sqlite3.Connection:
    """Open a database in which a change begins a transaction, at once as the only writer.

    Args:
        path: The file, which SQLite only reads if it cannot be written; None for memory.
        patience: Milliseconds to wait for another program that has locked it.
    """
    if path and not path.exists():
        private_file(path)
    db = sqlite3.connect(path or ":memory:", timeout=patience / 1000, isolation_level="IMMEDIATE")
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA foreign_keys = ON")
    db.execute("PRAGMA secure_delete = ON")
    with suppress(sqlite3.OperationalError):  # a program of version 1 has it open, or it is only read
        db.execute("PRAGMA journal_mode = DELETE")
    db.create_function("casefold", 1, lambda text: text and text.casefold(), deterministic=True)
    _bring_up_to_date(db, path)
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


def _message(row: sqlite3.Row) -> StoredMessage:
    """Return a message from its row, as `StoredMessage.as_exported` has it."""
    outcome = json.loads(row["outcome"] or "{}")
    infos = filter(None, [json.loads(row["how"]), *outcome.pop("continued", [])])
    values = {**outcome, **dict(row), "reasoning": row["thinking"]}
    message = StoredMessage(**_known(StoredMessage, values), is_kept=True)
    # 0.1.0 stored under another name whether the model was to reason.
    known = (_known(SamplingInfo, {"reasoning": info.get("thinking"), **info}) for info in infos)
    message.parts = [SamplingInfo(**info) for info in known]
    return message


def _known(kind: Any, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a dataclass: another version may have stored others."""
    return {each.name: stored[each.name] for each in fields(kind) if each.name in stored}


def time_of(seconds: float) -> datetime:
    """Return a stored time as the local one."""
    return datetime.fromtimestamp(seconds)


def _around(wanted: str, text: str) -> str:
    """Return a text from a little before a place on; `wanted` is casefolded, which may change its length."""
    place = text.casefold().find(wanted)
    ends = accumulate(len(character.casefold()) for character in text)
    start = next((i for i, end in enumerate(ends) if end > place), 0) - 12
    return text if start <= 0 else f"…{text[start:]}"
