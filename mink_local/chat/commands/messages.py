"""The commands for messages and answers, and for the conversations that they belong to."""

import re
from collections.abc import Sequence

import click

from mink_local.chat.attachments import Attachment, matching, path_of
from mink_local.chat.chat import Chat, Draft
from mink_local.chat.commands.set_show import change_setting
from mink_local.chat.conversation.export import FORMATS
from mink_local.chat.conversation.export import export as write_export
from mink_local.chat.conversation.session import cache_path
from mink_local.chat.conversation.store import Conversation, StoredMessage
from mink_local.chat.listing import show_conversations
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.screen import beginnings, one_line
from mink_local.cli import UNPRINTABLE, WholeNumber, counted
from mink_local.errors import MinkError

# A block of code, perhaps cut off; its fence may be indented, or quoted.
_BLOCK = re.compile(
    r"^(?P<indent>[ \t>]*)(?P<fence>`{3,}|~{3,})[^`\n]*\n(?P<code>.*?)(?:^[ \t>]*(?P=fence)[`~]* *$|\Z)",
    re.MULTILINE | re.DOTALL,
)


def regen(chat: Chat, argument: str) -> None:
    """Answer the last message again, with temperature T and SEED if they are given: /regen 5, /regen 5 42.

    All answers are kept: /pick lists them and goes back to another. With a seed in the settings, every
    further answer takes the next seed.
    """
    words = argument.split()
    if len(words) > 2:
        raise MinkError("usage: /regen [T] [SEED]")
    temperature = BY_KEY["temp"].type(words[0]) if words else None
    seed = BY_KEY["seed"].type(words[1]) if len(words) > 1 else None
    chat.show(chat.session.regenerate(temperature, seed))


def pick(chat: Chat, argument: str) -> None:
    """Switch to the Nth version of the last turn. Without N, list them; * marks the current one.

    Versions are all answers to the last message, and to what it was before /edit or after /undo.
    """
    versions = chat.session.versions()
    if not argument:
        _list_versions(chat, versions)
        return
    number = WholeNumber()(argument)
    if not 1 <= number <= len(versions):
        raise MinkError(f"the last turn has {counted(len(versions), 'version')}: /pick lists them")
    _show_turn(chat, chat.session.choose(versions[number - 1]))


def _list_versions(chat: Chat, versions: Sequence[Sequence[StoredMessage]]) -> None:
    """List the versions of the last turn, each from where it begins to differ from the others."""
    width, current = chat.screen.width, chat.session.branch[-2:]
    has_edits = any(turn[0] != current[0] for turn in versions)
    messages = beginnings([turn[0].typed for turn in versions], width)
    answers = [turn[1].content or "(no answer)" if turn[1:] else "(never answered)" for turn in versions]
    answers = beginnings(answers, width - 5)
    settings = [turn[-1].settings for turn in versions]
    for i, turn in enumerate(versions):
        if has_edits and (not i or turn[0] != versions[i - 1][0]):
            chat.screen.own(messages[i])
        chat.screen.show(f"{'*' if turn == current else ' '}{i + 1:>2}  {one_line(answers[i], width - 5)}")
        if len(set(settings)) > 1 and settings[i]:
            chat.screen.dim(f"     {one_line(settings[i], width - 5)}")


def _show_turn(chat: Chat, unanswered: StoredMessage | None) -> None:
    """Show the end of the branch, or have the input line begin with a message that was never answered."""
    if unanswered:
        chat.draft = Draft(unanswered, "never answered: Enter sends it")
    else:
        _show_messages(chat, chat.session.branch[-2:])


def undo(chat: Chat, argument: str) -> None:
    """Undo the last message, or the last N, with their answers. /redo restores them."""
    n, n_there = WholeNumber(min=1)(argument or "1"), len(chat.session.branch) // 2
    if n > n_there > 0:
        raise MinkError(f"only {counted(n_there, 'message')} can be undone")
    first = one_line(chat.session.undo(n).typed, chat.screen.width - 50)
    undone = first if n == 1 else f"{counted(n, 'message')}, beginning with {first!r}"
    chat.screen.note(f"undone: {undone}; /redo restores {'it' if n == 1 else 'them'}")


def redo(chat: Chat, _: str) -> None:
    """Restore what the last /undo took. Without one: go on with what once came next."""
    _show_turn(chat, chat.session.redo())


def edit(chat: Chat, argument: str) -> None:
    """Edit the last message in the input line; sending it replaces the old one.

    answer: edit the last answer; the model goes on from what you send. Ctrl-X Ctrl-E opens $EDITOR. What was
    there is kept: /pick goes back to it.
    """
    chat.session.last_answer()
    message, answer = chat.session.branch[-2:]
    if argument not in ("", "answer"):
        raise MinkError("usage: /edit [answer]")
    if argument:
        chat.draft = Draft(StoredMessage("user", answer.content), replaces=answer)
        chat.screen.note("Enter has the model go on from the changed answer, Ctrl-C leaves it as it was")
    else:
        chat.draft = Draft(message, replaces=message)
        chat.screen.note(
            "Enter sends the changed message, Ctrl-X Ctrl-E opens an editor, Ctrl-C leaves it as it was"
        )


def begin(chat: Chat, argument: str) -> None:
    """Have the last message answered again, by an answer that begins with TEXT: /begin It was a dark night"""
    chat.show(chat.session.rewrite(argument))


def continue_(chat: Chat, _: str) -> None:
    """Continue the last answer if Ctrl-C, max-tokens or the end of the program cut it off."""
    chat.show(chat.session.extend())


