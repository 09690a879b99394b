"""Loading a model: how much of it goes where, and what happens if memory is short."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.generation import loading
from mink_local.generation.loading import describe_layers
from mink_local.generation.model import Model
from mink_local.llama.context import Context, Segment
from mink_local.llama.devices import gpus_in_words
from mink_local.llama.weights import Weights
from mink_local.models.gguf import Metadata
from mink_local.models.memory import Budget
from tests.support.python import output_of

HELLO = [{"role": "user", "content": "Hello"}]

# A process with 12 GiB, in which the CPU plays a GPU that holds so many layers: with more,
# llama.cpp is asked for a KV cache of 24 GB. What failed must be freed before the next attempt.
LIMITED = """
import gc, json, logging, resource, sys, weakref
from pathlib import Path
from mink_local.generation import loading
from mink_local.errors import ModelError
from mink_local.llama.context import Context, Segment
from mink_local.llama.weights import Weights

resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
loading.log.addHandler(handler)
for fits in (40, 8, -1):
    attempts, before = [], []
    said.clear()

    def load(layers, n_cpu_moe):
        gc.collect()
        assert all(weights() is None for weights in before)
        attempts.append(layers)
        weights = Weights(Path(sys.argv[1]))
        before.append(weakref.ref(weights))
        return weights, Context(weights, 64 if layers <= fits else 1 << 20, 1)

    try:
        layers, _, weights, context = loading.load_what_fits(load, 31)
        assert context.decode(Segment([1], 0))
        outcome = loading.describe_layers(layers, weights.n_layers)
    except ModelError as error:
        outcome = str(error)
    print(json.dumps([fits, attempts, outcome, said]))
