"""Random command lines, environments and settings of all programs: a sentence, never a traceback."""

import contextlib
import importlib
import io
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import click

from mink_local.chat.options import SETTINGS
from mink_local.cli import run
from mink_local.models.catalog import resolve
from scripts.faults.kind import Case, FaultError, Kind
from tests.support.tiny import write_model

PROGRAMS = {
    "mink-chat": "mink_local.chat.cli",
    "mink-eval": "mink_local.evals.cli",
    "mink-models": "mink_local.models.cli",
    "mink-serve": "mink_local.serve.cli",
    "mink-bench": "mink_local.bench.cli",
}
SECONDS = 5  # until Ctrl-C; ten such have no effect
HOSTILE = [
    "", " ", "-", "--", "-1", "0", "1", "2", "7", "-0.0", "0.5", "1e-300", "1e999", "-inf", "inf", "nan",
    "9" * 40, "0x10", "1_0", "٣", "½", "true", "auto", "all", "none", "default", "{}", "[]", '{"a": 1}',
    "%s%d{}", "{0.__class__}", "a" * 5000, "\n", "\r", "\t", "\x1b[2J", "\x7f", "\ufeff", "\u202e", "😀",
    "\udcff", "../x", "./", "~", "~nobody/x", "x/y/z", "/dev/null", "file", "folder", "binary",
    "run", "*", "$HOME", "`id`", ";", "a=b", "=", ",", ":", "min-k", "min-k:tau=nan", "min-k:tau=1,tau=2",
    "top-p:p=2", "greedy", "mirostat:version=3", "1:1", "0:-inf", "5:nan", "hf:a/b:c", "hf:", "ollama:x",
    "lmstudio:../..", "file:x", "gsm8k", "gpqa", "gsm8k=file", "localhost:1",
]  # fmt: skip


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command of a program, with the words that name it."""
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from commands(sub, (*path, name))
    else:
        yield path, command


def value(rng: Random, parameter: click.Parameter, model: str) -> str:
    """Return a value for a parameter: hostile, or one that may be right."""
    if rng.random() < 0.5:
        if isinstance(parameter.type, click.Choice):
            return str(rng.choice(list(parameter.type.choices)))
        if "model" in str(parameter.name):
            return model
        if isinstance(parameter.type, click.types.IntParamType | click.types.FloatParamType):
            return rng.choice(["1", "2", "3", "0.5"])
    return rng.choice(HOSTILE)


def arguments(rng: Random, command: click.Command, model: str) -> list[str]:
    words: list[str] = []
    for parameter in rng.sample(command.params, min(len(command.params), rng.choice([0, 1, 2, 3, 5, 9]))):
        if isinstance(parameter, click.Argument):
            words += [value(rng, parameter, model) for _ in range(rng.choice([1, 1, 2]))]
            continue
        words.append(rng.choice([*parameter.opts, *parameter.secondary_opts]))
        if not getattr(parameter, "is_flag", False) or rng.random() < 0.02:
            words += [value(rng, parameter, model) for _ in range(max(1, parameter.nargs))]
    if rng.random() < 0.7:  # what makes many of the others count
        for parameter in command.params:
            if parameter.name in ("model", "models") and isinstance(parameter, click.Option):
                words += [parameter.opts[0], model]
    return [*words, rng.choice(HOSTILE)] if rng.random() < 0.1 else words


def environment(rng: Random) -> dict[str, str]:
    """Return variables of settings; of most of the cases none."""
    names = [setting.envvar for setting in SETTINGS] if rng.random() < 0.2 else []
    chosen = rng.sample(names, min(len(names), 3))
    return {str(name): rng.choice(HOSTILE) for name in chosen}


def settings_file(rng: Random) -> bytes:
    """Return the content of a file of settings."""
    if rng.random() < 0.1:
        return rng.randbytes(200)
    lines = (
        ["[chat]"] if rng.random() < 0.9 else [rng.choice(["", "[chat", "[[chat]]", "chat = 1", "[other]"])]
    )
    for setting in rng.sample(SETTINGS, 3):
        text = rng.choice(HOSTILE)
        quoted = rng.choice(
            [text, repr(text), f'"{text}"', "1979-05-27", "[1, 'a']", "{a = 1}", "true", "1e400"]
        )
        lines.append(f"{rng.choice([str(setting.name), text])} = {quoted}")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def press_ctrl_c(*_: object) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # it would end the process, and all later cases
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def ctrl_c(seconds: float) -> Iterator[None]:
    """Send Ctrl-C to this process after some seconds, and each second from then on."""
    signal.signal(signal.SIGALRM, press_ctrl_c)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def called(
    program: str, command: click.Command, words: list[str], env: dict[str, str], seconds: float = SECONDS
) -> tuple[int, str]:
    """Return the exit status of a program in this process, and what it wrote to standard error."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), errors="backslashreplace", write_through=True) for _ in range(2)
    )
    piped = io.TextIOWrapper(io.BytesIO())
    streams = mock.patch.multiple(sys, argv=[program, *words], stdin=piped, stdout=out, stderr=err)
    status: Any = 0
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with streams, mock.patch.dict(os.environ, env):
        try:
            with ctrl_c(seconds):
                run(command, program)
        except SystemExit as end:
            status = end.code or 0
    return status, err.buffer.getvalue().decode("utf-8", "replace")


def begin(shared: Path) -> Case:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    model = str(write_model(shared / "tiny.gguf", resolve("smollm2-135m").path))
    os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # nobody answers
    import mink_local.llama.rpc
    import mink_local.serve.start

    mink_local.llama.rpc.run_server = lambda *_: None
    mink_local.serve.start.serve = lambda *_, **__: None
    programs = {name: importlib.import_module(module).cli for name, module in PROGRAMS.items()}
    # A process cannot repeat what Ctrl-C has cut off in the middle: an import, the compilation of a kernel.
    importlib.import_module("lm_eval.evaluator")
    called("mink-bench", programs["mink-bench"], ["sampler", "--model", model], {}, seconds=600)

    def case(rng: Random, folder: Path) -> str:
        here = folder / "a" / "b" / "c"  # so that ../x stays below
        here.mkdir(parents=True)
        os.chdir(here)
        (here / "folder").mkdir()
        (here / "file").write_text("1\n")
        (here / "binary").write_bytes(rng.randbytes(99))
        (here / "settings.toml").write_bytes(settings_file(rng))
        program, command = rng.choice(list(programs.items()))
        path, sub = rng.choice(list(commands(command)))
        words = [*path, *arguments(rng, sub, model)]
        env = environment(rng)
        if program == "mink-chat":
            words = rng.choice([words, ["--prompt", "Hi", "-n", "3", "--model", model, *words]])
            if rng.random() < 0.3:
                words += ["--config", "settings.toml"]
        (folder / "command.txt").write_text(f"{env}\n{program} {words}\n", errors="backslashreplace")
        status, error = called(program, command, words, env)
        if status not in (0, 1, 2, 130) or "Traceback" in error:
            raise FaultError("death", f"{env} {program} {words}: exit status {status}\n{error[-3000:]}")
        if status in (1, 2) and not error.strip():
            raise FaultError("death", f"{env} {program} {words}: exit status {status} without a sentence")
        return f"{program} {status}"

    return case


KIND = Kind("lines", 10_000, begin)
