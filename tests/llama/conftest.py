"""Fixtures for the tests of llama.cpp: the embedded model without the layers above, and graphs."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mink_local.llama import ggml
from mink_local.llama.context import Context, Segment
from mink_local.llama.graph import Graph, Node
from mink_local.llama.weights import Weights
from tests.support.logits import embedded_logits

Generate = Callable[..., list[int]]

_compute = ggml.function(
    "ggml_graph_compute_with_ctx", ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)
_data = ggml.function("ggml_get_data", ctypes.c_void_p, ctypes.c_void_p)


def filled(graph: Graph, row: NDArray[np.float32]) -> Node:
    """Return a node with these numbers."""
    node = Node.new(graph.context, row.size)
    ctypes.memmove(_data(node.pointer), np.ascontiguousarray(row).ctypes.data, row.nbytes)
    return node


def computed(graph: Graph, *nodes: Node) -> list[NDArray[np.float32]]:
    """Compute nodes on ggml's CPU backend; return their numbers as float32, which may have to be a view."""
    for node in nodes:
        graph.expand(node)
    assert _compute(graph.context, graph.pointer, 1) == 0
    buffers = [(ctypes.c_float * node.size).from_address(_data(node.pointer)) for node in nodes]
    return [np.ctypeslib.as_array(buffer).copy() for buffer in buffers]


@pytest.fixture(scope="session")
def weights(smollm2_path: Path) -> Weights:
    """The embedded model's weights."""
    return Weights(smollm2_path)


@pytest.fixture(scope="session")
def tiny_weights(tiny_path: Path) -> Weights:
    """Weights of a one-layer model with random weights, which evaluates a token instantly."""
    return Weights(tiny_path)


@pytest.fixture(scope="session")
def rows() -> NDArray[np.float32]:
    """Logits of the embedded model over the steps of a text, (16, V)."""
    return embedded_logits()[:16].copy()


@pytest.fixture
def generate(weights: Weights) -> Generate:
    """`generate(sample, prompt, n_tokens)` samples by `sample(logits, step)` until the text ends."""
    context = Context(weights, 512, 1)

    def generate(sample: Callable[..., int], prompt: list[int], n_tokens: int) -> list[int]:
        context.clear()
        context.decode(Segment(prompt, 0))
        tokens: list[int] = []
        while len(tokens) < n_tokens:
            token = sample(context.logits(), len(tokens) + 1)
            if token in weights.end_tokens:
                break
            tokens.append(token)
            context.decode(Segment([token], len(prompt) + len(tokens) - 1))
        return tokens

    return generate
