"""`mink-chat` in a terminal: real keys, and what is on the screen."""

import base64
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local.chat.conversation.store import ConversationStore, default_path
from tests.chat.conftest import converse
from tests.support.terminal import Terminal

pytestmark = [pytest.mark.usefixtures("own_files"), pytest.mark.terminal, pytest.mark.posix]

Open = Callable[..., Terminal]


def exported(terminal: Terminal, folder: Path) -> dict[str, Any]:
    """Return the conversation as /export writes it."""
    terminal.say(f"/export {folder}/x.json")
    conversation: dict[str, Any] = json.loads((folder / "x.json").read_text(encoding="utf-8"))
    return conversation


def test_a_chat(opened: Open) -> None:
    """One answer with its figures, colours of /heat, a copy to the clipboard, and /exit."""
    terminal = opened("--temp", "0", "--max-tokens", "8")
    assert "min-k:tau=3, T = 0" in terminal.text
    shown = terminal.say("Say hello to me.")
    figures = r"8 tokens · [\d.]+ tokens/s · context \d+/\d+$"
    assert re.search(figures, shown, re.M)
    assert "sampled from" in terminal.say("/heat")
    assert re.search(r"\x1b\[38;5;\d+;48;5;", terminal.raw)
    terminal.say("/copy")
    copied = re.findall(r"\x1b\]52;c;(.*?)\x07", terminal.raw)[-1]
    assert f"copied {len(base64.b64decode(copied).decode())} characters" in terminal.text
    terminal.send("/exit\r")
    assert terminal.ended() == 0


@pytest.mark.slow
def test_the_input_line(opened: Open, tmp_path: Path) -> None:
    """Pastes, blocks, Alt-Enter; Tab, Ctrl-R, suggestions, the editor; Ctrl-Z is not part of the message."""
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\necho 'Name a fruit.' > \"$1\"\n")
    editor.chmod(0o755)
    terminal = opened("--temp", "0", "--max-tokens", "1", EDITOR=str(editor))
    terminal.send("\x1b[200~first line\nsecond line\nthird line\x1b[201~")
    terminal.until_shown("third line")
    terminal.say("")
    terminal.say("one\x1b\rtwo")
    terminal.say('"""\rblock one\r\rblock two\r"""')
    terminal.send("/sam\t")
    terminal.until_shown("/sampler")
    assert "top-n-sigma" in terminal.say("top-n\t")
    rows = len(terminal.screen.splitlines())
    terminal.send("\x12second")  # Ctrl-R, in the row of the prompt
    terminal.until_shown(r"\(reverse-i-search\)`second'")
    assert terminal.screen.splitlines()[rows - 1].startswith("(reverse-i-search)")
    terminal.say("\r")
    terminal.say("Tell me\x1a of rain.")  # no shell is there to go on with it, so that nothing stops
    terminal.send("Tell")
    terminal.until_shown("\n> Tell me of rain.$")
    terminal.say("\x1b[C")
    terminal.send("/re\t")
    terminal.until_shown("/redo +Redo it")
    terminal.press("\x03")
    terminal.say("/edit")
    terminal.press("\x18\x05")  # Ctrl-X Ctrl-E
    messages = exported(terminal, tmp_path)["messages"]
    sent = [message["content"] for message in messages if message["role"] == "user"]
    lines = "first line\nsecond line\nthird line"
    rain = "Tell me of rain."
    assert sent == [lines, "one\ntwo", "block one\n\nblock two", lines, rain, "Name a fruit."]


WAITS_TO_LOAD = """
import sys, time
from pathlib import Path
from mink_local.generation import loading
load_model, gate, name = loading.load_model, Path(sys.argv.pop(1)), sys.argv.pop(1)
def load_late(model, **options):
    while name in model and not gate.exists():
        time.sleep(0.05)
    return load_model(model, **options)
loading.load_model = load_late
from mink_local.chat import main
main()
"""


def test_what_is_typed_while_the_model_loads(opened: Open, tmp_path: Path) -> None:
    """It is unseen until it is read: what Enter ended is sent, the rest begins the next line."""
    gate = tmp_path / "gate"
    terminal = opened("--temp", "0", "-n", "5", program=["-c", WAITS_TO_LOAD, str(gate), ""], waits=False)
    terminal.until_shown("smollm2-135m …")
    terminal.send("Say hello.\rpleas\x7fse\x1b[Dx")
    terminal.settle()
    assert "hello" not in terminal.text
    gate.touch()
    terminal.until_shown("\n> pleasxe$")
    assert terminal.text.count("Say hello") == 1
    assert terminal.text.count("tokens/s") == 1
    terminal.press("\x03")
    assert terminal.leave() == 0


