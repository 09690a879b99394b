"""A server on this machine that speaks the part of the Hugging Face Hub's protocol that a download needs."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPOSITORY = "parrots/tiny-GGUF"


@dataclass
class Hub:
    """The files of the server, its faults, and the requests that it got.

    Attributes:
        files: Content of each file.
        cut_after: Bytes after which the server closes each of the next connections.
        corrupt: It sends other bytes than it gives the hash of.
        token: Without it files are gated.
        claimed_size: A size for every file in the listing instead of the real one.
        status: Every request is refused with it.
        garbage: Every request is answered with it.
        requests: Path and Range of each.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    corrupt: bool = False
    token: str | None = None
    claimed_size: int | None = None
    status: int | None = None
    garbage: bytes | None = None
    url: str = ""
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def listing(self) -> dict[str, object]:
        def sibling(name: str, content: bytes) -> dict[str, object]:
            size = self.claimed_size or len(content)
            sha256 = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": sha256, "size": size, "pointerSize": 134}
            return {"rfilename": name, "size": size, "blobId": "f" * 40, "lfs": lfs}

        siblings = [sibling(name, content) for name, content in self.files.items()]
        return {"_id": "0", "id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": siblings}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer for `hub` at `hub.url` while the context lasts."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.requests.append((path, self.headers.get("Range")))
            if hub.status:
                self._refuse(hub.status)
            elif hub.garbage is not None:
                self._answer(200, hub.garbage)
            elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
                self._listing(*match.groups())
            elif match := re.fullmatch(rf"/{REPOSITORY}/resolve/([^/]+)/(.+)", path):
                self._file(match[2])
            else:
                self._refuse(404, "EntryNotFound")

        def _listing(self, repository: str, revision: str) -> None:
            if repository != REPOSITORY:  # as the Hub does, which does not tell a private one from none
                self._refuse(401, "RepoNotFound")
            elif revision not in ("main", COMMIT):
                self._refuse(404, "RevisionNotFound")
            else:
                self._answer(200, json.dumps(hub.listing()).encode())

        def _file(self, name: str) -> None:
            if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            elif name not in hub.files:
                self._refuse(404, "EntryNotFound")
            else:
                self._send(hub.files[name])

        def _send(self, content: bytes) -> None:
            if hub.corrupt:
                content = bytes([content[0] ^ 1]) + content[1:]
            start = (
                int(match[1]) if (match := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
            )
            self.send_response(206 if start else 200)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            whole = content[start:]
            self.wfile.write(whole[: hub.cut_after.pop(0)] if hub.cut_after else whole)

        def _refuse(self, status: int, code: str = "") -> None:
            self._answer(status, b"{}", **({"X-Error-Code": code} if code else {}))

        def _answer(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
