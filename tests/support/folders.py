"""Folders that are not everybody's."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def of_others() -> Iterator[Path]:
    """Yield a folder that nobody may look into in this block, in which root is another user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0)
    if os.getuid() == 0:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        os.seteuid(os.getuid())
        folder.rmdir()
