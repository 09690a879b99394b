"""The commands of the chat, typed without a terminal."""

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.chat.attachments import words
from mink_local.chat.conversation.store import ConversationStore, StoredMessage
from mink_local.chat.listing import show_conversations
from mink_local.chat.loop import COMMANDS, CommandCompleter
from mink_local.chat.settings import BY_KEY, SETTINGS
from mink_local.generation.loading import load_model
from tests.chat.conftest import Typist, add, converse
from tests.support.tiny import write_scripted

pytestmark = pytest.mark.usefixtures("own_files")

Begin = Callable[..., Typist]


def questions(typed: Typist) -> list[str]:
    """Return the user's messages of the current branch."""
    return [message.content for message in typed.chat.session.branch[::2]]


# Settings


@pytest.mark.parametrize(
    ("lines", "key", "shown"),
    [
        (["/temp 5"], "temp", "5"),
        (["/temp 5", "/set temp default"], "temp", "0"),
        (["/set tau 2"], "sampler", "min-k:tau=2"),
        (["/set tau 5", "/sampler min-k"], "sampler", "min-k:tau=5"),
        (["/set tau 5", "/sampler min-k:tau=1"], "tau", "1"),
        (["/set floor 7", "/sampler min-k"], "sampler", "min-k:tau=3,floor=7"),
        (["/set floor 7", "/set floor 0"], "sampler", "min-k:tau=3"),
        (["/sampler min-k:tau=1", "/set tau 5", "/set floor 1.5"], "sampler", "min-k:tau=5,floor=1.5"),
        (["/sampler min-k:floor=2"], "floor", "2"),
        (["/sampler min-p:p=0.2"], "sampler", "min-p:p=0.2,order=temperature-last"),
        (["/sampler top-p"], "sampler", "top-p:p=0.9,order=temperature-last"),
        (["/sampler top-p:order=temperature-first"], "sampler", "top-p:p=0.9,order=temperature-first"),
        (["/set MAX_TOKENS 5"], "max-tokens", "5"),
        (["/set temp=2"], "temp", "2"),
        (["/set temp = 2"], "temp", "2"),
        (["/sampler min-p:p=0.2", "/set sampler default"], "sampler", "min-k:tau=3"),
        (["/reasoning line"], "show-reasoning", "off"),
    ],
)
def test_settings_change(typist: Begin, lines: list[str], key: str, shown: str) -> None:
    typed = typist()
    typed.say(*lines)
    assert typed.chat.session.settings.shown(BY_KEY[key]) == shown
    assert f"{key} {shown}\n" in typed.say(f"/show {key}")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set floor -1", ["at least 0, not -1"]),
        ("/set dry-multiplier -1", ["dry-multiplier"]),
        ("/temp hot", ["'hot'"]),
        ("/set parrot 1", ["'parrot'", "/show"]),
        ("/set max-token 1", ["'max-token'", "max-tokens?"]),
        ("/set", ["/set SETTING VALUE"]),
        ("/set store off", ["--store", "MINK_STORE"]),
        ("/reasoning foo", ["smollm2-135m", "switch"]),
        ("/reasoning on", ["smollm2-135m", "switch"]),
        ("/set reasoning on", ["smollm2-135m", "switch"]),
        ("/set loop-guard maybe", ["loop-guard", "'maybe'"]),
        ("/set template-kwargs x", ["template-kwargs", "JSON object"]),
        ("/set grammar -", ["grammar", "standard input"]),
        ("/set json-schema -", ["json-schema", "standard input"]),
        ("/undo 0", ["/undo 0", "at least 1"]),
        ("/max-tokens 5", ["/set max-tokens", "blank"]),
        ("/temp5", ["/temp?", "blank"]),
        ("/temp=5", ["/temp 5"]),
        ("/max_tokens=5", ["/set max-tokens 5"]),
        ("/top_p", ["/sampler top-p"]),
        ("/min-p 0.1", ["/sampler min-p"]),
        ("/frob", ["/help lists"]),
        ("/list zzz", ["'zzz'"]),
        ("/file {folder}", ["folder", "/*"]),
        pytest.param("/file {pipe}", ["pipe"], marks=pytest.mark.posix),
        pytest.param("/set grammar {pipe}", ["pipe"], marks=pytest.mark.posix),
        ("/show parrot", ["'parrot'"]),
        ("/parrot", ["/parrot", "/help"]),
        ("/regn", ["/regn", "/regen?"]),
        ("/help parrot", ["/parrot"]),
        ("/regen hot", ["'hot'"]),
        ("/regen 1 1.5", ["'1.5'"]),
        ("/regen 1 2 3", ["/regen [T] [SEED]"]),
        ("/pick 3", ["1 version"]),
        ("/undo 2", ["1 message"]),
        ("/compare top-k=5 hi", ["top-k"]),
        ("/compare minp:p=0.1 hi", ["perhaps min-p"]),
        ("/sampler minp", ["perhaps min-p"]),
        ("/undo x", ["'x'"]),
        ("/clear everything", ["/clear"]),
        ("/continue x", ["/continue"]),
        ("/heat x", ["/heat"]),
        ("/redo", ["nothing"]),
        ("/file /no/such", ["/no/such"]),
        ("/file ~nobody-by-name/x", ["~nobody-by-name/x"]),
        ("/file {bytes}", ["UTF-8"]),
        ("/file https://example.com/x.txt", ["curl"]),
        ("/file {long}", ["1,024"]),
        ("/save", ["/save"]),
        ("/save 1", ["1 "]),
        ("/save \x1b\x07", ["/save NAME"]),
        ("/load", ["/load"]),
        ("/load parrot", ["'parrot'"]),
        ("/delete", ["/delete"]),
        ("/delete parrot", ["'parrot'"]),
        ("/export", ["/export"]),
        ("/export c.txt", [".md", ".json"]),
        ("/export {bytes}", [".md", ".json"]),  # which is there, and not overwritten in any case
        ("/explain --1", ["'--1'"]),
        (f"/explain {'5' * 5000}", ["not in the last answer"]),
        ("/history x", ["'x'"]),
        ("/copy", ["/export"]),
        ("/model parrot", ["'parrot'"]),
    ],
)
def test_a_bad_command_names_what_is_wrong(
    typist: Begin, tmp_path: Path, line: str, words: list[str]
) -> None:
    """In one sentence; conversation, settings and model are as before."""
    (tmp_path / "bytes").write_bytes(b"caf\xe9")
    (tmp_path / "long").write_text("word " * 2000)
    if "pipe" in line:
        os.mkfifo(tmp_path / "pipe")
    typed = typist("-n", "1")
    typed.say("Hello")
    session, before = typed.chat.session, typed.chat.session.branch
    settings, model = session.settings, session.model
    files = {name: tmp_path / name for name in ("bytes", "long", "pipe")}
    said = typed.say(line.format(**files, folder=tmp_path)).strip()
    assert said.startswith("(")
    assert len(said.splitlines()) == 1
    assert [word for word in words if word not in said] == []
    assert (session.branch, session.settings, session.model) == (before, settings, model)
    assert typed.chat.attached == []
    assert session.store.find().name is None


