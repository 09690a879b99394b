"""The commands for stored conversations, and the list of them."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from mink_local.chat.attachments import path_of
from mink_local.chat.chat import Chat, Offer
from mink_local.chat.conversation import cache
from mink_local.chat.conversation.export import export as write_export
from mink_local.chat.conversation.store import Conversation, ConversationStore, StoredMessage
from mink_local.chat.terminal.screen import Screen, counted, one_line
from mink_local.cli import UNPRINTABLE, WholeNumber
from mink_local.errors import MinkError

_SHOWN = 20  # conversations, in a terminal
_COLUMNS = {"": 0, "name": 0, "turns": 60, "last": 60, "model": 100}  # and the least width of their window


def clear(chat: Chat, _: str) -> None:
    """Begin a new conversation. This one is kept: /list shows it, /load continues it."""
    _leave(chat)
    chat.session.clear()
    chat.attached.clear()
    chat.screen.note(f"a new conversation · {chat.session.settings.summary}")


def save(chat: Chat, argument: str) -> None:
    """Give this conversation a name, for /load and for mink-chat --resume NAME.

    Conversations without a name are kept too, under a number.
    """
    session, name = chat.session, " ".join(argument.translate(dict.fromkeys(UNPRINTABLE)).split())
    if not name:
        raise MinkError("usage: /save NAME")
    if name.isdecimal():
        raise MinkError(f"{name} could be the number of a conversation: choose a name with a letter")
    session.store.rename(_current(chat).id, name)
    kept = "" if session.settings["store"] else ", until you leave: --no-store"
    chat.screen.note(f"this conversation is now {name}{kept}")


def load(chat: Chat, argument: str) -> None:
    """Continue a conversation by its name or number, which /list shows."""
    conversation = chat.session.store.find(argument)
    _leave(chat)
    unanswered = chat.session.load(conversation)
    chat.offered = Offer(unanswered, "never answered: Enter sends it") if unanswered else None
    chat.attached.clear()
    recall(chat)


def list_(chat: Chat, argument: str) -> None:
    """List the last 20 conversations. With TEXT: those that contain it, and where."""
    show_conversations(chat.screen, chat.session.store, argument, chat.session.conversation)


def delete(chat: Chat, argument: str) -> None:
    """Delete a conversation for good, by its name or number, which /list shows, after asking you."""
    conversation = chat.session.store.find(argument)
    n, begins = counted(conversation.turns, "message"), one_line(conversation.title, 40)
    chat.confirm(f"delete {argument} for good, with {n}, beginning with {begins!r}?")
    messages = {message.typed for message in chat.session.store.messages(conversation.id)}
    chat.session.store.delete(conversation.id)
    chat.line.forget(messages)
    if conversation.id == chat.session.conversation:
        chat.session.clear()
    if chat.session.store.is_on_disk:
        cache.forget(conversation.id)
    chat.screen.note(f"{argument} is deleted")


def export(chat: Chat, argument: str) -> None:
    """Write this conversation to FILE.md, for people, or FILE.json, with every branch and every figure."""
    path = path_of(argument)
    if path.exists():
        chat.confirm(f"overwrite {path}?")
    write_export(chat.session.store, _current(chat), path)
    chat.screen.note(f"written to {path}")


def history(chat: Chat, argument: str) -> None:
    """Show this conversation from the beginning, or its last N messages with their answers."""
    last = WholeNumber(min=1)(argument) if argument else 0
    if not chat.session.branch:
        raise MinkError("there is no message in this conversation yet")
    _show_messages(chat, chat.session.branch[-2 * last :])


def recall(chat: Chat) -> None:
    """Show the end of the conversation that is continued."""
    branch = chat.session.branch
    _show_messages(chat, branch[-2:])
    name = _current(chat).name or f"number {chat.session.conversation}"
    turns = sum(message.role == "user" for message in branch)
    more = ": /history shows them" if turns > 1 else ""
    chat.screen.note(f"conversation {name}, {counted(turns, 'message')}{more}")
    if restored := chat.session.settings.restored():
        chat.screen.note(f"its settings: {restored}")


def show_conversations(
    screen: Screen, store: ConversationStore, text: str = "", current: int | None = None
) -> None:
    """Print a table of the conversations that contain a text; an asterisk marks the one with an id.

    The newest is at the end, where one looks. A terminal shows the last 20, a pipe gets all. A narrow table
    leaves out the columns that matter least.
    """
    found = [one for one in store.conversations(text) if one.turns]
    if not found:
        screen.note(f"no conversation contains {text!r}" if text else "there is no conversation")
        return
    conversations = found[:_SHOWN] if screen.is_terminal else found
    last = "found in" if text else "begins with"
    titles = [title for title, least in _COLUMNS.items() if screen.width >= least] + [last]
    table = Table(box=None, pad_edge=False, header_style=screen.theme.accent)
    for title in titles:
        justify: JustifyMethod = "right" if title == "turns" else "left"
        width = None if title == last else screen.width // 4  # the last column gives way
        table.add_column(title, no_wrap=title != last, max_width=width, justify=justify)
    for one in reversed(conversations):
        cells = {
            "": "*" if one.id == current else "",
            "name": one.name or str(one.id),
            "turns": str(one.turns),
            "last": _when(one.updated),
            "model": Path(one.model).name,
            last: one.title,
        }
        texts = (one_line(cells[title], screen.width) for title in titles)
        table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in texts))
    screen.show(table)
    if n_older := len(found) - len(conversations):
        screen.note(f"{n_older} older: /list TEXT and mink-chat --list TEXT search them")


def _attached(message: StoredMessage) -> str:
    """Return in words that files are attached to a message, before its text."""
    return f"[{counted(message.attached, 'character')} of attached files] " if message.attached else ""


def _when(seconds: float) -> str:
    """Return the time of a moment of today, or the date of another day."""
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"


def _leave(chat: Chat) -> None:
    """Ask before leaving a conversation that could not be stored. Raises MinkError after a no."""
    if problem := chat.session.flush():
        chat.confirm(f"this conversation could not be saved ({problem}): leave it for good?")


def _current(chat: Chat) -> Conversation:
    """Return the conversation as it is stored. Raises MinkError if it could not be."""
    if problem := chat.session.flush():
        raise MinkError(f"this conversation is not saved yet: {problem}")
    if chat.session.conversation is None:
        raise MinkError("there is no message in this conversation yet")
    return chat.session.store.get(chat.session.conversation)


def _show_messages(chat: Chat, messages: Sequence[StoredMessage]) -> None:
    """Show answers, and the beginnings of the messages."""
    for message in messages:
        if message.role == "user":
            chat.screen.own(f"{_attached(message)}{message.typed}")
            continue
        chat.screen.text(message.content)
        if message.is_unfinished and chat.session.store.is_being_written(message):
            chat.screen.note("another window is writing this answer")
        elif message.is_unfinished:
            chat.screen.note("the program ended during this answer: /continue completes it")
