"""The command lines of this project's programs on its pages, and why a program refuses one."""

import json
import re
import shlex
from contextlib import chdir
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory

import click

from mink_local.errors import MinkError

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def command_lines(text: str) -> list[str]:
    """Return a page's command lines of this project's programs, without what is piped into them."""
    inline = re.findall(r"`([^`\n]+)`", _FENCED.sub("", text))
    lines = [line for line in inline if len(line.split()) > 2]
    for language, block in _FENCED.findall(text):
        if not language:
            lines += block.replace("\\\n", " ").splitlines()
    lines += re.findall(r"<!-- begin: (.*) -->", text)
    found = {line[line.index("mink-") :] for line in lines if re.match(r"(.*\| )?mink-\w+ ", line)}
    return sorted(found)


@cache
def programs() -> dict[str, click.Command]:
    """Return this project's programs by name."""
    scripts = (one for one in entry_points(group="console_scripts") if one.name.startswith("mink-"))
    return {one.name: resolve_name(f"{one.module.removesuffix('.cli')}.cli:cli") for one in scripts}


def refused(line: str) -> str | None:
    """Return why a program refuses a command line, or None; the files that it names are made up."""
    name, *arguments = shlex.split(line, comments=True)
    command, context = programs()[name], None
    with TemporaryDirectory() as folder, chdir(folder):
        for word in arguments:
            _make_up(word, _columns(arguments))
        try:
            if isinstance(command, click.Group):
                context = click.Context(command, info_name=name)
                name, *arguments = arguments
                command = command.commands[name]
            command.make_context(name, arguments, parent=context)
        except KeyError:
            return f"there is no command {name}"
        except (click.UsageError, MinkError) as error:
            return str(getattr(error, "message", error))
    return None


def _columns(arguments: list[str]) -> list[str]:
    """Return the columns of a made-up file: a question's, by the names that a command line has for them."""
    renamed = arguments[arguments.index("--columns") + 1] if "--columns" in arguments else "question=question"
    return [pair.partition("=")[2] for pair in renamed.split(",")]


def _make_up(word: str, columns: list[str]) -> None:
    """Make a file or a folder of what may be the name of one."""
    path = Path(word.rpartition("=")[2])
    if path.is_absolute() or not re.fullmatch(r"[\w.][\w./-]*", str(path)):
        return
    if path.suffix[1:].isalpha():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict.fromkeys(columns, "Why?")))
    else:
        path.mkdir(parents=True, exist_ok=True)
