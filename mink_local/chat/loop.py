"""The commands, and the loop of the chat: reads a line, and runs a command or has the model answer it.

Help, documentation and completion come from the table of commands.
"""

import contextlib
import difflib
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import getdoc
from typing import NamedTuple

import click
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, WordCompleter
from prompt_toolkit.document import Document

from mink_local.chat.attachments import Attachment
from mink_local.chat.chat import Chat, Draft
from mink_local.chat.commands import compare, explain, messages, set_show
from mink_local.chat.conversation.session import Session
from mink_local.chat.conversation.store import StoredMessage
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.editor import InputLine
from mink_local.chat.terminal.input import QuietTerminal
from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import counted
from mink_local.errors import ContextOverflowError, MinkError
from mink_local.interrupts import interrupt_raises, on_interrupt
from mink_local.models.options import with_sampler_names
from mink_local.samplers import SAMPLERS

_COMMAND = re.compile(r"/([a-zA-Z][\w-]*(=\S*)?|\?)(?!\S)")  # and not /usr/bin
Completions = Iterator[Completion]
_LEAVING = ("exit", "quit")  # without a slash, as in other programs


class Command(NamedTuple):
    """A command of the chat.

    Attributes:
        usage: Its name and arguments, in brackets if they are optional.
        about: For the list of commands, at most 27 characters.
        run: Called with the chat and the argument.
        complete: Yields completions of the argument.
        doc: What /help COMMAND prints; None for the docstring of `run`.
    """

    usage: str
    about: str
    run: Callable[[Chat, str], None]
    complete: Callable[[Chat, str], Completions] | None = None
    doc: str | None = None

    @property
    def name(self) -> str:
        """The word after the slash."""
        return self.usage.split()[0]

    @property
    def details(self) -> str:
        """What /help COMMAND prints, a line for each paragraph."""
        doc = re.sub(r"(?<!\n)\n(?!\n)", " ", self.doc or getdoc(self.run) or "")
        return with_sampler_names(doc)


def help_(chat: Chat, argument: str) -> None:
    """List the commands. With COMMAND: say what it does."""
    if argument:
        chat.screen.show(f"/{find(argument).usage}\n{find(argument).details}")
    else:
        groups = {title: [(f"/{one.name}", one.about) for one in group] for title, group in _GROUPS.items()}
        set_show.show_groups(chat.screen, groups)
        chat.screen.dim(
            'Enter sends, Alt-Enter is a new line, """ a block, Tab completes, Ctrl-R searches, '
            "Ctrl-C stops, Ctrl-D leaves."
        )


def exit_(chat: Chat, _: str) -> None:
    """Leave, as do /quit, /bye and exit. The conversation is kept; mink-chat --continue goes on with it."""
    chat.leaving = True


def _starting_with(text: str, names: Iterable[str] | Mapping[str, str]) -> Completions:
    """Yield the names that begin with a text; a mapping says what each means."""
    about = names if isinstance(names, Mapping) else {}
    completer = WordCompleter([*names], meta_dict=about, sentence=True)
    yield from completer.get_completions(Document(text), CompleteEvent())


def _files(_: Chat, text: str) -> Completions:
    """Complete a path."""
    yield from PathCompleter(expanduser=True).get_completions(Document(text), CompleteEvent())


def _conversations(chat: Chat, text: str) -> Completions:
    """Complete the name of a conversation, or its number if it has none."""
    found = chat.session.store.conversations()
    return _starting_with(
        text, {one.name or str(one.id): one_line(one.title, 50) for one in found if one.name or one.turns}
    )


def _settings(chat: Chat, text: str) -> Completions:
    """Complete a setting, then its value."""
    key, blank, value = text.partition(" ")
    if not blank:
        yield from _starting_with(text, {f"{key} ": setting.about for key, setting in BY_KEY.items()})
    elif key in BY_KEY:
        yield from _values(key, chat, value)


def _values(key: str, chat: Chat, text: str) -> Completions:
    """Complete a value of a setting as a shell does."""
    names = {"on": "", "off": ""} if BY_KEY[key].is_flag else {}
    for item in BY_KEY[key].shell_complete(chat.session.settings.context, text):
        if item.type == "file":
            return _files(chat, text)
        names[item.value] = item.help or ""
    return _starting_with(text, {**names, "default": "as at the start"})


def _presets(chat: Chat, text: str) -> Completions:
    """Complete the name of a preset."""
    return _starting_with(text, [*chat.session.settings.presets, "save "])


def _reasoning(_: Chat, text: str) -> Completions:
    """Complete what /reasoning takes."""
    return _starting_with(text, ("on", "off", "default", "show", "line"))


def _comparison(_: Chat, text: str) -> Completions:
    """Complete the name of a sampler."""
    samplers = {name: sampler.keeps for name, sampler in SAMPLERS.items() if not sampler.is_stateful}
    return _starting_with(text.rpartition(" ")[2], {"T=": "temperature", **samplers})


