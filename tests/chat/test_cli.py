"""The command line of `mink-chat`: what is refused before an answer, and what needs no model."""

from pathlib import Path

import pytest

from mink_local import __version__
from mink_local.chat.cli import main
from mink_local.chat.store import ConversationStore, Outcome, SamplingInfo, default_path
from tests.chat.conftest import MinkChat

pytestmark = pytest.mark.usefixtures("own_files")


def test_version(mink_chat: MinkChat) -> None:
    assert mink_chat("--version").out == f"mink-chat, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--temp", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--temp", "nan"], 2, "nan is not a finite number"),
        (["--temp", "inf"], 2, "inf is not a finite number"),
        (["--temp", "hot"], 2, "'hot' is not a valid number"),
        (["--tau", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--tau", "1", "--sampler", "greedy"], 2, "tau is an option of min-k, not of greedy"),
        (["--floor", "nan"], 2, "nan is not a finite number"),
        (["--floor", "1", "--sampler", "greedy"], 2, "floor is an option of min-k, not of greedy"),
        (["--sampler", "max-k"], 2, "unknown sampler 'max-k': the samplers are min-k"),
        (["--max-tokens", "0"], 2, "0 is not in the range x>=1"),
        (["--seed", "-1"], 2, "-1 is not in the range"),
        (["--ctx", "0"], 2, "0 is not in the range x>=1"),
        (["--gpu-layers", "some"], 2, "'some' is neither auto nor a number"),
        (["--repeat-penalty", "0"], 2, "0.0 is not in the range x>0"),
        (["--dry-multiplier", "-1"], 2, "dry_multiplier must be a number from 0"),
        (["--logit-bias", "x"], 2, "'x' is not TOKEN=BIAS"),
        (["--logit-bias", "99999=1"], 2, "logit_bias names token 99999: the model's are 0 to 49151"),
        (["--grammar", "no/such"], 2, "'no/such': No such file"),
        (["--grammar", __file__], 2, "the grammar does not parse: "),
        (["--json-schema", __file__], 2, "json_schema cannot be made into a grammar"),
        (["--model", "parrot"], 2, "unknown model 'parrot': name a .gguf file or one of smollm2-135m"),
        (["--model", "no/such.gguf"], 2, "there is no file no/such.gguf"),
        (["--model", "/"], 2, "/ is a folder"),
        (["--prompt", "  "], 2, "the prompt is empty"),
        (["--continue", "--resume", "x"], 2, "--continue and --resume exclude each other"),
        (["--continue"], 1, "there is no conversation to continue yet"),
        (
            ["--resume", "x"],
            1,
            "there is no conversation 'x': see --list, or /list in a chat",
        ),
        (["--export", "x.txt"], 2, "--export x.txt: the file must end in .md or .json"),
        (["--config", "no/such"], 2, "'no/such' does not exist"),
        (["--parrot"], 2, "No such option"),
        (["parrot"], 2, "'parrot' and --prompt exclude each other"),
        (["parrot", "parrot"], 2, "unexpected extra argument"),
        (["--prompt", "word " * 900, "--ctx", "512"], 1, "and the context holds 512: shorten it"),
        (["--model", __file__], 1, "is not a GGUF file"),
    ],
)
def test_bad_input_is_one_sentence(
    mink_chat: MinkChat, arguments: list[str], status: int, complaint: str
) -> None:
    result = mink_chat(*(["--prompt", "Hi"] if "--prompt" not in arguments else []), *arguments)
    assert (result.status, result.out) == (status, "")
    assert len(result.complaints) == 1
    assert result.complaints[0].startswith("mink-chat: ")
    assert complaint in result.complaints[0]


def test_json_needs_a_prompt(mink_chat: MinkChat) -> None:
    assert mink_chat("--json", typed=["Hi"]).complaints == ["mink-chat: --json needs a prompt."]


def test_the_list_and_exports_need_no_model(mink_chat: MinkChat, tmp_path: Path) -> None:
    assert "there is no conversation" in mink_chat("--list").err
    store = ConversationStore(default_path())
    conversation = store.begin("parrot", "Be brief.")
    user = store.add(conversation, None, "user", "Say `hi` \x1b[31m日本語 " + "long " * 50)
    answer = store.add(conversation, user, "assistant", "**Hi!**", SamplingInfo("parrot", "min-k", 5.0, 7))
    store.finish(answer, Outcome("stop", [1], [2, 1]))
    store.change(conversation, name="birds")
    listed = mink_chat("--list")
    assert listed.status == 0
    assert "birds" in listed.out
    assert "\x1b" not in listed.out
    assert mink_chat("--resume", "birds", "--export", str(tmp_path / "b.md")).status == 0
    assert "# birds" in (tmp_path / "b.md").read_text(encoding="utf-8")
    assert mink_chat("--export", str(tmp_path / "b.json")).status == 0
    assert mink_chat("--export", str(tmp_path / "no" / "b.md")).status == 1
    missing = mink_chat("--continue", "-p", "Hi")
    assert missing.status == 2
    assert "unknown model 'parrot'" in missing.err
    assert "--model names another" in missing.err


def test_main_is_the_program() -> None:
    import mink_local.chat

    assert mink_local.chat.main is main
