"""`mink-chat` as one meets it in a terminal: real keys, and what is on the screen."""

import base64
import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("own_files")

Open = Callable[..., Terminal]


@pytest.fixture
def opened() -> Iterator[Open]:
    """`opened(*arguments)` opens a chat in a terminal and waits for its prompt."""
    with contextlib.ExitStack() as stack:

        def open_(*arguments: str, **options: Any) -> Terminal:
            terminal = Terminal(*arguments, **options)
            stack.callback(terminal.close)
            return terminal

        yield open_


def test_chat(opened: Open) -> None:
    terminal = opened("--temp", "0", "--max-tokens", "20")
    assert "min-k:tau=3, temperature 0" in terminal.text
    assert "Hello" in terminal.say("Say hello to me.")
    assert re.search(r"\d+ tokens · [\d.]+ tokens/s · context \d+/\d+ · k median 1", terminal.text)
    terminal.say("   ")
    assert "there is no command /parrot" in terminal.say("/parrot")
    assert "did you mean /regen?" in terminal.say("/regn")
    assert "usage" not in terminal.say(" /usr is a folder")  # a blank before it: a message
    terminal.send("/exit\r")
    assert terminal.ended() == 0


def test_typing(opened: Open) -> None:
    """Many lines pasted are one message, Alt-Enter and a block make lines, Tab completes, Ctrl-R finds."""
    terminal = opened("--temp", "0", "--max-tokens", "3")
    terminal.send("\x1b[200~first line\nsecond line\nthird line\x1b[201~")
    terminal.settle()
    assert "3 tokens" not in terminal.text
    terminal.say("")
    terminal.send("one\x1b\rtwo")
    terminal.say("")
    terminal.send('"""\rblock one\r\rblock two\r')
    terminal.settle()
    terminal.say('"""')
    terminal.send("/sam\t")
    terminal.settle()
    assert "top-n-sigma" in terminal.say("top-n\t")
    terminal.send("\x12second")  # Ctrl-R
    terminal.settle()
    terminal.say("\r")
    terminal.say("/export x.json")
    messages = json.loads(Path("x.json").read_text())["messages"]
    Path("x.json").unlink()
    said = [message["content"] for message in messages if message["role"] == "user"]
    lines = "first line\nsecond line\nthird line"
    assert said == [lines, "one\ntwo", "block one\n\nblock two", lines]


@pytest.mark.parametrize("plain", [False, True])
def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(opened: Open, plain: bool) -> None:
    terminal = opened("--temp", "5", "--seed", "3", *(["--plain"] if plain else []), plain=plain)
    terminal.send("Tell me a very long story about a dragon.\r")
    terminal.until(lambda: terminal.text.lower().count("dragon") > 2)
    terminal.send("\x03")
    terminal.until(lambda: "(interrupted)" in terminal.text)
    terminal.settle()
    terminal.send("Now say hello.\r")
    terminal.until(lambda: terminal.text.count("tokens/s") == 2)
    terminal.settle()
    terminal.send("\x03")
    terminal.until(lambda: "(Ctrl-D or /exit leaves)" in terminal.text)
    terminal.settle()
    assert terminal.leave() == 0


def test_ctrl_c_while_a_long_prompt_is_read(opened: Open) -> None:
    system = "one two three four five six " * 500
    terminal = opened("--temp", "0", "--max-tokens", "10", "--system", system)
    terminal.send("Hello\r")
    terminal.until(lambda: re.search(r"[█░]+ reading \d{4} tokens", terminal.screen) is not None)
    began = time.perf_counter()
    terminal.until_prompt(lambda: terminal.send("\x03"))
    assert time.perf_counter() - began < 4  # reading it whole takes 9 s at the least
    assert "(interrupted)" in terminal.screen
    assert "reading" not in terminal.screen


def test_a_message_that_does_not_fit_costs_only_itself(opened: Open) -> None:
    terminal = opened("--temp", "0", "--max-tokens", "10", "--ctx", "256")
    assert "and the context holds 256" in terminal.say("word " * 300)
    assert "Hello" in terminal.say("Say hello.")


def test_a_model_that_fails_ends_the_answer_not_the_chat(opened: Open, tiny: Callable[..., Path]) -> None:
    terminal = opened("--model", str(tiny(scale=float("nan"))))
    for _ in range(2):
        assert "a NaN among its logits at step 1" in terminal.say("Hi")


def test_a_conversation_that_outgrows_the_context(opened: Open) -> None:
    terminal = opened("--temp", "0", "--max-tokens", "30", "--ctx", "256", "--system", "You are brief.")
    for i in range(8):
        if "outgrew the context" in terminal.say(f"{i}: tell me of the number {i}."):
            break
    else:
        pytest.fail("eight turns fitted 256 tokens")
    assert i >= 2
    assert "outgrew" not in terminal.say("And now?")


