"""The command line of `mink-chat`: what is refused before an answer, and what needs no model."""

import json
import re
from pathlib import Path

import click
import pytest
from rich.cells import cell_len
from rich.console import Console

from mink_local.chat.cli import cli
from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.models.catalog import EMBEDDED, chosen_model
from tests.chat.conftest import MinkChat, converse

pytestmark = pytest.mark.usefixtures("own_files")


def test_version(mink_chat: MinkChat) -> None:
    assert mink_chat("--version").stdout.startswith("mink-chat, version ")


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--temp", "-1"], 2, "at least 0, not -1"),
        (["--temp", "nan"], 2, "nan"),
        (["--temp", "inf"], 2, "inf"),
        (["--temp", "hot"], 2, "'hot'"),
        (["--tau", "-1"], 2, "at least 0, not -1"),
        (["--tau", "1", "--sampler", "greedy"], 2, "tau"),
        (["--floor", "nan"], 2, "nan"),
        (["--floor", "1", "--sampler", "greedy"], 2, "floor"),
        (["--sampler", "max-k"], 2, "'max-k'"),
        (["--sampler", "top-k:k=5+"], 2, "missing"),
        (["--max-tokens", "0"], 2, "at least 1"),
        (["--seed", "-1"], 2, "from 0 to 18446744073709551615, not -1"),
        (["--ctx", "0"], 2, "at least 1"),
        (["--gpu-layers", "some"], 2, "'some'"),
        (["--repeat-penalty", "0"], 2, "above 0"),
        (["--dry-multiplier", "-1"], 2, "at least 0, not -1"),
        (["--logit-bias", "x"], 2, "'x'"),
        (["--logit-bias", "99999=1"], 2, "99999"),
        (["--grammar", "no/such"], 2, "no/such"),
        (["--grammar", __file__], 2, "grammar"),
        (["--json-schema", __file__], 2, "line 1, column 3"),
        (["Hi", "there"], 2, "quotes"),
        (["--model", "parrot"], 2, "'parrot'"),
        (["--model", "no/such.gguf"], 2, "no/such.gguf"),
        (["--model", "/"], 2, "/ "),
        (["--prompt", "  "], 2, "prompt is empty"),
        (["--model", "no/such.gguf", "--prompt", ""], 2, "no/such.gguf"),
        (["--continue", "--resume", "x"], 2, "--resume"),
        (["--continue"], 1, "no conversation"),
        (["--resume", "x"], 1, "'x'"),
        (["--resume", "\udcff"], 1, "no conversation"),
        (["--export", "x.md"], 2, "no prompt"),
        (["--export", "x.md", "--list"], 2, "--list"),
        (["--list", "--json"], 2, "--json"),
        (["--file", "-"], 2, "standard input"),
        (["--config", "no/such"], 2, "'no/such'"),
        (["--parrot"], 2, "--parrot"),
        (["parrot"], 2, "'parrot'"),
        (["--prompt", "word " * 900, "--ctx", "512"], 1, "512"),
        (["--model", __file__], 1, "GGUF"),
    ],
)
def test_bad_input_is_one_sentence(
    mink_chat: MinkChat, arguments: list[str], status: int, complaint: str
) -> None:
    result = mink_chat(*(["--prompt", "Hi"] if "--prompt" not in arguments else []), *arguments)
    result.refused(status, complaint)
    assert result.stdout == ""
    assert result.stderr.startswith("mink-chat: ")


def test_an_export_has_one_of_two_endings(mink_chat: MinkChat) -> None:
    mink_chat("--export", "x.txt").refused(2, "x.txt", ".md", ".json")
    mink_chat("--export", "x.md", "--json").refused(2, "--json")


def test_names_of_conversations_are_completed(own_files: Path) -> None:
    """There are none in a file that cannot be read, and nothing is said about it."""
    [resume] = [option for option in cli.params if option.name == "resume"]

    def completed(text: str) -> list[str]:
        return [item.value for item in resume.shell_complete(click.Context(cli), text)]

    assert completed("") == []
    store = ConversationStore(default_path())
    converse(store, "Name a fruit.", "A pear.")
    store.rename(1, "pears")
    store.close()
    assert (completed("pe"), completed("x")) == (["pears"], [])
    (own_files / "conversations.db").write_text("this is not a database, and too long to be empty " * 9)
    assert completed("pe") == []


def test_empty_standard_input_is_named(mink_chat: MinkChat) -> None:
    mink_chat("--temp", "5").refused(2, "standard input is empty")


def test_a_mistyped_option_gets_the_nearest_one(mink_chat: MinkChat) -> None:
    assert re.findall(r"--\w+", mink_chat("--temprature", "2").stderr) == ["--temprature", "--temp"]


