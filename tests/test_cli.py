"""What the programs share: exit statuses, encodings, closed pipes, option types."""

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from mink_local.cli import INTERRUPTED, AutoOrInt, FiniteFloat, PrintableFormatter, run
from mink_local.errors import MinkError, ModelNotFoundError, OptionError
from mink_local.models.options import SamplerType, rpc_option
from mink_local.samplers import MinK, TopP
from tests.support.effort import examples
from tests.support.python import Finished


def program(error: BaseException | None) -> Callable[[], None]:
    """The main function of a program whose command raises `error`."""

    @click.command()
    def command() -> None:
        if error is not None:
            raise error

    return partial(run, command, "program")


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (None, 0, ""),
        (MinkError("no disk"), 1, "program: no disk\n"),
        (ModelNotFoundError("no model"), 2, "program: no model\n"),
        (OptionError("chat_template", "must be Jinja"), 2, "program: chat_template must be Jinja\n"),
        (click.BadParameter("no number"), 2, "program: Invalid value: no number\n"),
        (click.Abort(), INTERRUPTED, ""),
        (KeyboardInterrupt(), INTERRUPTED, "\n"),
    ],
)
def test_every_end_has_a_status_and_a_message(
    run_main: Callable[..., Finished], error: BaseException | None, status: int, message: str
) -> None:
    assert run_main(program(error)) == (status, "", message)


def test_an_error_of_ours_is_not_hidden(run_main: Callable[..., Finished]) -> None:
    for error in (KeyError("x"), OSError(errno.EINVAL, "invalid", "a file"), OSError(errno.EIO, "broken")):
        with pytest.raises(type(error)):
            run_main(program(error))


PROGRAM = """
import click, os, sys
from mink_local.cli import run

@click.command()
def command():
    {body}

run(command, "program")
"""


def python(body: str, **options: object) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-X", "utf8=0", "-c", PROGRAM.format(body=body)], stderr=subprocess.PIPE, **options
    )


def test_a_file_gets_utf_8_and_no_character_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("PYTHONCOERCECLOCALE", "0")
    body = r"print('\u25b2 \udc80'); print('\u03c3 \udc80', file=sys.stderr)"
    child = python(body, stdout=subprocess.PIPE)
    shown = [child.stdout.decode().splitlines(), child.stderr.decode().splitlines()]
    assert (child.returncode, shown) == (0, [["▲ ?"], ["σ \\udc80"]])
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert python(r"print('\u00e9 \u25b2')", stdout=subprocess.PIPE).stdout.split() == [b"\xe9", b"?"]


