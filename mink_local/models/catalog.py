"""Models by name: from `models.txt`, the user's own, and other programs' stores."""

import io
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote, unquote

from mink_local.cli import NO_TEXT, did_you_mean
from mink_local.errors import CatalogError, ModelNotFoundError
from mink_local.files import as_text, locked, regular, user_folder, user_path, write_atomic
from mink_local.models import stores
from mink_local.models.gguf import MAGIC, shard_stem

EMBEDDED = "smollm2-135m"
_REVISION = r"@(?!.*\.\.)\w[\w./+-]*"  # that leads nowhere else
_SOURCE = rf"(package|ollama|lmstudio):.+|hf:\w[\w.-]*/\w[\w.-]*({_REVISION})?|file:(/|~|\\\\|\w:[/\\]).*"
_TEXT = (r"[^\x00-\x1f\x7f]*", "text without control characters")
_COLUMNS = {  # what each must be: a pattern and its description
    "name": (r"[\w.+-]+(:[\w.+-]+)?", "letters, digits and . _ + -, with a quantization after a colon"),
    "source": (_SOURCE, "package:NAME, hf:ORGANISATION/NAME, ollama:NAME, lmstudio:NAME or file:/FULL/PATH"),
    "file": (".*", ""),
    "size": (r"(\d{1,6}(\.\d+)?)?", "a number of GB"),
    "sha256": (r"([0-9a-fA-F]{64})?", "64 hexadecimal digits"),
    "licence": _TEXT,
    "note": _TEXT,
}
_WIDTHS = (30, 48, 48, 5, 0, 0, 0)  # of the columns, when a line is written
_ADVICE = ": name a .gguf file, or a model of  mink-models list"
_ENCODED = re.compile(r"[\s%\x00-\x1f\x7f\udc80-\udcff]")  # what a column cannot contain as it is

log = logging.getLogger("mink_local")


@dataclass(frozen=True)
class CatalogEntry:
    """A line of `models.txt`: a model in one quantization.

    Attributes:
        name: Includes the quantization if there is one: `llama-3-8b:Q4_K_M`.
        source: `package:…`, `hf:…`, `ollama:…`, `lmstudio:…` or `file:…`.
        file: A name, a pattern or a quantization; empty if the source is sufficient.
        size: Size in bytes, as rounded in the catalogue.
        sha256: SHA-256 of the file; a file with this hash is trusted.
    """

    name: str
    source: str
    file: str = ""
    size: int | None = None
    sha256: str | None = None
    licence: str = ""
    note: str = ""

    @property
    def repository(self) -> str:
        """The repository on the Hub: `Qwen/Qwen3-4B-GGUF` in `hf:Qwen/Qwen3-4B-GGUF@main`."""
        return self.source.partition(":")[2].partition("@")[0]

    @property
    def revision(self) -> str:
        """Branch, tag or commit of the repository."""
        return self.source.partition("@")[2] or "main"

    def __str__(self) -> str:
        """Return the line, without its ending."""
        size = str(round(self.size / 1e9, 3)) if self.size else ""
        values = (self.name, self.source, self.file, size, self.sha256 or "", self.licence, self.note)
        columns = [_ENCODED.sub(lambda found: quote(found[0], errors="surrogateescape"), it) for it in values]
        columns[-1] = columns[-1].replace("%20", " ")
        while not columns[-1]:
            columns.pop()
        return "  ".join(map(str.ljust, (column or "-" for column in columns), _WIDTHS)).rstrip()


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file on this machine, with the SHA-256 listed in the catalogue."""

    name: str
    path: Path
    sha256: str | None = None


def read_catalog() -> dict[str, tuple[CatalogEntry, ...]]:
    """Return all entries by the model's name without a quantization, the default first.

    The user's own come first, and replace those of the same name and quantization. Malformed lines are
    skipped with a warning.

    Raises:
        CatalogError: A file cannot be read.
    """
    entries: dict[str, CatalogEntry] = {}
    for entry in (*own_entries(), *_read_entries(_catalog_path())):
        entries.setdefault(entry.name, entry)
    models: dict[str, tuple[CatalogEntry, ...]] = {}
    for name, entry in entries.items():
        model = name.partition(":")[0]
        models[model] = (*models.get(model, ()), entry)
    return models


def own_entries() -> list[CatalogEntry]:
    """Return the entries of the user's own `models.txt`."""
    return _read_entries(user_catalog_path())


