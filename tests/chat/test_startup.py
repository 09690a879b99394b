"""One answer to one prompt, in this process and in pipes."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mink_local.chat import chat
from mink_local.chat.chat import compile_in_background
from mink_local.chat.conversation import session
from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.generation.model import Model
from mink_local.samplers import default_samplers, parse
from mink_local.samplers.compile import cached_names
from tests.chat.conftest import MinkChat, Typist, converse, locked, new_session
from tests.support.python import output_of, run_python

pytestmark = pytest.mark.usefixtures("own_files")

MINK_CHAT = [sys.executable, "-m", "mink_local.chat", "--threads", "1"]
STORY = ("-p", "Tell me a story about a dog.", "-t", "0", "-n", "30")
CONVERTED = "chcp 65001" if sys.platform == "win32" else "iconv -f LATIN1 -t UTF-8"  # text that is not UTF-8


def kept(data: Path) -> set[str]:
    """Return what is in the folder for data: on Windows, that for settings and caches too."""
    return {path.name for path in data.glob("*")} - {"default-model", "Cache"}


def test_a_prompt_prints_only_the_answer(mink_chat: MinkChat) -> None:
    """As a process of its own; the same comes for a prompt from standard input."""
    arguments = ("--temp", "5", "--seed", "1")
    prompt = "What is the capital of France?"
    given = run_python(*MINK_CHAT[1:], *arguments, "-p", prompt).succeeded()
    assert len(given.stdout.split()) > 5
    assert given.stderr == ""
    assert "<|im_end|>" not in given.stdout
    answer = json.loads(mink_chat(*arguments, "--json", stdin=prompt).stdout)
    assert answer["text"] + "\n" == given.stdout
    assert (answer["model"], answer["sampler"]) == ("smollm2-135m", "min-k:tau=3")
    assert len(answer["k"]) - answer["n_tokens"] in (0, 1)
    assert 0 < answer["timings"]["first_token_s"] <= answer["timings"]["total_s"]


BOTH = "Say hi.\n\nWhat is it?"


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["Say hi."], "", "Say hi."),
        ([], "Say hi.\n", "Say hi."),
        ([], "Say hi.\r\n", "Say hi."),
        (["-p", "-"], "Say hi.", "Say hi."),
        (["What is it?"], "Say hi.\n", BOTH),
        (["-p", "What is it?"], "Say hi.\n", BOTH),
        (["-p", "caf\udce9"], "", "caf\ufffd"),  # as Python decodes bytes of the command line
    ],
)
def test_where_a_prompt_comes_from(
    mink_chat: MinkChat, arguments: list[str], stdin: str, prompt: str
) -> None:
    """From an argument, from standard input, or from both; the newline of echo is not part of it."""

    def answered(*words: str, stdin: str = "") -> tuple[str, int]:
        answer = json.loads(mink_chat(*words, "-t", "0", "-n", "5", "--json", stdin=stdin).stdout)
        return answer["text"], answer["prompt_tokens"]

    assert answered(*arguments, stdin=stdin) == answered("-p", prompt)


def test_binary_input_is_refused(mink_chat: MinkChat) -> None:
    mink_chat("What is it?", stdin="caf\udce9").refused(2, "UTF-8", CONVERTED)
    mink_chat("What is it?", stdin="%PDF-1.7\udce9").refused(2, "PDF", "pdftotext FILE -")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_what_excel_and_powershell_write_is_read(mink_chat: MinkChat, tmp_path: Path, encoding: str) -> None:
    mark = "\ufeff" if encoding.endswith("e") else ""
    (tmp_path / "a.csv").write_bytes(f"{mark}naïve;☃\r\n".encode(encoding))
    asked = ("Hi", "-t", "0", "-n", "1", "--json")
    wide = json.loads(mink_chat("--file", str(tmp_path / "a.csv"), *asked).stdout)
    (tmp_path / "a.csv").write_text("naïve;☃\n", encoding="utf-8")
    assert (
        wide["prompt_tokens"]
        == json.loads(mink_chat("--file", str(tmp_path / "a.csv"), *asked).stdout)["prompt_tokens"]
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"%PDF-1.7\n\xe2", ["PDF", "pdftotext"]),
        (b"\x89PNG\r\n", ["picture"]),
        (b"\xff\xd8\xff\xe0", ["picture"]),
        (b"PK\x03\x04\xe9", ["office"]),
        (b"\x1f\x8b\x08", ["gzip -dc"]),
        (b"caf\xe9", [CONVERTED]),
        (b"\xff\xfe\x00", ["UTF-8"]),
    ],
)
def test_files_that_are_no_text(
    mink_chat: MinkChat, tmp_path: Path, content: bytes, words: list[str]
) -> None:
    path = tmp_path / "a file"
    path.write_bytes(content)
    mink_chat("Hi", "--file", str(path)).refused(2, *words)


def test_no_answer_is_a_failure(mink_chat: MinkChat, thinker: tuple[str, ...], tmp_path: Path) -> None:
    """And so is one of a schema that was cut off: scripts would take it for an answer."""
    (tmp_path / "schema.json").write_text(
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}'
    )
    schema = ("--json-schema", str(tmp_path / "schema.json"), "Hi", "-t", "0")
    for options in ((), ("--json",)):
        assert mink_chat("2 + 2?", *thinker, "-n", "4", *options).status == 1
        assert mink_chat(*schema, "-n", "3", *options).status == 1
        assert mink_chat("Hi", "-n", "3", *options).status == 0


def test_a_model_is_found_again_from_another_folder(
    mink_chat: MinkChat, tiny_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not another file of the same name there."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / tiny_path.name).write_text("another")
    monkeypatch.chdir(tiny_path.parent)
    mink_chat("-n", "1", "-m", f"./{tiny_path.name}", typed=["Hello"])
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert mink_chat("--continue", "And now?", "-n", "1").status == 0


def test_a_conversation_keeps_its_settings(mink_chat: MinkChat) -> None:
    """Unless the command line overrides them."""
    mink_chat("-n", "1", "-s", "top-k:k=5", "--temp", "5", typed=["Hello", "/set repeat-penalty 1.5"])
    again = mink_chat("--continue", typed=["/set repeat-penalty"])
    assert "top-k:k=5, T = 5" in again.stderr
    assert "temp 5, sampler top-k:k=5, max-tokens 1, repeat-penalty 1.5" in again.stderr
    assert "1.5, conversation 1" in again.stderr
    assert "top-k:k=5, T = 2" in mink_chat("--continue", "-t", "2", typed=["/temp"]).stderr
    mink_chat("--continue", "Hi", "--floor", "1").refused(2, "floor", "top-k")


def test_files_come_before_a_prompt(mink_chat: MinkChat, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Alpha.\n")
    (tmp_path / "b.txt").write_text("Beta.")
    (tmp_path / "long.txt").write_text("word " * 9000)
    files = [f"--file={tmp_path / name}" for name in ("a.txt", "b.txt")]
    asked = ("-p", "Which?", "-t", "0", "-n", "3", "--json")
    texts = "a.txt:\n```\nAlpha.\n```\n\nb.txt:\n```\nBeta.\n```\n\nWhich?"
    given = json.loads(mink_chat(*asked, *files).stdout)
    typed = json.loads(mink_chat("-p", texts, *asked[2:]).stdout)
    assert (given["prompt_tokens"], given["tokens"]) == (typed["prompt_tokens"], typed["tokens"])
    mink_chat(*asked, "--file", str(tmp_path / "long.txt"), "--ctx", "512").refused(1, "long.txt")


def test_a_context_that_is_rounded(mink_chat: MinkChat, tiny_path: Path) -> None:
    model = ("-m", str(tiny_path), "-p", "Hi", "-n", "1")
    assert re.search("--ctx 10: .* 256", mink_chat(*model, "--ctx", "10").stderr)
    assert "--ctx" not in mink_chat(*model, "--ctx", "256").stderr.partition("(stopped")[0]


def test_an_answer_that_repeats_itself_is_stopped(
    mink_chat: MinkChat, smollm2: Model, tiny_path: Path
) -> None:
    [word] = smollm2.tokenize(" again")
    asked = ("-m", str(tiny_path), "-p", "Hi", "-t", "0", "-n", "300", "--logit-bias", f"{word}=1000")
    [complaint] = mink_chat(*asked).stderr.splitlines()
    assert [hint for hint in ("token 2", "--temp 2", "--dry-multiplier") if hint not in complaint] == []
    answer = json.loads(mink_chat(*asked, "--json").stdout)
    assert (answer["finish_reason"], answer["n_tokens"] < 200) == ("repetition", True)


def test_a_prompt_continues_a_conversation(mink_chat: MinkChat, own_files: Path) -> None:
    """And keeps its new system prompt with it."""
    mink_chat("-p", "Hello", "-n", "3")
    assert not kept(own_files)  # a single answer is not
    store = ConversationStore(default_path())
    converse(store, "My name is Max.", "Hello Max!")
    assert "Max" in mink_chat("--continue", "-p", "What is my name?", "-t", "0", "-n", "12").stdout
    mink_chat("--continue", "-p", "Hi", "-n", "2", "--system", "Be brief.")
    latest = store.find()
    assert [message.role for message in store.branch(latest.head)] == ["user", "assistant"] * 3
    assert latest.system == "Be brief."


def test_verbose_shows_the_log_of_llama_cpp(tiny_path: Path) -> None:
    result = run_python(*MINK_CHAT[1:], "-p", "Hi", "-n", "1", "-m", tiny_path, "--verbose")
    assert "llama_model_loader" in result.stderr  # and not without; see the first test


@pytest.mark.linux
def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*MINK_CHAT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)


@contextlib.contextmanager
def started(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a program with pipes for what it writes, and wait for its end."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, bufsize=1
    ) as process:
        yield process


@pytest.mark.posix
@pytest.mark.parametrize(
    "moment", [pytest.param("the prompt is evaluated", marks=pytest.mark.slow), "the answer comes"]
)
def test_ctrl_c_ends_one_answer(moment: str) -> None:
    """With the exit status of an interruption; the part of the answer that came is printed."""
    is_prompt = moment == "the prompt is evaluated"
    prompt = "Tell me a long story. " * (300 if is_prompt else 1)
    with started(*MINK_CHAT, "-p", prompt, "-t", "0", *["--verbose"] * is_prompt) as process:
        assert process.stdout
        assert process.stderr
        loaded = (line for line in process.stderr if line.startswith("smollm2-135m · CPU"))
        first = next(loaded) if is_prompt else process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
    assert first
    assert process.returncode == 130
    if is_prompt:  # it may not be evaluated yet
        assert out == ""
        assert "(interrupted)" in errors or not errors.strip()
    else:
        assert errors.splitlines() == ["(interrupted)"]


@pytest.mark.slow
@pytest.mark.posix
def test_ctrl_c_that_ends_the_reader_too() -> None:
    """As in `mink-chat … | cat`."""
    with started(*MINK_CHAT, *STORY) as process:
        assert process.stdout
        assert process.stdout.read(1)
        process.send_signal(signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        process.send_signal(signal.SIGCONT)
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["-p", "Hi", "-n", "2"], {"asyncio", "prompt_toolkit", "matplotlib", "pygments", "scipy", "yaml"}),
        (["--help"], {"llama_cpp", "prompt_toolkit"}),
    ],
)
def test_what_is_not_imported(arguments: list[str], unwanted: set[str]) -> None:
    code = (
        f"import sys; from mink_local.chat.cli import cli; cli.main({arguments}, standalone_mode=False);"
        f"print(sorted({unwanted} & set(sys.modules)))"
    )
    assert output_of("-X", "utf8", "-c", code).splitlines()[-1] == "[]"


def test_reasoning_is_not_part_of_the_answer(mink_chat: MinkChat, thinker: tuple[str, ...]) -> None:
    result = mink_chat("2 + 2?", *thinker)
    assert result.stdout == "It is **four**.\n"
    assert "4 words" in result.stderr
    assert "/reasoning" not in result.stderr  # there is no chat
    answer = json.loads(mink_chat("2 + 2?", *thinker, "--json").stdout)
    assert (answer["text"], answer["reasoning"]) == ("It is **four**.", "Two and two.\n\nFour?")


def test_a_chat_is_kept_unless_that_is_not_wanted(mink_chat: MinkChat, own_files: Path) -> None:
    typed = ["A secret.", "/save secret"]
    result = mink_chat("--no-store", "-n", "2", typed=typed)
    assert result.status == 0
    assert "--no-store" in result.stderr
    assert not kept(own_files)
    assert "now secret" in mink_chat("-n", "2", typed=typed).stderr
    again = mink_chat("--continue", "-n", "2", typed=["/show system"])
    assert "> A secret." in again.stdout
    assert "secret, 1 message)" in again.stderr
    again = mink_chat("--continue", "--no-store", "-n", "2", typed=["/save secret"])  # it is kept already
    assert "--no-store" not in again.stderr


def test_ctrl_c_sends_no_draft_where_the_line_cannot_begin_with_it(mink_chat: MinkChat) -> None:
    """As where the output is a file; Enter alone sends it."""
    lines = ["Hello", "/edit"]
    for typed, n in (["Hi\x03", 1], ["", 2], ["Hi", 2]):
        result = mink_chat("-n", "2", "--no-store", typed=[*lines, typed])
        assert len(re.findall(r"context \d+/", result.stderr)) == n


def test_a_conversation_takes_the_system_prompt_of_the_command_line(mink_chat: MinkChat) -> None:
    store = ConversationStore(default_path())
    converse(store, "What is this?", system="Be long.")
    result = mink_chat("--continue", "--system", "Be brief.", typed=["/show system"])
    assert "system Be brief." in result.stdout
    assert "(command line. " in result.stderr
    assert store.get(1).system == "Be brief."


def test_a_store_that_cannot_be_opened(
    mink_chat: MinkChat, own_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chat goes on and says so; that its end is lost is an error."""
    monkeypatch.setattr(session, "_LAST_SECONDS", 0.1)
    own_files.mkdir(parents=True, exist_ok=True)
    (own_files / "conversations.db").write_text("this is not a database, and too long to be empty " * 9)
    (own_files / "history").mkdir()
    result = mink_chat("-n", "2", typed=["Hello", "/save me", "/clear"])
    assert "2 tokens" in result.stderr
    assert result.stderr.count("conversations.db") >= 4  # a note, /save, /clear and the end
    assert "a new conversation" not in result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    assert result.status == 1
    assert mink_chat("--continue", "-p", "Hi").status == 1


