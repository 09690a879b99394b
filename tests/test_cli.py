"""What the programs share: exit statuses, encodings, closed pipes, option types."""

import errno
import logging
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import click
import pytest
from click.testing import CliRunner, Result

from mink_local.cli import INTERRUPTED, AutoOrInt, FiniteFloat, PrintableFormatter, run
from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.models.options import SamplerType, ServersType
from mink_local.samplers import MinK, TopP
from tests.support.python import Finished, output_of


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
    assert (child.returncode, child.stdout, child.stderr) == (0, "▲ ?\n".encode(), "σ \\udc80\n".encode())
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    assert python(r"print('\u00e9 \u25b2')", stdout=subprocess.PIPE).stdout == "é ?\n".encode("latin-1")


@pytest.mark.parametrize("size", [1, 1_000_000])  # noticed at the end, and in the middle
def test_a_reader_that_leaves_is_no_traceback(size: int) -> None:
    body = f"sys.stdin.read(); sys.stdout.write('x' * {size})"
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.close()
    child.stdout = None
    assert child.communicate()[1] == b""
    assert child.returncode == 1


def test_windows_calls_a_reader_that_left_an_invalid_argument() -> None:
    body = "os.name = 'nt'; raise OSError(22, 'Invalid argument')"
    child = python(body, stdout=subprocess.DEVNULL)
    assert (child.returncode, child.stderr) == (1, b"")


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
        (ServersType(), "a:1,b:2", ("a:1", "b:2")),
    ],
)
def test_option_types(kind: click.ParamType, text: str, value: object) -> None:  # type: ignore[type-arg]
    result = option(kind, "--x", text)
    assert (result.exit_code, result.output) == (0, f"{value!r}\n")


@pytest.mark.parametrize(
    ("kind", "text", "wrong"),
    [
        (AutoOrInt(-1), "-2", "'-2'"),
        (AutoOrInt(-1), "1.5", "'1.5'"),
        (AutoOrInt(1, 8), "9", "'9'"),
        (AutoOrInt(1, 8), "some", "'some'"),
        (FiniteFloat(min=0), "nan", "nan"),
        (FiniteFloat(min=0), "inf", "inf"),
        (FiniteFloat(min=0), "-1", "-1.0"),
        (SamplerType(), "top-p:p=2", "p must"),
        (SamplerType(), "best", "'best'"),
        (ServersType(), "a", "'a'"),
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


def test_the_programs_start_with_a_click_whose_types_take_no_argument() -> None:
    """Before 8.4 `click.ParamType[str]` is a TypeError."""
    code = """
import click
def refuse(cls, item): raise TypeError("type 'ParamType' is not subscriptable")
click.ParamType.__class_getitem__ = classmethod(refuse)
import mink_local.chat.cli, mink_local.evals.cli, mink_local.models.cli, mink_local.bench.cli
"""
    assert output_of("-c", code) == ""


def test_log_lines_have_no_control_characters() -> None:
    record = logging.makeLogRecord({"msg": "the file %r is \x1b[31mred", "args": ("\x9b",)})
    assert PrintableFormatter("x: %(message)s").format(record) == "x: the file '\\x9b' is ␛[31mred"
