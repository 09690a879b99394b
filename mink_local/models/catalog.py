"""Which file a model's name stands for: `models.txt`, the user's own, and what `stores` finds."""

import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.models import stores

DEFAULT_MODEL = "smollm2-135m"
_COLUMNS = ("name", "source", "file", "revision", "size", "SHA-256", "licence", "note")
_QUANTIZATIONS = re.compile(r"\{([^{}]*)\}")
_REPOSITORY = re.compile(r"hf:\w[\w.-]*/\w[\w.-]*")
_UNKNOWN = "-"


@dataclass(frozen=True)
class CatalogEntry:
    """One model of `models.txt`, in one quantization.

    name: with the quantization, `llama-3-8b:Q4_K_M`, where the line lists several.
    source, file, revision: where it is from; file is a name or a pattern.
    size: in bytes, rounded as the catalogue gives it. sha256 vouches for the file's content.
    """

    name: str
    source: str
    file: str
    revision: str
    size: int | None
    sha256: str | None
    licence: str
    note: str

    @property
    def model(self) -> str:
        """The name without the quantization."""
        return self.name.partition(":")[0]

    @property
    def quantization(self) -> str | None:
        return self.name.partition(":")[2] or None


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file on this machine. `sha256` is what it should hash to, where that is known."""

    name: str
    path: Path
    sha256: str | None = None


def read_catalog(*paths: Path) -> dict[str, tuple[CatalogEntry, ...]]:
    """The models of the given files, by default of `models.txt` and the user's own, by name: an entry
    for every quantization, the first of which is the usual one.

    A later file replaces what an earlier one says of a name. Raises CatalogError naming a line that
    does not parse.
    """
    models: dict[str, tuple[CatalogEntry, ...]] = {}
    for path in paths or (_catalog_path(), user_catalog_path()):
        models |= _read_file(path)
    return models


def user_catalog_path() -> Path:
    """The user's own `models.txt`, which need not be there."""
    from platformdirs import user_config_path

    return user_config_path("mink-local") / "models.txt"


def find(name: str) -> CatalogEntry | None:
    """The entry of a name with or without a quantization; None where there is no such model.

    Raises ModelNotFoundError for a quantization that it is not listed in, with those that it is.
    """
    model, _, quantization = name.partition(":")
    entries = read_catalog().get(model)
    if not entries:
        return None
    if not quantization:
        return entries[0]
    for entry in entries:
        if entry.quantization and entry.quantization.lower() == quantization.lower():
            return entry
    known = ", ".join(entry.name for entry in entries)
    raise ModelNotFoundError(f"{model} is not listed in the quantization {quantization}: take one of {known}")


def resolve(model: str) -> ModelFile:
    """The file on this machine that a model's name stands for: the one way from a name to a file.

    model: a name of `models.txt`, a path, `hf:organisation/repository:file` (where file may be a pattern
    or a quantization), `ollama:name:tag` or `lmstudio:name`.
    Raises ModelNotFoundError where there is none, with the known names or what to type.
    """
    if entry := find(model):
        return ModelFile(entry.name, _locate(entry), entry.sha256)
    if model.startswith(stores.PREFIXES):
        return ModelFile(model, _locate(unlisted(model)))
    path = Path(model).expanduser()
    if path.is_dir():
        raise ModelNotFoundError(f"{model} is a folder: name the .gguf file in it")
    if path.exists():
        return ModelFile(path.stem, path.absolute())
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelNotFoundError(f"there is no file {model}")
    known = ", ".join(read_catalog())
    raise ModelNotFoundError(f"unknown model {model!r}: name a .gguf file or one of {known}")


def unlisted(model: str) -> CatalogEntry:
    """The entry that a name with the prefix of a store amounts to; ModelNotFoundError where it has none."""
    if not model.startswith(stores.PREFIXES):
        raise ModelNotFoundError(f"{model} is in no store: hf:, ollama: and lmstudio: are known")
    source, file = model, _UNKNOWN
    if not model.startswith("ollama:"):
        prefix, _, rest = model.partition(":")
        name, _, file = rest.partition(":")
        source = f"{prefix}:{name}"
        if prefix == "hf" and not _REPOSITORY.fullmatch(source):
            raise ModelNotFoundError(f"{model}: a repository is named as hf:organisation/name")
    return CatalogEntry(model, source, file or _UNKNOWN, "main", None, None, "", "")