def test_ctrl_c_while_the_model_loads(opened: Open, tmp_path: Path) -> None:
    """The program ends at once, and the terminal shows again what is typed."""
    terminal = opened(program=["-c", WAITS_TO_LOAD, str(tmp_path / "gate"), ""], waits=False)
    terminal.until_shown("smollm2-135m …")
    assert not terminal.child.getecho()
    terminal.send("\x03")
    assert terminal.ended() == -signal.SIGINT
    assert "Traceback" not in terminal.text
    assert terminal.child.getecho()


SHELL = ["-c", "import os; os.execvp('bash', ['bash', '--norc', '--noprofile', '-i'])"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_ctrl_z_suspends(opened: Open, tmp_path: Path) -> None:
    """The line is kept, an answer goes on, and what the shell has written meanwhile stays on the screen."""
    words = tmp_path / "words.gbnf"
    words.write_text('root ::= (("alpha" | "beta" | "gamma" | "delta") " "){60} "\\n\\nTHE END"')
    shell = opened(program=SHELL, waits=False, rows=40, columns=60, PS1="shell: ")
    shell.until_shown("shell:$")
    chat = f"{sys.executable} -m mink_local.chat --no-loop-guard --threads 1 --grammar {words}"
    shell.send(f"{chat}\r")
    shell.until_shown("\n>$")
    shell.send("Say them.\x1a")
    shell.until_shown("Stopped")
    shell.send("fg\r")
    shell.until_shown("\n> Say them.$")
    shell.send("\r")
    shell.until(lambda: len(re.findall("alpha|beta|gamma|delta", shell.text)) > 20)
    shell.send("\x1a")
    shell.until_shown("Stopped(.*\n)*shell:$")
    shell.send("clear; for i in 1 2 3 4 5 6; do echo KEPT-$i; done; fg\r")
    shell.until_shown("THE END(.*\n)*>$")
    assert re.findall(r"^KEPT-(\d)$", shell.text, re.MULTILINE) == list("123456")
    shell.send("\x04")
    shell.until_shown("\nshell:$")
    [conversation] = ConversationStore(default_path()).conversations()
    assert conversation.title == "Say them."


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(opened: Open) -> None:
    terminal = opened("--temp", "5", "--seed", "3")
    terminal.send("Tell me a very long story about a dragon.\r")
    terminal.until(lambda: terminal.text.lower().count("dragon") > 2)
    assert "interrupted" in terminal.press("\x03")
    assert "max-tokens is 4" in terminal.say("/set max-tokens 4")
    assert "tokens/s" in terminal.say("Now say hello.")
    assert "/exit" in terminal.press("\x03")
    assert terminal.leave() == 0


def test_ctrl_c_right_behind_enter_stops_the_answer(opened: Open) -> None:
    """The terminal has both at once; what is typed behind them is for the next line."""
    terminal = opened("--temp", "5", "--seed", "3")
    terminal.send("Tell me a very long story about a dragon.\r\x03/set max-tokens")
    terminal.until_shown("interrupted")
    assert "tokens/s" not in terminal.screen
    terminal.send(" 4\r")
    terminal.until_shown("max-tokens is 4")


@pytest.mark.slow
def test_ctrl_c_while_another_model_loads(opened: Open, tiny_path: Path, tmp_path: Path) -> None:
    """The model before answers on."""
    program = ["-c", WAITS_TO_LOAD, str(tmp_path / "gate"), tiny_path.name]
    terminal = opened("--temp", "0", "-n", "2", program=program)
    terminal.send(f"/model {tiny_path}\r")
    terminal.until_shown("loading the model …")
    assert "interrupted" in terminal.press("\x03")
    assert "model is smollm2-135m" in terminal.say("/model")
    assert "2 tokens" in terminal.say("Say hello.")


@pytest.mark.slow
def test_ctrl_c_twice_while_another_model_loads(opened: Open, tiny_path: Path, tmp_path: Path) -> None:
    """The model before comes back, however often it is pressed."""
    gate = tmp_path / "gate"
    gate.touch()
    terminal = opened("--temp", "0", "-n", "2", program=["-c", WAITS_TO_LOAD, str(gate), ""])
    gate.unlink()
    terminal.send(f"/model {tiny_path}\r")
    terminal.until_shown("loading the model …")
    terminal.send("\x03")
    terminal.until_shown("before again …")
    terminal.send("\x03\x03")
    terminal.settle()
    gate.touch()
    terminal.until_shown("interrupted\n>$")
    assert "2 tokens" in terminal.say("Say hello.")


@pytest.mark.slow
def test_ctrl_c_while_a_long_prompt_is_evaluated(opened: Open, tmp_path: Path) -> None:
    """For an answer, and for its steps."""
    grammar = tmp_path / "numbers.gbnf"
    grammar.write_text('root ::= "one two three four"')
    options = ("--grammar", str(grammar), "--system", "one two three four five six " * 200)
    terminal = opened("-n", "2", "--ctx", "2048", "--no-cache", *options)
    terminal.send("Say hello.\r")
    terminal.until_shown(r"prompt: \d+ of \d{4} tokens")
    assert "interrupted" in terminal.press("\x03")
    assert "prompt:" not in terminal.screen
    terminal.say("")
    terminal.say("/set ctx 2304")  # the KV cache goes
    terminal.send("/explain 1\r")
    terminal.until_shown("reading the answer again …")
    assert "interrupted" in terminal.press("\x03")
    assert "temp is 1" in terminal.say("/temp")


def test_what_is_typed_during_an_answer(opened: Open) -> None:
    """It is unseen until the answer ends; then what Enter ended runs, in order, and the rest is there."""
    terminal = opened("--temp", "5", "--seed", "3")
    terminal.send("Tell me a very long story about a dragon.\r")
    terminal.until(lambda: terminal.text.lower().count("dragon") > 2)
    terminal.send("/set max-tokens 4\r/temp 0\rSay hellp\x7fo.\r/tem")
    terminal.settle()
    assert "hello" not in terminal.text
    terminal.send("\x03")
    terminal.until(lambda: terminal.text.count("tokens/s") == 2)
    shown = terminal.text
    places = [
        shown.index(word)
        for word in ("interrupted", "max-tokens is 4", "temp is 0", "> Say hello.", "\n4 tokens")
    ]
    assert places == sorted(places)
    terminal.until(lambda: terminal.screen.split("\n")[-1].startswith("> /tem"))  # with a suggestion behind
    assert "temp is 3" in terminal.say("p 3")


def test_a_paste_during_an_answer_is_one_message(opened: Open) -> None:
    """Also one that the terminal cannot hold."""
    terminal = opened("--temp", "0", "-n", "30")
    terminal.send("Tell me a very long story about a dragon.\r")
    terminal.until(lambda: "dragon" in terminal.text.partition("about a dragon")[2])
    terminal.send("\x1b[200~" + "some words\r" * 1000 + "end\x1b[201~")
    terminal.until_shown("\n  end$")
    assert terminal.text.count("tokens/s") == 1
    terminal.press("\x03")
    assert terminal.leave() == 0


def test_what_is_typed_ahead_answers_no_question(opened: Open) -> None:
    """It is read after the question."""
    terminal = opened("--temp", "0", "-n", "2")
    terminal.say("Say hello.")
    terminal.send("/delete 1\ry\r/temp 2\r")
    terminal.until_shown("y/n.*\n>")
    terminal.settle()
    assert "temp is 2" not in terminal.text
    terminal.send("n\r")
    terminal.until_shown("temp is 2.*\n>$")
    assert "nothing was changed" in terminal.text
    assert "> y\n" in terminal.text
    assert "1 is deleted" not in terminal.text
    assert "Say hello." in terminal.say("/history")


def test_what_is_typed_ahead_is_not_joined_to_what_was_refused(opened: Open) -> None:
    terminal = opened("--ctx", "256", "-n", "2", "--temp", "0")
    terminal.send("word " * 300 + "\r/set max-tokens 3\r/frobnicate\r/temp 2\r")
    terminal.until_shown("temp is 2")
    assert "max-tokens is 3," in terminal.text
    terminal.until_shown("Enter sends your message again")  # the first one, which is too long for the line


def test_nothing_is_asked_of_the_terminal(opened: Open) -> None:
    """Not all answer, and what comes late would be typed."""
    terminal = opened("--temp", "0", "-n", "2")
    terminal.say("Hello")
    assert not re.search(r"\x1b\]\d+;\?|\x1b\[>?c", terminal.raw)


@pytest.mark.parametrize(("colours", "ink"), [("0;15", "34"), ("15;0", "36"), ("", "36")])
def test_colours_come_back(opened: Open, colours: str, ink: str) -> None:
    """Blue on a light background, cyan on a dark one; after /set plain off too, and in the input line."""
    terminal = opened("--temp", "0", "-n", "2", COLORFGBG=colours)
    terminal.say("/set plain on")
    before = len(terminal.raw)
    terminal.say("Hello")
    assert not re.search(r"\x1b\[[\d;]*3\dm", terminal.raw[before:])
    terminal.say("/set plain off")
    before = len(terminal.raw)
    terminal.say("Hello")
    assert re.search(rf"\x1b\[[\d;]*{ink}(;\d+)*m", terminal.raw[before:])


DASH = ["-c", "import os; os.environ['PS1'] = 'shell: '; os.execvp('dash', ['dash', '-i'])"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "moment", "name"),
    [
        ("bash", "answer", "SIGTERM"),
        ("bash", "line", "SIGABRT"),
        ("dash", "answer", "SIGHUP"),
        ("dash", "answer", "SIGABRT"),
        ("dash", "line", "SIGTERM"),
        ("dash", "line", "SIGKILL"),
    ],
)
def test_the_terminal_comes_back(opened: Open, tmp_path: Path, shell: str, moment: str, name: str) -> None:
    """The shell goes on, and shows what is typed; a signal that can be heard loses nothing of an answer."""
    import termios  # not on Windows

    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    terminal = opened(program=SHELL if shell == "bash" else DASH, waits=False, PS1="shell: ")
    terminal.until_shown("shell:$")
    chat = f"{sys.executable} -m mink_local.chat --temp 5 --no-loop-guard --threads 1"
    terminal.send(f"sh -c 'echo $$ > {tmp_path}/pid; exec {chat}'\r")
    terminal.until_shown("\n>$")
    if moment == "answer":
        terminal.send("Tell me a very long story about a dragon.\r")
        terminal.until(lambda: terminal.text.lower().count("dragon") > 2)
    terminal.settle()
    os.kill(int((tmp_path / "pid").read_text()), signal.Signals[name])
    terminal.until_shown(r"shell:$")
    if shell == "dash":  # bash has read with a mode of its own since
        terminal.until(lambda: termios.tcgetattr(terminal.child.child_fd)[3] & termios.ICANON)
    terminal.send("echo what $((3 * 7))\r")
    terminal.until_shown("what 21\nshell:$")
    assert "echo what" in terminal.text  # bash shows it by itself; dash needs the terminal for it
    assert "Traceback" not in terminal.text
    if moment == "answer" and name in ("SIGTERM", "SIGHUP"):
        [conversation] = ConversationStore(default_path()).conversations()
        answer = ConversationStore(default_path()).branch(conversation.head)[-1]
        assert answer.finish_reason == "interrupted"


