"""The terminal between input lines, and what a text of an input line means.

What is typed while no line is being read is not echoed, and is read by the next lines: Enter ended them.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

PROMPT, MORE = "> ", "  "
_CONTINUED: int | None = getattr(signal, "SIGCONT", None)  # after Ctrl-Z; Windows has none
# Waits for a line, or for the end of the chat without one; then the mode of the terminal may still be that of
# `_silence` (noflsh) or of an input line (-isig), which no shell has, and some shells keep.
_WATCHER = r"""
exec 3<&1
mode=$(stty -g <&3) || exit
echo >&2
read -r end && exit
stty -a <&3 | grep -Eq '(^| )(noflsh|-isig)' && stty "$mode" <&3 && printf '\033[?2004l\033[?25h'
"""
_QUOTES = '"""'


def is_open(text: str) -> bool:
    """Return whether a text begins a block, with a line of three double quotes, and does not end it."""
    return text.strip().partition("\n")[0].strip() == _QUOTES and block(text) is None


def block(text: str) -> str | None:
    """Return what a block holds, or None if a text is none."""
    first, *others = text.strip().split("\n")
    if not others or {first.strip(), others[-1].strip()} != {_QUOTES}:
        return None
    return "\n".join(others[:-1])


class QuietTerminal:
    """The terminal that standard input is, if it is one: shows what is typed only while a line is read.

    What is typed meanwhile waits in the terminal: the next lines begin with it, and Enter ends them.

    A context manager, which restores the terminal at its end.

    Args:
        marks_pastes: The terminal can tell what is pasted from what is typed.
    """

    n_stops: ClassVar = 0  # how often the program was stopped, as by Ctrl-Z: the shell may have written since

    def __init__(self, marks_pastes: bool = False) -> None:
        self._marks_pastes = marks_pastes
        self._mode: list[Any] | None = None  # of the terminal, as it was
        self._shows_keys = True
        self._watcher: subprocess.Popen[bytes] | None = None
        if sys.platform != "win32":  # there only what a line reads is shown
            with suppress(ImportError, OSError):
                import termios

                if os.isatty(sys.stdin.fileno()):
                    self._mode = termios.tcgetattr(sys.stdin.fileno())
        if _CONTINUED:
            signal.signal(_CONTINUED, self._continue)

    def __enter__(self) -> "QuietTerminal":
        self._watch()
        self._silence()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        if self._watcher:
            self._watcher.communicate(b"end\n")

    def _watch(self) -> None:
        """Have a process restore the terminal if this one is killed, or crashes inside llama.cpp."""
        if self._mode and shutil.which("stty"):
            self._watcher = subprocess.Popen(
                ["sh", "-c", _WATCHER], stdin=subprocess.PIPE, stdout=sys.stdin.fileno(),
                stderr=subprocess.PIPE, start_new_session=True,
            )  # fmt: skip
            assert self._watcher.stderr
            self._watcher.stderr.readline()  # it knows the mode now

    def restore(self) -> None:
        """Have the terminal show what is typed."""
        self._shows_keys = True
        self._set(self._mode, is_quiet=False)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Show what is typed while a line is read."""
        self.restore()
        try:
            yield
        finally:
            self._silence()

    def _continue(self, *_: object) -> None:
        """Go on after the program was stopped: the shell has set its own mode."""
        QuietTerminal.n_stops += 1
        if not self._shows_keys:
            self._silence()

    def _silence(self) -> None:
        self._shows_keys = False
        if self._mode and sys.platform != "win32":
            import termios

            silent = self._mode.copy()
            silent[0] &= ~termios.ICRNL  # Enter waits as the key that an input line knows
            silent[3] = (silent[3] | termios.NOFLSH) & ~(termios.ECHO | termios.ICANON)
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
