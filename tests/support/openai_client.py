"""The openai library as a client of a mink-serve."""

from openai import OpenAI

from tests.support.server import RunningServer


def strict_openai(server: RunningServer) -> OpenAI:
    """Return a client that validates every response and tries nothing twice."""
    return OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    )
