"""Requests that schemathesis makes up from the OpenAPI document, right ones and wrong ones."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from mink_local.serve.endpoints.state import OPENAPI
from tests.support.server import RunningServer, running_server

schemathesis = pytest.importorskip("schemathesis")
results = pytest.importorskip("schemathesis.core.result")
checks = pytest.importorskip("schemathesis.specs.openapi.checks")

OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for found in schemathesis.openapi.from_path(OPENAPI).get_all_operations()
    if isinstance(found, results.Ok) and (operation := found.ok())
}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def brief() -> Iterator[RunningServer]:
    """A server whose answers are short."""
    with running_server("--max-tokens", "2") as server:
        yield server


def test_the_document_is_served(brief: RunningServer) -> None:
    assert httpx.get(f"{brief.url}/openapi.json").content == OPENAPI.read_bytes()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_is_a_result_or_an_error_body(brief: RunningServer, operation: str) -> None:
    right = OPERATIONS[operation].as_strategy()
    wrong = OPERATIONS[operation].as_strategy(generation_mode=schemathesis.GenerationMode.NEGATIVE)

    @given(case=right | wrong if operation.startswith("POST") else right)
    @settings(
        max_examples=25,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=[Phase.generate],
    )  # shrinking takes minutes
    def check(case: Any) -> None:
        response = case.call(base_url=brief.url)
        case.validate_response(response, checks=[checks.response_schema_conformance])
        if response.status_code < 400:
            return
        assert response.status_code < 500, response.text
        error = response.json()["error"]
        assert error.keys() >= {"message", "type", "param", "code"}
        assert error["message"]

    check()
    assert brief.process.poll() is None
