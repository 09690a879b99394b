"""`mink-chat` as people meet it: one-shot in a pipe, and in a real terminal."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from mink_local import MinK, __version__, load_model
from mink_local.chat import Chat, drop_oldest_turns
from mink_local.model import Model

MINK_CHAT = [sys.executable, "-m", "mink_local.chat"]


def chat(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*MINK_CHAT, *arguments], input=stdin, capture_output=True, text=True, check=False, timeout=120
    )


def test_prompt_prints_only_the_answer() -> None:
    one = chat("--temp", "5", "--seed", "1", "--prompt", "What is the capital of France?")
    assert one.returncode == 0
    assert len(one.stdout.split()) > 5
    assert "smollm2-135m on the" in one.stderr
    assert "<|im_end|>" not in one.stdout
    assert "llama_" not in one.stderr
    other = chat("--temp", "5", "--seed", "1", stdin="What is the capital of France?")
    assert other.stdout == one.stdout


def test_system_prompt_and_length() -> None:
    plain = chat("-p", "Who are you?", "-t", "0", "-n", "12")
    pirate = chat("-p", "Who are you?", "-t", "0", "-n", "12", "--system", "You are a pirate.")
    assert plain.stdout != pirate.stdout
    assert "(cut after 12 tokens: --max-tokens)" in plain.stderr


def test_constraints(tmp_path: Path) -> None:
    """At T = 5 too: JSON of the schema, without the token that is banned, and nothing said twice."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}')
    answer = chat("-p", "Give me a number as JSON.", "-t", "5", "--seed", "1", "--json-schema", str(schema))
    assert isinstance(json.loads(answer.stdout)["n"], int)
    greedy = ("-p", "Tell me a story about a dog.", "-t", "0", "-n", "60")
    plain = chat(*greedy).stdout
    assert chat(*greedy, "--repeat-penalty", "1.5").stdout != plain
    dot = load_model("smollm2-135m", n_ctx=256)._weights.tokenize(".", add_special=False, parse_special=False)
    assert "." in plain
    assert ". " not in chat(*greedy, "--logit-bias", f"{dot[0]}=-inf").stdout


def test_verbose_shows_llama_cpps_log() -> None:
    assert "llama_model_loader" in chat("-p", "Hi", "-n", "1", "--verbose").stderr


def test_version_and_help() -> None:
    assert chat("--version").stdout == f"mink-chat, version {__version__}\n"
    text = chat("--help").stdout
    assert "Examples:" in text
    assert "Exit status:" in text


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--temp", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--temp", "nan"], 2, "nan is not a finite number"),
        (["--temp", "inf"], 2, "inf is not a finite number"),
        (["--temp", "hot"], 2, "'hot' is not a valid float"),
        (["--tau", "-1"], 2, "-1.0 is not in the range x>=0"),
        (["--tau", "1", "--sampler", "greedy"], 2, "--tau is min-k's, not greedy's"),
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
        (["--parrot"], 2, "No such option '--parrot'"),
        (["parrot"], 2, "unexpected extra argument"),
        (["--prompt", "word " * 900, "--ctx", "512"], 1, "and the context holds 512: shorten it"),
        (["--model", __file__], 1, "is not a GGUF file"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], status: int, complaint: str) -> None:
    result = chat(*(["--prompt", "Hi"] if "--prompt" not in arguments else []), *arguments)
    said = [line for line in result.stderr.splitlines() if "on the" not in line]
    assert (result.returncode, result.stdout) == (status, "")
    assert len(said) == 1
    assert said[0].startswith("mink-chat: ")
    assert complaint in said[0]


def test_broken_model_is_one_sentence(tiny: Callable[..., Path]) -> None:
    result = chat("--model", str(tiny(scale=float("nan"))), "--prompt", "Hi")
    assert (result.returncode, result.stdout) == (1, "")
    assert "a NaN among its logits at step 1" in result.stderr
    assert "Traceback" not in result.stderr


