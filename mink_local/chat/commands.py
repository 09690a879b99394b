"""The commands of the chat: one table of names, help texts, completers and functions."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.text import Text

from mink_local.chat import compare, completion, inspect
from mink_local.chat.chat import Chat
from mink_local.chat.completion import ArgumentCompleter
from mink_local.chat.export import export as write_export
from mink_local.chat.options import BY_KEY, DEFAULT, SETTINGS, file_text
from mink_local.chat.screen import counted, one_line, show_conversations
from mink_local.chat.settings import SET_HERE
from mink_local.chat.store import Conversation
from mink_local.cli import UNPRINTABLE

CommandFunction = Callable[[Chat, str], None]


@dataclass(frozen=True)
class Command:
    """A command of the chat; its usage names the arguments, in brackets if they may be missing."""

    usage: str
    about: str
    run: CommandFunction
    complete: ArgumentCompleter | None = None

    def call(self, chat: Chat, argument: str) -> None:
        if not argument and " " in self.usage and "[" not in self.usage:
            raise ValueError(f"usage: /{self.usage}")
        self.run(chat, argument)


COMMANDS: dict[str, Command] = {}


def command(
    usage: str, about: str, complete: ArgumentCompleter | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Register a function in the table, under the first word of its usage."""

    def register(run: CommandFunction) -> CommandFunction:
        COMMANDS[usage.split()[0]] = Command(usage, about, run, complete)
        return run

    return register


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
    complete = lambda chat, text: completion.values(chat, key, text)  # noqa: E731
    command(usage, about, complete)(lambda chat, text: _set(chat, key, text))


# Settings of the next answers

_setting_command("temp [T]", "Set the temperature.")
_setting_command("tau [TAU]", "Set tau of Min-k, which keeps more candidates; 0 is off.")
_setting_command("sampler [NAME[:OPTION=…]]", "Set the sampler, which chooses the candidates.")


@command("system [TEXT]", "Set the system prompt; - removes it.")
def system(chat: Chat, argument: str) -> None:
    if argument == "-":
        chat.session.set_system(None, SET_HERE)
        argument = ""
    _set(chat, "system", argument)


@command(
    "think [on|off|show|line]",
    "Show the last reasoning; switch it on or off, fold it.",
    lambda _, text: completion.starting_with(text, ("on", "off", "default", "show", "line")),
)
def think(chat: Chat, argument: str) -> None:
    if argument in ("show", "line"):
        _set(chat, "thoughts", argument)
    elif argument:
        _set(chat, "think", argument)
        model = chat.session.model
        if not model.has_thinking_switch:
            chat.note(f"(the chat template of {model.name} has no switch for reasoning: nothing changes)")
    else:
        chat.screen.text(chat.session.last_answer().thinking or "(there is no reasoning)")


@command("set SETTING VALUE", "Change a setting; the value default resets it.", completion.settings)
def set_(chat: Chat, argument: str) -> None:
    key, _, value = argument.partition(" ")
    if key not in BY_KEY:
        raise ValueError(f"there is no setting {key!r}; /show lists them")
    _set(chat, key, value.strip())


@command("show [SETTING]", "Show settings, and where each value comes from.", completion.settings)
def show(chat: Chat, argument: str) -> None:
    settings, rows = chat.session.settings, []
    for setting in SETTINGS:
        if argument in ("", setting.key):
            source = settings.sources[setting.name]
            where = Text(source, "dim" if source == DEFAULT else "")
            rows.append((setting.key, settings.shown(setting), where))
    if not rows:
        raise ValueError(f"there is no setting {argument!r}; /show lists them")
    chat.screen.table(rows, "setting", "value", "from")


_setting_command("model [NAME|PATH]", "Continue with another model.")


# The conversation


@command(
    "regen [T] [SEED]",
    "Answer again, with temperature T and SEED if given.",
    completion.temperature_and_seed,
)
def regen(chat: Chat, argument: str) -> None:
    words = argument.split()
    if len(words) > 2:
        raise ValueError("usage: /regen [T] [SEED]")
    temperature = click.FLOAT(words[0]) if words else None
    seed = click.INT(words[1]) if len(words) > 1 else None
    chat.show(chat.session.regenerate(temperature, seed))
    answers = chat.session.alternatives()
    if len(answers) > 1:
        chat.note(f"(answer {len(answers)} to this message: /pick goes back to another)")


@command("pick [N]", "List the answers to the last message, or take the Nth.", completion.answers)
def pick(chat: Chat, argument: str) -> None:
    answers = chat.session.alternatives()
    if not argument:
        current = chat.session.last_answer().id
        for number, answer in enumerate(answers, start=1):
            mark = "*" if answer.id == current else " "
            chat.screen.show(f"{mark}{number:>2}  {one_line(answer.content, chat.screen.width - 5)}")
        return
    number = click.INT(argument)
    if not 1 <= number <= len(answers):
        raise ValueError(f"the last message has {counted(len(answers), 'answer')}: /pick lists them")
    chat.session.choose(answers[number - 1])
    chat.screen.text(answers[number - 1].content)


@command("undo", "Take back the last message and its answer.")
def undo(chat: Chat, _: str) -> None:
    message = chat.session.undo()
    chat.prefill = message.content
    chat.note(f"(taken back: {one_line(message.content, chat.screen.width - 30)}; /redo brings it back)")


