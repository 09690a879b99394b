"""The settings: where values come from, what /set changes, and what the shell completes."""

from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from mink_local.chat.cli import cli
from mink_local.chat.commands.set_show import ADVICE
from mink_local.chat.settings import BY_KEY, SETTINGS, Setting, Settings, config_path, ignored
from mink_local.samplers import Greedy, MinK
from tests.chat.conftest import MinkChat, context
from tests.support.python import run_python

pytestmark = pytest.mark.usefixtures("own_files")


def write_config(text: str) -> Path:
    config_path().parent.mkdir(parents=True, exist_ok=True)
    config_path().write_text(text, encoding="utf-8")
    return config_path()


def settings(*arguments: str) -> Settings:
    return Settings(context(*arguments))


def test_precedence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (settings()["temp"], settings().sources["temp"]) == (1.0, "default")
    path = write_config(
        "[chat]\ntemp = 2\nmax-tokens = 5\nlogit_bias = ['5=1']\nplain = true\nsystem = 'Hi'\n"
    )
    assert (settings()["temp"], settings().sources["temp"]) == (2.0, str(path))
    assert settings()["logit_bias"] == ((5, 1.0),)
    assert settings()["plain"] is True
    monkeypatch.setenv("MINK_TEMP", "3")
    monkeypatch.setenv("MINK_REASONING", "0")
    assert (settings()["temp"], settings().sources["temp"]) == (3.0, "MINK_TEMP")
    assert settings()["reasoning"] is False
    given = settings("-t", "4", "--rich")
    assert (given["temp"], given.sources["temp"], given["plain"]) == (4.0, "command line", False)
    assert given.sources["max_tokens"] == str(path)
    assert given.changed(BY_KEY["temp"], "5").sources["temp"] == "set in this chat"
    assert given["temp"] == 4


def test_default_is_the_value_of_the_start() -> None:
    given = settings("-t", "4")
    reset = given.changed(BY_KEY["temp"], "3").changed(BY_KEY["temp"], "default")
    assert (reset["temp"], reset.sources["temp"]) == (4, "command line")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_can_be_reset_without_a_file(setting: Setting) -> None:
    fresh, changed = settings(), settings()
    changed.put(setting.name, "something else", "set in this chat")
    changed = changed.changed(setting, "default")
    assert changed[setting.name] == fresh[setting.name]
    assert changed.sources[setting.name] == "default"
    assert changed.shown(setting) == fresh.shown(setting)


def test_values_that_settings_refuse_and_take() -> None:
    changed = settings()
    for key, text in (("temp", "nan"), ("sampler", "max-k"), ("dry-multiplier", "-1"), ("seed", "x")):
        with pytest.raises(click.UsageError, match=text.replace("-1", "dry-multiplier")):
            changed.changed(BY_KEY[key], text)
    changed = changed.changed(BY_KEY["logit-bias"], "5=1 7=-inf")
    assert changed.constraints
    assert changed.constraints.logit_bias == {5: 1.0, 7: float("-inf")}
    assert changed.shown(BY_KEY["logit-bias"]) == "5=1 7=-inf"
    given = changed.changed(BY_KEY["template-kwargs"], '{"a":  [1]}')
    assert given["template_kwargs"] == {"a": [1]}
    assert given.shown(BY_KEY["template-kwargs"]) == '{"a": [1]}'
    path = str(write_config("[chat]\n"))
    given = changed.changed(BY_KEY["chat-template-file"], path)
    assert (given["chat_template_file"], given.shown(BY_KEY["chat-template-file"])) == ("[chat]\n", path)
    assert changed.changed(BY_KEY["rpc"], "a:1,b:2").shown(BY_KEY["rpc"]) == "a:1,b:2"
    assert changed.changed(BY_KEY["logit-bias"], "default").constraints is None


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ("[chat]\ntemp = 'hot'\n", "'hot'"),
        ("[chat]\ntemp = true\n", "'True'"),
        ("[chat]\ntemp = nan\n", "nan"),
        ("[chat]\ntemp = [1]\n", "temp "),
        ("[chat]\nsampler = 'max-k'\n", "'max-k'"),
        ("[chatt]\n", "'chatt'"),
        ("chat = 1\n", "[chat]"),
        ("temp = 3\n[chat]\n", "'temp'"),
        ("[chat\n", "line 1"),
    ],
)
def test_bad_files_are_one_sentence(mink_chat: MinkChat, config: str, complaint: str) -> None:
    path = write_config(config)
    result = mink_chat("-p", "Hi")
    result.refused(2, complaint, path)
    assert result.stdout == ""


def test_unknown_keys_are_told_and_ignored(mink_chat: MinkChat, caplog: pytest.LogCaptureFixture) -> None:
    write_config("[chat]\nparrot = 1\ntmep = 1\ntemp = 0\n")
    assert mink_chat("Hi", "-n", "1").status == 0
    assert "'parrot'" in caplog.text
    assert "did you mean temp?" in caplog.text


def test_bad_variables_are_named(mink_chat: MinkChat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_TAU", "-1")
    assert "(in MINK_TAU)" in mink_chat("-p", "Hi").stderr


def test_tau_and_floor_from_the_file_are_for_min_k_only() -> None:
    write_config("[chat]\ntau = 1\nfloor = 2\n")
    assert settings().sampler == MinK(tau=1.0, floor=2.0)
    greedy = settings("--sampler", "greedy")
    greedy.check(is_new=greedy.given)
    assert greedy.sampler == Greedy()


def test_help_names_everything() -> None:
    text = CliRunner().invoke(cli, ["--help"], prog_name="mink-chat").output
    for setting in SETTINGS:
        assert f"--{setting.key}" in text
        assert setting.help
    for word in ("MINK_MAX_TOKENS", "config.toml", "Exit status", "Completion", "Examples"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 90


@pytest.mark.parametrize(
    ("words", "completion"),
    [
        (("--sampler", "top-"), "top-n-sigma"),
        (("--model", "smol"), "smollm2-135m"),
        (("--max",), "--max-tokens"),
        (("--show-r",), "--show-reasoning"),
    ],
)
def test_completion(words: tuple[str, ...], completion: str) -> None:
    shell = ShellComplete(cli, {}, "mink-chat", "_MINK_CHAT_COMPLETE")
    found = shell.get_completions(list(words[:-1]), words[-1])
    assert completion in [item.value for item in found]


def test_a_variable_that_is_no_setting_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINK_TMEP", "3")
    told = run_python("-m", "mink_local.chat", "--list")
    assert "MINK_TMEP" in told.stderr
    assert "MINK_TEMP" in told.stderr
    monkeypatch.delenv("MINK_TMEP")
    monkeypatch.setenv("MINK_TEMP", "3")
    assert [*ignored(context())] == []


def test_creative() -> None:
    """What is given wins; the rest is that of the advice for prose."""
    creative = settings("--creative")
    assert creative.sampler == MinK(tau=3, floor=1.4)
    assert (creative["temp"], settings("--creative", "-t", "2")["temp"]) == (5, 2)
    advice = {kind: options for kind, options, *_ in ADVICE}
    assert advice["prose, hot"] == "--floor 1.4 --temp 5"
    with pytest.raises(click.UsageError, match="floor"):
        settings("--creative", "-s", "top-p").check(is_new=lambda _: True)