def file(chat: Chat, argument: str) -> None:
    """Attach text files to the next message: paths, patterns such as src/*.py, in quotes if they have spaces.

    Without PATH: list the attached files. /file - removes them.
    """
    if argument == "-":
        chat.attached.clear()
    elif argument:
        new = [Attachment.read(chat.session.model, path) for path in matching(argument)]
        chat.attached = [*dict.fromkeys([*chat.attached, *new])]
    files = ", ".join(f"{one.name} ({counted(one.tokens, 'token')})" for one in chat.attached)
    chat.screen.note(
        f"with your next message: {files}; /file - removes them" if files else "no file attached"
    )


def copy(chat: Chat, argument: str) -> None:
    """Copy the last answer to the clipboard, also over ssh, if the terminal supports OSC 52.

    code: only its last block of code; code N: the Nth.
    """
    text = chat.session.last_answer().content
    if argument:
        text = _code(text, argument)
    elif not text:
        raise MinkError("the last answer is empty: there is nothing to copy")
    chat.screen.copy(text)
    chat.screen.note(f"copied {counted(len(text), 'character')}, if your terminal supports OSC 52")


def _code(answer: str, argument: str) -> str:
    """Return the block of code that `code` or `code N` names. Raises MinkError if there is none."""
    word, _, number = argument.partition(" ")
    if word != "code":
        raise MinkError("usage: /copy [code [N]]")
    blocks = [_without_indent(**block.groupdict()).removesuffix("\n") for block in _BLOCK.finditer(answer)]
    n = WholeNumber(min=1)(number) if number.strip() else len(blocks)
    if not 1 <= n <= len(blocks):
        found = counted(len(blocks), "block") if blocks else "no block"
        raise MinkError(f"the last answer has {found} of code")
    return blocks[n - 1]


def _without_indent(code: str, indent: str, **_: str) -> str:
    """Return code without what stands before its fence, which belongs to a list or a quote."""
    lines = code.split("\n")
    return "\n".join(
        line.removeprefix(indent) if line.startswith(indent) else line.lstrip(indent) for line in lines
    )


def reasoning(chat: Chat, argument: str) -> None:
    """Show the reasoning of the last answer. on, off: turn reasoning on or off.

    show, line: show the reasoning of later answers, or one line with its length.
    """
    if argument in ("show", "line"):
        change_setting("show-reasoning", chat, "on" if argument == "show" else "off")
    elif argument:
        change_setting("reasoning", chat, argument)
    else:
        chat.screen.text(chat.session.last_answer().reasoning or "There is no reasoning.")


# Conversations


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
    kept = "" if session.store.is_on_disk else ", until you leave: --no-store"
    chat.screen.note(f"this conversation is now {name}{kept}")


def load(chat: Chat, argument: str) -> None:
    """Continue a conversation by its name or number, which /list shows, with the model that it had."""
    conversation = chat.session.store.find(argument)
    _leave(chat)
    chat.session.clear()  # before the model changes, which the conversation before keeps
    _bring_model(chat, conversation)
    unanswered = chat.session.load(conversation)
    if unanswered:
        chat.draft = Draft(unanswered, "never answered: Enter sends it")
    chat.attached.clear()
    recall(chat)


def _bring_model(chat: Chat, conversation: Conversation) -> None:
    """Load the model of a conversation; say so if it cannot be had, and the one in use goes on."""
    if conversation.model == chat.session.settings["model"]:
        return
    try:
        change_setting("model", chat, conversation.model)
    except (MinkError, click.ClickException, KeyboardInterrupt) as error:
        name = chat.session.model.name
        chat.screen.note(f"{name} goes on, not {conversation.model}: {error or 'interrupted'}")


def list_(chat: Chat, argument: str) -> None:
    """List the last 20 conversations. With TEXT: those that contain it, and where."""
    show_conversations(chat.screen, chat.session.store, argument, chat.session.conversation)


def delete(chat: Chat, argument: str) -> None:
    """Delete a conversation for good, by its name or number, which /list shows, after asking you."""
    conversation = chat.session.store.find(argument)
    n, begins = counted(conversation.turns, "message"), one_line(conversation.title, 40)
    chat.confirm(f"delete {argument} for good, with {n}, beginning with {begins!r}?")
    messages = {message.typed.strip() for message in chat.session.store.messages(conversation.id)}
    chat.session.store.delete(conversation.id)
    if conversation.id == chat.session.conversation:
        chat.session.clear()
    if chat.session.store.is_on_disk:
        cache_path(conversation.id).unlink(missing_ok=True)
    chat.screen.note(f"{argument} is deleted")
    chat.line.forget(messages)


def export(chat: Chat, argument: str) -> None:
    """Write this conversation to FILE.md, for people, or FILE.json, with every branch and every figure."""
    path, conversation = path_of(argument), _current(chat)
    if path.suffix in FORMATS and path.exists():
        chat.confirm(f"overwrite {path}?")
    write_export(chat.session.store, conversation, path)
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
    number = chat.session.conversation or 0
    name = chat.session.store.get(number).name or f"number {number}"
    turns = sum(message.role == "user" for message in branch)
    more = ": /history shows them" if turns > 1 else ""
    chat.screen.note(f"conversation {name}, {counted(turns, 'message')}{more}")
    if kept := chat.session.settings.kept():
        chat.screen.note(
            "its settings: " + ", ".join(f"{key} {text or 'none'}" for key, text in kept.items())
        )


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
            files = f"[{counted(message.attached, 'character')} of attached files] " if message.files else ""
            chat.screen.own(files + message.typed)
            chat.screen.show("")
            continue
        if message.content:
            chat.screen.text(message.content)
        else:
            chat.screen.note("no answer")
        if message.is_unfinished:
            chat.screen.note(
                "this answer was cut off, or another window is writing it: /continue completes it"
            )
        chat.screen.show("")
