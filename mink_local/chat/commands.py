"""What can be typed behind a slash: one table of names, help, completion and functions."""

import base64
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mink_local.chat import completion as completing
from mink_local.chat import inspect as looking
from mink_local.chat.completion import Completion
from mink_local.chat.options import BY_KEY, SETTINGS
from mink_local.chat.screen import note, one_line, printable
from mink_local.chat.store import Conversation

if TYPE_CHECKING:
    from mink_local.chat.repl import Chat

_MOST_COPIED = 74_000  # bytes of base64 that the terminals which limit OSC 52 take


@dataclass(frozen=True)
class Command:
    """A command: how it is used, what it does, in a line, and what its argument may go on with."""

    usage: str
    help: str
    run: Callable[["Chat", str], None]
    complete: Completion | None = None


COMMANDS: dict[str, Command] = {}


def command(usage: str, help: str, complete: Completion | None = None) -> Callable[..., Callable[..., None]]:  # noqa: A002
    """Put a function in the table, under the first word of its usage."""

    def register(run: Callable[["Chat", str], None]) -> Callable[["Chat", str], None]:
        COMMANDS[usage.split()[0]] = Command(usage, help, run, complete)
        return run

    return register


def _commands(_: "Chat", text: str) -> Iterator[tuple[str, int]]:
    yield from ((name, len(text)) for name in COMMANDS if name.startswith(text))


# What the next answers are drawn with


@command("temp T", "Set the temperature.")
def temp(chat: "Chat", argument: str) -> None:
    _set(chat, "temp", argument)


@command("tau TAU", "Set Min-k's fallback; 0 switches it off.")
def tau(chat: "Chat", argument: str) -> None:
    _set(chat, "tau", argument)


@command("sampler NAME[:OPTION=…]", "Set which tokens may be drawn.", completing.samplers)
def sampler(chat: "Chat", argument: str) -> None:
    _set(chat, "sampler", argument)


@command("system [TEXT]", "Set the system prompt; - takes it away.")
def system(chat: "Chat", argument: str) -> None:
    _set(chat, "system", "default" if argument == "-" else argument)


@command(
    "think [on|off|show|line]",
    "Switch thinking, show it or one line; the last thought.",
    completing.any_of("on", "off", "default", "show", "line"),
)
def think(chat: "Chat", argument: str) -> None:
    if argument in ("show", "line"):
        _set(chat, "thoughts", argument)
    elif argument:
        if not chat.session.model.has_thinking_switch:
            note(f"({chat.session.model.name} has no such switch in its template: this changes nothing)")
        _set(chat, "think", argument)
    else:
        thought = chat.session.last_answer().thinking
        chat.screen.text(thought or "(there was none)")


@command("set SETTING VALUE", "Set any setting; VALUE default takes it back.", completing.settings)
def set_(chat: "Chat", argument: str) -> None:
    key, _, value = argument.partition(" ")
    if key not in BY_KEY:
        raise ValueError(
            f"there is no setting {key!r}; /show lists them" if key else "usage: /set SETTING VALUE"
        )
    _set(chat, key, value.strip())


def _set(chat: "Chat", key: str, text: str) -> None:
    """Set a setting, or show it where there is no text to set it to."""
    setting = BY_KEY[key]
    if text:
        chat.change(setting, text)
    settings = chat.session.settings
    note(f"({key} is {settings.shown(setting)}, {settings.sources[str(setting.name)]})")


@command("show [SETTING]", "Show settings, and where each value comes from.", completing.settings)
def show(chat: "Chat", argument: str) -> None:
    from rich.table import Table
    from rich.text import Text

    wanted = [setting for setting in SETTINGS if argument.strip() in ("", setting.key)]
    if not wanted:
        raise ValueError(f"there is no setting {argument!r}; /show lists them")
    table = Table(box=None, pad_edge=False)
    for name in ("setting", "value", "from"):
        table.add_column(name, overflow="fold")
    settings = chat.session.settings
    for setting in wanted:
        source = settings.sources[str(setting.name)]
        value = printable(settings.shown(setting))
        table.add_row(setting.key, Text(value), Text(source, style="dim" if source == "default" else ""))
    chat.screen.show(table)


