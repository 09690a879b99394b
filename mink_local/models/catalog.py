"""Models by name: from `models.toml`, the user's own catalogue and other programs' stores."""

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import user_path, write_atomic
from mink_local.models import stores

EMBEDDED = "smollm2-135m"
_QUANTIZATIONS = re.compile(r"\{([^{}]*)\}")
_SOURCE = r"file|(package|ollama|lmstudio):.+|hf:\w[\w.-]*/\w[\w.-]*"
_LINE = (r"[^\r\n]*", "text")
_KEYS = {  # what a value, or each item of a list, must be: a pattern and its description
    "name": (r"[\w.+-]+", "letters, digits, and . _ + -"),
    "source": (_SOURCE, "package:NAME, hf:ORGANISATION/NAME, ollama:NAME, lmstudio:NAME or file"),
    "file": _LINE,
    "revision": _LINE,
    "size": (r"\d{1,6}(\.\d+)?", "a number of GB for each quantization"),
    "sha256": (r"([0-9a-fA-F]{64})?", "64 hexadecimal digits for each quantization"),
    "licence": _LINE,
    "note": _LINE,
}


@dataclass(frozen=True)
class CatalogEntry:
    """A model of `models.toml`, in one quantization.

    Attributes:
        name: Includes the quantization if several are listed: `llama-3-8b:Q4_K_M`.
        source: `package:…`, `hf:…`, `ollama:…`, `lmstudio:…` or `file`.
        file: A name or a pattern; empty if the source is sufficient.
        revision: Branch, tag or commit of the repository.
        size: Size in bytes, as rounded in the catalogue.
        sha256: SHA-256 of the file; a file with this hash is trusted.
    """

    name: str
    source: str
    file: str = ""
    revision: str = "main"
    size: int | None = None
    sha256: str | None = None
    licence: str = ""
    note: str = ""


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file on this machine, with the SHA-256 listed in the catalogue."""

    name: str
    path: Path
    sha256: str | None = None


def read_catalog() -> dict[str, tuple[CatalogEntry, ...]]:
    """Return the entries of `models.toml` by name: one per quantization, the default first.

    Models in the user's own file replace those of the same name.

    Raises:
        CatalogError: A file cannot be read, or a model in it is invalid.
    """
    models: dict[str, tuple[CatalogEntry, ...]] = {}
    for path in (_catalog_path(), user_catalog_path()):
        text = _read_text(path)
        try:
            for model in _models(text):
                models[model["name"]] = read_entries(model)
        except ValueError as error:
            raise CatalogError(f"{path}: {error}") from None
    return models


def user_catalog_path() -> Path:
    """Return the path of the user's own `models.toml`, whether or not it exists."""
    return user_config_path("mink-local") / "models.toml"


def default_model() -> str:
    """Return the model used without --model: the user's choice, or else the embedded one."""
    return chosen_model() or EMBEDDED


def chosen_model() -> str | None:
    """Return the name of the model chosen as the default by the user, or None."""
    return _read_text(_choice_path()).strip() or None


def choose_model(name: str) -> None:
    """Make a model the default for all programs.

    Raises:
        CatalogError: The choice cannot be saved.
    """
    try:
        _choice_path().parent.mkdir(parents=True, exist_ok=True)
        write_atomic(_choice_path(), f"{name}\n")
    except OSError as error:
        raise CatalogError(f"cannot write {_choice_path()}: {error.strerror}") from None


def _choice_path() -> Path:
    return user_config_path("mink-local") / "default-model"


def find(name: str) -> CatalogEntry | None:
    """Return the entry for a name in the catalogue or a store, or None if it is in neither.

    Raises:
        ModelNotFoundError: The model is not listed in this quantization, or the name in a store is malformed.
    """
    model, _, quantization = name.partition(":")
    entries = read_catalog().get(model)
    if not entries:
        return store_entry(name) if name.startswith(stores.PREFIXES) else None
    for entry in entries:
        if not quantization or entry.name.lower() == name.lower():
            return entry
    known = ", ".join(entry.name for entry in entries)
    raise ModelNotFoundError(f"{model} is not listed in {quantization}: choose one of {known}")


def resolve(model: str) -> ModelFile:
    """Return the file on this machine that a model name refers to.

    Args:
        model: A name from `models.toml`, a path, `hf:organisation/repository:file`, where `file` may be a
            pattern or a quantization, `ollama:name:tag` or `lmstudio:name`.

    Raises:
        ModelNotFoundError: There is no such file. The message lists known names, or says what to type.
    """
    if entry := find(model):
        return ModelFile(entry.name, locate(entry), entry.sha256)
    path = user_path(model)
    if os.path.isdir(path):  # False, rather than an error, for a name that is too long
        raise ModelNotFoundError(f"{model} is a folder: name the .gguf file in it")
    if os.path.exists(path):
        return ModelFile(path.stem, path.absolute())
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelNotFoundError(f"there is no file {model}")
    known = ", ".join(read_catalog())
    raise ModelNotFoundError(f"unknown model {model!r}: name a .gguf file or one of {known}")