@pytest.mark.parametrize(
    "line", ["/regen", "/heat", "/undo", "/history", "/save fruit", "/export c.md", "/continue", "/edit"]
)
def test_commands_that_need_an_answer(typist: Begin, line: str) -> None:
    typed = typist()
    assert len(typed.say(line).strip().splitlines()) == 1
    assert typed.chat.session.branch == []
    assert typed.chat.draft is None


def test_show_begins_with_what_was_changed(typist: Begin) -> None:
    """And has the values that are used, also of settings that nobody set."""
    say = typist("--system", "Be brief. " * 30).say
    shown = say("/temp 5", "/show all")
    assert "dry-multiplier" not in say("/show")
    for row in ("temp +5 +set in this chat", "max-tokens +8 +command line"):
        assert re.search(rf"^{row} *$", shown, re.M)
    assert shown.index("max-tokens") < shown.index("floor") < shown.index("ctx")
    for value in ("sampler +min-k:tau=3", "tau +3", "seed +random", "ctx +1024"):
        assert re.search(rf"\b{value}\b", shown)
    for setting in SETTINGS:
        assert len(re.findall(rf"(?:^|  ){setting.key} ", shown, re.M)) == 1
    assert say("/show max-tokens").startswith("max-tokens 8\n")
    assert " ".join(say("/show system").split()).count("Be brief.") == 30
    assert "min-k, " in say("/show sampler")


