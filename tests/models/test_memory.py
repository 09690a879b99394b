"""The memory that a model takes, and what of it goes where: by hand, and against llama.cpp's own log."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mink_local import load_model
from mink_local.llama.context import Context
from mink_local.llama.devices import Gpu
from mink_local.llama.weights import Weights
from mink_local.models import memory
from mink_local.models.gguf import Array, Metadata, Tensor, read_metadata
from mink_local.models.memory import (
    Budget,
    Footprint,
    Usage,
    caches_that_fit,
    choose_placement,
    keeps_states,
    kv_bytes_per_layer,
    memory_budget,
)
from mink_local.models.offer import typical_metadata, where_it_fits
from tests.support.tiny import Shape

MB, GB, GIB = 10**6, 10**9, 1 << 30


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
        {"general.architecture": "x", **{f"x.{key}": value for key, value in metadata.items()}},
        tuple(tensors),
        sum(tensor.n_bytes for tensor in tensors),
    )


# 512 tokens of a batch: 2 · 1024 hidden and 8 · 512 activations in float32, and the mask of 4096 in float16.
COMPUTE = 512 * (2 * 1024 + 8 * 512) * 4 + 512 * 4096 * 2
KV = 4096 * 1024  # of one layer


@pytest.mark.parametrize(("tied", "layers", "gpu", "cpu"), [
    (False, 0, (0, 0), (100, 4)),
    (False, 1, (10, 0), (90, 4)),  # the output goes first
    (False, 2, (30, 1), (70, 3)),  # then the last layer
    (False, 4, (70, 3), (30, 1)),
    (False, 5, (90, 4), (10, 0)),  # the embeddings stay
    (True, 0, (0, 0), (90, 4)),
    (True, 5, (90, 4), (10, 0)),  # and are copied if they are the output, too
])  # fmt: skip
def test_what_goes_to_the_gpu(tied: bool, layers: int, gpu: tuple[int, int], cpu: tuple[int, int]) -> None:
    """Megabytes of weights and layers of KV cache, as llama.cpp shares them out."""
    need = Footprint(model(tied=tied)).need(4096, 1, layers)
    assert need.gpu == Usage(gpu[0] * MB, gpu[1] * KV, COMPUTE if layers else 0)
    assert need.cpu == Usage(cpu[0] * MB, cpu[1] * KV, COMPUTE if layers < 5 else 0)


@pytest.mark.parametrize(("keys", "per_layer"), [
    ({}, [1024] * 4),
    ({"attention.head_count_kv": 4}, [2048] * 4),
    ({"attention.key_length": 64}, [2 * (64 + 128) * 2] * 4),
    ({"attention.key_length": 64, "attention.value_length": 32}, [2 * (64 + 32) * 2] * 4),
    ({"attention.head_count_kv": Array(4, (2, 1, 0, 2))}, [1024, 512, 0, 1024]),
    ({"attention.head_count_kv": Array(2, (2, 1))}, [1024, 512, 512, 512]),
    ({"attention.shared_kv_layers": 1}, [1024, 1024, 1024, 0]),
    ({"attention.key_length": 576, "attention.head_count_kv": 1, "attention.key_length_mla": 9}, [1152] * 4),
])  # fmt: skip
def test_kv_cache_of_a_layer(keys: dict[str, Any], per_layer: list[int]) -> None:
    assert kv_bytes_per_layer(model(**keys)) == per_layer


@pytest.mark.parametrize(("kv_type", "n_bytes"), [
    ("f32", 512 * 4), ("f16", 512 * 2), ("bf16", 512 * 2), ("q8_0", 16 * 34), ("q5_1", 16 * 24),
    ("q5_0", 16 * 22), ("q4_1", 16 * 20), ("q4_0", 16 * 18),
])  # fmt: skip
def test_types_of_the_kv_cache(kv_type: str, n_bytes: int) -> None:
    """512 numbers a layer, in blocks of 32 if they are quantized."""
    assert kv_bytes_per_layer(model(), kv_type) == [n_bytes] * 4
    placement = choose_placement(model(), Budget(ROOMY), n_ctx=4096, kv_type=kv_type)
    assert placement.need.cpu.kv == 4 * 4096 * n_bytes


def test_recurrent_layers_have_no_kv_cache() -> None:
    attention = model()
    tensors = [Tensor("blk.1.ssm_a", "F32", 1, 4), *(t for t in attention.tensors if t.layer != 1)]
    hybrid = Metadata(attention.path, attention.values, tuple(tensors), 0)
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


@pytest.mark.parametrize("n_gpus", [1, 2, 4])
def test_each_gpu_has_a_compute_buffer(n_gpus: int) -> None:
    whole = 10 * MB + 4 * ONE_LAYER + n_gpus * COMPUTE
    for vram, layers in ((whole, 5), (whole - 1, 4)):
        budget = Budget(ROOMY, vram, n_gpus=n_gpus)
        assert choose_placement(model(), budget, n_ctx=4096).n_gpu_layers == layers


@pytest.mark.parametrize(("given", "layers"), [(-1, 5), (0, 0), (3, 3), (99, 5)])
def test_layers_that_are_given(given: int, layers: int) -> None:
    assert choose_placement(model(), Budget(ROOMY, 0), n_gpu_layers=given).n_gpu_layers == layers


@pytest.mark.parametrize(("budget", "options", "n_ctx"), [
    # Each token takes 4096 bytes: 8192 take 33.6 MB, 16384 67.1, 32768 134.2; the weights take 100.
    (Budget(ROOMY), {}, 32768),
    (Budget(100 * MB + 16 * 134_217_728), {}, 32768),
    (Budget(100 * MB + 16 * 134_217_728 - 1), {}, 16384),
    (Budget(1000 * MB), {}, 8192),
    (Budget(600 * MB), {}, 4096),
    (Budget(ROOMY), {"n_ctx": 300}, 300),
    # Two answers may take two parts in 16, four and more a quarter.
    (Budget(100 * MB + 16 * 134_217_728), {"n_parallel": 2}, 32768),
    (Budget(100 * MB + 16 * 134_217_728), {"n_parallel": 4}, 32768),
    (Budget(100 * MB + 16 * 134_217_728 - 16), {"n_parallel": 4}, 16384),
    (Budget(100 * MB + 16 * 134_217_728), {"n_parallel": 8}, 16384),
    (Budget(600 * MB), {"n_parallel": 8}, 4096),
    (Budget(ROOMY), {"n_parallel": 4, "n_ctx": 1000}, 1000),
    # 4096 tokens take 133.6 MB in all, 2048 take 123.1, 512 take 115.2.
    (Budget(130 * MB), {}, 2048),
    (Budget(116 * MB), {}, 512),
    (Budget(50 * MB), {}, 4096),  # hopeless: then at least not short
    # With a GPU a longer context must not drive a layer off it.
    (Budget(ROOMY, 90 * MB + COMPUTE + 28672 * 1024 + 4 * 32768 * 1024), {}, 32768),
    (Budget(ROOMY, 90 * MB + COMPUTE + 28672 * 1024 + 4 * 32768 * 1024 - 1), {}, 16384),
    (Budget(ROOMY, 60 * MB), {}, 8192),  # two layers either way
    # It is at most what the model was trained on.
    (Budget(ROOMY), {"n_ctx_train": 2048}, 2048),
    (Budget(ROOMY), {"n_ctx_train": 2048, "n_ctx": 5000}, 2048),
    (Budget(ROOMY), {"n_ctx_train": 2048, "n_ctx": 5000, "n_parallel": 2}, 2048),
    (Budget(ROOMY), {"n_ctx_train": 6000}, 6000),
    # The KV cache on a GPU that uses system memory counts as one there: at most a sixteenth of what is left.
    (Budget(100 * MB + 16 * 134_217_728, 10 * GB), {}, 32768),
    (Budget(2_247_483_647, 2_247_483_647, unified=True), {"tied": True}, 16384),
])  # fmt: skip
def test_the_context(budget: Budget, options: dict[str, Any], n_ctx: int) -> None:
    of_model = {name: options[name] for name in ("n_ctx_train", "tied") if name in options}
    given = {name: value for name, value in options.items() if name not in of_model}
    assert choose_placement(model(**of_model), budget, **given).n_ctx == n_ctx


def test_too_little_memory_is_said() -> None:
    warning = choose_placement(model(), Budget(50 * MB)).warning or ""
    assert "0.1 GB" in warning
    assert choose_placement(model(), Budget(200 * MB)).warning is None
    assert choose_placement(model(), Budget(50 * MB, ROOMY)).warning is None  # 10 MB stay here


def machine(monkeypatch: pytest.MonkeyPatch, ram: int, *gpus: Gpu) -> Budget:
    """Pretend that this machine has these GPUs and so much free memory; return what a model may take."""
    monkeypatch.setattr(memory, "gpus", lambda: list(gpus))
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=ram))
    return memory_budget()


def test_a_gigabyte_of_each_gpu_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Gpu("a", 3 * GIB, 8 * GIB), Gpu("b", GIB // 2, 8 * GIB), Gpu("c", 5 * GIB, 8 * GIB)
    assert machine(monkeypatch, 16 * GIB, *gpus) == Budget(16 * GIB, 6 * GIB, n_gpus=3)
    # With proportions, the GPU that is full first ends what fits.
    assert memory_budget(shares=(0, 0, 1)) == Budget(16 * GIB, 4 * GIB)
    assert memory_budget(shares=(1, 0, 1)) == Budget(16 * GIB, 4 * GIB, n_gpus=2)
    assert memory_budget(shares=(3, 0, 6)) == Budget(16 * GIB, 6 * GIB, n_gpus=2)
    assert memory_budget(shares=(1, 1)) == Budget(16 * GIB, n_gpus=2)
    assert machine(monkeypatch, 16 * GIB) == memory_budget(shares=(1,)) == Budget(16 * GIB)


def test_kv_caches_get_what_the_budget_says(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many caches are made as the same free memory holds that layers are chosen by."""
    each, small = (Footprint(read_metadata(smollm2_path), kind).kv_per_token for kind in ("f16", "q8_0"))
    machine(monkeypatch, 5 * each, Gpu("a", GIB + 7 * each, 8 * GIB))
    assert (each, caches_that_fit(each, on_gpu=True), caches_that_fit(each, on_gpu=False)) == (23040, 7, 5)
    assert caches_that_fit(small, on_gpu=False) == 9
    assert caches_that_fit(0, on_gpu=False) > 10**9, "unknown"


