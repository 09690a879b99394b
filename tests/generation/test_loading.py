"""Loading a model: how much of it goes where, and what happens if memory is short."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.generation import loading
from mink_local.models.gguf import Metadata
from mink_local.models.memory import Budget

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


@pytest.mark.posix
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
    monkeypatch.setattr(loading, "memory_budget", lambda: Budget(2_000_000))
    assert load_model(path).placement.endswith("with a context of 4096 tokens")
    assert caplog.messages[0].startswith("tiny: it takes about 0.0 GB of memory and 0.0 GB are free")


def test_a_format_that_only_llama_cpp_can_read(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(path: Path) -> Metadata:
        raise ModelError(f"{path} is of an unknown type")

    monkeypatch.setattr(loading, "read_metadata", unreadable)
    loaded = load_model(str(tiny(n_ctx_train=8192)))
    assert loaded.n_ctx == 4096
    assert list(loaded.chat([{"role": "user", "content": "Hello"}], max_tokens=2, seed=1))
