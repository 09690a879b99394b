"""The settings: where values come from, what /set changes, and what the shell completes."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from mink_local.chat.settings import BY_KEY, SETTINGS, Setting, Settings, config_path
from mink_local.errors import MinkError, ModelError
from mink_local.llama.constraints import Constraints
from mink_local.samplers import Chain, Greedy, MinK, TopK, TopP
from mink_local.serve.request.presets import BUILT_IN, Preset
from tests.chat.conftest import MinkChat, context
from tests.support.tiny import write_scripted

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


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_byte_order_mark_begins_no_setting(encoding: str) -> None:
    config_path().write_text("[chat]\nsystem = 'Grüß dich'\n", encoding=encoding)
    assert settings()["system"] == "Grüß dich"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_can_be_reset_without_a_file(setting: Setting) -> None:
    fresh, changed = settings(), settings()
    changed.put(setting.name, "something else", "set in this chat")
    changed = changed.changed(setting, "default")
    assert changed[setting.name] == fresh[setting.name]
    assert changed.sources[setting.name] == "default"
    assert changed.shown(setting) == fresh.shown(setting)


@pytest.mark.parametrize(
    ("key", "text", "value", "shown"),
    [
        ("logit-bias", "5=1 7=-inf", ((5, 1.0), (7, float("-inf"))), "5=1 7=-inf"),
        ("template-kwargs", '{"a":  [1]}', {"a": [1]}, '{"a": [1]}'),
        ("chat-template-file", __file__, Path(__file__).read_text(encoding="utf-8"), __file__),
        ("rpc", "a:1,b:2", ("a:1", "b:2"), "a:1,b:2"),
    ],
)
def test_a_value_is_shown_as_it_is_typed(key: str, text: str, value: object, shown: str) -> None:
    changed = settings().changed(BY_KEY[key], text)
    assert (changed[BY_KEY[key].name], changed.shown(BY_KEY[key])) == (value, shown)


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


def test_what_is_no_setting_is_told_and_ignored(
    mink_chat: MinkChat, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config("[chat]\nparrot = 1\ntmep = 1\ntemp = 0\n")
    monkeypatch.setenv("MINK_TMEP", "3")
    assert mink_chat("Hi", "-n", "1").status == 0
    for hint in ("'parrot'", "did you mean temp?", "there is no setting MINK_TMEP: did you mean MINK_TEMP?"):
        assert hint in caplog.text
    assert caplog.text.count("there is no setting") == 3
    caplog.clear()
    monkeypatch.setenv("MINK_SERVE_CTX", "4096")
    monkeypatch.setenv("MINK_API_KEY", "alice:k1")
    mink_chat("--list")
    assert caplog.text.count("there is no setting MINK") == 1  # those are of mink-serve
    monkeypatch.setenv("MINK_TAU", "-1")
    assert "(in MINK_TAU)" in mink_chat("-p", "Hi").stderr


@pytest.mark.parametrize(
    ("text", "bias", "marks"),
    [
        ("logit-bias = ['5=1', '6=2']\nreasoning-marks = ['<a>', '</a>']", ((5, 1), (6, 2)), ("<a>", "</a>")),
        ("logit-bias = '5=1 6=2'\nreasoning-marks = '<a> </a>'", ((5, 1), (6, 2)), ("<a>", "</a>")),
        ("logit-bias = '5=1'", ((5, 1),), None),
    ],
)
def test_several_values(text: str, bias: object, marks: object) -> None:
    """A list, or what the variable is: values with blanks between them."""
    for name, arguments in (("chat", ()), ("preset.mine", ("--preset", "mine"))):
        write_config(f"[{name}]\n{text}\n")
        chosen = settings(*arguments)
        assert chosen["logit_bias"] == bias
        if name == "chat":  # the marks are fixed at the start
            assert chosen["reasoning_marks"] == marks


def test_tau_and_floor_from_the_file_are_for_min_k_only() -> None:
    write_config("[chat]\ntau = 1\nfloor = 2\n")
    assert settings().sampler == MinK(tau=1.0, floor=2.0)
    greedy = settings("--sampler", "greedy")
    greedy.check(is_new=greedy.given)
    assert greedy.sampler == Greedy()


QWEN3 = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "penalty_repeat": 1.05}


@pytest.fixture
def qwen(tiny: Callable[..., Path]) -> str:
    """A model whose file recommends how to sample."""
    keys = {f"general.sampling.{name}": value for name, value in QWEN3.items()}
    return str(tiny("qwen.gguf", more_keys=keys))


def test_what_the_models_file_recommends(qwen: str, tiny_path: Path) -> None:
    """The user's temperature and penalties come first, from wherever they are."""
    plain = settings("--model", qwen)
    assert (plain.sampler, plain["temp"], plain.follows_model) == (MinK(), 1.0, False)
    cuts = Chain(TopK(20), TopP(0.95, "temperature-last"))
    model = settings("--model", qwen, "--sampler", "model")
    model.check(is_new=model.given)
    assert (model.sampler, model["temp"], model.constraints) == (cuts, 0.6, Constraints(repeat_penalty=1.05))
    write_config("[chat]\ntemp = 2\nrepeat-penalty = 1.5\n")
    model = settings("--model", qwen, "--sampler", "model")
    assert (model.sampler, model["temp"], model.constraints) == (cuts, 2.0, Constraints(repeat_penalty=1.5))
    with pytest.raises(ModelError, match=tiny_path.name):
        settings("--model", str(tiny_path), "--sampler", "model").check(is_new=model.given)