def test_a_gpu_that_takes_no_layer_is_not_asked(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> list[Gpu]:
        raise AssertionError("to ask a GPU for its memory takes some of it")

    monkeypatch.setattr(memory, "gpus", ask)
    path = str(tiny())
    assert load_model(path, n_gpu_layers=0).placement.where.startswith("on the CPU")
    with pytest.raises(AssertionError):
        load_model(path)


@pytest.mark.parametrize("ram", [5 * GB, 14 * GB])
def test_a_gpu_may_share_memory_that_others_use(ram: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit says nothing of what is free."""
    apple = Gpu("Apple M2", 11 * GB + GIB, 16 * GB, shares_ram=True)
    assert machine(monkeypatch, ram, apple) == Budget(ram, 11 * GB, unified=True)
    assert caches_that_fit(GB, on_gpu=True) == min(ram, 11 * GB) // GB


@pytest.mark.parametrize(("layers", "size", "unified", "where"), [
    (400, 8 * GB, True, "GPU"),
    (500, 12 * GB, True, "GPU and CPU"),  # 12 GB with the KV cache: the GPU may take 11
    (1000, 18 * GB, True, "no"),
    (1000, 18 * GB, False, "GPU and CPU"),
])  # fmt: skip
def test_unified_memory_counts_once(layers: int, size: int, unified: bool, where: str) -> None:
    """A model of 20 GB does not fit 14 GB of which the GPU may take 11, as it would if both were added."""
    free, large = Budget(14 * GB, 11 * GB, unified), model(layers)
    assert where_it_fits(large, free) == where_it_fits(typical_metadata(size), free) == where
    warning = choose_placement(large, free, n_ctx=512).warning or ""
    assert ("about 20." in warning) == (where == "no")


def test_a_model_that_fits_the_gpu_is_placed_as_on_a_discrete_one() -> None:
    shared, discrete = (Budget(14 * GB, 11 * GB, unified) for unified in (True, False))
    small = model(layers=400)
    assert choose_placement(small, shared, n_ctx=512) == choose_placement(small, discrete, n_ctx=512)


SHAPES = {
    "llama": Shape(layers=2, tied=False),
    "qwen3": Shape("qwen3", layers=3, width=128, feed_forward=256, heads=4, heads_kv=2, head_width=64),
}


def mib(pattern: str, log: str) -> float:
    """Return the size that llama.cpp has logged after a text."""
    match = re.search(pattern + r" *= *([\d.]+) MiB", log)
    assert match, log
    return float(match[1])


@pytest.mark.parametrize(("name", "kv_type", "n_seq"), [
    ("llama", "f16", 1), ("qwen3", "f16", 1), ("smollm2", "f16", 1), ("smollm2", "q8_0", 2),
    ("smollm2", "q4_0", 2),
])  # fmt: skip
def test_against_llama_cpps_own_log(
    tiny: Callable[..., Path],
    smollm2_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kv_type: str,
    n_seq: int,
) -> None:
    """Weights and KV cache to the 0.01 MiB that it logs; the compute buffer is an upper bound.

    It rounds the 300 tokens of each answer up to 512.
    """
    path = tiny(shape=SHAPES[name]) if name in SHAPES else smollm2_path
    footprint = Footprint(read_metadata(path), kv_type)
    for n_ctx in (300, 2048):
        Context(Weights(path, verbose=True), n_ctx, 1, n_seq=n_seq, kv_type=kv_type)
        log = capsys.readouterr().err
        need = footprint.need(n_ctx, n_seq).cpu
        assert mib("file size  ", log) == pytest.approx(need.weights / 2**20, abs=0.006)
        assert mib("kv_cache: size", log) == pytest.approx(need.kv / 2**20, abs=0.006)
        compute = mib("compute buffer size", log) + mib("output buffer size", log)
        assert compute - 0.02 <= need.compute / 2**20 < compute + 25


def test_layers_with_a_state_beside_their_cache_count_as_both() -> None:
    """As those of Kimi Linear and Falcon-H1."""
    names = ("blk.0.attn_k.weight", "blk.0.ssm_a", "blk.1.ssm_a", "output.weight")
    values = {
        "general.architecture": "x",
        "x.block_count": 2,
        "x.embedding_length": 64,
        "x.attention.head_count": 2,
    }
    both = Metadata(Path(), values, tuple(Tensor(name, "F32", 1, 4) for name in names), 16)
    assert keeps_states(both)
    assert [size > 0 for size in kv_bytes_per_layer(both)] == [True, False]
    assert not keeps_states(replace(both, tensors=both.tensors[:1]))


def test_checkpoints_of_a_hybrid_with_4_billion_weights_on_a_laptop() -> None:
    """Five of 53 MB fit into a twentieth of 6 GB: they count, and are told."""
    values: dict[str, Any] = {"general.architecture": "x", "x.block_count": 32, "x.embedding_length": 2560}
    sizes = {"conv_kernel": 4, "inner_size": 4096, "state_size": 128, "group_count": 16}
    values |= {f"x.ssm.{name}": size for name, size in sizes.items()}
    tensors = tuple(Tensor(f"blk.{i}.ssm_a", "F32", 1, 4) for i in range(24))
    laptop, server = Budget(6 * 10**9), Budget(10**12)
    for budget, n_bytes in ((laptop, 300 * 10**6), (server, 512 * 10**6)):
        placement = choose_placement(Metadata(Path(), values, tensors, 16), budget, n_ctx=4096)
        assert placement.checkpoint == pytest.approx(52.7e6, rel=0.01)
        assert placement.need.cpu.checkpoints == n_bytes
        assert placement.need.cpu.total >= n_bytes + placement.checkpoint
    assert choose_placement(model(), laptop).need.cpu.checkpoints == 0
