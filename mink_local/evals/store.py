"""A measurement's folder: a lock, a manifest, rows as JSON lines, and atomically replaced files.

`Store.append` passes a line to the OS before it returns: a killed process loses only the rows being measured.
A partial line, left by a kill or a full disk, is removed when measuring next begins.

The manifest has one rule: what is added is measured, what is changed is refused. It is written with the first
row, so that a start that fails or is refused changes nothing. Settings are nested dicts.
New dicts, such as another model, are added; a changed value is refused, because it would mix rows that cannot
be compared. A missing value is None, in the settings and in the manifest.
"""

import json
import logging
import os
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Generic, Protocol, TypeVar

import msgspec

from mink_local.errors import RunError
from mink_local.files import locked, read_record, regular, write_atomic
from mink_local.version import __version__

MANIFEST, ROWS = "manifest.json", "rows.jsonl"
FORMAT = 1
_PLACES = ("path", "data")  # file locations on this machine: they may change, and reports omit them
_MAY_CHANGE = (*_PLACES, "data_sha256")  # questions are compared one by one
_LOCK = ".lock"
_NOTHING: tuple[Any, ...] = (None, [])  # what is not given
_SHOWN = 5  # problems listed in a message

log = logging.getLogger("mink_local")


class Keyed(Protocol):
    """A row of a measurement: a dataclass or msgspec struct with a key."""

    @property
    def key(self) -> Hashable: ...


R = TypeVar("R", bound=Keyed)


@contextmanager
def as_run_error(path: Path, done: str = "written") -> Iterator[None]:
    """Turn an OSError into a RunError that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be {done}: {error.strerror or error}") from None


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file atomically, creating its folder if missing. Raises RunError."""
    with as_run_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)


def versions() -> dict[str, str]:
    """Return the versions of the software that results depend on."""
    from mink_local.llama.library import binding

    return {
        "mink-local": __version__,
        "llama-cpp-python": binding.__version__,  # one that was not installed by pip has no metadata
        "llama.cpp": binding.llama_version().decode(),
    }


