"""Metadata is read as the `gguf` library reads it, and a damaged file costs a sentence."""

import re
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.errors import ModelError
from mink_local.models import gguf as gguf_module
from mink_local.models.gguf import Metadata, read_metadata, shards
from tests.conftest import shared
from tests.support.effort import examples
from tests.support.tiny import write_gguf

STRING, ARRAY, U32, U64 = 8, 9, 4, 10


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    """A reader that loops for ever ends the test instead of never ending it."""
    if not hasattr(signal, "alarm"):  # Windows
        yield
        return
    signal.alarm(60)
    yield
    signal.alarm(0)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return string(name) + dimensions + struct.pack("<IQ", kind, offset)


def content(keys: list[bytes], tensors: list[bytes] = [], version: int = 3) -> bytes:  # noqa: B006
    counts = struct.pack("<IQQ", version, len(tensors), len(keys))
    return b"GGUF" + counts + b"".join([*keys, *tensors])


@pytest.mark.parametrize("model", ["small", pytest.param("smollm2_path", marks=pytest.mark.slow)])
def test_as_the_library_reads(model: str, request: pytest.FixtureRequest) -> None:
    """Metadata and tensor infos are those that `gguf.GGUFReader` reads."""
    path = request.getfixturevalue(model)
    metadata, reader = read_metadata(path), gguf.GGUFReader(path)
    is_array = {name: field.types[:1] == [gguf.GGUFValueType.ARRAY] for name, field in reader.fields.items()}
    fields = {
        name: field.contents()
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.") and not is_array[name]
    }
    values = {name: value for name, value in metadata.values.items() if not is_array[name]}
    assert values == fields
    tensors = [(t.name, t.tensor_type.name, t.n_elements, t.n_bytes) for t in reader.tensors]
    assert list(map(tuple, metadata.tensors)) == tensors


@pytest.mark.parametrize("name", ["llama-bpe", "qwen2"])
def test_real_vocabularies(name: str) -> None:
    path = shared(f"vocab/ggml-vocab-{name}.gguf")
    metadata = read_metadata(path)
    assert metadata.n_vocab == {"llama-bpe": 128_256, "qwen2": 151_936}[name]
    assert metadata.tensors == ()


def test_a_model_in_several_files(tmp_path: Path) -> None:
    names = [f"blk.{layer}.{name}.weight" for layer in range(3) for name in ("attn_q", "attn_k", "ffn_up")]
    path = tmp_path / "m-00001-of-00003.gguf"
    tensors = {name: np.zeros((2, 3), np.float32) for name in names}
    write_gguf(tmp_path / "m.gguf", "llama", {"block_count": 3}, tensors, split_max_tensors=4)
    assert [part.name for part in shards(path)] == [f"m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    metadata = read_metadata(path)
    assert [tensor.name for tensor in metadata.tensors] == names
    assert {tensor.n_parameters for tensor in metadata.tensors} == {6}
    assert metadata.n_bytes == sum(part.stat().st_size for part in tmp_path.glob("m-*.gguf"))
    with pytest.raises(ModelError, match="part 2"):
        read_metadata(tmp_path / "m-00002-of-00003.gguf")
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelError, match=r"m-00003-of-00003\.gguf"):
        read_metadata(path)


