"""Models in other programs' stores: the Hub's cache, Ollama's store, LM Studio's folders."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from hypothesis import given
from hypothesis import strategies as st

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.models import stores
from mink_local.models.catalog import resolve
from mink_local.models.stores import AmbiguousError, select
from tests.support.effort import examples
from tests.support.folders import of_others

FILES = [
    "README.md",
    "m-Q4_K_M.gguf",
    "m-Q4_K_S.gguf",
    "m-Q8_0.gguf/m-Q8_0-00001-of-00002.gguf",
    "m-Q8_0.gguf/m-Q8_0-00002-of-00002.gguf",
    "mmproj-m-f16.gguf",
]
ALIKE = ["m-Q6_K.gguf", "m-Q6_K_L.gguf"]
GEMMA = [  # with drafters, projectors and an importance matrix beside it
    "MTP/gemma-4-E4B-it-Q8_0-MTP.gguf",
    "gemma-4-E4B-it-Q4_K_M.gguf",
    "gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf",
    "imatrix_unsloth.gguf",
    "mmproj-BF16.gguf",
    "mtp-gemma-4-E4B-it.gguf",
]
TWICE = ["M-Q4_K_M.gguf", "Q4_K_M/M-Q4_K_M-00001-of-00002.gguf", "Q4_K_M/M-Q4_K_M-00002-of-00002.gguf"]
PIECES = ["M.Q4_K_M.gguf", "M.Q6_K.gguf.part1of2", "M.Q6_K.gguf.part2of2"]
DIGEST = "a" * 64

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(("files", "wanted", "found"), [
    (FILES, "m-Q4_K_M.gguf", ["m-Q4_K_M.gguf"]),
    (FILES, "Q4_K_M", ["m-Q4_K_M.gguf"]),
    (FILES, "q4_k_s", ["m-Q4_K_S.gguf"]),
    (FILES, "Q8_0", FILES[3:5]),
    (FILES, "*Q8_0*", FILES[3:5]),
    (FILES, "m-Q8_0*.gguf", FILES[3:5]),
    (FILES, "m-Q8_0.gguf", FILES[3:5]),
    (FILES, "m-Q8_0-00001-of-00002.gguf", FILES[3:4]),
    (FILES, "mmproj-m-f16.gguf", ["mmproj-m-f16.gguf"]),
    (FILES, "", ["m-Q4_K_M.gguf"]),
    (["weights.gguf", "mmproj.gguf"], "", ["weights.gguf"]),
    (ALIKE, "m-Q6_K.gguf", ["m-Q6_K.gguf"]),
    (ALIKE, "Q6_K", ["m-Q6_K.gguf"]),
    (GEMMA, "", ["gemma-4-E4B-it-Q4_K_M.gguf"]),
    (GEMMA, "Q4_K_XL", ["gemma-4-E4B-it-qat-UD-Q4_K_XL.gguf"]),
    (GEMMA, "mtp-gemma-4-E4B-it.gguf", ["mtp-gemma-4-E4B-it.gguf"]),
    (["M-Q8_0.gguf", "M-imatrix.gguf"], "", ["M-Q8_0.gguf"]),
    (["M-Q8_0-imatrix.gguf", "M.imatrix.gguf"], "", ["M-Q8_0-imatrix.gguf"]),
    (["M-Q4_K_M.gguf", "M-draft-0.5B-Q4_K_M.gguf"], "", ["M-Q4_K_M.gguf"]),
    (["GLM-Flash-MTP-Q4_K_M.gguf"], "Q4_K_M", ["GLM-Flash-MTP-Q4_K_M.gguf"]),
    (TWICE, "M-Q4_K_M.gguf", TWICE[:1]),
    (TWICE, "Q4_K_M/M-Q4_K_M.gguf", TWICE[1:]),
])  # fmt: skip
def test_select(files: list[str], wanted: str, found: list[str]) -> None:
    assert select(reversed(files), wanted) == found


@pytest.mark.parametrize(("files", "wanted", "error", "named"), [
    (FILES, "Q6_K", ValueError, r"'Q6_K' \(m-Q4_K_M.gguf, "),
    (FILES, "Q4_K", ValueError, r"'Q4_K' \(m-Q4_K_M.gguf, "),
    (FILES, "f16", ValueError, r"'f16' \(m-Q4_K_M.gguf, "),
    (FILES, "../m-Q4_K_M.gguf", ValueError, r"'\.\./m-Q4_K_M.gguf'"),
    ([], "", ValueError, r"\.gguf"),
    (FILES, "m-Q4*", AmbiguousError, "m-Q4_K_M.gguf, m-Q4_K_S.gguf"),
    (["a.gguf", "b.gguf"], "", AmbiguousError, "a.gguf, b.gguf"),
    (GEMMA, "Q8_0", ValueError, "'Q8_0'"),
    (TWICE, "Q4_K_M", AmbiguousError, r"name one of M-Q4_K_M.gguf, Q4_K_M/M-Q4_K_M.gguf$"),
    (PIECES, "Q6_K", ValueError, r"cat M\.Q6_K\.gguf\?\* > M\.Q6_K\.gguf$"),
    (PIECES[1:], "", ValueError, r"cat M\.Q6_K\.gguf\?\* > M\.Q6_K\.gguf$"),
    (["M.gguf-split-aa", "M.gguf-split-ab"], "M.gguf", ValueError, r"> M\.gguf$"),
    (["M.gguf.001", "M.gguf.002"], "", ValueError, r"> M\.gguf$"),
])  # fmt: skip
def test_nothing_or_too_much_to_select(
    files: list[str], wanted: str, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        select(files, wanted)


def resolve_fails(name: str) -> str:
    with pytest.raises(ModelNotFoundError) as error:
        resolve(name)
    return str(error.value)


def write(path: Path, content: Any = "GGUF") -> Path:
    """Write a file, with its folders: a text, or another value as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def layers(digest: object = f"sha256:{DIGEST}") -> dict[str, object]:
    weights = {"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 4}
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "b" * 64}
    return {"schemaVersion": 2, "layers": [template, weights]}


