"""Windows' manners on other systems: a file that is open can be neither renamed, replaced nor removed."""

import os
from collections.abc import Callable
from typing import Any

import psutil


def refuse_open_files(set_attribute: Callable[[Any, str, Any], None] = setattr) -> None:
    """Have functions of `os` refuse files and folders that this process has open, or on Linux mapped.

    Args:
        set_attribute: Sets an attribute, as `setattr` does; a test passes `monkeypatch.setattr`.
    """
    for name, n_paths in (("replace", 2), ("rename", 2), ("unlink", 1), ("remove", 1), ("rmdir", 1)):
        set_attribute(os, name, _refusing(getattr(os, name), n_paths))


def _refusing(function: Callable[..., Any], n_paths: int) -> Callable[..., Any]:
    def refuse(*paths: Any, **options: Any) -> Any:
        if all(option is None for option in options.values()):  # no dir_fd, which Windows lacks
            in_use = _files_in_use()
            for path in paths[:n_paths]:
                real = os.path.abspath(os.fsdecode(path))
                if any(file == real or file.startswith(real + os.sep) for file in in_use):
                    raise PermissionError(13, "The file is open in this process", str(path))
        return function(*paths, **options)

    return refuse


def _files_in_use() -> set[str]:
    files = {file.path for file in psutil.Process().open_files()}
    if os.path.exists("/proc/self/maps"):
        with open("/proc/self/maps", encoding="utf-8") as maps:
            files |= {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/" in line}
    return files
