"""The GPUs that llama.cpp can use."""

import ctypes
from dataclasses import dataclass

_GPU, _INTEGRATED_GPU = 1, 2  # of enum ggml_backend_dev_type


@dataclass(frozen=True)
class Gpu:
    """A GPU that llama.cpp can use, with its memory in bytes."""

    name: str
    free: int
    total: int


def gpus() -> list[Gpu]:
    """The GPUs that this build of llama.cpp can use, integrated ones where there are no others."""
    from llama_cpp import llama_cpp as C

    from mink_local.llama.ggml import function

    C.llama_backend_init()
    device = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    description = function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    size = ctypes.POINTER(ctypes.c_size_t)
    memory = function("ggml_backend_dev_memory", None, ctypes.c_void_p, size, size)
    found: dict[int, list[Gpu]] = {_GPU: [], _INTEGRATED_GPU: []}
    for i in range(function("ggml_backend_dev_count", ctypes.c_size_t)()):
        pointer = device(i)
        if kind(pointer) in found:
            free, total = ctypes.c_size_t(), ctypes.c_size_t()
            memory(pointer, ctypes.byref(free), ctypes.byref(total))
            gpu = Gpu(description(pointer).decode("utf-8", "replace"), free.value, total.value)
            found[kind(pointer)].append(gpu)
    return found[_GPU] or found[_INTEGRATED_GPU]