def test_a_conversation_follows_its_model_again(qwen: str) -> None:
    kept = settings("--model", qwen, "--sampler", "model").kept()
    assert kept == {"sampler": "model"}
    later = settings("--model", qwen)
    later.restore(kept, "conversation 1")
    assert (later.follows_model, later["temp"], later.shown(BY_KEY["sampler"])) == (True, 0.6, "model")
    assert later.changed(BY_KEY["sampler"], "min-k")["temp"] == 1.0
    assert later.changed(BY_KEY["temp"], "5")["temp"] == 5.0


def test_a_chat_names_what_the_file_recommends(qwen: str, mink_chat: MinkChat) -> None:
    named = "T = 0.6, top-k 20, top-p 0.95"
    for options, is_named in (((), True), (("--sampler", "model"), False)):
        said = mink_chat("--model", qwen, "-n", "2", *options, typed=["Hi"]).stderr
        assert (named in " ".join(said.split())) == is_named


def test_creative() -> None:
    """What is given wins; the rest is that of mink-serve's preset."""
    creative = settings("--preset", "creative")
    assert Preset(creative.sampler, creative["temp"]) == BUILT_IN["creative"] == Preset(MinK(floor=1.4), 5.0)
    assert settings("--preset", "creative", "-t", "2")["temp"] == 2


def test_presets_are_those_of_the_server_and_of_the_results() -> None:
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([a-z, ]+) \| (--floor [\d.]+ --temp \d) \|", page, re.MULTILINE)
    advice = {kind: settings(*options.split()) for kind, options in rows}
    for name, kind in (
        ("creative", "prose, hot"),
        *((name, name) for name in ("prose", "code", "mathematics")),
    ):
        chosen = settings("--preset", name)
        assert Preset(chosen.sampler, chosen["temp"]) == BUILT_IN[name]
        assert (chosen.sampler, chosen["temp"]) == (advice[kind].sampler, advice[kind]["temp"])


PIRATE = """# mine
[chat]
floor = 2.0
system = "Be brief."

[preset.pirate]
system = \"\"\"You are a pirate.
[Arr!]\"\"\"
sampler = "top-k:k=5"
temp = 3
logit_bias = ["5=-inf", "6=1.5"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(PIRATE)
    return path


def test_a_preset_of_ones_own(config: Path) -> None:
    """It comes after the command line and before the table [chat]."""
    pirate = settings("--config", str(config), "--preset", "pirate", "-t", "2")
    assert (pirate["system"], pirate["temp"]) == ("You are a pirate.\n[Arr!]", 2)
    assert (str(pirate.sampler), pirate["logit_bias"]) == ("top-k:k=5", ((5, -math.inf), (6, 1.5)))
    assert str(settings("--config", str(config)).sampler) == "min-k:tau=3,floor=2"
    assert str(settings("--config", str(config), "--preset", "code").sampler) == "min-k:tau=3"
    with pytest.raises(click.UsageError, match="'pirat'"):
        settings("--config", str(config), "--preset", "pirat")


def test_a_preset_is_saved(config: Path) -> None:
    """The rest of the file stays as it is; what one has written by hand is not guessed at."""
    before = settings("--config", str(config), "--preset", "pirate", "--seed", "7")
    for _ in range(2):
        assert before.save_preset("parrot") == config
    text = config.read_text()
    assert text.startswith(PIRATE)
    assert text.count("[preset.parrot]") == 1
    after = settings("--config", str(config), "--preset", "parrot")
    for name in ("system", "temp", "logit_bias", "seed", "model"):
        assert after[name] == before[name]
    assert after.sampler == before.sampler
    with pytest.raises(MinkError, match="only you"):
        before.save_preset("pirate")  # whose system prompt has a line that begins as a table does
    assert config.read_text() == text


@pytest.mark.parametrize("text", ["[preset]\nx = 1", "preset = 5", "[preset.x]\ntemp = [1]", "[other]\n"])
def test_a_file_of_bad_presets(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(click.UsageError, match=re.escape(str(tmp_path))):
        settings("--config", str(tmp_path / "c.toml"))


def test_marks_of_reasoning_can_be_given(mink_chat: MinkChat, tmp_path: Path) -> None:
    path = write_scripted(
        tmp_path / "x.gguf", "{{ messages | tojson }}<|go|>", {"<|go|>": ["<hm>", "So", "</hm>", "Four"]}
    )
    marks = ("--reasoning-marks", "<hm>", "</hm>", "--no-show-reasoning")
    shown = mink_chat("--model", str(path), *marks, "--prompt", "2 + 2?").stdout
    assert "Four" in shown
    assert "<hm>" not in shown