@command("model [NAME|PATH]", "Go on with another model.", completing.models)
def model(chat: "Chat", argument: str) -> None:
    _set(chat, "model", argument)


# The conversation


@command("regen [T] [SEED]", "Answer again, at temperature T and with SEED if given.")
def regen(chat: "Chat", argument: str) -> None:
    words = argument.split()
    if len(words) > 2:
        raise ValueError("usage: /regen [T] [SEED]")
    temperature = _number(words[0]) if words else None
    seed = _whole(words[1]) if len(words) > 1 else None
    chat.show(chat.session.regenerate(temperature, seed))
    answers = chat.session.alternatives()
    if len(answers) > 1:
        note(f"(answer {len(answers)} to this message: /pick goes back to another)")


@command("pick [N]", "List the answers to a message, or go on with the Nth.")
def pick(chat: "Chat", argument: str) -> None:
    answers = chat.session.alternatives()
    if not argument:
        current = chat.session.last_answer().id
        for number, answer in enumerate(answers, start=1):
            mark = "*" if answer.id == current else " "
            chat.screen.show(f"{mark}{number:>2}  {one_line(answer.content, chat.screen.width - 5)}")
        return
    if not 1 <= _whole(argument) <= len(answers):
        raise ValueError(f"there are {len(answers)} answers: /pick lists them")
    chat.session.choose(answers[_whole(argument) - 1])
    chat.screen.text(chat.session.last_answer().content)


@command("undo", "Take back the last message and its answer.")
def undo(chat: "Chat", _: str) -> None:
    message = chat.session.undo()
    note(f"(taken back: {one_line(message.content, chat.screen.width - 30)}; /redo brings it back)")


@command("redo", "Bring back what /undo took.")
def redo(chat: "Chat", _: str) -> None:
    chat.session.redo()
    message, answer = chat.session.branch[-2:]
    note(f"> {one_line(message.content, chat.screen.width - 2)}")
    chat.screen.text(answer.content)


@command("edit", "Change the last message in $EDITOR, answer it again.")
def edit(chat: "Chat", _: str) -> None:
    import click

    chat.session.last_answer()
    before = chat.session.branch[-2].content
    try:
        after = click.edit(before, extension=".md")
    except click.ClickException as error:
        raise ValueError(error.format_message()) from None
    if after is None or not after.strip() or after.strip() == before.strip():
        note("(unchanged)")
    else:
        chat.show(chat.session.edit(after.strip()))


@command("continue", "Go on with an answer that was cut short.")
def continue_(chat: "Chat", _: str) -> None:
    chat.show(chat.session.extend())


@command("file PATH", "Add a text file to the next message.", completing.files)
def file(chat: "Chat", argument: str) -> None:
    if not argument:
        raise ValueError("usage: /file PATH")
    path = Path(argument).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    tokens = len(chat.session.model.tokenize(text))
    if tokens >= chat.session.model.n_ctx:
        raise ValueError(f"{path} is {tokens} tokens and the context holds {chat.session.model.n_ctx}")
    fence = "`" * max(3, _longest_run(text, "`") + 1)
    chat.attached.append(f"{path.name}:\n{fence}\n{text.rstrip()}\n{fence}")
    note(f"({path.name}, {tokens} tokens, goes with your next message; /clear forgets it)")


@command("copy", "Copy the last answer, by OSC 52: over ssh too.")
def copy(chat: "Chat", _: str) -> None:
    text = chat.session.last_answer().content
    data = base64.b64encode(text.encode()).decode()
    if not sys.stdout.isatty():
        raise ValueError("there is no terminal to copy with")
    if len(data) > _MOST_COPIED:
        raise ValueError(f"the answer has {len(text)} characters, more than terminals take: /export FILE.md")
    sys.stdout.write(f"\x1b]52;c;{data}\x07")
    sys.stdout.flush()
    note(f"(copied {len(text)} characters, if your terminal takes OSC 52)")


@command("clear", "Begin a new conversation; this one is kept.")
def clear(chat: "Chat", _: str) -> None:
    chat.session.clear()
    chat.attached.clear()
    note("(a new conversation)")


# The conversations that are kept