@pytest.fixture
def ollama(home: Path) -> Path:
    """Ollama's store, with a file of weights and no model."""
    return write(home / f".ollama/models/blobs/sha256-{DIGEST}").parents[1]


@pytest.mark.parametrize(("name", "place"), [
    ("ollama:llama3:8b", "registry.ollama.ai/library/llama3/8b"),
    ("ollama:llama3", "registry.ollama.ai/library/llama3/latest"),
    ("ollama:me/parrot:v1", "registry.ollama.ai/me/parrot/v1"),
    ("ollama:hf.co/me/parrot-GGUF:Q8_0", "hf.co/me/parrot-GGUF/Q8_0"),
])  # fmt: skip
def test_ollama(ollama: Path, monkeypatch: pytest.MonkeyPatch, name: str, place: str) -> None:
    assert name.removeprefix("ollama:") in resolve_fails(name)
    write(ollama / "manifests" / place, layers())
    weights = ollama / f"blobs/sha256-{DIGEST}"
    assert resolve(name).path == weights
    [(found, path)] = stores.elsewhere()
    assert path == resolve(found).path == weights
    monkeypatch.setenv("OLLAMA_MODELS", str(ollama / "other"))
    assert name.removeprefix("ollama:") in resolve_fails(name)


@pytest.mark.parametrize(
    "name",
    [
        *(f"ollama:{name}" for name in ("", "..", "../x", "a/../../b:c", "/etc:passwd", "a:b:c", "a/b/c/d")),
        *(f"lmstudio:{name}" for name in ("../x", "/etc", "*", "me/..")),
    ],
)
def test_names_lead_nowhere_else(ollama: Path, home: Path, name: str) -> None:
    write(ollama / "manifests/registry.ollama.ai/library/x/latest", layers())
    write(home / ".lmstudio/models/me/parrot/parrot.gguf")
    assert name.partition(":")[2] in resolve_fails(name)


@pytest.mark.parametrize("manifest", [
    "", "{", "[]", "{}", '{"layers": 7}', '{"layers": [7]}', "[" * 100_000,
    layers("sha256:../../../etc/passwd"), layers(f"sha256:{DIGEST}/x"), layers(None),
    layers("sha256:" + "b" * 64),
])  # fmt: skip
def test_a_damaged_manifest_or_one_without_its_file(ollama: Path, manifest: Any) -> None:
    path = write(ollama / "manifests/registry.ollama.ai/library/x/latest", manifest)
    assert str(path) in resolve_fails("ollama:x")
    assert list(stores.elsewhere()) == []


