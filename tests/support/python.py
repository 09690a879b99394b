"""Python programs in a process of their own, and how a program ended."""

import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Finished(NamedTuple):
    """What a program did."""

    status: int
    stdout: str
    stderr: str

    def succeeded(self) -> "Finished":
        """Return it, after checking that the status is 0."""
        assert self.status == 0, self.stderr
        return self

    def refused(self, status: int, *named: object) -> "Finished":
        """Return it, after checking the status and the one line on standard error, which has these texts."""
        assert (self.status, self.stderr.count("\n")) == (status, 1), self.stderr
        for text in named:
            assert str(text) in self.stderr
        return self


Mink = Callable[..., Finished]
"""`mink(*arguments)` runs `mink-models`: a fixture's type."""


def run_python(*arguments: object, **options: Any) -> Finished:
    """Run Python with these arguments, for at most 5 minutes; options are those of `subprocess.run`."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=300,
        **options,
    )
    return Finished(done.returncode, done.stdout, done.stderr)


def output_of(*arguments: object, **options: Any) -> str:
    """Return what Python with these arguments prints; it must succeed."""
    return run_python(*arguments, **options).succeeded().stdout
