"""Shared by all programs: the main function with its exit statuses, and option types."""

import difflib
import errno
import gc
import logging
import math
import os
import re
import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mink_local.checks import Range
from mink_local.errors import MinkError, ModelNotFoundError, OptionError, TaskNotFoundError
from mink_local.files import as_text, regular
from mink_local.interrupts import lost_interrupts_repeated, was_interrupted
from mink_local.threads import LOADING, WAIT_SECONDS

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130  # the shell's exit status for a program ended by Ctrl-C
_CANNOT_BE_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

# Control characters and their replacements: the Unicode control picture, or U+FFFD for C1 controls and for
# marks that change the writing direction.
UNPRINTABLE = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"} | {0x7F: 0x2421}
UNPRINTABLE |= dict.fromkeys((*range(0x80, 0xA0), 0x061C, 0x200E, 0x200F), 0xFFFD)
UNPRINTABLE |= dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
NO_TEXT = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
"""These, line breaks and bytes that are not UTF-8, as a set of a regular expression."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")


def run(command: click.Command, program: str) -> None:
    """Run a program and exit with its status: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    _replace_closed_streams()
    handler = logging.lastResort  # writes to the current sys.stderr, for example above a progress bar
    assert handler
    handler.setFormatter(PrintableFormatter(f"{program}: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    gc.set_threshold(50_000)  # imported objects stay; the default, 700, would scan them over and over
    _write_any_character()
    if not os.environ.get("COLUMNS", "1").strip("0"):
        del os.environ["COLUMNS"]  # 0 is unknown, and no width
    is_help = isinstance(command, click.Group) and not sys.argv[1:]
    try:
        with lost_interrupts_repeated():
            arguments = ["--help"] if is_help else None
            status = command.main(arguments, prog_name=program, standalone_mode=False) or 0
            sys.stdout.flush()
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.possibilities:
            del error.possibilities[1:]  # the nearest is first; click would list three by the alphabet
        status = _fail(program, error.format_message() + _origin(error), error.exit_code)
    except (ModelNotFoundError, OptionError, TaskNotFoundError) as error:
        status = _fail(program, str(error), 2)
    except MinkError as error:
        status = _fail(program, str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except SystemExit as end:  # from click, if the reader of stdout is gone; Ctrl-C ends both
        status = INTERRUPTED if was_interrupted() else end.code
    except OSError as error:
        if error.filename is None and error.errno in _CANNOT_BE_WRITTEN:
            status = _fail(program, f"standard output: {error.strerror}", 1)
        elif _reader_has_left(error):
            status = 1
        else:
            raise
        _print_no_more()
    gc.freeze()  # a final collection of all that Numba allocated would take longer than importing it
    if status == INTERRUPTED:
        _leave_loader()
    sys.exit(status)


def _leave_loader() -> None:
    """End an interrupted program at once if llama.cpp, which reads a vocabulary to its end, still loads."""
    for thread in threading.enumerate():
        if thread.name == LOADING:
            thread.join(WAIT_SECONDS)
            if thread.is_alive():
                with suppress(OSError):
                    sys.stdout.flush()
                os._exit(INTERRUPTED)


def _origin(error: click.ClickException) -> str:
    """Return where a bad value is from, to end the message: a variable or a file; "" for the command line."""
    context, option = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or not isinstance(option, click.Option):
        return ""
    origins = {
        ParameterSource.ENVIRONMENT: next(filter(os.environ.get, variables_of(option)), None),
        ParameterSource.DEFAULT_MAP: context.meta.get("config"),
    }
    origin = origins.get(context.get_parameter_source(option.name))
    return f" (in {origin})" if origin else ""


def variables_of(option: click.Option) -> Sequence[str]:
    """Return the environment variables that set an option; the first that is set does."""
    return [option.envvar] if isinstance(option.envvar, str) else option.envvar or []


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 token`, `2 tokens`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the ending of a message that suggests the closest known word; "" if none is close."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {near[0]}?" if near else ""


def printable(text: str) -> str:
    """Return a text with its control characters replaced: ESC becomes ␛, for example."""
    return text.replace("\r\n", "\n").translate(UNPRINTABLE)


def command_line_text(text: str) -> str:
    """Return a command line argument, with U+FFFD for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class PrintableFormatter(logging.Formatter):
    """Formats log records without control characters, which file and model names may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _replace_closed_streams() -> None:
    """Replace streams that the shell has closed (`>&-`), before another file gets their numbers.

    Input is empty, output cannot be written, and messages go nowhere.
    """
    ways = {"stdin": (os.O_RDONLY, "r"), "stdout": (os.O_RDONLY, "w"), "stderr": (os.O_WRONLY, "w")}
    for name, (flags, mode) in ways.items():
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


def _write_any_character() -> None:
    """Write UTF-8 to pipes and files, on Windows too, and ? for characters a terminal cannot display."""
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            is_set = stream.isatty() or "PYTHONIOENCODING" in os.environ
            stream.reconfigure(encoding=None if is_set else "utf-8", errors=errors)


def _fail(program: str, message: str, status: int) -> int:
    print(f"{program}: {printable(message)}", file=sys.stderr)
    return status


def show(text: str) -> None:
    """Print a text whose reader may leave early, as `head` does: the rest is dropped, and is no failure."""
    try:
        print(text, end="", flush=True)
    except OSError as error:
        if not _reader_has_left(error):
            raise
        _print_no_more()


@contextmanager
def no_blanks_at_line_ends(console: "Console") -> Iterator[None]:
    """Have a console print into a pipe without the blanks that its tables have at line ends."""
    if console.is_terminal:
        yield
        return
    with console.capture() as capture:
        yield
    show(re.sub(" +$", "", capture.get(), flags=re.MULTILINE))


def _print_no_more() -> None:
    """Drop what is printed from now on, and what was not written: Python flushes again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_left(error: OSError) -> bool:
    """Return whether the reader of standard output is gone, which Windows reports as EINVAL."""
    return error.errno == errno.EPIPE or (
        os.name == "nt" and error.errno == errno.EINVAL and error.filename is None
    )


class ParsedType(click.ParamType):  # type: ignore[type-arg]  # takes no type argument before click 8.4
    """Type of an option whose text a function reads; it raises ValueError for invalid text.

    Args:
        name: What help shows in place of a value.
        parse: The function.
    """

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


class FileText(str):
    """The text of a file, and its `path`."""

    path: str


# How files begin that are no text, what they are, and what to do with them; {} is their name.
_NO_TEXT_FILES = (
    (b"%PDF", "a PDF: pdftotext {} - prints its text"),
    (b"\x89PNG", "a picture, which no model here can see"),
    (b"\xff\xd8\xff", "a picture, which no model here can see"),
    (b"GIF8", "a picture, which no model here can see"),
    (b"PK\x03\x04", "an archive or an office document: save it as text"),
    (b"\x1f\x8b", "compressed: gzip -dc {} prints what it holds"),
    (b"GGUF", "a model: --model {} loads it"),
)


def decoded(data: bytes, name: str, file: str = "FILE") -> str:
    """Return the text of UTF-8, or of UTF-16 that begins with its mark, with the line ends of Unix.

    Raises:
        click.UsageError: It is neither; the message says what `name` is, and what to do with `file`.
    """
    try:
        return as_text(data).replace("\r\n", "\n")
    except UnicodeDecodeError:
        usual = "not UTF-8 text: iconv -f LATIN1 -t UTF-8 {} converts it, if it is Latin-1"
        if sys.platform == "win32":
            usual = "not UTF-8 text: save it as such; for a pipe, type chcp 65001 first, and in PowerShell "
            usual += "$OutputEncoding = [Text.UTF8Encoding]::new()"
        advice = next((words for begin, words in _NO_TEXT_FILES if data.startswith(begin)), usual)
        raise click.UsageError(f"{name} is {advice.format(file)}.") from None


def file_text(path: str) -> FileText:
    """Return the text of a file; - is standard input."""
    try:
        with click.open_file("-" if path == "-" else regular(Path(path)), "rb") as stream:
            text = FileText(decoded(stream.read(), path, shlex.quote(path)))
    except click.UsageError as error:
        raise click.BadParameter(error.message) from None
    except OSError as error:
        raise click.BadParameter(f"{path}: {error.strerror}.") from None
    text.path = path if path == "-" else os.path.abspath(path)
    return text


def _limits(it: "FiniteFloat | WholeNumber") -> Range:
    low = -math.inf if it.min is None else it.min
    high = math.inf if it.max is None else it.max
    return Range(low, high, it.min_open, it.max_open, whole=isinstance(it, WholeNumber))


def _range_in_words(it: "FiniteFloat | WholeNumber") -> str:
    """Return a range as help shows it: `0 to 65535`, `at least 1`."""
    return str(_limits(it)).removeprefix("from ")


def _in_range(
    it: "FiniteFloat | WholeNumber", value: Any, param: click.Parameter | None, ctx: click.Context | None
) -> Any:
    """Return a number; fail, in words rather than as `x>=0`, if it is not in a range."""
    number = super(click.types._NumberRangeBase, it).convert(value, param, ctx)  # type: ignore[misc]
    try:
        return _limits(it).check("it", number)
    except OptionError as error:
        it.fail(f"{error}.", param, ctx)


class FiniteFloat(click.FloatRange):
    """Type of an option that takes a finite number in a range."""

    name = "number"  # in messages
    _describe_range = _range_in_words
    convert = _in_range


class WholeNumber(click.IntRange):
    """Type of an option that takes a whole number in a range."""

    name = "whole number"  # in messages
    _describe_range = _range_in_words
    convert = _in_range


class AutoOrInt(WholeNumber):
    """Type of an option that takes `auto` or a whole number in a range."""

    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)


class FiniteOrInf(FiniteFloat):
    """Type of an option that takes a finite number in a range, or inf."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return math.inf if value in ("inf", math.inf) else super().convert(value, param, ctx)
