"""The commands of the chat, typed without a terminal."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.chat.answer_steps import AnswerSteps
from mink_local.chat.commands import COMMANDS
from mink_local.chat.options import SETTINGS
from mink_local.chat.store import ConversationStore
from mink_local.generation.loading import load_model
from tests.chat.conftest import Typist, load_once

pytestmark = pytest.mark.usefixtures("own_files")

Begin = Callable[..., Typist]


def test_settings(typist: Begin) -> None:
    say = typist().say
    assert "(temp is 5, set in this chat)" in say("/temp 5")
    assert "(tau is 2, set in this chat)" in say("/tau 2")
    assert "(floor is 0, default)" in say("/floor")
    assert "-1.0 is not in the range x>=0" in say("/floor -1")
    assert "'hot' is not a valid number" in say("/temp hot")
    assert "there is no setting 'parrot'; /show lists them" in say("/set parrot 1")
    assert "there is no setting 'max-token'; did you mean max-tokens?" in say("/set max-token 1")
    assert "(max-tokens is until the context is full, default)" in say("/set max-tokens default")
    assert "usage: /set SETTING VALUE" in say("/set")
    assert "(sampler is min-p:p=0.2,order=temperature-first, set in this chat)" in say("/sampler min-p:p=0.2")
    assert "(tau is an option of min-k, not of min-p" in say("/tau 1")
    assert "(floor is an option of min-k, not of min-p" in say("/floor 1")
    assert "(sampler is min-k:tau=2, default)" in say("/set sampler default")
    assert "keys can only be set at the start: --keys, MINK_KEYS" in say("/set keys vi")
    assert "has no switch for reasoning" in say("/think off")
    assert say("/think foo").strip() == "('foo' is neither on nor off)"
    assert "(thoughts is line, set in this chat)" in say("/think line")


def test_show_begins_with_what_was_changed(typist: Begin) -> None:
    """And has the values that are used, also of settings that nobody set."""
    say = typist("--system", "Be brief. " * 30).say
    say("/temp 5")
    shown = say("/show")
    assert re.search(r"^temp +5 +set in this chat *$", shown, re.M)
    assert re.search(r"^max-tokens +8 +command line *$", shown, re.M)
    assert shown.index("max-tokens") < shown.index("Sampling") < shown.index("Model")
    for value in (
        "sampler +min-k:tau=3",
        "tau +3",
        "floor +0",
        "seed +random",
        "repeat-penalty +1",
        "ctx +1024",
        "store +on",
    ):
        assert re.search(rf"\b{value}\b", shown)
    for setting in SETTINGS:
        assert len(re.findall(rf"(?:^|  ){setting.key} ", shown, re.M)) == 1
    assert re.search(r"max-tokens 8\n+\(command line\) The longest answer", say("/show max-tokens"))
    assert "auto (on the host: the model is not on a GPU)" in " ".join(say("/show sampling").split())
    assert " ".join(say("/show system").split()).count("Be brief.") == 30
    assert re.search(r"tau +not used by greedy", say("/sampler greedy", "/show tau"))
    assert re.search(r"floor +not used by greedy", say("/show floor"))
    assert "there is no setting 'parrot'" in say("/show parrot")


def test_the_system_prompt(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/system -` removes it, also if a variable or a file sets one."""
    monkeypatch.setenv("MINK_SYSTEM", "Be brief.")
    typed = typist()
    assert "(system is Be brief., MINK_SYSTEM)" in typed.say("/system")
    assert "(system is You are a pirate., set in this chat)" in typed.say("/system You are a pirate.")
    assert "(system is none, set in this chat)" in typed.say("/system -")
    typed.say("Hello")
    assert typed.chat.session.prompt([]) == []
    assert "(system is Be brief., MINK_SYSTEM)" in typed.say("/set system default")
    assert typed.chat.session.store.latest().system == "Be brief."


def test_every_setting_can_be_reset_and_an_answer_follows(typist: Begin) -> None:
    typed = typist("--seed", "1")
    for setting in SETTINGS:
        if not setting.fixed and not setting.reloads and setting.key != "max-tokens":
            assert "default)" in typed.say(f"/set {setting.key} default")
    assert "tokens" in typed.say("Hello")