def test_the_system_prompt(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/system -` removes it, also if a variable or a file sets one."""
    monkeypatch.setenv("MINK_SYSTEM", "Be brief.")
    typed = typist()
    session = typed.chat.session
    for line, prompt, source in (
        ("/system", "Be brief.", "MINK_SYSTEM"),
        ("/system You are a pirate.", "You are a pirate.", "set in this chat"),
        ("/system -", None, "set in this chat"),
    ):
        assert source in typed.say(line)
        assert session.settings["system"] == prompt
    typed.say("Hello")
    assert session.prompt([]) == []
    typed.say("/set system default")
    assert session.settings["system"] == session.store.find().system == "Be brief."


def test_another_model(typist: Begin, tiny: Callable[..., Path]) -> None:
    """If it cannot be loaded, the one before answers on."""
    one, other = str(tiny("one.gguf")), str(tiny("other.gguf"))
    typed = typist("--model", one, model=load_model(one, n_ctx=512))
    session = typed.chat.session
    typed.say("Hello", "/model parrot")
    assert session.settings["model"] == one
    assert "tokens" in typed.say("Hello", f"/model {other}")
    assert session.model.name == "other"
    assert "tokens" in typed.say("Hello")
    assert session.store.find().model == other
    assert len(session.branch) == 6


# Answers


def test_an_answer_that_ends_inside_its_reasoning(typist: Begin, tmp_path: Path) -> None:
    """It is nothing that could be shown or copied, and each command says so."""
    path = write_scripted(
        tmp_path / "thinker.gguf",
        "{# <think> #}{{ messages[-1].content }}<|told|>",
        {"<|told|>": ["<think>", "Two", " and"]},
    )
    typed = typist(model=load_model(path, n_ctx=256))
    for line in ("Hi", "/pick", "/history"):
        assert "no answer" in typed.say(line)
    assert "empty" in typed.say("/copy")


@pytest.fixture
def cut_off(typist: Begin, tmp_path: Path) -> Typist:
    """A chat whose first answer was cut off within its reasoning."""
    path = write_scripted(
        tmp_path / "thinker.gguf",
        "{# <think> #}{{ messages[-1].content }}<|told|>",
        {"<|told|>": ["<think>", "Two", " and", " two", "</think>", "It is", " four"], "|": [" or five"]},
    )
    typed = typist("-n", "3", model=load_model(path, n_ctx=256))
    assert "2 words" in typed.say("Hi")
    return typed


def test_reasoning_goes_on(cut_off: Typist) -> None:
    """What was shown of it is not shown again; the answer that it leads to is, as a whole."""
    assert re.search(r"reasoning: 1 word .*stopped after 3 tokens", cut_off.say("/continue"), re.DOTALL)
    assert cut_off.chat.session.last_answer().content == "It is"
    shown = cut_off.say("/continue")
    assert "It is four\n" in shown
    assert "reasoning" not in shown
    answer = cut_off.chat.session.last_answer()
    assert (answer.reasoning, answer.content) == ("Two and two", "It is four")


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("lines", [["/begin It is|"], ["/edit answer", "It is|"]])
def test_an_answer_that_is_begun_ends_the_reasoning(
    cut_off: Typist, lines: list[str], is_killed: bool
) -> None:
    answer = cut_off.chat.session.last_answer()
    if is_killed:
        answer.finish_reason, answer.tokens, answer.k, answer.borders = None, [], [], []
    cut_off.say(*lines)
    answer = cut_off.chat.session.last_answer()
    assert (answer.reasoning, answer.content) == ("Two and", "It is| or five")


def test_several_messages_are_undone_and_redone(typist: Begin) -> None:
    typed = typist("-n", "1")
    typed.say("One", "Two", "Three", "/undo", "/undo 2")
    assert questions(typed) == []
    typed.say("/redo")
    assert questions(typed) == ["One", "Two"]
    typed.say("/redo")
    assert questions(typed) == ["One", "Two", "Three"]


def test_a_version_has_the_number_that_pick_takes(typist: Begin) -> None:
    typed = typist("-n", "2")
    typed.say("Say hello.", "/edit", "Say bye.", "/pick 1")
    assert "version 2 · " in typed.say("/regen 9")
    assert re.search(r"^\* 2  ", typed.say("/pick"), re.M)


def test_an_edited_answer_waits_until_it_is_sent(typist: Begin) -> None:
    typed = typist("-n", "2")
    typed.say("Say hello.")
    store = typed.chat.session.store
    add(store, StoredMessage("user", "And now?"), store.get(1).head)
    assert "another window" in typed.say("/edit answer", "Good morning")
    typed.say("")
    assert typed.offered == "Good morning"
    assert typed.chat.session.last_answer().content.startswith("Good morning")
    assert typed.chat.draft is None


def test_what_failed_was_no_empty_answer(typist: Begin, tiny: Callable[..., Path]) -> None:
    shown = typist(model=load_model(str(tiny(scale=float("nan"))), n_ctx=256)).say("Hi")
    assert ("NaN" in shown, "answered with nothing" in shown) == (True, False)


def test_answers_and_branches(typist: Begin) -> None:
    typed = typist()
    say, session = typed.say, typed.chat.session
    assert "Hello" in say("Say hello.")
    assert "version 2 · min-k:tau=3, T = 10" in say("/regen 10 7")
    listed = say("/pick")
    assert re.search(r"  1  Hello.*\n\* 2  ", listed)
    assert [word for word in ("T = 0", "T = 10") if word not in listed] == []
    assert "Hello" in say("/pick 1")
    assert "/redo" in say("/undo")
    assert session.branch == []
    assert "Hello" in say("/redo")  # as the note advises: the input line is empty
    assert "nothing" in say("/redo")
    assert "8 tokens" in say("/continue")
    assert "tokens/s" in say("/edit", "Say hello. Twice.")
    assert typed.offered == "Say hello."
    listed = say("/pick")
    assert re.search(r"> Say hello\.\n  1  .*\n  2  .*\n> Say hello\. Twice\.\n\* 3  ", listed)
    assert "> Say hello.\n" in say("/pick 2")
    assert questions(typed) == ["Say hello."]
    say("/pick 3")
    say("/edit", "/temp", "Say bye.")  # a command in between leaves it in the input line
    assert questions(typed) == ["Say bye."]
    say("/edit", "/undo", "Say it.")  # unless what it was to replace is not there any more
    assert (typed.offered, questions(typed)) == ("", ["Say it."])


def test_files(typist: Begin, tmp_path: Path) -> None:
    typed = typist("-n", "2")
    (tmp_path / "notes.txt").write_text("The password is ``` swordfish.\n")
    (tmp_path / "a b.txt").write_text("Two words.")
    assert re.search(r"a b\.txt \(\d+ tokens\)", typed.say(f'/file "{tmp_path}/a b.txt"'))
    typed.say("/file -")
    assert typed.chat.attached == []
    typed.say(f"/file {tmp_path}/notes.txt", f"/file '{tmp_path}/a b.txt'")
    assert [file.name for file in typed.chat.attached] == ["notes.txt", "a b.txt"]
    typed.say("/file -", f"/file {tmp_path}/*.txt '{tmp_path}/a b.txt'")
    assert [file.name for file in typed.chat.attached] == ["a b.txt", "notes.txt"]
    typed.say(f"/file {tmp_path}/notes.txt")  # which is not attached twice
    assert [file.name for file in typed.chat.attached] == ["a b.txt", "notes.txt"]
    typed.say("/file -")
    assert "*.none" in typed.say(f"/file {tmp_path}/notes.txt {tmp_path}/*.none")
    assert typed.chat.attached == []  # all or nothing
    escaped = ["a\\ b.txt"] if os.name == "posix" else []
    for name in ("'a b.txt'", "a b.txt", *escaped):
        typed.say("/file -", f"/file {tmp_path}/{name}")
        assert [file.name for file in typed.chat.attached] == ["a b.txt"]
    typed.say("/file -", f"/file {tmp_path}/notes.txt")
    typed.chat.stop()
    typed.chat.send("What is it?", None)  # is interrupted before its answer, and the file goes with it
    assert "attached files" in typed.say("")
    typed.say("And now?")
    message = "notes.txt:\n````\nThe password is ``` swordfish.\n````\n\nWhat is it?"
    assert questions(typed) == [message, "And now?"]


def test_backslashes_are_parts_of_paths_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as windows:
        windows.setattr(os, "name", "nt")
        found = words(r"""C:\a\'b c.txt' "C:\d e\*.txt" it"""), words(r"C:\it's")
    assert found == (["C:\\a\\b c.txt", "C:\\d e\\*.txt", "it"], ["C:\\it's"])


def test_attached_files_stay_out_of_the_input_line(typist: Begin, tmp_path: Path) -> None:
    """Of a message that is edited, or was never answered: they are sent with it all the same."""
    typed = typist("-n", "2")
    (tmp_path / "notes.txt").write_text("The password is swordfish.\n")
    files = "notes.txt:\n```\nThe password is swordfish.\n```\n\n"
    typed.say(f"/file {tmp_path}/notes.txt", "What is it?", "/edit", "And who?")
    assert (typed.offered, questions(typed)) == ("What is it?", [f"{files}And who?"])
    assert re.search(r"^\* +1 .* And who\? *$", typed.say("/list"), re.M)
    unanswered = StoredMessage("user", f"{files}Why?", attached=len(files))
    store = typed.chat.session.store
    store.save(None, [unanswered], "smollm2-135m", None)
    store.save(2, [], "smollm2-135m", None)  # as after Ctrl-C
    typed.say("/load 2", "")  # the second line is the one that is offered
    assert (typed.offered, questions(typed)) == ("Why?", [f"{files}Why?"])


@pytest.mark.parametrize(
    "commands", [["/set temp 1"], ["/heat", "/frobnicate", "/temp"], ["/clear"], ["/list"]]
)
def test_no_command_drops_a_draft(typist: Begin, tmp_path: Path, commands: list[str]) -> None:
    """It keeps its files until it is sent, and is sent once."""
    typed = typist("-n", "2")
    (tmp_path / "notes.txt").write_text("The password is swordfish.\n")
    typed.say("Hello", f"/file {tmp_path}/notes.txt")
    typed.chat.stop()
    typed.chat.send("What is it?", None)
    typed.say(*commands, "")
    files = "notes.txt:\n```\nThe password is swordfish.\n```\n\n"
    assert (typed.offered, questions(typed)[-1]) == ("What is it?", f"{files}What is it?")
    typed.say("And now?")
    assert (typed.offered, questions(typed)[-1]) == ("", "And now?")


def test_a_message_that_is_too_long_is_sent_after_the_advice(typist: Begin, tiny_path: Path) -> None:
    typed = typist("-n", "2", "--ctx", "256", model=load_model(str(tiny_path), n_ctx=256))
    typed.chat.session.settings.put("model", str(tiny_path), "command line")
    text = "word " * 300
    [advice] = re.findall(r"/set ctx \d+", typed.say(text))
    typed.say(advice, "")
    assert questions(typed) == [text.strip()]


def test_a_new_conversation_begins_with_the_settings_of_the_start(typist: Begin) -> None:
    """Whatever was set, or came with a conversation that was loaded, which keeps its own."""
    typed = typist("--seed", "7", "--system", "Be brief.")
    say, settings = typed.say, typed.chat.session.settings
    before = {setting.key: settings.shown(setting) for setting in SETTINGS}

    def now() -> dict[str, str]:
        return {key: typed.chat.session.settings.shown(BY_KEY[key]) for key in before}

    say("Hello", "/temp 3", "/set floor 1", "/set logit-bias 5=-inf", "/system Be long.", "/clear")
    assert now() == before
    say("/load 1")
    changed = {"sampler": "min-k:tau=3,floor=1", "floor": "1", "logit-bias": "5=-inf"}
    assert now() == {**before, **changed, "system": "Be long."}  # temp is from the command line
    say("/clear")
    assert now() == before
    say("/load 1", "/delete 1", "y")
    assert now() == before


def test_copy_code(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    typed = typist()
    text = "One:\n```python\na = 1\n\nb = 2\n```\nTwo:\n- x\n  ~~~~\n  ```\n  c\n  ~~~~\nThree:\n```\ncut"
    converse(typed.chat.session.store, "Hello", text)
    typed.say("/load 1")
    copied: list[str] = []
    monkeypatch.setattr(typed.chat.screen, "copy", copied.append)
    typed.say("/copy", "/copy code", "/copy code 1", "/copy code 2", "/copy code 3")
    assert copied == [text, "cut", "a = 1\n\nb = 2", "```\nc", "cut"]
    assert "3 blocks" in typed.say("/copy code 4")
    assert "/copy [code [N]]" in typed.say("/copy that")
    assert len(copied) == 5


@pytest.mark.parametrize("indent", ["   ", "\t", "  ", "", "> ", "  > "])
def test_copied_code_runs(typist: Begin, monkeypatch: pytest.MonkeyPatch, indent: str) -> None:
    """It has the indentation of the code, and not of the list or the quote that it stands in."""
    code = "def f(x):\n\tif x:\n\t\treturn 1\n\n    # end\nf(1)"
    lines = "\n".join(indent + line if line else "" for line in ["```python", *code.split("\n"), "```"])
    typed = typist()
    converse(typed.chat.session.store, "Hello", f"1. Do:\n\n{lines}\n\n2. Done.")
    typed.say("/load 1")
    copied: list[str] = []
    monkeypatch.setattr(typed.chat.screen, "copy", copied.append)
    typed.say("/copy code")
    assert copied == [code]


def test_a_line_like_a_command_is_sent_with_a_blank_before_it(typist: Begin) -> None:
    typed = typist("-n", "1")
    assert "/set max-tokens 5" in typed.say("/max-tokens 5", "")
    assert questions(typed) == []
    typed.say(" /max-tokens 5", " /temp 5")
    assert questions(typed) == ["/max-tokens 5", "/temp 5"]


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        ('"""\n/clear\n"""', "/clear"),
        ('"""\n/clear\n\nplease\n"""', "/clear\n\nplease"),
        ("/model is what?\nand more", "/model is what?\nand more"),
        ("/help me with this:\nTraceback", "/help me with this:\nTraceback"),
        ("/clear\nplease", "/clear\nplease"),
        ('"""Sum of a list."""\ndef total(xs): ...', '"""Sum of a list."""\ndef total(xs): ...'),
        ('"""Summarise""" this', '"""Summarise""" this'),
        ('"""\nexit\n"""', "exit"),
    ],
)
def test_what_is_text_is_no_command(typist: Begin, typed: str, sent: str) -> None:
    chat = typist("-n", "1")
    chat.say("Hello", typed)
    assert questions(chat) == ["Hello", sent]


