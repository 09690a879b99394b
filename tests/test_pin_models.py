"""`scripts/models.py` pins the models of a catalogue to what the Hub has."""

import hashlib
import os
from pathlib import Path

from mink_local.models.catalog import CatalogEntry, parse_line
from tests.support.hub import COMMIT, REPOSITORY, Hub, serve
from tests.support.python import run_python

ROOT = Path(__file__).parents[1]
FILES = {
    "m-Q4.gguf": b"GGUF" * 2_500_000,
    "m-Q8-00001-of-00002.gguf": b"GGUF",
    "m-Q8-00002-of-00002.gguf": b"G" * 2_000_000,
}
MODELS = f"""# A comment that stays.
own  file:/x.gguf

# For laptops
parrot:Q4 hf:{REPOSITORY}   m-Q4.gguf - - MIT a bird
parrot:Q8 hf:{REPOSITORY}@{COMMIT} m-Q8.gguf
not a model
"""


def pin(path: Path, hub: Hub) -> str:
    result = run_python(ROOT / "scripts/models.py", path, env={**os.environ, "HF_ENDPOINT": hub.url})
    return result.stderr


def test_revision_sizes_and_hashes_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "models.txt"
    path.write_bytes(MODELS.encode())
    with serve(Hub(FILES.copy())) as hub:
        assert pin(path, hub) == ""
        text = path.read_text()
        *before, q4, q8, after = text.splitlines()
        assert [*before, after] == [*MODELS.splitlines()[:4], "not a model"]
        sha256 = hashlib.sha256(FILES["m-Q4.gguf"]).hexdigest()
        source = f"hf:{REPOSITORY}@{COMMIT}"
        assert [parse_line(q4), parse_line(q8)] == [
            CatalogEntry("parrot:Q4", source, "m-Q4.gguf", 10**7, sha256, "MIT", "a bird"),
            CatalogEntry("parrot:Q8", source, "m-Q8.gguf", 2 * 10**6),
        ]
        hub.files["m-Q4.gguf"] = b"other"
        assert sha256 not in pin(path, hub)
        assert "SHA-256" in pin(path, hub)
    assert path.read_text() == text
