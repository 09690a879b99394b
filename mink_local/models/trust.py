"""Refuses GGUF files that make llama.cpp crash.

A damaged file can make llama.cpp abort the whole process or use up all memory. So a file is first used in a
child process, which runs this module, unless its SHA-256 is the catalogue's, or it has passed before with the
same llama.cpp (same path, size and modification time).
"""

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

from mink_local.errors import MinkError, ModelError
from mink_local.files import add_to_record, read_record, sha256_of, user_folder
from mink_local.llama.library import C, binding
from mink_local.llama.weights import Weights
from mink_local.models.catalog import ModelFile
from mink_local.models.gguf import read_metadata, shards
from mink_local.models.memory import keeps_states
from mink_local.models.stores import is_of_ollama
from mink_local.sandbox import GIB, SandboxError, ask, serve

_SECONDS = 60.0  # for a file of any size, plus
_BYTES_PER_SECOND = 20e6  # reading it from the slowest disk
_N_CTX = 512
_N_TOKENS = 8  # enough for a batch, few enough for a large model on one thread

log = logging.getLogger("mink_local")


def check(file: ModelFile, n_seq: int = 1) -> None:
    """Test a model file in a child process unless it is known to be good.

    Args:
        n_seq: Number of answers at a time, with which llama.cpp crashes for some recurrent models.

    Raises:
        ModelError: The file cannot be read, is not a model, or makes llama.cpp crash.
        ChildStartError: The child process does not start.
    """
    path = file.path.absolute()
    try:
        size, *_ = file_state(path)
        n_seq = n_seq if n_seq > 1 and _keeps_states(path) else 1
        key = _key(path, n_seq)
        if read_record(_record_path()).get(key) == file_state(path):
            return
        if n_seq > 1 or file.sha256 is None or sha256_of(path) != file.sha256:
            if size > GIB:
                log.warning("testing %s in a child process first (only this once)", path.name)
            if complaint := _try_in_child(path, size, n_seq):
                raise ModelError(complaint)
        remember(path, n_seq)
    except OSError as error:
        raise ModelError(f"cannot read {error.filename}: {error.strerror}") from None


def is_known(path: Path) -> bool:
    """Return whether the installed llama.cpp knows a model's architecture and vocabulary.

    Its tensors are not read, in a child process.
    """
    path = path.absolute()
    try:
        return read_record(_record_path()).get(_key(path)) == file_state(path) or not _ask(path, 0)
    except (MinkError, OSError, SandboxError):
        return False


@lru_cache(maxsize=16)
def _keeps_states(path: Path) -> bool:
    """Return whether a model has recurrent layers, or may have, since only llama.cpp can read the file."""
    try:
        return keeps_states(read_metadata(path))
    except ModelError:
        return True


def _key(path: Path, n_seq: int = 1) -> str:
    return f"{path}" if n_seq == 1 else f"{path} × {n_seq}"


def _try_in_child(path: Path, size: int, n_seq: int) -> str | None:
    """Return what is wrong with a model, or None."""
    try:
        complaint = _ask(path, n_seq, size)
    except SandboxError as error:
        if n_seq > 1 and _try_in_child(path, size, 1) is None:
            return f"llama.cpp {error} for {n_seq} answers of {path.name} at a time: choose another number"
        complaint = (
            f"{path} cannot be loaded: llama.cpp {error}: it is damaged, or not for this version; get another"
        )
    if complaint and is_of_ollama(path):
        return f"{complaint} (it may be made for Ollama's own engine: get the model from the Hub)"
    return complaint


def _ask(path: Path, n_seq: int, size: int = 0) -> str | None:
    """Return what a child process finds wrong with a model; without answers, it reads only the vocabulary."""
    seconds = _SECONDS + size / _BYTES_PER_SECOND
    memory = 2 * size + 4 * GIB  # mapped and repacked weights, libraries, context
    complaint = ask("mink_local.models.trust", [str(path), n_seq], seconds=seconds, memory=memory)
    return None if complaint is None else str(complaint)


def remember(path: Path, n_seq: int = 1) -> None:
    """Record that a file has passed, with so many answers at a time.

    If the record cannot be written, the file is tested again next time. Raises OSError if the file cannot be
    read.
    """
    path = path.absolute()
    add_to_record(_record_path(), _key(path, n_seq), file_state(path))


def file_state(path: Path) -> list[Any]:
    """Return the size and latest modification time (ns) of a model's files, and llama.cpp's version."""
    status = [shard.stat() for shard in shards(path)]
    size, modified = sum(each.st_size for each in status), max(each.st_mtime_ns for each in status)
    return [size, modified, binding.__version__]


def _record_path() -> Path:
    return user_folder("cache") / "vetted.json"


def _complaint(question: tuple[str, int]) -> str | None:
    """Return what is wrong with a model file, or None; in a child, since llama.cpp may abort."""
    path, n_seq = question
    try:
        weights = Weights(Path(path), vocab_only=not n_seq)
        if n_seq:
            _use(weights, n_seq)
    except MinkError as error:
        return str(error)
    return None


def _use(weights: Weights, n_seq: int) -> None:
    """Have llama.cpp do everything with a model that a chat would."""
    for token in range(weights.n_vocab):
        weights.piece(token)
    weights.end_tokens  # noqa: B018  (looked up for each token)
    few = (C.llama_token * _N_TOKENS)()
    for byte in range(256):  # llama.cpp aborts on a byte that the vocabulary lacks
        C.llama_tokenize(weights.vocab, bytes([byte]), 1, few, len(few), False, False)
    prompt = "".join((weights.bos, "Hello", weights.eos, *weights.control_tokens))
    tokens = weights.tokenize(prompt, add_special=True, parse_special=True)
    params = C.llama_context_default_params()
    params.n_ctx = min(_N_CTX, weights.n_ctx_train) * n_seq
    params.n_seq_max = n_seq
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