def user_catalog_path() -> Path:
    """Return the path of the user's own `models.txt`, whether or not it exists."""
    return user_folder("config") / "models.txt"


def default_model() -> str:
    """Return the model used without --model: the user's choice, or else the embedded one."""
    return chosen_model() or EMBEDDED


def chosen_model() -> str | None:
    """Return the name of the model chosen as the default by the user, or None."""
    return _read_text(_choice_path()).strip("\r\n") or None


def choose_model(name: str) -> None:
    """Make a model the default for all programs.

    Raises:
        CatalogError: The choice cannot be saved.
    """
    _rewrite(_choice_path(), lambda _: f"{name}\n")


def _choice_path() -> Path:
    return user_folder("config") / "default-model"


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


def name_of(path: Path) -> str:
    """Return the name of a file as a catalogue can have it, without .gguf and the number of a part."""
    return re.sub(r"[^\w.+-]+", "-", re.sub(r"(?i)\.gguf$", "", shard_stem(path.name))) or "model"


def is_named(text: str) -> bool:
    """Return whether a text names a model, rather than being one for a model to answer.

    It is a name of the catalogue or a store, the path of a GGUF file or of a folder of them, or what ends in
    .gguf and has no blanks.
    """
    path = user_path(text)
    with suppress(OSError, ValueError):  # no path at all
        if path.is_dir():
            return any(path.glob("*.gguf"))
        if path.is_file():
            with path.open("rb") as stream:
                return text.lower().endswith(".gguf") or stream.read(len(MAGIC)) == MAGIC
    if not text or any(map(str.isspace, text)):
        return False
    try:
        return text.lower().endswith(".gguf") or find(text) is not None
    except ModelNotFoundError:
        return True


def names_here() -> Iterator[str]:
    """Yield the names of the catalogue's models on this machine; a model's default has no quantization."""
    for model, (usual, *others) in read_catalog().items():
        for name, entry in ((model, usual), *((other.name, other) for other in others)):
            with suppress(ModelNotFoundError):
                locate(entry)
                yield name


def resolve(model: str) -> ModelFile:
    """Return the file on this machine that a model name refers to.

    Args:
        model: A name from `models.txt`, a path, `hf:organisation/repository:file`, where `file` may be a
            pattern or a quantization, `ollama:name:tag` or `lmstudio:name`.

    Raises:
        ModelNotFoundError: There is no such file. The message says what to type.
    """
    if entry := find(model):
        return ModelFile(entry.name, locate(entry), entry.sha256)
    if not model:
        raise ModelNotFoundError(f"no model is named{_ADVICE}")
    path = user_path(model)
    chosen = " (chosen with mink-models default)" if model == chosen_model() else ""
    if os.path.isdir(path):  # False, rather than an error, for a name that is too long
        raise ModelNotFoundError(f"{model} is a folder: name the .gguf file in it")
    if os.path.exists(path):
        if not path.is_file():  # reading a pipe would wait for whoever writes to it
            raise ModelNotFoundError(f"{model} is not a regular file: name a .gguf file")
        return ModelFile(re.sub(f"[{NO_TEXT}]", "\ufffd", path.stem), path.absolute())
    if path.suffix == ".gguf" or len(path.parts) > 1:
        may_be_on_hub = path.suffix != ".gguf" and re.fullmatch(_SOURCE, f"hf:{model}")
        hint = f": if it is on the Hub, type  mink-models pull hf:{model}:Q8_0" if may_be_on_hub else ""
        raise ModelNotFoundError(f"there is no file {model}{chosen}{hint}")
    for path in stores.in_usual_folders():
        if model == path.stem:
            return ModelFile(path.stem, path)
    advice = did_you_mean(model, names_here()) or did_you_mean(model, read_catalog()) or _ADVICE
    raise ModelNotFoundError(f"unknown model {model!r}{chosen}{advice}")


def locate(entry: CatalogEntry) -> Path:
    """Return the first file of an entry's model on this machine.

    Raises:
        ModelNotFoundError: It is not on this machine. The message says what to type to get it.
    """
    kind, _, name = entry.source.partition(":")
    if kind == "package":
        return stores.in_package(entry.name, name, entry.file)
    if kind == "hf":
        path = stores.in_hub_cache(entry.repository, entry.revision, entry.file)
        if path is None:
            raise ModelNotFoundError(f"{entry.name} is not downloaded: type  mink-models pull {entry.name}")
        return path
    if kind == "ollama":
        return stores.in_ollama(name)
    if kind == "lmstudio":
        return stores.in_lm_studio(name, entry.file)
    path = user_path(name)
    if not os.path.isfile(path):
        raise ModelNotFoundError(f"{entry.name}: there is no file {name}")
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


