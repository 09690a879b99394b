"""Requests that schemathesis makes up from the OpenAPI document, right ones and wrong ones."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.support.server import running_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def document() -> Iterator[Any]:
    """The document of a server whose answers are short."""
    with running_server("--max-tokens", "2") as server:
        yield schemathesis.openapi.from_url(f"{server.url}/openapi.json")


schema = schemathesis.pytest.from_fixture("document")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_a_result_or_an_error_body(case: Any) -> None:
    response = case.call()
    if response.status_code < 400:
        return
    assert response.status_code < 500 or response.status_code == 501, response.text
    assert set(response.json()["error"]) >= {"message", "type", "param", "code"}
    assert response.json()["error"]["message"]
