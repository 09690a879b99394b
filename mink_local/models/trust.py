"""Finding out in a child process whether a GGUF file brings llama.cpp down.

A damaged file can make llama.cpp abort the whole process, or ask for all the memory there is. So a
file is tried in a child with limits first, unless it has passed before (same path, size and
modification time) or its SHA-256 is the one that `models.txt` vouches for.

`python -m mink_local.models.trust FILE` is that child; it prints one line of JSON.
"""

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from platformdirs import user_cache_path

from mink_local.errors import MinkError, ModelError
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import shards

N_CTX = 512
_GIB = 1 << 30
_MAGIC = b"GGUF"
_SECONDS = 60.0  # for a file of any size, and
_BYTES_PER_SECOND = 20e6  # what the slowest disk reads on top of that

log = logging.getLogger("mink_local")


def vet(file: ModelFile) -> None:
    """Return if llama.cpp can be trusted with the file, raise ModelError with the reason if not."""
    try:
        state = _state(file.path)
        with file.path.open("rb") as stream:
            magic = stream.read(len(_MAGIC))
    except OSError as error:
        raise ModelError(f"{error.filename} cannot be read: {error.strerror}") from None
    if state[0] == 0:
        raise ModelError(f"{file.path} is empty")
    if magic != _MAGIC:
        raise ModelError(f"{file.path} is not a GGUF file: it does not start with {_MAGIC.decode()}")
    if _passed().get(str(file.path)) == state:
        return
    if file.sha256 is None or sha256_of(file.path) != file.sha256:
        if state[0] > _GIB:
            log.warning("trying %s in a child process first (only this once)", file.path.name)
        _try_in_child(file.path, state[0])
    remember(file.path)


def _try_in_child(path: Path, size: int) -> None:
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    try:
        child = run_in_child("mink_local.models.trust", path, seconds)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{path} was refused: llama.cpp was not done with it after {seconds:.0f} s"
        ) from None
    if child.returncode < 0:
        raise ModelError(f"{path} is damaged: it makes llama.cpp crash (signal {-child.returncode})")
    try:
        complaint = json.loads(child.stdout)["complaint"]
    except (ValueError, KeyError, TypeError):
        last = child.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ModelError(f"{path} is damaged: it makes llama.cpp fail ({last})") from None
    if complaint:
        raise ModelError(complaint)


def run_in_child(
    module: str, path: Path, seconds: float, text: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """`python -m module path` with `text` on its standard input; raises TimeoutExpired."""
    return subprocess.run(
        [sys.executable, "-m", module, str(path)],
        cwd=Path(__file__).parents[2],  # -m looks there first: nothing else is to be found
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        input=text,
        capture_output=True,
        timeout=seconds,
        check=False,
    )


def _record() -> Path:
    return user_cache_path("mink-local") / "vetted.json"


def _passed() -> dict[str, object]:
    """Size and modification time of every file that passed, by its path."""
    try:
        passed = json.loads(_record().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return passed if isinstance(passed, dict) else {}


def _state(path: Path) -> list[int]:
    """Bytes and latest modification time, in ns, of a model's file, or of all its parts."""
    status = [part.stat() for part in shards(path)]
    return [sum(each.st_size for each in status), max(each.st_mtime_ns for each in status)]


def remember(path: Path) -> None:
    """Add a file to those that passed. Where the cache cannot be written it is tried again next time."""
    try:
        passed = {**_passed(), str(path): _state(path)}
        _record().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_record().parent, delete=False) as stream:
            json.dump(passed, stream)
        os.replace(stream.name, _record())
    except OSError as error:
        log.info("could not write %s: %s", _record(), error)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def limit_memory(size: int) -> None:
    """Hold this process to the memory that an honest file of `size` bytes needs, and to no core dump."""
    try:
        import resource
    except ImportError:  # Windows: the time limit alone must do
        return
    limit = 3 * size + 8 * _GIB  # weights mapped and repacked, libraries, the context
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _try_file(path: Path) -> None:
    """Do with the file all that a chat does."""
    from mink_local.generation.template import ChatTemplate
    from mink_local.llama.context import Context, Segment
    from mink_local.llama.weights import Weights

    weights = Weights(path)
    context = Context(weights, min(N_CTX, weights.n_ctx_train), n_threads=2)
    for token in range(weights.n_vocab):
        weights.piece(token)
        weights.ends_generation(token)
    template = ChatTemplate(weights)
    try:
        tokens = template.tokens([{"role": "user", "content": "Hello"}])
    except MinkError:  # a template that is broken harms nobody
        tokens = weights.tokenize("Hello", add_special=True, parse_special=False)
    tokens = tokens[: context.n_ctx - 1] or [0]
    context.decode(Segment(tokens, 0))
    context.logits()
    context.decode(Segment(tokens[:1], len(tokens)))


if __name__ == "__main__":
    model_path = Path(sys.argv[1])
    limit_memory(_state(model_path)[0])
    try:
        _try_file(model_path)
    except MinkError as error:
        print(json.dumps({"complaint": str(error)}))
    else:
        print(json.dumps({"complaint": None}))