@pytest.mark.slow
def test_killed_in_the_middle_of_an_answer(opened: Open, tmp_path: Path) -> None:
    """All that was on the screen a second before comes back, and the answer goes on from there."""
    terminal = opened("--temp", "0", "--seed", "1", "--no-loop-guard")
    terminal.send("Tell me a long story about a dog named Max.\r")
    terminal.until(lambda: terminal.text.count("Max") > 4)
    shown = " ".join(terminal.text.partition("named Max.")[2].split())
    terminal.settle(1.2)
    terminal.child.kill(signal.SIGKILL)
    assert terminal.ended() == -signal.SIGKILL
    assert len(shown) > 40
    again = opened("--continue", "--temp", "0", "-n", "5")
    assert "/continue" in again.text
    recalled = " ".join(again.text.split())
    assert shown[: len(shown) - 20] in recalled
    assert "5 tokens" in again.say("/continue")
    whole = exported(again, tmp_path)
    [cut] = whole["other_branches"]
    assert whole["messages"][-1]["content"].startswith(cut["content"])


def test_a_message_that_was_never_answered_is_typed_already(opened: Open) -> None:
    converse(ConversationStore(default_path()), "What is this?")
    terminal = opened("--continue", "--temp", "0", "-n", "2")
    assert terminal.screen.endswith("> What is this?")
    assert "2 tokens" in terminal.press("\r")


