"""The line that each request leaves in the log."""

import httpx

from tests.support.http import until
from tests.support.server import RunningServer


def line(server: RunningServer, response: httpx.Response) -> str:
    """The line of a response, which is written when it has ended."""
    request_id = response.headers["x-request-id"]
    until(lambda: any(request_id in said for said in server.said))
    [found] = [said for said in server.said if request_id in said]
    return found


def test_an_answer_is_one_line(server: RunningServer) -> None:
    for is_stream in (False, True):
        response = server.post(
            "/v1/completions",
            prompt="One, two,",
            max_tokens=5,
            ignore_eos=True,
            temperature=5,
            sampler="min-k:tau=3",
            stream=is_stream,
        )
        words = line(server, response).split()
        assert {"POST", "'/v1/completions'", "200", "model=smollm2-135m"} <= {*words}
        assert {
            "sampler=min-k:tau=3",
            "temperature=5.0",
            "completion_tokens=5",
        } <= {*words}
        assert any(word.startswith("first_token_seconds=0.") for word in words)


def test_a_refusal_says_why_in_one_line(server: RunningServer) -> None:
    refused = server.post("/v1/completions", prompt="x", model="a\nb\x1b[31m")
    assert "there is no model" in line(server, refused)
    assert "\x1b" not in line(server, refused)
    assert " 404 " in line(server, refused)


def test_polls_are_not_logged(server: RunningServer) -> None:
    polls = [httpx.get(f"{server.url}{path}") for path in ("/health", "/metrics", "/v1/health")]
    line(server, server.post("/tokenize", content="x"))  # written after them
    ids = [poll.headers["x-request-id"] for poll in polls]
    assert not any(request_id in said for said in server.said for request_id in ids)
