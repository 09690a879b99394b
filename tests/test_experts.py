"""Mixtures of experts over a device: RPC servers on this machine, whose layers' experts stay on the CPU."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from mink_local import Greedy, load_model
from mink_local.errors import ModelError
from mink_local.generation.loading import describe_layers, load_what_fits
from mink_local.llama.devices import gpu_missing
from mink_local.models.gguf import read_metadata
from mink_local.models.memory import Budget, Footprint, choose_placement
from mink_local.models.options import placement_options
from mink_local.models.placement import PlacementOptions
from tests.support.python import run_python
from tests.support.rpc import RpcServer
from tests.support.tiny import Shape

MIB = 1 << 20
LAYERS = 4
MIXTURE = Shape(
    "qwen3moe", layers=LAYERS, width=128, feed_forward=256, heads=4, heads_kv=2, head_width=64, experts=4
)
PROMPT = "The sea is " * 20  # more than the 32 tokens from which devices compute with copies of experts


@pytest.fixture
def mixture(tiny: Callable[..., Path]) -> Path:
    """A model of four layers with four experts each."""
    return tiny(shape=MIXTURE)


@pytest.fixture
def servers() -> Iterator[list[str]]:
    with RpcServer() as one, RpcServer() as two:
        yield [one.address, two.address]


LOADED = """
import json, sys
from mink_local import load_model
path, servers, prompt, ways = map(json.loads, sys.argv[1:])
for way in ways:
    print("=====", file=sys.stderr, flush=True)
    with load_model(path, n_ctx=256, n_threads=1, rpc=servers, verbose=True, **way) as model:
        answer = next(model.generate([prompt], temperature=0, max_tokens=12))
        print(json.dumps([str(model.placement), answer.tokens]))
"""


def load(path: Path, servers: list[str], ways: list[dict[str, Any]]) -> list[tuple[str, list[int], str]]:
    """Load a model over servers in each way; return where it is, the answer, and llama.cpp's log."""
    arguments = map(json.dumps, (str(path), servers, PROMPT, ways))
    child = run_python("-c", LOADED, *arguments).succeeded()
    logs = child.stderr.split("=====\n")[1:]
    lines = map(json.loads, child.stdout.splitlines())
    return [(*line, log) for line, log in zip(lines, logs, strict=True)]


def buffers(kind: str, log: str) -> dict[str, float]:
    """Return the MiB of the buffers of a kind that llama.cpp has logged, by device."""
    found = re.findall(rf"^\w+: +(\S+) +{kind} buffer size = +([\d.]+) MiB", log, re.MULTILINE)
    return {re.sub(r"RPC\d\[(.*)\]", r"\1", device): float(size) for device, size in found}


WAYS: list[tuple[int, int]] = [(5, 0), (5, 1), (5, 4), (3, 3), (2, 4), (0, 4)]


def test_the_same_answer_wherever_the_experts_are(mixture: Path, servers: list[str]) -> None:
    """The experts have moved, as llama.cpp's log says, and take the memory that was estimated."""
    server = servers[0]
    options = [{"n_gpu_layers": layers, "n_cpu_moe": n} for layers, n in WAYS]
    answers = load(mixture, [server], options)
    with load_model(mixture, n_ctx=256, n_gpu_layers=0) as on_cpu:
        expected = next(on_cpu.generate([PROMPT], sampler=Greedy(), max_tokens=12)).tokens
    footprint = Footprint(read_metadata(mixture))
    for (layers, n), (placement, tokens, log) in zip(WAYS, answers, strict=True):
        assert tokens == expected
        assert placement.startswith(describe_layers(layers, LAYERS, server, n) if layers else "on the CPU")
        need = footprint.need(256, 1, layers, n)
        for kind, n_bytes in (("model", need.gpu.weights), ("KV", need.gpu.kv)):
            assert buffers(kind, log).get(server, 0) == pytest.approx(n_bytes / MIB, abs=0.006)
        compute = buffers("compute", log)
        assert compute.get(server, 0) - 0.02 <= need.gpu.compute / MIB < compute.get(server, 0) + 25
        if need.cpu.compute:
            assert compute["CPU"] - 0.02 <= need.cpu.compute / MIB < compute["CPU"] + 25


def test_layers_go_to_the_devices_that_are_named(mixture: Path, servers: list[str]) -> None:
    one, two = servers
    ways: list[dict[str, Any]] = [{"main_gpu": 1}, {"tensor_split": [3, 1]}, {"tensor_split": [1]}]
    by_main, by_split, by_first = load(mixture, servers, [{"n_gpu_layers": -1, **way} for way in ways])
    assert by_main[1] == by_split[1] == by_first[1]
    assert buffers("model", by_main[2]).keys() == {"CPU_Mapped", two}
    assert by_main[0].startswith(f"on {two}, all layers")
    assert buffers("model", by_first[2]).keys() == {"CPU_Mapped", one}
    assert buffers("KV", by_split[2]).keys() == {one}  # four of five, the output is the fifth
    assert buffers("model", by_split[2]).keys() == {"CPU_Mapped", one, two}


REFUSED = """
import json, sys
from mink_local import MinkError, load_model
for way in ({"main_gpu": 2}, {"tensor_split": [1, 1, 1]}, {"main_gpu": 0, "tensor_split": [1]}):
    try:
        load_model(sys.argv[1], rpc=sys.argv[2:], **way)
    except MinkError as error:
        print(error)
"""


