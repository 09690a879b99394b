"""Keep what is typed while an answer comes for the next input line, and out of the answer.

The terminal does that by itself on Windows, where only what a program reads is shown.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

ReadLine = Callable[[str], str]


@contextmanager
def unechoed(read: ReadLine, *, key_by_key: bool) -> Iterator[ReadLine]:
    """Have the terminal keep what is typed, also after Ctrl-C, and show it only while a line is read.

    Args:
        read: Reads a line from the terminal.
        key_by_key: What is typed while no line is read can be had before Enter is pressed.

    Yields:
        `read`, to be called in its place. If standard input is no terminal, that is all.
    """
    if sys.platform == "win32" or (as_it_was := _mode()) is None:
        yield read
    else:
        import termios

        terminal = sys.stdin.fileno()
        silent = as_it_was.copy()
        silent[3] = (as_it_was[3] | termios.NOFLSH) & ~termios.ECHO
        if key_by_key:
            silent[0] = as_it_was[0] & ~termios.ICRNL  # Enter and Ctrl-J are two keys
            silent[3] &= ~termios.ICANON
        is_reading = False

        def set_mode(mode: list[Any]) -> None:
            with suppress(OSError, termios.error):  # the terminal is closed, or not ours to control
                if os.tcgetpgrp(terminal) == os.getpgrp():  # a program in the background would be stopped
                    termios.tcsetattr(terminal, termios.TCSANOW, mode)

        def silence(*_: object) -> None:
            if not is_reading:
                set_mode(silent)

        def read_echoed(default: str) -> str:
            nonlocal is_reading
            is_reading = True
            set_mode(as_it_was)
            try:
                return read(default)
            finally:
                is_reading = False
                silence()

        silence()
        before = signal.signal(signal.SIGCONT, silence)  # after Ctrl-Z the shell has set a mode of its own
        try:
            yield read_echoed
        finally:
            signal.signal(signal.SIGCONT, before or signal.SIG_DFL)
            set_mode(as_it_was)


def _mode() -> list[Any] | None:
    """Return the mode of the terminal that standard input is, or None if there is none."""
    if sys.platform != "win32":
        with suppress(ImportError, OSError):
            import termios

            if os.isatty(sys.stdin.fileno()):
                return termios.tcgetattr(sys.stdin.fileno())
    return None
