"""Nodes of a ggml graph, written as arithmetic: `(row - largest).step().sum()`.

An operation adds a node to the graph that llama.cpp is building and returns it. Every node is a single row
of float32 or int32.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mink_local.llama import ggml

_TYPE_F32, _TYPE_I32 = 0, 26  # enum ggml_type
_ASCENDING = 0  # enum ggml_sort_order
_WIDTH = 4  # bytes of a float32 or an int32


def _operation(name: str, size: int | None = None) -> "Callable[..., Node]":
    """Return the method for an operation on one or two rows; `size` is the result's, None for the row's."""

    def apply(row: "Node", *others: "Node") -> "Node":
        pointers = (other.pointer for other in others)
        return Node(row.graph, getattr(ggml, name)(row.graph, row.pointer, *pointers), size or row.size)

    return apply


@dataclass(frozen=True)
class Node:
    """A row of numbers computed by a graph.

    The second row of a binary operation may have a single element, which is broadcast. `graph` and `pointer`
    are the graph's ggml_context and the ggml_tensor.
    """

    graph: int
    pointer: int
    size: int

    @classmethod
    def wrap(cls, graph: int, tensor: int) -> "Node":
        """Return all elements of a ggml_tensor as a single row."""
        size = ggml.nelements(tensor)
        return cls(graph, ggml.reshape_1d(graph, tensor, size), size)

    @classmethod
    def new(cls, graph: int, size: int) -> "Node":
        """Return a new float32 row to be filled from outside."""
        return cls(graph, ggml.new_tensor_1d(graph, _TYPE_F32, size), size)

    def countdown(self, size: int) -> "Node":
        """Return the constant row size, ..., 2, 1."""
        upwards = Node(self.graph, ggml.arange(self.graph, -size, 0, 1), size)  # ggml only counts upwards
        return -upwards

    def view(self, start: int, size: int) -> "Node":
        """Return `size` elements from `start` on, without copying them."""
        return Node(self.graph, ggml.view_1d(self.graph, self.pointer, size, start * _WIDTH), size)

    def at(self, indices: "Node") -> "Node":
        """Return the elements at `indices`, an int32 row."""
        column = ggml.reshape_2d(self.graph, self.pointer, 1, self.size)
        rows = ggml.get_rows(self.graph, column, indices.pointer)
        return Node(self.graph, ggml.reshape_1d(self.graph, rows, indices.size), indices.size)

    def top(self, k: int) -> "Node":
        """Return the int32 indices of the k largest elements, unordered; ties are broken arbitrarily."""
        return Node(self.graph, ggml.top_k(self.graph, self.pointer, k), k)

    def ascending(self) -> "Node":
        """Return the int32 indices that sort the row; equal elements come in any order."""
        return Node(self.graph, ggml.argsort(self.graph, self.pointer, _ASCENDING), self.size)

    # The index of one of the largest elements; CUDA returns -1 if none is above the smallest float32.
    argmax = _operation("argmax", 1)
    sum = _operation("sum", 1)
    step = _operation("step")  # 1 for elements above 0, else 0, also for NaN
    log = _operation("log")
    floor = _operation("floor")
    _relu = _operation("relu")
    __add__ = _operation("add")
    __sub__ = _operation("sub")
    __mul__ = _operation("mul")
    __truediv__ = _operation("div")

    def clamp(self, low: float, high: float) -> "Node":
        """Limit elements to [low, high]; NaN becomes one of the two, on CPU and CUDA alike."""
        return Node(self.graph, ggml.clamp(self.graph, self.pointer, low, high), self.size)

    def scale(self, factor: float, bias: float = 0.0) -> "Node":
        """Return factor * self + bias."""
        return Node(self.graph, ggml.scale_bias(self.graph, self.pointer, factor, bias), self.size)

    def integer(self) -> "Node":
        """Convert to int32, truncating."""
        return Node(self.graph, ggml.cast(self.graph, self.pointer, _TYPE_I32), self.size)

    def maximum(self, other: "Node") -> "Node":
        return (self - other)._relu() + other

    def __neg__(self) -> "Node":
        return self.scale(-1.0)


class Graph:
    """A ggml graph with `n_bytes` for its nodes' values; 0 for one that is never computed."""

    def __init__(self, n_nodes: int, n_bytes: int = 0) -> None:
        overhead = n_nodes * ggml.tensor_overhead() + ggml.graph_overhead_custom(n_nodes, False)
        self.context = ggml.init(ggml.InitParams(overhead + n_bytes, None, n_bytes == 0))
        self.pointer = ggml.new_graph_custom(self.context, n_nodes, False)

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *_: object) -> None:
        ggml.free(self.context)

    def expand(self, node: Node) -> None:
        """Add a node to the graph, with everything it depends on."""
        ggml.build_forward_expand(self.pointer, node.pointer)


def supported(buffer_type: int, graph: Graph) -> bool:
    """Return whether the device of a ggml_backend_buffer_type_t supports every operation of a graph."""
    device = ggml.backend_buft_get_device(buffer_type)
    nodes = [ggml.graph_node(graph.pointer, i) for i in range(ggml.graph_n_nodes(graph.pointer))]
    return device is None or all(ggml.backend_dev_supports_op(device, node) for node in nodes)
