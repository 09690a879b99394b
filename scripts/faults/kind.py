"""The form that all kinds of faults have in common."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

Sort = Literal["death", "hang", "loss"]
Case = Callable[[Random, Path], str]
"""Does one case in an empty folder of its own and returns the outcome in a word, which the report counts."""


class FaultError(Exception):
    """A case that must not end so: the process died, did not end, or lost something that was recorded."""

    def __init__(self, sort: Sort, text: str) -> None:
        super().__init__(text)
        self.sort: Sort = sort


@dataclass(frozen=True)
class Kind:
    """One kind of faults.

    Args:
        name: In the names of its cases, `NAME-SEED-NUMBER`.
        count: Faults at full scale.
        begin: A function of a module, called once in the process that does the cases, with a folder for what
            they share. An exception of a case is a death, except FaultError, which says what it is.
        per_case: Faults in one case, if one alone would be too quick.
        seconds: Time of a case; one that takes longer hangs.
    """

    name: str
    count: int
    begin: Callable[[Path], Case]
    per_case: int = 1
    seconds: float = 120.0

    def cases(self, seed: int, scale: float) -> list[str]:
        """Return the names of the cases, at least one."""
        return [f"{self.name}-{seed}-{n}" for n in range(max(1, round(self.count * scale / self.per_case)))]


def check_sentence(text: str) -> None:
    """Raise FaultError unless a message is one sentence for a person."""
    if not text.strip() or "\n" in text or "Traceback" in text or len(text) > 1000:
        raise FaultError("death", f"not a sentence: {text[-2000:]!r}")