def test_text_that_is_no_utf8() -> None:
    result = subprocess.run(
        [*MINK_CHAT, "-n", "3", "-t", "0", "-p", b"caf\xe9"],
        capture_output=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    piped = subprocess.run(
        [*MINK_CHAT, "-n", "3", "-t", "0"], input=b"caf\xe9", capture_output=True, check=False
    )
    assert piped.stdout == result.stdout


def test_a_reader_that_leaves_is_no_traceback() -> None:
    shell = f"{' '.join(MINK_CHAT)} -p 'Tell me a story.' -t 0 -n 60 </dev/null | head -c 1"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
    assert len(result.stdout) == 1
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


@pytest.mark.parametrize("after", [0.05, 0.3, 0.6, 1.5])
def test_ctrl_c_leaves_a_one_shot(after: float) -> None:
    """At any moment: while it imports, loads, reads the prompt, answers."""
    process = subprocess.Popen(
        [*MINK_CHAT, "-p", "Tell me a long story. " * 60, "-t", "5"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode in (130, -signal.SIGINT)
    assert "llama_" not in errors
    if after > 0.5:  # before that it may be in the middle of starting Python
        assert "Traceback" not in errors


@pytest.fixture
def terminal() -> Iterator[Callable[..., "pexpect.spawn[str]"]]:
    """`terminal(*arguments)` opens a chat in a pseudo-terminal and waits for its prompt."""
    opened = []

    def spawn(*arguments: str) -> "pexpect.spawn[str]":
        child = pexpect.spawn(
            sys.executable, ["-m", "mink_local.chat", *arguments],
            encoding="utf-8", timeout=180, env={**os.environ, "TERM": "xterm"}, dimensions=(24, 80),
        )  # fmt: skip
        opened.append(child)
        child.expect("> ")
        return child

    yield spawn
    for child in opened:
        child.close(force=True)


PROMPT = "\r\n> "


def test_chat_in_a_terminal(terminal: Callable[..., "pexpect.spawn[str]"]) -> None:
    child = terminal("--temp", "0", "--max-tokens", "20")
    assert "min-k:tau=3, temperature 0" in child.before
    child.sendline("Say hello to me.")
    child.expect_exact(PROMPT)
    assert "Hello" in child.before
    child.sendline("   ")
    child.expect_exact("> ")
    child.sendline("/parrot")
    child.expect("there is no command /parrot")
    child.expect_exact("> ")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves(terminal: Callable[..., "pexpect.spawn[str]"]) -> None:
    child = terminal("--temp", "5", "--seed", "3")
    child.sendline("Tell me a very long story about a dragon.")
    child.expect("(?i)dragon.*dragon")
    child.sendintr()
    child.expect_exact("(interrupted)")
    child.expect_exact(PROMPT)
    child.sendline("Now say hello.")
    child.expect_exact(PROMPT)
    assert len(child.before.split()) > 3
    child.sendintr()
    child.expect_exact("(Ctrl-D or /exit leaves)")
    child.sendeof()
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus == 0


def test_ctrl_c_while_a_long_prompt_is_read(terminal: Callable[..., "pexpect.spawn[str]"]) -> None:
    child = terminal("--temp", "0", "--max-tokens", "10", "--system", "one two three four five six " * 500)
    child.sendline("Hello")
    time.sleep(1)
    began = time.perf_counter()
    child.sendintr()
    child.expect_exact("(interrupted)")
    assert time.perf_counter() - began < 2  # reading it whole takes 9 s
    child.expect_exact(PROMPT)


def test_a_message_that_does_not_fit_costs_only_itself(terminal: Callable[..., "pexpect.spawn[str]"]) -> None:
    child = terminal("--temp", "0", "--max-tokens", "10", "--ctx", "256")
    child.sendline("word " * 300)
    child.expect("and the context holds 256")
    child.sendline("Say hello.")
    child.expect_exact(PROMPT)
    child.expect_exact(PROMPT)
    assert "Hello" in child.before


def test_a_model_that_fails_ends_the_answer_not_the_chat(
    terminal: Callable[..., "pexpect.spawn[str]"], tiny: Callable[..., Path]
) -> None:
    child = terminal("--model", str(tiny(scale=float("nan"))))
    for _ in range(2):
        child.sendline("Hi")
        child.expect("a NaN among its logits at step 1")
        child.expect_exact(PROMPT)


class Said:
    """A reply that says what it is told to."""

    finish_reason = "stop"
    n_tokens = 2

    def __init__(self, *pieces: str) -> None:
        self._pieces = iter(pieces)

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    def interrupt(self) -> None:
        pass


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("screen", "shown"), [(Terminal(), "a\tb[31m\ncd\n"), (io.StringIO(), "a\tb\x1b[31m\n\rc\x9bd\n")]
)
def test_control_characters_do_not_reach_a_terminal(
    smollm2: Model, monkeypatch: pytest.MonkeyPatch, screen: io.StringIO, shown: str
) -> None:
    monkeypatch.setattr(smollm2, "chat", lambda *_, **__: Said("a\tb\x1b[31m\n", "\rc\x9bd"))
    monkeypatch.setattr(sys, "stdout", screen)
    Chat(smollm2, MinK(), None, {"seed": 1, "max_tokens": None}).answer("Hi")
    assert screen.getvalue() == shown


def test_a_conversation_is_kept(smollm2: Model, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(smollm2, MinK(), "Be brief.", {"temperature": 0.0, "max_tokens": 5, "seed": 1})
    chat.answer("Hello")
    first = capsys.readouterr().out.strip()
    reply = chat.answer("And now?")
    roles = ["system", "user", "assistant", "user", "assistant"]
    assert [message["role"] for message in chat.messages] == roles
    assert chat.messages[2]["content"].strip() == first
    assert reply.prompt_tokens == smollm2.count_tokens(chat.messages[:-1])


def turns(n: int) -> list[dict[str, str]]:
    return [
        {"role": role, "content": f"{role} {i} " + "word " * 40}
        for i in range(n)
        for role in ("user", "assistant")
    ]


def test_oldest_turns_are_dropped(smollm2: Model) -> None:
    system = [{"role": "system", "content": "You are brief."}]
    last = {"role": "user", "content": "the last"}
    short = [*system, *turns(3), last]
    assert drop_oldest_turns(short, smollm2, None) == (short, 0)
    kept, dropped = drop_oldest_turns([*system, *turns(12), last], smollm2, None)
    assert 6 <= dropped < 12
    assert kept == [*system, *turns(12)[2 * dropped :], last]
    assert smollm2.count_tokens(kept) <= smollm2.n_ctx // 2
    huge = {"role": "user", "content": "word " * 2000}
    assert drop_oldest_turns([*system, *turns(3), huge], smollm2, None) == ([*system, huge], 3)


def test_a_conversation_that_outgrows_the_context(terminal: Callable[..., "pexpect.spawn[str]"]) -> None:
    child = terminal("--temp", "0", "--max-tokens", "30", "--ctx", "256", "--system", "You are brief.")
    for i in range(8):
        child.sendline(f"{i}: tell me of the number {i}.")
        child.expect_exact(PROMPT)
        if "outgrew the context" in child.before:
            break
    else:
        pytest.fail("eight turns fitted 256 tokens")
    assert i >= 2
    child.sendline("And now?")
    child.expect_exact(PROMPT)
    assert "outgrew" not in child.before
