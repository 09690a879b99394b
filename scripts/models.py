"""Pin the models in models.txt: each repository's commit on the Hub, and each file's size and SHA-256.

Needs network access. If a file's SHA-256 differs from a recorded one, nothing is written.
"""

import argparse
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

from mink_local.errors import DownloadError
from mink_local.files import write_atomic
from mink_local.models import download
from mink_local.models.catalog import CatalogEntry, edited

ROOT = Path(__file__).parents[1]

listing = cache(download.listing)


def pinned(entry: CatalogEntry) -> CatalogEntry:
    """Return an entry with what the Hub says of its file. Raises DownloadError if that has changed."""
    if not entry.source.startswith("hf:"):
        return entry
    files = download.files_of(entry, listing(entry.repository, entry.revision))
    print(entry.name, files[0].commit)
    source = f"hf:{entry.repository}@{files[0].commit}"
    sha256 = files[0].sha256 if len(files) == 1 else None
    return replace(entry, source=source, size=sum(file.size for file in files), sha256=sha256)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, nargs="?", default=ROOT / "models.txt")
    path = parser.parse_args().path
    try:
        write_atomic(path, edited(path.read_bytes().decode(), pinned))
    except DownloadError as error:
        sys.exit(f"{path} is unchanged: {error}")


if __name__ == "__main__":
    main()
