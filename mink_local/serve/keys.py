"""API keys, and who has them: lines `NAME:KEY` or `KEY`, which are read again while the server runs."""

import hashlib
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from mink_local.files import regular
from mink_local.interrupts import handled
from mink_local.serve.request_log import log

_LINE = re.compile(r"(?![\w.-]+:$)(?:([\w.-]{1,64}):)?([!-~]+)", re.ASCII)


class Keys:
    """The API keys with the names of those who have them; a key without a name is called by its hash.

    SIGHUP has the file read again; on Windows, which has none, a change does. Without a file, or if the
    terminal is gone, SIGHUP ends the program.

    Args:
        given: Keys from the command line, each perhaps after `NAME:`.
        path: A file of more, one a line; `#` begins a comment.

    Raises:
        click.UsageError: The file cannot be read, or a key cannot be used.
    """

    def __init__(self, given: Sequence[str] = (), path: Path | None = None) -> None:
        self._given = given
        self._path = path
        self._names: dict[bytes, str] = {}
        self._had_terminal = _has_terminal()
        self._is_asked = False
        self._changed = self._file_time()
        self.reload()

    def __len__(self) -> int:
        return len(self._names)

    def reload(self) -> None:
        """Read the file again; if it cannot be used, nothing changes. Raises click.UsageError."""
        names = {}
        for place, text in [*(("--api-key", text) for text in self._given), *self._lines()]:
            match = _LINE.fullmatch(text)
            if match is None:
                raise click.UsageError(
                    f"{place}: an API key is empty, or has spaces or characters outside ASCII: "
                    "write KEY or NAME:KEY with another key"
                )
            digest = _digest(match[2])
            names[digest] = match[1] or f"key-{digest.hex()[:6]}"
        if self._path is not None and not names:
            raise click.UsageError(f"{self._path} has no API key: write one a line")
        self._names = names

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the file that are no comments, each with its place."""
        if self._path is None:
            return
        try:
            lines = regular(self._path).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"{self._path} cannot be read: {error}") from None
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                yield f"{self._path}, line {number}", line

    def name_of(self, key: str) -> str | None:
        """Return the name of who has a key; None if nobody has it."""
        return self._names.get(_digest(key))

    @contextmanager
    def on_hang_up(self) -> Iterator[None]:
        """Hear SIGHUP in this block, unless it is ignored, as by nohup, and there is no file."""
        signals = [signal.SIGHUP] if hasattr(signal, "SIGHUP") else []
        if self._path is None and signals and signal.getsignal(signals[0]) == signal.SIG_IGN:
            signals = []
        with handled(signals, lambda *_: setattr(self, "_is_asked", True)):
            yield

    def look(self, end: Callable[[], object]) -> None:
        """Do what was asked for, which may be to call `end`; called now and then."""
        if not hasattr(signal, "SIGHUP"):
            before, self._changed = self._changed, self._file_time()
            self._is_asked = self._changed not in (before, 0)
        is_asked, self._is_asked = self._is_asked, False
        if is_asked and (self._path is None or (self._had_terminal and not _has_terminal())):
            end()
        elif is_asked:
            try:
                self.reload()
                log.info("read the API keys again: %d", len(self))
            except click.UsageError as error:
                log.error("the API keys stay as they are: %s", error)

    def _file_time(self) -> int:
        """Return when the file was changed; 0 if there is none."""
        with suppress(OSError):
            return self._path.stat().st_mtime_ns if self._path else 0
        return 0


def _digest(key: str) -> bytes:
    """Return a hash, so that the time of a comparison reveals nothing of a key."""
    return hashlib.sha256(key.encode()).digest()


def _has_terminal() -> bool:
    """Return whether the program is controlled by a terminal."""
    with suppress(OSError), open("/dev/tty", encoding="utf-8"):
        return True
    return False
