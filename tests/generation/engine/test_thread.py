"""The model's thread: clients of many threads at once, jobs between answers, waiting, Ctrl-C, the end."""

import _thread
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.generation.model import Model
from mink_local.generation.replies import News
from mink_local.generation.request import Request, SamplingParams
from mink_local.interrupts import on_interrupt
from tests.conftest import held
from tests.support.http import until

PROMPTS = ["One, two,", "Who?", "Why? " * 5, "word " * 40, "In a village", "Say hello."]
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


def test_an_error_while_waiting_is_raised() -> None:
    """Also while nothing comes; what is there comes first."""
    arrived: list[str] = []
    calls: list[float] = []

    def waiting() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise RuntimeError("the window is gone")

    with pytest.raises(RuntimeError, match="window"):
        News().get(lambda: next(iter(arrived), None), waiting)
    arrived.append("first")
    assert News().get(lambda: next(iter(arrived), None), waiting) == "first"


def test_ctrl_c_ends_an_answer_as_the_program_wants(model: Model) -> None:
    """With KeyboardInterrupt, or without where it is handled; the answer is stopped in both cases."""
    reply = model.chat("Hi", **GREEDY)
    with held(model):
        threading.Timer(0.1, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            reply.read()
    handled = model.chat("Hi", **GREEDY)
    with on_interrupt(handled.interrupt):
        _thread.interrupt_main()
        handled.read()
    model.forget()
    assert handled.finish_reason == "interrupted"
    assert reply.finish_reason == "interrupted"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.skipif(not psutil.LINUX, reason="others have no OpenMP")
def test_an_idle_model_keeps_no_threads_for_its_batches(tiny_path: Path) -> None:
    """Beside them, OpenMP would have those of another model wait asleep."""

    n_threads, counts = psutil.Process().num_threads, list[int]()
    with load_model(tiny_path, n_ctx=256, n_threads=2, n_gpu_layers=0) as model:
        [*model.answer_all([Request("Hi", watch=lambda _: counts.append(n_threads()))])]
        until(lambda: n_threads() < counts[-1])


@pytest.mark.parametrize("tells_late", [False, True])
def test_a_job_waits_for_the_answers_before_it_and_not_for_those_after(
    model: Model, tells_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.core.engine, "tells_late", tells_late)
    before = model.chat("Hi", max_tokens=50, **GREEDY)
    with ThreadPoolExecutor(1) as other:
        job = other.submit(
            model.core.thread.call_when_idle, lambda: (before.finish_reason, model.core.engine.n_busy)
        )
        while not job.running():
            time.sleep(0.001)
        after = model.chat("Hi", max_tokens=50, **GREEDY)
        assert job.result() == ("length", 0)
        assert after.read()


def test_a_job_that_fails_is_only_its_callers_problem(model: Model) -> None:
    reply = model.chat("Hi", max_tokens=20, **GREEDY)
    with pytest.raises(ZeroDivisionError):
        model.core.thread.call_when_idle(lambda: 1 / 0)
    with pytest.raises((ModelError, ValueError)):
        model.reserve(0)
    assert reply.read()
    assert (reply.finish_reason, model.n_parallel) == ("length", 4)


@pytest.mark.parametrize("tells_late", [False, True])
def test_a_listener_that_fails_costs_others_nothing(
    model: Model, monkeypatch: pytest.MonkeyPatch, tells_late: bool
) -> None:
    """Neither text nor the end of an answer; its own answers end with its error."""
    monkeypatch.setattr(model.core.engine, "tells_late", tells_late)
    heard: list[Any] = []

    def failing(n_calls: int) -> Callable[[object], object]:
        calls = iter(range(n_calls))
        return lambda _: next(calls, None) is None and 1 / 0

    params = SamplingParams(max_tokens=6, **GREEDY)
    good = [model.core.engine.prepare(Request(prompt, params)) for prompt in PROMPTS[:2]]
    bad = [model.core.engine.prepare(Request("Who?", replace(params, logprobs=0))) for _ in range(10)]
    with held(model):
        for i in range(5):
            model.core.thread.generate(bad[2 * i : 2 * i + 2], failing(i))
        model.core.thread.generate(good, heard.extend)
    model.forget()
    for decoding in good:
        pieces = [piece for answer, piece in heard if answer is decoding.answer]
        assert "".join(pieces) == decoding.answer.text
        assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["length"]
    assert {type(decoding.answer.error) for decoding in bad} == {ZeroDivisionError}


def test_a_context_that_shrinks_ends_what_no_longer_fits(tiny_path: Path) -> None:
    with load_model(tiny_path, n_ctx=1024, trust=True) as model:
        first = model.chat("Hi", max_tokens=100, **GREEDY)
        with ThreadPoolExecutor(1) as other:
            shrunk = other.submit(model.reserve, 256)
            while not shrunk.running():
                time.sleep(0.001)
            replies = [first, model.chat("word " * 300), model.chat("Hi", **GREEDY)]
            shrunk.result()
        texts = [reply.read() for reply in replies]
        assert texts[0]
        reasons = [reply.finish_reason for reply in replies]
        assert reasons in (["length", "overflow", "length"], ["length", "length", "length"])
        assert replies[-1].prompt_tokens + replies[-1].n_tokens <= 1024


def test_the_prompt_of_a_reply_that_waits_is_unread(model: Model) -> None:
    with held(model):
        replies = [model.chat("Hi", max_tokens=1, **GREEDY) for _ in range(6)]
        assert [model.core.engine.unevaluated(reply.answer) for reply in replies] == [
            reply.prompt_tokens for reply in replies
        ]
    for reply in replies:
        reply.read()
        assert model.core.engine.unevaluated(reply.answer) == 0
