"""The line that each request leaves in the log."""

import httpx
import pytest

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
        assert any(word.startswith("first_token_seconds=") for word in words)


def test_a_refusal_says_why_in_one_line(server: RunningServer) -> None:
    refused = server.post("/v1/completions", prompt="x", model="a\nb\x1b[31m")
    assert "there is no model" in line(server, refused)
    assert "\x1b" not in line(server, refused)
    assert " 404 " in line(server, refused)


def test_what_strangers_choose_is_cut_and_their_address_named(server: RunningServer) -> None:
    found = line(server, httpx.get(f"{server.url}/{'x' * 9000}"))
    assert len(found) < 1000
    assert "address=127.0.0.1" in found.split()


def test_fields_without_effect_are_named_in_the_line(server: RunningServer) -> None:
    response = server.post("/v1/completions", prompt="x", max_tokens=1, smoothing_factor=0.3, temprature=1)
    assert response.headers["x-mink-ignored"] == "smoothing_factor,temprature"
    assert "ignored=smoothing_factor,temprature" in line(server, response).split()


def test_who_leaves_before_the_first_token_is_logged_without_its_time(server: RunningServer) -> None:
    asked, timeout = {"prompt": "word " * 400}, httpx.Timeout(60, read=0.1)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/completions", json=asked, headers={"X-Request-Id": "left"}, timeout=timeout
        )
    until(lambda: any("client_id=left" in said for said in server.said))
    [found] = [said for said in server.said if "client_id=left" in said]
    assert {"499", "finish_reason=left"} <= {*found.split()}
    assert "first_token_seconds=" not in found
    record = httpx.get(f"{server.url}/history/{found.split('id=')[-1].strip()}").json()
    assert record["answers"][0]["finish_reason"] == "left"


def test_who_leaves_a_stream_is_logged_as_one_who_left(server: RunningServer) -> None:
    asked = {"prompt": "x", "max_tokens": 400, "ignore_eos": True, "stream": True}
    headers = {"X-Request-Id": "left-a-stream"}
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json=asked, headers=headers, timeout=60
    ) as answer:
        next(answer.iter_raw())
    until(lambda: any("client_id=left-a-stream" in said for said in server.said))
    [found] = [said for said in server.said if "client_id=left-a-stream" in said]
    assert {"499", "finish_reason=left"} <= {*found.split()}


def test_a_clients_id_is_kept_if_it_is_safe_to_log(server: RunningServer) -> None:
    """It names the request in the log and the response, and nothing else: another client may choose it."""

    def post(client_id: str, path: str = "/v1/completions", **fields: object) -> httpx.Response:
        headers = {"X-Request-Id": client_id}
        return httpx.post(f"{server.url}{path}", json=fields, headers=headers, timeout=60)

    for n, client_id in enumerate(("0ad5c2b4-11f7", "a/b+c=:.", "z" * 128)):
        answered = post(client_id, prompt=f"{n}", max_tokens=1)
        assert answered.headers["x-request-id"] == client_id
        assert f"client_id={client_id}" in line(server, answered)
        ids = [answered.json()["id"], client_id.replace("/", "%2F")]
        found = [httpx.get(f"{server.url}/history/{request_id}").status_code for request_id in ids]
        assert found == [200, 404]
    assert post("refused", path="/nothing").headers["x-request-id"] == "refused"
    for client_id in ("", "two words", "x" * 129, 'a"b', "a=\x1b[31m", "\u00e9", "a\tb"):
        answered = httpx.post(
            f"{server.url}/tokenize",
            json={"content": "x"},
            headers={b"X-Request-Id": client_id.encode("latin-1")},
        )
        assert answered.headers.get("x-request-id", "req_").startswith("req_")
        assert not any(f"client_id={client_id}" in said for said in server.said if client_id)


def test_polls_are_not_logged(server: RunningServer) -> None:
    polls = [httpx.get(f"{server.url}{path}") for path in ("/health", "/ready", "/metrics")]
    line(server, server.post("/tokenize", content="x"))  # written after them
    ids = [poll.headers["x-request-id"] for poll in polls]
    assert not any(request_id in said for said in server.said for request_id in ids)
