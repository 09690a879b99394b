"""The lists of the chat in narrow and wide windows."""

import re
import textwrap
import time
from collections.abc import Callable

import pytest
from rich.cells import cell_len

from mink_local.chat.lists import show_conversations
from mink_local.chat.screen import Screen
from mink_local.chat.store import ConversationStore
from tests.chat.conftest import Typist

LONG_NAME = "notes on the migration of the database to postgres"


def listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int) -> list[str]:
    """Return the rows of a list of three conversations, the second of which is the current one."""
    monkeypatch.setenv("COLUMNS", str(columns))
    store = ConversationStore()
    for text in (
        "日本語日本語日本語日本語日本語",
        "Write two sentences about the sea and the wind.",
        "Hello",
    ):
        conversation = store.begin("models/Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf", None)
        store.add(conversation, None, "user", text)
    store.change(2, name=LONG_NAME, updated=time.time() - 1e6)
    show_conversations(Screen(), store.conversations(), 2)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100])
def test_conversations_at_any_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """A long name takes nothing from the texts, which are cut, and of which no other row is made."""
    rows = listed(monkeypatch, capsys, columns)
    assert len(rows) == 4
    assert all(cell_len(row) <= columns for row in rows)
    assert re.match(r"\* +notes.*… +Write two" if columns < 60 else r"\* +notes on.*… .* Write two", rows[3])
    assert ("turns" in rows[0], "last" in rows[0]) == (columns >= 60, columns >= 60)
    assert ("model" in rows[0]) == (columns >= 100)
    if columns >= 60:
        assert re.search(r"… +1 +\d{4}-\d\d-\d\d +", rows[3])


@pytest.mark.slow
@pytest.mark.parametrize("columns", [30, 40, 80, 100])
@pytest.mark.parametrize("command", ["/help", "/show", "/stats", "/list", "/history"])
@pytest.mark.usefixtures("own_files")
def test_no_row_is_wider_than_the_window(
    typist: Callable[..., Typist], monkeypatch: pytest.MonkeyPatch, columns: int, command: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    typed = typist("-n", "1")
    typed.chat.session.store.begin("model", None)
    typed.say("Hello")
    typed.say(f"/save {LONG_NAME}")
    rows = typed.say(command).split("\nEnter sends")[0].splitlines()  # notes are wrapped on a terminal only
    assert all(cell_len(row) <= columns for row in rows)


@pytest.mark.usefixtures("own_files")
def test_help_fits_a_window_of_24_rows(
    typist: Callable[..., Typist], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the line where it was typed, the note of two rows, and the next prompt."""
    monkeypatch.setenv("COLUMNS", "80")
    *rows, note = typist().say("/help").splitlines()
    assert len(rows) + 4 <= 24
    assert len(textwrap.wrap(note, 80)) == 2
