"""`mink-eval judge`: a server that misbehaves, what is kept, what is reported."""

import itertools
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mink_local.evals import addresses, answering
from mink_local.evals.addresses import AddressAnswerer
from mink_local.evals.judge.judging import ORDERS, WINNERS, Prompt
from tests.support.judge_server import Body, JudgeServer, Said, fails, says, shown_answers
from tests.support.made_run import change, write_run
from tests.support.mink_eval import MinkEval
from tests.support.python import Finished
from tests.support.server import running_server

KEY = "sk-very-secret"
N = 4  # questions
TOO_LONG = fails(400, "too many tokens", code="context_length_exceeded")

Answer = Callable[[Body], Said]
Judge = Callable[..., Finished]


def prefers_minimal(body: Body) -> Said:
    """Prefer the responses of Min-k, which begin with "min-k" in these tests, in either place."""
    a, b = (text.startswith("min-k") for text in shown_answers(body))
    return says(json.dumps({"winner": "tie" if a == b else "A" if a else "B"}))


def unless(words: str, said: Said) -> Answer:
    """Prefer Min-k, but say something else to prompts with these words."""
    return lambda body: said if words in str(body) else prefers_minimal(body)


def failing_half_the_time() -> Answer:
    failures = itertools.chain([Said(0, None)], itertools.cycle([fails(429), fails(503), fails(500)]))
    turns = (said for failure in failures for said in (failure, None))
    return lambda body: next(turns) or prefers_minimal(body)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose responses begin with their sampler, and are all different."""
    folder = write_run(
        tmp_path / "run",
        tasks=("gsm8k",),
        samplers=("min-k:tau=3", "top-n-sigma:n=1", "greedy"),
        temperatures=(1.0, 5.0),
        repeats=1,
        n_questions=N,
    )

    def name(line: dict[str, Any]) -> None:
        line["response"] = f"{line['sampler']} T={line['temperature']} to {line['question_id']}"

    return change(folder, name)


@pytest.fixture
def judge(mink_eval: MinkEval, run: Path, server: JudgeServer) -> Judge:
    """`judge(*options)` has the server judge the run; a later --judge wins."""
    server.answer = prefers_minimal
    return partial(mink_eval, "judge", run, "--judge", server.url)


def is_few(line: dict[str, Any]) -> bool:
    return bool(line["question_id"] == "0" and line["sampler"] != "top-n-sigma:n=1")


def lines(run: Path) -> list[dict[str, Any]]:
    path = run / "judge" / "judgements.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def rows(run: Path) -> dict[tuple[str, float], dict[str, Any]]:
    content = json.loads((run / "judge" / "judge.json").read_text())
    return {(row["sampler"], row["temperature"]): row for row in content["rows"]}


def test_each_pair_is_judged_once_as_in_the_paper(judge: Judge, run: Path, server: JudgeServer) -> None:
    """In a random order, by five criteria; a tie is no win."""
    result = judge().succeeded()
    assert len(set(map(shown_answers, server.bodies))) == len(server.bodies) == 4 * N
    for criterion in ("helpfulness", "relevance", "accuracy", "creativity", "level of detail"):
        assert criterion in str(server.bodies[0])
    orders = [line["order"] for line in lines(run)]
    assert 0 < orders.count(ORDERS[0]) < len(orders)
    for t in (1.0, 5.0):
        best, same = rows(run)["min-k:tau=3", t], rows(run)["top-n-sigma:n=1", t]
        assert (best["won_tied_lost"], best["p"], best["win_rate"]) == (f"{N}:0:0", 2 * 0.5**N, 1)
        assert (same["won_tied_lost"], same["win_rate"]) == (f"0:{N}:0", 0)
        assert best["judge"] == f"judge-1 at {server.url}"
    for output in (result.stdout, (run / "judge" / "judge.md").read_text()):
        for number in ("0.125", "Holm 0.500"):
            assert number in output


@pytest.mark.parametrize("has_slots", [True, False])
def test_a_server_is_asked_as_much_as_it_answers_at_once(
    judge: Judge, run: Path, server: JudgeServer, has_slots: bool
) -> None:
    server.owner, server.slots = "mink-local", 3 if has_slots else None
    judge("--field", "top_k=1").succeeded()
    [session] = json.loads((run / "judge" / "manifest.json").read_text())["sessions"]
    assert session["n_parallel"] == (3 if has_slots else 8)
    for body in server.bodies:  # nobody waits for thoughts about a word
        assert (body["chat_template_kwargs"], body["top_k"]) == ({"enable_thinking": False}, 1)
    judge("--field", "seed=1").refused(2, "seed")


@pytest.mark.parametrize(
    ("answer", "status", "row", "attempts", "said"),
    [
        (lambda _: says('{"winner": "A"}'), 0, {"missing": 0}, {1}, ["shown first wins 100.0%"]),
        (unless("min-k:tau=3 T=5.0 to 2", says("Both.")), 0, {"won_tied_lost": f"{N - 1}:0:0", "missing": 1},
         {1, 3}, []),
        (unless("to 1", says("moo")), 1, {"missing": 1}, {1, 3}, ["25.0%"]),
        (lambda body: prefers_minimal(body) if body["temperature"] else says(None), 0, {"missing": 0}, {2},
         []),
        (unless("min-k:tau=3 T=5.0 to 3", fails(400, "the filter")), 0, {"missing": 1}, {1, 3}, []),
        (failing_half_the_time(), 0, {"won_tied_lost": f"{N}:0:0"}, {1}, []),
    ],
    ids=["looks at the place", "unreadable once", "unreadable", "second attempt", "filter", "recovers"],
)  # fmt: skip
def test_answers(
    judge: Judge,
    run: Path,
    server: JudgeServer,
    answer: Answer,
    status: int,
    row: dict[str, Any],
    attempts: set[int],
    said: list[str],
) -> None:
    """What is unreadable is asked for three times, then missing; nothing is asked for again later."""
    server.answer = answer
    for n_requests in (None, 0):
        n_before = len(server.bodies)
        result = judge("--parallel", 1)
        assert result.status == status, result.stderr
        assert n_requests in (None, len(server.bodies) - n_before)
    assert rows(run)["min-k:tau=3", 5.0].items() >= row.items()
    assert len(lines(run)) == 4 * N
    assert {line["attempts"] for line in lines(run)} == attempts
    assert {line["winner"] is None for line in lines(run) if line["attempts"] == 3} <= {True}
    assert all(words in (result.stdout + result.stderr).replace("\n", " ") for words in said)


@pytest.mark.parametrize(
    ("failure", "named"),
    [
        (fails(500), "HTTP 500"),
        (fails(429, "slow down", Retry_After="0"), "HTTP 429"),
        (fails(429, "come back tomorrow", Retry_After="86400"), "come back tomorrow"),
        (Said(200, "<html>hello</html>"), "chat completions"),
        (Said(200, {"choices": []}), "chat completions"),
        (Said(0, None), "closed connection"),
        (fails(401, f"Incorrect API key {KEY}"), "--key-env"),
        (fails(307, Location="/v1/elsewhere"), "HTTP 307"),
        (fails(404, "no such model"), "#"),
    ],
)
def test_a_server_that_fails_in_the_middle(
    judge: Judge, run: Path, server: JudgeServer, failure: Said, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends in one sentence; the same command asks for what is missing and no more."""
    monkeypatch.setenv("MY_KEY", KEY)
    judge = partial(judge, "--key-env", "MY_KEY")
    server.answer = lambda body: prefers_minimal(body) if len(server.bodies) <= 10 else failure
    result = judge("--parallel", 3)
    assert (result.status, named in result.stderr) == (1, True)
    assert KEY not in result.stdout + result.stderr
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    kept = lines(run)
    assert len(kept) == 10
    server.answer = prefers_minimal
    n_asked = len(server.bodies)
    assert judge("--parallel", 3).status == 0
    assert len(server.bodies) - n_asked == 4 * N - 10
    assert lines(run)[:10] == kept
    assert not any(KEY in path.read_text() for path in (run / "judge").iterdir())