def add(line: Iterable[str]) -> None:
    """Write a model, given by its columns, to the user's catalogue, in place of one of the same name.

    Raises CatalogError where the line would not parse or the file cannot be written.
    """
    columns = [column.strip() or _UNKNOWN for column in line]
    text = " | ".join(columns)
    if any(character in column for column in columns for character in "|#\n\r"):
        raise CatalogError(f"a column of models.txt cannot hold | or # or a line break: {text!r}")
    path = user_catalog_path()
    _entries(path, 1, text)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else ["# " + " | ".join(_COLUMNS)]
    kept = [line for line in lines if line.partition("|")[0].strip() != columns[0]]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as stream:
            stream.write("\n".join([*kept, text, ""]))
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(stream.name, path)
    except OSError as error:
        raise CatalogError(f"{path} cannot be written: {error.strerror}") from None


def _locate(entry: CatalogEntry) -> Path:
    """Where an entry's file is; raises ModelNotFoundError with what to type to get it."""
    kind, _, name = entry.source.partition(":")
    file = "" if entry.file == _UNKNOWN else entry.file
    if kind == "package":
        return stores.in_package(entry.name, name, file)
    if kind == "hf":
        path = stores.in_hub_cache(name, entry.revision, file)
        if path is None:
            raise ModelNotFoundError(f"{entry.name} is not here yet: type  mink-models pull {entry.name}")
        return path
    if kind == "ollama":
        return stores.in_ollama(name)
    if kind == "lmstudio":
        return stores.in_lm_studio(name, file)
    path = Path(file).expanduser()
    if not path.is_file():
        raise ModelNotFoundError(f"{entry.name}: there is no file {file}")
    return path.absolute()


def _catalog_path() -> Path:
    """`models.txt` stands in the package when installed, at the top of a checkout otherwise."""
    package = Path(__file__).parents[1]
    installed = package / "models.txt"
    return installed if installed.exists() else package.parent / "models.txt"


def _read_file(path: Path) -> dict[str, tuple[CatalogEntry, ...]]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise CatalogError(f"{path} cannot be read: {error}") from None
    models = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if content := line.partition("#")[0].strip():
            entries = _entries(path, number, content)
            models[entries[0].model] = entries
    return models


def _entries(path: Path, number: int, line: str) -> tuple[CatalogEntry, ...]:
    """One line: an entry for every quantization in it, or one without."""

    def refuse(complaint: str) -> CatalogError:
        return CatalogError(f"{path}, line {number}: {complaint}")

    columns = [column.strip() for column in line.split("|")]
    if len(columns) != len(_COLUMNS):
        raise refuse(f"{len(_COLUMNS)} columns are wanted ({' | '.join(_COLUMNS)}), not {len(columns)}")
    name, source, file, revision, sizes, hashes, licence, note = columns
    if not re.fullmatch(r"[\w.+-]+", name):
        raise refuse(f"{name!r} is no name: letters, digits and . _ + - make one")
    if source != "file" and not source.startswith(("package:", *stores.PREFIXES)):
        raise refuse(
            f"the source {source!r} is unknown: package:, hf:, ollama:, lmstudio: and file are known"
        )
    if source.startswith("hf:") and not _REPOSITORY.fullmatch(source):
        raise refuse(f"{source!r} is no repository, as hf:organisation/name is")
    listed = _QUANTIZATIONS.search(file)
    quantizations = [q.strip() for q in listed[1].split(",")] if listed else [""]
    try:
        in_bytes = [_bytes(size) for size in _list(sizes, len(quantizations))]
    except ValueError:
        raise refuse(f"the size {sizes!r} is not a number of GB for each quantization, or -") from None
    try:
        digests = [_digest(digest) for digest in _list(hashes, len(quantizations))]
    except ValueError:
        raise refuse(
            f"the SHA-256 {hashes!r} is not 64 hexadecimal digits for each quantization, or -"
        ) from None
    return tuple(
        CatalogEntry(
            f"{name}:{quantization}" if quantization else name,
            source,
            _QUANTIZATIONS.sub(quantization, file, count=1) if listed else file,
            "main" if revision == _UNKNOWN else revision,
            size,
            digest,
            licence.removeprefix(_UNKNOWN),
            note.removeprefix(_UNKNOWN),
        )
        for quantization, size, digest in zip(quantizations, in_bytes, digests, strict=True)
    )


def _list(column: str, length: int) -> list[str]:
    """The items of a column, filled up with unknowns. Raises ValueError where there are too many."""
    items = [item.strip() for item in column.split(",")]
    if len(items) > length:
        raise ValueError(column)
    return items + [_UNKNOWN] * (length - len(items))


def _bytes(gigabytes: str) -> int | None:
    if gigabytes in (_UNKNOWN, ""):
        return None
    size = float(gigabytes)
    if not 0 < size < 1e6:
        raise ValueError(gigabytes)
    return round(size * 1e9)


def _digest(text: str) -> str | None:
    if text in (_UNKNOWN, ""):
        return None
    if not re.fullmatch(r"[0-9a-fA-F]{64}", text):
        raise ValueError(text)
    return text.lower()
