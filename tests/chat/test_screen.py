"""What reaches the screen: no control characters, nothing wider than the window."""

import io
import sys
import threading
from collections.abc import Iterator

import pytest

from mink_local.chat.progress import show_prefill
from mink_local.chat.screen import Screen, one_line, printable


class FakeTerminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


def test_a_terminal_does_not_obey_text() -> None:
    assert printable("a\x1b[31mb\x07\x9b\u202ec\td\n") == "a[31mbc\td\n"
    assert one_line("one\n two\x1b", 20) == "one two"
    assert one_line("日本語日本語", 6) == "日本 …"


def test_progress_overwrites_itself_and_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    """With spaces and carriage returns, which every console obeys."""
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "10")
    screen = Screen()
    screen.progress("long enough to be cut")
    screen.progress("x")
    screen.progress()
    assert stream.shown == "\rlong enou\rx        \r \r"


def test_progress_is_for_terminals_only(capsys: pytest.CaptureFixture[str]) -> None:
    Screen().progress("half")
    assert capsys.readouterr().err == ""


def test_notes_are_wrapped_and_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "20")
    Screen(plain=True).note("a note that is longer \x1b]0;title\x07 than the window")
    assert stream.shown.splitlines() == ["a note that is", "longer ]0;title than", "the window"]


class SlowReply:
    """A reply that waits until half of its prompt was asked for."""

    def __init__(self) -> None:
        self._asked = 0
        self._half = threading.Event()

    @property
    def unread_tokens(self) -> int:
        self._asked += 1
        if self._asked > 1:
            self._half.set()
        return 100 if self._asked == 1 else 50

    def __iter__(self) -> Iterator[str]:
        self._half.wait(10)
        yield "x"

    def interrupt(self) -> None: ...


def test_the_progress_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("mink_local.interrupts._PATIENCE", 0.01)
    show_prefill(Screen(), SlowReply())  # type: ignore[arg-type]
    assert "\rprompt: 50 of 100 tokens" in stream.shown
    assert stream.shown.endswith("\r")
