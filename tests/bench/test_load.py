"""`scripts/load.py`: clients of real servers; their speed is not tested."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

LOAD = Path(__file__).parents[2] / "scripts" / "load.py"
STAND_IN = """#!{python}
import os, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
options["--ctx"] = str(int(options.pop("--ctx-size")) // int(options["--parallel"]))
del options["--cache-ram"]
words = [word for option in options.items() for word in option]
os.execv({python!r}, [{python!r}, "-m", "mink_local.serve.cli", *words])
"""


@pytest.fixture
def llama_server(tmp_path: Path) -> Path:
    path = tmp_path / "llama-server"
    path.write_text(STAND_IN.format(python=sys.executable))
    path.chmod(0o700)
    return path


@pytest.mark.slow
@pytest.mark.posix
def test_prompts_arrive_while_answers_run(tiny_path: Path, llama_server: Path) -> None:
    given = ["--model", tiny_path, "--against", llama_server, "--mixed", 7, "--tokens", 9, "--rounds", 1]
    command = [*map(str, [sys.executable, LOAD, *given])]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=True)
    rows = re.findall(r"^\| (mink-serve|llama-server) \| (.+) \|$", done.stdout, re.MULTILINE)
    assert [name for name, _ in rows] == ["mink-serve", "llama-server"]
    assert all(float(figure) > 0 for figure in rows[0][1].split(" | "))
    assert rows[1][1].split(" | ")[1::2] == ["1.00"] * 4


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.parametrize("options", [[], ["--schema"]])
def test_two_servers_get_the_same_requests(tiny_path: Path, llama_server: Path, options: list[str]) -> None:
    given = ["--model", tiny_path, "--against", llama_server, "--clients", 2, "--tokens", 3, "--rounds", 1]
    command = [sys.executable, LOAD, *given, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, encoding="utf-8", check=True)
    rows = re.findall(r"^\| 2 \| ([^|]+) \| ([\d.]+) \| ([\d.]+) \|", done.stdout, re.MULTILINE)
    names = ["mink-serve, free text", "mink-serve", "llama-server"]
    assert [name for name, *_ in rows] == (names if options else names[1:])
    assert all(float(speed) > 0 for _, speed, _ in rows)
    assert rows[-1][2] == "1.00"
