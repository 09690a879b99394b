"""A kind of faults for the torture's own tests."""

import os
import time
from pathlib import Path
from random import Random

from scripts.faults.kind import Case, FaultError


def begin(_: Path) -> Case:
    """A kind whose first cases go wrong, each in another way."""

    def case(rng: Random, folder: Path) -> str:
        (folder / "case.txt").write_text(str(rng.random()))
        match int(folder.name.rpartition("-")[2]):
            case 0:
                os.abort()
            case 1:
                time.sleep(60)
            case 2:
                raise FaultError("loss", "a record is gone")
            case 3:
                raise ZeroDivisionError
        return "fine"

    return case
