"""Where settings come from: command line, environment, file; and what the shell completes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mink_local.chat.cli import cli
from mink_local.chat.options import BY_KEY
from mink_local.chat.settings import Settings, config_path
from tests.chat.test_cli import MINK_CHAT, chat

pytestmark = pytest.mark.usefixtures("own_files")


def write_config(text: str) -> Path:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text)
    return config_path()


def settings(*arguments: str) -> Settings:
    return Settings(cli.make_context("mink-chat", list(arguments)))


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings()["temp"], settings().sources["temp"]) == (1.0, "default")
    path = write_config(
        "[chat]\ntemp = 2\nmax-tokens = 5\nlogit_bias = ['5=1']\nplain = true\nsystem = 'Hi'\n"
    )
    assert (settings()["temp"], settings().sources["temp"]) == (2.0, str(path))
    assert settings()["logit_bias"] == ((5, 1.0),)
    assert settings()["plain"] is True
    monkeypatch.setenv("MINK_TEMP", "3")
    monkeypatch.setenv("MINK_THINK", "0")
    assert (settings()["temp"], settings().sources["temp"]) == (3.0, "MINK_TEMP")
    assert settings()["think"] is False
    given = settings("-t", "4", "--rich")
    assert (given["temp"], given.sources["temp"], given["plain"]) == (4.0, "command line", False)
    assert given.sources["max_tokens"] == str(path)
    given.change(BY_KEY["temp"], "5")
    assert given.sources["temp"] == "set in this chat"
    given.change(BY_KEY["max-tokens"], "default")
    assert (given["max_tokens"], given.sources["max_tokens"]) == (5, str(path))


def test_another_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[chat]\nseed = 7\n")
    assert settings("--config", str(tmp_path / "mine.toml"))["seed"] == 7


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("[chat]\ntemp = 'hot'\n", "'hot' is not a valid float range. (in {path})"),
        ("[chat]\ntemp = true\n", "'true' is not a valid float range. (in {path})"),
        ("[chat]\ntemp = [1]\n", "{path}: temp has a value of another kind."),
        ("[chat]\ntemp = nan\n", "{path}: temp has a value of another kind."),
        ("[chat]\nparrot = 1\n", "{path}: there is no setting 'parrot' in [chat]."),
        ("chat = 1\n", "{path}: chat must be a table, [chat]."),
        ("[chat\n", "{path} cannot be read: "),
    ],
)
def test_bad_files_are_one_sentence(config: str, complaint: str) -> None:
    path = write_config(config)
    result = chat("-p", "Hi")
    assert (result.returncode, result.stdout) == (2, "")
    assert complaint.format(path=path) in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_bad_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_TAU", "-1")
    assert "-1.0 is not in the range x>=0. (in MINK_TAU)" in chat("-p", "Hi").stderr


def test_tau_from_the_file_is_for_min_k_only() -> None:
    write_config("[chat]\ntau = 1\n")
    assert str(settings().sampler) == "min-k:tau=1"
    greedy = settings("--sampler", "greedy")
    greedy.check()
    assert str(greedy.sampler) == "greedy"


def test_help_names_everything() -> None:
    text = CliRunner().invoke(cli, ["--help"], prog_name="mink-chat").output
    for setting in BY_KEY.values():
        assert f"--{setting.key}" in text
        assert setting.help
    for word in ("MINK_MAX_TOKENS", "config.toml", "Exit status", "Completion", "Examples"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 90


AS_MINK_CHAT = "import sys; sys.argv[0] = 'mink-chat'; from mink_local.chat import main; main()"


def tell(instruction: str, **environment: str) -> str:
    """What the program answers a shell's completion."""
    environment = {**os.environ, "_MINK_CHAT_COMPLETE": instruction, **environment}
    command = [sys.executable, "-c", AS_MINK_CHAT]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout


def complete(shell: str, *words: str) -> str:
    """What the last of these words may go on to."""
    at = words[-1] if shell == "fish" else str(len(words))
    return tell(f"{shell}_complete", COMP_WORDS=" ".join(("mink-chat", *words)), COMP_CWORD=at)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    assert "top-n-sigma" in complete(shell, "--sampler", "top-")
    assert "smollm2-135m" in complete(shell, "--model", "smol")
    assert "--max-tokens" in complete(shell, "--max")
    assert "graph" in complete(shell, "--sampling", "gr")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, tmp_path: Path) -> None:
    """The script of a shell is one that it reads, and in bash completes."""
    script = tell(f"{shell}_source")
    assert "mink-chat" in script
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(script)
    assert subprocess.run([shell, "-n", str(tmp_path / "script")], check=False).returncode == 0
    if shell == "bash":
        program = tmp_path / "mink-chat"
        program.write_text(f'#!/bin/sh\nexec {" ".join(MINK_CHAT)} "$@"\n')
        program.chmod(0o755)
        typed = (
            f"PATH={tmp_path}:$PATH; . {tmp_path}/script; "
            "COMP_WORDS=(mink-chat --sampler min-); COMP_CWORD=2; "
            "_mink_chat_completion mink-chat; echo ${COMPREPLY[@]}"
        )
        result = subprocess.run(["bash", "-c", typed], capture_output=True, text=True, check=True)
        assert result.stdout.split() == ["min-k", "min-p"]


def test_a_list_and_exports_need_no_model(tmp_path: Path) -> None:
    from mink_local.chat.store import How, Outcome, Store, default_path

    store = Store(default_path())
    conversation = store.begin("parrot", "Be brief.")
    user = store.add(conversation, None, "user", "Say `hi` \x1b[31m日本語 " + "long " * 50)
    answer = store.add(conversation, user, "assistant", "**Hi!**", How("parrot", "min-k:tau=3", 5.0, 7))
    store.finish(answer, Outcome("stop", [1], [2, 1]))
    store.add(conversation, user, "assistant", "Another")
    store.set_head(conversation, answer)
    store.rename(conversation, "birds")
    listed = chat("--list")
    assert listed.returncode == 0
    assert "birds" in listed.stdout
    assert "\x1b" not in listed.stdout
    assert chat("--resume", "birds", "--export", str(tmp_path / "b.md")).returncode == 0
    assert "# birds" in (tmp_path / "b.md").read_text()
    assert "## parrot\n\n**Hi!**\n\n*min-k:tau=3, temperature 5, seed 7*" in (tmp_path / "b.md").read_text()
    assert chat("--export", str(tmp_path / "b.json")).returncode == 0
    whole = json.loads((tmp_path / "b.json").read_text())
    assert [message["content"] for message in whole["messages"]][1] == "**Hi!**"
    assert [message["content"] for message in whole["other_branches"]] == ["Another"]
    missing = chat("--continue", "-p", "Hi")
    assert missing.returncode == 2
    assert "unknown model 'parrot'" in missing.stderr
    assert "--model names another" in missing.stderr
    assert chat("--export", str(tmp_path / "no" / "b.md")).returncode == 1


def test_a_prompt_goes_on_with_a_conversation(own_files: Path) -> None:
    chat("-p", "Hello", "-n", "3")
    assert not own_files.exists()  # a single answer is not kept
    from mink_local.chat.store import Store, default_path

    store = Store(default_path())
    store.add(store.begin("smollm2-135m", None), None, "user", "My name is Max.")
    store.add(1, 1, "assistant", "Hello Max!")
    result = chat("--continue", "-p", "What is my name?", "-t", "0", "-n", "12")
    assert result.returncode == 0, result.stderr
    assert "Max" in result.stdout
    assert [message.role for message in store.branch(store.latest().head)] == ["user", "assistant"] * 2