@command("redo", "Bring back what /undo took.")
def redo(chat: Chat, _: str) -> None:
    chat.session.redo()
    message, answer = chat.session.branch[-2:]
    chat.note(f"> {one_line(message.content, chat.screen.width - 2)}")
    chat.screen.text(answer.content)


@command("edit", "Change the last message and answer it again.")
def edit(chat: Chat, _: str) -> None:
    chat.session.last_answer()
    chat.prefill, chat.replaces = chat.session.branch[-2].content, True
    chat.note("(Enter sends the changed message, Ctrl-X Ctrl-E opens an editor, Ctrl-C leaves it as it was)")


@command("continue", "Continue an answer that was cut short.")
def continue_(chat: Chat, _: str) -> None:
    chat.show(chat.session.extend())


@command("file PATH", "Attach a text file to the next message.", completion.files)
def file(chat: Chat, argument: str) -> None:
    path = Path(argument).expanduser()
    text = file_text(os.path.abspath(path))
    tokens, n_ctx = len(chat.session.model.tokenize(text)), chat.session.model.n_ctx
    if tokens >= n_ctx:
        raise ValueError(f"{path} has {tokens} tokens, and the context holds {n_ctx}: take a shorter file")
    fence = "```"
    while fence in text:
        fence += "`"
    chat.attached.append(f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}")
    chat.note(f"({path.name}, {counted(tokens, 'token')}, goes with your next message; /clear removes it)")


@command("copy", "Copy the last answer to the clipboard, also over ssh.")
def copy(chat: Chat, _: str) -> None:
    text = chat.session.last_answer().content
    chat.screen.copy(text)
    chat.note(f"(copied {counted(len(text), 'character')}, if your terminal supports OSC 52)")


@command("clear", "Begin a new conversation; this one is kept.")
def clear(chat: Chat, _: str) -> None:
    chat.session.clear()
    chat.attached.clear()
    chat.note("(a new conversation)")


# Stored conversations


@command("save NAME", "Name this conversation.")
def save(chat: Chat, argument: str) -> None:
    session, name = chat.session, " ".join(argument.translate(dict.fromkeys(UNPRINTABLE)).split())
    if not name:
        raise ValueError("usage: /save NAME")
    session.store.change(_current(chat).id, name=name)
    kept = "" if session.settings["store"] else ", until you leave: --no-store"
    chat.note(f"(this conversation is now {name}{kept})")


@command("load NAME", "Continue a conversation, by its name or number.", completion.conversations)
def load(chat: Chat, argument: str) -> None:
    conversation = chat.session.store.find(argument)
    chat.prefill = chat.session.load(conversation) or ""
    chat.attached.clear()
    recall(chat)


@command("list", "List the conversations.")
def list_(chat: Chat, _: str) -> None:
    conversations = chat.session.store.conversations()
    show_conversations(chat.screen, conversations, chat.session.conversation)


@command("delete NAME", "Delete a conversation for good, by its name or number.", completion.conversations)
def delete(chat: Chat, argument: str) -> None:
    conversation = chat.session.store.find(argument)
    chat.session.store.delete(conversation.id)
    if conversation.id == chat.session.conversation:
        chat.session.clear()
    chat.note(f"({argument} is deleted)")


@command("export FILE", "Write this conversation to FILE.md or FILE.json.", completion.files)
def export(chat: Chat, argument: str) -> None:
    path = Path(argument).expanduser()
    write_export(chat.session.store, _current(chat), path)
    chat.note(f"(written to {path})")


def _current(chat: Chat) -> Conversation:
    if chat.session.conversation is None:
        raise ValueError("there is no message in this conversation yet")
    return chat.session.store.get(chat.session.conversation)


def recall(chat: Chat) -> None:
    """Show the end of the conversation that is continued, and have the model evaluate it."""
    branch = chat.session.branch
    for message in branch[-2:]:
        if message.role == "user":
            chat.note(f"> {one_line(message.content, 4 * chat.screen.width)}")
            continue
        chat.screen.text(message.content)
        if message.outcome is None:
            chat.note("(cut off when the program ended: /continue completes it)")
    name = _current(chat).name or f"number {chat.session.conversation}"
    messages = counted(sum(message.role == "user" for message in branch), "message")
    chat.note(f"(conversation {name}, {messages})")
    chat.evaluate()


# How an answer was sampled

command(compare.USAGE, "Answer with several methods; take N continues with one.", compare.complete)(
    compare.compare
)
command(
    "explain [N|WORD] [--plot F]", "Show the candidates of a token; what methods keep.", completion.tokens
)(inspect.explain)
command("heat", "Colour the last answer by its numbers of candidates.")(inspect.heat)
command("stats", "Show figures of the answer, the conversation, the model.")(inspect.stats)


@command("help [COMMAND]", "Show this list.", lambda _, text: completion.starting_with(text, COMMANDS))
def help_(chat: Chat, argument: str) -> None:
    name = argument.removeprefix("/")
    if name and name not in COMMANDS:
        raise ValueError(f"there is no command /{name}; /help lists them")
    if name:
        chat.screen.show(f"/{COMMANDS[name].usage}\n  {COMMANDS[name].about}")
        return
    chat.screen.table((f"/{one.usage}", one.about) for one in COMMANDS.values())
    chat.note(
        'Enter sends a message, Alt-Enter begins a new line, """ begins and ends a block of lines. '
        "Tab completes, Ctrl-R searches earlier messages. Ctrl-C stops an answer, Ctrl-D leaves."
    )


@command("exit", "Leave.")
def exit_(chat: Chat, _: str) -> None:
    chat.leaving = True
