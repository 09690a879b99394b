"""The parts of README.md that scripts write: from `<!-- begin: NAME -->` to the next `<!-- end -->`."""

import re
from collections.abc import Callable
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"

_BLOCK = re.compile(r"(<!-- begin: ([^\n]+) -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)


def blocks(text: str) -> dict[str, str]:
    """Return what stands in each block, by name."""
    return {name: body for _, name, body in _BLOCK.findall(text)}


def with_blocks(text: str, written: Callable[[str], str | None]) -> str:
    """Return the text with each block that `written(name)` gives a body for; None leaves one as it is."""

    def replace(block: "re.Match[str]") -> str:
        begin, name, body = block.groups()
        new = written(name)
        return f"{begin}{body if new is None else new}"

    return _BLOCK.sub(replace, text)
