"""The plugin of `llm`, mostly through the program `llm`: models in its own process."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llm
import pytest

from mink_local.generation.model import Model
from mink_local.models.catalog import CatalogEntry, add, user_catalog_path
from tests.conftest import forget
from tests.support.llm_program import SHOUT, ask, details, logged, register_plugin, run, write_talker

ROOT = Path(__file__).parents[2]
MODEL = "mink/smollm2-135m"
GREEDY = ("-o", "temperature", "0", "-o", "n_ctx", "1024")


@pytest.fixture(autouse=True)
def _llm_of_its_own(own_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `llm` the plugin, files of the test's own."""
    assert own_files
    register_plugin()
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))


@pytest.fixture
def scripted(tmp_path: Path) -> str:
    """A model that writes what `SCRIPTS` says, in the user's catalogue."""
    add(CatalogEntry("scripted", f"file:{write_talker(tmp_path / 'scripted.gguf')}"))
    return "mink/scripted"


def test_models_that_are_here_are_listed(scripted: str) -> None:
    lines = ask("models", "-q", "mink/").splitlines()
    assert lines == [f"mink-local: {scripted}", f"mink-local: {MODEL}"]


@pytest.mark.posix
def test_without_a_catalogue_llm_has_its_other_models(caplog: pytest.LogCaptureFixture) -> None:
    user_catalog_path().mkdir(parents=True)
    assert "OpenAI" in ask("models")
    assert "models.txt" in caplog.text


def test_stop(scripted: str) -> None:
    assert ask("-m", scripted, "Well?") == "Plainly yes!\n"
    assert ask("-m", scripted, "-o", "stop", " yes", "Well?") == "Plainly\n"
    model = llm.get_model(scripted)
    assert model.prompt("Well?", stop=["!", "y"]).text() == "Plainl"


def test_tools(scripted: str) -> None:
    assert ask("-m", scripted, "--functions", SHOUT, "Say hey") == "It says HEY.\n"
    entries = logged(2)
    assert [(call["name"], call["arguments"]) for call in entries[0]["tool_calls"]] == [
        ("shout", {"text": "hey"})
    ]
    assert [result["output"] for result in entries[1]["tool_results"]] == ["HEY"]
    assert [entry["response_json"]["finish_reason"] for entry in entries] == ["tool_calls", "stop"]


def test_a_call_that_is_cut_off_is_an_error(scripted: str) -> None:
    response = llm.get_model(scripted).prompt(
        "Say hey", tools=[llm.Tool("shout", input_schema={"type": "object"})], max_tokens=3
    )
    with pytest.raises(llm.ModelError, match="was cut off"):
        response.text()


def test_reasoning_is_told_from_the_answer(scripted: str) -> None:
    result = run("-m", scripted, "-o", "think", "true", "Well?")
    assert result.stdout == "Yes.\n"
    assert "Hm…" in result.stderr
    [entry] = logged()
    assert (entry["reasoning"], entry["response"]) == ("Hm…", "Yes.")


def test_attachments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    messages = [llm.user("What is this?", llm.Attachment(path=str(tmp_path / "a.png")))]
    with pytest.raises(llm.ModelError, match="attachment"):
        llm.get_model(MODEL).prompt(messages=messages).text()


@pytest.mark.slow
def test_another_model_replaces_the_last(scripted: str) -> None:
    ask("-m", MODEL, "-o", "max_tokens", "1", "Hi")
    assert ask("-m", scripted, "Hi") == "Plainly yes!\n"
    ask("-m", MODEL, "-o", "max_tokens", "1", "Hi")
    assert "cached_tokens" not in details(logged()[0])


def test_an_answer_is_the_models_own(smollm2: Model) -> None:
    # No other test asks for this length: the KV cache is empty.
    new = ("-o", "n_ctx", "512", "-o", "max_tokens", "12")
    text = ask("-m", MODEL, "-o", "temperature", "0", *new, "-s", "Be brief.", "What is a whale?")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a whale?"},
    ]
    assert text == forget(smollm2).chat(messages, temperature=0, max_tokens=12).read() + "\n"


def test_temperature_sampler_and_seed() -> None:
    options = {"temperature": "40", "sampler": "top-k:k=7", "seed": "3", "max_tokens": "6"}
    arguments = [argument for name, value in options.items() for argument in ("-o", name, value)]
    texts = [ask("-m", MODEL, *arguments, "--no-stream", "Hello")]
    entry = logged()[0]["response_json"]
    assert set(entry.pop("k")) == {7}
    assert entry.pop("finish_reason") in ("stop", "length")
    assert entry == {"model": "smollm2-135m", "seed": 3}
    texts.append(ask("-m", MODEL, *arguments, "Hello"))
    assert texts[0] == texts[1]
    assert ask("-m", MODEL, *arguments, "-o", "seed", "4", "Hello") not in texts


