"""The commands for messages and answers: the tree of answers, files, the clipboard, reasoning."""

import re
from collections.abc import Sequence

from mink_local.chat.attachments import Attachment, matching
from mink_local.chat.chat import Chat, Offer
from mink_local.chat.commands.set_show import change_setting
from mink_local.chat.conversation.store import StoredMessage
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.screen import beginnings, counted, one_line
from mink_local.cli import WholeNumber
from mink_local.errors import MinkError

# A block of code, perhaps cut off; its fence may be indented.
_BLOCK = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,})[^`\n]*\n(?P<code>.*?)(?:^ *(?P=fence)[`~]* *$|\Z)", re.MULTILINE | re.DOTALL
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
        _list(chat, versions)
        return
    number = WholeNumber()(argument)
    if not 1 <= number <= len(versions):
        raise MinkError(f"the last turn has {counted(len(versions), 'version')}: /pick lists them")
    _show_turn(chat, chat.session.choose(versions[number - 1]))


def _list(chat: Chat, versions: Sequence[Sequence[StoredMessage]]) -> None:
    """List the versions of the last turn, each from where it begins to differ from the others."""
    width, current = chat.screen.width, chat.session.branch[-2:]
    has_edits = any(turn[0] != current[0] for turn in versions)
    messages = beginnings([turn[0].typed for turn in versions], width)
    answers = [turn[1].content if turn[1:] else "(never answered)" for turn in versions]
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
        chat.offered = Offer(unanswered, "never answered: Enter sends it")
        return
    message, answer = chat.session.branch[-2:]
    chat.screen.own(message.typed)
    chat.screen.text(answer.content)


def undo(chat: Chat, argument: str) -> None:
    """Undo the last message, or the last N, with their answers. /redo restores them."""
    n, n_there = WholeNumber(min=1)(argument or "1"), len(chat.session.branch) // 2
    if n > n_there > 0:
        raise MinkError(f"only {counted(n_there, 'message')} can be undone")
    for _ in range(n):
        message = chat.session.undo()
    chat.screen.note(f"undone: {one_line(message.typed, chat.screen.width - 30)}; /redo restores it")


def redo(chat: Chat, _: str) -> None:
    """Restore what the last /undo took. Without one: go on with what once came next."""
    _show_turn(chat, chat.session.redo())


def edit(chat: Chat, _: str) -> None:
    """Edit the last message in the input line; sending it replaces the old one.

    Ctrl-X Ctrl-E opens $EDITOR. The old message is kept with its answers: /pick goes back to them.
    """
    chat.session.last_answer()
    chat.offered = Offer(chat.session.branch[-2], replaces=True)
    editor = ", Ctrl-X Ctrl-E opens an editor" if chat.screen.has_line_input else ""
    chat.screen.note(f"Enter sends the changed message{editor}, Ctrl-C leaves it as it was")


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
        if again := [one.name for one in new if one in chat.attached]:
            raise MinkError(f"{again[0]} is attached already: /file - removes all files")
        chat.attached += dict.fromkeys(new)
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
    chat.screen.copy(text)
    chat.screen.note(f"copied {counted(len(text), 'character')}, if your terminal supports OSC 52")


def _code(answer: str, argument: str) -> str:
    """Return the block of code that `code` or `code N` names. Raises MinkError if there is none."""
    word, _, number = argument.partition(" ")
    if word != "code":
        raise MinkError("usage: /copy [code [N]]")
    blocks = [block["code"].removesuffix("\n") for block in _BLOCK.finditer(answer)]
    n = WholeNumber(min=1)(number) if number.strip() else len(blocks)
    if not 1 <= n <= len(blocks):
        raise MinkError(f"the last answer has {counted(len(blocks), 'block')} of code")
    return blocks[n - 1]


def reasoning(chat: Chat, argument: str) -> None:
    """Show the reasoning of the last answer. on, off: turn reasoning on or off.

    show, line: show the reasoning of later answers, or one line with its length.
    """
    if argument in ("show", "line"):
        change_setting(chat, "show-reasoning", "on" if argument == "show" else "off")
    elif argument:
        change_setting(chat, "reasoning", argument)
    else:
        chat.screen.text(chat.session.last_answer().reasoning or "There is no reasoning.")
