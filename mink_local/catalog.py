"""Which file a model's name stands for: `models.txt`, and files named by their path."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from mink_local.errors import ModelNotFoundError

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Entry:
    """One line of `models.txt`. `sha256` vouches for the file's content."""

    name: str
    source: str
    file: str
    sha256: str
    licence: str
    note: str


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file on this machine. `sha256` is what it should hash to, where that is known."""

    name: str
    path: Path
    sha256: str | None = None


def read_catalog(path: Path | None = None) -> dict[str, Entry]:
    """The entries of `models.txt` by name. Raises ValueError naming a line that does not parse."""
    path = path or _catalog_path()
    entries = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = line.partition("#")[0].strip()
        if not line:
            continue
        columns = [column.strip() for column in line.split("|")]
        if len(columns) != 6:
            raise ValueError(f"{path}, line {number}: six columns are wanted, not {len(columns)}")
        entries[columns[0]] = Entry(*columns)
    return entries


def resolve(model: str) -> ModelFile:
    """The file that an alias of `models.txt` or a path stands for.

    Raises ModelNotFoundError where there is none, with the known aliases or what to install.
    """
    entries = read_catalog()
    if model in entries:
        entry = entries[model]
        return ModelFile(model, _carried_file(entry), entry.sha256)
    path = Path(model).expanduser()
    if path.is_dir():
        raise ModelNotFoundError(f"{model} is a folder: name the .gguf file in it")
    if path.exists():
        return ModelFile(path.stem, path.absolute())
    if path.suffix == ".gguf" or len(path.parts) > 1:
        raise ModelNotFoundError(f"there is no file {model}")
    raise ModelNotFoundError(f"unknown model {model!r}: name a .gguf file or one of {', '.join(entries)}")


def _catalog_path() -> Path:
    """`models.txt` stands in the package when installed, at the top of a checkout otherwise."""
    package = Path(__file__).parent
    installed = package / "models.txt"
    return installed if installed.exists() else package.parent / "models.txt"


def _carried_file(entry: Entry) -> Path:
    """The file that a Python package carries, found without importing the package."""
    kind, _, package = entry.source.partition(":")
    if kind != "package":
        raise ModelNotFoundError(f"{entry.name}: models.txt names an unknown source, {entry.source}")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / entry.file
        if path.exists():
            return path
    distribution = package.replace("_", "-")
    raise ModelNotFoundError(
        f"{entry.name} is carried by the Python package {distribution}, which is not installed: "
        f"type  python -m pip install {distribution}"
    )
