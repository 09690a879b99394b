"""What the command-line programs share: option types, and one sentence for whatever goes wrong."""

import logging
import math
import os
import sys
from typing import Any

import click

from mink_local.errors import MinkError, ModelNotFoundError, TaskNotFoundError
from mink_local.models.catalog import DEFAULT_MODEL

model_option = click.option(
    "--model",
    "-m",
    default=DEFAULT_MODEL,
    show_default=True,
    metavar="NAME|PATH",
    help="A name of models.txt, a .gguf file, or hf:…, ollama:…, lmstudio:… (see mink-models --help).",
)

INTERRUPTED = 130  # the shell's exit status for a program that Ctrl-C ended


def run(command: click.Command, program: str) -> None:
    """Run a program to its exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    logging.basicConfig(format=f"{program}: %(message)s", level=logging.WARNING)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")
    try:
        status = command.main(prog_name=program, standalone_mode=False) or 0
        sys.stdout.flush()
    except click.ClickException as error:
        status = _fail(program, error.format_message(), error.exit_code)
    except (ModelNotFoundError, TaskNotFoundError) as error:
        status = _fail(program, str(error), 2)
    except MinkError as error:
        status = _fail(program, str(error), 1)
    except (click.Abort, KeyboardInterrupt):
        status = INTERRUPTED
    except BrokenPipeError:  # whoever read the answer has had enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


def _fail(program: str, sentence: str, status: int) -> int:
    print(f"{program}: {sentence}", file=sys.stderr)
    return status


def finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    """Option callback: what click's ranges let pass and is no number."""
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number.")
    return value


class GpuLayers(click.ParamType["int | str"]):
    name = "auto|N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "auto":
            return value
        try:
            layers = int(value)
        except ValueError:
            layers = -2
        if layers < -1:
            self.fail(f"{value!r} is neither auto nor a number (-1: all layers).", param, ctx)
        return layers
