"""Mutated answers of the Hugging Face Hub to a pull: refused, and what is in place is whole."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import close_session, constants

from mink_local.errors import MinkError
from mink_local.models import download
from mink_local.models.catalog import find
from scripts.faults.kind import Case, FaultError, Kind, check_sentence
from tests.support.hub import REPOSITORY, Hub, serve

CONTENT = Random(0).randbytes(100_000)
NAME = f"hf:{REPOSITORY}:big.gguf"
VALUES: list[Any] = [
    None, True, 0, -1, 1, 2**63, 1e308, "", "x", "../../x", "/etc/x.gguf", "C:\\x.gguf", "a" * 9999, "\x00",
    [], {}, [[]], "big.gguf", "0" * 40, "0" * 64, "\ud800",
]  # fmt: skip
STATUSES = b"200 204 206 301 302 304 400 401 403 404 416 429 500 xyz".split()
HEADERS = [
    b"Content-Length: 0", b"Content-Length: -1", b"Content-Length: 99999999999", b"Content-Length: x",
    b"Transfer-Encoding: chunked", b"Content-Encoding: gzip", b"Content-Encoding: nonsense", b"ETag: ",
    b"Content-Range: bytes 5-1/0", b"Content-Range: x", b"X-Error-Code: GatedRepo", b"X-Repo-Commit: ../..",
    b"X-Linked-Size: -1", b"Retry-After: 99999", b"Location: http://127.0.0.1:9/", b"Location: /",
    b"Location: file:///x", b"Set-Cookie: a=b", b"Link: <x>; rel=next", b"X: " + b"a" * 99_999,
    b"\xff: \xff", b"no colon",
]  # fmt: skip


def changed(rng: Random, value: Any) -> Any:
    """Return a JSON value with one part replaced, removed or doubled."""
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return rng.choice(VALUES)
    key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if rng.random() < 0.15:
        del value[key]
    elif isinstance(value, list) and rng.random() < 0.2:
        value.append(value[key])
    else:
        value[key] = changed(rng, value[key])
    return value


def mutated(rng: Random, answer: bytes) -> bytes:
    """Return an HTTP answer with other bytes, another status, other headers or another body."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    for _ in range(rng.choice([1, 1, 2, 4])):
        match rng.randrange(6):
            case 0:
                lines[0] = lines[0].replace(lines[0].split()[1], rng.choice(STATUSES), 1)
            case 1:
                lines.insert(rng.randrange(1, len(lines) + 1), rng.choice(HEADERS))
            case 2 if len(lines) > 1:
                del lines[rng.randrange(1, len(lines))]
            case 3 if body:
                at = rng.randrange(len(body))
                body = (
                    body[:at]
                    + rng.choice([b"", rng.randbytes(1), rng.randbytes(9)])
                    + body[at + rng.choice([0, 1]) :]
                )
            case 4 if body.startswith((b"{", b"[")):
                body = json.dumps(changed(rng, json.loads(body))).encode() if is_json(body) else body
                lines = [line for line in lines if not line.lower().startswith(b"content-length")]
                lines.append(b"Content-Length: %d" % len(body))
            case 5:
                whole = b"\r\n".join(lines) + b"\r\n\r\n" + body
                return whole[: rng.randrange(len(whole))]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def proxy(hub_port: int, mutate: Callable[[bytes], bytes]) -> int:
    """Start a server that hands on every answer of another one mutated; return its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def answer(client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", hub_port)) as hub:
            request = b""
            while b"\r\n\r\n" not in request and (part := client.recv(65536)):
                request += part
            hub.sendall(re.sub(rb"(?i)\r\nconnection: [^\r]*", b"", request))
            hub.shutdown(socket.SHUT_WR)
            whole = b""
            while part := hub.recv(65536):
                whole += part
            client.sendall(mutate(whole))

    def accept() -> None:
        while True:  # one answer after the other, so that a case is the same again
            with contextlib.suppress(OSError):  # the client has left
                answer(listening.accept()[0])

    threading.Thread(target=accept, daemon=True).start()
    return int(listening.getsockname()[1])


def begin(_: Path) -> Case:
    serving = serve(Hub({"big.gguf": CONTENT}))
    hub = serving.__enter__()
    state: dict[str, Any] = {"serving": serving, "mutate": lambda answer: answer}
    port = proxy(urlsplit(hub.url).port or 0, lambda answer: state["mutate"](answer))
    constants.ENDPOINT = f"http://127.0.0.1:{port}"
    constants.HUGGINGFACE_CO_URL_TEMPLATE = constants.ENDPOINT + "/{repo_id}/resolve/{revision}/{filename}"
    time.sleep = lambda _: None  # before another try

    def pull() -> Path | str:
        """Return the file, or the sentence with which the pull is refused."""
        entry = find(NAME)
        assert entry
        try:
            return download.pull(entry, lambda _: None)
        except MinkError as error:
            check_sentence(str(error))
            return str(error)
        finally:
            close_session()

    def case(rng: Random, folder: Path) -> str:
        constants.HF_HUB_CACHE = str(folder / "hub")
        part = rng.choice([0.3, 0.6, 1.0])  # of the answers
        state["mutate"] = lambda answer: mutated(rng, answer) if rng.random() < part else answer
        outcome = "refused" if isinstance(pull(), str) else "fetched"
        for file in folder.rglob("*"):
            if not file.is_relative_to(folder / "hub"):
                raise FaultError("loss", f"a pull writes {file}")
            if file.suffix == ".gguf" and file.is_file() and file.read_bytes() != CONTENT:
                raise FaultError("loss", f"{file} is in place and is not whole")
        state["mutate"] = lambda answer: answer
        path = pull()
        if isinstance(path, str) and "arrived damaged and was deleted" in path:  # it had a mutated beginning
            path = pull()
        if isinstance(path, str) or not path.is_relative_to(folder / "hub"):
            raise FaultError("loss", f"the next pull does not fetch the model: {path}")
        if path.read_bytes() != CONTENT:
            raise FaultError("loss", "the next pull fetches something else")
        return outcome

    return case


KIND = Kind("hub", 1000, begin)
