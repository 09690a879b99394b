"""Write docs/playground.png: mink-serve's playground in Chromium, with one token opened.

.venv/bin/python -m tests.pictures.playground
"""

from pathlib import Path

from tests.support.browser import click, open_page, wait
from tests.support.server import running_server

PNG = Path(__file__).parents[2] / "docs" / "playground.png"
SEED, MAX_TOKENS = 2, 70
# The word of Min-k's answer, not among the last, that had the most candidates.
OPENED = r"""
(candidates => [...document.querySelectorAll(".column:first-child .token:not(.end)")].slice(0, 40)
    .filter(token => /[a-z]/i.test(token.textContent))
    .reduce((a, b) => candidates(a) >= candidates(b) ? a : b)
)(token => parseInt(token.ariaLabel.match(/(\d+) cand/)?.[1]))
"""


def main() -> None:
    """Ask the playground's own prompt, open a token, and take a screenshot."""
    with running_server() as server, open_page() as page:
        page.set_viewport_size({"width": 1360, "height": 860})
        page.goto(f"{server.url}/")
        wait(page, "document.querySelector('#model').textContent.startsWith('smollm2')")
        for name, value in (("max_tokens", MAX_TOKENS), ("seed", SEED)):
            page.evaluate(f"document.querySelector('[name={name}]').value = {value}")
        click(page, "document.querySelector('#send')")
        wait(page, "document.querySelector('#stop').hidden && document.querySelector('.column')")
        click(page, OPENED)
        wait(page, "!document.querySelector('#pictures').hidden && document.querySelector('#curve .cut')")
        page.screenshot(path=PNG)


if __name__ == "__main__":
    main()