def parse_line(line: str) -> CatalogEntry | None:
    """Return the entry of a line of `models.txt`, or None for a comment or an empty line.

    Raises:
        ValueError: The line is neither.
    """
    text = line.lstrip("\ufeff").strip()
    if not text or text.startswith("#"):
        return None
    found = text.split(maxsplit=len(_COLUMNS) - 1)
    values = ["" if column == "-" else unquote(column, errors="surrogateescape") for column in found]
    columns = dict(zip_longest(_COLUMNS, values, fillvalue=""))
    for column, (pattern, wanted) in _COLUMNS.items():
        if not re.fullmatch(pattern, columns[column], re.DOTALL):
            raise ValueError(f"{column} must be {wanted}, not {columns[column]!r}")
    size = round(float(columns["size"] or 0) * 1e9) or None
    sha256 = columns["sha256"].lower() or None
    return CatalogEntry(**{**columns, "size": size, "sha256": sha256})  # type: ignore[arg-type]


def edited(text: str, change: Callable[[CatalogEntry], CatalogEntry | None]) -> str:
    """Return a catalogue's text with its entries changed, or without those that become None.

    All other lines stay as they are, and so do those of entries that stay the same.
    """
    lines = []
    for line in io.StringIO(text, newline=""):
        entry = _understood(line)
        changed = entry and change(entry)
        if changed == entry:
            lines.append(line)
        elif changed:
            lines.append(str(changed) + line[len(line.rstrip("\r\n")) :])
    return "".join(lines)


def with_entry(text: str, entry: CatalogEntry) -> str:
    """Return a catalogue's text with an entry in place of one of the same name, or at the end."""
    text = edited(text, lambda other: entry if other.name == entry.name else other)
    if any(found and found.name == entry.name for found in map(_understood, io.StringIO(text, newline=""))):
        return text
    ending = "\r\n" if "\r\n" in text else "\n"
    return f"{text}{entry}{ending}" if text[-1:] in "\r\n" else f"{text}{ending}{entry}"


def add(entry: CatalogEntry) -> None:
    """Write an entry to the user's own `models.txt`, in place of one of the same name.

    Raises:
        CatalogError: The entry is invalid, or the file cannot be written.
    """
    try:
        parse_line(str(entry))
    except ValueError as error:
        raise CatalogError(str(error)) from None
    _rewrite(user_catalog_path(), lambda text: with_entry(text, entry))


def remove(name: str) -> None:
    """Remove the entry of a name from the user's own `models.txt`.

    Raises:
        CatalogError: The file cannot be written.
    """
    _rewrite(
        user_catalog_path(), lambda text: edited(text, lambda entry: None if entry.name == name else entry)
    )


def _rewrite(path: Path, change: Callable[[str], str]) -> None:
    """Change one of the user's files, which others may be changing too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock")):
            write_atomic(path, change(_read_text(path)).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise CatalogError(f"cannot write {path}: {error.strerror}") from None


def _catalog_path() -> Path:
    """Return the path of `models.txt`: in the installed package, or next to it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "models.txt"
    return installed if installed.exists() else package.parent / "models.txt"


def _understood(line: str) -> CatalogEntry | None:
    with suppress(ValueError):
        return parse_line(line)
    return None


def _read_entries(path: Path) -> list[CatalogEntry]:
    """Return the entries of a catalogue; a line that is not understood is named."""
    entries = []
    for number, line in enumerate(io.StringIO(_read_text(path), newline=""), start=1):
        try:
            entries.append(parse_line(line))
        except ValueError as error:
            _warn(f"{path}, line {number}: {error}")
    return [entry for entry in entries if entry]


@cache
def _warn(message: str) -> None:
    """Log a warning, once in this process."""
    log.warning("%s", message)


def _read_text(path: Path) -> str:
    """Return a file's content, or "" if it does not exist; bytes that are not UTF-8 survive `_rewrite`."""
    try:
        return as_text(regular(path).read_bytes(), "surrogateescape")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise CatalogError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CatalogError(f"{path} is not UTF-16 to its end, as it begins: save it as UTF-8") from None