def _complete_help(_: Chat, text: str) -> Completions:
    return _starting_with(text, COMMANDS)


def _setting(usage: str, about: str) -> Command:
    """Return the command that changes the setting of its name."""
    key = usage.split()[0]
    doc = f"{about}. {BY_KEY[key].help}\n\nWithout a value, show it; default restores the value at the start."
    return Command(usage, about, partial(set_show.change_setting, key), partial(_values, key), doc)


_GROUPS = {
    "Settings": (
        _setting("temp [T]", "Set the temperature"),
        _setting("sampler [NAME[:OPTION=…]]", "Set the sampler"),
        Command("system [TEXT]", "Set the system prompt", set_show.system),
        Command("preset [NAME|save NAME]", "Change several at once", set_show.preset, _presets),
        Command("set SETTING VALUE", "Change any setting", set_show.set_, _settings),
        Command("show [all|SETTING]", "Show the settings", set_show.show, _settings),
        _setting("model [NAME|PATH]", "Continue with another model"),
        Command("reasoning [on|off|show|line]", "Show or switch it", messages.reasoning, _reasoning),
    ),
    "Answers": (
        Command("regen [T] [SEED]", "Answer again", messages.regen),
        Command("pick [N]", "Switch to another version", messages.pick),
        Command("undo [N]", "Undo the last message", messages.undo),
        Command("redo", "Redo it", messages.redo),
        Command("edit [answer]", "Change the last message", messages.edit),
        Command("begin TEXT", "Answer again from TEXT on", messages.begin),
        Command("continue", "Finish a cut-off answer", messages.continue_),
        Command("copy [code [N]]", "Copy the last answer", messages.copy),
    ),
    "Chats": (
        Command("file [PATH …]", "Attach text files", messages.file, _files),
        Command("clear", "Begin a new conversation", messages.clear),
        Command("save NAME", "Name this conversation", messages.save),
        Command("load NAME", "Continue a conversation", messages.load, _conversations),
        Command("list [TEXT]", "List conversations", messages.list_),
        Command("delete NAME", "Delete a conversation", messages.delete, _conversations),
        Command("export FILE", "Save as Markdown or JSON", messages.export, _files),
        Command("history [N]", "Show this conversation", messages.history),
    ),
    "More": (
        Command("compare [T=N] [SAMPLER …] [TEXT]", "Compare samplers", compare.compare, _comparison),
        Command("explain [N|WORD]", "Show a token's candidates", explain.explain),
        Command("heat", "Colour the last answer", explain.heat),
        Command("default", "Use this model from now on", set_show.default),
        Command("help [COMMAND]", "Explain a command", help_, _complete_help),
        Command("exit", "Leave", exit_),
    ),
}
COMMANDS = {command.name: command for group in _GROUPS.values() for command in group}
_ALIASES = {
    "quit": "exit",
    "bye": "exit",
    "q": "exit",
    "?": "help",
    "new": "clear",
    "retry": "regen",
    "think": "reasoning",
}


def find(word: str, argument: str = "") -> Command:
    """Return the command of a name or an alias, with or without its slash.

    Raises MinkError, which says what to type instead, with the argument.
    """
    name = _ALIASES.get(word.removeprefix("/"), word.removeprefix("/"))
    if name in COMMANDS:
        return COMMANDS[name]
    raise MinkError(f"there is no command /{name}{_instead(name, argument)}")


def _instead(name: str, argument: str) -> str:
    """Return what to type instead of a command that there is not, as the end of a sentence."""
    word, _, value = set_show.key_of(name).partition("=")
    if word in BY_KEY:
        return f": type {'/' if word in COMMANDS else '/set '}{word} {value or argument}".rstrip() + "."
    if word in SAMPLERS:
        return f": type /sampler {word}."
    near = difflib.get_close_matches(name, COMMANDS, n=1, cutoff=0.7)
    return f": did you mean /{near[0]}?" if near else ": /help lists them."