def test_answers_and_branches(typist: Begin) -> None:
    typed = typist()
    say = typed.say
    assert "there is no answer yet" in say("/regen")
    assert "there is no answer yet" in say("/heat")
    assert "Hello" in say("Say hello.")
    assert "answer 2 to this message" in say("/regen 10 7")
    assert "'hot' is not a valid number" in say("/regen hot")
    assert "'1.5' is not a valid whole number" in say("/regen 1 1.5")
    assert "usage: /regen [T] [SEED]" in say("/regen 1 2 3")
    assert re.search(r"  1  Hello.*\n\* 2  ", say("/pick"))
    assert "Hello" in say("/pick 1")
    assert "the last message has 2 answers" in say("/pick 3")
    assert "(taken back: Say hello.; /redo brings it back)" in say("/undo")
    assert "there is nothing to take back" in say("/undo")
    assert "Hello" in say("/redo")
    assert "there is nothing to bring back" in say("/redo")
    assert "(stopped after 8 tokens" in say("/continue")
    assert "tokens/s" in say("/edit", "Say hello. Twice.")
    assert [message.content for message in typed.chat.session.branch[::2]] == ["Say hello. Twice."]
    assert typed.offered == "Say hello."
    say("/edit", "/stats", "Say bye.")  # a command in between leaves the message as it was
    sent = [message.content for message in typed.chat.session.branch[::2]]
    assert sent == ["Say hello. Twice.", "Say bye."]
    say("/undo", "")
    assert typed.offered == "Say bye."


