"""`mink-eval` as its tests run it, and what they make of its records."""

import sys
from collections.abc import Callable
from pathlib import Path

from mink_local.evals.cli import main
from mink_local.evals.run.records import RECORDS, Response, record_files
from mink_local.evals.store import Rows
from tests.support.python import Finished

MINK_EVAL = [sys.executable, "-m", "mink_local.evals.cli"]  # in a process of its own


class MinkEval:
    """`mink_eval(*arguments)` runs the program in this process."""

    def __init__(self, run_main: Callable[..., Finished]) -> None:
        self._run_main = run_main

    def __call__(self, *arguments: object) -> Finished:
        return self._run_main(main, *arguments)

    def run(self, *arguments: object) -> Finished:
        """Run `mink-eval run gsm8k`, which must succeed."""
        return self("run", "gsm8k", *arguments).succeeded()


def read_responses(folder: Path) -> list[Response]:
    """Return the responses in all record files of a folder, each key once."""
    found: Rows[Response] = Rows()
    for path in record_files(folder):
        found.read(path, Response)
    return list(found.by_key.values())


def responses(folder: Path) -> dict[object, tuple[object, ...]]:
    """Return what does not depend on the clock, by key; fail if a key is there twice."""
    records = read_responses(folder)
    assert len(records) == count_lines(folder)
    return {record.key: (record.response, record.k, record.seed, record.finish_reason) for record in records}


def count_lines(folder: Path) -> int:
    path = folder / RECORDS
    return path.read_bytes().count(b"\n") if path.exists() else 0
