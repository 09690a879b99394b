"""Backend sampling: its trial, the remembered verdict, and the answers that are sampled in the graph."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import GenerationError
from mink_local.generation import backend
from mink_local.generation.backend import BackendSampling, TrialResult, differences, form_of, run_trial
from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.llama import backend_sampler
from mink_local.llama.weights import Weights
from mink_local.samplers import Greedy, MinK, MinP, Mirostat, Sampler, TopK, TopNSigma, TopP
from tests.conftest import forget
from tests.support.python import output_of
from tests.support.rpc import RpcServer

FORMS: list[Sampler] = [
    *(MinK(tau, floor) for tau in (0.0, 3.0) for floor in (0.0, 1.0)),
    Greedy(),
    TopK(),
    *(kind(order=order) for kind in (TopP, MinP) for order in ("temperature-first", "temperature-last")),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_cpu_passes(tiny_path: Path, form: Sampler) -> None:
    verdict = run_trial(Weights(tiny_path), form, 1)
    assert verdict.wrong == ""
    assert min(verdict.backend_ms, verdict.host_ms) > 0


def test_a_form_is_tried_with_usual_parameters() -> None:
    assert {form_of(form) for form in FORMS} == set(FORMS)
    assert form_of(MinK(1e6)) == MinK()
    assert form_of(MinK(0, 7.0)) == MinK(0, 1.0)
    assert form_of(TopK(5000)) == TopK()
    assert form_of(MinP(0.5, "temperature-last")) == MinP(order="temperature-last")


def keep_too_many(sampler: MinK, row: Any, min_k: Any = backend_sampler.min_k) -> Any:
    """A device on which Min-k uses another tau."""
    return min_k(MinK(100 * sampler.tau), row)


@pytest.fixture
def wrong_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_sampler, "min_k", keep_too_many)


@pytest.mark.usefixtures("wrong_device")
def test_other_candidates_fail(tiny_path: Path) -> None:
    assert "of 48 steps" in run_trial(Weights(tiny_path), MinK(), 1).wrong


@pytest.mark.parametrize(("seconds", "steps"), [(10.0, 48), (0.0, 6)])
def test_steps_that_are_never_decided_fail(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int
) -> None:
    """A slow model takes fewer of them."""
    monkeypatch.setattr(backend, "_SECONDS", seconds)
    monkeypatch.setattr(backend_sampler, "_count", lambda row, *_: row.sum().scale(0))
    assert f"{steps} of {steps} steps" in run_trial(Weights(tiny_path), TopK(), 1).wrong


@pytest.mark.parametrize(("choose", "is_wrong"), [
    (lambda ids, p, rng: rng.choice(ids, p=p), False),
    (lambda ids, p, rng: ids[0], True),  # noqa: ARG005
    (lambda ids, p, rng: ids[-1], True),  # noqa: ARG005
    (lambda ids, p, rng: rng.choice(ids), True),  # noqa: ARG005
])  # fmt: skip
def test_tokens_must_follow_the_distribution(choose: Callable[..., int], is_wrong: bool) -> None:
    rng = np.random.default_rng(0)
    rows: list[NDArray[np.float32]] = []
    sampled: list[tuple[int | None, int]] = []
    for _ in range(48):
        logits = rng.normal(scale=6, size=500).astype(np.float32)
        ids, kept = TopP().candidates(logits, 2.0)
        p = np.exp((kept - kept[0]).astype(np.float64) / 2)
        rows.append(logits)
        sampled.append((int(choose(ids, p / p.sum(), rng)), ids.size))
    assert bool(differences(TopP(), rows, sampled)) == is_wrong


@pytest.mark.parametrize(
    ("verdict", "is_requested", "named"),
    [
        (TrialResult("", 3.04, 2.96), True, ""),
        (TrialResult("", 2.96, 3.04), False, ""),
        (TrialResult("", 3.04, 2.96), False, "3.04 .* 2.96"),
        (TrialResult("all", 1, 2), True, "all"),
    ],
)
def test_a_device_must_be_right_and_perhaps_faster(
    tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    verdict: TrialResult,
    is_requested: bool,
    named: str,
) -> None:
    monkeypatch.setattr(backend, "run_trial", lambda *_: verdict)
    obstacle = BackendSampling(Weights(tiny()), 1, is_requested).obstacle(MinK(), needs_logits=False)
    assert bool(obstacle) == bool(named)
    assert re.search(named, obstacle)


def load(path: Path, backend_sampling: bool = True) -> Model:
    return load_model(str(path), n_ctx=256, n_threads=1, n_gpu_layers=0, backend_sampling=backend_sampling)


@pytest.mark.usefixtures("wrong_device")
@pytest.mark.slow
def test_a_device_that_is_wrong_is_not_used(
    tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny()
    with load(path) as model, load(path, backend_sampling=False) as host:
        assert answer(model) == answer(host)
        together, alone = (next(one.generate(["Hello"], seed=1, max_tokens=6)) for one in (model, host))
        assert together.k == alone.k
        said = model.sampling(SamplingParams())
    [warning] = caplog.messages
    assert said == f"on the host: {warning}"


def test_where_tokens_are_sampled(tiny: Callable[..., Path]) -> None:
    path = tiny()
    with load(path) as model:
        assert not model.sampling(SamplingParams()).startswith("on the host")
        said = model.sampling(SamplingParams(sampler=Mirostat()))
        assert said.startswith(f"on the host: {Mirostat()}")
        assert model.sampling(SamplingParams(logprobs=1)).startswith("on the host: ")
    with load_model(str(path), n_ctx=256, n_gpu_layers=0) as model:
        assert model.sampling(SamplingParams()).startswith("on the host: ")


@pytest.mark.gpu
def test_no_warning_of_what_nobody_asked_for(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(backend, "run_trial", lambda *_: TrialResult("", 1.0, 2.0))
    hello = [{"role": "user", "content": "Hello"}]
    with load_model(tiny(), n_ctx=256, n_gpu_layers=-1) as model:
        assert answer(model, sampler=Mirostat())
        assert model.chat(hello, logprobs=1, max_tokens=2).read()
        assert model.chat(hello, watch=lambda _: None, max_tokens=2).read()
    assert not caplog.messages


@pytest.mark.slow
def test_a_verdict_is_remembered(tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """For the file, the device, the version and the form; a damaged record counts as none."""
    path, tried = tiny(), []

    def trial(_: Weights, form: Sampler, __: int) -> TrialResult:
        tried.append(form)
        return TrialResult("")

    def forms_tried(*samplers: Sampler, on_gpu: bool = False) -> list[Sampler]:
        tried.clear()
        for sampler in samplers:
            weights = Weights(path)
            weights.on_gpu = on_gpu
            assert not BackendSampling(weights, 1, is_requested=True).obstacle(sampler, needs_logits=False)
        return tried

    monkeypatch.setattr(backend, "run_trial", trial)
    assert forms_tried(MinK(), MinK(5.0), TopK(3), TopK(4)) == [MinK(), TopK()]
    os.utime(path, (1, 1))  # another file
    assert forms_tried(MinK(), MinK()) == [MinK()]
    monkeypatch.setattr(backend, "gpu_names", lambda: ["CUDA: Parrot"])
    assert forms_tried(MinK(), MinK(), on_gpu=True) == [MinK()]
    monkeypatch.setattr(llama_cpp, "__version__", "0.0.0")
    assert forms_tried(MinK(), MinK()) == [MinK()]
    for damaged in ("[", "[]", '{"a": 1}'):
        backend._record().write_text(damaged, encoding="utf-8")
        assert forms_tried(MinK(), MinK()) == [MinK()]


def test_what_cannot_be_attached_is_not_remembered(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = BackendSampling(Weights(tiny()), 1, is_requested=True)
    monkeypatch.setattr(backend_sampler, "supported", lambda *_: False)
    assert sampling.obstacle(MinK(), needs_logits=False)
    assert not backend._record().exists()


ON_RPC = """
import sys
from mink_local import load_model
from mink_local.errors import GenerationError
from mink_local.generation.backend import run_trial
from tests.generation.test_backend import FORMS
with load_model(sys.argv[2], n_ctx=256, rpc=[sys.argv[1]], n_gpu_layers=-1) as model:
    assert model.weights.on_gpu
    print([run_trial(model.weights, form, 1).wrong for form in FORMS[::3]])
