"""The system's Chromium, without a window, driven by Playwright."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@contextmanager
def open_page() -> Iterator[Page]:
    """Open a page in a new browser; without a Chromium the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False)
        page = browser.new_page()
        page.set_default_timeout(60_000)  # milliseconds
        yield page
        browser.close()


def click(page: Page, element: str) -> None:
    """Click an element, given as an expression."""
    found = page.evaluate_handle(element).as_element()
    assert found, element
    found.click()


def wait(page: Page, condition: str, seconds: float = 60) -> None:
    """Wait until an expression is true. (The page's policy forbids Playwright's own `wait_for_function`.)"""
    end = time.monotonic() + seconds
    while not page.evaluate(f"Boolean({condition})"):
        assert time.monotonic() < end, f"not true after {seconds} s: {condition}"
        time.sleep(0.05)


def complaints_of(page: Page) -> list[str]:
    """Return a list that grows with what the page throws, and what the browser refuses it."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    return found
