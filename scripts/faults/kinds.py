"""All kinds of faults by name; a new kind is one line here."""

from scripts.faults import command_lines, cuts, gguf_files, hub_answers, interruptions, texts
from scripts.faults.kind import Kind

_ALL = (
    gguf_files.KIND,
    cuts.KIND,
    texts.KIND,
    command_lines.KIND,
    hub_answers.KIND,
    *interruptions.KINDS,
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _ALL}
