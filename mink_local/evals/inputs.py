"""What all measurements give their models: files, known by their SHA-256, and a date that stays the same.

Needs no optional library, unlike the records.
"""

import hashlib
from datetime import date
from pathlib import Path

from mink_local.errors import RunError
from mink_local.files import sha256_of
from mink_local.models.gguf import shards

# The date given to chat templates that use one, so that prompts are the same tomorrow: the default in
# LLaMA-3's template.
DATE = date(2024, 7, 26)


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256; for a split GGUF model, that of all parts' SHA-256. Raises RunError."""
    try:
        sums = [sha256_of(shard) for shard in shards(path)]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()
