"""`mink-eval run` with a model behind an address: mink-serve, and a server that knows few parameters."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from mink_local.evals.run.records import read_run, scored
from mink_local.evals.tasks import Verdict
from mink_local.evals.tasks.base import NO_ANSWER
from tests.evals.conftest import Write
from tests.support.judge_server import Body, JudgeServer, Said, fails
from tests.support.mink_eval import MinkEval, read_responses
from tests.support.python import Finished
from tests.support.server import running_server
from tests.support.tiny import write_scripted

TOP_P = "top-p:p=0.8,order=temperature-first"


def doubles(body: Body) -> Said:
    """Answer "What is 3 + 3?"."""
    number = int(body["messages"][-1]["content"].split()[2])
    choice = {"message": {"content": f"The final answer is {2 * number}"}, "finish_reason": "stop"}
    return Said(200, {"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 5}})


@pytest.fixture
def run(mink_eval: MinkEval, questions: list[object], server: JudgeServer, tmp_path: Path) -> Any:
    """`run(*options)` asks the server four questions."""
    server.answer = doubles
    command = ["run", "gsm8k", *questions, "--limit", 4, "-q", "-o", tmp_path / "run"]
    return partial(mink_eval, *command, "--model", server.url)


Run = Callable[..., Finished]


@pytest.mark.slow
def test_mink_serve_answers_as_its_file_does(
    mink_eval: MinkEval, questions: list[object], tmp_path: Path
) -> None:
    """With its samplers and seeds; and what was answered is not asked again."""
    command = ["run", "gsm8k", *questions, "--limit", 2, "-n", 12, "-t", 5, "-s", "min-k", "-s", "top-p"]
    with running_server("--ctx", "512") as serving:
        for _ in range(2):
            mink_eval(*command, "--model", serving.url, "-o", tmp_path / "served").succeeded()
    mink_eval(*command, "-o", tmp_path / "file").succeeded()
    served, file = (
        {replace(one.key, model=""): one for one in read_responses(tmp_path / name)}
        for name in ("served", "file")
    )
    assert served.keys() == file.keys()
    same = [served[key].response == file[key].response for key in file]
    assert sum(same) >= len(same) - 2  # the server's caches change the last bits of sums
    for key, one in served.items():
        assert (one.k, one.seed, one.order) == ([], file[key].seed, file[key].order)
        assert (one.prompt_tokens, bool(one.n_tokens)) == (file[key].prompt_tokens, True)
        assert one.finish_reason in ("stop", "length")
    shown = " ".join(mink_eval("report", tmp_path / "served").succeeded().stdout.split())
    assert "Answered by a server: smollm2-135m at http" in shown


OPENS = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
THOUGHTS = {
    "ended": (["Hm: the answer is 8.", "</think>", "The final answer is 6"], True),
    "cut off": (["Hm.", "The final answer is 6"], False),
}


@pytest.mark.slow
@pytest.mark.parametrize(("script", "is_right"), THOUGHTS.values(), ids=list(THOUGHTS))
def test_a_thought_is_no_answer_wherever_it_comes_from(
    mink_eval: MinkEval,
    write: Write,
    server: JudgeServer,
    tmp_path: Path,
    script: list[str],
    is_right: bool,
) -> None:
    """The template opens the reasoning, so that what the model writes does not show where it begins."""
    model = write_scripted(tmp_path / "thinker.gguf", OPENS, {"<think>": script})
    data = write({"question": "3 + 3?", "answer": "6"}, name="own.jsonl")
    thought, _, content = "".join(script).partition("</think>")
    message = {"content": content, "reasoning_content" if is_right else "reasoning": thought}
    server.answer = lambda _: Said(200, {"choices": [{"message": message, "finish_reason": "stop"}]})
    with running_server("-m", str(model)) as serving:
        for number, source in enumerate((model, serving.url, server.url)):
            out = tmp_path / str(number)
            mink_eval("run", data, "-s", "greedy", "--model", source, "-o", out).succeeded()
    found = [scored(read_run(tmp_path / str(number))).responses for number in range(3)]
    verdict = Verdict("6", correct=True) if is_right else NO_ANSWER
    assert {(one.strict, one.flexible) for [one] in found} == {(verdict, verdict)}
    assert {one.response for [one] in found} == {found[0][0].response}
    assert thought in found[0][0].response


def test_another_server_gets_what_it_knows(run: Run, server: JudgeServer, tmp_path: Path) -> None:
    run("-s", "top-p:p=0.8", "-t", 2, "--stop", "END").succeeded()
    fields = {"model", "messages", "max_tokens", "temperature", "seed", "stop"}
    for body in server.bodies:
        assert body.keys() - {"top_p"} == fields
        assert (body["temperature"], body.get("top_p")) in [(0, None), (2, 0.8)]
    found = read_responses(tmp_path / "run")
    assert {(one.sampler, one.temperature) for one in found} == {("greedy", 0), (TOP_P, 2)}
    assert {one.seed % 2**31 for one in found} == {body["seed"] for body in server.bodies}
    right = {one.flexible and one.flexible.correct for one in scored(read_run(tmp_path / "run")).responses}
    assert (right, {one.n_tokens for one in found}) == ({True}, {5})
    assert {one.model for one in found} == {f"judge-1 at {server.url}"}


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        (["-s", "min-k"], 1, "min-k:tau=3"),
        (["-s", "top-p", "-s", "top-k+top-p"], 1, "top-k"),
        (["-s", "top-p", "--reasoning-budget", 9], 1, "--reasoning-budget"),
        (["-s", "top-p", "--threads", 2], 2, "--threads"),
        (["-s", "top-p", "--ctx", 512], 2, "--ctx"),
        (["-s", "top-p", "--key-env", "NO_SUCH_KEY"], 1, "NO_SUCH_KEY"),
    ],
)
def test_what_would_be_dropped_in_silence_is_refused(
    run: Run, server: JudgeServer, tmp_path: Path, options: list[object], status: int, named: str
) -> None:
    run(*options).refused(status, named)
    assert not server.bodies
    assert not (tmp_path / "run" / "manifest.json").exists()


def test_certificates_that_are_missing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere")
    run("-s", "top-p").refused(1, "SSL_CERT_FILE")


def test_a_preset_of_mink_serve_is_refused(
    mink_eval: MinkEval, questions: list[object], server: JudgeServer, tmp_path: Path
) -> None:
    """It would answer with its own sampler, whatever is sent."""
    server.models, server.owner = ["tiny", "tiny:creative"], "mink-local"
    command = ["run", "gsm8k", *questions, "--model", f"{server.url}#tiny:creative", "-o", tmp_path / "run"]
    mink_eval(*command).refused(1, "preset")
    server.models = ["one", "two"]
    mink_eval(*command[:-3], server.url, *command[-2:]).refused(1, "#MODEL")


def test_a_parameter_that_the_server_refuses_is_not_left_out(run: Run, server: JudgeServer) -> None:
    server.answer = lambda _: fails(400, "no temperature", param="temperature")
    run("-s", "top-p").refused(1, "no temperature")


NO_COMPLETION: list[Said] = [
    Said(200, {"error": {"message": "quota of model exceeded", "code": 429}}),
    Said(200, {"choices": [], "error": "quota of model exceeded"}),
    Said(200, '{"choices": [{"message": {"content": "quota of model exceeded'),
    Said(200, "quota of model exceeded", {"Content-Type": "text/html"}),
    Said(0, None),
    Said(503, "quota of model exceeded"),
]


@pytest.mark.parametrize("said", NO_COMPLETION)
@pytest.mark.parametrize("n_times", [1, 2])
def test_a_server_that_fails_for_a_moment_is_asked_again(
    run: Run, server: JudgeServer, tmp_path: Path, said: Said, n_times: int
) -> None:
    """And one that fails again and again ends the run in its own words; what was answered is kept."""
    failures = [said] * n_times

    def answer(body: Body) -> Said:
        return failures.pop() if "1 + 1" in str(body) and failures else doubles(body)

    server.answer = answer
    done = run("-s", "top-p")
    n = len(read_responses(tmp_path / "run"))
    if n_times == 1:
        assert (done.status, n) == (0, 8)
    else:
        assert (done.status, 0 < n < 8) == (1, True)
        assert ("quota of model" in done.stderr) == (said.status != 0)
        assert "--key-env" not in done.stderr


def test_lengths_that_the_server_does_not_tell_are_unknown(
    run: Run, server: JudgeServer, tmp_path: Path, mink_eval: MinkEval
) -> None:
    def answer(body: Body) -> Said:
        choices = doubles(body).body["choices"]
        details = {"reasoning_tokens": 3}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "completion_tokens_details": details}
        return Said(200, {"choices": choices} | ({"usage": usage} if "1 + 1" in str(body) else {}))

    server.answer = answer
    run("-s", "top-p").succeeded()
    lengths = {one.question_id: (one.n_tokens, one.n_reasoning) for one in read_responses(tmp_path / "run")}
    assert lengths == {"0": (None, None), "1": (5, 3), "2": (None, None), "3": (None, None)}
    assert "reasoning 3.0" in mink_eval("report", tmp_path / "run").succeeded().stdout
    table = pd.read_csv(tmp_path / "run" / "report" / "table.csv")
    assert (set(table.mean_tokens), set(table.mean_reasoning_tokens)) == ({5.0}, {3.0})


def test_what_a_run_waits_for_is_said_once(
    run: Run, server: JudgeServer, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [fails(429, "slow down"), fails(503)]
    server.answer = lambda body: failures.pop(0) if failures else doubles(body)
    run("-s", "top-p", "--parallel", 2).succeeded()
    assert [record.getMessage().count("slow down") for record in caplog.records] == [1]


def test_prompts_that_the_server_does_not_answer_are_recorded(
    run: Run, server: JudgeServer, tmp_path: Path
) -> None:
    failures = {"1 + 1": fails(400, "the filter"), "2 + 2": fails(400, code="context_length_exceeded")}

    def answer(body: Body) -> Said:
        return next((said for words, said in failures.items() if words in str(body)), doubles(body))

    server.answer = answer
    shown = run("-s", "top-p").succeeded().stdout
    assert "2 prompts did not fit" in shown
    assert "2 prompts were refused" in shown
    reasons = {
        (one.question_id, one.finish_reason, one.response == "") for one in read_responses(tmp_path / "run")
    }
    assert reasons == {
        ("0", "stop", False),
        ("1", "refused", True),
        ("2", "overflow", True),
        ("3", "stop", False),
    }
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert list(manifest["models"]) == [f"judge-1 at {server.url}"]
