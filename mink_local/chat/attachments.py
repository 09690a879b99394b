"""Text files that are sent with a message."""

import os
import re
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mink_local.cli import command_line_text, file_text
from mink_local.errors import MinkError
from mink_local.files import user_path

if TYPE_CHECKING:
    from mink_local.generation.model import Model


class Attachment(NamedTuple):
    """A file that is sent with the next message."""

    name: str
    tokens: int
    text: str

    @classmethod
    def read(cls, model: "Model", path: Path) -> "Attachment":
        """Return a text file, as `fenced`.

        Raises:
            click.UsageError: It cannot be read, or is not UTF-8 text.
            MinkError: The context cannot hold it.
        """
        text = fenced(path)
        tokens = len(model.tokenize(text))
        if tokens >= model.n_ctx:
            raise MinkError(
                f"{path} has {tokens} tokens, and the context holds {model.n_ctx}: use a shorter file"
            )
        return cls(path.name, tokens, text)


def fenced(path: Path) -> str:
    """Return a text file in a fence, with its name above. Raises click.BadParameter if it cannot be read."""
    text, fence = file_text(os.path.abspath(path)).rstrip(), "```"
    while fence in text:
        fence += "`"
    return f"{command_line_text(path.name)}:\n{fence}\n{text}\n{fence}"


def before_message(files: Iterable[str]) -> str:
    """Return files as the beginning of a message."""
    return "".join(f"{file}\n\n" for file in files)


def unquoted(path: str) -> str:
    """Return a path without the quotes around it; backslashes stay, which paths of Windows have."""
    return path[1:-1] if len(path) > 2 and path[0] in "\"'" and path[0] == path[-1] else path


def matching(argument: str) -> list[Path]:
    """Return the files of one path, which may have spaces, or of several paths and patterns."""
    if (whole := user_path(unquoted(argument))).exists():
        return [whole]
    paths: list[Path] = []
    for word in re.findall(r'"[^"]+"|\'[^\']+\'|\S+', argument):
        path = user_path(unquoted(word))
        matches = [] if path.exists() else sorted(glob(str(path), recursive=True))
        paths += [found for found in map(Path, matches) if found.is_file()] or [path]
    return paths
