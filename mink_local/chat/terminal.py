"""Where a person types: an input line with history, search and completion, or a plain one."""

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from platformdirs import user_data_path

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completion
    from prompt_toolkit.document import Document

PROMPT = "> "
_MORE = "  "
_QUOTES = '"""'


class Completer(Protocol):
    """Says what a line may go on with: (what to put in the place of its last `n` characters, n)."""

    def __call__(self, line: str) -> Iterator[tuple[str, int]]: ...


class Input(Protocol):
    def read(self, default: str = "") -> str:
        """A message. Raises EOFError for Ctrl-D, KeyboardInterrupt for Ctrl-C."""
        ...


def unquoted(text: str) -> str:
    '''What stands between the """ of a block, or a text that has none.'''
    stripped = text.strip()
    if stripped.startswith(_QUOTES):
        return stripped.removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return text


def _is_open(text: str) -> bool:
    """Whether a block is begun that is not ended yet."""
    stripped = text.strip()
    return stripped.startswith(_QUOTES) and not (len(stripped) >= 6 and stripped.endswith(_QUOTES))


class PlainInput:
    """Python's own input line, with readline where that is there."""

    def __init__(self) -> None:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (gives input() editing and history)

    def read(self, default: str = "") -> str:
        if default:
            print(f"(to send again: {default})")
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            text = input(PROMPT)
            while _is_open(text):
                text += "\n" + input(_MORE)
        finally:
            signal.signal(signal.SIGINT, before)
        return unquoted(text)


class LineInput:
    """An input line of prompt_toolkit's.

    Enter sends, Alt-Enter begins a new line, and so does Enter inside a block that begins with three double
    quotes. What is pasted is one message, however many lines it has. keys: "emacs", "vi", or "auto", which
    looks into the .inputrc. keep: whether the history outlives the program.
    """

    def __init__(self, complete: Completer, keys: str, keep: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.enums import EditingMode
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.shortcuts import CompleteStyle

        history: History = FileHistory(str(_history_file())) if keep else InMemoryHistory()
        vi = keys == "vi" or (keys == "auto" and _inputrc_says_vi())
        self._session: PromptSession[str] = PromptSession(
            message=PROMPT,
            multiline=True,
            prompt_continuation=_MORE,
            key_bindings=_key_bindings(),
            editing_mode=EditingMode.VI if vi else EditingMode.EMACS,
            history=history,
            enable_history_search=True,
            completer=_completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.READLINE_LIKE,  # no menu, for which the screen would be scrolled
            tempfile_suffix=".md",
        )

    def read(self, default: str = "") -> str:
        return unquoted(self._session.prompt(default=default))


def _key_bindings() -> Any:
    from prompt_toolkit.enums import DEFAULT_BUFFER
    from prompt_toolkit.filters import has_focus
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    bindings = KeyBindings()

    @bindings.add("enter", filter=has_focus(DEFAULT_BUFFER))  # and not on the line of a search
    def send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    return bindings


def _completer(complete: Completer) -> Any:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion

    class OfCommands(Completer):
        def get_completions(self, document: "Document", _: CompleteEvent) -> "Iterator[Completion]":
            for text, length in complete(document.text_before_cursor):
                yield Completion(text, start_position=-length)

    return OfCommands()


def _history_file() -> Path:
    """The file of what was typed, for its owner alone."""
    path = user_data_path("mink-local") / "history"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    return path


def _inputrc_says_vi() -> bool:
    """Whether readline's programs have vi keys, by the last word that its files have on it."""
    mode = "emacs"
    for path in (Path("/etc/inputrc"), Path(os.environ.get("INPUTRC") or "~/.inputrc").expanduser()):
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
            mode = (re.findall(r"^\s*set\s+editing-mode\s+(\w+)", text, re.M) or [mode])[-1]
    return mode == "vi"
