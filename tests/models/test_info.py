"""What is shown and offered of the files that are here: a file that cannot chat is named, and not offered."""

import hashlib
import json
from pathlib import Path

import pytest

from mink_local.models import info
from mink_local.models.info import find_offer
from tests.models.conftest import Mink
from tests.support.tiny import Shape, write_model

EMBEDDING = {"pooling_type": 3}


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
    monkeypatch.setattr(info, "LADDER", ())
    put_into_ollama(
        home, write_model(home / "o.gguf", smollm2_path, "gptoss", shape=Shape("gptoss", 3)), "gpt-oss"
    )
    write_model(lm_studio / "e-Q8_0.gguf", smollm2_path, shape=Shape(layers=2), more_keys=EMBEDDING)
    write_model(lm_studio / "mtp-m.gguf", smollm2_path, shape=Shape(layers=2))
    (lm_studio / "d.gguf").write_bytes(smollm2_path.read_bytes()[:100_000])
    assert find_offer() is None
    write_model(lm_studio / "m-Q8_0.gguf", smollm2_path)
    offer = find_offer()
    assert offer is not None
    assert offer["name"].endswith("m-Q8_0.gguf")


def test_list_and_info_name_what_a_file_is(lm_studio: Path, smollm2_path: Path, mink: Mink) -> None:
    path = write_model(lm_studio / "e-Q8_0.gguf", smollm2_path, more_keys=EMBEDDING)
    rows = json.loads(mink("list", "--here", "--json").succeeded().stdout)
    (kind,) = (row["kind"] for row in rows if row["path"] == str(path))
    assert kind == json.loads(mink("info", path, "--json").succeeded().stdout)["kind"]
    for command in ("list", "--here"), ("info", path):
        assert kind in mink(*command).succeeded().stdout
