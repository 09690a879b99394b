"""The playground: one page of HTML, CSS and JavaScript, which runs nothing but its own script."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.responses import Response

_FILE = Path(__file__).with_name("playground.html")


def playground_response() -> Response:
    """Return the page with its Content-Security-Policy."""
    content, policy = page()
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(content, media_type="text/html", headers=headers)


@cache
def page() -> tuple[str, str]:
    """Return the page and the policy that allows its script and style by their hashes, and its own server."""
    content = _FILE.read_text(encoding="utf-8")
    script, style = (_hash(content, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return content, policy


def _hash(content: str, tag: str) -> str:
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