@examples(20)
@given(
    st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_any_manifest(ollama: Path, content: Any) -> None:
    for manifest in (content, {"layers": content}, {"layers": [content]}, layers(content)):
        path = write(ollama / "manifests/registry.ollama.ai/library/x/latest", json.dumps(manifest))
        assert str(path) in resolve_fails("ollama:x")


def test_lm_studio(home: Path) -> None:
    assert "parrot" in resolve_fails("lmstudio:parrot")
    folder = home / ".lmstudio/models/me/parrot"
    for name in ("parrot-Q4_K_M.gguf", "parrot-Q8_0.gguf", "mmproj-parrot.gguf"):
        write(folder / name)
    for name in ("parrot", "me/parrot", "me/parrot:Q4_K_M", "parrot:parrot-Q4_K_M.gguf"):
        assert resolve(f"lmstudio:{name}").path == folder / "parrot-Q4_K_M.gguf"
    assert resolve("lmstudio:parrot:q8_0").path == folder / "parrot-Q8_0.gguf"
    assert "'Q2_K'" in resolve_fails("lmstudio:parrot:Q2_K")
    files = [name.rpartition(":")[2] for name, _ in stores.elsewhere()]
    assert files == ["parrot-Q4_K_M.gguf", "parrot-Q8_0.gguf"]


def test_lm_studios_folder_was_moved(home: Path) -> None:
    write(home / ".lmstudio/settings.json", {"downloadsFolder": str(home / "big disk")})
    path = write(home / "big disk/me/parrot/parrot.gguf")
    assert resolve("lmstudio:parrot").path == path


def test_the_hubs_cache(home: Path) -> None:
    """A file is found under the commit that the revision means, whoever has fetched it."""
    assert "hf:me/parrot" in resolve_fails("hf:me/parrot")
    commit = "c" * 40
    folder = home / "hub/models--me--parrot"
    for name in ("a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf"):
        write(folder / "snapshots" / commit / name)
    assert "hf:me/parrot" in resolve_fails("hf:me/parrot")
    write(folder / "refs/main", commit)
    assert resolve("hf:me/parrot").path.name == "a-Q4_K_M.gguf"
    assert "hf:me/parrot:Q8_0" in resolve_fails("hf:me/parrot:Q8_0")  # a part is missing
    write(folder / "snapshots" / commit / "a-Q8_0-00002-of-00002.gguf")
    assert resolve("hf:me/parrot:Q8_0").path.name == "a-Q8_0-00001-of-00002.gguf"
    assert "a-Q4_K_M.gguf, " in resolve_fails("hf:me/parrot:*")
    write(folder / "snapshots" / commit / "Q2_K/a-Q2_K.gguf")
    found = dict(stores.elsewhere())
    names = sorted(name.rpartition(":")[2] for name in found)  # Windows sorts paths without case
    assert names == ["Q2_K/a-Q2_K.gguf", "a-Q4_K_M.gguf", "a-Q8_0-00001-of-00002.gguf"]
    assert all(resolve(name).path == path for name, path in found.items())


def test_what_another_revision_has_is_named_by_its_commit(home: Path) -> None:
    folder = home / "hub/models--me--parrot"
    write(folder / "refs/main", "c" * 40)
    for commit in ("c" * 40, "d" * 40):
        write(folder / "snapshots" / commit / "a-Q8_0.gguf")
    found = dict(stores.elsewhere())
    assert list(found) == ["hf:me/parrot:a-Q8_0.gguf", f"hf:me/parrot@{'d' * 40}:a-Q8_0.gguf"]
    assert all(resolve(name).path == path for name, path in found.items())


@pytest.mark.posix
def test_stores_of_others_have_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ollama's, which runs as a user of its own, and has the models of all."""
    with of_others() as others:
        monkeypatch.setenv("OLLAMA_MODELS", str(others / "ollama"))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(others / "config"))
        monkeypatch.setenv("HOME", str(others))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(others / "hub"))
        assert list(stores.elsewhere()) == []
        assert stores.in_hub_cache("me/parrot", "main", "") is None
        assert not stores.is_begun("me/parrot")
        with pytest.raises(ModelNotFoundError):
            stores.in_ollama("parrot")
        with pytest.raises(CatalogError, match="config"):
            resolve("parrot")


@pytest.mark.parametrize("package", ["no.such", "..no", "__main__"])
def test_a_package_that_cannot_be_found(package: str) -> None:
    with pytest.raises(ModelNotFoundError, match="not installed"):
        stores.in_package("parrot", package, "parrot.gguf")
