"""GPUs: what llama.cpp's registry of backends says of them."""

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
