"""All kinds of faults by name; a new kind is one line here."""

from scripts.faults import cuts, gguf_files, texts
from scripts.faults.kind import Kind

KINDS: dict[str, Kind] = {kind.name: kind for kind in (gguf_files.KIND, cuts.KIND, texts.KIND)}
