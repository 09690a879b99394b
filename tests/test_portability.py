"""Every program's main job on a system without POSIX, as far as one can tell on Linux.

A program runs in a Python where `tests/support/elsewhere/sitecustomize.py` hides from mink_local modules that
Windows lacks (such as fcntl and resource), where a text file must be opened with an encoding, and where no
file can be renamed, replaced or removed while the process has it open.

This shows that mink_local needs nothing that is missing, in the jobs below, its child processes included.
It does not show what Windows and macOS do differently under the same name (signals, consoles, paths, code
pages), nor what llama.cpp, Numba and the other packages do there; and it knows only the open files of the
process itself.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.hub import REPOSITORY, Hub, serve
from tests.support.python import output_of

pytestmark = [pytest.mark.linux, pytest.mark.usefixtures("own_files")]

ROOT = Path(__file__).parents[1]
PROGRAMS = {
    "mink-chat": "mink_local.chat",
    "mink-eval": "mink_local.evals.cli",
    "mink-models": "mink_local.manage.cli",
}
DRIVER = """
import importlib, json, sys
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv = [module, *arguments]
    print("$", *sys.argv, flush=True)
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{sys.argv}: status {end.code}")
"""
LIBRARY = """
import sys
from mink_local import Constraints, MinK, load_model

model = load_model(sys.argv[1], n_ctx=256)
messages = [{"role": "user", "content": "Hi"}]
grammar = Constraints(grammar='root ::= "yes" | "no"')
print(*model.chat(messages, sampler=MinK(), temperature=5.0, max_tokens=8, seed=1), sep="")
print(*model.chat(messages, constraints=grammar, max_tokens=8, seed=1), sep="")
print([len(answer.tokens) for answer in model.generate(["One", "Two"], max_tokens=4, seed=1)])
"""


@pytest.fixture
def elsewhere() -> dict[str, str]:
    """The environment of a Python on a system without POSIX."""
    folders = [str(ROOT / "tests/support/elsewhere"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders), "PYTHONWARNDEFAULTENCODING": "1"}


@pytest.fixture
def python(elsewhere: dict[str, str]) -> Callable[..., str]:
    """Runs a program in such a Python; returns what it printed."""

    def run(program: str, *arguments: object, **variables: str) -> str:
        return output_of("-c", program, *arguments, env=elsewhere | variables)

    return run


@pytest.fixture
def programs(python: Callable[..., str]) -> Callable[..., str]:
    """Runs command lines of the programs one after the other in such a Python; returns what they printed."""

    def run(*lines: tuple[object, ...], **variables: str) -> str:
        return python(
            DRIVER, json.dumps([[PROGRAMS[str(line[0])], *map(str, line[1:])] for line in lines]), **variables
        )

    return run


def test_models(programs: Callable[..., str], tiny_path: Path, tmp_path: Path) -> None:
    with serve(Hub({"tiny.gguf": tiny_path.read_bytes()})) as hub:
        printed = programs(
            ("mink-models", "pull", f"hf:{REPOSITORY}:tiny.gguf"),
            ("mink-models", "add", "own", tiny_path),
            ("mink-models", "list"),
            ("mink-models", "info", "own"),
            ("mink-models", "path", "own"),
            ("mink-models", "rm", f"hf:{REPOSITORY}:tiny.gguf", "--yes"),
            HF_ENDPOINT=hub.url,
            HF_HOME=str(tmp_path / "hf"),
        )
    assert str(tiny_path) in printed.splitlines()


def test_chat(programs: Callable[..., str], tiny_path: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean"}', encoding="utf-8")
    options = ("mink-chat", "--model", tiny_path, "--ctx", 256, "--max-tokens", 8, "--seed", 1)
    printed = programs(
        (*options, "--prompt", "Hi", "--temp", 5),
        (*options, "--prompt", "Hi", "--json-schema", schema),
        (*options, "--prompt", "Hi", "--json"),
    )
    assert {"true", "false"} & set(printed.split())
    assert json.loads(printed.splitlines()[-1])["n_tokens"] == 8


@pytest.mark.slow
def test_evaluation(programs: Callable[..., str], tiny_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run = (
        "mink-eval",
        "run",
        "sample-math",
        "--model",
        tiny_path,
        "--max-tokens",
        8,
        "--out",
        out,
        "--limit",
    )
    programs((*run, 1), (*run, 2), ("mink-eval", "report", out))
    records = (out / "records.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(records) == 4
    assert {"report.html", "report.md", "table.csv"} <= {path.name for path in (out / "report").iterdir()}


def test_library(python: Callable[..., str], tiny_path: Path) -> None:
    printed = python(LIBRARY, tiny_path).splitlines()
    assert printed[-2] in ("yes", "no")
    assert printed[-1] == "[4, 4]"
