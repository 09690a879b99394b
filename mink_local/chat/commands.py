"""The commands of the chat: one table of names, help texts, completers and functions.

The docstring of a command's function is what `/help COMMAND` says.
"""

import difflib
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import getdoc
from pathlib import Path

from mink_local.chat import compare, completion, inspect
from mink_local.chat.advice import show_advice
from mink_local.chat.chat import Attachment, Chat
from mink_local.chat.completion import ArgumentCompleter
from mink_local.chat.export import export as write_export
from mink_local.chat.lists import show_conversations, show_groups, show_setting, show_settings
from mink_local.chat.options import BY_KEY, Setting, file_text
from mink_local.chat.screen import counted, one_line
from mink_local.chat.settings import SET_HERE
from mink_local.chat.store import Conversation, StoredMessage
from mink_local.cli import UNPRINTABLE, WholeNumber
from mink_local.files import user_path

CommandFunction = Callable[[Chat, str], None]


@dataclass(frozen=True)
class Command:
    """A command of the chat; its usage names the arguments, in brackets if they may be missing."""

    usage: str
    about: str  # for the list, at most 27 characters
    details: str  # for /help COMMAND
    group: str  # its title in the list
    run: CommandFunction
    complete: ArgumentCompleter | None = None

    def call(self, chat: Chat, argument: str) -> None:
        if not argument and " " in self.usage and "[" not in self.usage:
            raise ValueError(f"usage: /{self.usage}")
        self.run(chat, argument)


COMMANDS: dict[str, Command] = {}
ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "?": "help", "new": "clear", "retry": "regen"}
LEAVING = ("exit", "quit")  # without a slash, as in other programs


