"""Export of conversations to Markdown and JSON."""

import json
from pathlib import Path

import pytest

from mink_local.chat.conversation.export import export
from mink_local.chat.conversation.store import ConversationStore, SamplingInfo, StoredMessage
from mink_local.errors import MinkError
from tests.chat.conftest import add, converse


@pytest.fixture
def store() -> ConversationStore:
    """One conversation with two answers to its message, the first one current."""
    store = ConversationStore()
    [user] = converse(store, "Say hi 日本語", system="Be brief.")
    info = SamplingInfo("parrot", "min-k:tau=3", 5.0, 7)
    reasoning = "They want a greeting."
    answer = StoredMessage("assistant", "**Hi!**", None, reasoning, [info], finish_reason="stop", k=[2, 1])
    add(store, StoredMessage("assistant", "Another"), user.id)
    add(store, answer, user.id)
    store.rename(1, "birds")
    return store


def test_markdown(store: ConversationStore, tmp_path: Path) -> None:
    export(store, store.find(), tmp_path / "b.md")
    assert (tmp_path / "b.md").read_text(encoding="utf-8") == (
        "# birds\n\n**System**\n\nBe brief.\n\n## User\n\nSay hi 日本語\n\n## parrot\n\n"
        "<details><summary>Reasoning</summary>\n\nThey want a greeting.\n\n</details>\n\n**Hi!**\n\n"
        "*min-k:tau=3, temperature 5, seed 7*\n"
    )


def test_json(store: ConversationStore, tmp_path: Path) -> None:
    export(store, store.find(), tmp_path / "b.json")
    whole = json.loads((tmp_path / "b.json").read_text(encoding="utf-8"))
    answer = whole["messages"][1]
    assert (answer["content"], answer["reasoning"]) == ("**Hi!**", "They want a greeting.")
    how = {"model": "parrot", "sampler": "min-k:tau=3", "temperature": 5.0, "seed": 7}
    assert {**answer["how"], **how} == answer["how"]
    assert answer["outcome"]["k"] == [2, 1]
    assert [message["content"] for message in whole["other_branches"]] == ["Another"]


def test_control_characters(store: ConversationStore, tmp_path: Path) -> None:
    """A file that is shown by `cat` does not control the terminal; JSON still holds what there was."""
    evil = "\x1b]0;pwned\x07 \x9b31m \u202e"
    converse(store, evil)
    for name in ("b.md", "b.json"):
        export(store, store.get(2), tmp_path / name)
        written = (tmp_path / name).read_text(encoding="utf-8")
        assert [code for code in "\x1b\x07\x9b\u202e" if code in written] == []
    assert json.loads(written)["messages"][0]["content"] == evil
    assert "␛]0;pwned␇ \ufffd31m \ufffd" in (tmp_path / "b.md").read_text(encoding="utf-8")


def test_a_failed_export_leaves_nothing_behind(store: ConversationStore, tmp_path: Path) -> None:
    with pytest.raises(MinkError, match=r"b\.txt"):
        export(store, store.find(), tmp_path / "b.txt")
    (tmp_path / "b.md").mkdir()
    with pytest.raises(MinkError, match="cannot be written"):
        export(store, store.find(), tmp_path / "b.md")
    assert [path.name for path in tmp_path.iterdir()] == ["b.md"]
