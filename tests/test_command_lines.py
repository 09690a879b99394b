"""Any command line of any program ends in an exit status and one sentence, never in a traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from random import Random

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import examples

pytestmark = [pytest.mark.slow, pytest.mark.posix]

MODULES = ["chat.cli", "evals.cli", "models.cli", "serve.cli", "bench.cli"]
SECONDS = 5  # until Ctrl-C ends what is still running
HOSTILE = [
    "", " ", "-", "--", "-1", "0", "1", "2", "7", "-0.0", "0.5", "1e-300", "1e999", "-inf", "inf", "nan",
    "9" * 40, "0x10", "1_0", "٣", "½", "true", "auto", "all", "none", "default", "{}", "[]", '{"a": 1}',
    "%s%d{}", "{0.__class__}", "a" * 5000, "\n", "\r", "\t", "\x1b[2J", "\x7f", "\ufeff", "\u202e", "😀",
    "\udcff", "../x", "./", "~", "~nobody/x", "x/y/z", "/dev/null", "file", "folder", "binary",
    "run", "*", "$HOME", "`id`", ";", "a=b", "=", ",", ":", "min-k", "min-k:tau=nan", "min-k:tau=1,tau=2",
    "top-p:p=2", "greedy", "mirostat:version=3", "1:1", "0:-inf", "5:nan", "hf:a/b:c", "hf:", "ollama:x",
    "lmstudio:../..", "file:x", "gsm8k", "gpqa", "gsm8k=file", "localhost:1",
]  # fmt: skip


def commands(command: click.Command, path: Sequence[str] = ()) -> Iterator[tuple[list[str], click.Command]]:
    """Yield every command of a program after the words that name it."""
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from commands(child, (*path, name))
    else:
        yield list(path), command


COMMANDS = [
    (module, words, command)
    for module in MODULES
    for words, command in commands(import_module(f"mink_local.{module}").cli)
]


def arguments(rng: Random, command: click.Command, model: Path) -> list[str]:
    """Return some options and arguments of a command, half of them with a plausible value."""
    words = []
    for parameter in rng.sample(command.params, min(len(command.params), rng.choice([0, 1, 2, 3, 5]))):
        values = [rng.choice(HOSTILE) for _ in range(max(1, parameter.nargs))]
        if "model" in str(parameter.name) and rng.random() < 0.7:
            values = [str(model)]
        elif isinstance(parameter.type, click.Choice) and rng.random() < 0.5:
            values = [str(rng.choice(list(parameter.type.choices)))]
        if isinstance(parameter, click.Option):
            words.append(rng.choice([*parameter.opts, *parameter.secondary_opts]))
            values = [] if parameter.is_flag else values
        words += values
    return words


@examples(25)
@given(st.integers(0, 2**32))
def test_a_random_command_line(tmp_path: Path, own_files: Path, tiny_path: Path, seed: int) -> None:
    assert own_files  # not the user's conversations and settings
    rng = Random(seed)
    (tmp_path / "folder").mkdir(exist_ok=True)
    (tmp_path / "file").write_text("1\n")
    (tmp_path / "binary").write_bytes(rng.randbytes(99))
    module, words, command = rng.choice(COMMANDS)
    line = [*words, *arguments(rng, command, tiny_path)]
    environment = {**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}  # nothing listens there
    process = subprocess.Popen(
        [sys.executable, "-m", f"mink_local.{module}", *map(os.fsencode, line)],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode in (0, 1, 2, 130)
    assert b"Traceback" not in errors
    assert errors.strip() or process.returncode not in (1, 2)