def test_every_command(opened: Open, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'Name a fruit.' > \"$1\"\n")
    editor.chmod(0o755)
    (tmp_path / "notes.txt").write_text("The password is ``` swordfish.\n")
    terminal = opened("--temp", "0", "--max-tokens", "12", EDITOR=str(editor))
    say = terminal.say
    assert "usage: /file PATH" in say("/file")
    assert "there is no answer yet" in say("/regen")
    assert "Hello" in say("Say hello.")
    assert "(temp is 5, set in this chat)" in say("/temp 5")
    assert "(tau is 2, set in this chat)" in say("/tau 2")
    assert "'hot' is not a valid float" in say("/temp hot")
    assert "answer 2 to this message" in say("/regen 10 7")
    assert re.search(r"  1  Hello.*\n\* 2  ", say("/pick"))
    assert "Hello" in say("/pick 1")
    assert "there are 2 answers" in say("/pick 3")
    assert "(taken back: Say hello.; /redo brings it back)" in say("/undo")
    assert "there is nothing to take back" in say("/undo")
    assert "Hello" in say("/redo")
    assert "tokens/s" in say("/edit")
    assert "goes with your next message" in say(f"/file {tmp_path}/notes.txt")
    assert "there is no setting 'parrot'" in say("/set parrot 1")
    say("/set max-tokens 4")
    assert "(cut after 4 tokens" in say("What is the password?")
    assert "(cut after 4 tokens" in say("/continue")
    assert re.search(r"temp +5 +set in this chat", say("/show"))
    assert re.search(r"max-tokens +4 +set in this chat", say("/show max-tokens"))
    assert "(sampler is min-p:p=0.2, set in this chat)" in say("/sampler min-p:p=0.2")
    assert "--tau is min-k's" in say("/tau 1")
    assert "(sampler is min-k, default)" in say("/set sampler default")
    assert "(system is You are a pirate., set in this chat)" in say("/system You are a pirate.")
    assert "no such switch" in say("/think off")
    heat = say("/heat")
    assert "candidates:" in heat
    assert "\x1b[48;5;" in terminal.raw
    explained = say("/explain 1 --plot " + str(tmp_path / "step.png"))
    assert re.search(r"min-k +\d+", explained)
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")
    assert "'xyzzy' is not in the last answer" in say("/explain xyzzy")
    compared = say("/compare Name a colour.")
    for method in ("min-k:tau=2", "min-p:p=0.1", "top-p:p=0.9", "top-n-sigma:n=1"):
        assert method in compared
    assert "4 tokens, k" in compared
    assert "2 answers" in say("/stats")
    assert "(this is fruit now)" in say("/save fruit")
    say("/copy")
    copied = re.findall(r"\x1b\]52;c;(.*?)\x07", terminal.raw)[-1]
    assert f"(copied {len(base64.b64decode(copied).decode())} characters" in terminal.text
    assert "(a new conversation)" in say("/clear")
    assert "the conversation has not begun yet" in say("/save veg")
    listed = say("/list")
    assert re.search(r"fruit +2 +\d\d:\d\d +smollm2-135m +Name a fruit\.", listed)
    assert "(conversation fruit, 2 messages)" in say("/load fruit")
    assert f"(written to {tmp_path}/c.md)" in say(f"/export {tmp_path}/c.md")
    exported = (tmp_path / "c.md").read_text()
    assert "````\nThe password is ``` swordfish.\n````\n\nWhat is the password?" in exported
    assert "smollm2-135m on the CPU" in say("/model smollm2-135m")
    assert "unknown model 'parrot'" in say("/model parrot")
    assert "smollm2-135m" in say("/show model")
    assert "(ctx is 512, set in this chat)" in say("/set ctx 512")
    assert "tokens · " in say("And a vegetable?")
    help_ = say("/help")
    for name in ("temp", "tau", "set", "regen", "undo", "continue", "file", "copy", "save", "list"):
        assert f"\n/{name} " in help_ or f"\n/{name}\n" in help_
    assert "coloured" in say("/help heat")
    assert "fruit is deleted" in say("/delete fruit")
    assert "there is none yet" in say("/list")
    assert terminal.leave() == 0


def test_killed_in_the_middle_of_an_answer(opened: Open, own_files: Path) -> None:
    """All that was on the screen comes back, and the answer goes on from there."""
    terminal = opened("--temp", "0", "--seed", "1")
    terminal.send("Tell me a long story about a dog named Max.\r")
    terminal.until(lambda: terminal.text.count("Max") > 4)
    terminal.child.kill(signal.SIGKILL)
    terminal.settle()
    shown = " ".join(terminal.text.partition("named Max.")[2].split())
    assert len(shown) > 40
    again = opened("--continue", "--temp", "0", "-n", "5")
    assert "cut off when the program ended" in again.text
    recalled = " ".join(again.text.split())
    assert shown[: len(shown) - 20] in recalled
    assert "5 tokens" in again.say("/continue")
    again.say("/export x.json")
    answer = json.loads(Path("x.json").read_text())["messages"][-1]
    Path("x.json").unlink()
    assert answer["outcome"]["finish_reason"] == "length"
    assert " ".join(answer["content"].split()).startswith(shown[:30])
    assert again.leave() == 0
    assert oct((own_files / "conversations.db").stat().st_mode)[-3:] == "600"
    with contextlib.closing(sqlite3.connect(own_files / "conversations.db")) as db:
        assert db.execute("SELECT count(*) FROM piece").fetchone() == (0,)