@pytest.mark.parametrize("blank", ["\n", " \n", " ", "\n\n"])
def test_a_system_prompt_of_several_lines(typist: Begin, blank: str) -> None:
    chat = typist("-n", "1")
    text = "You are a cat.\nYou purr. " + "You sleep. " * 500
    chat.say(f"/system{blank}{text}")
    assert chat.chat.session.settings["system"] == text.strip()


def test_no_cache_on_disk_is_touched_by_a_chat_in_memory(typist: Begin, own_files: Path) -> None:
    file = own_files / "kv" / "1.kv"
    file.parent.mkdir(parents=True)
    file.touch()
    typist("-n", "1").say("Hello", "/delete 1", "y")
    assert file.exists()


def test_an_answer_without_a_text_says_so(typist: Begin, tmp_path: Path) -> None:
    """It is an answer all the same, which /regen replaces."""
    grammar = tmp_path / "empty.gbnf"
    grammar.write_text('root ::= ""')
    typed = typist("--grammar", str(grammar))
    said = typed.say("Hello")
    assert "the model answered with nothing" in said
    assert "/regen" in said
    assert questions(typed) == ["Hello"]
    assert "version 2" in typed.say("/regen 1") or len(typed.chat.session.versions()) == 2


@pytest.mark.slow
def test_a_loop_says_what_to_do(typist: Begin) -> None:
    typed = typist("-n", "300")
    session = typed.chat.session
    [word] = session.model.tokenize(" again")
    typed.say(f"/set logit-bias {word}=1000")
    said = typed.say("Hello")
    assert [
        hint for hint in ("token 2", "/regen 2", "dry-multiplier", "loop-guard") if hint not in said
    ] == []
    assert [message["content"] for message in session.prompt(session.branch)] == ["Hello", " again"]
    assert session.last_answer().content == " again" * len(session.last_answer().tokens)
    assert "/regen 10" in typed.say("/regen 5")
    assert "150 tokens" in typed.say("/set loop-guard off", "/set max-tokens 150", "/regen")


