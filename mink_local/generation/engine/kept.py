"""KV caches on disk: those of ended conversations, for prompts that begin with them."""

import hashlib
import hmac
import logging
import os
import secrets
import sys
import time
from array import array
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import ModelError
from mink_local.files import make_room, private_folder, replaced, user_folder
from mink_local.generation.engine.decoding import CacheFile
from mink_local.generation.engine.slots import CONTINUED, Slot, reusable
from mink_local.llama.context import Context, head_of

LEAST_TOKENS = 256  # fewer are evaluated as fast as a file is read
MOST_BESIDE = 256 << 20  # bytes that are copied while others are being answered: well under a second
_SECRET = "secret"  # the name of its file
_SIZE = 32  # bytes of the secret, and of a seal
_TAG = 16  # letters of a file's name that tell its settings, its client, and which it is
_NAMES = "-".join(["?" * _TAG] * 3) + ".kv"
_OTHERS_WRITE = 0o022
_DAY = 86400.0  # seconds

log = logging.getLogger("mink_local")


class _Held(NamedTuple):
    """What a file holds: token ids, and where there are checkpoints; None if the model can rewind."""

    tokens: "array[int]"
    places: Sequence[int] | None

    def reusable(self, tokens: "array[int]") -> int:
        return reusable(self.tokens, tokens, self.places)


class CacheFiles:
    """Files with KV caches of a context, which nobody can make without a secret.

    A file that is damaged, of another client, sealed with another secret, or written with another model file,
    `kv_type`, number of slots or build of llama.cpp is not read.

    Args:
        context: The context.
        secret: Seals the files.
    """

    def __init__(self, context: Context, secret: bytes) -> None:
        self._secret = secret
        self._key = hashlib.blake2b(context.settings, key=secret).digest()
        self.settings = self._key.hex()[:_TAG]

    def tag(self, client: str) -> str:
        """Return what stands for a client in names of files."""
        return hashlib.blake2b(client.encode(), key=self._secret).hexdigest()[:_TAG]

    def write(self, path: Path, snapshot: bytearray, client: str = "") -> None:
        """Write a snapshot, whole or not at all, to a file that its owner alone can read. Raises OSError."""
        with replaced(path) as unfinished, unfinished.open("xb") as file:
            unfinished.chmod(0o600)
            file.write(snapshot)
            file.write(self._seal(snapshot, client))

    def read(self, path: Path, client: str = "") -> NDArray[np.uint8] | None:
        """Return the snapshot in a file; None if it is not one of a client's for this context."""
        with suppress(OSError):
            data = np.fromfile(path, np.uint8)
            snapshot, seal = data[:-_SIZE], data[-_SIZE:]
            if hmac.compare_digest(seal.tobytes(), self._seal(snapshot, client)):
                return snapshot
        return None

    def _seal(self, snapshot: Any, client: str) -> bytes:
        key = hashlib.blake2b(client.encode(), key=self._key).digest()
        return hashlib.blake2b(snapshot, digest_size=_SIZE, key=key).digest()


