"""One answer to one prompt, in this process and in pipes."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.generation.model import Model
from tests.chat.conftest import MinkChat, converse
from tests.conftest import shared

pytestmark = pytest.mark.usefixtures("own_files")

MINK_CHAT = [sys.executable, "-m", "mink_local.chat", "--threads", "1"]
STORY = ("-p", "Tell me a story about a dog.", "-t", "0", "-n", "30")


def test_a_prompt_prints_only_the_answer(mink_chat: MinkChat) -> None:
    """As a process of its own; the same comes for a prompt from standard input."""
    arguments = ("--temp", "5", "--seed", "1")
    prompt = "What is the capital of France?"
    command = [*MINK_CHAT, *arguments, "-p", prompt]
    given = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert len(given.stdout.split()) > 5
    assert given.stderr.startswith("smollm2-135m on the")
    assert len(given.stderr.splitlines()) == 1
    assert "<|im_end|>" not in given.stdout
    assert mink_chat(*arguments, stdin=prompt).out == given.stdout


def test_an_argument_is_a_prompt(mink_chat: MinkChat) -> None:
    given = mink_chat("Say hi.", "-t", "0", "-n", "5")
    assert given.status == 0
    assert given.out == mink_chat("-p", "Say hi.", "-t", "0", "-n", "5").out
    both = mink_chat("Say hi.", "-p", "Say hi.")
    assert (both.status, len(both.complaints)) == (2, 1)


@pytest.mark.parametrize("arguments", [["What is it?"], ["-p", "What is it?"]])
def test_standard_input_goes_before_a_prompt(mink_chat: MinkChat, arguments: list[str]) -> None:
    options = ("-t", "0", "-n", "5")
    one = mink_chat(*arguments, *options, stdin="Say hi.\n")
    assert one.out == mink_chat("-p", "Say hi.\n\nWhat is it?", *options).out


def test_the_newline_of_echo_is_not_part_of_the_prompt(mink_chat: MinkChat) -> None:
    counts = [
        json.loads(mink_chat(*arguments, "--json", "-n", "1", stdin=stdin).out)["prompt_tokens"]
        for arguments, stdin in (((), "Say hi.\n"), ((), "Say hi.\r\n"), (("-p", "Say hi."), ""))
    ]
    assert len(set(counts)) == 1


def test_a_context_that_is_rounded(mink_chat: MinkChat, tiny_path: Path) -> None:
    model = ("-m", str(tiny_path), "-p", "Hi", "-n", "1")
    assert re.search("--ctx 10: .* 256", mink_chat(*model, "--ctx", "10").err)
    assert "--ctx" not in mink_chat(*model, "--ctx", "256").err.partition("(stopped")[0]


def test_an_answer_that_repeats_itself_is_stopped(
    mink_chat: MinkChat, smollm2: Model, tiny_path: Path
) -> None:
    [word] = smollm2.tokenize(" again")
    asked = ("-m", str(tiny_path), "-p", "Hi", "-t", "0", "-n", "300", "--logit-bias", f"{word}=1000")
    loop = mink_chat(*asked)
    assert loop.status == 0
    [complaint] = loop.complaints
    assert [hint for hint in ("token 2", "--temp 2", "--dry-multiplier") if hint not in complaint] == []
    answer = json.loads(mink_chat(*asked, "--json").out)
    assert answer["finish_reason"] == "repetition"
    assert 49 <= answer["n_tokens"] < 200
    free = json.loads(mink_chat(*asked, "--json", "--no-loop-guard").out)
    assert (free["finish_reason"], free["n_tokens"]) == ("length", 300)


def test_a_dash_is_standard_input(mink_chat: MinkChat) -> None:
    dash = mink_chat("-p", "-", "-t", "0", "-n", "5", stdin="Say hi.")
    assert (dash.status, dash.out) == (0, mink_chat("-t", "0", "-n", "5", stdin="Say hi.").out)


def test_system_prompt_and_length(mink_chat: MinkChat) -> None:
    plain = mink_chat("-p", "Who are you?", "-t", "0", "-n", "12")
    pirate = mink_chat("-p", "Who are you?", "-t", "0", "-n", "12", "--system", "You are a pirate.")
    assert plain.out != pirate.out
    assert "12 tokens" in plain.err


@pytest.mark.slow
def test_constraints(mink_chat: MinkChat, tmp_path: Path, smollm2: Model) -> None:
    """At T = 5 too: JSON of the schema, without the banned token, and without repetitions."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    asked = ("-p", "Give me a number as JSON.", "-t", "5", "--seed", "1")
    assert isinstance(json.loads(mink_chat(*asked, "--json-schema", str(schema)).out)["n"], int)
    plain = mink_chat(*STORY).out
    assert mink_chat(*STORY, "--repeat-penalty", "1.5").out != plain
    dot = smollm2.tokenize(".")[0]
    assert "." in plain
    assert ". " not in mink_chat(*STORY, "--logit-bias", f"{dot}=-inf").out


