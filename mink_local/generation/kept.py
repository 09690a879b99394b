"""KV caches on disk: those of ended conversations, for prompts that begin with them."""

import logging
import os
import secrets
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

import numpy as np

from mink_local.files import make_room, private_folder
from mink_local.generation.slots import CONTINUED, common_prefix
from mink_local.llama.context import Context

LEAST_TOKENS = 256  # fewer are evaluated as fast as a file is read
MOST_BESIDE = 256 << 20  # bytes that are copied while others are being answered: well under a second
_NAMES = f"{'?' * 16}-{'?' * 16}.kv"

log = logging.getLogger("mink_local")


class KeptCaches:
    """KV caches in a folder, which a thread writes.

    Their files are sealed: one that is damaged, or of another model file, `kv_type` or llama.cpp build, is
    not read.

    Args:
        folder: The folder; its files can be read by their owner alone.
        most_bytes: Size of all files; the oldest are deleted.
        context: The context that the caches are for.

    Raises:
        OSError: The folder cannot be read or made.
    """

    def __init__(self, folder: Path, most_bytes: int, context: Context) -> None:
        self._folder = private_folder(folder)
        self._most_bytes = most_bytes
        self._context = context
        self._prefix = context.seal(b"").hex()[:16]  # of the files for this model, type and build
        self._tokens = {path: _tokens_of(path, context.n_ctx) for path in folder.glob(f"{self._prefix}-*.kv")}
        self._writer = ThreadPoolExecutor(1, "kept caches")
        self._writing: Future[None] = self._writer.submit(lambda: None)

    def find(self, tokens: Sequence[int], n_cached: int) -> tuple[Path, int, int] | None:
        """Return the file with the longest beginning of a prompt, how many tokens that has, and its bytes.

        None if there is none that is worth reading for a prompt of which `n_cached` tokens need not be
        evaluated anyway. May be called from any thread.
        """
        wanted = array("i", tokens)
        lengths = {path: common_prefix(found, wanted) for path, found in [*self._tokens.items()]}
        path = max(lengths, key=lambda path: lengths[path], default=None)
        if path is None or lengths[path] < n_cached + LEAST_TOKENS:
            return None
        with suppress(OSError):  # another server may delete it
            if self._context.is_sealed(path):
                os.utime(path)
                return path, lengths[path], path.stat().st_size
        log.warning("%s is damaged or gone: it is not read", path)
        self._tokens.pop(path, None)
        return self.find(tokens, n_cached)

    def keep(self, tokens: Sequence[int], seq_id: int, *, waits: bool = False) -> None:
        """Copy a sequence of the context, and have it written; called in the engine's thread.

        While another is being written, this one is lost, unless the thread waits for that.
        """
        kept = array("i", tokens)
        is_known = any(common_prefix(found, kept) == len(kept) for found in self._tokens.values())
        if waits:
            wait([self._writing])
        can_keep = self._writing.done() and self._context.is_copied(seq_id)
        if can_keep and not is_known and len(kept) >= LEAST_TOKENS:
            data = self._context.snapshot(kept, seq_id)
            self._writing = self._writer.submit(self._write, kept, data)

    def _write(self, tokens: "array[int]", data: bytearray) -> None:
        """Write a file; delete those that it continues, and the oldest ones beyond the limit."""
        path = self._folder / f"{self._prefix}-{secrets.token_hex(8)}.kv"
        try:
            self._context.save(path, data)
            for old, found in [*self._tokens.items()]:
                if common_prefix(found, tokens) >= CONTINUED * len(found):
                    old.unlink(missing_ok=True)
            self._tokens[path] = tokens
            make_room(self._folder.glob(_NAMES), self._most_bytes)
        except OSError as error:
            log.warning("a KV cache is not kept: %s", error)
        self._tokens = {path: found for path, found in self._tokens.items() if path.exists()}

    def close(self) -> None:
        """Wait until everything is written."""
        self._writer.shutdown()


def _tokens_of(path: Path, most: int) -> "array[int]":
    """Return the token ids in a file, at most `most`."""
    found = np.fromfile(path, np.int32, most + 1)
    return array("i", found[1 : 1 + max([0, *found[:1]])].tolist())
