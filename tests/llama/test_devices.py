"""GPUs according to llama.cpp, and cores without efficiency cores."""

from pathlib import Path

import psutil
import pytest

from mink_local.llama import devices
from mink_local.llama.devices import backends, gpu_missing, gpus


def test_the_cpu_is_a_backend_and_no_gpu() -> None:
    assert backends()["CPU"] == 1
    assert all(gpu.total >= gpu.free >= 0 for gpu in gpus())
    assert (gpu_missing() is None) == bool(gpus())


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"BLAS": 1, "CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"RPC": 0, "CPU": 1}, "llama-cpp-python was built without GPU support"),
        ({"CUDA": 0, "CPU": 1}, "no GPU was found"),
        ({"MTL": 0, "BLAS": 1, "CPU": 1}, "no GPU was found"),
        ({"Vulkan": 0, "CPU": 1}, "no GPU was found"),
    ],
)
def test_why_no_layer_goes_to_a_gpu(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, int], reason: str
) -> None:
    monkeypatch.setattr(devices, "gpu_pointers", list)
    monkeypatch.setattr(devices, "backends", lambda: found)
    assert gpu_missing() == reason


@pytest.mark.gpu
def test_a_gpu_says_what_it_is() -> None:
    assert all(gpu.name and gpu.total > 1 << 28 for gpu in gpus())


def test_as_many_as_there_are() -> None:
    assert 1 <= devices.n_cores() <= (psutil.cpu_count(logical=False) or 1)


def test_a_hybrid_processor(tmp_path: Path) -> None:
    """Two performance cores of two threads each beside four efficiency cores."""
    (tmp_path / "cpu_core").mkdir()
    (tmp_path / "cpu_core/cpus").write_text("0-3\n")
    for cpu in range(8):
        folder = tmp_path / f"system/cpu/cpu{cpu}/topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(
            f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}\n" if cpu < 4 else f"{cpu}\n"
        )
    assert devices.linux_performance_cores(tmp_path) == 2
    assert devices.linux_performance_cores(tmp_path / "nothing") is None
    assert devices.parse_cpu_list("0-3,8\n") == [0, 1, 2, 3, 8]
