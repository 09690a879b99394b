"""`mink-bench`: what it measures and prints. How long things take is not for a test."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from mink_local.bench.batch import time_batches
from mink_local.bench.decode import (
    BackendStepper,
    HostStepper,
    LlamaCppStepper,
    Stepper,
    evaluate,
    time_decoding,
)
from mink_local.bench.sampler import LLAMA_CPP, PROMPT, logits_of_answer
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.slots import Slot
from mink_local.llama.backend_sampler import BackendSampler
from mink_local.samplers import SAMPLERS, Greedy, MinK, Mirostat
from mink_local.version import __version__
from tests.bench.conftest import Finished


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "logits.npz"
    np.savez(path, logits=np.random.default_rng(0).normal(0, 3, (3, 5000)).astype(np.float32))
    return path


def test_it_tells_its_version(bench: Callable[..., Finished]) -> None:
    assert bench("--version") == (0, f"mink-bench, version {__version__}\n", "")


def test_every_method_is_timed_in_every_form_it_has(bench: Callable[..., Finished], npz: Path) -> None:
    result = bench("sampler", "--logits", npz, "--rounds", 3, "--json")
    assert result.status == 0, result.stderr
    costs = {cost["method"]: cost for cost in json.loads(result.stdout)}
    assert list(costs) == ["np.max", *(str(sampler()) for sampler in SAMPLERS.values()), "np.sort"]
    for sampler in SAMPLERS.values():
        cost = costs[str(sampler())]
        assert cost["vocabulary"] == 5000
        # With temperature and sampling it cannot be much faster than without; 3 is for noise.
        assert 0 < cost["cut_us"] < 3 * cost["step_us"]
        assert cost["processor_us"] > 0
        assert (cost["llama_cpp_us"] is not None) == (sampler in LLAMA_CPP)


def test_json_of_several_files_is_one_list(bench: Callable[..., Finished], npz: Path) -> None:
    files = ["--logits", npz, "--logits", npz]
    result = bench("sampler", *files, "--rounds", 1, "--sampler", "greedy", "--json")
    methods = [cost["method"] for cost in json.loads(result.stdout)]
    assert methods == 2 * ["np.max", "greedy", "np.sort"]


def test_table_on_given_logits(bench: Callable[..., Finished], npz: Path) -> None:
    result = bench("sampler", "--logits", npz, "--rounds", 1, "--sampler", "min-k", "--sampler", "top-k:k=5")
    assert result.status == 0, result.stderr
    assert "5000" in result.stdout
    assert "min-k:tau=3" in result.stdout
    assert "top-k:k=5" in result.stdout
    assert "mirostat" not in result.stdout


def test_logits_are_those_of_the_steps_of_an_answer(smollm2: Model) -> None:
    logits = logits_of_answer(smollm2, 5)
    assert logits.shape == (5, 49152)
    assert len({row.tobytes() for row in logits}) == 5
    # From them the same sampler keeps as many candidates as it did while the answer was generated.
    messages = [{"role": "user", "content": PROMPT}]
    reply = smollm2.chat(messages, sampler=MinK(), seed=1, max_tokens=5, ignore_eos=True)
    reply.read()
    assert [MinK().cutoff(row) for row in logits] == reply.k


def test_decoding_is_compared_with_greedy(bench: Callable[..., Finished], tiny_path: Path) -> None:
    arguments = ["decode", "--model", tiny_path, "--tokens", 3, "--rounds", 6, "--sampler", "min-k"]
    forms = ["--sampler", "mirostat", "--form", "host", "--form", "backend", "--json"]
    result = bench(*arguments, *forms)
    assert result.status == 0, result.stderr
    speeds = {(speed["method"], speed["form"]): speed for speed in json.loads(result.stdout)}
    greedy, min_k, mirostat = str(Greedy()), str(MinK()), str(Mirostat())
    assert list(speeds) == [
        (greedy, "llama.cpp"),
        (greedy, "host"),
        (min_k, "host"),
        (mirostat, "host"),
        (greedy, "backend"),
        (min_k, "backend"),
    ]
    for speed in speeds.values():
        assert speed["low"] <= speed["slowdown_percent"] <= speed["high"]
        assert 0 < speed["sampling_us"] < 1000 * speed["ms_per_token"]
    table = bench(*arguments)
    assert table.stdout.count("min-k") == 1


def test_what_a_gpu_still_computes_is_not_sampling_time(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that is done 30 ms after llama.cpp's return makes the step longer, and not the sampling."""

    def late(context: Any) -> None:
        time.sleep(0.03)
        synchronize(context)

    synchronize = C.llama_synchronize
    monkeypatch.setattr(C, "llama_synchronize", late)
    with load_model(str(tiny_path), n_ctx=128) as model:
        speeds = time_decoding(model, [], ["host", "backend"], 1.0, tokens=3, rounds=2)
    assert len(speeds) == 3
    for speed in speeds:
        assert speed["ms_per_token"] > 30
        assert speed["sampling_us"] < 30_000