def test_devices_that_do_not_exist(mixture: Path, servers: list[str]) -> None:
    lines = run_python("-c", REFUSED, mixture, *servers).succeeded().stdout.splitlines()
    assert len(lines) == 3
    assert all("no GPU 2" in line for line in lines[:2])
    assert "tensor_split" in lines[2]


@pytest.mark.parametrize("n_ctx", [256, 2048])
@pytest.mark.parametrize("n_parallel", [1, 3])
def test_experts_leave_the_gpu_before_layers_do(mixture: Path, n_ctx: int, n_parallel: int) -> None:
    """For every size of a GPU: what is chosen fits, and nothing better would."""
    metadata = read_metadata(mixture)
    footprint = Footprint(metadata)

    def fits(layers: int, n: int, vram: int) -> bool:
        return footprint.need(n_ctx, n_parallel, layers, n).gpu.total <= vram

    seen = set()
    for vram in range(0, 40 * MIB, MIB // 8):
        placement = choose_placement(metadata, Budget(1 << 40, vram), n_ctx=n_ctx, n_parallel=n_parallel)
        layers, n = placement.split
        assert fits(layers, n, vram)
        better = [(LAYERS + 1, fewer) for fewer in range(LAYERS + 1)]
        better += [(fewer, LAYERS) for fewer in range(LAYERS, 0, -1)]
        assert not any(fits(*way, vram) for way in better[: better.index((layers, n)) if layers else None])
        seen.add((layers, n))
    assert {(0, 0), (1, 4), (4, 4), (5, 0)} <= seen
    assert any(0 < n < LAYERS for layers, n in seen if layers == LAYERS + 1)


@pytest.mark.parametrize(("n_cpu_moe", "split"), [(0, (5, 0)), (3, (5, 3)), (99, (5, 4)), (-1, (5, 4))])
def test_experts_that_are_given(mixture: Path, n_cpu_moe: int, split: tuple[int, int]) -> None:
    roomy = Budget(1 << 40, 1 << 40)
    for layers in ("auto", -1):
        placement = choose_placement(
            read_metadata(mixture),
            roomy,
            n_gpu_layers=layers,
            n_cpu_moe=n_cpu_moe,
        )
        assert placement.split == split


@pytest.mark.parametrize(("holds", "tried"), [
    ((5, 1), [(5, 1)]),
    ((5, 4), [(5, 1), (5, 4)]),
    ((2, 4), [(5, 1), (5, 4), (3, 4), (2, 4)]),
    ((0, 0), [(5, 1), (5, 4), (3, 4), (2, 4), (1, 4), (0, 0)]),
])  # fmt: skip
def test_what_is_tried_where_memory_runs_out(holds: tuple[int, int], tried: list[tuple[int, int]]) -> None:
    attempts = []

    def load(*way: int) -> Any:
        attempts.append(way)
        if way != holds:
            raise ModelError("no memory")
        return None, None

    assert load_what_fits(load, 5, [1, 4])[:2] == holds
    assert attempts == tried


def test_a_dense_model_has_no_experts(tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture) -> None:
    load_model(tiny(), n_ctx=64, n_cpu_moe=0).close()
    assert not caplog.messages
    load_model(tiny(), n_ctx=64, n_cpu_moe=-1).close()
    (message,) = caplog.messages
    assert "tiny" in message
    assert "experts" in message


def test_a_gpu_is_asked_for_where_there_is_none(
    tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    if not gpu_missing():
        pytest.skip("there is a GPU")
    for way in ({"main_gpu": 1}, {"tensor_split": [3, 1]}):
        caplog.clear()
        load_model(tiny(), n_ctx=64, **way).close()
        assert [message for message in caplog.messages if "no layers are on a GPU" in message]


@click.command()
@placement_options
def command(placement: PlacementOptions) -> None:
    click.echo(json.dumps(vars(placement)))


@pytest.mark.parametrize(("options", "given"), [
    ([], {"n_cpu_moe": None, "tensor_split": None, "main_gpu": None}),
    (["--n-cpu-moe", 3], {"n_cpu_moe": 3}),
    (["--cpu-moe"], {"n_cpu_moe": -1}),
    (["--cpu-moe", "--n-cpu-moe", 3], {"n_cpu_moe": -1}),
    (["--n-cpu-moe", 3, "--cpu-moe"], {"n_cpu_moe": -1}),
    (["--tensor-split", "3,1.5", "--main-gpu", 0], {"tensor_split": [3, 1.5], "main_gpu": 0}),
])  # fmt: skip
def test_options(options: list[object], given: dict[str, object]) -> None:
    result = CliRunner().invoke(command, list(map(str, options)))
    assert given.items() <= json.loads(result.output).items()


@pytest.mark.parametrize("text", ["", "a", "1,", "-1,2", "0,0", "nan", "1,inf"])
def test_proportions_that_are_none(text: str) -> None:
    result = CliRunner().invoke(command, ["--tensor-split", text])
    assert result.exit_code == 2
    assert "--tensor-split" in result.output
    with pytest.raises((ValueError, TypeError)):
        load_model("smollm2-135m", tensor_split=[float(n) for n in text.split(",")])
