"""A chat in a terminal that a test types into: pexpect for the keys, pyte for the screen."""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import pexpect
import pyte

MINK_CHAT = ("-m", "mink_local.chat")
_PROMPT_BEGINS = "\x1b[?2004h"  # bracketed paste is switched on for every input line


class Terminal:
    """`mink-chat` in a terminal, from its first prompt on.

    Args:
        arguments: Of the program.
        rows: Of the terminal.
        columns: Of the terminal.
        plain: The prompt is Python's own: only the screen shows it.
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
        self._screen = pyte.HistoryScreen(columns, rows, history=2000)
        self._stream = pyte.Stream(self._screen)
        self.raw = ""
        self.child = pexpect.spawn(
            sys.executable, [*program, "--threads", "1", *arguments],
            encoding="utf-8", codec_errors="replace", dimensions=(rows, columns),
            env={**os.environ, "TERM": "xterm-256color", **env},
        )  # fmt: skip
        self._screen.write_process_input = self.child.send
        if waits:
            self.until(lambda: self.screen.endswith("\n>") if plain else _PROMPT_BEGINS in self.raw)

    @property
    def text(self) -> str:
        """All rows that are or were on the screen."""
        columns = range(self._screen.columns)
        history = ["".join(row[x].data for x in columns) for row in self._screen.history.top]
        return "\n".join(line.rstrip() for line in [*history, *self._screen.display])

    @property
    def screen(self) -> str:
        """The rows that are on the screen now."""
        return "\n".join(line.rstrip() for line in self._screen.display).rstrip()

    def until(self, condition: Callable[[], bool], seconds: float = 30) -> None:
        """Read output until the condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"timed out; the screen:\n{self.text}"
            self._read()

    def _read(self) -> None:
        try:
            data = self.child.read_nonblocking(65536, timeout=0.1)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.raw += data
        self._stream.feed(data)

    def settle(self, seconds: float = 0.3) -> None:
        """Read output for so many seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._read()

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def say(self, text: str) -> str:
        """Type a line; return what is shown until the next prompt."""
        return self.until_prompt(lambda: self.send(text + "\r"))

    def until_prompt(self, act: Callable[[], None]) -> str:
        before, prompts = len(self.text.rstrip()), self.raw.count(_PROMPT_BEGINS)
        act()
        self.until(lambda: self.raw.count(_PROMPT_BEGINS) > prompts)
        self.settle(0.05)
        return self.text[before:]

    def resize(self, rows: int, columns: int) -> None:
        self._screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)

    def leave(self) -> int:
        """Leave by Ctrl-D; returns the exit status."""
        self.send("\x04")
        return self.ended()

    def ended(self) -> int:
        """Wait for the end; returns the exit status."""
        self.until(lambda: not self.child.isalive())
        return int(self.child.exitstatus)

    def close(self) -> None:
        if self.child.isalive():  # pexpect itself waits a tenth of a second for a process that it kills
            self.child.kill(signal.SIGKILL)
            self.child.wait()
        self.child.close()
