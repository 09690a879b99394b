"""`scripts/models.py` pins the models of a catalogue to what the Hub has."""

import hashlib
import os
import tomllib
from pathlib import Path

from tests.support.hub import COMMIT, REPOSITORY, Hub, serve
from tests.support.python import run_python

ROOT = Path(__file__).parents[1]
FILES = {
    "m-Q4.gguf": b"GGUF" * 2_500_000,
    "m-Q8-00001-of-00002.gguf": b"GGUF",
    "m-Q8-00002-of-00002.gguf": b"G",
}
MODELS = f"""# A comment that stays.
[[model]]
name = "own"
source = "file"
file = "/x.gguf"

# For laptops
[[model]]
name = "parrot"  # a bird
source = "hf:{REPOSITORY}"
file = "m-{{Q4,Q8}}.gguf"
"""


def pin(path: Path, hub: Hub) -> str:
    result = run_python(ROOT / "scripts/models.py", path, env={**os.environ, "HF_ENDPOINT": hub.url})
    return result.stderr


def test_revision_sizes_and_hashes_are_filled_in(tmp_path: Path) -> None:
    path = tmp_path / "models.toml"
    path.write_text(MODELS)
    with serve(Hub(FILES.copy())) as hub:
        assert pin(path, hub) == ""
        text = path.read_text()
        assert text.startswith(MODELS)
        _, parrot = tomllib.loads(text)["model"]
        sha256 = hashlib.sha256(FILES["m-Q4.gguf"]).hexdigest()
        assert parrot["revision"] == COMMIT
        assert (parrot["size"], parrot["sha256"]) == ([0.01, 0.0], [sha256, ""])
        hub.files["m-Q4.gguf"] = b"other"
        assert sha256 not in pin(path, hub)
        assert "SHA-256" in pin(path, hub)
    assert path.read_text() == text
