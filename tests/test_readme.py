"""README.md and docs/ are true: command lines, options, Python blocks, links, generated pages, numbers."""

import re
import shlex
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from mink_local.bench.cli import cli as bench
from mink_local.chat.cli import cli as chat
from mink_local.evals.cli import cli as evals
from mink_local.models.cli import cli as models
from mink_local.serve.cli import cli as serve
from tests.support.python import output_of, run_python

PROGRAMS: dict[str, click.Command] = {
    "mink-chat": chat,
    "mink-serve": serve,
    "mink-eval": evals,
    "mink-models": models,
    "mink-bench": bench,
}
ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# The pages that people write; results.md has the command lines of an earlier version.
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"] + [
    path
    for path in sorted((ROOT / "docs").glob("*.md"))
    if path.name != "results.md" and "Written by scripts/docs.py" not in path.read_text(encoding="utf-8")
]
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
FENCED = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
INLINE = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", TEXT, flags=re.DOTALL | re.MULTILINE))
OPTIONS_OF_OTHERS = {"--model_args", "--no-deps", "--openai-api-base", "--only-binary"}


def command_lines() -> Iterator[str]:
    """Yield every command line of one of the programs, without what is piped into it."""
    for language, block in FENCED:
        if not language:
            yield from block.replace("\\\n", " ").splitlines()
    yield from (text for text in INLINE if len(text.split()) > 2)
    yield from re.findall(r"<!-- begin: (.*) -->", TEXT)


MINK = sorted(
    {line[line.index("mink-") :] for line in command_lines() if re.match(r"(.*\| )?mink-\w+ ", line)}
)


def parse(line: str) -> None:
    """Parse a command line; raises click.UsageError if the program would refuse it."""
    name, *arguments = shlex.split(line, comments=True)
    command: click.Command = PROGRAMS[name]
    context = None
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=name)
        name, *arguments = arguments
        command = command.commands[name]
    command.make_context(name, arguments, parent=context)


@pytest.mark.usefixtures("own_files")  # nobody's settings
@pytest.mark.parametrize("line", MINK)
def test_command_line_is_accepted(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Path, "convert", lambda _, value, *__: value)  # files that a reader has
    parse(line)


@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize("line", ["mink-chat --parrot", "mink-eval run aqua --sampler parrot"])
def test_refused_command_lines_are_found(line: str) -> None:
    assert len(MINK) > 5
    with pytest.raises(click.UsageError):
        parse(line)


def options(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from options(child)


def test_named_options_exist() -> None:
    known = {option for program in PROGRAMS.values() for option in options(program)}
    named = {text.split()[0].partition("=")[0] for text in INLINE if text.startswith("--")}
    assert len(named) > 5
    assert named - OPTIONS_OF_OTHERS <= known


def test_linked_files_exist() -> None:
    for page in [*PAGES, ROOT / "docs/results.md"]:
        links = re.findall(r"\]\((?!https?://)([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == []


def test_readme_is_short_and_every_page_is_listed() -> None:
    assert len(README.encode()) <= 8500
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
@pytest.mark.skipif(version("click") < "8.5", reason="the pages are laid out by click 8.5")
def test_generated_pages_are_up_to_date() -> None:
    output_of(ROOT / "scripts" / "docs.py", "--check")


def test_every_measured_table_names_its_command() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    blocks = re.findall(
        r"<!-- begin: ((?:mink-bench|scripts/)[^\n]*) -->\n(.*?)<!-- end -->", page, re.DOTALL
    )
    assert {command.split()[1] for command, _ in blocks} >= {"sampler", "decode", "batch"}
    assert all(f"`{command}`, 20" in block for command, block in blocks)


# docs/results.md and README.md have the numbers of docs/results


def check(root: Path) -> str:
    """Run `scripts/results.py --check` in a copy of the repository; return its complaints."""
    return run_python(root / "scripts" / "results.py", "--check").stderr


def test_the_pages_have_the_numbers_of_the_tables() -> None:
    assert check(ROOT) == ""


@pytest.mark.parametrize(
    ("page", "number", "wrong", "found"),
    [
        ("README.md", "9.5", "19.5", "README.md"),
        ("docs/results.md", "33.0 (24.6–42.7)", "133.0 (24.6–42.7)", "results.md"),
        ("docs/results.md", "−29.0 points", "−29.3 points", "−29.3"),  # in a verdict
    ],
)
def test_another_number_is_found(page: str, number: str, wrong: str, found: str, tmp_path: Path) -> None:
    for folder in ("docs", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    path = tmp_path / page
    path.write_text(path.read_text("utf-8").replace(number, wrong, 1), "utf-8")
    assert found in check(tmp_path)


def test_every_file_of_the_results_is_shown() -> None:
    pages = "".join((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/results.md"))
    named = set(re.findall(r"results/([^)\s]+\.svg)", pages))
    blocks = {f"{name.replace(' ', '-')}.csv" for name in re.findall(r"<!-- begin: (.+) -->", pages)}
    sources = {f"{name}.csv" for line in re.findall(r"<!-- from: (.+) -->", pages) for name in line.split()}
    assert {path.name for path in (ROOT / "docs" / "results").iterdir()} <= named | blocks | sources