"""


@pytest.mark.posix
def test_fewer_layers_where_memory_runs_out(smollm2_path: Path) -> None:
    lines = [json.loads(line) for line in output_of("-c", LIMITED, smollm2_path).splitlines()]
    assert [attempts for _, attempts, _, _ in lines] == [
        [31],
        [31, 23, 15, 7],
        [31, 23, 15, 7, 0],
    ]
    assert [outcome for _, _, outcome, _ in lines[:-1]] == [describe_layers(n, 30) for n in (31, 7)]
    assert "1048576" in lines[-1][2]
    for _, attempts, _, said in lines:
        assert len(said) == len(attempts) - 1
        for layers, fewer, message in zip(attempts, attempts[1:], said, strict=False):
            assert message.startswith(f"{layers} layers ")
            assert message.endswith(f" {fewer}")


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [1, 7, 30, 31])
def test_so_many_layers_on_a_gpu(smollm2_path: Path, layers: int) -> None:
    """The placement says how many, and the logits are those of the CPU, as far as number formats allow."""
    on_cpu = Weights(smollm2_path)
    prompt = on_cpu.tokenize("Robots were rare, and so", add_special=True, parse_special=False)

    def logits(weights: Weights) -> NDArray[np.float32]:
        context = Context(weights, 256, n_threads=1)
        assert context.decode(Segment(prompt, 0))
        row: NDArray[np.float32] = context.rows[-1].copy()
        return row

    with load_model(smollm2_path, n_ctx=256, n_gpu_layers=layers) as model:
        assert describe_layers(layers, on_cpu.n_layers, gpus_in_words()) in model.placement.where
        assert np.corrcoef(logits(model.weights), logits(on_cpu))[0, 1] > 0.995
        assert model.chat(HELLO, max_tokens=2).read()


def test_the_choice_is_shown_and_can_be_overridden(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tiny(n_ctx_train=16384))
    placement = load_model(path).placement
    assert placement.n_ctx == 16384
    assert re.match(r"on the CPU, .*GPU|on the GPU|on 127\.0\.0\.1:", str(placement)), "where, and why"
    assert load_model(path, n_ctx=512).placement.n_ctx == 512
    assert not caplog.messages
    monkeypatch.setattr(loading, "memory_budget", lambda **_: Budget(2_000_000))
    assert load_model(path).placement.n_ctx == 4096
    assert caplog.messages[0].startswith("tiny: ")


def test_a_format_that_only_llama_cpp_can_read(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> Metadata:
        raise ModelError(f"{path} is of an unknown type")

    monkeypatch.setattr(loading, "read_metadata", unreadable)
    loaded = load_model(str(tiny(n_ctx_train=8192)))
    assert loaded.n_ctx == 4096
    assert list(loaded.chat([{"role": "user", "content": "Hello"}], max_tokens=2, seed=1))


QUESTIONS = [[{"role": "user", "content": f"What is {i} times 12?"}] for i in range(8)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"n_ctx": 0}, "n_ctx"),
        ({"n_threads": 0}, "n_threads"),
        ({"n_threads": 100_000}, "n_threads"),
        ({"n_gpu_layers": -2}, "n_gpu_layers"),
        ({"n_gpu_layers": None}, "n_gpu_layers"),
        ({"tensor_split": 5}, "tensor_split"),
        ({"placement": "cpu"}, "placement"),
        ({"template_kwargs": "x"}, "template_kwargs"),
        ({"template_kwargs": {"tools": []}}, "tools"),
        ({"trust": "no"}, "trust"),
        ({"n_parallel": 0}, "n_parallel"),
        ({"n_parallel": 10**6}, "n_parallel"),
        ({"kv_type": "q9"}, "q9"),
        ({"kv_type": "q8_0", "flash_attn": False}, "flash"),
        ({"n_gpu_layer": 1}, "perhaps n_gpu_layers"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError if "perhaps" in named else ValueError, match=named):
        load_model("smollm2-135m", **options)


@pytest.mark.slow
def test_reserve() -> None:
    with load_model("smollm2-135m", n_ctx=256) as model:
        assert (model.n_ctx, model.n_parallel) == (256, 1)
        model.reserve(300, 8)
        assert 300 <= model.n_ctx < 600
        assert model.n_parallel == 8
        assert len(list(model.generate(QUESTIONS, max_tokens=3))) == 8
        model.reserve(10**9, 2)
        assert model.n_ctx == model.weights.n_ctx_train
        model.reserve(256, "auto")
        assert model.n_parallel == (loading.ON_GPU if model.weights.on_gpu else loading.ON_CPU)
        for wrong in ((0, 1), (256, 0), (256, 100_000)):
            with pytest.raises(ValueError, match="must be"):
                model.reserve(*wrong)
        assert model.chat(HELLO, max_tokens=2).read()


@pytest.mark.parametrize(
    ("fitting", "wanted", "possible"), [(10, 8, 8), (5, 8, 5), (0, 8, 1), (20, "auto", 5)]
)
def test_no_more_answers_at_a_time_than_memory_allows(
    smollm2: Model,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fitting: int,
    wanted: Any,
    possible: int,
) -> None:
    monkeypatch.setattr(loading, "caches_that_fit", lambda *_: fitting)
    context = loading.make_context(smollm2.weights, 256, wanted, n_threads=1)
    assert context.n_seq == possible
    warned = [f"low memory: generating {possible} answers at a time instead of {wanted}"]
    assert caplog.messages == (warned if possible != wanted and wanted != "auto" else [])


def test_a_context_that_fails_leaves_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Context.__init__

    def refuse(self: Context, weights: Any, n_ctx: int, *rest: Any, **options: Any) -> None:
        if n_ctx > 256:
            raise ModelError("no memory")
        init(self, weights, n_ctx, *rest, **options)

    with load_model("smollm2-135m", n_ctx=256) as model:
        monkeypatch.setattr(Context, "__init__", refuse)
        with pytest.raises(ModelError, match="no memory"):
            model.reserve(2048, 2)
        assert (model.n_ctx, model.n_parallel) == (256, 1)
        assert model.chat(HELLO, max_tokens=2).read()
