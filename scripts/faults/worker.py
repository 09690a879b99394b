"""The process in which cases are done: it may die or hang, and `scripts.faults.torture` sees that."""

import os
import pkgutil
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from mink_local.sandbox import serve
from scripts.faults.kind import FaultError


def _make_user(folder: Path) -> None:
    """Give this process and its children a user's folders of their own."""
    for name in [name for name in os.environ if name.startswith(("MINK_", "HF_"))]:
        del os.environ[name]
    for name in ("HOME", "USERPROFILE", "HF_HOME"):
        os.environ[name] = str(folder)
    for kind in ("DATA", "CONFIG", "CACHE"):
        os.environ[f"XDG_{kind}_HOME"] = str(folder / kind.lower())
    folder.mkdir(parents=True, exist_ok=True)


def begin(first: tuple[str, str]) -> Callable[[Any], Any]:
    """Begin a kind of faults, given by the name of its function and by the folder of this process."""
    name, folder = first[0], Path(first[1])
    _make_user(folder / "user")
    do = pkgutil.resolve_name(name)(folder)

    def answer(question: tuple[str, str]) -> tuple[str, str | None, str]:
        """Return the outcome of a case, the sort of its fault or None, and the fault in words."""
        case, own = question[0], Path(question[1])
        own.mkdir(parents=True)
        try:
            return do(Random(case), own), None, ""
        except FaultError as error:
            return error.sort, error.sort, str(error)
        except BaseException:
            return "death", "death", traceback.format_exc()

    return answer


if __name__ == "__main__":
    serve(begin)
    os._exit(0)  # also if a server of the cases still has a thread
