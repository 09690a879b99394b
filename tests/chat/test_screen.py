"""What reaches the screen: no control characters, nothing wider than the window."""

import io
import sys
from types import SimpleNamespace

import pytest

from mink_local.chat.progress import _PromptProgress
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


def test_the_progress_of_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    reply = SimpleNamespace(unread_tokens=100)
    progress = _PromptProgress(Screen(), reply)  # type: ignore[arg-type]
    progress.update()
    reply.unread_tokens = 50
    progress.update()
    progress.end()
    assert "\rprompt: 50 of 100 tokens" in stream.shown
    assert stream.shown.endswith("\r")