# Conversations


def test_stored_conversations(typist: Begin, tmp_path: Path) -> None:
    typed = typist()
    say, session = typed.say, typed.chat.session
    say("Name a fruit.", "And another.", "/save fruit", "/clear")
    assert session.branch == []
    assert re.search(r"fruit +2 +\d\d:\d\d +Name a", say("/list"))
    assert "fruit, 2 messages" in say("/load fruit")
    assert re.findall(r"^> (.*)", say("/history"), re.M) == ["Name a fruit.", "And another."]
    assert re.findall(r"^> (.*)", say("/history 1"), re.M) == ["And another."]
    assert re.search(r"^\* +fruit", say("/list"), re.M)
    assert "fruit, 1 message)" in say("/undo", "/load fruit")
    exported = tmp_path / "c.json"
    exported.write_text("mine")
    say(f"/export {exported}", "n")
    assert exported.read_text() == "mine"
    say(f"/export {exported}", "y")
    whole = json.loads(exported.read_text(encoding="utf-8"))
    assert (whole["name"], len(whole["messages"]), len(whole["other_branches"])) == ("fruit", 2, 2)
    asked = say("/delete fruit", "n")
    assert [part for part in ("fruit", "1 message", "'Name a fruit.'") if part not in asked] == []
    say("/delete fruit")  # the end of the input is a no
    assert session.store.find("fruit")
    say("/delete fruit", "y")
    assert session.conversation is None
    assert session.store.conversations() == []
    say("Hello", "/save \x1b]0;PWN\x07 of  mine")
    assert session.store.find().name == "]0;PWN of mine"


