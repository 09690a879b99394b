"""Nodes of a ggml graph, written as arithmetic: `(row - largest).step().sum()`.

An operation adds a node to the graph that llama.cpp is building, and returns the node. Every node here is
one row of float32 or int32.
"""

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp._ctypes_extensions import load_shared_library

from mink_local.errors import MinkError

_PTR, _F32, _I64, _SIZE = ctypes.c_void_p, ctypes.c_float, ctypes.c_int64, ctypes.c_size_t
_TYPE_F32, _TYPE_I32 = 0, 26  # of enum ggml_type
_ASCENDING = 0  # of enum ggml_sort_order
_WIDTH = 4  # bytes of a float32 and of an int32


def function(name: str, result: Any, *arguments: Any) -> Any:
    """Return a C function that ggml exports, with ctypes types of its result and arguments.

    Raises MinkError if this version of llama.cpp does not have it.
    """
    for library in _libraries():
        with contextlib.suppress(AttributeError):
            symbol = library[name]  # unlike an attribute not shared with others who look for it
            symbol.restype, symbol.argtypes = result, arguments
            return symbol
    raise MinkError(
        f"llama-cpp-python {llama_cpp.__version__} has no {name}: "
        "install a version from 0.3.36 on and below 0.4"
    )


def _libraries() -> Iterator[ctypes.CDLL]:
    """Yield libllama, and then the libraries that it depends on.

    Linux and macOS find a symbol of ggml through libllama, and Windows only in the library itself. Loading
    that if it is not needed could load it twice: a wheel holds it under several names.
    """
    for name in ("llama", "ggml-base", "ggml"):
        with contextlib.suppress(FileNotFoundError, RuntimeError):
            yield _library(name)


@functools.cache
def _library(name: str) -> ctypes.CDLL:
    own = Path(llama_cpp.__file__).absolute().parent / "lib"
    library: ctypes.CDLL = load_shared_library(name, Path(os.environ.get("LLAMA_CPP_LIB_PATH") or own))
    return library


def _operation(name: str, *arguments: Any) -> Any:
    return function(f"ggml_{name}", _PTR, _PTR, *arguments)


_new_tensor_1d = _operation("new_tensor_1d", ctypes.c_int, _I64)
_reshape_1d = _operation("reshape_1d", _PTR, _I64)
_reshape_2d = _operation("reshape_2d", _PTR, _I64, _I64)
_view_1d = _operation("view_1d", _PTR, _I64, _SIZE)
_arange = _operation("arange", _F32, _F32, _F32)
_top_k = _operation("top_k", _PTR, ctypes.c_int)
_argsort = _operation("argsort", _PTR, ctypes.c_int)
_scale_bias = _operation("scale_bias", _PTR, _F32, _F32)
_cast = _operation("cast", _PTR, ctypes.c_int)
_clamp = _operation("clamp", _PTR, _F32, _F32)
_get_rows = _operation("get_rows", _PTR, _PTR)
_n_elements = function("ggml_nelements", _I64, _PTR)


def _of_one(name: str, size: int | None = None) -> "Callable[[Node], Node]":
    """Return the method for an operation on one row that leaves as many elements, or `size`."""
    operation = _operation(name, _PTR)
    return lambda row: Node(row.graph, operation(row.graph, row.pointer), size or row.size)


def _of_two(name: str) -> "Callable[[Node, Node], Node]":
    """Return the method for an operation on two rows, element by element."""
    operation = _operation(name, _PTR, _PTR)
    return lambda a, b: Node(a.graph, operation(a.graph, a.pointer, b.pointer), a.size)


_relu = _of_one("relu")


