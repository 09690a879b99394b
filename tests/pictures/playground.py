"""Write docs/playground.png: mink-serve's playground in Chromium, with one token opened.

.venv/bin/python -m tests.pictures.playground
"""

import tempfile
from pathlib import Path

from tests.support.browser import open_browser
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
    with (
        running_server() as server,
        tempfile.TemporaryDirectory() as profile,
        open_browser(Path(profile)) as browser,
    ):
        browser.resize(1360, 860)
        browser.open(f"{server.url}/")
        browser.wait("document.querySelector('#model').textContent.startsWith('smollm2')")
        for name, value in (("max_tokens", MAX_TOKENS), ("seed", SEED)):
            browser.run(f"document.querySelector('[name={name}]').value = {value}")
        browser.click("document.querySelector('#send')")
        browser.wait("document.querySelector('#stop').hidden && document.querySelector('.column')")
        browser.click(OPENED)
        browser.wait("!document.querySelector('#pictures').hidden && document.querySelector('#curve .cut')")
        browser.picture(PNG)


if __name__ == "__main__":
    main()