def test_a_conversation_comes_with_its_model(typist: Begin, tiny: Callable[..., Path]) -> None:
    """If that cannot be had, the one in use goes on, and the conversation keeps its own until it answers."""
    typed = typist("-n", "1", "--ctx", "512", model=load_model("smollm2-135m", n_ctx=512))
    session, path = typed.chat.session, str(tiny("parrot.gguf"))
    typed.say("Hello")
    converse(session.store, "Who is it?", "It is I.", model=path)
    converse(session.store, "Who was it?", "It was I.", model="/no/such.gguf")
    assert "parrot" in typed.say("/load 2")
    assert (session.model.name, session.settings["model"]) == ("parrot", path)
    assert "/no/such.gguf" in typed.say("/load 3")
    assert session.model.name == "parrot"
    assert "smollm2-135m" in typed.say("/load 1")
    assert session.model.name == "smollm2-135m"
    models = ("smollm2-135m", path, "/no/such.gguf")
    assert tuple(session.store.get(number).model for number in (1, 2, 3)) == models


def test_an_answer_is_edited_and_begun(typist: Begin) -> None:
    typed = typist("-n", "6")
    typed.say("Name a fruit.")
    answer = typed.chat.session.last_answer().content
    assert "Traceback" not in typed.say("/edit answer", "A ripe mango")
    assert typed.offered == answer
    assert typed.chat.session.last_answer().content.startswith("A ripe mango")
    assert "Once upon a" in typed.say("/begin Once upon a")
    assert typed.chat.session.last_answer().content.startswith("Once upon a")
    assert questions(typed) == ["Name a fruit."]
    assert len(typed.chat.session.alternatives()) == 3
    assert "/edit [answer]" in typed.say("/edit that")


