"""Options and arguments that several commands of `mink-eval` have."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from mink_local.models.options import SamplerType

POSITIVE = click.IntRange(min=1)

samplers_option = partial(click.option, "--sampler", "-s", "samplers", multiple=True, type=SamplerType())

run_folder_argument = click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)

quiet_option = click.option("--quiet", "-q", is_flag=True, help="Show no progress.")


def results_folder_option(default: str) -> Callable[[Any], Any]:
    """Return the option of the folder that a measurement writes to."""
    return click.option(
        "--out",
        "-o",
        type=click.Path(path_type=Path, file_okay=False),
        default=default,
        metavar="DIR",
        help="Folder of the results; what is there is continued.",
    )