def command(
    usage: str, about: str, complete: ArgumentCompleter | None = None, group: str = "More"
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function in the table, under the first word of its usage."""

    def register(run: CommandFunction) -> CommandFunction:
        name = usage.split()[0]
        details = re.sub(r"(?<!\n)\n(?!\n)", " ", getdoc(run) or about)  # a line for each paragraph
        COMMANDS[name] = Command(usage, about, details, group, run, complete)
        return run

    return register


_for_settings = partial(command, group="Settings")
_for_answers = partial(command, group="Answers")
_for_chats = partial(command, group="Chats")


def _set(chat: Chat, key: str, text: str) -> None:
    """Change a setting, unless the text is empty, and show it."""
    setting = BY_KEY[key]
    if text:
        chat.change(setting, text)
    settings = chat.session.settings
    chat.note(f"({key} is {settings.shown(setting)}, {settings.sources[setting.name]})")


def _setting_command(usage: str, about: str) -> None:
    """Register a command that changes the setting of its name."""
    key = usage.split()[0]

    def run(chat: Chat, text: str) -> None:
        _set(chat, key, text)

    run.__doc__ = f"{about}. {BY_KEY[key].help}\n\nWithout a value: show it. default: reset it."
    _for_settings(usage, about, lambda chat, text: completion.values(chat, key, text))(run)


def _setting(key: str) -> Setting:
    """Return the setting of a key. Raises ValueError, with the nearest key, if there is none."""
    if key in BY_KEY:
        return BY_KEY[key]
    near = difflib.get_close_matches(key, BY_KEY, n=1)
    hint = f"did you mean {near[0]}?" if near else "/show lists them"
    raise ValueError(f"there is no setting {key!r}; {hint}")


# Settings of the next answers

_setting_command("temp [T]", "Set the temperature")
_setting_command("tau [TAU]", "Set tau of Min-k")
_setting_command("floor [NATS]", "Set the floor of Min-k")
_setting_command("sampler [NAME[:OPTION=…]]", "Set the sampler")


@_for_settings("system [TEXT]", "Set the system prompt")
def system(chat: Chat, argument: str) -> None:
    """Set the system prompt of this conversation. Without TEXT: show it.

    /system - has none, also if a variable or the configuration file sets one; /system default is theirs.
    """
    if argument == "-":
        chat.session.set_system(None, SET_HERE)
        argument = ""
    _set(chat, "system", argument)


@_for_settings("set SETTING VALUE", "Change any setting", completion.settings)
def set_(chat: Chat, argument: str) -> None:
    """Change a setting of this chat: /set max-tokens 200. /show lists the settings.

    The value default is that of the environment or the configuration file, if they set one.
    """
    key, _, value = argument.partition(" ")
    _set(chat, _setting(key).key, value.strip())


@_for_settings("show [SETTING]", "Show the settings", completion.settings)
def show(chat: Chat, argument: str) -> None:
    """Show the settings, those that were changed first, and where their values come from.

    With SETTING: show its whole value and what it is for.
    """
    session = chat.session
    if argument:
        show_setting(chat.screen, _setting(argument), session.settings, session.model)
    else:
        show_settings(chat.screen, session.settings, session.model)


_setting_command("model [NAME|PATH]", "Continue with another model")


# The conversation


@_for_answers("regen [T] [SEED]", "Answer again", completion.temperature_and_seed)
def regen(chat: Chat, argument: str) -> None:
    """Answer the last message again, with temperature T and SEED if they are given: /regen 5, /regen 5 42.

    All answers are kept: /pick lists them and goes back to another. With a seed in the settings, every
    further answer takes the next seed.
    """
    words = argument.split()
    if len(words) > 2:
        raise ValueError("usage: /regen [T] [SEED]")
    temperature = BY_KEY["temp"].type(words[0]) if words else None
    seed = BY_KEY["seed"].type(words[1]) if len(words) > 1 else None
    chat.show(chat.session.regenerate(temperature, seed))
    chat.note_alternatives()


@_for_answers("pick [N]", "Take another answer", completion.answers)
def pick(chat: Chat, argument: str) -> None:
    """Go on from the Nth answer to the last message. Without N: list the answers, the present one with *."""
    answers = chat.session.alternatives()
    if not argument:
        current = chat.session.last_answer().id
        for number, answer in enumerate(answers, start=1):
            mark = "*" if answer.id == current else " "
            chat.screen.show(f"{mark}{number:>2}  {one_line(answer.content, chat.screen.width - 5)}")
        return
    number = WholeNumber()(argument)
    if not 1 <= number <= len(answers):
        raise ValueError(f"the last message has {counted(len(answers), 'answer')}: /pick lists them")
    chat.session.choose(answers[number - 1])
    chat.screen.text(answers[number - 1].content)


@_for_answers("undo", "Take back the last message")
def undo(chat: Chat, _: str) -> None:
    """Take back the last message and its answer. /redo brings both back until you send another message."""
    message = chat.session.undo()
    chat.prefill = message.content
    chat.note(f"(taken back: {one_line(message.content, chat.screen.width - 30)}; /redo brings it back)")


@_for_answers("redo", "Bring it back")
def redo(chat: Chat, _: str) -> None:
    """Bring back the message and the answer that the last /undo took."""
    chat.session.redo()
    message, answer = chat.session.branch[-2:]
    chat.note(f"> {one_line(message.content, chat.screen.width - 2)}")
    chat.screen.text(answer.content)


@_for_answers("edit", "Change the last message")
def edit(chat: Chat, _: str) -> None:
    """Put the last message into the input line; when you send it, it replaces the one before.

    Ctrl-X Ctrl-E opens $EDITOR. The message before is kept with its answers.
    """
    chat.session.last_answer()
    chat.prefill, chat.replaces = chat.session.branch[-2].content, True
    editor = ", Ctrl-X Ctrl-E opens an editor" if chat.screen.has_line_input else ""
    chat.note(f"(Enter sends the changed message{editor}, Ctrl-C leaves it as it was)")


@_for_answers("continue", "Complete a cut answer")
def continue_(chat: Chat, _: str) -> None:
    """Continue the last answer if it was cut short, by Ctrl-C or max-tokens or because the program ended."""
    chat.show(chat.session.extend())


@_for_chats("file [PATH]", "Attach a text file", completion.files)
def file(chat: Chat, argument: str) -> None:
    """Attach a text file to the next message; the path may be in quotes.

    Without PATH: list the attached files. /file - removes them.
    """
    if argument == "-":
        chat.attached.clear()
    elif argument:
        chat.attached.append(_attachment(chat, user_path(_unquoted(argument))))
    files = ", ".join(f"{one.name} ({counted(one.tokens, 'token')})" for one in chat.attached)
    goes = f"{files} {'goes' if len(chat.attached) == 1 else 'go'} with your next message; /file - removes"
    chat.note(f"({goes} {'it' if len(chat.attached) == 1 else 'them'})" if files else "(no file is attached)")


def _unquoted(path: str) -> str:
    """Return a path without the quotes around it; backslashes stay, which paths of Windows have."""
    return path[1:-1] if len(path) > 2 and path[0] in "\"'" and path[0] == path[-1] else path


def _attachment(chat: Chat, path: Path) -> Attachment:
    """Return a text file for the next message. Raises ValueError if the context cannot hold it."""
    text = file_text(os.path.abspath(path))
    tokens, n_ctx = len(chat.session.model.tokenize(text)), chat.session.model.n_ctx
    if tokens >= n_ctx:
        raise ValueError(f"{path} has {tokens} tokens, and the context holds {n_ctx}: take a shorter file")
    fence = "```"
    while fence in text:
        fence += "`"
    return Attachment(path.name, tokens, f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}")


@_for_answers("copy", "Copy the last answer")
def copy(chat: Chat, _: str) -> None:
    """Copy the last answer to the clipboard, also over ssh, if the terminal supports OSC 52."""
    text = chat.session.last_answer().content
    chat.screen.copy(text)
    chat.note(f"(copied {counted(len(text), 'character')}, if your terminal supports OSC 52)")


@_for_answers(
    "think [on|off|show|line]",
    "Show or switch reasoning",
    lambda _, text: completion.starting_with(text, ("on", "off", "default", "show", "line")),
)
def think(chat: Chat, argument: str) -> None:
    """Show the reasoning of the last answer. on, off: have the model reason before it answers, or not.

    show, line: show the reasoning of the next answers, or one line that says how long it is.
    """
    if argument in ("show", "line"):
        _set(chat, "thoughts", argument)
    elif argument:
        _set(chat, "think", argument)
        model = chat.session.model
        if not model.has_thinking_switch:
            chat.note(f"(the chat template of {model.name} has no switch for reasoning: nothing changes)")
    else:
        chat.screen.text(chat.session.last_answer().thinking or "(there is no reasoning)")


@_for_chats("clear", "Begin a new conversation")
def clear(chat: Chat, _: str) -> None:
    """Begin a new conversation. This one is kept: /list shows it, /load continues it."""
    chat.session.clear()
    chat.attached.clear()
    chat.note("(a new conversation)")


# Stored conversations


@_for_chats("save NAME", "Name this conversation")
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


@_for_chats("load NAME", "Continue a conversation", completion.conversations)
def load(chat: Chat, argument: str) -> None:
    """Continue a conversation, by its name or the number that /list shows."""
    conversation = chat.session.store.find(argument)
    chat.prefill = chat.session.load(conversation) or ""
    chat.attached.clear()
    recall(chat)


@_for_chats("list [TEXT]", "List conversations")
def list_(chat: Chat, argument: str) -> None:
    """List the conversations, the last one first. With TEXT: those that contain it, and where."""
    session = chat.session
    conversations = session.store.conversations()
    if argument:
        found = session.store.search(argument)
        conversations = [replace(one, title=found[one.id]) for one in conversations if one.id in found]
    title = "found in" if argument else "begins with"
    show_conversations(chat.screen, conversations, session.conversation, title)


@_for_chats("delete NAME", "Delete a conversation", completion.conversations)
def delete(chat: Chat, argument: str) -> None:
    """Delete a conversation for good, by its name or the number that /list shows. You are asked first."""
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


@_for_chats("export FILE", "Write it to a file", completion.files)
def export(chat: Chat, argument: str) -> None:
    """Write this conversation to FILE.md, for people, or FILE.json, with every branch and every figure."""
    path = user_path(_unquoted(argument))
    write_export(chat.session.store, _current(chat), path)
    chat.note(f"(written to {path})")


@_for_chats("history [N]", "Show this conversation")
def history(chat: Chat, argument: str) -> None:
    """Show this conversation from the beginning, or its last N messages with their answers."""
    last = WholeNumber(min=1)(argument) if argument else 0
    if not chat.session.branch:
        raise ValueError("there is no message in this conversation yet")
    _show_messages(chat, chat.session.branch[-2 * last :])


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
        if message.outcome is None:
            chat.note("(cut off when the program ended: /continue completes it)")


def recall(chat: Chat) -> None:
    """Show the end of the conversation that is continued."""
    branch = chat.session.branch
    _show_messages(chat, branch[-2:])
    name = _current(chat).name or f"number {chat.session.conversation}"
    turns = sum(message.role == "user" for message in branch)
    more = ": /history shows them" if turns > 1 else ""
    chat.note(f"(conversation {name}, {counted(turns, 'message')}{more})")
    chat.is_unevaluated = True


# How an answer was sampled

command(compare.USAGE, "Compare sampling methods", compare.complete)(compare.compare)
command("explain [N|WORD] [--plot F]", "Show a token's candidates", completion.tokens)(inspect.explain)
command("heat [SCALE]", "Colour the last answer", completion.scales)(inspect.heat)
command("stats", "Show figures")(inspect.stats)


@command(
    "help [COMMAND]",
    "Explain a command",
    lambda _, text: completion.starting_with(text, [*COMMANDS, "advice"]),
)
def help_(chat: Chat, argument: str) -> None:
    """List the commands. With COMMAND: say what it does.

    /help advice: say which settings suit prose, code and mathematics, and by which figures.
    """
    name = argument.removeprefix("/")
    name = ALIASES.get(name, name)
    if name == "advice":
        show_advice(chat.screen)
        return
    if name and name not in COMMANDS:
        raise ValueError(f"there is no command /{name}; /help lists them")
    if name:
        chat.screen.show(f"/{COMMANDS[name].usage}\n{COMMANDS[name].details}")
        return
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, one in COMMANDS.items():
        groups.setdefault(one.group, []).append((f"/{name}", one.about))
    show_groups(chat.screen, groups)
    chat.note(
        'Enter sends, Alt-Enter begins a line, """ begins and ends a block, Tab completes, Ctrl-R searches, '
        "Ctrl-C stops an answer, Ctrl-D leaves."
    )


@command("exit", "Leave")
def exit_(chat: Chat, _: str) -> None:
    """Leave, as do /quit, /bye and exit. The conversation is kept; mink-chat --continue goes on with it."""
    chat.leaving = True
