"""Pages as single HTML files: a template with its style and script, which can load and run nothing else."""

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup


def render(folder: Path, name: str, **values: Any) -> str:
    """Return the page made from NAME.html, .css and .js in a folder.

    Texts among the template's values are escaped, and the page's Content-Security-Policy allows only its own
    style and script, and embedded images.
    """
    style, script = ((folder / f"{name}.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    environment = Environment(
        loader=FileSystemLoader(folder), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return environment.get_template(f"{name}.html").render(
        style=Markup(style), script=Markup(script), policy=policy, **values
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