def to_line(row: object) -> bytes:
    """Return a row as a line of JSON with its line break. Raises ValueError for NaN and infinities."""
    return json.dumps(msgspec.to_builtins(row), separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _parse(line: bytes) -> Any:
    """Parse a line of JSON. Raises ValueError, which says what is wrong."""
    try:
        return json.loads(line, parse_constant=int)  # which refuses NaN and Infinity
    except (ValueError, RecursionError):
        raise ValueError("not JSON" if line.endswith(b"\n") else "cut short") from None


@dataclass
class Rows(Generic[R]):
    """Rows by key.

    Attributes:
        problems: A sentence for every line that was skipped, with its file and number.
    """

    by_key: dict[Hashable, R] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def read(self, path: Path, kind: type[R], check: Callable[[R], str | None] = lambda _: None) -> None:
        """Add the rows of a file, if it exists; `check` returns why a row does not belong, or None.

        Raises RunError if the file cannot be read.
        """
        if not path.exists():
            return
        with as_run_error(path, "read"), regular(path).open("rb") as stream:
            for number, line in enumerate(stream, start=1):  # only \n ends a line; JSON may contain U+2028
                problem = self._add(line, kind, check) if line.strip() else None
                if problem is not None:
                    self.problems.append(f"{path.name}, line {number}: {problem}")

    def _add(self, line: bytes, kind: type[R], check: Callable[[R], str | None]) -> str | None:
        """Add a line's row, or return what is wrong with it."""
        try:
            row = msgspec.convert(_parse(line), kind)
        except (msgspec.ValidationError, ValueError) as error:
            return str(error)
        problem = "an earlier line has the same key" if row.key in self.by_key else check(row)
        if problem is None:
            self.by_key[row.key] = row
        return problem

    @property
    def left_out(self) -> str | None:
        """A sentence about the skipped lines; None if there are none."""
        if not self.problems:
            return None
        n = len(self.problems)
        named = "; ".join(self.problems[:_SHOWN]) + (f"; and {n - _SHOWN} more" if n > _SHOWN else "")
        return f"{n} line{'s' * (n > 1)} skipped: {named}."


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a folder's manifest; empty if missing or damaged."""
    return read_record(folder / MANIFEST)


def public(value: Any) -> Any:
    """Return a manifest, or part of one, without file locations on this machine."""
    if isinstance(value, dict):
        return {key: public(part) for key, part in value.items() if not _is(_PLACES, key, part)}
    return [public(part) for part in value] if isinstance(value, list) else value


def _is(names: Sequence[str], key: str, value: Any) -> bool:
    """Return whether an entry is one of `names`, and not that of a task or model that has such a name."""
    return key in names and isinstance(value, str)


class Store(Generic[R]):
    """A measurement's folder, locked for this process; created if missing.

    Use it as a context manager.

    Args:
        folder: Path of the folder.
        measures: What is measured, such as "frontier"; another measurement's folder is refused.
        settings: What the rows depend on, as nested dicts: keys may be added, values may not change.
        rows: Name of the file that holds the rows.

    Attributes:
        manifest: Content of the manifest, which is on disk after `save`.
        found: Recorded rows, after `read`.

    Raises:
        RunError: The folder cannot be written, is in use, contains something else, or was created with other
            settings; the message lists every difference.
    """

    def __init__(
        self,
        folder: Path,
        measures: str,
        settings: Mapping[str, Any],
        *,
        rows: str = ROWS,
    ) -> None:
        self.folder, self.found = folder, Rows[R]()
        self._path = folder / rows
        self._stream: BinaryIO | None = None
        self._unwritten: dict[Path, str | bytes] = {}
        with ExitStack() as opened, as_run_error(folder):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                opened.enter_context(locked(folder / _LOCK, timeout=0))
            except TimeoutError:
                raise RunError(
                    f"another mink-eval is writing to {folder}: wait for it, or use another folder"
                ) from None
            self.manifest = self._read_manifest(measures)
            try:
                if self.manifest["measures"] != measures:
                    other = self.manifest["measures"]
                    raise RunError(f"{folder} contains results of mink-eval {other}: choose another folder")
                is_new = not (folder / MANIFEST).exists()
                self.agree(settings, learned=is_new)
            except (KeyError, TypeError, AttributeError, ValueError):
                raise RunError(
                    f"{folder / MANIFEST} is damaged: rename the folder, or choose another"
                ) from None
            self._opened = opened.pop_all()

    def __enter__(self) -> "Store[R]":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with as_run_error(self._path), self._opened:
            if error is None:
                self.save()
            if self._stream:
                os.fsync(self._stream.fileno())

    def read(self, read: Callable[[Path, Mapping[str, Any]], Rows[R]]) -> None:
        """Read the recorded rows, given the folder and the manifest, after removing a partial line."""
        if self._path.exists():
            with as_run_error(self._path):
                _mend(self._path)
        self.found = read(self.folder, self.manifest)
        if self.found.left_out:
            log.warning("%s: %s", self.folder, self.found.left_out)

    def append(self, row: R) -> None:
        """Append a row, after all that is not saved. Raises RunError, after which no more can be appended."""
        self.save()
        with as_run_error(self._path):
            if self._stream is None:
                self._stream = self._opened.enter_context(self._path.open("ab"))
            self._stream.write(to_line(row))
            self._stream.flush()
        self.found.by_key[row.key] = row

    def save(self) -> None:
        """Write the manifest, and the files to `keep`, as far as they have changed. Raises RunError."""
        while self._unwritten:
            path = next(iter(self._unwritten))
            write_file(path, self._unwritten[path])
            del self._unwritten[path]

    def keep(self, name: str, content: str | bytes) -> None:
        """Write a file with the next row, or when measuring ends."""
        self._unwritten[self.folder / name] = content

    def agree(self, settings: Mapping[str, Any], *, learned: bool = False) -> None:
        """Add settings to the manifest.

        Args:
            settings: Nested dicts.
            learned: Whether values may be missing in the manifest because they were not known.

        Raises:
            RunError: A setting differs; the message lists every difference.
        """
        differences: list[str] = []
        merged = _merged(self.manifest, settings, (), differences, learned)
        if differences:
            raise RunError(
                f"{self.folder} was created with other settings ({'; '.join(differences)}): "
                "use those settings, rename the folder, or choose another"
            )
        self.note(**merged)

    def note(self, **values: Any) -> None:
        """Set values in the manifest that may change."""
        self.manifest |= values
        self.keep(MANIFEST, json.dumps(self.manifest, indent=1) + "\n")

    def begin_session(self, **environment: Any) -> None:
        """Record a session's environment.

        Versions, threads, GPU layers and batches change the last bits of llama.cpp's sums: rows stay
        comparable, but are not bit-identical.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        session = {"started": started, **environment, "versions": versions()}
        self.note(sessions=[*self.manifest.get("sessions", []), session])

    def _read_manifest(self, measures: str) -> dict[str, Any]:
        """Return the manifest, or a new one for a new folder."""
        if (self.folder / MANIFEST).exists():
            manifest = read_manifest(self.folder)
            if manifest.get("format", FORMAT) != FORMAT:
                raise RunError(
                    f"{self.folder} was written by another version of mink-eval: rename it, or choose another"
                )
            return manifest
        there = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        if there:
            raise RunError(
                f"{self.folder} is not a mink-eval folder (it contains {there[0]}): rename it, or choose "
                "another"
            )
        return {"format": FORMAT, "measures": measures, "versions": versions(), "sessions": []}


def _merged(
    then: Mapping[str, Any],
    now: Mapping[str, Any],
    path: Sequence[str],
    differences: list[str],
    learned: bool,
) -> dict[str, Any]:
    """Return `then` with the additions in `now`; append changes to `differences`."""
    merged = dict(then)
    for key, value in now.items():
        here, was = (*path, key), then.get(key)
        is_new = was is None if learned else key not in then and isinstance(value, Mapping)
        if is_new or _is(_MAY_CHANGE, key, value) or was == value or (was in _NOTHING and value in _NOTHING):
            merged[key] = value
        elif isinstance(value, Mapping):
            merged[key] = _merged(then[key], value, here, differences, learned)
        else:
            differences.append(f"{' '.join(here)} was {_short(was)} and is {_short(value)}")
    return merged


def _short(value: Any) -> str:
    text = "not given" if value in _NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _mend(path: Path) -> None:
    """Remove a partial line from the end of the rows."""
    with regular(path).open("rb") as lines:
        last = b"".join(deque(lines, maxlen=1))
    if last and not last.endswith(b"\n"):
        log.warning("%s ends in the middle of a line: removing its last %d bytes", path, len(last))
        os.truncate(path, path.stat().st_size - len(last))