def test_files(typist: Begin, tmp_path: Path) -> None:
    typed = typist()
    (tmp_path / "notes.txt").write_text("The password is ``` swordfish.\n")
    (tmp_path / "bytes.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "long.txt").write_text("word " * 2000)
    (tmp_path / "a b.txt").write_text("Two words.")
    assert "(no file is attached)" in typed.say("/file")
    assert "/no': No such file" in typed.say(f"/file {tmp_path}/no")
    assert "~nobody-of-this-name/no': No such file" in typed.say("/file ~nobody-of-this-name/no")
    assert "is not UTF-8 text" in typed.say(f"/file {tmp_path}/bytes.txt")
    assert "and the context holds 1024" in typed.say(f"/file {tmp_path}/long.txt")
    assert "(a b.txt (3 tokens) goes with your next message; /file - removes it)" in typed.say(
        f'/file "{tmp_path}/a b.txt"'
    )
    assert "(no file is attached)" in typed.say("/file -")
    assert "goes with your next message" in typed.say(f"/file {tmp_path}/notes.txt")
    assert re.search(
        r"notes.txt \(\d+ tokens\), a b.txt .* go with", typed.say(f"/file '{tmp_path}/a b.txt'")
    )
    typed.chat.attached.pop()
    typed.say("What is the password?")
    sent = typed.chat.session.branch[0].content
    assert sent == "notes.txt:\n````\nThe password is ``` swordfish.\n````\n\nWhat is the password?"
    typed.say("And now?")
    assert typed.chat.session.branch[2].content == "And now?"


def test_stored_conversations(typist: Begin, tmp_path: Path) -> None:
    typed = typist()
    say = typed.say
    assert "there is no message in this conversation yet" in say("/save fruit")
    say("Name a fruit.", "And another.")
    assert "(this conversation is now fruit)" in say("/save fruit")
    assert "(a new conversation)" in say("/clear")
    assert re.search(r"fruit +2 +\d\d:\d\d +smollm2-135m +Name a", say("/list"))
    assert "(conversation fruit, 2 messages: /history shows them)" in say("/load fruit")
    assert re.search(r"^\* +fruit", say("/list"), re.M)
    assert "(conversation fruit, 1 message)" in say("/undo", "/load fruit")
    for usage in ("/save", "/load", "/delete", "/export"):
        assert f"usage: {usage}" in say(usage)
    assert "ends in neither .md nor .json" in say(f"/export {tmp_path}/c.txt")
    assert f"(written to {tmp_path}/c.json)" in say(f"/export {tmp_path}/c.json")
    whole = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert (whole["name"], len(whole["messages"]), len(whole["other_branches"])) == ("fruit", 2, 2)
    assert "no conversation 'ruit'" in say("/delete ruit")
    asked = say("/delete fruit", "n")
    assert "(delete fruit for good, with 1 message, beginning with 'Name a fruit.'? y or n)" in asked
    assert "(nothing is deleted)" in asked
    assert "(nothing is deleted)" in say("/delete fruit")  # at the end of the input
    assert "fruit is deleted" in say("/delete fruit", "y")
    assert typed.chat.session.conversation is None
    assert "there is no conversation" in say("/list")


def test_a_number_is_no_name(typist: Begin) -> None:
    """It is the number of a conversation, which could not be found any more."""
    typed = typist("-n", "1")
    typed.say("Hello")
    assert "could be the number of a conversation" in typed.say("/save 1")
    assert typed.chat.session.store.latest().name is None


def test_conversations_are_searched(typist: Begin) -> None:
    """In every message, and whatever the case of letters."""
    typed = typist("-n", "1")
    typed.say(
        "Name a FRÜHLING flower that grows in the woods of the north", "And a pear.", "/clear", "Name a dog."
    )
    typed.say("/save pears")
    found = typed.say("/list Pear")
    assert re.search(r"pears .* pears *$", found, re.M)
    assert re.search(r"1 .* And a pear\. *$", found, re.M)
    assert "Name a dog" not in found
    assert "FRÜHLING flower that" in typed.say("/list frühling")
    assert "there is no conversation" in typed.say("/list parrot")


def test_history(typist: Begin) -> None:
    typed = typist("-n", "2")
    assert "there is no message in this conversation" in typed.say("/history")
    typed.say("Name a fruit.", "And another.", "And a third.")
    shown = typed.say("/history")
    assert re.findall(r"^> .*", shown, re.M) == ["> Name a fruit.", "> And another.", "> And a third."]
    assert re.findall(r"^> .*", typed.say("/history 2"), re.M) == ["> And another.", "> And a third."]
    assert "(conversation number 1, 3 messages: /history shows them)" in typed.say("/load 1")


def test_two_windows_with_one_conversation(typist: Begin, own_files: Path) -> None:
    """What another window wrote is told before the conversation takes another way; nothing is lost."""
    store = ConversationStore(own_files / "conversations.db")
    typed = typist("-n", "2")
    typed.chat.session.store = store
    typed.say("Name a fruit.")
    other = ConversationStore(own_files / "conversations.db")
    other.add(1, other.latest().head, "user", "from elsewhere")
    said = typed.say("And another.", "")  # the second line is the one that is offered again
    assert "continued in another window: /load 1 goes on from there" in said
    assert "2 tokens" in said
    assert [message.content for message in typed.chat.session.branch[::2]] == [
        "Name a fruit.",
        "And another.",
    ]
    other.add(1, other.latest().head, "user", "again")
    for command in ("/regen", "/undo"):
        assert "continued in another window" in typed.say(command)
        other.add(1, other.latest().head, "user", "and again")
    other.delete(1)
    assert "was deleted in another window: /clear begins a new one" in typed.say("Hello")
    assert "2 tokens" in typed.say("/clear", "Hello")


def test_an_unfinished_answer_is_continued(typist: Begin) -> None:
    typed = typist("--store")
    store = typed.chat.session.store
    store.add(store.begin("smollm2-135m", None), None, "user", "Count.")
    store.append(store.add(1, 1, "assistant"), "One, two,")
    assert "cut off when the program ended" in typed.say("/load 1")
    typed.say("/continue")
    answer = typed.chat.session.last_answer()
    assert answer.content.startswith("One, two,")
    assert answer.outcome
    assert len(answer.outcome.tokens) > 8


def test_another_model(typist: Begin, tiny: Callable[..., Path]) -> None:
    """If it cannot be loaded, the one before answers on."""
    one, other = str(tiny("one.gguf")), str(tiny("other.gguf"))
    typed = typist("--model", one, model=load_model(one, n_ctx=512))
    typed.say("Hello")
    assert "unknown model 'parrot'" in typed.say("/model parrot")
    assert f"(model is {one}, command line)" in typed.say("/model")
    assert "tokens" in typed.say("Hello")
    assert f"(model is {other}, set in this chat)" in typed.say(f"/model {other}")
    assert typed.chat.session.model.name == "other"
    assert "tokens" in typed.say("Hello")
    assert typed.chat.session.store.latest().model == other


def test_views(typist: Begin, tmp_path: Path) -> None:
    typed = typist("--temp", "5", "--seed", "1")
    typed.say("Name three animals.")
    text = typed.chat.session.last_answer().content
    assert re.sub(r"\[\d+\]", "", typed.say("/heat")).startswith(text)
    explained = typed.say(f"/explain 1 --plot {tmp_path}/step.svg")
    assert "token 1 of 8" in explained
    assert "◀ was sampled" in explained
    assert re.search(r"min-k +\d+", explained)
    assert (tmp_path / "step.svg").read_text(encoding="utf-8").startswith("<?xml")
    assert "token 8 of 8" in typed.say("/explain -1")
    assert "'xyzzy' is not in the last answer" in typed.say("/explain xyzzy")
    assert "the last answer has 8 tokens" in typed.say("/explain 99")
    assert "--plot needs a file" in typed.say("/explain --plot")
    stats = typed.say("/stats")
    assert re.search(r"conversation +1 answer +$", stats, re.M)
    assert "sampler       min-k:tau=3, temperature 5" in stats
    assert re.search(r"candidates: 1 usually, at most [\d,]+; \d+% of tokens had no alternative", stats)


def test_the_scales_of_heat(typist: Begin) -> None:
    """The tokens with the largest numbers are listed, with what else could have been sampled."""
    typed = typist("--temp", "5", "--tau", "90", "--seed", "1", "-n", "12")
    typed.say("Name three animals.")
    steps = AnswerSteps(typed.chat.session, typed.chat.session.last_answer())
    shown = typed.say("/heat")
    most = max(steps.k)
    at = steps.k.index(most)
    assert f"token {at + 1} {steps.texts[at]!r}, candidates {most}, of " in shown
    assert repr(steps.text(int(steps.step(at).ids[0]))) in shown
    assert shown.count("token ") == min(5, sum(k > 1 for k in steps.k))
    assert re.search(r"\[\d+\.\d\]", typed.say("/heat surprise"))
    assert re.search(r"token \d+ .*, entropy in bits \d+\.\d, of", typed.say("/heat entropy"))
    assert re.search(r"\[\d+\]", typed.say("/heat rank"))
    typed.say("/sampler top-k:k=100", "/regen 9")
    assert "[cut]" in typed.say("/heat top-p")
    assert "there is no scale 'parrot': the scales are k, surprise" in typed.say("/heat parrot")


def test_views_of_an_answer_by_another_model(typist: Begin, tiny: Callable[..., Path]) -> None:
    typed = typist("-n", "4")
    typed.say("Hello")
    typed.chat.session.model = load_model(str(tiny()), n_ctx=512)
    for view in ("/explain", "/heat", "/heat entropy"):
        assert "tiny did not write this answer: " in typed.say(view)
    assert "temperature 0" in typed.say("/stats")


def test_stats_count_what_the_context_holds(typist: Begin) -> None:
    """As the status line does: turns are left out when the next message comes."""
    typed = typist("-n", "4", model=load_once("smollm2-135m", n_ctx=256))
    typed.say("Name a colour.", "/set max-tokens 60")
    shown = typed.say("Tell me a long story about dogs. " * 16)
    [used] = re.findall(r"context (\d+)/256", shown)
    assert int(used) > 196  # so that the next message leaves out a turn
    [counted] = re.findall(r"context +(\d+) of 256 tokens", typed.say("/stats"))
    assert abs(int(used) - int(counted)) < 10  # the template ends the turn


def test_the_last_tau_counts(typist: Begin) -> None:
    say = typist().say
    assert "(tau is 3, default)" in say("/tau")
    say("/tau 5")
    assert "(sampler is min-k:tau=5, set in this chat)" in say("/sampler min-k")
    assert "(sampler is min-k:tau=1, set in this chat)" in say("/sampler min-k:tau=1")
    assert "(tau is 1, " in say("/tau")
    assert "(tau is 2, set in this chat)" in say("/tau 2")
    assert "(sampler is min-k:tau=2, " in say("/sampler")


def test_a_floor_gives_more_candidates(typist: Begin) -> None:
    typed = typist("--temp", "5", "--floor", "0", "--seed", "1", "-n", "12")

    def total() -> int:
        return sum(AnswerSteps(typed.chat.session, typed.chat.session.last_answer()).k)

    typed.say("Tell me a story.")
    before = total()
    assert "(floor is 7, set in this chat)" in typed.say("/floor 7")
    assert "(sampler is min-k:tau=3,floor=7, set in this chat)" in typed.say("/sampler min-k")
    typed.say("/regen")
    assert total() > 10 * before
    assert "(floor is 2, " in typed.say("/sampler min-k:floor=2", "/floor")
    assert "(sampler is min-k:tau=3, " in typed.say("/floor 0", "/sampler")


def test_words_that_are_no_commands(typist: Begin) -> None:
    typed = typist("-n", "1")
    assert "there is no command /parrot; /help lists them." in typed.say("/parrot")
    assert "there is no command /regn; did you mean /regen?" in typed.say("/regn")
    typed.say(" /usr is a folder", "/usr/bin is one as well")  # neither is a command
    assert [message.content for message in typed.chat.session.branch[::2]] == [
        "/usr is a folder",
        "/usr/bin is one as well",
    ]


def test_help(typist: Begin) -> None:
    text = typist().say("/help")
    for name, command in COMMANDS.items():
        assert re.search(rf"(^|  )/{name}  +{re.escape(command.about)}", text, re.M)
        assert len(command.about) <= 27
        assert len(command.details) > len(command.about)
    for group in ("Settings", "Answers", "Chats", "More"):
        assert re.search(rf"^{group} *$", text, re.M)
    more = typist().say("/help regen")
    assert more.startswith("/regen [T] [SEED]\n")
    assert "/pick lists them" in more
    assert "takes the most probable token" in typist().say("/help /temp")
    assert typist().say("/help bye").startswith("/exit")
    assert "there is no command /parrot" in typist().say("/help parrot")


@pytest.mark.parametrize("words", ["/exit", "/quit", "/bye", "/q", "exit", "quit"])
def test_exit(typist: Begin, words: str) -> None:
    typed = typist()
    typed.say(words, "never sent")
    assert typed.chat.leaving
    assert typed.chat.session.branch == []


def test_a_bug_ends_the_command_and_not_the_chat(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = typist()
    monkeypatch.setattr(typed.chat.session.store, "conversations", None)
    shown = typed.say("/list", "Say hello.")
    found = re.search(r"\(this is a bug: TypeError: .* Its traceback is in (.+); the chat goes on\)", shown)
    assert found
    assert "tokens/s" in shown
    path = Path(found[1])
    assert "in list_" in path.read_text(encoding="utf-8")
    path.unlink()


def test_names_hold_no_control_characters(typist: Begin) -> None:
    typed = typist()
    typed.say("Hello")
    assert "usage: /save NAME" in typed.say("/save \x1b\x07")
    typed.say("/save \x1b]0;PWN\x07 of  mine")
    assert typed.chat.session.store.latest().name == "]0;PWN of mine"


def test_words_of_other_programs(typist: Begin) -> None:
    typed = typist("-n", "1")
    assert "/sampler" in typed.say("/?")
    typed.say(" exit", "Hello")
    assert "answer 2 to this message" in typed.say("/retry")
    assert [message.content for message in typed.chat.session.branch[::2]] == ["exit", "Hello"]
    assert "(a new conversation)" in typed.say("/new")


@pytest.mark.slow
def test_a_loop_says_what_to_do(typist: Begin) -> None:
    typed = typist("-n", "300")
    [word] = typed.chat.session.model.tokenize(" again")
    typed.say(f"/set logit-bias {word}=1000")
    stopped = (
        "(repeats itself since token 2: stopped; /regen 2, /set dry-multiplier 0.8 or /set loop-guard off)"
    )
    assert stopped in typed.say("Hello").replace("\n", " ")
    outcome = typed.chat.session.last_answer().outcome
    assert outcome
    assert outcome.finish_reason == "repetition"
    told = typed.chat.session.messages(typed.chat.session.branch)
    assert [message["content"] for message in told] == ["Hello", " again"]
    assert typed.chat.session.last_answer().content == " again" * len(outcome.tokens)
    assert "stopped; /regen 10," in typed.say("/regen 5")
    typed.say("/set loop-guard off", "/set max-tokens 150")
    assert "(stopped after 150 tokens" in typed.say("/regen")


def test_errors_cost_only_the_message(typist: Begin) -> None:
    typed = typist()
    assert "and the context holds 1024" in typed.say("word " * 1200)
    assert "Hello" in typed.say("Say hello.")


def test_copy_needs_a_terminal(typist: Begin) -> None:
    assert "not a terminal that can copy" in typist().say("Hello", "/copy")
