"""Models by name: those of `models.txt`, the user's own, and those in other programs' stores."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from platformdirs import user_config_path

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import user_path, write_atomic
from mink_local.models import stores

DEFAULT_MODEL = "smollm2-135m"
_COLUMNS = ("name", "source", "file", "revision", "size", "SHA-256", "licence", "note")
_QUANTIZATIONS = re.compile(r"\{([^{}]*)\}")
_SOURCE = re.compile(r"file|(package|ollama|lmstudio):.+|hf:\w[\w.-]*/\w[\w.-]*")
_UNKNOWN = "-"


@dataclass(frozen=True)
class CatalogEntry:
    """A model of `models.txt`, in one quantization.

    Attributes:
        name: Includes the quantization if the line lists several: `llama-3-8b:Q4_K_M`.
        source: `package:…`, `hf:…`, `ollama:…`, `lmstudio:…` or `file`.
        file: A name or a pattern; empty if the source is enough.
        revision: Branch, tag or commit of the repository.
        size: Bytes, as rounded by the catalogue.
        sha256: SHA-256 of the file; a file with this hash is safe to load.
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
    """A GGUF file on this machine, with its SHA-256 according to the catalogue."""

    name: str
    path: Path
    sha256: str | None = None


def read_catalog() -> dict[str, tuple[CatalogEntry, ...]]:
    """Return the entries of `models.txt` by name: one for each quantization, the default first.

    The user's own file replaces models of the same name.

    Raises:
        CatalogError: A file cannot be read, or a line is invalid.
    """
    models: dict[str, tuple[CatalogEntry, ...]] = {}
    for path in (_catalog_path(), user_catalog_path()):
        for number, line in enumerate(_read_text(path).splitlines(), start=1):
            if content := line.partition("#")[0].strip():
                try:
                    entries = _parse_line(content)
                except ValueError as error:
                    raise CatalogError(f"{path}, line {number}: {error}") from None
                models[entries[0].name.partition(":")[0]] = entries
    return models


def user_catalog_path() -> Path:
    """Return the path of the user's own `models.txt`, which may not exist."""
    return user_config_path("mink-local") / "models.txt"


def find(name: str) -> CatalogEntry | None:
    """Return the entry of a name in the catalogue or a store, or None if it is in neither.

    Raises:
        ModelNotFoundError: The model is not listed in this quantization, or the store's name is malformed.
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
    """Return the file on this machine that a model's name refers to.

    Args:
        model: A name of `models.txt`, a path, `hf:organisation/repository:file`, where `file` may be a
            pattern or a quantization, `ollama:name:tag` or `lmstudio:name`.

    Raises:
        ModelNotFoundError: There is no such file. The message lists the known names, or says what to type.
    """
    if entry := find(model):
        return ModelFile(entry.name, locate(entry), entry.sha256)
    path = user_path(model)
    if os.path.isdir(path):  # False, and not an error, for a name that is too long
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
        ModelNotFoundError: It is not here. The message says what to type to get it.
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
    """Return the entry for a name with a store's prefix, such as `hf:Qwen/Qwen3-4B-GGUF:Q8_0`."""
    if model.startswith("ollama:"):
        return CatalogEntry(model, model)
    prefix, _, rest = model.partition(":")
    name, _, file = rest.partition(":")
    source = f"{prefix}:{name}"
    if not _SOURCE.fullmatch(source):
        raise ModelNotFoundError(f"invalid name {model}: write hf:ORGANISATION/NAME or lmstudio:NAME")
    return CatalogEntry(model, source, file)


def add(columns: Iterable[str]) -> None:
    """Write a line to the user's catalogue; it replaces a model of the same name.

    Raises:
        CatalogError: A column is invalid, or the file cannot be written.
    """
    from filelock import FileLock  # slow to import, and needed here only

    columns = [column.strip() or _UNKNOWN for column in columns]
    text = " | ".join(columns)
    try:
        if any(re.search(r"[|#\r\n]", column) for column in columns):
            raise ValueError(f"a column of models.txt cannot contain | or # or a line break: {text!r}")
        _parse_line(text)
    except ValueError as error:
        raise CatalogError(str(error)) from None
    path = user_catalog_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(".models.txt.lock")):
            lines = _read_text(path).splitlines() or ["# " + " | ".join(_COLUMNS)]
            kept = [line for line in lines if line.partition("|")[0].strip() != columns[0]]
            write_atomic(path, "\n".join([*kept, text, ""]))
    except OSError as error:
        raise CatalogError(f"cannot write {path}: {error.strerror}") from None


def _catalog_path() -> Path:
    """Return the path of `models.txt`: in the installed package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.txt"
    return installed if installed.exists() else package.parent / "models.txt"


def _read_text(path: Path) -> str:
    """Return the content of a file, "" if it does not exist."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"cannot read {path}: {error}") from None


def _parse_line(line: str) -> tuple[CatalogEntry, ...]:
    """Return an entry for each quantization in a line. Raises ValueError if the line is invalid."""
    columns = [column.strip() for column in line.split("|")]
    if len(columns) != len(_COLUMNS):
        raise ValueError(f"expected {len(_COLUMNS)} columns ({' | '.join(_COLUMNS)}), found {len(columns)}")
    name, source, *others = columns
    file, revision, sizes, hashes, licence, note = ("" if text == _UNKNOWN else text for text in others)
    if not re.fullmatch(r"[\w.+-]+", name):
        raise ValueError(f"invalid model name {name!r}: use letters, digits, and . _ + -")
    if not _SOURCE.fullmatch(source):
        raise ValueError(
            f"unknown source {source!r}: use package:NAME, hf:ORGANISATION/NAME, ollama:NAME, lmstudio:NAME "
            "or file"
        )
    names, files = [name], [file]
    if listed := _QUANTIZATIONS.search(file):
        quantizations = [quantization.strip() for quantization in listed[1].split(",")]
        names = [f"{name}:{quantization}" for quantization in quantizations]
        files = [file.replace(listed[0], quantization, 1) for quantization in quantizations]
    gigabytes = _split("size", sizes, r"\d{1,6}(\.\d*)?|\.\d+", len(names), "a number of GB")
    digests = _split("SHA-256", hashes.lower(), "[0-9a-f]{64}", len(names), "64 hexadecimal digits")
    in_bytes = [round(float(size) * 1e9) if size else None for size in gigabytes]
    return tuple(
        CatalogEntry(name, source, file, revision or "main", size, digest, licence, note)
        for name, file, size, digest in zip_longest(names, files, in_bytes, digests)
    )


def _split(title: str, column: str, pattern: str, most: int, wanted: str) -> list[str | None]:
    """Return the items of a column for the first quantizations, None for an unknown one."""
    items = [item.strip() for item in column.split(",")]
    if len(items) > most or not all(re.fullmatch(f"{pattern}|-?", item) for item in items):
        raise ValueError(f"the {title} {column!r} is not {wanted} for each quantization, or -")
    return [None if item in ("", _UNKNOWN) else item for item in items]