def test_a_draft_stays_until_it_is_sent_or_given_up(opened: Open) -> None:
    converse(ConversationStore(default_path()), "What is this?")
    terminal = opened("--continue", "--temp", "0", "-n", "2")
    assert "temp is 0" in terminal.press("\x15/temp\r")
    terminal.until_shown(r"\n> What is this\?$")
    terminal.press("\x03")
    assert terminal.screen.endswith("\n>")
    assert "temp is 0" in terminal.say("/temp")
    assert terminal.screen.endswith("\n>")


def test_a_pasted_text_is_no_block(opened: Open, tmp_path: Path) -> None:
    """Code that begins with a docstring is sent by one Enter, as it is."""
    code = '"""\nSum of a list.\n"""\ndef total(xs): ...'
    terminal = opened("--temp", "0", "-n", "1")
    terminal.send(f"\x1b[200~{code}\x1b[201~")
    terminal.until_shown("def total")
    terminal.say("")
    terminal.say('"""\r/clear\r"""')
    messages = exported(terminal, tmp_path)["messages"]
    assert [message["content"] for message in messages[::2]] == [code, "/clear"]


@pytest.mark.slow
def test_delete_asks(opened: Open, own_files: Path) -> None:
    """Only "y" or "yes" deletes; Ctrl-C does not. The messages leave the history of the input line too.

    A data folder that is lost altogether begins anew.
    """
    terminal = opened("--temp", "0", "-n", "1")
    terminal.say("Hello")
    terminal.say('"""\r  My pelican is ill.\r"""')
    terminal.say("/temp")
    for answer, outcome in (("\x03", "interrupted"), ("Yes\r", "1 is deleted")):
        assert "[y/n]" in terminal.say("/delete 1")
        assert outcome in terminal.press(answer)
    assert "'1'" in terminal.say("/delete 1")
    history = (own_files / "history").read_text()
    assert [text in history for text in ("+/temp", "Hello", "pelican")] == [True, False, False]
    shutil.rmtree(own_files)
    assert "context" in terminal.say("Hello")
    assert "+Hello" in (own_files / "history").read_text()


