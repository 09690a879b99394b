"""The libraries that only reports and judges need, those of the extra "eval"."""

from collections.abc import Iterator
from contextlib import contextmanager

import click


@contextmanager
def saying_what_is_missing() -> Iterator[None]:
    """Say how to install a library of the extra "eval" that is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise click.UsageError(
            f'this needs {library}: type  python -m pip install "mink-local[eval]"'
        ) from None