def test_killed_while_the_prompt_is_read(opened: Open) -> None:
    """The message that nobody answered is typed already."""
    terminal = opened("--temp", "0", "--system", "one two three four five six " * 500)
    terminal.send("What is this?\r")
    terminal.until(lambda: "reading" in terminal.text)
    terminal.child.kill(signal.SIGKILL)
    again = opened("--continue", "--temp", "0", "--system", "Be brief.", "-n", "5")
    assert "> What is this?" in again.screen


def test_kept_or_not(opened: Open, own_files: Path) -> None:
    terminal = opened("--no-store", "--temp", "0", "-n", "3")
    terminal.say("A secret.")
    assert "until you leave: --no-store" in terminal.say("/save secret")
    assert terminal.leave() == 0
    assert not own_files.exists()


def test_many_chats_in_one_store(opened: Open) -> None:
    one, two = (opened("--temp", "0", "-n", "3") for _ in range(2))
    one.say("I am one.")
    two.say("I am two.")
    listed = one.say("/list")
    assert "I am one." in listed
    assert "I am two." in listed


def test_a_store_that_cannot_be_opened(opened: Open, own_files: Path) -> None:
    own_files.mkdir(parents=True)
    (own_files / "conversations.db").write_text(
        "this is no database, and it is long enough to be read as one" * 9
    )
    terminal = opened("--temp", "0", "-n", "3")
    assert "cannot be opened" in terminal.text
    assert "3 tokens" in terminal.say("Hello")


def test_narrow_and_wide(opened: Open) -> None:
    """Resized, with wide characters and emoji in the input and the answer."""
    terminal = opened("--temp", "0", "-n", "40", "--logit-bias", "28=0")
    terminal.say("Repeat: 日本語 😀 and 中文")
    terminal.resize(24, 40)
    terminal.settle()
    said = terminal.say("Say this again: 日本語日本語日本語日本語日本語日本語日本語日本語 😀😀")
    assert "tokens/s" in said
    assert all(len(line) <= 40 for line in terminal.screen.splitlines())


@pytest.mark.parametrize("how", ["--plain", "NO_COLOR", "TERM=dumb"])
def test_plain(opened: Open, how: str) -> None:
    environment = dict([how.partition("=")[::2]]) if how != "--plain" else {}
    arguments = ["--plain"] if how == "--plain" else []
    environment = {key: value or "1" for key, value in environment.items()}
    terminal = opened("--temp", "0", "-n", "40", *arguments, plain=how != "NO_COLOR", **environment)
    terminal.send("Write a python function that adds two numbers\r")
    terminal.until(lambda: "tokens/s" in terminal.text)
    assert "```python" in terminal.text
    assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m(?!\()", re.sub(r"\x1b\[[02]m", "", terminal.raw))


def test_vi_keys_as_the_inputrc_says(opened: Open, tmp_path: Path) -> None:
    (tmp_path / "inputrc").write_text("set editing-mode vi\n")
    terminal = opened("--temp", "0", "-n", "3", INPUTRC=str(tmp_path / "inputrc"))
    terminal.send("/tempx 2\x1b0fxx")  # Escape, to the beginning, to the x, delete it
    terminal.settle()
    assert "(temp is 2, set in this chat)" in terminal.say("")


def test_model_text_does_not_reach_the_terminal_as_orders(opened: Open, tmp_path: Path) -> None:
    """Neither from an answer nor from what is stored, nor from a file's name."""
    grammar = tmp_path / "escape.gbnf"
    grammar.write_text('root ::= "\\x1b]0;pwned\\x07 a\\tb\\x1b[31m\\nred \\x9b31m"')
    terminal = opened("--grammar", str(grammar), "--temp", "0")
    said = terminal.say("Hi")
    assert re.search(r"\]0;pwned a +b\[31m\nred 31m\n", said)
    assert "\x1b]0;pwned" not in terminal.raw
    for command in ("/list", "/undo", "/redo", "/heat", "/stats", "/explain"):
        terminal.say(command)
    assert "\x1b]0;" not in terminal.raw
    assert "\x9b" not in terminal.raw


def test_python_is_not_kept_waiting() -> None:
    """What answers a prompt in a pipe imports nothing of the terminal."""
    code = (
        "import sys; from mink_local.chat.cli import cli;"
        "cli.main(['-p', 'Hi', '-n', '2'], standalone_mode=False);"
        "unwanted = {'prompt_toolkit', 'matplotlib', 'pygments', 'rich', 'huggingface_hub'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
