"""A server on this machine that speaks the part of the Hugging Face Hub's protocol that a download needs."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.http import serving

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
        words: The reason that it gives.
        page: What it sends in place of a file: its status, content and headers.
        ignores_range: It sends files from their beginning.
        redirect: Where it sends those who want a file.
        garbage: Every request is answered with it.
        plain: Names of files that are not stored with LFS, so that the listing has no SHA-256.
        requests: Path and Range of each.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)
    corrupt: bool = False
    token: str | None = None
    claimed_size: int | None = None
    status: int | None = None
    words: str = ""
    page: tuple[int, bytes, dict[str, str]] | None = None
    ignores_range: bool = False
    redirect: str = ""
    garbage: bytes | None = None
    url: str = ""
    plain: tuple[str, ...] = ()
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def listing(self) -> dict[str, object]:
        def sibling(name: str, content: bytes) -> dict[str, object]:
            size = self.claimed_size or len(content)
            sha256 = hashlib.sha256(content).hexdigest()
            lfs = {"sha256": sha256, "size": size, "pointerSize": 134}
            stored = {} if name in self.plain else {"lfs": lfs}
            return {"rfilename": name, "size": size, "blobId": "f" * 40, **stored}

        siblings = [sibling(name, content) for name, content in self.files.items()]
        return {"_id": "0", "id": REPOSITORY, "modelId": REPOSITORY, "sha": COMMIT, "siblings": siblings}


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    """Answer for `hub` at `hub.url` while the context lasts."""

    async def answer(request: Request) -> Response:
        path = request.url.path
        hub.requests.append((path, request.headers.get("range")))
        if hub.status:
            return Response(b"{}", hub.status, {"x-error-message": hub.words})
        if hub.garbage is not None:
            return Response(hub.garbage)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            return _listing(hub, *match.groups())
        if match := re.fullmatch(rf"/{REPOSITORY}/resolve/([^/]+)/(.+)", path):
            return _file(hub, match[2], request)
        return _refusal(404, "EntryNotFound")

    with serving(Starlette(routes=[Route("/{path:path}", answer)]), http="h11") as port:
        hub.url = f"http://127.0.0.1:{port}"
        yield hub


def _refusal(status: int, code: str = "") -> Response:
    return Response(b"{}", status, {"x-error-code": code} if code else {})


def _listing(hub: Hub, repository: str, revision: str) -> Response:
    if repository != REPOSITORY:  # as the Hub does, which does not tell a private one from none
        return _refusal(401, "RepoNotFound")
    if revision not in ("main", COMMIT):
        return _refusal(404, "RevisionNotFound")
    return JSONResponse(hub.listing())


def _page(status: int, content: bytes, headers: dict[str, str]) -> Response:
    if "transfer-encoding" in headers:
        return StreamingResponse(iter([content]))
    return Response(content, status, headers)


def _file(hub: Hub, name: str, request: Request) -> Response:
    key = request.headers.get("authorization")
    if hub.token and key != f"Bearer {hub.token}":
        return _refusal(403 if key else 401, "GatedRepo")
    if hub.redirect:
        return RedirectResponse(hub.redirect)
    if hub.page:
        return _page(*hub.page)
    if name not in hub.files:
        return _refusal(404, "EntryNotFound")
    content = hub.files[name]
    if hub.corrupt:
        content = content[:-1] + bytes([content[-1] ^ 1])
    match = re.match(r"bytes=(\d+)-", request.headers.get("range", ""))
    start = int(match[1]) if match and not hub.ignores_range else 0
    headers = {
        "etag": f'"{hashlib.sha256(content).hexdigest()}"',
        "x-repo-commit": COMMIT,
        "content-length": str(len(content) - start),
        "content-range": f"bytes {start}-{len(content) - 1}/{len(content)}",
    }
    sent = len(content) if not hub.cut_after else start + hub.cut_after.pop(0)
    return Response(content[start:sent], 206 if start else 200, headers)