def test_presets(typist: Begin, user_folders: Path) -> None:
    typed = typist("--max-tokens", "3")
    session = typed.chat.session
    assert "min-k:tau=3,floor=1.4, T = 5" in typed.say("/preset creative")
    assert str(user_folders) in typed.say("/system You are a cat.", "/temp 3", "/preset save cat").replace(
        "\n", ""
    )
    typed.say("/preset code", "/system default")
    assert (session.settings.summary, session.settings["system"]) == ("min-k:tau=3, T = 1", None)
    typed.say("/preset cat")
    settings = typed.chat.session.settings
    assert (settings.summary, settings["system"]) == ("min-k:tau=3,floor=1.4, T = 3", "You are a cat.")
    assert [name for name in ("creative", "mathematics", "cat") if name not in typed.say("/preset")] == []
    assert "'dog'" in typed.say("/preset dog")
    assert "/preset save NAME" in typed.say("/preset save a/b")


def test_conversations_are_searched(typist: Begin) -> None:
    """In every message, whatever the case of letters, also after one that casefolding makes longer."""
    typed = typist()
    store = typed.chat.session.store
    converse(store, "Name a FRÜHLING flower that grows in the woods of the north", "A rose.", "And a pear.")
    converse(store, "Name a dog.", "A poodle.")
    converse(store, "straße İ " * 20 + "needle\0 here", "Yes.")
    store.rename(2, "pears")
    found = typed.say("/list Pear")
    assert re.search(r"pears .* pears *$", found, re.M)
    assert re.search(r"1 .* And a pear\. *$", found, re.M)
    assert "FRÜHLING" in typed.say("/list frühling")
    assert re.search("3 .* ….{,12}needle␀ here", typed.say("/list NEEDLE"))
    assert "pears" not in typed.say("/list parrot")


