"""The commands for stored conversations, and the list of them."""

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.commands import completion
from mink_local.chat.commands.answers import unquoted
from mink_local.chat.commands.registry import command
from mink_local.chat.conversation.export import export as write_export
from mink_local.chat.conversation.store import Conversation, ConversationStore, StoredMessage
from mink_local.chat.terminal.screen import Screen, counted, one_line
from mink_local.cli import UNPRINTABLE, WholeNumber
from mink_local.files import user_path

_WITH_DATES, _WITH_MODELS = 60, 100  # columns of a window whose list has them

_command = partial(command, group="Chats")


@_command("clear", "Begin a new conversation")
def clear(chat: Chat, _: str) -> None:
    """Begin a new conversation. This one is kept: /list shows it, /load continues it."""
    chat.session.clear()
    chat.attached.clear()
    chat.note("(a new conversation)")


@_command("save NAME", "Name this conversation")
def save(chat: Chat, argument: str) -> None:
    """Give this conversation a name, for /load and for mink-chat --resume NAME.

    Conversations are kept without a name as well, under a number.
    """
    session, name = chat.session, " ".join(argument.translate(dict.fromkeys(UNPRINTABLE)).split())
    if not name:
        raise ValueError("usage: /save NAME")
    if name.isdecimal():
        raise ValueError(f"{name} could be the number of a conversation: choose a name with a letter")
    session.store.change(_current(chat).id, name=name)
    kept = "" if session.settings["store"] else ", until you leave: --no-store"
    chat.note(f"(this conversation is now {name}{kept})")


@_command("load NAME", "Continue a conversation", completion.conversations)
def load(chat: Chat, argument: str) -> None:
    """Continue a conversation, by its name or the number that /list shows."""
    conversation = chat.session.store.find(argument)
    chat.prefill = chat.session.load(conversation) or ""
    chat.attached.clear()
    recall(chat)


@_command("list [TEXT]", "List conversations")
def list_(chat: Chat, argument: str) -> None:
    """List the conversations, the last one first. With TEXT: those that contain it, and where."""
    show_conversations(chat.screen, chat.session.store, argument, chat.session.conversation)


@_command("delete NAME", "Delete a conversation", completion.conversations)
def delete(chat: Chat, argument: str) -> None:
    """Delete a conversation for good, by its name or the number that /list shows, after asking you."""
    conversation = chat.session.store.find(argument)
    messages = counted(conversation.turns, "message")
    begins = one_line(conversation.title, 40)
    if not chat.confirmed(f"delete {argument} for good, with {messages}, beginning with {begins!r}?"):
        chat.note("(nothing is deleted)")
        return
    chat.session.store.delete(conversation.id)
    if conversation.id == chat.session.conversation:
        chat.session.clear()
    chat.note(f"({argument} is deleted)")


@_command("export FILE", "Write it to a file", completion.files)
def export(chat: Chat, argument: str) -> None:
    """Write this conversation to FILE.md, for people, or FILE.json, with every branch and every figure."""
    path = user_path(unquoted(argument))
    write_export(chat.session.store, _current(chat), path)
    chat.note(f"(written to {path})")


@_command("history [N]", "Show this conversation")
def history(chat: Chat, argument: str) -> None:
    """Show this conversation from the beginning, or its last N messages with their answers."""
    last = WholeNumber(min=1)(argument) if argument else 0
    if not chat.session.branch:
        raise ValueError("there is no message in this conversation yet")
    _show_messages(chat, chat.session.branch[-2 * last :])


def recall(chat: Chat) -> None:
    """Show the end of the conversation that is continued."""
    branch = chat.session.branch
    _show_messages(chat, branch[-2:])
    name = _current(chat).name or f"number {chat.session.conversation}"
    turns = sum(message.role == "user" for message in branch)
    more = ": /history shows them" if turns > 1 else ""
    chat.note(f"(conversation {name}, {counted(turns, 'message')}{more})")


def show_conversations(
    screen: Screen, store: ConversationStore, text: str = "", current: int | None = None
) -> None:
    """Print a table of the conversations that contain a text; an asterisk marks the one with an id.

    A narrow table lacks the columns that matter least.
    """
    conversations = [one for one in store.conversations(text) if one.turns]
    if not conversations:
        screen.note("(there is no conversation)")
        return
    has_dates, has_models = screen.width >= _WITH_DATES, screen.width >= _WITH_MODELS
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("name", no_wrap=True, max_width=screen.width // 4)
    if has_dates:
        table.add_column("turns", justify="right", no_wrap=True)
        table.add_column("last", no_wrap=True)
    if has_models:
        table.add_column("model", no_wrap=True, max_width=screen.width // 5)
    table.add_column("found in" if text else "begins with")  # the only column that gives way
    for one in conversations:
        dates = (str(one.turns), _when(one.updated)) if has_dates else ()
        models = (Path(one.model).name,) if has_models else ()
        mark = "*" if one.id == current else ""
        cells = (mark, one.name or str(one.id), *dates, *models, one.title)
        table.add_row(
            *(Text(one_line(cell, screen.width), no_wrap=True, overflow="ellipsis") for cell in cells)
        )
    screen.show(table)


def _when(seconds: float) -> str:
    """Return the time of a moment of today, or the date of another day."""
    then = datetime.fromtimestamp(seconds)
    return f"{then:%H:%M}" if then.date() == datetime.now().date() else f"{then:%Y-%m-%d}"


def _current(chat: Chat) -> Conversation:
    if chat.session.conversation is None:
        raise ValueError("there is no message in this conversation yet")
    return chat.session.store.get(chat.session.conversation)


def _show_messages(chat: Chat, messages: Sequence[StoredMessage]) -> None:
    """Show answers, and the beginnings of the messages."""
    for message in messages:
        if message.role == "user":
            chat.note(f"> {one_line(message.content, 4 * chat.screen.width)}")
            continue
        chat.screen.text(message.content)
        if message.finish_reason is None:
            chat.note(
                "(this answer is unfinished: another window is writing it, or the program ended; "
                "/continue completes it)"
            )
