"""Windows' manners on other systems: a file that is open can be neither renamed nor removed."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest


def refuse_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `os.replace`, `os.rename`, `os.remove` and `os.unlink` refuse files that this process has open."""
    for name in ("replace", "rename", "remove", "unlink"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name)))


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    def refuse(*arguments: Any, **options: Any) -> Any:
        opened = {file.path for file in psutil.Process().open_files()}
        for argument in arguments:
            if str(Path(argument).absolute()) in opened:
                raise PermissionError(13, "The process cannot access the file: it is open", str(argument))
        return function(*arguments, **options)

    return refuse
