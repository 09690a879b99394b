"""Refuses GGUF files that make llama.cpp crash.

A damaged file can make llama.cpp abort the whole process or use up all memory. So a file is first used in a
child process, which runs this module, unless its SHA-256 is the catalogue's, or it has passed before with the
same llama.cpp (same path, size and modification time).
"""

import logging
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from mink_local.errors import MinkError, ModelError
from mink_local.files import add_to_record, read_record, sha256_of
from mink_local.llama.library import C, binding
from mink_local.llama.weights import Weights
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import shards
from mink_local.sandbox import GIB, SandboxError, ask, serve

_SECONDS = 60.0  # for a file of any size, plus
_BYTES_PER_SECOND = 20e6  # reading it from the slowest disk
_N_CTX = 512
_N_TOKENS = 8  # enough for a batch, few enough for a large model on one thread

log = logging.getLogger("mink_local")


def check(file: ModelFile) -> None:
    """Test a model file in a child process unless it is known to be good.

    Raises:
        ModelError: The file cannot be read, is not a model, or makes llama.cpp crash.
        ChildStartError: The child process does not start.
    """
    path = file.path.absolute()
    try:
        size, *_ = file_state(path)
        if read_record(_record_path()).get(str(path)) == file_state(path):
            return
        if file.sha256 is None or sha256_of(path) != file.sha256:
            if size > GIB:
                log.warning("testing %s in a child process first (only this once)", path.name)
            if complaint := _try_in_child(path, size):
                raise ModelError(complaint)
        remember(path)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}") from None


def _try_in_child(path: Path, size: int) -> str | None:
    """Return what is wrong with a model, or None."""
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    memory = 2 * size + 4 * GIB  # mapped and repacked weights, libraries, context
    try:
        complaint = ask("mink_local.models.trust", str(path), seconds=seconds, memory=memory)
    except SandboxError as error:
        return (
            f"{path} cannot be loaded: llama.cpp {error}: it is damaged, or not for this version; get another"
        )
    return None if complaint is None else str(complaint)


def remember(path: Path) -> None:
    """Record that a file has passed; if the record cannot be written, the file is tested again next time.

    Raises OSError if the file cannot be read.
    """
    path = path.absolute()
    add_to_record(_record_path(), str(path), file_state(path))


def file_state(path: Path) -> list[Any]:
    """Return the size and latest modification time (ns) of a model's files, and llama.cpp's version."""
    status = [shard.stat() for shard in shards(path)]
    size, modified = sum(each.st_size for each in status), max(each.st_mtime_ns for each in status)
    return [size, modified, binding.__version__]


def _record_path() -> Path:
    return user_cache_path("mink-local") / "vetted.json"


def _complaint(path: str) -> str | None:
    """Return what is wrong with a model file, or None; in a child, since llama.cpp may abort."""
    try:
        _use(Weights(Path(path)))
    except MinkError as error:
        return str(error)
    return None


def _use(weights: Weights) -> None:
    """Have llama.cpp do everything with a model that a chat would."""
    for token in range(weights.n_vocab):
        weights.piece(token)
        weights.ends_generation(token)
    few = (C.llama_token * _N_TOKENS)()
    for byte in range(256):  # llama.cpp aborts on a byte that the vocabulary lacks
        C.llama_tokenize(weights.vocab, bytes([byte]), 1, few, len(few), False, False)
    prompt = "".join((weights.bos, "Hello", weights.eos, *weights.control_tokens))
    tokens = weights.tokenize(prompt, add_special=True, parse_special=True)
    params = C.llama_context_default_params()
    params.n_ctx = min(_N_CTX, weights.n_ctx_train)
    params.n_threads = params.n_threads_batch = 1  # two would wait for each other on a busy machine
    context = C.llama_init_from_model(weights.handle, params)
    if not context or not C.llama_get_memory(context):
        return  # loading the model will tell why
    for part in (tokens[:_N_TOKENS], tokens[:1]):
        array = (C.llama_token * len(part))(*part)
        C.llama_decode(context, C.llama_batch_get_one(array, len(part)))
        C.llama_get_logits_ith(context, -1)


if __name__ == "__main__":
    serve(lambda _: _complaint)
