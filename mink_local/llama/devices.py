"""The CPU cores to generate with, and the GPUs that llama.cpp can use, including those of RPC servers."""

import ctypes
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import psutil

from mink_local.container import n_cpus
from mink_local.llama import ggml
from mink_local.llama.library import C
from mink_local.llama.log import logged

CPU, DEDICATED, INTEGRATED = 0, 1, 2  # enum ggml_backend_dev_type
_METAL = "MTL"  # Apple's GPUs report themselves as dedicated
_REMOTE = "RPC"
_WITHOUT_GPUS = "llama-cpp-python was built without GPU support"

servers_in_use: list[str] = []
"""Addresses of RPC servers whose devices this process uses; `rpc.use_servers` adds to them."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that llama.cpp can use.

    Attributes:
        name: The device's description; for a `remote` one, its server's address.
        free, total: Free and total memory in bytes.
        shares_ram: Whether it shares the machine's memory, as integrated and all Apple GPUs do.
        remote: Whether the device belongs to an RPC server.
    """

    name: str
    free: int
    total: int
    shares_ram: bool = False
    remote: bool = False


def gpus() -> list[Gpu]:
    """Return the GPUs that llama.cpp can use; as there, integrated ones only if there are no others."""
    with logged(False):
        return [_gpu(device) for device in gpu_pointers()]


def gpu_pointers() -> list[int]:
    """Return the ggml_backend_dev_t of the devices of `gpus`, without initializing them.

    Those of RPC servers are first, as in llama.cpp.
    """
    with logged(False):
        C.llama_supports_gpu_offload()  # loads backends in separate libraries
        C.llama_backend_init()
    found = device_pointers(DEDICATED)
    if all(_backend_of(device) == _REMOTE for device in found):
        found += device_pointers(INTEGRATED)
    return sorted(found, key=lambda device: _backend_of(device) != _REMOTE)


def gpus_in_words(shares: Sequence[float] = ()) -> str:
    """Return a phrase: "the GPU" for all of this machine's GPUs, and the addresses of RPC servers.

    Args:
        shares: What the GPUs get of a model; without it, all are named.
    """
    used = list(compress(gpus(), shares)) if shares else gpus()
    *others, last = dict.fromkeys(gpu.name if gpu.remote else "the GPU" for gpu in used)
    return f"{', '.join(others)} and {last}" if others else last


def device_pointers(*kinds: int) -> list[int]:
    """Return the ggml_backend_dev_t of llama.cpp's devices of the given kinds."""
    devices = [ggml.backend_dev_get(i) for i in range(ggml.backend_dev_count())]
    return [device for device in devices if ggml.backend_dev_type(device) in kinds]


def backends() -> dict[str, int]:
    """Return the number of devices found by each llama.cpp backend (CPU, CUDA, MTL, ...)."""
    found = [ggml.backend_reg_get(i) for i in range(ggml.backend_reg_count())]
    return {ggml.backend_reg_name(backend).decode(): ggml.backend_reg_dev_count(backend) for backend in found}


def gpu_missing() -> str | None:
    """Return why no layer can be put on a GPU, or None if it can."""
    if gpu_pointers():
        return None
    if any(n_devices == 0 and name != _REMOTE for name, n_devices in backends().items()):
        return "no GPU was found"
    return _WITHOUT_GPUS


def nvidia_is_unused(root: Path = Path("/")) -> bool:
    """Return whether an NVIDIA GPU is here, and llama.cpp was built without support for any."""
    is_here = any((root / "proc/driver/nvidia/gpus").glob("*")) or (
        os.name == "nt" and shutil.which("nvidia-smi") is not None
    )
    return is_here and gpu_missing() == _WITHOUT_GPUS


def _gpu(device: int) -> Gpu:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
    backend = _backend_of(device)
    shares_ram = ggml.backend_dev_type(device) == INTEGRATED or backend == _METAL
    name = ggml.backend_dev_description(device).decode("utf-8", "replace")
    return Gpu(name, free.value, total.value, shares_ram, remote=backend == _REMOTE)


def _backend_of(device: int) -> str:
    return str(ggml.backend_reg_name(ggml.backend_dev_backend_reg(device)).decode())


def n_cores() -> int:
    """Return the number of physical cores, without efficiency cores, which would slow down the others.

    Only macOS and Linux tell which cores those are; elsewhere, all physical cores count.
    """
    physical = macos_performance_cores() or linux_performance_cores() or psutil.cpu_count(logical=False)
    return max(1, min(physical or 1, n_cpus()))


def n_beside(n_threads: int) -> int:
    """Return how many threads can run after a batch that llama.cpp has evaluated in `n_threads` on the CPU.

    Its own spin for some milliseconds, on a core each, unless OMP_WAIT_POLICY is "passive".
    """
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return n_threads
    return max(1, n_cpus() - n_threads + 1)  # the calling thread is one of llama.cpp's


def macos_performance_cores() -> int | None:
    if platform.system() != "Darwin":
        return None
    command = ["sysctl", "-n", "hw.perflevel0.physicalcpu"]  # does not exist on Intel
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(result.stdout) if result.stdout.strip().isdigit() else None


def linux_performance_cores(devices: Path = Path("/sys/devices")) -> int | None:
    """Return the number of performance cores of a hybrid Intel processor; None for others."""
    try:
        cpus = parse_cpu_list((devices / "cpu_core/cpus").read_text(encoding="utf-8"))
        siblings = (
            devices / f"system/cpu/cpu{cpu}/topology/thread_siblings_list" for cpu in cpus
        )  # threads of one core
        return len({path.read_text(encoding="utf-8") for path in siblings}) or None
    except (OSError, ValueError):
        return None


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers of a Linux CPU list: "0-3,8" is 0, 1, 2, 3, 8."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return numbers