@command("save NAME", "Give this conversation a name.")
def save(chat: "Chat", argument: str) -> None:
    if not argument:
        raise ValueError("usage: /save NAME")
    session = chat.session
    session.store.rename(_current(chat).id, argument)
    kept = "" if session.settings["store"] else ", until you leave: --no-store"
    note(f"(this is {argument} now{kept})")


@command("load NAME", "Go on with another conversation.", completing.conversations)
def load(chat: "Chat", argument: str) -> None:
    if not argument:
        raise ValueError("usage: /load NAME, a name or a number that /list shows")
    conversation = chat.session.store.find(argument)
    chat.prefill = chat.session.load(conversation) or ""
    chat.attached.clear()
    recall(chat)


@command("list", "List the conversations that are kept.")
def list_(chat: "Chat", _: str) -> None:
    conversations = chat.session.store.conversations()
    looking.list_conversations(chat.screen, conversations, chat.session.conversation)


@command("delete NAME", "Delete a conversation for good.", completing.conversations)
def delete(chat: "Chat", argument: str) -> None:
    if not argument:
        raise ValueError("usage: /delete NAME, a name or a number that /list shows")
    conversation = chat.session.store.find(argument)
    chat.session.store.delete(conversation.id)
    if conversation.id == chat.session.conversation:
        chat.session.clear()
    note(f"({argument} is deleted)")


@command("export FILE", "Write this conversation to FILE.md or FILE.json.", completing.files)
def export(chat: "Chat", argument: str) -> None:
    from mink_local.chat.export import export as write

    if not argument:
        raise ValueError("usage: /export FILE.md or FILE.json")
    path = Path(argument).expanduser()
    write(chat.session.store, _current(chat), path)
    note(f"(written to {path})")


def _current(chat: "Chat") -> Conversation:
    if chat.session.conversation is None:
        raise ValueError("the conversation has not begun yet")
    return chat.session.store.get(chat.session.conversation)


def recall(chat: "Chat") -> None:
    """Show the end of a conversation that is gone on with, and have the model read it again."""
    branch = chat.session.branch
    for message in branch[-2:]:
        if message.role == "user":
            note(f"> {one_line(message.content, 4 * chat.screen.width)}")
        else:
            chat.screen.text(message.content)
            if message.outcome is None:
                note("(cut off when the program ended: /continue goes on)")
    name = _current(chat).name or f"number {chat.session.conversation}"
    note(f"(conversation {name}, {sum(message.role == 'user' for message in branch)} messages)")
    chat.read_again()


# Looking at answers


@command("compare TEXT", "Min-k, min-p, top-p and top-nσ side by side.")
def compare(chat: "Chat", argument: str) -> None:
    if not argument:
        raise ValueError("usage: /compare TEXT")
    looking.compare(chat, argument)


@command(
    "explain [N|WORD] [--plot F]",
    "Take a token of the answer apart; what methods keep.",
)
def explain(chat: "Chat", argument: str) -> None:
    looking.explain(chat, argument)


@command("heat", "The last answer coloured by candidate-set size.")
def heat(chat: "Chat", _: str) -> None:
    looking.heat(chat)


@command("stats", "Figures of the answer, the conversation, the model.")
def stats(chat: "Chat", _: str) -> None:
    looking.stats(chat)


@command("help [COMMAND]", "This list.", _commands)
def help_(chat: "Chat", argument: str) -> None:
    name = argument.removeprefix("/")
    if name and name not in COMMANDS:
        raise ValueError(f"there is no command /{name}; /help lists them")
    if name:
        chat.screen.show(f"/{COMMANDS[name].usage}\n  {COMMANDS[name].help}")
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for one in COMMANDS.values():
        table.add_row(f"/{one.usage.split()[0]}" + one.usage[len(one.usage.split()[0]) :], one.help)
    chat.screen.show(table)
    note(
        'Enter sends, Alt-Enter begins a new line, and """ a block that ends with """. '
        "Tab completes, Ctrl-R searches what you typed. Ctrl-C stops an answer, Ctrl-D leaves."
    )


@command("exit", "Leave.")
def exit_(chat: "Chat", _: str) -> None:
    chat.leaving = True


# Reading arguments


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def _longest_run(text: str, character: str) -> int:
    """The length of the longest run of a character."""
    longest = 0
    while character * (longest + 1) in text:
        longest += 1
    return longest
