"""Pin the models in models.toml: each repository's commit on the Hub, and each file's size and SHA-256.

Needs network access. If a file's SHA-256 differs from a recorded one, nothing is written.

.venv/bin/python scripts/models.py [models.toml]
"""

import sys
from pathlib import Path

import tomlkit

from mink_local.errors import DownloadError
from mink_local.models import catalog, download

ROOT = Path(__file__).parents[1]


def fill_in(model: tomlkit.items.Table) -> None:
    """Add a Hub model's revision, sizes and hashes. Raises DownloadError if they have changed."""
    entries = catalog.read_entries(model.unwrap())
    listing = download.listing(entries[0].source.removeprefix("hf:"), entries[0].revision)
    found = [download.files_of(entry, listing) for entry in entries]
    model["revision"] = found[0][0].commit
    sizes = [sum(file.size for file in files) for files in found]
    model["size"] = one_or_all([round(size / 1e9, 2) for size in sizes])
    model["sha256"] = one_or_all([files[0].sha256 if len(files) == 1 else "" for files in found])


def one_or_all(values: list[object]) -> object:
    return values[0] if len(values) == 1 else values


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "models.toml"
    text = tomlkit.parse(path.read_text(encoding="utf-8"))
    for model in text["model"]:
        if model["source"].startswith("hf:"):
            try:
                fill_in(model)
            except DownloadError as error:
                sys.exit(f"{path} is unchanged: {error}")
            print(model["name"], model["revision"])
    path.write_text(tomlkit.dumps(text), encoding="utf-8")


if __name__ == "__main__":
    main()