def test_json(mink_chat: MinkChat) -> None:
    asked = ("-p", "What is the capital of France?", "-t", "5", "--seed", "1", "-n", "10")
    answer = json.loads(mink_chat(*asked, "--json").out)
    assert answer["text"] + "\n" == mink_chat(*asked).out
    assert (answer["model"], answer["sampler"]) == ("smollm2-135m", "min-k:tau=3")
    assert answer["sampling"].startswith("on the host")
    assert answer["n_tokens"] == len(answer["tokens"])
    assert len(answer["k"]) - len(answer["tokens"]) in (0, 1)
    assert 0 < answer["timings"]["first_token_s"] <= answer["timings"]["total_s"]


def test_where_tokens_are_sampled(mink_chat: MinkChat, tiny_path: Path, own_files: Path) -> None:  # noqa: ARG001
    asked = ("-m", str(tiny_path), "-p", "Hi", "-n", "3", "--sampling", "backend", "--gpu-layers", "0")
    said = mink_chat(*asked, "--verbose", "--json")
    where = json.loads(said.out)["sampling"]
    assert "graph" in where
    assert where in said.err
    banned = json.loads(mink_chat(*asked, "--json", "--repeat-penalty", "1.5").out)
    assert banned["sampling"].startswith("on the host")


def test_a_broken_model_is_one_sentence(mink_chat: MinkChat, tiny: Callable[..., Path]) -> None:
    result = mink_chat("--model", str(tiny(scale=float("nan"))), "--prompt", "Hi")
    assert (result.status, result.out) == (1, "")
    [complaint] = result.complaints
    assert "NaN" in complaint


def test_a_prompt_continues_a_conversation(mink_chat: MinkChat, own_files: Path) -> None:
    mink_chat("-p", "Hello", "-n", "3")
    assert not own_files.exists()  # a single answer is not kept
    store = ConversationStore(default_path())
    converse(store, "My name is Max.", "Hello Max!")
    result = mink_chat("--continue", "-p", "What is my name?", "-t", "0", "-n", "12")
    assert result.status == 0, result.err
    assert "Max" in result.out
    assert [message.role for message in store.branch(store.latest().head)] == ["user", "assistant"] * 2


def test_a_new_system_prompt_is_kept_with_the_conversation(mink_chat: MinkChat) -> None:
    store = ConversationStore(default_path())
    converse(store, "Hi", "Hello!", system="Be brief.")
    assert mink_chat("--continue", "-p", "Hi", "-n", "2", "--system", "Be long.").status == 0
    assert store.latest().system == "Be long."


def test_verbose_shows_the_log_of_llama_cpp(tiny_path: Path) -> None:
    command = [*MINK_CHAT, "-p", "Hi", "-n", "1", "-m", str(tiny_path), "--verbose"]
    result = subprocess.run(command, input="", capture_output=True, text=True, check=True)
    assert "llama_model_loader" in result.stderr  # and not without; see the first test


def test_text_that_is_not_utf8(mink_chat: MinkChat) -> None:
    given = mink_chat("-n", "3", "-t", "0", "-p", "caf\udce9")  # as Python decodes bytes of the command line
    assert given.status == 0, given.err
    assert mink_chat("-n", "3", "-t", "0", stdin="caf\udce9").out == given.out


@pytest.mark.slow
@pytest.mark.posix
def test_a_reader_that_leaves_is_no_traceback() -> None:
    shell = f"{' '.join(MINK_CHAT)} {STORY[0]} '{STORY[1]}' -t 0 -n 20 </dev/null | head -c 1"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert len(result.stdout) == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.linux
