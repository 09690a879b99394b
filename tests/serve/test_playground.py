"""The playground: what the page may do, and what a browser shows of it."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page

from tests.support.browser import click, complaints_of, open_page, wait
from tests.support.server import RunningServer


def test_the_policy_allows_the_pages_own_script_and_style_and_nothing_else(server: RunningServer) -> None:
    """So the page needs no network, and makes no HTML from text."""
    response = httpx.get(f"{server.url}/")
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    for tag in ("script", "style"):
        [inside] = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", response.text, re.DOTALL)
        hashed = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[f"{tag}-src"] == f"'sha256-{hashed}'"


FIRST = "document.querySelectorAll('.column')[0]"
MANY = f"[...{FIRST}.querySelectorAll('.token')].find(token => /k-(4|11)/.test(token.className))"
IS_DONE = "document.querySelector('#stop').hidden && document.querySelector('.column')"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_page() as page:
        yield page


@pytest.fixture
def complaints(browser: Page) -> list[str]:
    return complaints_of(browser)


@pytest.fixture
def page(browser: Page, server: RunningServer, complaints: list[str]) -> Iterator[Page]:
    """The playground as it is when it is opened for the first time; the browser must not complain of it."""
    browser.set_viewport_size({"width": 1360, "height": 860})
    browser.goto(f"{server.url}/")
    browser.evaluate("removeEventListener('pagehide', keep); sessionStorage.clear()")
    browser.goto("about:blank")
    browser.goto(f"{server.url}/")
    wait(browser, "document.querySelector('#model').textContent.startsWith('smollm2')")
    complaints.clear()
    yield browser
    assert complaints == []


def ask(page: Page, text: str, *, max_tokens: int = 40, seed: str = "1") -> None:
    """Type a prompt, send it, and wait for the answers."""
    page.evaluate(f"document.querySelector('[name=seed]').value = '{seed}'")
    page.evaluate(f"document.querySelector('[name=max_tokens]').value = {max_tokens}")
    page.evaluate("document.querySelector('#prompt').value = ''; document.querySelector('#prompt').focus()")
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    wait(page, IS_DONE)


def open_token(page: Page, token: str = MANY) -> None:
    """Click a token, by default one of Min-k's answer that had several candidates; wait for the pictures."""
    click(page, token)
    wait(page, "!document.querySelector('#pictures').hidden && document.querySelector('#curve .cut')")


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of all elements that a selector finds."""
    found: list[str] = page.evaluate(f"[...document.querySelectorAll({selector!r})].map(e => e.textContent)")
    return found


@pytest.mark.posix
@pytest.mark.slow
class TestInABrowser:
    def test_every_field_has_a_name_that_a_screen_reader_says(self, page: Page) -> None:
        fields = "[...document.querySelectorAll('input, textarea, select')]"
        assert page.evaluate(f"{fields}.every(field => field.ariaLabel || field.labels.length)")

    def test_a_prompt_is_answered_in_columns_of_coloured_tokens(self, page: Page) -> None:
        ask(page, "Tell me a story.")
        assert texts(page, ".column h3") == [
            f"{m} T = 5" for m in ("min-k:tau=3", "top-p:p=0.9 (T first)", "llama-default")
        ]
        for number in (1, 2, 3):
            tokens = texts(page, f".column:nth-child({number}) .token:not(.end)")
            assert len(tokens) <= 40
            assert "".join(tokens).strip()
            state = texts(page, f".column:nth-child({number}) .state")[0]
            assert ("cut off at 40 tokens" in state) == (len(tokens) == 40)
        names = page.evaluate(
            "[...document.querySelectorAll('.column:nth-child(2) .token')].map(e => e.ariaLabel)"
        )
        assert all(re.search(r"\d candidates?", name) for name in names[:-1])
        assert page.evaluate("document.querySelector('.k-1000') !== null")  # top-p at T = 5

    def test_a_click_shows_the_cuts_and_the_slider_moves_all_but_min_ks(self, page: Page) -> None:
        ask(page, "Tell me a story.")
        open_token(page)
        hot = texts(page, "#curve tspan")
        page.evaluate("slider.value = 0.5; slider.dispatchEvent(new Event('input'))")
        wait(page, "document.querySelector('#curve-caption').textContent.includes('T = 0.5')")
        cold = texts(page, "#curve tspan")
        assert hot[0] == cold[0]  # Min-k
        assert hot[1] != cold[1]  # top-p
        page.evaluate(
            "(field => { field.value = 77; field.dispatchEvent(new Event('input')); })"
            "(document.querySelector('#temperature'))"
        )
        wait(page, "document.querySelector('#curve-caption').textContent.includes('T = 77')")
        assert texts(page, "#curve tspan")[0] == hot[0]

    def test_a_chain_tells_what_each_cut_leaves(self, page: Page) -> None:
        chain = "top-k:k=40+xtc:probability=1,threshold=0.001+min-k:tau=1e+16"
        page.evaluate(f"document.querySelectorAll('[name=method]')[3].value = '{chain}'")
        ask(page, "Tell me a story.")
        open_token(page, f"{FIRST}.querySelector('.token')")
        found = re.match(r"keeps 40 → (\d+) → (\d+), without the first", texts(page, "#curve tspan")[3])
        assert found
        assert 40 > int(found[1]) >= int(found[2])
        rows = texts(page, "#list tr.cut")
        assert any(row.startswith("top-k+xtc+min-k keeps 40 →") for row in rows)

    def test_another_candidate_goes_on_from_there(self, page: Page) -> None:
        ask(page, "Tell me a story.")
        open_token(page)
        before = texts(page, ".column:first-child .token")
        at = page.evaluate(
            f"[...{FIRST}.querySelectorAll('.token')].indexOf({FIRST}.querySelector('[aria-selected=true]'))"
        )
        other = page.evaluate(
            "[...document.querySelectorAll('#list tbody tr:not(.cut):not(.sampled) button')][0].ariaLabel"
        )
        click(page, "document.querySelectorAll('#list tbody tr:not(.cut):not(.sampled) button')[0]")
        wait(page, IS_DONE)
        after = texts(page, ".column:first-child .token")
        assert after[:at] == before[:at]
        assert f"“{after[at]}”" in other
        assert page.evaluate(f"{FIRST}.querySelectorAll('.token')[{at}].classList.contains('chosen')")
        assert "version 2 of 2" in texts(page, ".column:first-child .state")[0]

    def test_an_answer_can_be_stopped(self, page: Page) -> None:
        page.evaluate("document.querySelector('[name=max_tokens]').value = 400")
        page.evaluate("document.querySelector('#send').click()")
        wait(page, "document.querySelector('.column .token')")
        click(page, f"{FIRST}.querySelector('.state button')")
        wait(page, f"{FIRST}.querySelector('.state').textContent.includes('stopped')")
        assert not page.evaluate("document.querySelector('#stop').hidden")  # the others go on
        click(page, "document.querySelector('#stop')")
        wait(page, IS_DONE)
        assert all("stopped" in text for text in texts(page, ".state"))

    def test_it_can_be_used_with_the_keyboard_alone(self, page: Page) -> None:
        ask(page, "Say a word.")
        page.evaluate(f"{FIRST}.querySelector('.token').focus()")
        page.keyboard.press("ArrowRight")
        assert page.evaluate(f"document.activeElement === {FIRST}.querySelectorAll('.token')[1]")
        page.keyboard.press("Enter")
        wait(page, "!document.querySelector('#pictures').hidden")
        assert page.evaluate("document.activeElement.id") == "step-title"
        page.keyboard.press("Escape")
        assert page.evaluate(f"document.activeElement === {FIRST}.querySelectorAll('.token')[1]")

    def test_what_a_model_or_user_writes_is_text(self, page: Page) -> None:
        ask(page, "<img src=x onerror=document.title=1><script>document.title=2</script>", max_tokens=3)
        assert page.evaluate("document.title") == "mink playground"
        assert page.evaluate("document.querySelectorAll('img, .turn script').length") == 0

    def test_markdown_is_made_of_elements_and_never_of_html(self, page: Page) -> None:
        text = (
            "# A\n**b** [c](https://d.example/) [e](javascript:f) ![g](https://h.example/i.png)\n\n"
            "- 1\n  - 2\n\n```\n<script>document.title = 3</script>\n```\n<img src=x onerror=alert(1)>"
        )
        shown = page.evaluate(
            f"(made => {{ const box = make('div'); box.append(...made); document.body.append(box);"
            f" return box.outerHTML; }})(blocks({json.dumps(text)}.split('\\n')))"
        )
        assert shown == (
            '<div><h4>A</h4><p><strong>b</strong> <a href="https://d.example/" target="_blank" '
            'rel="noopener noreferrer">c</a> e g</p><ul><li>1<ul><li>2</li></ul></li></ul>'
            "<pre><code>&lt;script&gt;document.title = 3&lt;/script&gt;</code></pre>"
            "<p>&lt;img src=x onerror=alert(1)&gt;</p></div>"
        )

    def test_answers_differ_and_are_still_there_after_a_reload(
        self, page: Page, server: RunningServer
    ) -> None:
        ask(page, "Tell me a story.", max_tokens=20, seed="")
        first = texts(page, ".column .tokens")
        click(page, "document.querySelector('.turn header button')")
        wait(page, IS_DONE)
        before = texts(page, ".column .tokens")
        assert before != first
        page.goto("about:blank")
        page.goto(f"{server.url}/")
        wait(page, IS_DONE)
        assert texts(page, ".column .tokens") == before
        assert page.evaluate("document.querySelector('[name=max_tokens]').value") == "20"
        open_token(page, f"{FIRST}.querySelector('.token')")

    def test_an_answer_of_any_client_is_opened_by_its_id(self, page: Page, server: RunningServer) -> None:
        fields = {"prompt": "Once upon a time", "sampler": "top-k:k=5", "temperature": 2, "max_tokens": 12}
        answered = server.post("/v1/completions", **fields)
        page.evaluate(f"location.hash = {answered.headers['x-request-id']!r}")
        wait(page, "document.querySelector('.column .token')")
        assert texts(page, ".turn h2") == ["Once upon a time"]
        assert texts(page, ".column h3") == ["top-k:k=5 T = 2"]
        assert "".join(texts(page, ".column .token:not(.end)")) == answered.json()["choices"][0]["text"]
        open_token(page)
        click(page, "document.querySelectorAll('#list tbody tr:not(.cut):not(.sampled) button')[0]")
        wait(page, IS_DONE)
        assert "version 2 of 2" in texts(page, ".column .state")[0]

    def test_errors_are_sentences(self, page: Page, complaints: list[str]) -> None:
        page.evaluate("document.querySelector('[name=method]').value = 'parrot'")
        ask(page, "Say a word.")
        assert "'parrot'" in texts(page, ".column:first-child .state")[0]
        page.evaluate("void (window.fetch = () => Promise.reject(new TypeError('gone')))")
        ask(page, "Say another word.")
        assert "connection" in texts(page, ".turn:last-child .state")[1]
        complaints.clear()  # of the status 400

    @pytest.mark.parametrize("width", [360, 1360])
    def test_nothing_is_larger_than_the_screen(self, page: Page, width: int) -> None:
        page.set_viewport_size({"width": width, "height": 740})
        ask(page, "Tell me a story.")
        open_token(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert page.evaluate(
            "[...document.querySelectorAll('svg text')].every("
            "e => e.getBoundingClientRect().right <= innerWidth)"
        )
        assert page.evaluate(
            "document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth"
        )
