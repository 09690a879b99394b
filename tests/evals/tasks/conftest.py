"""Files of questions."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file: its content, or the rows of a .jsonl file."""

    def write(*rows: str | bytes | dict[str, Any], name: str = "mine.jsonl") -> Path:
        path = tmp_path / name
        lines = [json.dumps(row) + "\n" if isinstance(row, dict) else row for row in rows]
        path.write_bytes(b"".join(line.encode() if isinstance(line, str) else line for line in lines))
        return path

    return write
