"""Ten turns with a model that reasons in a loop, with a sampler for each phase; and docs/thinking.md.

The chat template is Qwen3.5's, if llama.cpp's source is there (LLAMA_CPP_SOURCE), and one with its habits:
the prompt opens the reasoning, and that of earlier turns is left out.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mink_local import Greedy, TopK, load_model
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.conversation.store import ConversationStore, default_path
from mink_local.evals.run.records import read_run, scored
from mink_local.evals.run.summary import summarise
from mink_local.generation.model import Model
from scripts.thinking import arguments, arms
from tests.chat.conftest import new_session
from tests.support.llama_templates import TEMPLATES
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished
from tests.support.server import running_server
from tests.support.tiny import write_scripted

ROUND = [" But", " wait", ",", " let", " me", " check", " that", " again", "."]
STAND_IN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n{{ '<think>\n' }}"
)
PHASES: dict[str, Any] = {"reasoning_sampler": TopK(5), "reasoning_temperature": 0.3, "sampler": Greedy()}
N_TURNS = 10


@pytest.fixture(scope="module", params=["Qwen3.5-4B", "a stand-in"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that reasons in a circle, and answers "Four!" if that is ended."""
    template, file = STAND_IN, TEMPLATES / f"{request.param}.jinja"
    if request.param != "a stand-in":
        if not file.exists():
            pytest.skip(f"{file.name} is missing: LLAMA_CPP_SOURCE names llama.cpp's source")
        template = file.read_text(encoding="utf-8")
    scripts = {"<think>\n": ROUND, "\n</think>\n\n": ["Four", "!"]}
    file = tmp_path_factory.mktemp("thinking") / "x.gguf"
    return write_scripted(file, template, scripts, again={".": " But"})


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with load_model(path, n_ctx=4096, n_threads=1) as model:
        yield model


def check_phases(k: Sequence[int]) -> None:
    """The reasoning was sampled from five candidates, its end was forced, and the answer was greedy."""
    phases = re.fullmatch("(5+)(0+)(11)", "".join(map(str, k)))
    assert phases is not None, k
    assert len(ROUND) * 4 <= len(phases[1]) < 150


def test_in_python(model: Model) -> None:
    messages: list[dict[str, Any]] = []
    for turn in range(N_TURNS):
        messages.append({"role": "user", "content": f"{turn} + 4?"})
        reply = model.chat(messages, **PHASES, seed=turn)
        reply.read()
        assert (reply.content, reply.finish_reason) == ("Four!", "stop")
        [loop] = reply.loops
        assert (loop.in_reasoning, loop.is_ended) == (True, True)
        check_phases(reply.k)
        assert [reply.is_reasoning(at) for at in (0, loop.token, reply.n_tokens - 1)] == [True, True, False]
        messages.append(reply.message)


@pytest.mark.usefixtures("own_files")
def test_in_the_chat(model: Model) -> None:
    options = ("--reasoning-sampler", "top-k:k=5", "--reasoning-temp", "0.3", "-s", "greedy", "-n", "300")
    session = new_session(model, *options)
    session.store = ConversationStore(default_path())
    for turn in range(N_TURNS):
        list(session.ask(f"{turn} + 4?").pieces())
        answer = session.last_answer()
        assert (answer.content, answer.finish_reason) == ("Four!", "stop")
        assert answer.repeats_since == len(ROUND) + 1
        check_phases(answer.k[: len(answer.tokens)])
    stored = session.store.branch(session.store.get(session.conversation or 0).head)
    assert len(stored) == 2 * N_TURNS
    steps = AnswerSteps(session, stored[-1])
    for at, sampler, temperature in ((0, "top-k:k=5", 0.3), (len(steps.tokens) - 1, "greedy", 1.0)):
        step = steps.step(at)
        assert (str(step.sampler), step.temperature, step.k) == (sampler, temperature, steps.k[at])


def test_on_the_server(path: Path) -> None:
    options = ["--reasoning-sampler", "top-k:k=5", "--reasoning-temp", "0.3", "--sampler", "greedy"]
    preset = ["--preset", "pair=top-k:k=5@0.3/greedy@0"]
    with running_server("--model", str(path), "--ctx", "4096", *options, *preset) as server:
        messages: list[dict[str, Any]] = []
        for turn in range(N_TURNS):
            messages.append({"role": "user", "content": f"{turn} + 4?"})
            body = server.post("/v1/chat/completions", messages=messages).json()
            [choice] = body["choices"]
            assert (choice["message"]["content"], choice["finish_reason"]) == ("Four!", "stop")
            assert [loop["is_ended"] for loop in choice["loops"]] == [True]
            check_phases(choice["k"])
            messages.append(choice["message"])
        asked: dict[str, Any] = {"messages": messages[:1]}
        check_phases(server.post("/v1/chat/completions", model="x:pair", **asked).json()["choices"][0]["k"])
        asked |= {"max_tokens": 300, "reasoning_sampler": "top-k:k=3"}
        [choice] = server.post("/v1/chat/completions", **asked).json()["choices"]
        assert choice["k"][0] == 3
        check_phases(
            [5 if k == 3 else k for k in server.post("/v1/messages", **asked).json()["k"]],
        )


@pytest.mark.slow
@pytest.mark.usefixtures("own_files")
def test_the_experiment(path: Path, tmp_path: Path, run_main: Callable[..., Finished]) -> None:
    """The command of docs/thinking.md on scripted replies: each arm is reported with its loops and tokens."""
    mink_eval = MinkEval(run_main)
    data, out = tmp_path / "questions.jsonl", tmp_path / "out"
    data.write_text('{"question": "1 + 3?", "answer": "4"}\n', encoding="utf-8")
    asked = arguments(str(path), ["--out", str(out), "--max-tokens", "250", "--ctx", "2048"])
    mink_eval(*(str(data) if argument == "math500" else argument for argument in asked)).succeeded()
    summary = summarise(scored(read_run(out)))
    cells = summary.cells
    assert len(cells) == len([*arms(str(path))]) == 1 + 3 * 4 * 2
    assert set(cells["looped"]) == {1.0}
    assert set(cells["truncated"]) == {1.0}
    assert set(cells["mean_tokens"]) == {250.0}
    assert (set(cells["accuracy"]), set(cells["accuracy_if_cut_off_were_right"])) == ({0.0}, {1.0})
    ended = tmp_path / "ended"
    again = [str(ended) if argument == str(out) else argument for argument in asked]
    again = [str(data) if argument == "math500" else argument for argument in again]
    mink_eval(*again, "--end-loops", "reasoning").succeeded()
    cells = summarise(scored(read_run(ended))).cells
    assert set(cells["looped"]) == {1.0}
    assert cells["mean_reasoning_tokens"].between(1, cells["mean_tokens"] - 1).all()
    assert set(cells["truncated"]) == {0.0}
    mink_eval("report", ended).succeeded()
