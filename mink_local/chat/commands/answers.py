"""The commands for messages and answers: the tree of answers, files, the clipboard, reasoning."""

from mink_local.chat.attachments import Attachment, matching
from mink_local.chat.chat import Chat
from mink_local.chat.commands.settings import change_setting
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.screen import counted, one_line
from mink_local.cli import WholeNumber


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


def pick(chat: Chat, argument: str) -> None:
    """Switch to the Nth answer to the last message. Without N, list the answers; * marks the current one."""
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


def undo(chat: Chat, _: str) -> None:
    """Take back the last message and its answer. /redo brings both back until you send another message."""
    message = chat.session.undo()
    chat.note(f"(taken back: {one_line(message.typed, chat.screen.width - 30)}; /redo brings it back)")


def redo(chat: Chat, _: str) -> None:
    """Bring back the message and the answer that the last /undo took."""
    chat.session.redo()
    message, answer = chat.session.branch[-2:]
    chat.note(f"> {one_line(message.typed, chat.screen.width - 2)}")
    chat.screen.text(answer.content)


def edit(chat: Chat, _: str) -> None:
    """Edit the last message in the input line; sending it replaces the old one.

    Ctrl-X Ctrl-E opens $EDITOR. The old message is kept with its answers.
    """
    chat.session.last_answer()
    chat.offered, chat.replaces = chat.session.branch[-2], True
    editor = ", Ctrl-X Ctrl-E opens an editor" if chat.screen.has_line_input else ""
    chat.note(f"(Enter sends the changed message{editor}, Ctrl-C leaves it as it was)")


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
        chat.attached += [Attachment.read(chat.session.model, path) for path in matching(argument)]
    files = ", ".join(f"{one.name} ({counted(one.tokens, 'token')})" for one in chat.attached)
    chat.note(f"(with your next message: {files}; /file - removes)" if files else "(no file is attached)")


def copy(chat: Chat, _: str) -> None:
    """Copy the last answer to the clipboard, also over ssh, if the terminal supports OSC 52."""
    text = chat.session.last_answer().content
    chat.screen.copy(text)
    chat.note(f"(copied {counted(len(text), 'character')}, if your terminal supports OSC 52)")


def think(chat: Chat, argument: str) -> None:
    """Show the reasoning of the last answer. on, off: turn reasoning on or off.

    show, line: show the reasoning of later answers, or one line with its length.
    """
    if argument in ("show", "line"):
        change_setting(chat, "thoughts", argument)
    elif argument:
        change_setting(chat, "think", argument)
        model = chat.session.model
        if not model.has_thinking_switch:
            chat.note(f"(the chat template of {model.name} has no switch for reasoning: nothing changes)")
    else:
        chat.screen.text(chat.session.last_answer().thinking or "(there is no reasoning)")