def test_a_full_disk_is_one_sentence() -> None:
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            [*MINK_CHAT, "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (result.returncode, len(result.stderr.splitlines())) == (1, 1)


@pytest.mark.posix
@pytest.mark.parametrize(
    "moment", [pytest.param("the prompt is evaluated", marks=pytest.mark.slow), "the answer comes"]
)
def test_ctrl_c_ends_one_answer(moment: str) -> None:
    """With the exit status of an interruption; the part of the answer that came is printed."""
    is_prompt = moment == "the prompt is evaluated"
    process = subprocess.Popen(
        [*MINK_CHAT, "-p", "Tell me a long story. " * (300 if is_prompt else 1), "-t", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
    )  # fmt: skip
    assert process.stdout
    assert process.stderr
    first = process.stderr.readline() if is_prompt else process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=30)
    assert first
    assert process.returncode == 130
    if is_prompt:  # it may not be evaluated yet
        assert out == ""
        assert errors.strip() in ("", "(interrupted)")
    else:
        assert errors.splitlines()[1:] == ["(interrupted)"]


@pytest.mark.slow
@pytest.mark.posix
def test_ctrl_c_that_ends_the_reader_too() -> None:
    """As in `mink-chat … | cat`."""
    process = subprocess.Popen(
        [*MINK_CHAT, "-p", "Tell me a long story.", "-t", "0"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.read(1)
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    process.stdout.close()
    process.send_signal(signal.SIGCONT)
    assert process.wait(timeout=30) == 130


LOADS_FOR_EVER = """
import sys, time
from mink_local.generation import loading
def load_model(*_, **__):
    print("loading", flush=True)
    time.sleep(60)
loading.load_model = load_model
from mink_local.chat import main
sys.argv = ["mink-chat", "-p", "Hi"]
main()
"""


@pytest.mark.posix
def test_ctrl_c_ends_the_program_while_the_model_loads() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", LOADS_FOR_EVER],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (-signal.SIGINT, "")


def test_a_prompt_imports_nothing_of_the_input_line() -> None:
    code = (
        "import sys; from mink_local.chat.cli import cli;"
        "cli.main(['-p', 'Hi', '-n', '2'], standalone_mode=False);"
        "unwanted = {'prompt_toolkit', 'matplotlib', 'pygments'};"
        "print(sorted(unwanted & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], input="", capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"


def test_the_help_imports_neither_llama_cpp_nor_the_input_line() -> None:
    code = (
        "import sys; from mink_local.chat.cli import cli;"
        "cli.main(['--help'], standalone_mode=False);"
        "print(sorted({'llama_cpp', 'prompt_toolkit'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_reasoning_is_not_part_of_the_answer(mink_chat: MinkChat, tiny: Callable[..., Path]) -> None:
    path = tiny(template=shared("vocab/Qwen-Qwen3-0.6B.jinja").read_text(encoding="utf-8"))
    grammar = path.with_suffix(".gbnf")
    grammar.write_text('root ::= "<think>\\nTwo and two.\\n\\nFour?\\n</think>\\n\\nIt is **four**."')
    thinker = ("-p", "2 + 2?", "--model", str(path), "--grammar", str(grammar), "--temp", "0")
    result = mink_chat(*thinker)
    assert result.out == "It is **four**.\n"
    assert "4 words" in result.err
    answer = json.loads(mink_chat(*thinker, "--json").out)
    assert (answer["text"], answer["thinking"]) == ("It is **four**.", "Two and two.\n\nFour?")


def test_a_chat_is_kept_unless_that_is_not_wanted(mink_chat: MinkChat, own_files: Path) -> None:
    typed = ["A secret.", "/save secret"]
    result = mink_chat("--no-store", "-n", "2", typed=typed)
    assert result.status == 0
    assert "--no-store" in result.err
    assert not own_files.exists()
    assert "now secret" in mink_chat("-n", "2", typed=typed).err
    again = mink_chat("--continue", "-n", "2", typed=["/show system"])
    assert "> A secret." in again.err
    assert "secret, 1 message)" in again.err


def test_an_unanswered_message_is_sent_again(mink_chat: MinkChat) -> None:
    """And the system prompt of the command line is the conversation's, from the command line."""
    store = ConversationStore(default_path())
    converse(store, "What is this?", system="Be long.")
    result = mink_chat("--continue", "--system", "Be brief.", typed=["/show system"])
    assert "What is this?" in result.out
    assert "system Be brief." in result.out
    assert "(command line)" in result.err
    assert store.get(1).system == "Be brief."


def test_a_store_that_cannot_be_opened(mink_chat: MinkChat, own_files: Path) -> None:
    own_files.mkdir(parents=True)
    (own_files / "conversations.db").write_text("this is not a database, and too long to be empty " * 9)
    result = mink_chat("-n", "2", typed=["Hello"])
    assert "cannot be opened" in result.err
    assert "2 tokens" in result.err


def test_a_conversation_that_outgrows_the_context(mink_chat: MinkChat, tiny_path: Path) -> None:
    lines = ["word " * 300, *(f"{i}: tell me of the number {i}." for i in range(8))]
    result = mink_chat("-m", str(tiny_path), "-n", "30", "--ctx", "256", "--system", "Be brief.", typed=lines)
    assert len(re.findall(r"\d+ tokens.* 256", result.err)) >= 1
    drops = re.findall(r": (\d) oldest turns? ", result.err)
    assert 1 <= len(drops) < 6


def test_a_model_that_fails_ends_the_answer_not_the_chat(
    mink_chat: MinkChat, tiny: Callable[..., Path]
) -> None:
    result = mink_chat("--model", str(tiny(scale=float("nan"))), typed=["Hi", "Hi"])
    assert result.status == 0
    assert result.err.count("NaN") == 2
