"""Answers whose tokens are sampled inside llama.cpp's graph, and what is sampled on the host instead."""

import gc
from typing import Any

import pytest

from mink_local import load_model
from mink_local.errors import GenerationError
from mink_local.generation.model import Model
from mink_local.llama import backend_sampler
from mink_local.samplers import Greedy, MinK, Mirostat, TopNSigma
from tests.conftest import forget


def ask(model: Model, text: str = "Tell me a story about a cat.", **options: Any) -> tuple[str, list[int]]:
    """An answer and its k, with nothing in the KV cache: what is there changes the logits a little."""
    forget(model)
    options = {"temperature": 5.0, "seed": 3, "max_tokens": 12, **options}
    reply = model.chat([{"role": "user", "content": text}], **options)
    return "".join(reply), reply.k


@pytest.fixture(scope="module")
def on_backend() -> Model:
    return load_model("smollm2-135m", n_ctx=1024, backend_sampling=True, n_gpu_layers=0, n_threads=1)


@pytest.fixture(scope="module")
def on_host() -> Model:
    return load_model("smollm2-135m", n_ctx=1024, n_gpu_layers=0, n_threads=1)


@pytest.mark.slow
def test_a_seed_gives_one_text(on_backend: Model) -> None:
    long = "Remember this. " * 180  # more than one batch
    first = ask(on_backend, long)
    assert len(first[1]) == 12
    assert min(first[1]) >= 1
    assert ask(on_backend, long) == first
    assert ask(on_backend, sampler=MinK(300), seed=3) != ask(on_backend, sampler=MinK(300), seed=4)


@pytest.mark.slow
def test_greedy_writes_what_it_writes_on_the_host(on_backend: Model, on_host: Model) -> None:
    expected = ask(on_host, temperature=0)
    assert ask(on_backend, temperature=0) == expected
    assert ask(on_backend, sampler=Greedy(), temperature=3.0) == expected


def test_an_answer_goes_on_on_the_host_after_a_step_that_the_graph_cannot_decide(
    on_backend: Model, on_host: Model, caplog: pytest.LogCaptureFixture
) -> None:
    wide = MinK(tau=1e6)  # keeps more than the graph sorts, at every step
    assert ask(on_backend, sampler=wide) == ask(on_host, sampler=wide)
    assert len(caplog.records) == 1
    assert "step 1" in caplog.text


@pytest.mark.parametrize("sampler", [Mirostat(), TopNSigma()], ids=str)
def test_a_sampler_without_a_backend_form_runs_on_the_host_with_a_warning(
    on_backend: Model, on_host: Model, caplog: pytest.LogCaptureFixture, sampler: Any
) -> None:
    assert ask(on_backend, sampler=sampler) == ask(on_host, sampler=sampler)
    assert len(caplog.records) == 1
    assert str(sampler) in caplog.text


def test_a_device_without_an_operation_means_the_host(
    on_backend: Model, on_host: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(backend_sampler, "supported", lambda *_: False)
        assert ask(on_backend) == ask(on_host)
    assert len(caplog.records) == 1
    assert str(MinK()) in caplog.text


@pytest.mark.slow
def test_an_unfinished_answer_leaves_nothing_behind(on_backend: Model) -> None:
    expected = ask(on_backend)
    abandoned = on_backend.chat([{"role": "user", "content": "Hello"}], seed=1)
    next(abandoned)
    assert ask(on_backend) == expected
    with pytest.raises(GenerationError):
        list(abandoned)
    del abandoned
    gc.collect()
    assert ask(on_backend) == expected
