"""Mutated GGUF files, given to all that a user's program does with a file."""

import struct
from pathlib import Path
from random import Random

import gguf
from platformdirs import user_cache_path

from mink_local.errors import MinkError
from mink_local.generation.loading import load_model
from mink_local.models.catalog import resolve
from mink_local.models.gguf import read_metadata
from mink_local.models.info import in_words, model_info
from mink_local.models.memory import choose_placement, memory_budget
from mink_local.sandbox import ChildStartError
from scripts.faults.kind import Case, FaultError, Kind, check_sentence
from scripts.faults.texts import template
from tests.support.scripted import write_scripted
from tests.support.tiny import write_model

HOSTILE = (0, 1, 2, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
SPACE = 400  # bytes, for a hostile template in place of this one
TOKENS = 1024  # of the context; no more memory than that, whatever a file claims
Regions = dict[str, list[tuple[int, int]]]


def regions(path: Path) -> Regions:
    """Return where the parts of a GGUF file are, as (start, stop)."""
    reader = gguf.GGUFReader(path)
    parts: Regions = {"header": [(0, 24)], "metadata": [], "vocabulary": [], "template": []}
    end = 24
    for name, field in reader.fields.items():
        if name.startswith("GGUF."):
            continue
        stop = field.offset + sum(part.nbytes for part in field.parts)
        kind = "vocabulary" if name.startswith("tokenizer.ggml.") else "metadata"
        parts["template" if name == "tokenizer.chat_template" else kind].append((field.offset, stop))
        end = max(end, stop)
    size = path.stat().st_size
    return parts | {"tensors": [(end, reader.data_offset)], "data": [(reader.data_offset, size)]}


def padded(text: str) -> bytes:
    """Return a template with a comment before it, at least SPACE bytes."""
    source = text.encode()
    return b"{#" + b" " * (SPACE - 4 - len(source)) + b"#}" + source


def mutated(rng: Random, original: bytes, parts: Regions) -> tuple[str, bytes]:
    """Return a mutated copy, and the name of the part that was changed."""
    name = rng.choice([*parts, "truncation", "anywhere"])
    content = bytearray(original)
    everywhere = [(0, len(original))]
    if name == "truncation":
        part = rng.choice([*parts.values(), everywhere])
        return name, original[: rng.randrange(*rng.choice(part))]
    if name == "template" and rng.random() < 0.8:
        start, stop = parts[name][0]
        start = stop - SPACE
        content[start:stop] = padded(template(rng)[: SPACE // 2])[:SPACE]
        return name, bytes(content)
    for _ in range(rng.choice([1, 1, 2, 4, 32])):
        start, stop = rng.choice(parts.get(name, everywhere))
        at = rng.randrange(start, stop)
        match rng.randrange(7):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                content[at] ^= 1 << rng.randrange(8)
            case 2 | 3:
                number = struct.pack("<Q", rng.choice(HOSTILE))[: rng.choice([4, 8])]
                content[at : at + len(number)] = number
            case 4:
                content[at : at + rng.randrange(64)] = b""
            case 5:
                content[at:at] = rng.randbytes(rng.randrange(64))
            case 6:
                other = rng.randrange(start, stop)
                content[at : at + 16] = content[other : other + 16]
    return name, bytes(content)


def use(path: Path) -> str:
    """Do with a file what programs do: show what it holds, load it, answer."""
    try:
        metadata = read_metadata(path)
        placement = choose_placement(metadata, memory_budget(), n_ctx=TOKENS)
        in_words(model_info(metadata, placement))
    except MinkError as error:
        check_sentence(str(error))
    try:
        with load_model(str(path), n_threads=1, n_ctx=TOKENS) as model:
            "".join(model.chat([{"role": "user", "content": "Hi"}], max_tokens=2, seed=1))
        return "answered"
    except ChildStartError as error:
        raise FaultError("death", str(error)) from error
    except MinkError as error:
        check_sentence(str(error))
        return "refused"


def begin(folder: Path) -> Case:
    originals = []
    small = write_scripted(folder / "small.gguf", padded(TEMPLATE).decode(), {"<assistant>": ["a", "b"]})
    real = write_model(folder / "real.gguf", resolve("smollm2-135m").path, template=padded(TEMPLATE).decode())
    for path in (small, small, small, real):
        originals.append((path.read_bytes(), regions(path)))

    def case(rng: Random, folder: Path) -> str:
        part, content = mutated(rng, *rng.choice(originals))
        path = folder / "x.gguf"
        path.write_bytes(content)
        try:
            return f"{part} {use(path)}"
        finally:
            (user_cache_path("mink-local") / "vetted.json").unlink(missing_ok=True)

    return case


KIND = Kind("gguf", 20_000, begin, seconds=300)
