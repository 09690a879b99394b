"""`mink-bench serve`: what is made of what arrives, and real servers. How fast they are is not for a test."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("httpx")

from mink_local.bench.serve import Arrivals, Load, compare, request_fields, time_servers
from mink_local.bench.server_process import ServerOptions, ServerProcess
from mink_local.bench.tables import serve_table
from mink_local.errors import MinkError
from mink_local.samplers import Greedy, MinK, TopK
from tests.bench.conftest import Finished

STAND_IN = """#!{python}
import os, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
options["--ctx"] = str(int(options.pop("--ctx-size")) // int(options["--parallel"]))
del options["--cache-ram"]
words = [word for option in options.items() for word in option]
os.execv({python!r}, [{python!r}, "-m", "mink_local.serve.cli", *words])
"""


def event(text: str | None, usage: int | None = None) -> bytes:
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    value: dict[str, Any] = {"choices": choices}
    if usage is not None:
        value["usage"] = {"completion_tokens": usage}
    return f"data: {json.dumps(value)}\n\n".encode()


def arrivals(*chunks: tuple[float, bytes]) -> Arrivals:
    return Arrivals(10.0, list(chunks))


def load(seconds: float, n_tokens: int, first: list[float], between: list[float]) -> Load:
    return Load(seconds, seconds / 2, n_tokens, first, between)


def test_an_event_counts_when_all_its_bytes_are_there() -> None:
    one, two, last = event("a"), event("b"), event(None, usage=2)
    measured = Load()
    measured.add(
        arrivals(
            (10.5, event("")),
            (11.0, b": a comment\n\n" + one[:9]),
            (12.0, one[9:] + two[:-1]),
            (14.0, two[-1:] + last),
            (15.0, b"data: [DONE]\n\n"),
        ),
        tokens=2,
    )
    assert (measured.n_tokens, measured.first_token, measured.between_tokens) == (2, [2.0], [2.0])


@pytest.mark.parametrize(
    ("chunks", "complaint"),
    [
        ([event("a"), event(None, usage=1)], "an answer has 1 tokens in 1 events with text, not 2 tokens"),
        ([event(""), event(None, usage=2)], "an answer has 2 tokens in 0 events with text, not 2 tokens"),
        ([event("a"), b'data: {"error": {"message": "out of paper"}}\n\n'], "broken off: out of paper"),
    ],
)
def test_answers_that_are_too_short_are_not_timed(chunks: list[bytes], complaint: str) -> None:
    with pytest.raises(MinkError, match=complaint):
        Load().add(arrivals(*((11.0, chunk) for chunk in chunks)), tokens=2)


def test_percentiles_are_over_all_answers_and_ratios_within_a_round() -> None:
    random = np.random.default_rng(0)
    firsts, betweens = random.exponential(1, (3, 7)), random.exponential(0.1, (3, 50))
    ours = [
        load(seconds, 100, first.tolist(), between.tolist())
        for seconds, first, between in zip((1.0, 4.0, 2.0), firsts, betweens, strict=True)
    ]
    theirs = [
        load(one.seconds * 2, 100, [f / 4 for f in one.first_token], one.between_tokens) for one in ours
    ]
    mink, other = compare(16, {"mink-serve": ours, "other": theirs})
    assert (mink.server, mink.clients, other.server) == ("mink-serve", 16, "other")
    assert (mink.tokens_per_second, mink.cpu_ms_per_token) == (50, 10)
    assert [mink.first_token_ms_p50, mink.first_token_ms_p99] == pytest.approx(
        1e3 * np.percentile(firsts, [50, 99]), abs=0.01
    )
    assert [mink.between_tokens_ms_p50, mink.between_tokens_ms_p99] == pytest.approx(
        1e3 * np.percentile(betweens, [50, 99]), abs=0.01
    )
    assert (mink.throughput_ratio, mink.first_token_ratio) == (2, 4)
    assert (other.throughput_ratio, other.first_token_ratio) == (1, 1)


def test_the_table_has_ratios_only_if_there_is_something_to_compare_with() -> None:
    rounds = [load(2.0, 100, [0.1], [0.01])]
    headings, alone = serve_table(compare(4, {"mink-serve": rounds}))
    assert alone == ["4", "mink-serve", "50.0", "10.00", "100/100", "10.0/10.0"]
    assert headings[-1] == "ms between tokens"
    headings, first, second = serve_table(compare(4, {"mink-serve": rounds, "other": rounds}))
    assert headings[-2:] == ["tokens/s × other", "first token × other"]
    assert first == [*alone, "1.00", "1.00"]
    assert second[1] == "other"


def test_requests_switch_every_other_cut_off() -> None:
    neutral = {"top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
    assert request_fields(TopK(40), 0.7) == {"temperature": 0.7, "top_k": 40, **neutral}
    assert request_fields(Greedy(), 0.7) == {"temperature": 0, "top_k": 0, **neutral}
    assert request_fields(MinK(), 5.0) == {"temperature": 5.0, "sampler": "min-k:tau=3"}


def test_a_server_that_does_not_start_is_one_sentence() -> None:
    command = [sys.executable, "-c", "print('no paper'); print(); raise SystemExit(3)"]
    with pytest.raises(MinkError, match=r"^the printer ended with status 3: no paper$"):
        ServerProcess("the printer", command)
    with pytest.raises(MinkError, match=r"^the printer does not start: "):
        ServerProcess("the printer", ["/nowhere/printer"])


@pytest.mark.slow
def test_two_servers_answer_the_same_requests(tiny_path: Path) -> None:
    options = ServerOptions(tiny_path, n_parallel=2, n_ctx=600, n_threads=1, gpu_layers="auto")
    with options.mink_serve() as server:
        other = server.process
        fields = request_fields(TopK(40), 1.0)
        one, two = time_servers([server], [1, 3], fields, tokens=4, rounds=1)
        with pytest.raises(MinkError, match=r"^mink-serve refused a request with status 400: .*temperature"):
            time_servers([server], [1], {"temperature": -1}, tokens=4, rounds=1)
    assert (one.clients, two.clients) == (1, 3)
    assert min(one.tokens_per_second, one.first_token_ms_p50, two.tokens_per_second) > 0
    assert not other.is_running()


@pytest.mark.slow
@pytest.mark.posix
def test_against_a_llama_server(bench: Callable[..., Finished], tiny_path: Path, tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o700)
    arguments = ["serve", "--model", tiny_path, "--against", program, "--clients", 2, "--tokens", 3]
    result = bench(*arguments, "--rounds", 2, "--sampler", "greedy", "--json")
    assert result.status == 0, result.stderr
    mink, llama = json.loads(result.stdout)
    assert (mink["server"], llama["server"], mink["clients"]) == ("mink-serve", "llama-server", 2)
    assert llama["throughput_ratio"] == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--against", "no-such-program"], "there is no program no-such-program: give the path of"),
        (
            ["--against", sys.executable, "--sampler", "min-k"],
            "llama-server has no min-k:tau=3: give another",
        ),
        (["--model", "parrot"], "unknown model 'parrot'"),
        (["--clients", "0"], "0 is not in the range 1<=x<=256"),
    ],
)
def test_bad_options_are_one_sentence(
    bench: Callable[..., Finished], arguments: list[str], complaint: str
) -> None:
    result = bench("serve", *arguments)
    assert (result.status, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert complaint in result.stderr
