"""The input line for messages: one with history, search and completion, and a plain one.

What is typed while no line is being read is not echoed: the next line begins with it.
"""

import os
import re
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Protocol

from mink_local.cli import command_line_text, printable
from mink_local.interrupts import interrupt_raises

PROMPT, MORE = "> ", "  "
NOT_KEPT = "> (not kept) "  # the prompt while messages cannot be stored
_QUOTES = '"""'
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.|.)?")  # of an arrow key, or around a paste


class InputLine(Protocol):
    """Reads messages from the user."""

    def read(self, default: str = "", prompt: str = PROMPT) -> str:
        """Return a message; the line, after the prompt, begins with `default`.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C.
        """

    def forget(self, messages: Collection[str]) -> None:
        """Remove messages from the history."""


def is_open(text: str) -> bool:
    """Return whether a text is a block that has not ended."""
    stripped = text.strip()
    return stripped.startswith(_QUOTES) and not (len(stripped) >= 6 and stripped.endswith(_QUOTES))


def unquoted_block(text: str) -> str:
    """Return a text of the input line, without the quotes if it is a block."""
    text = command_line_text(text)
    if text.strip().startswith(_QUOTES):
        return text.strip().removeprefix(_QUOTES).removesuffix(_QUOTES).strip("\n")
    return text


def as_typed(text: str) -> str:
    """Return what keys would have put into the input line: Enter and pasted lines are line breaks."""
    typed = ""
    for character in _ESCAPE_SEQUENCE.sub("", text).replace("\r", "\n"):
        if character in "\x7f\b":
            typed = typed[:-1]
        elif character >= " " or character in "\n\t":
            typed += character
    return typed.rstrip("\n")


class QuietTerminal:
    """The terminal that standard input is, if it is one: shows what is typed only while a line is read.

    A context manager, which restores the terminal at its end.
    """

    def __init__(self) -> None:
        self._mode: list[Any] | None = None  # of the terminal, as it was
        self._is_reading = False
        if sys.platform != "win32":  # there only what a line reads is shown
            with suppress(ImportError, OSError):
                import termios

                if os.isatty(sys.stdin.fileno()):
                    self._mode = termios.tcgetattr(sys.stdin.fileno())

    def __enter__(self) -> "QuietTerminal":
        self._silence()
        if self._mode and sys.platform != "win32":
            self._before = signal.signal(signal.SIGCONT, self._silence)  # the shell has set its own mode
        return self

    def __exit__(self, *_: object) -> None:
        if self._mode and sys.platform != "win32":
            signal.signal(signal.SIGCONT, self._before or signal.SIG_DFL)
        self.restore()

    def restore(self) -> None:
        """Have the terminal show what is typed."""
        self._set(self._mode)

    @contextmanager
    def reading(self) -> Iterator[str]:
        """Show what is typed while a line is read; yield what has been typed before."""
        typed = self._typed()
        self._is_reading = True
        self.restore()
        try:
            yield typed
        finally:
            self._is_reading = False
            self._silence()

    def _silence(self, *_: object) -> None:
        if self._mode and not self._is_reading and sys.platform != "win32":
            import termios

            silent = self._mode.copy()
            silent[0] &= ~termios.ICRNL
            silent[3] = (silent[3] | termios.NOFLSH) & ~(termios.ECHO | termios.ICANON)
            silent[6] = silent[6].copy()
            silent[6][termios.VMIN] = silent[6][termios.VTIME] = 0  # a read waits for nothing
            self._set(silent)

    def _set(self, mode: list[Any] | None) -> None:
        if mode and sys.platform != "win32":
            import termios

            terminal = sys.stdin.fileno()
            with suppress(OSError, termios.error):  # the terminal is closed, or not ours to control
                if os.tcgetpgrp(terminal) == os.getpgrp():  # a program in the background would be stopped
                    termios.tcsetattr(terminal, termios.TCSANOW, mode)

    def _typed(self) -> str:
        """Take what has been typed from the terminal."""
        if sys.platform == "win32":
            import msvcrt

            keys = ""
            while sys.stdin.isatty() and msvcrt.kbhit():
                keys += msvcrt.getwch()
            return as_typed(keys)
        else:  # noqa: RET505  # for the type checker, which tells platforms apart by it
            data = b""
            if self._mode:
                while piece := os.read(sys.stdin.fileno(), 65536):
                    data += piece
            return as_typed(data.decode(errors="replace"))


class PlainLine:
    """Python's own input line, with readline if the system has it."""

    def __init__(self, terminal: QuietTerminal) -> None:
        self._terminal = terminal

    def read(self, default: str = "", prompt: str = PROMPT) -> str:
        """See `InputLine`."""
        with self._terminal.reading() as typed:
            default += typed
            instead = ""
            if not _begin_line_with(default):
                prompt, instead = f"(Enter sends: {printable(default)})\n{prompt}", default
            with interrupt_raises():
                text = input(prompt) or instead
                while is_open(text):
                    _begin_line_with("")
                    text += "\n" + input(MORE)
        return unquoted_block(text)

    def forget(self, messages: Collection[str]) -> None:
        """Do nothing: no history is kept."""


def _begin_line_with(text: str) -> bool:
    """Have the next line of `input` begin with a text; return whether it does."""
    try:
        readline: Any = import_module("readline")  # gives input() editing and history
    except ImportError:
        return not text
    if text and (sys.stdin is not sys.__stdin__ or "\n" in text):
        return False
    readline.set_startup_hook(lambda: readline.insert_text(text))
    return True