@pytest.mark.posix
def test_a_file_may_have_any_name(mink_chat: MinkChat, tmp_path: Path) -> None:
    path = tmp_path / "notes\udcff.txt"
    path.write_text("The sea.")
    answered = mink_chat("--file", str(path), "--prompt", "Hi", "-n", 1).succeeded()
    assert answered.stdout


def test_json_needs_a_prompt(mink_chat: MinkChat) -> None:
    mink_chat("--json", typed=["Hi"]).refused(2, "--json")


def test_the_list_and_exports_need_no_model(mink_chat: MinkChat, tmp_path: Path) -> None:
    empty = mink_chat("--list")
    assert (empty.stdout, len(empty.stderr.splitlines())) == ("", 1)
    store = ConversationStore(default_path())
    converse(store, "Say `hi` \x1b[31m日本語 " + "long " * 50, "**Hi!**", model="parrot")
    store.rename(1, "birds")
    for listed in (mink_chat("--list"), mink_chat("--list", "日本語")):
        assert not re.search(" $", listed.stdout, re.MULTILINE)
        assert "birds" in listed.stdout
        assert "\x1b" not in listed.stdout
    assert mink_chat("--list", "fish").stdout == ""
    assert mink_chat("--resume", "birds", "--export", str(tmp_path / "b.md")).status == 0
    assert "# birds" in (tmp_path / "b.md").read_text(encoding="utf-8")
    assert mink_chat("--export", str(tmp_path / "b.json")).status == 0
    assert mink_chat("--export", str(tmp_path / "no" / "b.md")).status == 1
    mink_chat("--continue", "-p", "Hi").refused(2, "'parrot'", "--model")


@pytest.mark.parametrize("columns", [30, 40, 60, 80, 100])
def test_the_list_at_any_width(mink_chat: MinkChat, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """A long name takes nothing from the texts, and each conversation takes one row."""
    monkeypatch.setenv("COLUMNS", str(columns))
    store = ConversationStore(default_path())
    for text in ("Write two sentences about the sea and the wind.", "日本語" * 5, "Hello"):
        converse(store, text, model="models/Qwen2.5-Coder-0.5B-Instruct-Q4_K_M.gguf")
    store.rename(1, "notes on the migration of the database to postgres")
    rows = mink_chat("--list").stdout.splitlines()
    assert len(rows) == 4
    assert all(cell_len(row) <= columns for row in rows)
    assert re.search(r" notes.*… .*Write two", rows[1])  # the oldest
    width = Console().width  # a column less in an old console of Windows
    assert [word in rows[0] for word in ("turns", "last", "model")] == [width >= 60] * 2 + [width >= 100]


def test_a_model_in_place_of_a_prompt_is_no_question(mink_chat: MinkChat, tiny_path: Path) -> None:
    """It answers the prompt behind it, or chats; one that is not there is an error."""
    answered = json.loads(mink_chat(str(tiny_path), "Hi", "-n", "2", "--json").stdout)
    assert answered["model"] == "tiny"
    assert json.loads(mink_chat(str(tiny_path), "-n", "2", "--json", stdin="Hi").stdout)["model"] == "tiny"
    assert "tiny · CPU" in mink_chat(str(tiny_path), "-n", "2", typed=["/model"]).stderr
    mink_chat(str(tiny_path), "Hi", "-m", "smollm2-135m").refused(2, "--model")
    for arguments in (["no/such.gguf"], ["such.gguf", "Hi"], ["lmstudio:parrot"], [str(tiny_path.parent)]):
        assert mink_chat(*arguments).refused(2, arguments[0].partition(":")[2] or arguments[0]).stdout == ""
    for text in ("What is x.gguf?", "gguf", "Hi", str(Path(__file__).parent)):
        assert "model" in json.loads(mink_chat(text, "-n", "1", "--json").stdout)


def test_the_model_in_use_can_become_the_default(mink_chat: MinkChat, tiny_path: Path) -> None:
    """Which is said once of each, while the default is the toy."""
    offered = ("-m", str(tiny_path), "-n", "1")
    assert "/default" in mink_chat(*offered, typed=["/temp"]).stderr
    assert "/default" not in mink_chat(*offered, typed=["/temp"]).stderr
    assert "/default" not in mink_chat("-m", EMBEDDED, typed=["/temp"]).stderr
    assert str(tiny_path) in mink_chat(*offered, typed=["/default"]).stderr
    assert chosen_model() == str(tiny_path)
    assert "tiny · CPU" in mink_chat("-n", "1", typed=["/temp"]).stderr
