"""How much memory a model takes and what of it goes where: by hand, and against llama.cpp's own log."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.generation import loading
from mink_local.llama.context import Context
from mink_local.llama.weights import Weights
from mink_local.models.gguf import Array, Metadata, Tensor, read_metadata
from mink_local.models.memory import (
    Budget,
    Footprint,
    MemoryNeed,
    Usage,
    choose_placement,
    kv_bytes_per_layer,
    kv_bytes_per_token,
)
from tests.support.tiny import Shape

MB = 1_000_000


def model(layers: int = 4, tied: bool = False, n_ctx_train: int = 131072, **keys: Any) -> Metadata:
    """A model of 10 MB embeddings, 10 MB output unless tied, 20 MB a layer, 1024 bytes of KV cache for each
    token and layer: 2 KV heads of 128 dimensions, keys and values, in float16."""
    metadata = {
        "block_count": layers,
        "context_length": n_ctx_train,
        "embedding_length": 512,
        "feed_forward_length": 1024,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        **keys,
    }
    tensors = [Tensor("token_embd.weight", "F16", 5 * MB, 10 * MB)]
    tensors += [Tensor(f"blk.{i}.attn_k.weight", "F16", 10 * MB, 20 * MB) for i in range(layers)]
    if not tied:
        tensors.append(Tensor("output.weight", "F16", 5 * MB, 10 * MB))
    return Metadata(
        Path("model.gguf"),
        3,
        {"general.architecture": "x", **{f"x.{key}": value for key, value in metadata.items()}},
        tuple(tensors),
        sum(tensor.n_bytes for tensor in tensors),
    )


# 512 tokens of a batch: 2 · 1024 hidden and 8 · 512 activations in float32, and the mask of 4096 in float16.
COMPUTE = 512 * (2 * 1024 + 8 * 512) * 4 + 512 * 4096 * 2
KV = 4096 * 1024  # of one layer


def test_weights_cache_and_compute_by_hand() -> None:
    assert Footprint(model()).need(4096) == MemoryNeed(Usage(), Usage(100 * MB, 4 * KV, COMPUTE))


@pytest.mark.parametrize(("layers", "gpu", "cpu"), [
    (1, (10, 0), (90, 4)),  # the output goes first
    (2, (30, 1), (70, 3)),  # then the last layer
    (4, (70, 3), (30, 1)),
    (5, (90, 4), (10, 0)),  # the embeddings stay
])  # fmt: skip
def test_what_goes_to_the_gpu(layers: int, gpu: tuple[int, int], cpu: tuple[int, int]) -> None:
    """Megabytes of weights and layers of KV cache, as llama.cpp shares them out."""
    need = Footprint(model()).need(4096, 1, layers)
    assert (need.gpu.weights, need.gpu.kv) == (gpu[0] * MB, gpu[1] * KV)
    assert (need.cpu.weights, need.cpu.kv) == (cpu[0] * MB, cpu[1] * KV)


def test_tied_embeddings_are_copied_to_the_gpu() -> None:
    footprint = Footprint(model(tied=True))
    assert footprint.need(4096).cpu.weights == 90 * MB
    need = footprint.need(4096, 1, 5)
    assert (need.gpu.weights, need.cpu.weights) == (90 * MB, 10 * MB)


def test_sequences_are_rounded_up_each() -> None:
    """Three sequences of 300 tokens are three of 512, as llama.cpp has it."""
    assert Footprint(model()).need(900, 3).cpu.kv == 3 * 512 * 4 * 1024


@pytest.mark.parametrize(("keys", "per_layer"), [
    ({}, [1024] * 4),
    ({"attention.head_count_kv": 4}, [2048] * 4),
    ({"attention.key_length": 64}, [2 * (64 + 128) * 2] * 4),
    ({"attention.key_length": 64, "attention.value_length": 32}, [2 * (64 + 32) * 2] * 4),
    ({"attention.head_count_kv": Array(4, (2, 1, 0, 2))}, [1024, 512, 0, 1024]),
    ({"attention.shared_kv_layers": 1}, [1024, 1024, 1024, 0]),
    ({"attention.key_length": 576, "attention.head_count_kv": 1, "attention.key_length_mla": 9}, [1152] * 4),
])  # fmt: skip
def test_kv_cache_of_a_layer(keys: dict[str, Any], per_layer: list[int]) -> None:
    header = model(**keys)
    assert kv_bytes_per_layer(header) == per_layer
    assert kv_bytes_per_token(header) == sum(per_layer)


def test_recurrent_layers_have_no_kv_cache() -> None:
    header = model()
    tensors = [Tensor("blk.1.ssm_a", "F32", 1, 4), *(t for t in header.tensors if t.layer != 1)]
    hybrid = Metadata(header.path, 3, header.metadata, tuple(tensors), 0)
    assert kv_bytes_per_layer(hybrid) == [1024, 0, 1024, 1024]


ROOMY = 64_000 * MB
ONE_LAYER = 20 * MB + KV


@pytest.mark.parametrize(("vram", "layers"), [
    (0, 0),
    (10 * MB + COMPUTE - 1, 0),
    (10 * MB + COMPUTE, 1),
    (10 * MB + COMPUTE + 2 * ONE_LAYER - 1, 2),
    (10 * MB + COMPUTE + 2 * ONE_LAYER, 3),
    (10 * MB + COMPUTE + 4 * ONE_LAYER, 5),
])  # fmt: skip
def test_as_many_layers_as_the_gpu_holds(vram: int, layers: int) -> None:
    assert choose_placement(model(), Budget(ROOMY, vram), n_ctx=4096).n_gpu_layers == layers


@pytest.mark.parametrize(("asked", "layers"), [(-1, 5), (0, 0), (3, 3), (99, 5)])
def test_layers_that_were_asked_for(asked: int, layers: int) -> None:
    assert choose_placement(model(), Budget(ROOMY, 0), n_gpu_layers=asked).n_gpu_layers == layers


@pytest.mark.parametrize(("room", "options", "n_ctx"), [
    # Each token takes 4096 bytes: 8192 take 33.6 MB, 16384 67.1, 32768 134.2; the weights take 100.
    (Budget(ROOMY), {}, 32768),
    (Budget(100 * MB + 16 * 134_217_728), {}, 32768),
    (Budget(100 * MB + 16 * 134_217_728 - 1), {}, 16384),
    (Budget(1000 * MB), {}, 8192),
    (Budget(600 * MB), {}, 4096),
    (Budget(ROOMY), {"n_ctx": 300}, 300),
    (Budget(ROOMY), {"n_parallel": 4}, 16384),  # 4096 each
    (Budget(ROOMY), {"n_parallel": 4, "n_ctx": 1000}, 1000),
    # 4096 tokens take 133.6 MB in all, 2048 take 123.1, 512 take 115.2.
    (Budget(130 * MB), {}, 2048),
    (Budget(116 * MB), {}, 512),
    (Budget(50 * MB), {}, 4096),  # hopeless: then at least not short
    # With a GPU a longer context must not drive a layer off it.
    (Budget(ROOMY, 90 * MB + COMPUTE + 28672 * 1024 + 4 * 32768 * 1024), {}, 32768),
    (Budget(ROOMY, 90 * MB + COMPUTE + 28672 * 1024 + 4 * 32768 * 1024 - 1), {}, 16384),
    (Budget(ROOMY, 60 * MB), {}, 8192),  # two layers either way
])  # fmt: skip
def test_the_context(room: Budget, options: dict[str, int], n_ctx: int) -> None:
    assert choose_placement(model(), room, **options).n_ctx == n_ctx


def test_the_context_is_at_most_what_the_model_was_trained_on() -> None:
    assert choose_placement(model(n_ctx_train=2048), Budget(ROOMY)).n_ctx == 2048
    assert choose_placement(model(n_ctx_train=2048), Budget(ROOMY), n_ctx=5000).n_ctx == 2048
    assert choose_placement(model(n_ctx_train=2048), Budget(ROOMY), n_parallel=2, n_ctx=5000).n_ctx == 4096
    assert choose_placement(model(n_ctx_train=6000), Budget(ROOMY)).n_ctx == 6000


def test_too_little_memory_is_said() -> None:
    warning = choose_placement(model(), Budget(50 * MB)).warning or ""
    assert warning.startswith("it takes about 0.1 GB of memory and 0.1 GB are free")
    assert choose_placement(model(), Budget(200 * MB)).warning is None
    assert choose_placement(model(), Budget(50 * MB, ROOMY)).warning is None  # 10 MB stay here


def _models(tiny: Callable[..., Path], smollm2_path: Path) -> dict[str, Path]:
    qwen = Shape("qwen3", layers=3, width=128, feed_forward=256, heads=4, heads_kv=2, head_width=64)
    return {
        "smollm2": smollm2_path,
        "llama": tiny("llama.gguf", shape=Shape(layers=2, tied=False)),
        "qwen3": tiny("qwen3.gguf", shape=qwen),
    }


def test_against_llama_cpps_own_log(
    tiny: Callable[..., Path], smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Weights and KV cache to the 0.01 MiB that it logs; the compute buffer is an upper bound."""
    for name, path in _models(tiny, smollm2_path).items():
        footprint = Footprint(read_metadata(path))
        for n_ctx in (300, 2048):
            Context(Weights(path, verbose=True), n_ctx, 1)
            logged = capsys.readouterr().err

            def mib(pattern: str, log: str = logged) -> float:
                match = re.search(pattern + r" *= *([\d.]+) MiB", log)
                assert match, log
                return float(match[1])

            need = footprint.need(n_ctx).cpu
            assert mib("file size  ") == pytest.approx(need.weights / 2**20, abs=0.006), name
            assert mib("llama_kv_cache: size") == pytest.approx(need.kv / 2**20, abs=0.006), name
            compute = mib("compute buffer size") + mib("output buffer size")
            assert compute - 0.02 <= need.compute / 2**20 < compute + 25, name


