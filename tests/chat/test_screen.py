"""What reaches the screen: no control characters, nothing wider than the window."""

import io
import sys

import pytest
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import printable

EVIL = "a\x1b[31mb\x07\x9b\u202ec\td"
HARMLESS = "a␛[31mb␇\ufffd\ufffdc"


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
        return buffer.getvalue().decode()


def terminals(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeTerminal, FakeTerminal]:
    """Make standard output and error terminals; return both."""
    out, err = FakeTerminal(), FakeTerminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return out, err


def test_a_terminal_does_not_obey_text() -> None:
    assert printable(f"{EVIL}\n") == f"{HARMLESS}\td\n"
    assert printable("\u200e\u200f\u061c\u2066\x7f\r\n日本") == "\ufffd\ufffd\ufffd\ufffd␡\n日本"
    assert one_line("one\n two\x1b", 20) == "one two␛"
    assert one_line("日本語日本語", 6) == "日本 …"


@pytest.mark.parametrize("plain", [True, False])
def test_nothing_reaches_the_terminal_unseen(monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    """Whatever it is shown by, and whatever text a style's link holds."""
    out, err = terminals(monkeypatch)
    screen = Screen(plain)
    screen.show(EVIL, Text(EVIL), Panel(Text(EVIL), title=Text(EVIL)), Text("x", f"link http://{EVIL}"))
    screen.table([(EVIL, Text(EVIL))])
    screen.text(EVIL)
    screen.write(EVIL)
    screen.note(EVIL)
    screen.progress(EVIL)
    shown = out.shown + err.shown
    assert [code for code in ("\x1b[31m", "\x07", "\x9b", "\u202e") if code in shown] == []
    assert out.shown.count("␛[31mb") > 4
    assert err.shown.count("␛[31mb") == 2


def test_progress_overwrites_itself_and_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    """With spaces and carriage returns, which every console obeys."""
    monkeypatch.setenv("COLUMNS", "10")
    _, stream = terminals(monkeypatch)
    screen = Screen()
    screen.progress("long enough to be cut")
    screen.progress("x")
    screen.progress()
    assert stream.shown == "\rlong eno…\rx        \r \r"


def test_notes_are_wrapped_and_stripped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    _, stream = terminals(monkeypatch)
    path, width = "/usr/share/the/window", Console().width  # a column less in an old console of Windows
    Screen(plain=True).note(f"a note that is longer \x1b]0;title\x07 than {path}")
    rows = ["(a note that is", "longer ␛]0;title␇", "than", path[:width], f"{path[width:]})"]
    assert stream.shown.splitlines() == rows
