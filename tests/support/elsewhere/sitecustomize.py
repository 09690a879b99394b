"""Make this system look to mink_local like one without POSIX, whose open files cannot be renamed or removed.

Python runs this file at its start if its folder is on PYTHONPATH, so also in every child process. Other
packages and the standard library see what is there: they know how to live on other systems. mink_local
cannot import the modules in `MODULES`, and gets an error for a text file that is opened without an encoding.
(Names that modules lack elsewhere, such as os.getuid, are mypy's to find: `mypy --platform win32`.) And
nobody in the process can rename, replace or remove a file that the process has open or mapped.
"""

import builtins
import types
import warnings
from collections.abc import Mapping
from typing import Any

from tests.support.windows import refuse_open_files

PACKAGE = "mink_local"
MODULES = {"crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "spwd"}
MODULES |= {"syslog", "termios", "tty"}

whole = builtins.__import__


def import_(
    name: str,
    globals: Mapping[str, Any] | None = None,  # noqa: A002
    *rest: Any,
    **named: Any,
) -> types.ModuleType:
    package = str((globals or {}).get("__package__"))
    if name.partition(".")[0] in MODULES and package.partition(".")[0] == PACKAGE:
        raise ModuleNotFoundError(f"No module named {name!r} (elsewhere)", name=name)
    return whole(name, globals, *rest, **named)


builtins.__import__ = import_
refuse_open_files()
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module=PACKAGE)
