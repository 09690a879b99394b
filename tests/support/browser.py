"""A headless Chromium, driven through the DevTools protocol over a pipe."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --remote-debugging-pipe"
)
_PATIENCE = 60  # seconds for an answer of the browser


class Browser:
    """One page of a Chromium that reads commands from its descriptor 3 and answers on 4.

    Attributes:
        complaints: Texts of what the page threw, and of what the browser refused it.
    """

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._received = b""
        self._numbers = count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Give a command; return its result."""
        number = next(self._numbers)
        command = {"id": number, "method": method, "params": params}
        if self._session is not None:
            command["sessionId"] = self._session
        os.write(self._write, json.dumps(command).encode() + b"\0")
        while True:
            message = self._message()
            if message.get("id") == number:
                assert "result" in message, message
                result: dict[str, Any] = message["result"]
                return result
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(message["params"]))

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = _PATIENCE) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"not true after {seconds} s: {condition}"
            time.sleep(0.05)

    def open(self, url: str) -> None:
        """Go to an address, and wait until its page has been read."""
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url)})")

    def press(self, key: str) -> None:
        """Press and release a key, such as "a", "Enter", "ArrowRight"."""
        text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
        codes = {
            "Enter": 13,
            "Escape": 27,
            "Tab": 9,
            "End": 35,
            "Home": 36,
            "ArrowLeft": 37,
            "ArrowRight": 39,
        }
        code = codes.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def click(self, element: str) -> None:
        """Click the middle of the first line of an element, given as an expression."""
        at = self.run(
            f"(e => {{ e.scrollIntoView({{block: 'nearest'}}); const r = e.getClientRects()[0];"
            f" return [r.x + r.width / 2, r.y + r.height / 2]; }})({element})"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], button="left", clickCount=1)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Give the page a size in pixels, and dark or light colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1 if width > 600 else 2,
            mobile=width <= 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """Write a PNG of the page as it is shown."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            ready, _, _ = select.select([self._read], [], [], _PATIENCE)
            assert ready, f"the browser has not answered for {_PATIENCE} s"
            data = os.read(self._read, 1 << 16)
            assert data, "the browser has ended"
            self._received += data
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message


@contextmanager
def open_browser(profile: Path) -> Iterator[Browser]:
    """Start a Chromium whose files are in a folder of the test; end it afterwards.

    Without a Chromium the test is skipped.
    """
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
        ["bash", "-c", command, "bash", CHROMIUM, *FLAGS.split(), f"--user-data-dir={profile}"],
        pass_fds=(theirs_in, theirs_out),
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Browser(ours_in, ours_out)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