def locate(entry: CatalogEntry) -> Path:
    """Return the first file of an entry's model on this machine.

    Raises:
        ModelNotFoundError: It is not on this machine. The message says what to type to get it.
    """
    kind, _, name = entry.source.partition(":")
    if kind == "package":
        return stores.in_package(entry.name, name, entry.file)
    if kind == "hf":
        path = stores.in_hub_cache(name, entry.revision, entry.file)
        if path is None:
            raise ModelNotFoundError(f"{entry.name} is not downloaded: type  mink-models pull {entry.name}")
        return path
    if kind == "ollama":
        return stores.in_ollama(name)
    if kind == "lmstudio":
        return stores.in_lm_studio(name, entry.file)
    path = user_path(entry.file)
    if not os.path.isfile(path):
        raise ModelNotFoundError(f"{entry.name}: there is no file {entry.file}")
    return path.absolute()


def store_entry(model: str) -> CatalogEntry:
    """Return the entry for a name with a store prefix, such as `hf:Qwen/Qwen3-4B-GGUF:Q8_0`."""
    if model.startswith("ollama:"):
        return CatalogEntry(model, model)
    prefix, _, rest = model.partition(":")
    name, _, file = rest.partition(":")
    source = f"{prefix}:{name}"
    if not re.fullmatch(_SOURCE, source):
        raise ModelNotFoundError(f"invalid name {model}: write hf:ORGANISATION/NAME or lmstudio:NAME")
    return CatalogEntry(model, source, file)


def add(**model: Any) -> None:
    """Write a model to the user's catalogue, replacing any of the same name.

    Args:
        model: The keys of `models.toml`; empty ones are omitted.

    Raises:
        CatalogError: A value is invalid, or the file cannot be written.
    """
    from filelock import FileLock  # slow to import, and only needed here

    # Strings, numbers and lists of them are the same in JSON and TOML.
    lines = [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in model.items() if value]
    text = "\n".join(["[[model]]", *lines, ""])
    path = user_catalog_path()
    try:
        read_entries(_models(text)[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".models.toml.lock")):
            parts = re.split(r"^(?=\[\[model\]\])", _read_text(path), flags=re.MULTILINE)
            kept = [part for part in parts if all(other["name"] != model["name"] for other in _models(part))]
            before = "".join(kept).rstrip("\n")
            write_atomic(path, f"{before}\n\n{text}" if before else text)
    except ValueError as error:
        raise CatalogError(str(error)) from None
    except OSError as error:
        raise CatalogError(f"cannot write {path}: {error.strerror}") from None


def _catalog_path() -> Path:
    """Return the path of `models.toml`: in the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


def _read_text(path: Path) -> str:
    """Return a file's content, or "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"cannot read {path}: {error}") from None


def _models(text: str) -> list[dict[str, Any]]:
    """Return the models in a catalogue's text. Raises ValueError if one is invalid."""
    content = tomllib.loads(text)
    models = _as_list(content.pop("model", []))
    if content or not all(isinstance(model, dict) for model in models):
        raise ValueError("start each model with [[model]], before its name")
    for model in models:
        values = {"name": "", "source": "", **model}
        for key, value in values.items():
            if key not in _KEYS:
                raise ValueError(f"model {values['name']!r}: unknown key {key!r}: use {', '.join(_KEYS)}")
            pattern, wanted = _KEYS[key]
            if not all(re.fullmatch(pattern, str(item)) for item in _as_list(value)):
                raise ValueError(f"model {values['name']!r}: {key} must be {wanted}, not {value!r}")
    return models


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def read_entries(model: Mapping[str, Any]) -> tuple[CatalogEntry, ...]:
    """Return an entry per quantization of a model. Raises ValueError if there are fewer than sizes."""
    names, files = [model["name"]], [model.get("file", "")]
    if listed := _QUANTIZATIONS.search(files[0]):
        quantizations = [quantization.strip() for quantization in listed[1].split(",")]
        names = [f"{model['name']}:{quantization}" for quantization in quantizations]
        files = [files[0].replace(listed[0], quantization, 1) for quantization in quantizations]
    sizes, digests = (_as_list(model.get(key, [])) for key in ("size", "sha256"))
    if max(len(sizes), len(digests)) > len(names):
        raise ValueError(
            f"model {model['name']!r}: size or sha256 has more items than file, which has {len(names)}"
        )
    return tuple(
        CatalogEntry(
            name=name,
            source=model["source"],
            file=file,
            revision=model.get("revision") or "main",
            size=round(size * 1e9) if size else None,
            sha256=digest.lower() if digest else None,
            licence=model.get("licence", ""),
            note=model.get("note", ""),
        )
        for name, file, size, digest in zip_longest(names, files, sizes, digests)
    )