def test_an_answer_that_cannot_be_kept(
    mink_chat: MinkChat, own_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_LAST_SECONDS", 0.1)
    converse(ConversationStore(default_path()), "Hello", "Hello!")
    with locked(own_files / "conversations.db"):
        result = mink_chat("--continue", "-p", "And now?", "-n", "2")
        talk = mink_chat("--continue", "--temp", "0", "-n", "2", typed=["And then?"])
    assert (result.status, bool(result.stdout), "locked" in result.stderr) == (1, True, True)
    assert (talk.status, "Hello!" in talk.stdout, "2 tokens" in talk.stderr) == (1, True, True)


@pytest.mark.slow
def test_a_conversation_is_not_evaluated_again(
    mink_chat: MinkChat,
    own_files: Path,
    smollm2: Model,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its KV cache is on disk if reading took long, unless that is not wanted, and is deleted with it."""
    mink_chat("-t", "0", "-n", "8", typed=["Tell me about the number seven."])
    assert not (own_files / "kv").exists()
    monkeypatch.setattr(session, "LEAST_SECONDS", 0.0)
    text = "Tell me about the number seven. " * 50
    mink_chat("-t", "0", "-n", "8", typed=[text])
    [file] = (own_files / "kv").iterdir()

    def evaluated(*options: str, model: str = "smollm2-135m") -> tuple[str, int, int]:
        asked = ("--continue", "-p", "And eight?", "-t", "0", "-n", "8", "--json", "-m", model)
        answer = json.loads(mink_chat(*asked, *options).stdout)
        return answer["text"], answer["evaluated_tokens"], answer["prompt_tokens"]

    copy = file.read_bytes()
    cached = evaluated()
    assert cached[1] < 40 < 300 < cached[2]
    file.write_bytes(copy)
    mink_chat("--continue", typed=["/undo"])
    text, n_evaluated, n_prompt = evaluated("--no-cache")
    assert (n_evaluated, n_prompt) == (n_prompt, cached[2])
    file.write_bytes(copy[:-1])  # damaged
    mink_chat("--continue", "--no-cache", typed=["/undo"])
    assert evaluated()[1] == n_prompt
    other = new_session(smollm2, "--no-cache", store=ConversationStore(default_path()))
    Typist(other, capsys).say("/delete 2", "y")
    assert not file.exists()
    mink_chat("--no-store", "-t", "0", "-n", "8", typed=["Hello " * 400])
    assert [*(own_files / "kv").iterdir()] == []


def test_the_oldest_caches_make_room(
    own_files: Path, smollm2: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    smollm2.chat("word " * 300, max_tokens=1).read()
    session.write_cache(smollm2, session.cache_path(1))
    [file] = (own_files / "kv").iterdir()
    monkeypatch.setattr(session, "MOST_BYTES", 2 * file.stat().st_size)
    for number in (2, 3):
        os.utime(own_files / "kv" / f"{number - 1}.kv", (number, number))
        session.write_cache(smollm2, session.cache_path(number))
    assert sorted(path.name for path in (own_files / "kv").iterdir()) == ["2.kv", "3.kv"]
    monkeypatch.setattr(session, "MOST_BYTES", 1000)
    session.write_cache(smollm2, session.cache_path(4))
    assert not (own_files / "kv" / "4.kv").exists()


def test_a_model_that_fails(mink_chat: MinkChat, tiny: Callable[..., Path]) -> None:
    """It ends a single answer with one sentence; in a chat, the answer and not the chat."""
    model = ("--model", str(tiny(scale=float("nan"))))
    result = mink_chat(*model, "--prompt", "Hi")
    result.refused(1)
    assert result.stdout == ""
    talk = mink_chat(*model, typed=["Hi", "Hi"])
    assert (talk.status, talk.stderr.count("NaN")) == (0, 2), talk


# Kernels are compiled beside the person, once


def test_what_is_missing_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sampler can be, alone and in a chain."""
    compile_in_background.cache_clear()
    with monkeypatch.context() as empty:
        empty.setattr(chat, "cached_names", set)
        compile_in_background(*default_samplers(), parse("top-k:k=3+min-k")).result()
    assert {"min_k", "top_k", "sample_rows"} <= cached_names()


@pytest.mark.slow
@pytest.mark.terminal
def test_the_first_answer_says_what_it_waits_for(opened: Callable[..., Any], tmp_path: Path) -> None:
    terminal = opened("-n", "4", NUMBA_CACHE_DIR=str(tmp_path))
    terminal.send("Hello\r")
    terminal.until_shown("4 tokens")
    assert terminal.screen.count("compiling") == 1
    assert "compiling" not in terminal.say("Hello")