@dataclass(frozen=True)
class Node:
    """A row of numbers that a graph computes.

    In an operation on two nodes the second may have one element, which goes with all of the first. `graph`
    and `pointer` point to the ggml_context of the graph and the ggml_tensor.
    """

    graph: int
    pointer: int
    size: int

    @classmethod
    def wrap(cls, graph: int, tensor: int) -> "Node":
        """Return all elements of a ggml_tensor as one row."""
        size = _n_elements(tensor)
        return cls(graph, _reshape_1d(graph, tensor, size), size)

    @classmethod
    def new(cls, graph: int, size: int) -> "Node":
        """Return a new float32 row, which is filled from outside."""
        return cls(graph, _new_tensor_1d(graph, _TYPE_F32, size), size)

    def countdown(self, size: int) -> "Node":
        """Return the constant row size, ..., 2, 1."""
        upwards = Node(self.graph, _arange(self.graph, -size, 0, 1), size)  # ggml has no other direction
        return -upwards

    def view(self, start: int, size: int) -> "Node":
        """Return the elements from `start` on, without a copy."""
        return Node(self.graph, _view_1d(self.graph, self.pointer, size, start * _WIDTH), size)

    def at(self, indices: "Node") -> "Node":
        """Return the elements at `indices`, an int32 row."""
        column = _reshape_2d(self.graph, self.pointer, 1, self.size)
        rows = _get_rows(self.graph, column, indices.pointer)
        return Node(self.graph, _reshape_1d(self.graph, rows, indices.size), indices.size)

    def top(self, k: int) -> "Node":
        """Return int32 indices of the k largest elements, in no order; which of equal ones is not defined."""
        return Node(self.graph, _top_k(self.graph, self.pointer, k), k)

    def ascending(self) -> "Node":
        """Return int32 indices that sort the row; the order of equal elements is not defined."""
        return Node(self.graph, _argsort(self.graph, self.pointer, _ASCENDING), self.size)

    # The index of any of the largest elements; CUDA returns -1 if none is above the smallest float32.
    argmax = _of_one("argmax", 1)
    sum = _of_one("sum", 1)
    step = _of_one("step")  # 1 for an element above 0, and 0 for others and for NaN
    log = _of_one("log")
    floor = _of_one("floor")
    __add__ = _of_two("add")
    __sub__ = _of_two("sub")
    __mul__ = _of_two("mul")
    __truediv__ = _of_two("div")

    def clamp(self, low: float, high: float) -> "Node":
        """Limit elements to [low, high]. A NaN becomes one of the two, on CPU and CUDA alike."""
        return Node(self.graph, _clamp(self.graph, self.pointer, low, high), self.size)

    def scale(self, factor: float, bias: float = 0.0) -> "Node":
        """Return factor * self + bias."""
        return Node(self.graph, _scale_bias(self.graph, self.pointer, factor, bias), self.size)

    def integer(self) -> "Node":
        """Convert to int32, without the fraction."""
        return Node(self.graph, _cast(self.graph, self.pointer, _TYPE_I32), self.size)

    def maximum(self, other: "Node") -> "Node":
        return _relu(self - other) + other

    def __neg__(self) -> "Node":
        return self.scale(-1.0)


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _PTR), ("no_alloc", ctypes.c_bool))


class Graph:
    """A ggml graph, and `n_bytes` of memory for its nodes' numbers: 0 for one that is never computed."""

    def __init__(self, n_nodes: int, n_bytes: int = 0) -> None:
        overhead = n_nodes * _tensor_overhead() + _graph_overhead(n_nodes, False)
        self.context = _init(_InitParams(overhead + n_bytes, None, n_bytes == 0))
        self.pointer = _new_graph(self.context, n_nodes, False)

    def __enter__(self) -> "Graph":
        return self

    def __exit__(self, *_: object) -> None:
        _free(self.context)

    def expand(self, node: Node) -> None:
        """Add a node, and all that it depends on, to the graph."""
        _build_forward_expand(self.pointer, node.pointer)


_init = function("ggml_init", _PTR, _InitParams)
_free = function("ggml_free", None, _PTR)
_tensor_overhead = function("ggml_tensor_overhead", _SIZE)
_graph_overhead = function("ggml_graph_overhead_custom", _SIZE, _SIZE, ctypes.c_bool)
_new_graph = function("ggml_new_graph_custom", _PTR, _PTR, _SIZE, ctypes.c_bool)
_build_forward_expand = function("ggml_build_forward_expand", None, _PTR, _PTR)
_graph_n_nodes = function("ggml_graph_n_nodes", ctypes.c_int, _PTR)
_graph_node = function("ggml_graph_node", _PTR, _PTR, ctypes.c_int)
_device = function("ggml_backend_buft_get_device", _PTR, _PTR)
_supports = function("ggml_backend_dev_supports_op", ctypes.c_bool, _PTR, _PTR)


def supported(buffer_type: int, graph: Graph) -> bool:
    """Return whether the device of a ggml_backend_buffer_type_t has every operation of a graph."""
    device = _device(buffer_type)
    nodes = [_graph_node(graph.pointer, i) for i in range(_graph_n_nodes(graph.pointer))]
    return device is None or all(_supports(device, node) for node in nodes)
