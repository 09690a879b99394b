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
from typing import Any
from unittest.mock import Mock

import gguf
import llama_cpp
import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.llama.library import C
from mink_local.models import trust
from mink_local.models.catalog import ModelFile, resolve
from mink_local.models.gguf import read_metadata
from mink_local.sandbox import ChildStartError, SandboxError, ask
from tests.conftest import shared
from tests.support.effort import FACTOR
from tests.support.python import output_of
from tests.support.tiny import write_embedding_model, write_recurrent_model, write_scripted

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


def test_what_the_installed_llama_cpp_does_not_know(
    user_folders: Path, tiny: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """A newer one may; where a key is missing, it guesses."""
    split = {"tokenizer.ggml.pre": "brandnew-2027"}
    for path in (tiny("a.gguf", arch="brandnew"), tiny("b.gguf", more_keys=split)):
        with pytest.raises(ModelError, match=r"brandnew.*pip install --upgrade llama-cpp-python"):
            load_model(str(path))
        assert not trust.is_known(path)
    store = user_folders / "blobs"
    store.mkdir()
    blob = shutil.copy(tiny("c.gguf", arch="gptoss"), store / f"sha256-{64 * 'a'}")
    with pytest.raises(ModelError, match=r"gptoss.*Ollama"):
        load_model(str(blob))
    caplog.clear()
    guessed = tiny("d.gguf", more_keys={"tokenizer.ggml.pre": ""})
    assert trust.is_known(guessed)
    load_model(str(guessed), n_ctx=256).close()
    assert "tokenizer.ggml.pre" in caplog.text


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"more_keys": {"pooling_type": 3}}, "an embedding model"),
        ({"more_keys": {"pooling_type": 4}}, "a reranker"),
        ({"more_keys": {"general.type": "imatrix"}}, "an importance matrix"),
        ({"more_keys": {"general.type": "adapter"}}, "a LoRA adapter"),
        ({"more_keys": {"general.type": "parrot"}}, "parrot"),
        ({"arch": "clip"}, "a projector"),
        ({"arch": "gemma4-assistant"}, "a drafter"),
    ],
)
def test_what_is_no_model_is_named(tiny: Callable[..., Path], options: dict[str, Any], kind: str) -> None:
    path = tiny("M-Q8_0.gguf", **options)
    with pytest.raises(ModelError, match=rf"^M-Q8_0\.gguf is .*{kind}"):
        load_model(str(path), trust=True)
    assert kind in (read_metadata(path).kind or "")


def test_a_model_that_pools_nothing_generates(tiny: Callable[..., Path]) -> None:
    for pooling_type in (0, 2**32 - 1):  # none, and llama.cpp's -1
        path = tiny(f"{pooling_type}.gguf", more_keys={"pooling_type": pooling_type})
        assert read_metadata(path).kind is None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"), (b"\n<!DOCTYPE html><html>", "web page"), (b"PK\3\4", "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
    ],
)  # fmt: skip
def test_another_file_is_told_by_its_beginning(
    tmp_path: Path, smollm2_path: Path, content: bytes, named: str
) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2_path.read_bytes()[: 4 << 20])
    for broken, words in ((path, named), (cut, "download it again")):
        with pytest.raises(ModelError, match=words):
            load_model(str(broken), trust=True)


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
    with pytest.raises(ModelError, match=r"crashed|failed"):
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

    def child(_: str, question: tuple[str, int], **__: object) -> None:
        paths.append(question[0])

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
    monkeypatch.setattr(trust, "user_folder", lambda _: tmp_path / "in the way" / "cache")
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


def test_recurrent_models_are_tried_with_as_many_answers_as_are_wanted(
    tiny: Callable[..., Path], user_folders: Path, smollm2_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp crashes for some with 3, 5 or 6 answers, and for none with another number."""
    questions: list[tuple[str, int]] = []

    def child(_: str, question: list[Any], **__: object) -> None:
        questions.append((Path(question[0]).name, question[1]))
        if question[1] == 3:
            raise SandboxError("crashed (signal 6)")

    monkeypatch.setattr(trust, "ask", child)
    plain, recurrent = (
        file(tiny("plain.gguf")),
        file(write_recurrent_model(user_folders / "mamba.gguf", smollm2_path)),
    )
    for n_seq in (1, 2, 2, 3):
        trust.check(plain, n_seq)
    assert questions == [("plain.gguf", 1)]
    for n_seq in (2, 1, 2, 4):
        trust.check(recurrent, n_seq)
    assert [number for _, number in questions[1:]] == [2, 1, 4]
    with pytest.raises(ModelError, match="3 answers"):
        trust.check(recurrent, 3)


def test_the_child_uses_as_many_sequences_as_it_is_told(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []
    free = C.llama_init_from_model

    def counted(model: Any, params: Any) -> Any:
        context = free(model, params)
        found.append(C.llama_n_seq_max(context))
        return context

    monkeypatch.setattr(C, "llama_init_from_model", counted)
    assert [trust._complaint((str(tiny_path), n_seq)) for n_seq in (1, 3, 0)] == [None] * 3
    assert found == [1, 3]
