"""What is shown and offered of the files that are here: a file that cannot chat is named, and not offered."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from huggingface_hub import constants

from mink_local.models import offer
from mink_local.models.memory import Budget
from mink_local.models.offer import find_offer
from tests.support.python import Mink
from tests.support.tiny import Shape, write_model

EMBEDDING = {"pooling_type": 3}
GB = 10**9


@pytest.fixture
def lm_studio(home: Path) -> Path:
    folder = home / ".lmstudio/models/parrots/m-GGUF"
    folder.mkdir(parents=True)
    return folder


def put_into_ollama(home: Path, path: Path, name: str) -> None:
    """Move a file into Ollama's store, under its hash, with a manifest."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    store = home / ".ollama/models"
    blob, manifest = (
        store / f"blobs/sha256-{digest}",
        store / f"manifests/registry.ollama.ai/library/{name}/7b",
    )
    for parent in (blob.parent, manifest.parent):
        parent.mkdir(parents=True, exist_ok=True)
    path.rename(blob)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))


def test_only_what_can_chat_is_offered(
    lm_studio: Path, home: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest is in Ollama's dialect, the next one embeds, a drafter and a damaged file lie beside."""
    monkeypatch.setattr(offer, "LADDER", ())
    put_into_ollama(
        home, write_model(home / "o.gguf", smollm2_path, "gptoss", shape=Shape("gptoss", 3)), "gpt-oss"
    )
    write_model(lm_studio / "e-Q8_0.gguf", smollm2_path, shape=Shape(layers=2), more_keys=EMBEDDING)
    write_model(lm_studio / "mtp-m.gguf", smollm2_path, shape=Shape(layers=2))
    (lm_studio / "d.gguf").write_bytes(smollm2_path.read_bytes()[:100_000])
    assert find_offer() is None
    write_model(lm_studio / "m-Q8_0.gguf", smollm2_path)
    found = find_offer()
    assert found is not None
    assert found["name"].endswith("m-Q8_0.gguf")


def test_list_and_info_name_what_a_file_is(lm_studio: Path, smollm2_path: Path, mink: Mink) -> None:
    path = write_model(lm_studio / "e-Q8_0.gguf", smollm2_path, more_keys=EMBEDDING)
    rows = json.loads(mink("list", "--here", "--json").succeeded().stdout)
    (kind,) = (row["kind"] for row in rows if row["path"] == str(path))
    assert kind == json.loads(mink("info", path, "--json").succeeded().stdout)["kind"]
    for command in ("list", "--here"), ("info", path):
        assert kind in mink(*command).succeeded().stdout


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """`machine(total, free, vram)`, in GB: the name of the model that is offered there."""

    def offered(total: float, free: float | None = None, vram: float = 0) -> str | None:
        memory = SimpleNamespace(total=round(total * GB))
        budget = Budget(round((free or total) * GB), round(vram * GB))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(offer, "memory_budget", lambda: budget)
        row = find_offer()
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
@pytest.mark.usefixtures("home")
def test_an_offer_by_memory(
    machine: Callable[..., str | None], memory: tuple[float, ...], name: str | None
) -> None:
    assert machine(*memory) == name


def test_a_model_that_is_here_comes_first(
    machine: Callable[..., str | None], home: Path, tiny_path: Path, tiny: Callable[..., Path]
) -> None:
    store = home / ".lmstudio/models/me"
    for name, path in {"parrot": tiny_path, "no-chat": tiny("other.gguf", template=None)}.items():
        (store / name).mkdir(parents=True)
        (store / name / "m.gguf").hardlink_to(path)
    assert machine(16) == "lmstudio:me/parrot:m.gguf"
    assert machine(0.01, 16) == "lmstudio:me/parrot:m.gguf"  # none suits, one fits
    (store / "parrot/m.gguf").unlink()
    assert machine(16) == "qwen3-4b-instruct:Q4_K_M"


@pytest.mark.usefixtures("home")
def test_nothing_to_download_is_offered_offline(
    machine: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert machine(16) is None
