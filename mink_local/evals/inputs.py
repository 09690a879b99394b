"""What all measurements give their models: files, known by their SHA-256, and a date that stays the same.

Needs no optional library, unlike the records.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from mink_local.errors import RunError
from mink_local.files import sha256_of
from mink_local.models.gguf import shards

# The date given to chat templates that use one, so that prompts are the same tomorrow: the default in
# LLaMA-3's template.
DATE = date(2024, 7, 26)


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256; for a split GGUF model, that of all parts' SHA-256. Raises RunError."""
    return joint_sha256(shards(path))


def joint_sha256(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of a file, or that of several files' SHA-256. Raises RunError."""
    try:
        sums = [sha256_of(path) for path in paths]
    except OSError as error:
        raise RunError(f"{error.filename} cannot be read: {error.strerror or error}") from None
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def template_sha256(options: Mapping[str, Any]) -> str | None:
    """Return the SHA-256 of the chat template among options of `load_model`; None for the model's own."""
    template = options.get("chat_template")
    return None if template is None else hashlib.sha256(template.encode()).hexdigest()
