"""A chat in a terminal that a test types into: pexpect for the keys, pyte for the screen."""

import copy
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pexpect
import pyte

MINK_CHAT = ("-m", "mink_local.chat")
_ALTERNATE_SCREEN = 1049


class Cell(NamedTuple):
    """A character on the screen; its colour is a name, six hexadecimal digits, or "default"."""

    text: str
    colour: str
    is_bold: bool


class _Screen(pyte.HistoryScreen):  # type: ignore[misc]
    """A screen with an alternate one, which pyte does not have."""

    buffer: Any
    cursor: Any

    def set_mode(self, *modes: int, **kwargs: Any) -> None:
        super().set_mode(*modes, **kwargs)
        if _ALTERNATE_SCREEN in modes:
            self._main = copy.deepcopy(self.buffer), copy.copy(self.cursor), len(self.history.top)
            self.erase_in_display(2)

    def reset_mode(self, *modes: int, **kwargs: Any) -> None:
        if _ALTERNATE_SCREEN in modes and self.has_mode(_ALTERNATE_SCREEN):
            self.buffer, self.cursor, rows = self._main
            while len(self.history.top) > rows:
                self.history.top.pop()
        super().reset_mode(*modes, **kwargs)

    def has_mode(self, mode: int) -> bool:
        """Whether a private mode is set; pyte shifts their numbers."""
        return mode << 5 in self.mode


class Terminal:
    """`mink-chat` in a terminal, from its first prompt on.

    Args:
        arguments: Of the program.
        rows: Of the terminal.
        columns: Of the terminal.
        plain: The terminal is dumb.
        program: What Python is given to run the program.
        waits: Wait for the first prompt.
        env: Variables besides those of this process.
    """

    def __init__(
        self,
        *arguments: str,
        rows: int = 24,
        columns: int = 80,
        plain: bool = False,
        program: Sequence[str] = MINK_CHAT,
        waits: bool = True,
        **env: str,
    ) -> None:
        self._is_plain = plain
        self._screen = _Screen(columns, rows, history=2000)
        self._stream = pyte.Stream(self._screen)
        self._has_ended = False
        self.raw = ""
        # Readline exports the size of pytest's own terminal to the workers of xdist.
        outer = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.child = pexpect.spawn(
            sys.executable, [*program, "--threads", "1", *arguments],
            encoding="utf-8", codec_errors="replace", dimensions=(rows, columns),
            env={**outer, "TERM": "xterm-256color", **env},
        )  # fmt: skip
        self._screen.write_process_input = self.child.send
        self._prompt = -1  # row of the newest prompt: tells one from the next, however often each is drawn
        if waits:
            self.until(lambda: self._prompt >= 0)

    @property
    def text(self) -> str:
        """All rows that are or were on the screen."""
        columns = range(self._screen.columns)
        history = ["".join(row[x].data for x in columns) for row in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*history, *self._screen.display])

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows that are on the screen now, character by character."""
        rows, columns = range(self._screen.lines), range(self._screen.columns)
        at = self._screen.buffer
        return [[Cell(at[y][x].data, at[y][x].fg, at[y][x].bold) for x in columns] for y in rows]

    @property
    def screen(self) -> str:
        """The rows that are on the screen now."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def _prompt_row(self) -> int:
        """Return the index in `text` of the first row of the input line that is read, -1 if none is."""
        row, has_mode = self._screen.cursor.y, self._screen.has_mode
        if self._is_plain:
            is_read = self._screen.display[row].rstrip() == ">" and self._screen.cursor.x == 2
        else:
            import termios  # not on Windows, where these tests are skipped

            flags = termios.tcgetattr(self.child.child_fd)[
                3
            ]  # of the input line, which reads Ctrl-C as a key
            is_read = not flags & termios.ISIG and not has_mode(_ALTERNATE_SCREEN)
            while row and self._screen.display[row].startswith("  "):
                row -= 1
        is_prompt = is_read and self._screen.display[row].startswith("> ")
        return len(self._screen.history.top) + row if is_prompt else -1

    def until(self, condition: Callable[[], object], seconds: float = 60) -> None:
        """Read output until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"timed out; the screen:\n{self.text}"
            self._read()

    def until_shown(self, pattern: str) -> None:
        """Read output until the screen matches."""
        self.until(lambda: re.search(pattern, self.screen))

    def _read(self) -> None:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.1)
        except pexpect.TIMEOUT:
            return
        except pexpect.EOF:
            self._has_ended = True
            return
        self.raw += data
        self._stream.feed(data)
        self._prompt = max(self._prompt, self._prompt_row())

    def settle(self, seconds: float = 0.3) -> None:
        """Read output for so many seconds, in which something must not happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read()

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def press(self, keys: str) -> str:
        """Send keys that end a line or a run; return the rows from the last prompt to the next."""
        before = self._prompt
        self.send(keys)
        self.until(lambda: self._prompt > before)
        return "\n".join(self.text.split("\n")[max(before, 0) :])

    def say(self, text: str) -> str:
        """Type a line; return what is shown until the next prompt."""
        return self.press(text + "\r")

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def leave(self) -> int:
        """Leave by Ctrl-D; returns the exit status."""
        self.send("\x04")
        return self.ended()

    def ended(self) -> int:
        """Read all that is left until the program ends; returns its exit status, or minus the signal."""
        self.until(lambda: self._has_ended)
        self.child.wait()
        return -self.child.signalstatus if self.child.signalstatus else int(self.child.exitstatus)

    def close(self) -> None:
        if self.child.isalive():  # pexpect itself waits a tenth of a second for a process that it kills
            self.child.kill(signal.SIGKILL)
            self.child.wait()
        self.child.close()
