"""The playground: what the page may do, and what a browser shows of it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from mink_local.serve.playground import playground_response

RESPONSE = playground_response()
HTML = bytes(RESPONSE.body).decode()


class Tags(HTMLParser):
    """Every start tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else() -> None:
    policy = dict(part.split(" ", 1) for part in RESPONSE.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in RESPONSE.headers["content-security-policy"]
    for tag in ("script", "style"):
        [inside] = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", HTML, re.DOTALL)
        assert (
            policy[f"{tag}-src"]
            == f"'sha256-{base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()}'"
        )


def test_the_page_needs_no_network_and_no_html_from_text() -> None:
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", HTML)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", HTML)
    for _, attributes in Tags(HTML).found:
        assert not any(name.startswith("on") or name == "style" for name in attributes)
        assert (attributes.get("src") or attributes.get("href") or "data:,") == "data:,"


def test_every_field_has_a_name_that_a_screen_reader_says() -> None:
    tags = Tags(HTML).found
    labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    for tag, attributes in tags:
        if tag in ("input", "textarea"):
            in_label = re.search(
                rf'<label>[^<]*<{tag} [^>]*(name|id)="{attributes.get("name", attributes.get("id"))}"', HTML
            )
            assert in_label or "aria-label" in attributes or attributes.get("id") in labels, attributes