class CommandCompleter(Completer):
    """Completes commands and their arguments."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def get_completions(self, document: Document, _: CompleteEvent) -> Iterator[Completion]:
        """Yield the completions of the line before the cursor."""
        with contextlib.suppress(Exception):  # it would end the chat; the command says what is wrong
            yield from self.complete(document.text_before_cursor)

    def complete(self, line: str) -> Completions:
        """Yield the completions of a line."""
        word, space, argument = line.partition(" ")
        found = COMMANDS.get(word[1:])
        if line.startswith("/") and not space:
            abouts = {f"/{name} ": one.about for name, one in COMMANDS.items()}
            yield from _starting_with(word, abouts)
        elif line.startswith("/") and found and found.complete:
            yield from found.complete(self._chat, argument)


def chat(
    session: Session,
    screen: Screen,
    terminal: QuietTerminal,
    files: Sequence[Attachment],
    unanswered: StoredMessage | None,
) -> None:
    """Chat until the user leaves, at first about the end of the conversation, if one is continued.

    Args:
        session: The conversation.
        screen: Where it is shown.
        terminal: Where it is typed.
        files: What is sent with the first message.
        unanswered: The last message of the conversation, if there is no answer to it.
    """
    line = InputLine(terminal, screen, session.settings["store"])
    chat = Chat(session, screen, line)
    line.complete_with(CommandCompleter(chat))
    chat.attached += files
    set_show.offer_default(chat)
    if session.conversation is not None:
        messages.recall(chat)
    if unanswered:
        chat.draft = Draft(unanswered, "Enter sends it")
    run(chat)


def run(chat: Chat) -> None:
    """Answer messages until the end of the input or /exit."""
    told = ""
    with on_interrupt(chat.stop):
        while not chat.leaving:
            if (problem := chat.session.flush()) != told:
                told = problem
                chat.screen.note(f"not saved yet: {problem}" if problem else "everything is saved again")
            draft = _waiting_draft(chat)
            chat.is_stopped = False
            try:
                text = _read(chat, draft)
            except EOFError:
                chat.screen.show("")
                return
            except KeyboardInterrupt:
                chat.screen.show("")
                chat.screen.note("it is not sent" if draft else "press Ctrl-D or type /exit to quit")
                chat.draft = None if draft else chat.draft
                continue
            if text.strip():
                _handle(chat, text, draft)


def _waiting_draft(chat: Chat) -> Draft | None:
    """Return what the next line begins with: nothing, if that would be joined to what is typed already."""
    draft = chat.draft
    if draft and draft.replaces and draft.replaces not in chat.session.branch[-2:]:
        draft = chat.draft = None  # what it was to replace is not the last message any more
    return None if draft and not draft.replaces and chat.line.keys_wait() else draft


def _read(chat: Chat, draft: Draft | None) -> str:
    """Return a line. If it cannot begin with the draft, Enter alone sends that."""
    if draft is None:
        return chat.line.read()
    message, chat.draft = draft.message, draft._replace(note="")
    if message.files:
        chat.screen.note(f"its attached files, {counted(message.attached, 'character')}, are sent along")
    if not chat.line.can_edit:
        chat.screen.note(
            f"{draft.note or 'Enter sends it'}: {one_line(message.typed, chat.screen.width // 2)}"
        )
        return chat.line.read() or message.typed
    if draft.note:
        chat.screen.note(draft.note)
    text = chat.line.read(message.typed)
    if not text:  # Ctrl-C
        chat.draft = None
    return text


def _is_command(text: str) -> bool:
    """Return whether a text is a command: several lines are a message, unless they are a system prompt."""
    found = _COMMAND.match(text)
    return found is not None and ("\n" not in text.strip() or found[0] == "/system")


def _handle(chat: Chat, text: str, draft: Draft | None) -> None:
    """Run a command, or send a message, such as what was offered; say what went wrong."""
    is_offered = draft is not None and text.strip() == draft.message.typed
    try:
        if text.rstrip() in _LEAVING:
            chat.leaving = True
        elif (quoted := chat.line.block(text)) is not None:
            chat.send(quoted, draft)
        elif _is_command(text) and not is_offered:
            _run_command(chat, text.strip())
        else:
            chat.send(text.strip(), draft)
    except ContextOverflowError as error:
        chat.screen.note(
            f"the message has {error.n_tokens} tokens with what comes before it, and the context holds only "
            f"{error.n_ctx}: shorten it, or /set ctx {1 << error.n_tokens.bit_length()}"
        )
    except (MinkError, OSError, click.ClickException) as error:
        chat.screen.note(str(error).removesuffix("."))
    except (click.Abort, KeyboardInterrupt, EOFError):  # of a question that a command asks
        chat.screen.note("interrupted")
    except Exception:
        chat.screen.dim(traceback.format_exc())
        chat.screen.note("this is an error of the program: please report it; you can keep chatting")


def _run_command(chat: Chat, text: str) -> None:
    """Run a command, which Ctrl-C interrupts. Raises MinkError if it is none, or not well-formed."""
    word, argument = [*text.split(maxsplit=1), ""][:2]
    try:
        command = find(word, argument)
    except MinkError as error:
        raise MinkError(f"{error} A blank before it sends it as a message") from None
    if argument and " " not in command.usage:
        raise MinkError(f"/{command.name} takes no argument")
    if not argument and " " in command.usage and "[" not in command.usage:
        raise MinkError(f"usage: /{command.usage}")
    try:
        with interrupt_raises():
            command.run(chat, argument)
    except click.BadParameter as error:
        refused = "" if "'" in error.message else f"{text}: "  # a message with quotes names it
        raise MinkError(refused + error.message) from None