# A process with 12 GiB, in which a GPU with room for so many layers is played on the CPU: with more,
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

    def load(layers):
        gc.collect()
        assert all(weights() is None for weights in before)
        attempts.append(layers)
        weights = Weights(Path(sys.argv[1]))
        before.append(weakref.ref(weights))
        return weights, Context(weights, 64 if layers <= fits else 1 << 20, 1)

    try:
        layers, weights, context = loading._load_what_fits(load, 31)
        assert context.decode(Segment([1], 0))
        outcome = loading._placement(layers, weights.n_layers)
    except ModelError as error:
        outcome = str(error)
    print(json.dumps([fits, attempts, outcome, said]))
"""


def test_fewer_layers_where_memory_runs_out(smollm2_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(smollm2_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    lines = [json.loads(line) for line in child.stdout.splitlines()]
    assert [attempts for _, attempts, _, _ in lines] == [
        [31],
        [31, 23, 15, 7],
        [31, 23, 15, 7, 0],
    ]
    assert [outcome for _, _, outcome, _ in lines[:-1]] == [
        "on the GPU, every layer",
        "on the GPU with 7 of 31 layers, on the CPU with the rest",
    ]
    assert lines[-1][2].startswith("no context of 1 x 1048576 tokens")
    for _, attempts, _, said in lines:
        assert len(said) == len(attempts) - 1
        for layers, fewer, message in zip(attempts, attempts[1:], said, strict=False):
            assert message.startswith(f"{layers} layers do not fit the GPU (no context of")
            assert message.endswith(f": trying {fewer}")


def test_the_choice_is_shown_and_can_be_overridden(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = str(tiny(n_ctx_train=16384))
    assert load_model(path).placement.endswith("with a context of 16384 tokens")
    assert load_model(path, n_ctx=512).placement.endswith("with a context of 512 tokens")
    assert not caplog.messages
    monkeypatch.setattr(loading, "memory_budget", lambda: Budget(2 * MB))
    assert load_model(path).placement.endswith("with a context of 4096 tokens")
    assert caplog.messages[0].startswith("tiny: it takes about 0.0 GB of memory and 0.0 GB are free")


def test_a_header_that_only_llama_cpp_can_read(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> Metadata:
        raise ModelError(f"{path} is of an unknown type")

    monkeypatch.setattr(loading, "read_metadata", unreadable)
    loaded = load_model(str(tiny(n_ctx_train=8192)))
    assert loaded.n_ctx == 4096
    assert list(loaded.chat([{"role": "user", "content": "Hello"}], max_tokens=2)) is not None
