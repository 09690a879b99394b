"""API keys, and who has them: lines `NAME:KEY` or `KEY`, which are read again when their file changes."""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from mink_local.files import as_text, regular
from mink_local.serve.request_log import log

_LINE = re.compile(r"(?![\w.-]+:$)(?:([\w.-]{1,64}):)?([!-~]+)", re.ASCII)
_OTHERS_READ = 0o004


class Keys:
    """The API keys with the names of those who have them; a key without a name is called by its hash.

    Args:
        given: Keys from the command line, each perhaps after `NAME:`.
        path: A file of more, one a line; `#` begins a comment.

    Attributes:
        changed: When the file that was read had been changed; None to have it read again.

    Raises:
        click.UsageError: The file cannot be read, or a key cannot be used.
    """

    def __init__(self, given: Sequence[str] = (), path: Path | None = None) -> None:
        self._given = given
        self._path = path
        self._names: dict[bytes, str] = {}
        self.changed: int | None = self._file_time()
        self.reload()
        if path is not None and os.name == "posix" and path.stat().st_mode & _OTHERS_READ:
            log.warning("all users of this machine can read the API keys in %s: chmod 600", path)

    def __len__(self) -> int:
        return len(self._names)

    @property
    def names(self) -> list[str]:
        """The names of those who have keys, sorted."""
        return sorted({*self._names.values()})

    def reload(self) -> None:
        """Read the file again; if it cannot be used, nothing changes. Raises click.UsageError."""
        names: dict[bytes, str] = {}
        for place, text in [*(("--api-key", text) for text in self._given), *self._lines()]:
            match = _LINE.fullmatch(text)
            if match is None:
                raise click.UsageError(
                    f"{place}: an API key is empty, or has spaces or characters outside ASCII: "
                    "write KEY or NAME:KEY with another key"
                )
            if match[1] and ":" in match[2]:
                raise click.UsageError(
                    f"{place}: with two colons it is unclear what is the name: write NAME:KEY, with a key "
                    "without colons"
                )
            digest = _digest(match[2])
            name = match[1] or f"key-{digest.hex()[:6]}"
            if names.setdefault(digest, name) != name:
                raise click.UsageError(f"{place}: {names[digest]} and {name} have the same key: change one")
        if self._path is not None and not names:
            raise click.UsageError(f"{self._path} has no API key: write one a line")
        self._names = names

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the lines of the file that are no comments, each with its place."""
        if self._path is None:
            return
        try:
            lines = as_text(regular(self._path).read_bytes()).splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.UsageError(f"{self._path} cannot be read: {reason}") from None
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith("#"):
                yield f"{self._path}, line {number}", line

    def name_of(self, key: str) -> str | None:
        """Return the name of who has a key; None if nobody has it."""
        return self._names.get(_digest(key))

    def look(self) -> bool:
        """Read the file again if it has changed; return whether that was done. Called now and then.

        A file that cannot be used changes nothing.
        """
        before, self.changed = self.changed, self._file_time()
        if self.changed == before:
            return False
        try:
            self.reload()
        except click.UsageError as error:
            log.error("the API keys stay as they are: %s", error)
            return False
        log.info("read the API keys again: %d", len(self))
        return True

    def _file_time(self) -> int:
        """Return when the file was changed; 0 if there is none."""
        with suppress(OSError):
            return self._path.stat().st_mtime_ns if self._path else 0
        return 0


def _digest(key: str) -> bytes:
    """Return a hash, so that the time of a comparison reveals nothing of a key."""
    return hashlib.sha256(key.encode()).digest()
