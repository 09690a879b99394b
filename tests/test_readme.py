"""README.md and docs/ are true: command lines, options, Python blocks, links, generated pages, tables."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from mink_local.bench.sampler import SamplerCost
from mink_local.bench.tables import sampler_table
from mink_local.evals.report.format import markdown_table
from mink_local.samplers import SAMPLERS, label
from scripts import docs, figures
from scripts.blocks import blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", README, flags=re.DOTALL | re.MULTILINE))


def command_lines() -> Iterator[str]:
    """Yield every command line of one of the programs, without what is piped into it."""
    for language, block in FENCED:
        if not language:
            yield from block.replace("\\\n", " ").splitlines()
    yield from (text for text in INLINE if len(text.split()) > 2)
    yield from re.findall(r"<!-- begin: (.*) -->", README)


MINK = sorted(
    {line[line.index("mink-") :] for line in command_lines() if re.match(r"(.*\| )?mink-\w+ ", line)}
)


def parse(line: str) -> None:
    """Parse a command line; raises click.UsageError if the program would refuse it."""
    name, *arguments = shlex.split(line, comments=True)
    command: click.Command = docs.PROGRAMS[name]
    context = None
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        name, *arguments = arguments
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name}"
        command = found
    command.make_context(name, arguments, parent=context)


@pytest.mark.parametrize("line", MINK)
def test_command_line_is_accepted(line: str, own_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_files  # nobody's settings
    monkeypatch.setattr(click.Path, "convert", lambda _, value, *__: value)  # files that a reader has
    parse(line)


def test_refused_command_lines_are_found(own_files: Path) -> None:
    assert own_files
    assert len(MINK) > 10
    with pytest.raises(click.UsageError):
        parse("mink-chat --parrot")
    with pytest.raises(click.UsageError):
        parse("mink-eval run aqua --sampler parrot")


def options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            child = command.get_command(click.Context(command), name)
            assert child is not None
            yield from options(child)


def test_named_options_exist() -> None:
    known = {option for program in docs.PROGRAMS.values() for option in options(program)}
    named = {text.split()[0] for text in INLINE if text.startswith("--")}
    assert len(named) > 10
    assert named <= known


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]+)\)", README)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_named_samplers_are_all_there_are() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| (.*?) \|", README, re.MULTILINE)
    assert [name for name, _ in rows] == list(SAMPLERS)
    for name, values in rows:
        for option, default in re.findall(r"`(\w+)=([\w.]+)`", values):
            assert getattr(SAMPLERS[name](), option) == float(default)


@pytest.mark.slow
def test_python_blocks_run(smollm2_path: Path) -> None:
    blocks = [block for language, block in FENCED if language == "python"]
    program = "\n".join(blocks).replace('"model.gguf"', repr(str(smollm2_path)))
    check = "\nassert k == len(ids) == len(kept)\nprint('done')"
    command = [sys.executable, "-c", program + check]
    result = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert len(blocks) == 4
    assert result.stdout.endswith("done\n")


@pytest.mark.linux
@pytest.mark.skipif(version("click") < "8.5", reason="the pages are laid out by click 8.5")
@pytest.mark.parametrize(("name", "text"), docs.documents().items())
def test_page_is_what_the_programs_say(name: str, text: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "type  python scripts/docs.py"


def test_tables_are_those_that_the_programs_measure() -> None:
    commands = [name for name in blocks(README) if name.startswith("mink-bench")]
    assert [command.split()[1] for command in commands] == list(figures.TABLES)
    assert all(f"\n`{command}`, 20" in blocks(README)[command] for command in commands)
    methods = ["np.max", *(label(str(sampler())) for sampler in SAMPLERS.values()), "np.sort"]
    table = blocks(README)["mink-bench sampler"]
    assert re.findall(r"^\| (\S[^|]*?) +\|", table, re.MULTILINE) == ["method", *methods]


def test_table_in_markdown() -> None:
    costs = [
        SamplerCost(9, "np.max", 2.0),
        SamplerCost(9, "top-p:p=0.9,order=temperature-first", 4.0, 1234.5),
    ]
    head, *rows = sampler_table(costs)
    assert markdown_table(head, rows).splitlines()[1:] == [
        "| --- | --: | --: | --: | --: | --: |",
        "| np.max | 2.0 | 1.0 |  |  |  |",
        "| top-p:p=0.9 (T first) | 4.0 | 2.0 | 1,234.5 |  |  |",
    ]