def test_a_terminal_shows_the_last_conversations(
    typist: Begin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = typist()
    store, screen = typed.chat.session.store, typed.chat.screen
    for number in range(25):
        converse(store, f"Question {number}.")
    monkeypatch.setattr(screen, "is_terminal", True)
    show_conversations(screen, store)
    shown = capsys.readouterr()
    assert re.findall(r"Question (\d+)", shown.out) == [str(number) for number in range(5, 25)]
    assert "5 older" in shown.err
    monkeypatch.setattr(screen, "is_terminal", False)
    show_conversations(screen, store)
    assert capsys.readouterr().out.count("Question") == 25


def test_two_windows_with_one_conversation(typist: Begin, own_files: Path) -> None:
    """What another window wrote is told before the conversation takes another way; nothing is lost."""
    other = ConversationStore(own_files / "conversations.db")

    def write_elsewhere() -> None:
        add(other, StoredMessage("user", "from elsewhere"), other.find().head)

    typed = typist("-n", "2")
    typed.chat.session.store = ConversationStore(own_files / "conversations.db")
    typed.say("Name a fruit.")
    write_elsewhere()
    said = typed.say("And another.", "")  # the second line is the one that is offered again
    assert "/load 1" in said
    assert "2 tokens" in said
    assert questions(typed) == ["Name a fruit.", "And another."]
    for command in ("/continue", "/regen", "/undo"):
        write_elsewhere()
        assert "/load 1" in typed.say(command)
    assert typed.chat.session.last_answer().content in typed.say("/continue")
    assert len(other.following(1, typed.chat.session.branch[-2].id)) == 2  # nothing is overwritten
    other.delete(1)
    assert "/clear" in typed.say("Hello")
    assert "2 tokens" in typed.say("/clear", "Hello")


# The rest


def test_words_that_are_no_commands(typist: Begin) -> None:
    typed = typist("-n", "1")
    messages = ["/usr is a folder", "/usr/bin is too", "exit"]
    typed.say(f" {messages[0]}", messages[1], " exit")
    assert questions(typed) == messages


def test_help(typist: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fits a window of 24 rows, with its line, the note of two rows, and the next prompt."""
    monkeypatch.setenv("COLUMNS", "80")
    say = typist().say
    text = say("/help")
    for name, command in COMMANDS.items():
        assert re.search(rf"(^|  )/{name}  +{re.escape(command.about)}", text, re.M)
        assert len(command.details) > len(command.about)
        assert say(f"/help {name}").startswith(f"/{command.usage}\n")
    for group in ("Settings", "Answers", "Chats", "More"):
        assert re.search(rf"^{group} *$", text, re.M)
    *rows, note = text.splitlines()
    assert (len(rows) <= 20, len(note) < 160) == (True, True)
    assert say("/?") == text
    assert "min-k," in say("/help /sampler")
    assert say("/help bye").startswith("/exit")


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
    assert [words for words in ("in list_", "TypeError", "tokens/s") if words not in shown] == []


@pytest.mark.slow
@pytest.mark.parametrize("columns", [30, 40, 80, 100])
@pytest.mark.parametrize("command", ["/help", "/show", "/history"])
def test_no_row_is_wider_than_the_window(
    typist: Begin, monkeypatch: pytest.MonkeyPatch, columns: int, command: str
) -> None:
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)  # notes are wrapped on a terminal only
    typed = typist("-n", "1")
    typed.say("Hello", "/save notes on the migration of the database to postgres")
    assert all(cell_len(row) <= columns for row in typed.say(command).splitlines())


# Completion


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/sam", ["/sampler "]),
        ("/sampler top-n", ["/sampler top-n-sigma"]),
        ("/load f", ["/load fruit"]),
        ("/delete f", ["/delete fruit"]),
        ("/set max", ["/set max-tokens "]),
        ("/set show-r", ["/set show-reasoning "]),
        ("/set status o", ["/set status on", "/set status off"]),
        ("/set sampler eta", ["/set sampler eta"]),
        ("/temp d", ["/temp default"]),
        ("/reasoning li", ["/reasoning line"]),
        ("/model smollm2-1.7", ["/model smollm2-1.7b"]),
        ("/help hea", ["/help heat"]),
        ("/compare T", ["/compare T="]),
        ("/compare T=1 top-n", ["/compare T=1 top-n-sigma"]),
        ("/compare miro", []),  # which keeps a state
        ("/file {folder}/no", ["/file {folder}/notes.txt", "/file {folder}/nothing"]),
        ("/file {folder}/.h", ["/file {folder}/.hidden"]),
        ("/file note", ["/file notes.txt"]),
        ("/set grammar {folder}/note", ["/set grammar {folder}/notes.txt"]),
        ("/file {folder}/no/such/", []),
        ("/file ~nobody-by-name/", []),
        ("/undo ", []),
        ("sam", []),
    ],
)
def test_a_line_is_completed(
    typist: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, expected: list[str]
) -> None:
    chat = typist().chat
    converse(chat.session.store, "Name a fruit.")
    chat.session.store.rename(1, "fruit")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nothing").mkdir()
    for name in ("notes.txt", ".hidden"):
        (tmp_path / name).touch()
    line = line.format(folder=tmp_path)
    found = [
        line[: len(line) + one.start_position] + one.text for one in CommandCompleter(chat).complete(line)
    ]
    assert found == [one.format(folder=tmp_path) for one in expected]
