"""Files of models that other programs keep: the Hub's cache, Ollama's store, LM Studio's."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mink_local.errors import ModelNotFoundError
from mink_local.models import stores
from mink_local.models.catalog import resolve
from mink_local.models.stores import AmbiguousError, select

FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0.gguf/m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0.gguf/m-Q8_0-00002-of-00002.gguf",
    "mmproj-m-f16.gguf",
]


pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(("wanted", "found"), [
    ("m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
    ("Q4_K_M", ["m-Q4_K_M.gguf"]),
    ("q4_k_s", ["m-Q4_K_S.gguf"]),
    ("Q8_0", FILES[3:5]),
    ("*Q8_0*", FILES[3:5]),
    ("m-Q8_0*.gguf", FILES[3:5]),
    ("m-Q8_0.gguf", FILES[3:5]),
    ("m-Q8_0-00001-of-00002.gguf", FILES[3:4]),
    ("mmproj-m-f16.gguf", ["mmproj-m-f16.gguf"]),
    ("", ["m-Q4_K_M.gguf"]),
])  # fmt: skip
def test_select(wanted: str, found: list[str]) -> None:
    assert select(reversed(FILES), wanted) == found


@pytest.mark.parametrize(("files", "wanted", "complaint"), [
    (FILES, "Q6_K", r"no file matches 'Q6_K' \(m-Q4_K_M.gguf, "),
    (FILES, "Q4_K", "no file matches"),
    (FILES, "f16", "no file matches"),
    (FILES, "../m-Q4_K_M.gguf", "no file matches"),
    ([], "", "it has no .gguf file"),
])  # fmt: skip
def test_select_nothing(files: list[str], wanted: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        select(files, wanted)


@pytest.mark.parametrize(("files", "wanted"), [(FILES, "m-Q4*"), (["a.gguf", "b.gguf"], "")])
def test_select_too_much(files: list[str], wanted: str) -> None:
    with pytest.raises(AmbiguousError, match="say which of its files: "):
        select(files, wanted)


def test_a_name_is_not_the_beginning_of_another() -> None:
    files = ["m-Q6_K.gguf", "m-Q6_K_L.gguf"]
    assert select(files, "m-Q6_K.gguf") == select(files, "Q6_K") == ["m-Q6_K.gguf"]


def test_the_only_model_there_is() -> None:
    assert select(["weights.gguf", "mmproj.gguf"], "") == ["weights.gguf"]


DIGEST = "a" * 64


def ollama(root: Path, name: str, manifest: Any, blob: bool = True) -> Path:
    path = root / "manifests" / name
    path.parent.mkdir(parents=True)
    path.write_text(manifest if isinstance(manifest, str) else json.dumps(manifest))
    weights = root / "blobs" / f"sha256-{DIGEST}"
    if blob:
        weights.parent.mkdir()
        weights.write_bytes(b"GGUF")
    return weights


def layers(digest: object = f"sha256:{DIGEST}") -> dict[str, object]:
    weights = {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 4}
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64}
    return {"schemaVersion": 2, "layers": [template, weights]}


@pytest.mark.parametrize(("name", "place"), [
    ("ollama:llama3:8b", "registry.ollama.ai/library/llama3/8b"),
    ("ollama:llama3", "registry.ollama.ai/library/llama3/latest"),
    ("ollama:me/parrot:v1", "registry.ollama.ai/me/parrot/v1"),
    ("ollama:hf.co/me/parrot-GGUF:Q8_0", "hf.co/me/parrot-GGUF/Q8_0"),
])  # fmt: skip
def test_ollama(home: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str) -> None:
    assert resolve_fails(name).startswith("Ollama has no model")
    weights = ollama(home / ".ollama/models", place, layers())
    assert resolve(name).path == weights
    assert [path for _, path in stores.elsewhere()] == [weights]
    assert resolve(next(stores.elsewhere())[0]).path == weights
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "other"))
    assert resolve_fails(name).startswith("Ollama has no model")


def resolve_fails(name: str) -> str:
    with pytest.raises(ModelNotFoundError) as error:
        resolve(name)
    return str(error.value)


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/../../../b:c", "/etc:passwd", "a:b:c", "a/b/c/d:e", "a: b"]
)
def test_names_that_lead_out_of_ollamas_store(name: str) -> None:
    assert "write it as ollama:llama3:8b" in resolve_fails(f"ollama:{name}")


@pytest.mark.parametrize(
    "manifest",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"layers": 7}',
        '{"layers": [7]}',
        "[" * 100_000,
        layers("sha256:../../../etc/passwd"),
        layers(f"sha256:{DIGEST}/x"),
        layers(None),
    ],
)
def test_damaged_manifests(home: Path, manifest: Any) -> None:
    ollama(home / ".ollama/models", "registry.ollama.ai/library/x/latest", manifest)
    assert "is not a manifest of a model" in resolve_fails("ollama:x")
    assert list(stores.elsewhere()) == []


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_manifest(home: Path, content: Any) -> None:
    path = home / "manifest"
    for manifest in (content, {"layers": content}, {"layers": [content]}, layers(content)):
        path.write_text(json.dumps(manifest))
        with pytest.raises(ModelNotFoundError, match="is not a manifest"):
            stores._weights_name(path)


def test_a_manifest_without_its_file(home: Path) -> None:
    ollama(home / ".ollama/models", "registry.ollama.ai/library/x/latest", layers(), blob=False)
    assert "which is not there" in resolve_fails("ollama:x")


def test_lm_studio(home: Path) -> None:
    assert resolve_fails("lmstudio:parrot").startswith("LM Studio has no model parrot here")
    folder = home / ".lmstudio/models/me/parrot"
    folder.mkdir(parents=True)
    for name in ("parrot-Q4_K_M.gguf", "parrot-Q8_0.gguf", "mmproj-parrot.gguf"):
        (folder / name).write_bytes(b"GGUF")
    for name in ("parrot", "me/parrot", "me/parrot:Q4_K_M", "parrot:parrot-Q4_K_M.gguf"):
        assert resolve(f"lmstudio:{name}").path == folder / "parrot-Q4_K_M.gguf"
    assert resolve("lmstudio:parrot:q8_0").path == folder / "parrot-Q8_0.gguf"
    assert "no file matches 'Q2_K'" in resolve_fails("lmstudio:parrot:Q2_K")
    assert [name for name, _ in stores.elsewhere()] == [
        "lmstudio:me/parrot:parrot-Q4_K_M.gguf",
        "lmstudio:me/parrot:parrot-Q8_0.gguf",
    ]
    assert "write it as lmstudio:publisher/name" in resolve_fails("lmstudio:../x")


def test_lm_studios_folder_was_moved(home: Path) -> None:
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio/settings.json").write_text(json.dumps({"downloadsFolder": str(home / "big disk")}))
    folder = home / "big disk/me/parrot"
    folder.mkdir(parents=True)
    (folder / "parrot.gguf").write_bytes(b"GGUF")
    assert resolve("lmstudio:parrot").path == folder / "parrot.gguf"


def test_the_hubs_cache(home: Path) -> None:
    """A file is found under the commit that the revision means, whoever has fetched it."""
    assert resolve_fails("hf:me/parrot").startswith("hf:me/parrot is not here yet")
    commit = "c" * 40
    folder = home / "hub/models--me--parrot"
    for name in ("a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf"):
        path = folder / "snapshots" / commit / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"GGUF")
    assert resolve_fails("hf:me/parrot").startswith("hf:me/parrot is not here yet")
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text(commit)
    assert resolve("hf:me/parrot").path.name == "a-Q4_K_M.gguf"
    assert resolve_fails("hf:me/parrot:Q8_0").startswith(
        "hf:me/parrot:Q8_0 is not here yet"
    )  # a part is missing
    (folder / "snapshots" / commit / "a-Q8_0-00002-of-00002.gguf").write_bytes(b"")
    assert resolve("hf:me/parrot:Q8_0").path.name == "a-Q8_0-00001-of-00002.gguf"
    assert "say which of its files" in resolve_fails("hf:me/parrot:*")
    deep = folder / "snapshots" / commit / "Q2_K" / "a-Q2_K.gguf"
    deep.parent.mkdir()
    deep.write_bytes(b"GGUF")
    assert resolve("hf:me/parrot:Q2_K/a-Q2_K.gguf").path == deep
    assert [name for name, _ in stores.elsewhere()] == [
        "hf:me/parrot:Q2_K/a-Q2_K.gguf",
        "hf:me/parrot:a-Q4_K_M.gguf",
        "hf:me/parrot:a-Q8_0-00001-of-00002.gguf",
    ]