"""


@pytest.mark.slow
def test_a_device_of_another_machine_passes(smollm2_path: Path) -> None:
    with RpcServer() as server:
        root = Path(__file__).parents[2]
        printed = output_of("-c", ON_RPC, server.address, smollm2_path, cwd=root)
    assert printed == f"{[''] * len(FORMS[::3])}\n"


# Answers whose tokens are sampled in the graph, and what is sampled on the host instead


def answer(model: Model, text: str = "Tell me a story about a cat.", **options: Any) -> tuple[str, list[int]]:
    """An answer and its k from an empty KV cache, since cached tokens change the logits a little."""
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
    first = answer(on_backend, long)
    assert len(first[1]) == 12
    assert min(first[1]) >= 1
    assert answer(on_backend, long) == first
    assert answer(on_backend, sampler=MinK(300), seed=3) != answer(on_backend, sampler=MinK(300), seed=4)


@pytest.mark.slow
def test_greedy_writes_what_it_writes_on_the_host(on_backend: Model, on_host: Model) -> None:
    expected = answer(on_host, temperature=0)
    assert answer(on_backend, temperature=0) == expected
    assert answer(on_backend, sampler=Greedy(), temperature=3.0) == expected


@pytest.mark.parametrize(
    ("sampler", "named"),
    [(MinK(tau=1e6), "step 1"), *((sampler, str(sampler)) for sampler in (Mirostat(), TopNSigma()))],
    ids=str,
)
def test_what_the_graph_cannot_sample_is_sampled_on_the_host_with_a_warning(
    on_backend: Model, on_host: Model, caplog: pytest.LogCaptureFixture, sampler: Sampler, named: str
) -> None:
    """A Min-k that keeps more than the graph sorts, at every step, and samplers without a backend form."""
    assert answer(on_backend, sampler=sampler) == answer(on_host, sampler=sampler)
    assert len(caplog.records) == 1
    assert named in caplog.text


def test_a_device_without_an_operation_means_the_host(
    on_backend: Model, on_host: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(backend_sampler, "supported", lambda *_: False)
        assert answer(on_backend) == answer(on_host)
    assert len(caplog.records) == 1
    assert str(MinK()) in caplog.text


@pytest.mark.slow
def test_an_unfinished_answer_leaves_nothing_behind(on_backend: Model) -> None:
    expected = answer(on_backend)
    abandoned = on_backend.chat("Hello", seed=1)
    next(abandoned)
    assert answer(on_backend) == expected
    with pytest.raises(GenerationError):
        list(abandoned)
