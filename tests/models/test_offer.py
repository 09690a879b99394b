"""The model that the first chat offers, by memory and by what other programs have."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from huggingface_hub import constants

from mink_local.models import info
from mink_local.models.memory import Budget

GB = 10**9

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """`machine(total, free, vram)`, in GB: the name of the model that is offered there."""

    def offered(total: float, free: float | None = None, vram: float = 0) -> str | None:
        memory = SimpleNamespace(total=round(total * GB))
        budget = Budget(round((free or total) * GB), round(vram * GB))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(info, "memory_budget", lambda: budget)
        row = info.find_offer()
        return row["name"] if row else None

    return offered


@pytest.mark.parametrize(
    ("memory", "name"),
    [
        ((2.5,), None),
        ((2.6,), "qwen3-0.6b:Q8_0"),
        ((4.5,), "qwen3-1.7b:Q4_K_M"),
        ((8,), "qwen3-1.7b:Q4_K_M"),
        ((8, 1.5), "qwen3-0.6b:Q8_0"),  # other programs have the rest
        ((16,), "qwen3-4b-instruct:Q4_K_M"),
        ((64,), "qwen3-4b-instruct:Q4_K_M"),
        ((16, 10, 8), "qwen3-8b:Q4_K_M"),  # a GPU
    ],
)
def test_by_memory(machine: Callable[..., str | None], memory: tuple[float, ...], name: str | None) -> None:
    assert machine(*memory) == name


def test_a_model_that_is_here_comes_first(
    machine: Callable[..., str | None], home: Path, tiny_path: Path, tiny: Callable[..., Path]
) -> None:
    store = home / ".lmstudio/models/me"
    for name, path in {"parrot": tiny_path, "no-chat": tiny("other.gguf", template=None)}.items():
        (store / name).mkdir(parents=True)
        (store / name / "m.gguf").symlink_to(path)
    assert machine(16) == "lmstudio:me/parrot:m.gguf"
    assert machine(0.01, 16) == "lmstudio:me/parrot:m.gguf"  # none suits, one fits
    (store / "parrot/m.gguf").unlink()
    assert machine(16) == "qwen3-4b-instruct:Q4_K_M"


def test_nothing_to_download_is_offered_offline(
    machine: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert machine(16) is None