def test_a_server_that_does_not_answer(
    judge: Judge, run: Path, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "PAUSES", ())

    def answer(body: Body) -> Said:
        if len(server.bodies) > 2:
            time.sleep(2)
        return prefers_minimal(body)

    server.answer = answer
    result = judge("--parallel", 1, "--timeout", 1)
    assert (result.status, len(lines(run)), "--timeout" in result.stderr) == (1, 2, True)


@pytest.mark.parametrize("key", [f"{KEY}\n", f"{KEY}\nx", f"{KEY}é", KEY])
def test_the_key_is_not_shown_and_not_written(
    judge: Judge, run: Path, server: JudgeServer, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if no header can hold it, or the server repeats it."""
    monkeypatch.setenv("MY_KEY", key)
    server.answer = lambda _: says(f'Your key is {KEY}. {{"winner": "A"}}')
    result = judge("--key-env", "MY_KEY")
    assert result.status == (0 if key.strip() == KEY else 1)
    assert result.status == 0 or "--key-env" in result.stderr
    written = [path.read_text() for path in (run / "judge").glob("*")]
    assert KEY not in "".join([result.stdout, result.stderr, *written])


@pytest.mark.parametrize(
    ("url", "variable", "sent"),
    [
        ("https://api.openai.com/v1", None, ""),
        ("https://api.openai.com/v1", "OPENAI_API_KEY", KEY),
        ("http://127.0.0.1:8080/v1", None, ""),
        ("http://127.0.0.1:8080/v1", "OPENAI_API_KEY", KEY),
        ("http://gpu-box:8080/v1", "OPENAI_API_KEY", KEY),
    ],
)
def test_a_key_goes_only_where_it_is_meant_to(
    url: str,
    variable: str | None,
    sent: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    judge = AddressAnswerer(f"{url}#judge-1", variable, 1, 1.0)
    assert judge._key == sent
    assert bool(caplog.records) == ("gpu-box" in url)  # where it is sent unencrypted over a network
    assert KEY not in caplog.text


def test_no_secret_of_openais_reaches_another_server(
    judge: Judge, server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, KEY)
    judge().succeeded()
    assert server.bodies
    assert KEY not in str(server.headers)


@pytest.mark.parametrize("refused", [["max_tokens"], ["temperature"], ["max_tokens", "temperature"]])
def test_reasoning_models_refuse_parameters(
    judge: Judge, run: Path, server: JudgeServer, refused: list[str]
) -> None:
    """Several requests at a time are refused, and each is asked again without them."""

    def answer(body: Body) -> Said:
        wrong = next((name for name in refused if name in body), None)
        return fails(400, "unsupported", "unsupported_parameter", wrong) if wrong else prefers_minimal(body)

    server.answer = answer
    judge().succeeded()
    assert len(lines(run)) == 4 * N
    assert {"max_tokens", "max_completion_tokens"}.intersection(server.bodies[-1])


def test_a_question_that_is_too_long_for_the_judge_is_left_out(
    judge: Judge, run: Path, server: JudgeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """And not asked again: the others have their judgements."""
    server.answer = unless("min-k:tau=3 T=5.0 to 2", TOO_LONG)
    judge().succeeded()
    assert "question 2 of gsm8k" in caplog.text
    n_asked = len(server.bodies)
    judge().succeeded()
    assert (len(server.bodies), len(lines(run))) == (n_asked, 4 * N)
    assert rows(run)["min-k:tau=3", 5.0].items() >= {"missing": 1, "won_tied_lost": f"{N - 1}:0:0"}.items()
    server.answer = lambda _: TOO_LONG
    assert judge("--judge", f"{server.url}#short").status == 1  # it judges nothing


@pytest.mark.parametrize(
    ("models", "chosen"),
    [
        (["qwen3:4b"], "qwen3:4b"),
        (["tiny", "tiny:careful", "tiny:creative"], "tiny"),
        (["a", "b", "a:x"], None),
    ],
)
def test_presets_are_not_models(
    judge: Judge, server: JudgeServer, models: list[str], chosen: str | None
) -> None:
    server.models = models
    assert judge().status == (0 if chosen else 1)
    assert {body["model"] for body in server.bodies} == ({chosen} if chosen else set())


def test_long_responses_are_cut(judge: Judge, run: Path, server: JudgeServer) -> None:
    change(run, lambda line: line.update(response=line["response"] + 9000 * "."))
    result = judge("--max-chars", 1250, "--judge", f"{server.url}#tiny-model").succeeded()
    assert "In 16 pairs" in result.stdout
    assert "wrote some of the responses itself" in result.stdout.replace("\n", " ")
    assert "its first 1,250 of 9,0" in server.bodies[-1]["messages"][0]["content"]


def test_identical_responses_are_a_tie_that_is_not_asked_for(
    judge: Judge, run: Path, server: JudgeServer
) -> None:
    change(run, lambda line: line.update(response="the same" if line["temperature"] < 5 else "others"))
    assert judge().status == 0
    same, other = (rows(run)["min-k:tau=3", t] for t in (1.0, 5.0))
    assert (same["identical"], same["won_tied_lost"]) == (N, f"0:{N}:0")
    assert (other["identical"], other["missing"]) == (0, 0)
    assert len(server.bodies) == 2 * N


def test_a_limit_is_one_of_questions_and_damaged_records_are_told(
    judge: Judge, run: Path, server: JudgeServer, caplog: pytest.LogCaptureFixture
) -> None:
    with (run / "records.jsonl").open("a") as records:
        records.write("{}\n")
    assert judge("--limit", 2).status == 0
    assert len(server.bodies) == 4 * 2
    assert "1 line" in caplog.text


@pytest.mark.parametrize(
    ("options", "status", "complaint"),
    [
        ([], 2, "--judge"),
        (["--judge", "URL", "--key-env", "NO_SUCH_KEY"], 1, "NO_SUCH_KEY"),
        (["--judge", "parrot"], 2, "'parrot'"),
        (["--judge", "http://"], 1, "8080/v1"),
        (["--judge", "http://ho\x07st/v1"], 1, "8080/v1"),
        (["--judge", "http://me:secret@host/v1"], 1, "password"),
        (["--judge", "http://127.0.0.1:9/v1"], 1, "http://127.0.0.1:9/v1"),
        (["--judge", "http://127.0.0.1:9/v1#j", "-q"], 1, "http://127.0.0.1:9/v1"),
        (["--judge", "smollm2-135m", "--key-env", "x"], 2, "--key-env"),
        (["--judge", "URL", "--threads", "2"], 2, "--threads"),
        (["--judge", "URL#x", "--against", "top-p"], 1, "top-p:p=0.9"),
        (["--judge", "URL"], 1, "one, two"),
    ],
)
def test_bad_input_is_one_sentence(
    mink_eval: MinkEval, run: Path, server: JudgeServer, options: list[str], status: int, complaint: str
) -> None:
    server.models = ["one", "two"]
    result = mink_eval("judge", run, *(option.replace("URL", server.url) for option in options))
    result.refused(status, complaint)
    assert "secret" not in result.stderr


def test_judgements_have_a_report_of_their_own(judge: Judge, run: Path, mink_eval: MinkEval) -> None:
    judge().succeeded()
    page = run / "judge" / "judge.html"
    first = page.read_bytes()
    page.unlink()
    mink_eval("report", run / "judge").succeeded()
    assert page.read_bytes() == first


def test_samplers_at_different_temperatures_are_no_pair(judge: Judge, run: Path, server: JudgeServer) -> None:
    change(
        run, lambda r: (r["sampler"], r["temperature"]) in [("min-k:tau=3", 5.0), ("top-n-sigma:n=1", 1.0)]
    )
    judge("--against", "min-k").refused(1, "temperature")
    judge("--against", "greedy").refused(1, "--against")
    assert not server.bodies


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"winner": "A"}', "A"),
        ('```json\n{\n  "winner": "tie"\n}\n```', "tie"),
        ('{"reason": "B is too long", "winner": "A"}', "A"),
        ('<think>{"winner": "B"}? No.</think>\n{"winner": "A"}', "A"),
        ("{'winner': 'B'}", "B"),
        ("**Winner: B**", "B"),
        ("WINNER: A", "A"),
        ("Tie.", "tie"),
        ("[A]", "A"),
        ("Answer B", "B"),
        ("", None),
        ("C", None),
        ('{"winner": "C"}', None),
        ('{"winner": "A or B"}', None),
        ('{"winner": null}', None),
        ("winner: A tie between the two", None),
        ('{"winner": "A"} no, {"winner": "B"}', None),
        ("A is better than B", None),
        ("Both A and B are good", None),
        ('{"winner": "', None),
        ('{"winner": "C"}, no, {"winner": "A"}', None),
    ],
)
def test_answers_of_judges(text: str, value: str | None) -> None:
    assert Prompt("?", {}, "winner", WINNERS).read(text) == value


@pytest.mark.slow
def test_a_local_judge(
    mink_eval: MinkEval, run: Path, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model judges in this process; what it has judged is not asked again."""
    change(run, is_few)
    command = ("judge", run, "--judge", tiny_path, "--threads", 1)
    mink_eval(*command).succeeded()
    found = lines(run)
    assert len(found) == 2
    assert {line["winner"] for line in found} <= {"A", "B", "tie"}
    assert {json.loads(line["raw"])["winner"] for line in found} <= {"A", "B", "tie"}
    (judge,) = json.loads((run / "judge" / "manifest.json").read_text())["judges"].values()
    assert len(judge["sha256"]) == 64
    monkeypatch.delattr(answering, "load_model")
    mink_eval(*command).succeeded()


@pytest.mark.slow
def test_mink_serve_is_a_judge(mink_eval: MinkEval, run: Path) -> None:
    change(run, is_few)
    with running_server("--ctx", "1024") as serving:
        mink_eval("judge", run, "--judge", serving.url).succeeded()
    assert [json.loads(line["raw"]).keys() == {"winner"} for line in lines(run)] == [True] * 2
