"""The input line for messages: one with history, search and completion, and a plain one.

What is typed while no line is being read is not echoed: the next lines begin with it.
"""

import os
import re
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from select import select
from typing import Any, Protocol

from mink_local.cli import command_line_text, printable
from mink_local.interrupts import interrupt_raises

PROMPT, MORE = "> ", "  "
NOT_KEPT = "> (not kept) "  # the prompt while messages cannot be stored
_QUOTES = '"""'
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|O.|.)?")  # of an arrow key
_PASTE_BEGINS, _PASTE_ENDS = "\x1b[200~", "\x1b[201~"
_PASTE = re.compile(rf"{re.escape(_PASTE_BEGINS)}(.*?){re.escape(_PASTE_ENDS)}", re.DOTALL)
_PASTE_SECONDS = 0.2  # between two parts of a paste that is longer than the terminal's buffer


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


def as_typed(keys: str) -> list[str]:
    """Return what keys would have put into input lines: Enter ends one, unless it is pasted or in a block."""
    lines = [""]
    for number, part in enumerate(_PASTE.split(keys)):
        is_pasted = number % 2 == 1
        for character in _ESCAPE_SEQUENCE.sub("", part).replace("\r", "\n"):
            if character in "\x7f\b":
                lines[-1] = lines[-1][:-1]
            elif character == "\n" and not is_pasted and not is_open(lines[-1]):
                lines.append("")
            elif character >= " " or character in "\n\t":
                lines[-1] += character
    return [line.rstrip("\n") for line in lines if line.strip()]


def _is_in_paste(keys: bytes) -> bool:
    return keys.rfind(_PASTE_BEGINS.encode()) > keys.rfind(_PASTE_ENDS.encode())


class QuietTerminal:
    """The terminal that standard input is, if it is one: shows what is typed only while a line is read.

    A context manager, which restores the terminal at its end.

    Args:
        marks_pastes: The terminal can tell what is pasted from what is typed.
    """

    def __init__(self, marks_pastes: bool = False) -> None:
        self._marks_pastes = marks_pastes
        self._mode: list[Any] | None = None  # of the terminal, as it was
        self._is_reading = False
        self._ahead: list[str] = []  # the lines that were typed while none was read
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
        self._set(self._mode, is_quiet=False)

    @contextmanager
    def reading(self, default: str, keys: str = "") -> Iterator[str]:
        """Show what is typed while a line is read; yield what it begins with.

        That is the default, or the first line that was typed before; each line after it waits for its turn.

        Args:
            keys: Pressed before those that the terminal holds.
        """
        self._ahead += as_typed(keys + self._keys())
        if not default and self._ahead:
            default = self._ahead.pop(0)
        self._is_reading = True
        self.restore()
        try:
            yield default
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
            self._set(silent, is_quiet=True)

    def _set(self, mode: list[Any] | None, is_quiet: bool) -> None:
        if mode and sys.platform != "win32":
            import termios

            terminal = sys.stdin.fileno()
            with suppress(OSError, termios.error):  # the terminal is closed, or not ours to control
                if os.tcgetpgrp(terminal) == os.getpgrp():  # a program in the background would be stopped
                    termios.tcsetattr(terminal, termios.TCSANOW, mode)
                    if self._marks_pastes:  # past Python's buffer, which a signal may have interrupted
                        os.write(sys.stdout.fileno(), b"\x1b[?2004h" if is_quiet else b"\x1b[?2004l")

    def _keys(self) -> str:
        """Take the keys that have been pressed from the terminal."""
        if sys.platform == "win32":
            import msvcrt

            keys = ""
            while sys.stdin.isatty() and msvcrt.kbhit():
                keys += msvcrt.getwch()
            return keys
        else:  # noqa: RET505  # for the type checker, which tells platforms apart by it
            data = b""
            while self._mode and select([sys.stdin], [], [], _PASTE_SECONDS if _is_in_paste(data) else 0)[0]:
                if not (piece := os.read(sys.stdin.fileno(), 65536)):
                    break
                data += piece
            return data.decode(errors="replace")


class PlainLine:
    """Python's own input line, with readline if the system has it."""

    def __init__(self, terminal: QuietTerminal) -> None:
        self._terminal = terminal

    def read(self, default: str = "", prompt: str = PROMPT) -> str:
        """See `InputLine`."""
        with self._terminal.reading(default) as begun:
            instead = ""
            if not _begin_line_with(begun):
                prompt, instead = f"(Enter sends: {printable(begun)})\n{prompt}", begun
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