def test_steppers_of_a_method_sample_the_same_tokens(tiny_path: Path) -> None:
    def steps(model: Model, form: str) -> list[int]:
        model.forget()
        context = model.engine.context
        slot: Slot[None] = Slot(context, 0)
        host = HostStepper(Greedy(), 1.0, 1, model.weights.n_vocab)
        if form == "backend":
            backend = BackendSampler(Greedy(), 1.0, 1, context)
            assert backend.attach()
            stepper: Stepper = BackendStepper(backend, host, slot)
        else:
            stepper = host if form == "host" else LlamaCppStepper(Greedy(), 1.0, 1)
        slot.queue(model.prompt_tokens("Once upon a time"))
        tokens = []
        for _ in range(5):
            evaluate(context, slot)
            tokens.append(stepper.next(context))
            slot.push(tokens[-1])
        context.detach()
        slot.truncate(0)
        return tokens

    with load_model(str(tiny_path), n_ctx=64) as model:
        assert steps(model, "host") == steps(model, "backend") == steps(model, "llama.cpp")


def test_as_many_answers_are_generated_as_are_asked_for(tiny_path: Path) -> None:
    with load_model(str(tiny_path), n_ctx=256, n_parallel=1) as model:
        one, two = time_batches(model, [1, 2], MinK(), 1.0, tokens=4, rounds=2)
    assert (one["answers"], two["answers"]) == (1, 2)
    assert one["speedup"] == 1
    assert min(one["share_of_bare"], two["share_of_bare"], two["speedup"]) > 0


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["sampler", "--sampler", "parrot"], 2, "unknown sampler 'parrot': the samplers are min-k"),
        (["sampler", "--temp", "0"], 2, "0.0 is not in the range x>0"),
        (["sampler", "--logits", __file__], 1, "is not an .npz file with an array named logits"),
        (["sampler", "--logits", "no.npz"], 2, "'no.npz' does not exist"),
        (["decode", "--rounds", "1"], 2, "1 is not in the range x>=6"),
        (["decode", "--form", "parrot"], 2, "'parrot' is not one of 'host', 'backend', 'llama.cpp'"),
        (["decode", "--model", "parrot"], 2, "unknown model 'parrot'"),
        (["batch", "--parallel", "257"], 2, "257 is not in the range 1<=x<=256"),
        (["parrot"], 2, "No such command 'parrot'"),
    ],
)
def test_bad_input_is_one_sentence(
    bench: Callable[..., Finished], arguments: list[str], status: int, complaint: str
) -> None:
    result = bench(*arguments)
    assert (result.status, result.stdout) == (status, "")
    assert result.stderr.startswith("mink-bench: ")
    assert len(result.stderr.splitlines()) == 1
    assert complaint in result.stderr


def test_logits_of_another_shape(bench: Callable[..., Finished], tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", logits=np.zeros(5))
    result = bench("sampler", "--logits", tmp_path / "x.npz")
    assert (result.status, result.stderr.count("\n")) == (1, 1)
    assert "must have the shape (rows, V), not (5,)" in result.stderr