class KeptCaches:
    """KV caches in a folder, which a thread writes; a client finds only its own.

    Args:
        folder: The folder, see `own_folder`; its files can be read by their owner alone.
        most_bytes: Size of all files; the oldest are deleted.
        context: The context that the caches are for.
        days: How long files are kept that are not used.

    Attributes:
        n_other: Number of files for other settings.

    Raises:
        ModelError: Others can write to the folder.
        OSError: The folder cannot be read or made.
    """

    def __init__(self, folder: Path, most_bytes: int, context: Context, days: float = 30.0) -> None:
        self._folder = own_folder(folder)
        self._most_bytes = most_bytes
        self._context = context
        self._days = days
        self._files = CacheFiles(context, _secret_in(folder))
        self._held: dict[Path, _Held] = {}
        self._drop_old()
        ours = [*folder.glob(f"{self._files.settings}-*.kv")]
        self.n_other = len([*folder.glob(_NAMES)]) - len(ours)
        self._held = {path: _held_in(path, context) for path in ours}
        self._writer = ThreadPoolExecutor(1, "kept caches")
        self._writing: Future[None] = self._writer.submit(lambda: None)

    def find(self, tokens: Sequence[int], n_cached: int, client: str = "") -> CacheFile | None:
        """Return a client's file with the longest beginning of a prompt.

        None if there is none that is worth reading for a prompt of which `n_cached` tokens need not be
        evaluated anyway. May be called from any thread.
        """
        wanted = array("i", tokens)
        lengths = {path: found.reusable(wanted) for path, found in self._of(client).items()}
        path = max(lengths, key=lambda path: lengths[path], default=None)
        if path is None or lengths[path] < n_cached + LEAST_TOKENS:
            return None
        with suppress(OSError):  # another server may delete it
            return CacheFile(path, lengths[path], path.stat().st_size)
        self._held.pop(path, None)
        return None

    def _of(self, client: str) -> dict[Path, _Held]:
        beginning = f"{self._files.settings}-{self._files.tag(client)}-"
        return {path: found for path, found in [*self._held.items()] if path.name.startswith(beginning)}

    def read(self, path: Path, client: str = "") -> NDArray[np.uint8] | None:
        """Return the snapshot in a file that was found; None if it is damaged or gone."""
        snapshot = self._files.read(path, client)
        if snapshot is None:
            log.warning("%s is damaged or gone: it is not read", path)
            self._held.pop(path, None)
        else:
            with suppress(OSError):
                os.utime(path)
        return snapshot

    def keep(self, slot: Slot, *, waits: bool = False) -> None:
        """Copy the cache of a slot of the context, and have it written; called in the engine's thread.

        While another is being written, this one is lost, unless the thread waits for that.
        """
        kept = _Held(slot.tokens[:], None if self._context.can_rewind else [*slot.checkpoints])
        n_kept = len(kept.tokens)
        is_known = any(found.reusable(kept.tokens) == n_kept for found in self._of(slot.client).values())
        if waits:
            wait([self._writing])
        can_keep = self._writing.done() and self._context.is_copied(slot.seq_id)
        if can_keep and not is_known and n_kept >= LEAST_TOKENS:
            self._writing = self._writer.submit(self._write, kept, slot.snapshot(), slot.client)

    def _write(self, kept: _Held, data: bytearray, client: str) -> None:
        """Write a file; delete those that it continues, and the oldest ones beyond the limit."""
        name = f"{self._files.settings}-{self._files.tag(client)}-{secrets.token_hex(_TAG // 2)}.kv"
        path = self._folder / name
        try:
            self._files.write(path, data, client)
            for old, found in self._of(client).items():
                if kept.reusable(found.tokens) >= CONTINUED * len(found.tokens):
                    old.unlink(missing_ok=True)
            self._held[path] = kept
            make_room(self._folder.glob(_NAMES), self._most_bytes)
            self._drop_old()
        except OSError as error:
            log.warning("a KV cache is not kept: %s", error)
        self._drop_gone()

    def keep_only(self, clients: Iterable[str]) -> None:
        """Delete the files of all others than some clients."""
        tags = {self._files.tag(client) for client in clients}
        for path in self._folder.glob(_NAMES):
            if path.stem.split("-")[1] not in tags:
                path.unlink(missing_ok=True)
        self._drop_gone()

    def _drop_old(self) -> None:
        for path in self._folder.glob(_NAMES):
            with suppress(OSError):
                if path.stat().st_mtime < time.time() - self._days * _DAY:
                    path.unlink()

    def _drop_gone(self) -> None:
        self._held = {path: found for path, found in [*self._held.items()] if path.exists()}

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown()


def own_folder(folder: Path) -> Path:
    """Return a folder to which nobody else can write; it is made if it is missing.

    Raises:
        ModelError: Others can write to it.
        OSError: It cannot be read or made.
    """
    found = private_folder(folder).stat()
    if sys.platform != "win32" and (found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE):
        raise ModelError(
            f"others can write to the folder {folder}: make it yours alone (chmod 700), or choose another"
        )
    next(folder.iterdir(), None)
    return folder


def user_files(context: Context) -> CacheFiles:
    """Return the files with caches of a context that the user's programs can read. Raises OSError."""
    return CacheFiles(context, _secret_in(private_folder(user_folder("cache"))))


def _secret_in(folder: Path) -> bytes:
    """Return the secret in a folder, which is made if there is none. Raises OSError."""
    path = folder / _SECRET
    with suppress(FileNotFoundError):
        if len(secret := path.read_bytes()) == _SIZE:
            return secret
    secret = secrets.token_bytes(_SIZE)
    with replaced(path) as unfinished:
        unfinished.touch(0o600)
        unfinished.write_bytes(secret)
    return secret


def _held_in(path: Path, context: Context) -> _Held:
    """Return what a file for a context holds; see `Context.snapshot`."""
    tokens, places = head_of(np.fromfile(path, np.int32, 2 * context.n_ctx + 2))
    return _Held(array("i", tokens), None if context.can_rewind else places)
