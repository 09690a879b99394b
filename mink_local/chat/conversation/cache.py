"""The KV caches of conversations on disk, so that one that is continued is not evaluated again."""

import logging
from pathlib import Path

from mink_local.chat.conversation.store import default_path
from mink_local.files import private_folder
from mink_local.generation.model import Model

MOST_BYTES = 2_000_000_000  # of all files
_LEAST_TOKENS = 256  # fewer are evaluated as fast as a file is read

log = logging.getLogger("mink_local")


def save(model: Model, conversation: int) -> None:
    """Write what a model holds of a conversation; delete the oldest files beyond `MOST_BYTES`."""
    path = _path(conversation)
    try:
        private_folder(path.parent)
        if model.n_cached >= _LEAST_TOKENS and model.save_cache(path, MOST_BYTES):
            _make_room(path.parent)
    except OSError as error:  # the conversation goes on without
        log.info("%s", error)


def load(model: Model, conversation: int) -> None:
    """Fill a model's KV cache with a conversation, as far as its file fits."""
    path = _path(conversation)
    if path.exists() and model.load_cache(path):
        path.touch()


def forget(conversation: int) -> None:
    """Delete what is kept of a conversation."""
    _path(conversation).unlink(missing_ok=True)


def _path(conversation: int) -> Path:
    return default_path().parent / "kv" / f"{conversation}.kv"


def _make_room(folder: Path) -> None:
    """Delete files until the newest ones take no more than `MOST_BYTES`."""
    newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    size = 0
    for path in newest_first:
        size += path.stat().st_size
        if size > MOST_BYTES:
            path.unlink()
