"""Damaged files: refused with a sentence, and never the end of the process that asked for them."""

import json
import os
import random
import re
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import gguf
import llama_cpp
import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.models import trust
from mink_local.models.catalog import ModelFile, resolve
from mink_local.sandbox import ChildStartError, SandboxError, ask
from tests.conftest import shared
from tests.support.effort import FACTOR
from tests.support.python import output_of
from tests.support.tiny import write_embedding_model, write_scripted

# A process that loads and uses the files it is given, and prints what came of each. It must live to the end.
PARENT = """
import json, sys
from mink_local import load_model
from mink_local.errors import MinkError

for path in sys.argv[1:]:
    try:
        "".join(load_model(path, n_threads=1).chat([{"role": "user", "content": "Hi"}], max_tokens=2, seed=1))
        outcome = "answered"
    except MinkError as error:
        outcome = str(error)
    print(json.dumps(outcome), flush=True)
"""


def mutated(original: bytes, header: int, seed: int) -> bytes:
    """Return a copy that is cut short, or has a few other bytes: in numbers, in shapes, anywhere."""
    rng = random.Random(seed)
    size = len(original)
    if seed % 5 == 0:
        return original[: rng.choice([rng.randrange(size), rng.randrange(header)])]
    content = bytearray(original)
    # the metadata's numbers are at the beginning of the header, the tensors' shapes at its end
    start, stop = [(8, 1500), (max(0, header - 16_000), header), (0, header), (0, size)][seed % 5 - 1]
    for _ in range(rng.choice([1, 1, 4, 64])):
        at = rng.randrange(start, stop)
        content[at] = rng.choice([0, 1, 255, content[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
    return bytes(content)


COPIES = 30 * FACTOR


@pytest.mark.slow
@pytest.mark.usefixtures("user_folders")
def test_mutated_copies_kill_no_parent(smollm2_path: Path, tmp_path: Path) -> None:
    header, original = gguf.GGUFReader(smollm2_path).data_offset, smollm2_path.read_bytes()
    paths = [tmp_path / f"{i}.gguf" for i in range(10)]
    outcomes: list[str] = []
    for first in range(0, COPIES, len(paths)):
        for seed, path in enumerate(paths, first):
            path.write_bytes(mutated(original, header, seed))
        outcomes += [json.loads(line) for line in output_of("-c", PARENT, *paths).splitlines()]
    assert len(outcomes) == COPIES
    assert all("\n" not in outcome and len(outcome) < 400 for outcome in outcomes)
    assert 0 < outcomes.count("answered") < COPIES  # both kinds were met


@pytest.fixture
def model(user_folders: Path, tiny_path: Path) -> Path:
    """A small model that no cache knows."""
    return Path(shutil.copy(tiny_path, user_folders / "x.gguf"))


def file(path: Path, sha256: str | None = None) -> ModelFile:
    return ModelFile(path.stem, path, sha256)


@pytest.mark.parametrize(
    "content",
    [b"", b"GG", b"PK\3\4" + bytes(100), b"GGUF", b"GGUF" + bytes(range(256)) * 40],
)
def test_files_that_are_not_models(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=re.escape(str(path))):
        trust.check(file(path))


def test_models_that_generate_no_text(user_folders: Path, tiny: Callable[..., Path]) -> None:
    for path, named in (
        (tiny(arch="parrot"), "parrot"),
        (write_embedding_model(user_folders / "bert.gguf"), r"bert\.gguf"),
        (shared("vocab/ggml-vocab-qwen2.gguf"), r"token_embd\.weight"),
    ):
        with pytest.raises(ModelError, match=named):
            load_model(str(path))


def token(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [(b"<0x69>", b"< x69>"), (token("That"), token("This"))],
    ids=["without a byte", "with a token twice"],
)
@pytest.mark.usefixtures("user_folders")
def test_a_vocabulary_that_is_none(tmp_path: Path, before: bytes, after: bytes) -> None:
    """llama.cpp ends the process, at the latest when it meets that byte in a text."""
    scripts = {"x": ["That", "This"]}
    path = write_scripted(tmp_path / "x.gguf", "{{ messages[0].content }}", scripts)
    trust.check(file(path))
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    with pytest.raises(ModelError, match="crashed"):
        trust.check(file(path))


@pytest.mark.posix
def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    for unreadable in (path, tmp_path / "y.gguf"):
        with pytest.raises(ModelError, match=re.escape(str(unreadable))):
            trust.check(file(unreadable))


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were tried, without a child process: all pass."""
    paths: list[str] = []

    def child(_: str, path: str, **__: object) -> None:
        paths.append(path)

    monkeypatch.setattr(trust, "ask", child)
    return paths


def test_a_file_that_passed_is_tried_again_if_it_or_llama_cpp_has_changed(
    model: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    for name in (model, model, Path(model.name)):
        trust.check(file(name))
    assert tried == [str(model)]
    os.utime(model, ns=(0, 0))
    trust.check(file(model))
    trust.check(file(model))
    assert len(tried) == 2
    monkeypatch.setattr(llama_cpp, "__version__", "0.9.9")
    trust.check(file(model))
    trust.check(file(model))
    assert len(tried) == 3


@pytest.mark.usefixtures("user_folders")
def test_a_file_of_the_catalogue_is_not_tried(tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    embedded = resolve("smollm2-135m")
    trust.check(embedded)
    monkeypatch.setattr(trust, "sha256_of", lambda _: pytest.fail("hashed a second time"))
    trust.check(embedded)
    assert tried == []


def test_a_file_with_another_sha256_is_tried(model: Path, tried: list[str]) -> None:
    trust.check(file(model, "0" * 64))
    assert len(tried) == 1


@pytest.mark.parametrize("content", ["", "{", "{}", "[1, 2]", "[]", '[["x"]]', '{"x": [1, 2]}', "\udc80"])
def test_a_damaged_record_is_started_anew(
    user_folders: Path, model: Path, tried: list[str], content: str
) -> None:
    trust.remember(model)
    (record,) = user_folders.rglob("vetted.json")
    record.write_bytes(content.encode("utf-8", "surrogateescape"))
    trust.check(file(model))
    assert tried == [str(model)]
    assert str(model) in json.loads(record.read_text())


def test_a_cache_that_cannot_be_written_is_done_without(
    model: Path, tmp_path: Path, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in the way").touch()
    monkeypatch.setattr(trust, "user_cache_path", lambda _: tmp_path / "in the way" / "cache")
    trust.check(file(model))
    trust.check(file(model))
    assert len(tried) == 2


def test_a_trial_that_fails_or_takes_too_long(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Mock(side_effect=SandboxError("crashed (signal 6)"))
    monkeypatch.setattr(trust, "ask", child)
    with pytest.raises(ModelError, match=r"x\.gguf.*signal 6"):
        trust.check(file(model))
    limits = child.call_args.kwargs
    assert model.stat().st_size < limits["memory"] < 5 << 30
    assert 60 < limits["seconds"] < 61
    monkeypatch.setattr(
        trust, "ask", lambda *question, memory, **_: ask(*question, memory=memory, seconds=0.001)
    )
    with pytest.raises(ModelError, match=r"x\.gguf.*0\.001 s"):
        trust.check(file(model))


def test_a_child_that_does_not_start_says_nothing_about_the_file(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ChildStartError, match="trust"):
        trust.check(file(model))
