"""The GPUs that this build of llama.cpp can use, and their memory."""

import ctypes
from dataclasses import dataclass

from llama_cpp import llama_cpp as C

from mink_local.llama.ggml import function
from mink_local.llama.log import logged

CPU, DEDICATED, INTEGRATED = 0, 1, 2  # of enum ggml_backend_dev_type
_METAL = "MTL"  # Apple's GPUs call themselves dedicated
_REMOTE = "RPC"

_SIZE = ctypes.POINTER(ctypes.c_size_t)
_device_count = function("ggml_backend_dev_count", ctypes.c_size_t)
_device = function("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
_device_type = function("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
_description = function("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
_memory = function("ggml_backend_dev_memory", None, ctypes.c_void_p, _SIZE, _SIZE)
_backend_of = function("ggml_backend_dev_backend_reg", ctypes.c_void_p, ctypes.c_void_p)
_backend_count = function("ggml_backend_reg_count", ctypes.c_size_t)
_backend = function("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t)
_backend_name = function("ggml_backend_reg_name", ctypes.c_char_p, ctypes.c_void_p)
_backend_devices = function("ggml_backend_reg_dev_count", ctypes.c_size_t, ctypes.c_void_p)


@dataclass(frozen=True)
class Gpu:
    """A GPU that llama.cpp can use.

    `free` and `total` are bytes. Integrated GPUs, and all of Apple's, share the machine's memory
    (`shares_ram`). A `remote` one is a device of an RPC server, and its name the server's address.
    """

    name: str
    free: int
    total: int
    shares_ram: bool = False
    remote: bool = False


def gpus() -> list[Gpu]:
    """Return the GPUs that this build of llama.cpp can use.

    As in llama.cpp, integrated ones count only if this machine has no others.
    """
    with logged(False):
        return [_gpu(device) for device in gpu_pointers()]


def gpu_pointers() -> list[int]:
    """Return the ggml_backend_dev_t of the devices of `gpus`; none of them is used."""
    with logged(False):
        C.llama_supports_gpu_offload()  # loads the backends that are libraries of their own
        C.llama_backend_init()
    found = device_pointers(DEDICATED)
    if all(_backend_of_device(device) == _REMOTE for device in found):
        found += device_pointers(INTEGRATED)
    return found


def gpu_names() -> list[str]:
    """Return the names of the GPUs with those of their backends: "CUDA: NVIDIA H100", for example."""
    return [
        f"{_backend_of_device(device)}: {_description(device).decode('utf-8', 'replace')}"
        for device in gpu_pointers()
    ]


def gpus_in_words() -> str:
    """Return "the GPU" for all of this machine's, and the addresses of RPC servers."""
    *others, last = dict.fromkeys(gpu.name if gpu.remote else "the GPU" for gpu in gpus())
    return f"{', '.join(others)} and {last}" if others else last


def device_pointers(*kinds: int) -> list[int]:
    """Return the ggml_backend_dev_t of llama.cpp's devices of some kinds."""
    devices = [_device(i) for i in range(_device_count())]
    return [device for device in devices if _device_type(device) in kinds]


def backends() -> dict[str, int]:
    """Return llama.cpp's backends, for example CPU, CUDA, MTL, and how many devices each has found."""
    pointers = [_backend(i) for i in range(_backend_count())]
    return {_backend_name(pointer).decode(): _backend_devices(pointer) for pointer in pointers}


def gpu_missing() -> str | None:
    """Return why no layer can go to a GPU, or None if one can."""
    if gpu_pointers():
        return None
    if any(n_devices == 0 and name != _REMOTE for name, n_devices in backends().items()):
        return "no GPU was found"
    return "llama-cpp-python was built without GPU support"


def _gpu(device: int) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _memory(device, ctypes.byref(free), ctypes.byref(total))
    backend = _backend_of_device(device)
    shares_ram = _device_type(device) == INTEGRATED or backend == _METAL
    name = _description(device).decode("utf-8", "replace")
    return Gpu(name, free.value, total.value, shares_ram, remote=backend == _REMOTE)


def _backend_of_device(device: int) -> str:
    return str(_backend_name(_backend_of(device)).decode())