@pytest.mark.slow
def test_narrow_and_wide(opened: Open) -> None:
    """Resized, with wide characters and emoji in the input and the answer."""
    terminal = opened("--temp", "0", "-n", "30")
    terminal.say("Repeat: 日本語 😀 and 中文")
    terminal.resize(24, 40)
    shown = terminal.say("Say this again: 日本語日本語日本語日本語日本語日本語日本語日本語 😀😀")
    assert "tokens/s" in shown
    assert all(len(line) <= 40 for line in terminal.screen.splitlines())


@pytest.mark.parametrize(
    "how", ["TERM=dumb", *(pytest.param(how, marks=pytest.mark.slow) for how in ("--plain", "NO_COLOR"))]
)
def test_plain(opened: Open, how: str) -> None:
    """Without an escape code that the input line does not need."""
    environment = dict([how.partition("=")[::2]]) if how != "--plain" else {}
    arguments = ["--plain"] if how == "--plain" else []
    environment = {key: value or "1" for key, value in environment.items()}
    terminal = opened("--temp", "0", "-n", "20", *arguments, plain=how == "TERM=dumb", **environment)
    assert "```python" in terminal.say("Write a python function that adds two numbers")
    if how != "TERM=dumb":
        assert not re.search(r"\x1b\[[0-9;]*[1-9][0-9;]*m(?!\()", terminal.raw)
    else:
        assert "\x1b" not in terminal.raw


@pytest.mark.slow
def test_text_of_the_model_does_not_control_the_terminal(opened: Open, tmp_path: Path) -> None:
    grammar = tmp_path / "escape.gbnf"
    grammar.write_text('root ::= "\\x1b]0;pwned\\x07 a\\tb\\x1b[31m\\nred \\x9b31m"')
    terminal = opened("--grammar", str(grammar), "--temp", "0")
    shown = terminal.say("Hi")
    assert re.search(r"␛\]0;pwned␇ a +b␛\[31m\nred �31m\n", shown)
    for command in ("/list", "/undo", "/redo", "/heat", "/explain 1", "/show"):
        terminal.say(command)
    terminal.send("/explain\r")
    terminal.until_shown("q leave$")
    terminal.press("q")
    assert "\x1b]0;" not in terminal.raw
    assert "\x9b" not in terminal.raw


@pytest.mark.slow
def test_reasoning(opened: Open, thinker: tuple[str, ...], tmp_path: Path) -> None:
    terminal = opened(*thinker)
    shown = terminal.say("2 + 2?")
    assert re.search(r"reasoning …\n(.*\n)*Four\?\n+reasoned for \d+ s\n\nIt is four\.", shown)
    assert "\x1b[2;3mTwo" in terminal.raw
    terminal.say("/reasoning line")
    folded = terminal.say("And again?")
    assert "4 words" in folded
    assert "Two and two" not in folded
    assert "Two and two." in terminal.say("/reasoning")
    assert "reasoning is off" in terminal.say("/reasoning off")
    messages = exported(terminal, tmp_path)["messages"]
    assert [message["content"] for message in messages] == [
        "2 + 2?", "It is **four**.", "And again?", "It is **four**.",
    ]  # fmt: skip
    # The reasoning is not part of the prompt of the second answer.
    tokens = [message["outcome"]["prompt_tokens"] for message in messages if message["outcome"]]
    assert tokens[1] - tokens[0] < len(messages[1]["outcome"]["tokens"])
    assert terminal.leave() == 0
