"""Damaged files: refused with a sentence, and never the end of the process that asked for them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mink_local import load_model
from mink_local.errors import ModelError
from mink_local.models import trust as vetting
from mink_local.models.catalog import ModelFile, resolve
from tests.conftest import shared

HELLO = [{"role": "user", "content": "Hello"}]

# A process that loads and uses mutated copies of a GGUF file, one after the other, and prints what
# came of each. It must live to the end.
PARENT = """
import json, random, sys
from pathlib import Path
import gguf
from mink_local import load_model
from mink_local.errors import MinkError

source, copy = Path(sys.argv[1]), Path(sys.argv[2])
first, last = int(sys.argv[3]), int(sys.argv[4])
header = gguf.GGUFReader(source).data_offset
original = source.read_bytes()
size = len(original)

for seed in range(first, last):
    rng = random.Random(seed)
    kind = seed % 5
    if kind == 0:  # cut short
        content = original[: rng.choice([rng.randrange(size), rng.randrange(header)])]
    else:
        content = bytearray(original)
        # the header's numbers stand at its beginning, the tensors' shapes at its end
        start, stop = [(8, 1500), (header - 16_000, header), (0, header), (0, size)][kind - 1]
        for _ in range(rng.choice([1, 1, 4, 64])):
            at = rng.randrange(start, stop)
            content[at] = rng.choice([0, 1, 255, content[at] ^ (1 << rng.randrange(8)), rng.randrange(256)])
    copy.write_bytes(content)
    try:
        reply = load_model(str(copy)).chat([{"role": "user", "content": "Hello"}], max_tokens=3, seed=1)
        "".join(reply)
        outcome = "answered"
    except MinkError as error:
        outcome = str(error)
    print(json.dumps([seed, outcome]), flush=True)
"""


def test_300_mutated_copies_kill_no_parent(
    smollm2_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    parents = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                PARENT,
                smollm2_path,
                tmp_path / f"{part}.gguf",
                str(part * 150),
                str(part * 150 + 150),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in range(2)
    ]
    outputs = [parent.communicate() for parent in parents]
    assert [parent.returncode for parent in parents] == [0, 0], [error[-2000:] for _, error in outputs]
    outcomes = dict(json.loads(line) for output, _ in outputs for line in output.splitlines())
    assert sorted(outcomes) == list(range(300))
    refused = [outcome for outcome in outcomes.values() if outcome != "answered"]
    assert 100 < len(refused) < 300  # both kinds were met
    assert all("\n" not in outcome and len(outcome) < 400 for outcome in refused)


def file(path: Path, sha256: str | None = None) -> ModelFile:
    return ModelFile(path.stem, path, sha256)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"GG", "is not a GGUF file"),
        (b"PK\3\4" + bytes(100), "is not a GGUF file"),
        (b"GGUF", "llama.cpp cannot load .*: "),
        (b"GGUF" + bytes(range(256)) * 40, "llama.cpp cannot load .*: this GGUF file is version"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=complaint):
        load_model(str(path))


def test_unsupported_architecture(tiny: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="unknown model architecture: 'parrot'"):
        load_model(str(tiny(arch="parrot")))


def test_vocabulary_without_weights() -> None:
    with pytest.raises(ModelError, match=r"tensor 'token_embd.weight' not found"):
        load_model(str(shared("vocab/ggml-vocab-qwen2.gguf")))


def test_embedding_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.tiny import write_embedding_model

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="is an embedding model: it has no decoder"):
        load_model(str(write_embedding_model(tmp_path / "bert.gguf")))


def test_unreadable_file(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read every file")
    with pytest.raises(ModelError, match="cannot be read: Permission denied"):
        load_model(str(path))


class Tried(Exception):  # noqa: N818
    """Stands for the child process."""


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(*_: object) -> None:
        raise Tried

    monkeypatch.setattr(vetting, "_try_in_child", child)


def test_a_file_that_passed_is_not_tried_again(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny()
    vetting.vet(file(path))

    def child(*_: object) -> None:
        raise Tried

    monkeypatch.setattr(vetting, "_try_in_child", child)
    vetting.vet(file(path))
    os.utime(path, ns=(0, 0))
    with pytest.raises(Tried):
        vetting.vet(file(path))


@pytest.mark.usefixtures("tried")
def test_a_file_that_the_catalogue_vouches_for_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    embedded = resolve("smollm2-135m")
    vetting.vet(embedded)
    monkeypatch.setattr(vetting, "sha256_of", lambda _: pytest.fail("hashed a second time"))
    vetting.vet(embedded)


@pytest.mark.usefixtures("tried")
def test_a_wrong_sha256_vouches_for_nothing(tiny: Callable[..., Path]) -> None:
    with pytest.raises(Tried):
        vetting.vet(file(tiny(), "0" * 64))


@pytest.mark.parametrize("content", ["", "{", "{}", "[1, 2]", "[]", '[["x"]]'])
def test_a_damaged_record_is_begun_anew(tiny: Callable[..., Path], content: str) -> None:
    path = tiny()
    vetting._record().parent.mkdir(parents=True)
    vetting._record().write_text(content)
    vetting.vet(file(path))
    assert str(path) in vetting._record().read_text()


def test_a_cache_that_cannot_be_written_is_done_without(
    tiny: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny()
    (tmp_path / "in the way").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "in the way"))
    vetting.vet(file(path))


@pytest.mark.parametrize(
    ("child", "complaint"),
    [
        ("import os; os.abort()", r"is damaged: it makes llama.cpp crash \(signal 6\)"),
        ("import time; time.sleep(60)", "llama.cpp was not done with it after 2 s"),
        ("raise MemoryError('too much')", r"is damaged: it makes llama.cpp fail \(MemoryError: too much\)"),
        ("print('nonsense')", "is damaged: it makes llama.cpp fail"),
    ],
)
def test_what_the_child_can_come_to(
    tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, child: str, complaint: str
) -> None:
    """The ways of a child with a file that llama.cpp does not survive."""
    run = subprocess.run

    def instead(_: list[str], **options: object) -> object:
        return run([sys.executable, "-c", child], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", instead)
    monkeypatch.setattr(vetting, "_SECONDS", 1.6)
    with pytest.raises(ModelError, match=complaint):
        vetting.vet(file(tiny()))


def test_memory_limit() -> None:
    """The child's limit holds: a file of 1 kB entitles to 8 GiB and no more."""
    code = "from mink_local.models.trust import limit_memory; limit_memory(1000); bytearray(9 << 30)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert child.returncode == 1
    assert "MemoryError" in child.stderr
