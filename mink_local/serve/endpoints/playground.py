"""The playground: one page of HTML, CSS and JavaScript."""

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.responses import Response

from mink_local.samplers import default_samplers
from mink_local.serve.service import Service

PLAYGROUND = Path(__file__).parents[1] / "playground.html"


async def playground(_: Service) -> Response:
    """Return the playground, one page of HTML, CSS and JavaScript, with its Content-Security-Policy."""
    content, policy = playground_page(tuple(map(str, default_samplers())))
    headers = {"content-security-policy": policy, "referrer-policy": "no-referrer"}
    return Response(content, media_type="text/html", headers=headers)


@cache
def playground_page(samplers: tuple[str, ...]) -> tuple[str, str]:
    """Return the page and a policy that allows its script and style, by their hashes, and its own server.

    Args:
        samplers: The samplers that it suggests.
    """
    options = "".join(f'<option value="{sampler}">' for sampler in samplers)
    content = PLAYGROUND.read_text(encoding="utf-8").replace("<!-- samplers -->", options)
    script, style = (_hash(content, tag) for tag in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return content, policy


def _hash(content: str, tag: str) -> str:
    [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