def test_a_conversation_goes_on(smollm2: Model) -> None:
    first = ask("-m", MODEL, *GREEDY, "-o", "max_tokens", "8", "My name is Ada.").removesuffix("\n")
    ask("-c", *GREEDY, "-o", "max_tokens", "3", "What is my name?")
    messages = [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": first},
        {"role": "user", "content": "What is my name?"},
    ]
    [entry] = logged()
    assert (entry["input_tokens"], entry["output_tokens"]) == (smollm2.count_tokens(messages), 3)
    assert details(entry)["cached_tokens"] > entry["input_tokens"] // 2


def test_chat_keeps_the_model_and_its_cache() -> None:
    text = ask("chat", "-m", MODEL, *GREEDY, "-o", "max_tokens", "5", input="Hello\nAnd then?\nquit\n")
    assert text.startswith(f"Chatting with {MODEL}")
    assert details(logged()[0])["cached_tokens"] > 20


def test_schema() -> None:
    text = ask("-m", MODEL, *GREEDY, "--schema", "happy bool, age int", "Invent a dog.")
    assert {name: type(value) for name, value in json.loads(text).items()} == {"happy": bool, "age": int}


def test_async() -> None:
    arguments = ("-m", MODEL, *GREEDY, "-o", "max_tokens", "8", "What is a whale?")
    assert ask("--async", *arguments) == ask(*arguments)


@pytest.mark.anyio
async def test_a_cancelled_task_ends_its_answer() -> None:
    model = llm.get_async_model(MODEL)
    endless = model.prompt("Count.", sampler="top-k:k=1000", temperature=100, n_ctx=1024)
    task = asyncio.ensure_future(endless.text())
    while not endless._chunks:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(endless._chunks) < 500
    assert await model.prompt("Hello", temperature=0, max_tokens=1, n_ctx=1024).text()


def test_an_answer_that_is_not_read_on_is_ended() -> None:
    model = llm.get_model(MODEL)
    pieces = iter(model.prompt("Count.", sampler="top-k:k=1000", temperature=100, n_ctx=1024))
    next(pieces)
    del pieces
    assert model.prompt("Hello", temperature=0, max_tokens=1, n_ctx=1024).text()


@pytest.mark.parametrize(
    ("options", "value"),
    [
        (("-o", "temperature", "-1"), "temperature"),
        (("-o", "temperature", "nan"), "temperature"),
        (("-o", "sampler", "min-q"), "'min-q'"),
        (("-o", "sampler", "min-k:tau=-1"), "tau"),
        (("-o", "max_tokens", "0"), "max_tokens"),
        (("-o", "min_p", "0.1"), "min_p"),
        (("-o", "n_ctx", "1024"), "1024"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], value: str) -> None:
    result = run("-m", MODEL, *options, "word " * 1100)
    assert result.exit_code == 1
    assert value in result.stderr
    assert result.stdout == ""


def test_an_error_in_a_chat_ends_it() -> None:
    result = run("chat", "-m", MODEL, "-o", "n_ctx", "1024", input=f"{'word ' * 1100}\nquit\n")
    assert result.exit_code == 1
    assert "1024" in result.stderr.splitlines()[-1]


@pytest.mark.slow
def test_nothing_heavy_is_imported_to_list_models() -> None:
    program = """
import sys
from collections.abc import Callable
import mink_local.llm.plugin
assert "mink_local.models" not in sys.modules
from mink_local.models.catalog import names_here
list(names_here())
print(*sys.modules)
"""
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"llama_cpp", "numba", "msgspec"} & set(child.stdout.split())


PROCESS = """
from tests.support.llm_program import register_plugin
from llm.cli import cli
register_plugin()
cli(prog_name="llm")
"""


@pytest.mark.slow
@pytest.mark.posix
def test_ctrl_c_ends_the_answer_and_the_program() -> None:
    options = ("-o", "sampler", "top-k:k=1000", "-o", "temperature", "100")
    with subprocess.Popen(
        [sys.executable, "-c", PROCESS, "-m", MODEL, *options, "Count."],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.read(1)
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 1
    assert errors.splitlines()[-1] == b"Aborted!"
    assert b"Traceback" not in errors


def test_a_model_is_sampled_as_its_file_recommends(tiny: Callable[..., Path]) -> None:
    add(CatalogEntry("sure", f"file:{tiny('sure.gguf', more_keys={'general.sampling.top_k': 1})}"))
    ask("-m", "mink/sure", "-o", "sampler", "model", "-o", "temperature", "9", "-o", "max_tokens", "3", "Hi")
    (entry,) = logged(1)
    assert entry["response_json"]["k"] == [1, 1, 1]
    assert run("-m", MODEL, "-o", "sampler", "model", "Hi").exit_code != 0