ENDLESS = struct.pack("<IQ", ARRAY, 2**62)
HOSTILE = {
    "nothing": (b"", "GGUF"),
    "another format": (b"PK\3\4" + bytes(50), "GGUF"),
    "magic alone": (b"GGUF", "metadata"),
    "version 1": (content([], version=1), "version 1"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "more keys than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**63), "metadata"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 2**64 - 1, 0), "metadata"),
    "a long key": (content([struct.pack("<Q", 2**64 - 1)]), "metadata"),
    "an unknown type": (content([key("a", 99, b"")]), "type 99"),
    "one key twice": (content([key("a", U32, bytes(4))] * 2), "'a'"),
    "arrays in an array": (content([key("a", ARRAY, ENDLESS)]), "type 9"),
    "more strings than bytes": (content([key("a", ARRAY, struct.pack("<IQ", STRING, 2**61))]), "metadata"),
    "more numbers than bytes": (content([key("a", ARRAY, struct.pack("<IQ", U64, 2**61))]), "metadata"),
    "a string that leads out": (
        content([key("a", ARRAY, struct.pack("<IQQ", STRING, 1, 2**64 - 20))]),
        "metadata",
    ),
    "five dimensions": (content([], [tensor("t", (1,) * 5)]), "'t'.* 5 "),
    "2^32 dimensions": (content([], [string("t") + struct.pack("<I", 2**32 - 1)]), "4294967295 "),
    "an unknown quantization": (content([], [tensor("t", (32,), 5)]), "'t'.* type 5"),
    "a tensor beyond the end": (content([], [tensor("t", (2**62, 2**62))]), "bytes are missing"),
    "a tensor at the end of time": (content([], [tensor("t", (1,), 0, 2**64 - 1)]), "bytes are missing"),
    "no alignment": (content([key("general.alignment", U32, bytes(4))]), "alignment 0"),
    "many layers": (
        content([key("general.architecture", STRING, string("x")), key("x.block_count", U32, b"\xff" * 4)]),
        "4294967295",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "wrong"), HOSTILE.values(), ids=HOSTILE)
def test_damaged_metadata(tmp_path: Path, data: bytes, wrong: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=rf"x\.gguf.*{wrong}"):
        read_metadata(path)


def test_metadata_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be large, its metadata not."""
    monkeypatch.setattr(gguf_module, "_LONGEST", 1 << 20)
    path = tmp_path / "x.gguf"
    path.write_bytes(content([key("a", STRING, struct.pack("<Q", 1 << 21) + bytes(1 << 21))]))
    with pytest.raises(ModelError, match="1 MiB"):
        read_metadata(path)


def test_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "x.gguf", tmp_path):
        with pytest.raises(ModelError, match=re.escape(str(path))):
            read_metadata(path)


def all_that_is_asked(metadata: Metadata) -> None:
    """Ask what the other modules ask: they must not fail on metadata that is odd, either."""
    from mink_local.manage.info import model_info
    from mink_local.models.memory import Budget, choose_placement
    from mink_local.models.offer import where_it_fits

    free = Budget(8 << 30, 4 << 30)
    model_info(metadata, choose_placement(metadata, free), 1)
    where_it_fits(metadata, free)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of one layer with six tokens: its metadata is a kilobyte, so that most mutations hit it."""
    keys = {
        "block_count": 2,
        "context_length": 128,
        "embedding_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": [2, 1],
        "tokenizer.ggml.tokens": ["a", "b", "c", "d", "e", "f"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    names = ("token_embd.weight", "blk.0.attn_k.weight", "blk.1.ffn_up.weight", "output_norm.weight")
    tensors = {name: np.zeros((64, 8), np.float32) for name in names}
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", "llama", keys, tensors)
    all_that_is_asked(read_metadata(path))
    return path


@pytest.mark.slow
@examples(200)
@given(data=st.data())
def test_mutated_metadata(small: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever is changed, cut off or put in: metadata, or one sentence."""
    mutated = bytearray(small.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(1200, len(mutated))))
        new = data.draw(
            st.binary(max_size=9) | st.sampled_from([b"\xff" * 8, bytes(8), struct.pack("<Q", 2**40)])
        )
        mutated[at : at + data.draw(st.sampled_from([0, len(new)]))] = new
    path = tmp_path / "x.gguf"
    path.write_bytes(mutated[: data.draw(st.sampled_from([len(mutated), 500, 100]))])
    try:
        metadata = read_metadata(path)
    except ModelError as error:
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 300  # noqa: PT017
    else:
        all_that_is_asked(metadata)
