"""`mink-chat` as one meets it in a pipe: one answer to one prompt. `test_chat_terminal` has the rest."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local import __version__, load_model

pytestmark = pytest.mark.usefixtures("own_files")

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
    dot = load_model("smollm2-135m", n_ctx=256).weights.tokenize(".", add_special=False, parse_special=False)
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
        (["--continue", "--resume", "x"], 2, "--continue and --resume exclude each other"),
        (["--continue"], 1, "there is no conversation to continue yet"),
        (["--resume", "x"], 1, "there is no conversation 'x': --list shows those there are"),
        (["--export", "x.txt"], 2, "--export wants a file that ends in .md or .json"),
        (["--config", "no/such"], 2, "'no/such' does not exist"),
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


def test_json() -> None:
    result = chat("-p", "What is the capital of France?", "-t", "5", "--seed", "1", "-n", "30", "--json")
    answer = json.loads(result.stdout)
    assert (
        answer["text"] + "\n"
        == chat("-p", "What is the capital of France?", "-t", "5", "--seed", "1", "-n", "30").stdout
    )
    assert (answer["model"], answer["sampler"]) == ("smollm2-135m", "min-k:tau=3")
    assert answer["n_tokens"] == len(answer["tokens"])
    assert len(answer["k"]) - len(answer["tokens"]) in (0, 1)
    assert 0 < answer["timings"]["first_token_s"] <= answer["timings"]["total_s"]


def test_a_dash_is_standard_input() -> None:
    dash = chat("-p", "-", "-t", "0", "-n", "5", stdin="Say hi.")
    assert (dash.returncode, dash.stdout) == (0, chat("-t", "0", "-n", "5", stdin="Say hi.").stdout)
