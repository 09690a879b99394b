"""Text files that are sent with a message."""

import os
import re
import shlex
from collections.abc import Iterable
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mink_local.cli import command_line_text, file_text
from mink_local.errors import MinkError
from mink_local.files import user_path

if TYPE_CHECKING:
    from mink_local.generation.model import Model


_BYTES_PER_TOKEN = 4  # usually
_SLICE = 20_000  # characters that are tokenized at once


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
            MinkError: It is a folder, or the context cannot hold it.
        """
        if os.path.isdir(path):
            raise MinkError(f"{path} is a folder: name files in it, such as '{path / '*'}'")
        most = 4 * model.n_ctx * model.weights.longest_token  # bytes: a character has at most four
        if os.path.isfile(path) and path.stat().st_size > most:
            raise MinkError(_too_long(path, path.stat().st_size // _BYTES_PER_TOKEN, model))
        text, tokens = fenced(path), 0
        for start in range(0, len(text), _SLICE):  # Ctrl-C is heard between two
            tokens += len(model.tokenize(text[start : start + _SLICE]))
            if tokens >= model.n_ctx:
                raise MinkError(_too_long(path, tokens * len(text) // (start + _SLICE) or tokens, model))
        return cls(path.name, tokens, text)


def _too_long(path: Path, tokens: int, model: "Model") -> str:
    sizes = f"about {tokens:,} tokens, and the context holds {model.n_ctx:,}"
    return f"{path} has {sizes}: attach a part of it, or /set ctx N"


def fenced(path: Path) -> str:
    """Return a text file in a fence, with its name above. Raises click.BadParameter if it cannot be read."""
    text, fence = file_text(os.path.abspath(path)).rstrip(), "```"
    while fence in text:
        fence += "`"
    return f"{command_line_text(path.name)}:\n{fence}\n{text}\n{fence}"


def before_message(files: Iterable[str]) -> str:
    """Return files as the beginning of a message."""
    return "".join(f"{file}\n\n" for file in files)


def words(argument: str) -> list[str]:
    """Return the words of an argument as a shell would: in quotes or, on POSIX, with escaped blanks."""
    lexer = shlex.shlex(argument, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    if os.name == "nt":
        lexer.escape = ""  # backslashes are part of paths
    try:
        return list(lexer)
    except ValueError:  # an apostrophe
        return argument.split()


def path_of(argument: str) -> Path:
    """Return the one path that an argument names, which may have spaces."""
    path = user_path(argument)  # pathlib would raise for a text that is too long to be one
    return path if os.path.exists(path) else user_path(" ".join(words(argument)))


def matching(argument: str) -> list[Path]:
    """Return the files of one path, which may have spaces, or of several paths and patterns."""
    if re.match("https?://", argument):
        raise MinkError("a web page cannot be attached: save it as text, such as by  curl URL > FILE")
    if os.path.exists(whole := path_of(argument)):
        return [whole]
    paths: list[Path] = []
    for word in words(argument):
        path = user_path(word)
        matches = [] if os.path.exists(path) else sorted(glob(str(path), recursive=True))
        paths += [found for found in map(Path, matches) if os.path.isfile(found)] or [path]
    return paths
