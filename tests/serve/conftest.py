"""One mink-serve for the tests of the room that change nothing about it."""

from collections.abc import Iterator

import pytest

from tests.support.server import RunningServer, running_server


@pytest.fixture
def anyio_backend() -> str:
    """What runs the tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    """A running mink-serve with the embedded model and four slots."""
    with running_server() as running:
        yield running
