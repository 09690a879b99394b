"""Runs mink-bench in the process of the tests."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from mink_local.bench.cli import main


class Finished(NamedTuple):
    status: object
    stdout: str
    stderr: str


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Finished]:
    """Run the program in this process."""

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["mink-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return Finished(exit_.value.code, *capsys.readouterr())

    return run
