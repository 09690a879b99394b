"""Make this system look to mink_local like one without POSIX, whose open files cannot be renamed or removed.

Python runs this file at its start if its folder is on PYTHONPATH, so also in every child process. Other
packages and the standard library see what is there: they know how to live on other systems. mink_local

- cannot import the modules in `MODULES`, and `os`, `signal`, `time`, `socket`, `select` lack `NAMES`;
- cannot open anything below /proc;
- gets an error for a text file that is opened without an encoding.

And nobody in the process can rename, replace or remove a file that the process has open or mapped.
"""

import builtins
import re
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.windows import refuse_open_files

PACKAGE = "mink_local"
MODULES = {"crypt", "curses", "fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "spwd"}
MODULES |= {"syslog", "termios", "tty"}
# Regular expressions that match beginnings of names.
NAMES = {
    "os": """
        CLD_ EX_[A-NP-Z] EX_OS F_[LTU] GRND_ MFD_ POSIX_ PRIO_ P_ALL P_PGID P_PID RTLD_ RWF_ SCHED_
        SEEK_DATA SEEK_HOLE ST_ O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DSYNC O_LARGEFILE O_NDELAY O_NO
        O_PATH O_RSYNC O_SYNC O_TMPFILE WCO WEX WIF WNO WST WTE WUN XATTR_ chown chroot confstr
        copy_file_range ctermid environb eventfd fchdir fchmod fchown fdatasync fork fpathconf fstatvfs
        fwalk getegid getenvb geteuid getgid getgroup getloadavg getpgid getpgrp getpriority getrandom
        getres getsid getuid getxattr initgroups killpg lchown listxattr lockf login_tty major makedev
        memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_ pread pwrite
        readv register_at_fork removexattr sched_ sendfile setegid seteuid setgid setgroups setp setre
        setsid setuid setxattr spawnlp spawnvp splice statvfs sync sysconf tcgetpgrp tcsetpgrp ttyname
        uname wait3 wait4 waitid writev
    """,
    "signal": """
        ITIMER_ ItimerError SIGALRM SIGBUS SIGC SIGHUP SIGIO SIGKILL SIGP SIGQUIT SIGRT SIGST SIGSYS
        SIGT[RST] SIGU SIGV SIGWINCH SIGX SIG_BLOCK SIG_SETMASK SIG_UNBLOCK Sigmasks alarm getitimer
        pause pidfd_ pthread_ setitimer siginterrupt sig[ptw]
    """,
    "time": """
        CLOCK_ clock_ pthread_ tzset
    """,
    "socket": """
        AF_UNIX SO_REUSEPORT recv_fds send_fds sethostname MSG_DONTWAIT MSG_NOSIGNAL SOCK_CLOEXEC
    """,
    "select": """
        EPOLL PIPE_BUF POLL epoll poll
    """,
}


class Without(types.ModuleType):
    """A module that lacks some of its names."""

    def __init__(self, module: types.ModuleType, hidden: re.Pattern[str]) -> None:
        self.__dict__.update(__name__=module.__name__, _module=module, _hidden=hidden)

    def __getattr__(self, name: str) -> Any:
        if self._hidden.match(name):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} (elsewhere)")
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)


def is_ours(namespace: Mapping[str, object] | None) -> bool:
    """Return True for the globals of a module of the package."""
    name = (namespace or {}).get("__package__") or (namespace or {}).get("__name__") or ""
    return str(name).split(".")[0] == PACKAGE


def hide_modules_and_names() -> None:
    whole = builtins.__import__
    lacking: dict[str, Without] = {}

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> types.ModuleType:
        root = name.split(".")[0]
        if level or not is_ours(globals):
            return whole(name, globals, locals, fromlist, level)
        if root in MODULES:
            raise ModuleNotFoundError(f"No module named {root!r} (elsewhere)", name=root)
        module = whole(name, globals, locals, fromlist, level)
        if root in NAMES and (name == root or not fromlist):
            if root not in lacking:
                lacking[root] = Without(module, re.compile("|".join(NAMES[root].split())))
            return lacking[root]
        return module

    builtins.__import__ = import_


def refuse_proc() -> None:
    passing = re.compile(r"(pathlib|io|codecs|tokenize|genericpath|posixpath|os)\b|_pyio")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and str(arguments[0]).startswith("/proc"):
            frame = sys._getframe(1)
            while frame.f_back and passing.match(frame.f_globals.get("__name__", "")):
                frame = frame.f_back
            if is_ours(frame.f_globals):
                raise FileNotFoundError(2, "No such file or directory (elsewhere)", arguments[0])

    sys.addaudithook(hook)


hide_modules_and_names()
refuse_proc()
refuse_open_files()
warnings.filterwarnings("ignore", category=EncodingWarning)
warnings.filterwarnings("error", category=EncodingWarning, module=PACKAGE)
