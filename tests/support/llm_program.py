"""Runs the program `llm` with the plugin in this process, and a model for it that writes chosen texts."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result
from llm.cli import cli
from llm.plugins import load_plugins, pm

from mink_local.llm import plugin
from tests.support.tiny import write_scripted

# Calls the tool, says what it gave, and reasons first if it is told to.
WRITTEN_CALLS = """{% for c in m.tool_calls or [] %}<tool_call>{"name": "{{ c.function.name }}", {{
'"arguments": ' ~ c.function.arguments | tojson }}}</tool_call>{% endfor %}"""
TEMPLATE = (
    """{# <think> #}{{ tools | tojson if tools else '' }}
{% for m in messages %}{{ m.role }}: {{ m.content }}"""
    + WRITTEN_CALLS
    + """
{% endfor %}{% if messages[-1].role == 'tool' %}<|told|>{% elif enable_thinking %}<|think|>{% else %}{{
'<|call|>' if tools else '<|plain|>' }}{% endif %}"""
)
SCRIPTS = {
    "<|call|>": ["<tool_call>", '{"name": "shout", ', '"arguments": ', '{"text": "hey"}}', "</tool_call>"],
    "<|told|>": ["It says", " HEY."],
    "<|think|>": ["<think>", "Hm", "…", "</think>", "\n\nYes", "."],
    "<|plain|>": ["Plainly", " yes!"],
}
SHOUT = "def shout(text: str) -> str:\n    'Say it loudly.'\n    return text.upper()"


def write_talker(path: Path) -> Path:
    """Write the model that writes what `SCRIPTS` says."""
    return write_scripted(path, TEMPLATE, SCRIPTS)


def register_plugin() -> None:
    """Give `llm` the plugin, unless it is installed with it."""
    load_plugins()  # type: ignore[no-untyped-call]
    if not pm.is_registered(plugin):
        pm.register(plugin, "mink")


def run(*arguments: str, input: str = "") -> Result:  # noqa: A002  # click's name for it
    """Run `llm`."""
    return CliRunner().invoke(cli, arguments, input=input, catch_exceptions=False)


def ask(*arguments: str, input: str = "") -> str:  # noqa: A002
    """Run `llm` without an error; return what it writes to standard output."""
    result = run(*arguments, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def logged(n: int = 1) -> list[dict[str, Any]]:
    """Return what `llm` logged last, the oldest first."""
    entries: list[dict[str, Any]] = json.loads(ask("logs", "-n", str(n), "--json"))
    return entries


def details(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the details of the usage in a log entry."""
    return json.loads(entry["token_details"] or "{}")  # type: ignore[no-any-return]
