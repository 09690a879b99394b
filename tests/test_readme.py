"""README.md and docs/ are true: command lines, options, Python blocks, links, generated pages, numbers."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from scripts.docs import HELP
from tests.support.command_lines import command_lines, programs, refused
from tests.support.python import output_of, run_python

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [  # the pages that people write
    path
    for path in sorted((ROOT / "docs").glob("*.md"))
    if "Written by scripts/docs.py" not in path.read_text(encoding="utf-8")
]
TEXT = "\n".join(path.read_text(encoding="utf-8").partition(HELP)[0] for path in PAGES)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE))
OPTIONS_OF_OTHERS = {"--force-reinstall", "--model_args", "--no-deps", "--openai-api-base", "--only-binary"}
MINK = command_lines(TEXT)
STALE = """
from scripts.docs import DOCS, documents
for name, text in documents().items():
    if (DOCS / name).read_text("utf-8") != text:
        print(name)
"""


@pytest.mark.usefixtures("own_files")  # nobody's settings
@pytest.mark.parametrize("line", MINK)
def test_command_line_is_accepted(line: str) -> None:
    assert refused(line) is None


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("mink-chat --parrot", "--parrot"),
        ("mink-eval run aqua --sampler parrot", "parrot"),
        ("mink-eval frontier -m a.gguf -r b.gguf --prompts c.jsonl", "--prompts"),
        ("mink-eval run questions.jsonl -m a.gguf -t hot", "hot"),
        ("mink-eval parrot", "parrot"),
    ],
)
def test_refused_command_lines_are_found(line: str, why: str) -> None:
    assert len(MINK) > 5
    assert why in (refused(line) or "")


def options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from options(child)


def test_named_options_exist() -> None:
    known = {option for program in programs().values() for option in options(program)}
    named = {text.split()[0].partition("=")[0] for text in INLINE if text.startswith("--")}
    assert len(named) > 5
    assert named - OPTIONS_OF_OTHERS <= known


def test_no_second_index_can_supply_a_dependency() -> None:
    for page in [*PAGES, ROOT / "scripts" / "setup"]:
        assert "--extra-index-url" not in page.read_text(encoding="utf-8")


def test_linked_files_exist() -> None:
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        links = re.findall(r"\]\((?!https?://)([^)#]+)\)", text)
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_page_is_listed() -> None:
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/README.md").read_text(encoding="utf-8")))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


@pytest.mark.slow
def test_python_blocks_run(smollm2_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    program = "\n".join(blocks).replace('"model.gguf"', repr(str(smollm2_path)))
    result = run_python("-c", program)
    assert (result.status, result.stderr) == (0, "")
    assert len(blocks) == 2
    assert len(result.stdout.split()) > 5


@pytest.mark.linux
def test_generated_pages_are_up_to_date() -> None:
    """In a process of its own: click keeps the names of a command's help from where it was first shown."""
    assert output_of("-c", STALE, cwd=ROOT) == ""


def test_every_measured_table_names_its_command() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"<!-- begin: ((?:mink-bench|scripts/)[^\n]*) -->\n(.*?)<!-- end -->", page, re.DOTALL
    )
    assert {command.split()[1] for command, _ in blocks} >= {"sampler", "decode", "batch"}
    assert all(f"`{command}`, 20" in block for command, block in blocks)
