"""Write docs/mink-*.md from the programs' help, docs/api.md from the docstrings; with --check, only compare.

.venv/bin/python scripts/docs.py [--check]
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent, fill

import click
from platformdirs import user_config_path

import mink_local
from mink_local.bench.cli import cli as bench
from mink_local.chat.cli import cli as chat
from mink_local.chat.commands import COMMANDS
from mink_local.evals.cli import cli as evals
from mink_local.models.cli import cli as models
from mink_local.serve.cli import cli as serve

DOCS = Path(__file__).parents[1] / "docs"
PROGRAMS = {
    "mink-chat": chat,
    "mink-eval": evals,
    "mink-models": models,
    "mink-serve": serve,
    "mink-bench": bench,
}
GENERATED = "<!-- Written by scripts/docs.py: do not edit. -->\n\n"


def help_texts(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[str]:
    """Yield the help of a program and of its commands, each as a section."""
    settings = {**command.context_settings, "max_content_width": 100, "terminal_width": 100}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    level = "#" if parent is None else "##"
    yield f"{level} {context.command_path}\n\n```\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None:
                yield from help_texts(found, child, context)


def chat_commands() -> str:
    rows = [f"/{one.usage}\n{paragraphs(one.details)}" for one in COMMANDS.values()]
    return "\n".join(["## Commands of the chat", "", "```", *rows, "```", ""])


def paragraphs(text: str) -> str:
    """Return a text indented, with lines of at most 100 columns."""
    blank = "    "
    return "\n".join(
        fill(line, 100, initial_indent=blank, subsequent_indent=blank) for line in text.split("\n")
    )


def api() -> Iterator[str]:
    """Yield a section for each class and function that `mink_local` exports."""
    yield "# mink_local\n\nEverything here can be imported from `mink_local`.\n"
    for name in mink_local.__all__:
        thing = getattr(mink_local, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"## {name}\n\n{entry(thing)}"
        if inspect.isclass(thing) and not issubclass(thing, Exception):
            for member, value in vars(thing).items():
                value = value.fget if isinstance(value, property) else value
                if inspect.isfunction(value) and not member.startswith("_") and value.__doc__:
                    yield f"### {name}.{member}\n\n{entry(value)}"


def entry(thing: object) -> str:
    """Return the signature as the source has it, and the docstring."""
    node = ast.parse(dedent(inspect.getsource(thing))).body[0]  # type: ignore[arg-type]
    signature = ""
    if isinstance(node, ast.FunctionDef):
        returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
        signature = f"{node.name}({ast.unparse(node.args)}){returns}\n\n"
    elif isinstance(node, ast.ClassDef) and node.bases:
        signature = f"class {node.name}({', '.join(map(ast.unparse, node.bases))})\n\n"
    return f"```text\n{signature}{inspect.getdoc(thing)}\n```\n"


def documents() -> dict[str, str]:
    """Return every generated document by its name."""
    texts = {f"{name}.md": list(help_texts(command, name)) for name, command in PROGRAMS.items()}
    texts["mink-chat.md"].append(chat_commands())
    texts["api.md"] = list(api())
    here = str(user_config_path("mink-local"))
    return {
        name: GENERATED + "\n".join(sections).replace(here, "~/.config/mink-local")
        for name, sections in texts.items()
    }


def main() -> None:
    stale = []
    for name, text in documents().items():
        path = DOCS / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv:
            stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.exit(f"not up to date: {', '.join(stale)}; type  .venv/bin/python scripts/docs.py")


if __name__ == "__main__":
    main()