@pytest.mark.parametrize("size", [1, 1_000_000])  # noticed at the end, and in the middle
def test_a_reader_that_leaves_is_no_traceback(size: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = python(f"sys.stdout.write('x' * {size})", stdout=writer)
    os.close(writer)
    assert (child.returncode, child.stderr) == (1, b"")


def test_a_loader_that_does_not_end_keeps_no_interrupted_program() -> None:
    child = python(
        "import threading; print('on')\n"
        "    threading.Thread(target=threading.Event().wait, name='loading').start()\n"
        "    raise KeyboardInterrupt",
        stdout=subprocess.PIPE,
        timeout=60,
    )
    assert (child.returncode, child.stdout.split()) == (INTERRUPTED, [b"on"])


def with_closed(streams: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Run Python as a shell does that closes streams, such as `>&-`."""
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, check=False)


STREAMS = """
    assert sys.stdin is None or not sys.stdin.read()
    assert os.open(os.devnull, 0) > 2
    os.write(2, b'')
    sys.stderr.write('note ')
    sys.stdout.write('text')
"""


@pytest.mark.posix
@pytest.mark.parametrize(("streams", "status", "stdout", "stderr"), [
    ("<&-", 0, b"text", b"note "),
    (">&-", 1, b"", b"note program: standard output: Bad file descriptor\n"),
    ("2>&-", 0, b"text", b""),
    ("<&- >&- 2>&-", 1, b"", b""),
])  # fmt: skip
def test_a_stream_that_is_closed(streams: str, status: int, stdout: bytes, stderr: bytes) -> None:
    """Input is empty, output is not lost in silence, and no file gets the number of a stream."""
    child = with_closed(
        f"{streams} {'' if '<' in streams else '</dev/null'}", "-c", PROGRAM.format(body=STREAMS)
    )
    assert (child.returncode, child.stdout, child.stderr) == (status, stdout, stderr)


@pytest.mark.posix
@pytest.mark.parametrize("name", ["bench", "chat", "evals", "manage", "serve"])
def test_no_program_needs_open_streams(name: str) -> None:
    program = f"from mink_local.{name}.cli import main; main()"
    child = with_closed(">&-", "-c", program, "--help")
    assert (child.returncode, child.stderr.count(b"\n")) == (1, 1), child.stderr
    for streams in ("2>&-", "<&-"):
        child = with_closed(streams, "-c", program, "--help")
        assert (child.returncode, child.stderr) == (0, b"")
        assert b"Usage" in child.stdout


@pytest.mark.posix
@pytest.mark.usefixtures("own_files")
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("chat", ["--config"]),
        ("chat", ["Hi", "--json-schema"]),
        ("evals", ["run"]),
        ("evals", ["quants", "smollm2-135m", "--kv-type", "f16", "--kv-type", "q8_0", "--text"]),
        ("evals", ["frontier", "-m", "smollm2-135m", "--reference", "smollm2-135m", "--text"]),
        ("manage", ["info"]),
        ("serve", ["--api-key-file"]),
    ],
)
def test_a_pipe_is_no_file(
    name: str, arguments: list[str], run_main: Callable[..., Finished], tmp_path: Path
) -> None:
    """Opening one would wait for whoever writes to it."""
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    main = import_module(f"mink_local.{name}.cli").main
    result = run_main(main, *arguments, pipe)
    assert result.status in (1, 2)
    assert str(pipe) in result.stderr.replace("\n", "")


@pytest.mark.parametrize(
    ("name", "arguments", "variable"),
    [
        ("serve", [], "MINK_SERVE_TEMP"),
        ("serve", [], "MINK_SERVE_RPC"),
        ("evals", ["run", "sample-math"], "MINK_RPC"),
    ],
)
def test_a_bad_variable_is_named(
    name: str,
    arguments: list[str],
    variable: str,
    run_main: Callable[..., Finished],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(variable, "x")
    run_main(import_module(f"mink_local.{name}.cli").main, *arguments).refused(2, variable, "'x'")


def test_no_columns_are_an_unknown_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    width = "import rich.console; print(rich.console.Console().width)"
    known = 80 - (sys.platform == "win32")  # whose old consoles wrap at the last column
    assert int(python(width, stdout=subprocess.PIPE).stdout) == known


@pytest.mark.parametrize("name", ["bench", "evals", "manage"])
def test_a_program_of_several_commands_alone_shows_its_help(
    name: str, run_main: Callable[..., Finished]
) -> None:
    main = import_module(f"mink_local.{name}.cli").main
    helps = [run_main(main, *arguments) for arguments in ((), ("-h",), ("--help",))]
    assert (helps[0].status, helps[0].stderr) == (0, "")
    assert helps[0] == helps[1] == helps[2]
    assert "Exit status" in helps[0].stdout


def option(kind: click.ParamType, *arguments: str) -> Result:  # type: ignore[type-arg]
    @click.command()
    @click.option("--x", type=kind)
    def command(x: object) -> None:
        click.echo(repr(x))

    return CliRunner().invoke(command, arguments)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (AutoOrInt(-1), "auto", "auto"),
        (AutoOrInt(-1), "-1", -1),
        (AutoOrInt(1, 8), "8", 8),
        (FiniteFloat(min=0), "0", 0.0),
        (SamplerType(), "min-k:tau=1", MinK(tau=1.0)),
        (rpc_option.attributes["type"], "a:1,b:2", ("a:1", "b:2")),
    ],
)
def test_option_types(kind: click.ParamType, text: str, value: object) -> None:  # type: ignore[type-arg]
    result = option(kind, "--x", text)
    assert (result.exit_code, result.output) == (0, f"{value!r}\n")


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (AutoOrInt(-1), "-2", "-2"),
        (AutoOrInt(-1), "1.5", "1.5"),
        (AutoOrInt(1, 8), "9", "9"),
        (AutoOrInt(1, 8), "some", "'some'"),
        (FiniteFloat(min=0), "nan", "nan"),
        (FiniteFloat(min=0), "inf", "inf"),
        (FiniteFloat(min=0), "-1", "at least 0, not -1"),
        (SamplerType(), "top-p:p=2", "p must"),
        (SamplerType(), "best", "'best'"),
        (rpc_option.attributes["type"], "a", "'a'"),
    ],
)
def test_option_types_refuse(kind: click.ParamType, text: str, wrong: str) -> None:  # type: ignore[type-arg]
    result = option(kind, "--x", text)
    assert result.exit_code == 2
    assert wrong in result.output


def test_a_sampler_that_is_one_stays_and_its_name_is_completed() -> None:
    sampler = TopP(p=0.5)
    assert SamplerType().convert(sampler, None, None) is sampler
    command = click.Command("x", params=[click.Option(["--x"], type=SamplerType())])
    items = SamplerType().shell_complete(click.Context(command), command.params[0], "top")
    assert [item.value for item in items] == ["top-n-sigma", "top-k", "top-a", "top-p"]


def test_log_lines_have_no_control_characters() -> None:
    record = logging.makeLogRecord({"msg": "the file %r is \x1b[31mred", "args": ("\x9b",)})
    assert PrintableFormatter("x: %(message)s").format(record) == "x: the file '\\x9b' is ␛[31mred"


# Any command line of any program ends in an exit status and one sentence, never in a traceback


MODULES = ["chat.cli", "evals.cli", "manage.cli", "serve.cli", "bench.cli"]
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


@pytest.mark.slow
@pytest.mark.posix
@pytest.mark.usefixtures("own_files")  # not the user's conversations and settings
@examples(25)
@given(st.integers(0, 2**32))
def test_a_random_command_line(tmp_path: Path, tiny_path: Path, seed: int) -> None:
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
    # llama.cpp's RPC server is ended by the signal itself, which a shell calls 130, too.
    assert process.returncode in (0, 1, 2, 130, -signal.SIGINT)
    assert b"Traceback" not in errors
    assert errors.strip() or process.returncode not in (1, 2)
