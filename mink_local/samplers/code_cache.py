"""Numba's cache of compiled code on disk, of which nothing that is wrong ends a program.

A crash or a full disk leaves files that are cut or full of zeros, which Numba would run or fail on, at every
start. Here such code is compiled again.
"""

import hashlib
import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

from numba import config
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)

log = logging.getLogger("mink_local")

_SEAL_BYTES = 32


_warned = Event()


def _warn_once(folder: str, what: str) -> None:
    if not _warned.is_set():
        log.warning("the compiled samplers in %s cannot be %s", folder, what)
    _warned.set()


class _Sealed(IndexDataCacheFile):  # type: ignore[misc]
    """Numba's files of a function's code: each has a hash at its end, and says which types the code is for.

    Two processes that compile a function for different types at once may write to the same file.
    """

    def save(self, key: Any, data: Any) -> None:
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        found, data = super().load(key) or (None, None)
        return data if found == key else None

    def _dump(self, obj: Any) -> bytes:
        data = super()._dump(obj)
        return bytes(data + hashlib.sha256(data).digest())  # what follows a pickle is not read

    def _load_data(self, name: str) -> Any:
        sealed = Path(self._data_path(name)).read_bytes()
        data = sealed[:-_SEAL_BYTES]
        if hashlib.sha256(data).digest() != sealed[-_SEAL_BYTES:]:
            raise ValueError(f"{name} is damaged")
        return pickle.loads(data)


class _InFolder(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (UserProvidedCacheLocator,)  # and no other folder, which may not be private


class _CodeCache(FunctionCache):  # type: ignore[misc]
    """The cache of a function's code: what cannot be read or written is not there, with one warning."""

    _impl_class = _InFolder

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        source = self._impl.locator.get_source_stamp()
        self._cache_file = _Sealed(self._cache_path, self._impl.filename_base, source)

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the code for some types, or None."""
        try:
            return super().load_overload(signature, context)
        except Exception as error:
            _warn_once(self._cache_path, f"read ({error}): they are compiled again")
            with suppress(OSError):
                self.flush()
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Write the code for some types."""
        try:
            super().save_overload(signature, data)
        except Exception as error:
            _warn_once(self._cache_path, f"written ({error}): every start compiles them")


def use_cache(dispatcher: Any) -> None:
    """Have what a Numba dispatcher compiles kept in `config.CACHE_DIR`, if that is possible."""
    try:
        dispatcher._cache = _CodeCache(dispatcher.py_func)
    except (OSError, RuntimeError) as error:
        _warn_once(config.CACHE_DIR, f"written ({error}): every start compiles them")
