"""Contexts: the KV caches over a model's weights, and the batches that llama.cpp evaluates in them."""

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.errors import GenerationError, ModelError
from mink_local.llama import ggml
from mink_local.llama.constants import LIBC, N_BATCH, N_SEQ_MAX, kv_type_number
from mink_local.llama.library import C
from mink_local.llama.log import allocated, logged, reason
from mink_local.llama.weights import Weights, closed

# A C function that reads a flag, as bool (*)(void *): the length of a string of at most one character.
_FLAG_IS_SET = LIBC.strlen
_PAD = 256  # llama.cpp rounds the length of a sequence up to a multiple
_PAUSE = getattr(C._lib, "omp_pause_resource_all", None)  # llama.cpp may be built without OpenMP
_SOFTLY = 1  # omp_pause_soft
_FORMAT = 2  # of snapshots
_PARTIAL = C.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
_address_of_logits = ggml.function("llama_get_logits", ctypes.c_void_p, ctypes.c_void_p)


class Segment(NamedTuple):
    """Consecutive tokens of one sequence, to be evaluated in a batch.

    Attributes:
        position: Position of the first token in its sequence.
        n_outputs: Number of tokens, counted from the end, that yield logits.
    """

    tokens: Sequence[int]
    position: int
    seq_id: int = 0
    n_outputs: int = 1

    @property
    def is_later(self) -> bool:
        """Whether its logits come after those of others' next tokens, computed with its first one."""
        return self.n_outputs < len(self.tokens)


Next = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""The next token of each of several sequences, which yields logits: token ids, their positions, and the
sequences, in ascending order. No class, which takes longer to make: each step has one."""

NOTHING: Next = ((), (), ())

States = Mapping[int, NDArray[np.uint8]]
"""Checkpoints of a sequence, by the number of tokens before them."""


def end_workers() -> None:
    """End the threads that help the calling one to evaluate batches on a CPU; the next batch starts others.

    While a process has more of them than cores, as with two models, GNU's OpenMP has each wait asleep for the
    others, and a step takes more than twice as long.
    """
    if _PAUSE is not None:
        _PAUSE(_SOFTLY)


class Context:
    """KV caches for several sequences, and the evaluation of batches of tokens in them.

    Args:
        n_ctx: Tokens per sequence; llama.cpp may round it, and the attribute holds the result.
        n_outputs: Maximum number of tokens in a batch that yield logits; at least one per sequence.
        kv_type: Type of the KV cache, one of KV_TYPES; "q8_0" takes about half the memory of "f16".
        flash_attn: Whether to use flash attention, which a quantized cache needs; None lets llama.cpp decide.
        checkpoint_memory: Bytes that checkpoints of all sequences may take; 0 for none.

    Attributes:
        can_rewind: Whether a sequence can forget just its end. Recurrent models and hybrids, such as Mamba,
            LFM2 and Qwen3.5, can only go back to a checkpoint.

    Raises:
        ValueError: Unknown `kv_type`, or a quantized one without flash attention.
        ModelError: Memory is insufficient, or the model does not support this KV cache.
    """

    def __init__(
        self,
        weights: Weights,
        n_ctx: int,
        n_threads: int,
        n_seq: int = 1,
        n_outputs: int = 0,
        kv_type: str = "f16",
        flash_attn: bool | None = None,
        checkpoint_memory: int = 0,
    ) -> None:
        type_number = kv_type_number(kv_type)
        if kv_type.startswith("q") and flash_attn is False:
            raise ValueError(f"kv_type {kv_type} needs flash attention: omit flash_attn, or use f16")
        params = C.llama_context_default_params()
        n_ctx = -(-n_ctx // _PAD) * _PAD  # or llama.cpp limits the batch to less
        params.n_ctx = n_ctx * n_seq
        params.n_seq_max = n_seq
        params.n_batch = params.n_ubatch = min(N_BATCH, n_ctx * n_seq)
        params.n_outputs_max = max(n_outputs, n_seq)
        params.n_threads = params.n_threads_batch = n_threads
        params.type_k = params.type_v = type_number
        params.flash_attn_type = C.LLAMA_FLASH_ATTN_TYPE_AUTO if flash_attn is None else int(flash_attn)
        self._interrupt = (ctypes.c_uint8 * 2)()  # a string of at most one character
        # On a CPU, llama.cpp polls this between nodes of its graph, so even in the middle of a batch.
        params.abort_callback = ctypes.cast(_FLAG_IS_SET, C.ggml_abort_callback)
        params.abort_callback_data = ctypes.addressof(self._interrupt)
        handle = allocated(partial(C.llama_init_from_model, weights.handle, params), weights.verbose)
        if not handle:
            raise ModelError(f"no context of {n_seq} x {n_ctx} tokens for {weights.path}: {reason()}")
        # The finalizer holds the weights: a context must be freed before its model.
        self._free = weakref.finalize(
            self, lambda handle, *_: C.llama_free(handle), handle, weights, self._interrupt
        )
        self._handle, self._name = handle, weights.path.stem
        if not self._memory:
            raise ModelError(f"{weights.path} is an embedding model: it cannot generate text")
        weights.contexts.add(self)
        self.n_ctx: int = C.llama_n_ctx_seq(self.handle)
        self.n_batch: int = C.llama_n_batch(self.handle)  # maximum batch size
        self.n_seq, self.n_threads, self.n_outputs = n_seq, n_threads, params.n_outputs_max
        self.kv_type, self.n_vocab, self._verbose = kv_type, weights.n_vocab, weights.verbose
        # What a snapshot belongs to: the state has a part for each sequence.
        self.settings = f"{_FORMAT} {weights.file} {kv_type} {n_seq} {C.llama_version()!r}".encode(
            errors="replace"
        )
        model = weights.handle
        self.can_rewind = not (C.llama_model_is_hybrid(model) or C.llama_model_is_recurrent(model))
        # A copy that waits for the next batch would overwrite the part of a checkpoint that is in a window.
        self._has_window = C.llama_model_n_swa(model) > 0
        self.checkpoint_memory = 0 if self.can_rewind else checkpoint_memory
        self.n_evaluated = 0  # tokens so far
        self._n_rows = 0  # of the last batch
        self._rows_at = 0, 0  # address and number of `_rows`
        self._copies: dict[int, int] = {}  # sources by targets: llama.cpp copies only with its next batch
        self._batch = _TokenBatch(self.n_batch)

    def close(self) -> None:
        """Free the memory; idempotent."""
        self._free()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._free.alive

    @property
    def handle(self) -> Any:
        """llama.cpp's context. Raises ModelError if it is closed."""
        if self.is_closed:
            raise closed(self._name)
        return self._handle

    @property
    def _memory(self) -> Any:
        return C.llama_get_memory(self.handle)

    @property
    def interrupted(self) -> bool:
        """Whether to interrupt; any thread may set this, and on a CPU the running batch stops soon after."""
        return self._interrupt[0] != 0

    @interrupted.setter
    def interrupted(self, value: bool) -> None:
        self._interrupt[0] = value

    def decode(self, *segments: Segment, following: Next = NOTHING) -> bool:
        """Evaluate a batch of at most one segment per sequence and `n_batch` tokens in total.

        Args:
            segments: Those of sequences that are not in `following`.
            following: The next tokens of other sequences.

        Returns:
            False if interrupted: the KV cache then holds some of the segments' tokens, or none.

        Raises:
            GenerationError: llama.cpp failed.
            ModelError: The context is closed.
        """
        handle = self.handle
        batch = self._batch.fill(following, segments)
        self._n_rows = len(following[0]) + sum(segment.n_outputs for segment in segments)
        with logged(self._verbose):
            status = C.llama_decode(handle, batch)
        if status >= 0:
            self._copies.clear()
        if status == 2:
            return False
        n_tokens: int = batch.n_tokens
        if status != 0:
            raise GenerationError(f"llama.cpp failed on {n_tokens} tokens (status {status}): {reason()}")
        self.n_evaluated += n_tokens
        return True

    @property
    def rows(self) -> NDArray[np.float32]:
        """The logits of the last batch, (outputs, V), in its order: llama.cpp's memory, until the next one.

        On a GPU, this waits for the batch.
        """
        address = _address_of_logits(self.handle)
        if not address:
            raise GenerationError("llama.cpp has no logits: nothing was evaluated")
        if self._rows_at != (address, self._n_rows):  # it is seldom moved
            self._rows_at = address, self._n_rows
            memory: Any = (ctypes.c_float * (self._n_rows * self.n_vocab)).from_address(address)
            self._rows = np.frombuffer(memory, np.float32).reshape(self._n_rows, self.n_vocab)
        return self._rows

    def truncate(self, length: int, seq_id: int = 0) -> bool:
        """Remove all but a sequence's first `length` tokens; return False if the model cannot."""
        return bool(C.llama_memory_seq_rm(self._memory, seq_id, length, -1))

    def copy(self, source: int, target: int) -> None:
        """Copy sequence `source` to `target`, which must be empty, with the next batch."""
        C.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self._copies[target] = source

    def is_copied(self, seq_id: int) -> bool:
        """Return whether a sequence waits for no copy, so that a snapshot has its keys and values."""
        return seq_id not in self._copies

    def clear(self, seq_id: int = 0) -> None:
        """Remove a whole sequence, which every model supports."""
        C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)

    def state_size(self, seq_id: int = 0) -> int:
        """Return the size in bytes of a sequence's keys and values."""
        return int(C.llama_state_seq_get_size(self.handle, seq_id))

    def checkpoint(self, seq_id: int = 0) -> NDArray[np.uint8]:
        """Return what a sequence needs to come back to where it is; see `rewind`."""
        state = np.empty(C.llama_state_seq_get_size_ext(self.handle, seq_id, _PARTIAL), np.uint8)
        values = _pointer(state, ctypes.c_uint8)
        C.llama_state_seq_get_data_ext(self.handle, values, len(state), seq_id, _PARTIAL)
        return state

    def rewind(self, length: int, checkpoint: NDArray[np.uint8], seq_id: int = 0) -> bool:
        """Remove all but a sequence's first `length` tokens, after which a checkpoint was made.

        Returns False if that is not possible: the sequence has to be cleared then.
        """
        if self._has_window and not self.is_copied(seq_id):
            return False
        values = _pointer(checkpoint, ctypes.c_uint8)
        n_read = C.llama_state_seq_set_data_ext(self.handle, values, len(checkpoint), seq_id, _PARTIAL)
        return bool(n_read) and self.truncate(length, seq_id)

    def snapshot(
        self, tokens: Sequence[int], seq_id: int = 0, checkpoints: States = MappingProxyType({})
    ) -> bytearray:
        """Return a sequence's keys and values, after its tokens and checkpoints; see `is_copied`.

        It begins with the number of tokens, their ids, the number of checkpoints, and how many tokens are
        before each, all int32.
        """
        head = np.array([len(tokens), *tokens, len(checkpoints), *checkpoints], np.int32)
        sizes = np.array([len(state) for state in checkpoints.values()], np.int64)
        parts: tuple[NDArray[Any], ...] = (head, sizes, *checkpoints.values())
        begin, size = b"".join(part.tobytes() for part in parts), self.state_size(seq_id)
        data = bytearray(len(begin) + size)
        data[: len(begin)] = begin
        copied = (ctypes.c_uint8 * size).from_buffer(data, len(begin))
        C.llama_state_seq_get_data(self.handle, copied, size, seq_id)
        return data

    def may_restore(self, snapshot: NDArray[np.uint8], seq_id: int = 0) -> bool:
        """Return whether a snapshot fits, and no copy from or to a sequence is waiting for the next batch."""
        n_tokens = int(snapshot[:4].view(np.int32)[0])
        return n_tokens <= self.n_ctx and seq_id not in {*self._copies, *self._copies.values()}

    def restore(self, snapshot: NDArray[np.uint8], seq_id: int = 0) -> tuple[list[int], States]:
        """Replace a sequence by a snapshot that `may_restore`; return its token ids and checkpoints.

        There are none, and the sequence is empty, if llama.cpp refuses it, or finds another number of tokens.
        """
        handle, (tokens, checkpoints, state) = self.handle, _parts(snapshot)
        values = _pointer(state, ctypes.c_uint8)
        if C.llama_state_seq_set_data(handle, values, len(state), seq_id) and (
            C.llama_memory_seq_pos_max(self._memory, seq_id) == len(tokens) - 1
        ):
            return tokens, checkpoints
        self.clear(seq_id)
        return [], {}


def head_of(numbers: NDArray[np.int32]) -> tuple[list[int], list[int]]:
    """Return the token ids in the numbers that a snapshot begins with, and the places of its checkpoints.

    Of a damaged one, as many as there are.
    """
    tokens, rest = _counted(numbers)
    return tokens.tolist(), _counted(rest)[0].tolist()


def _counted(numbers: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return as many numbers as the first one says, and what follows them."""
    end = 1 + max([0, *numbers[:1].tolist()])
    return numbers[1:end], numbers[end:]


def _parts(snapshot: NDArray[np.uint8]) -> tuple[list[int], States, NDArray[np.uint8]]:
    """Return what a snapshot consists of: token ids, checkpoints, keys and values."""
    tokens, places = head_of(snapshot[: len(snapshot) // 4 * 4].view(np.int32))
    begin = 4 * (2 + len(tokens) + len(places))
    end = begin + 8 * len(places)
    sizes = snapshot[begin:end].copy().view(np.int64)
    *states, values = np.split(snapshot[end:], np.cumsum(sizes))
    return tokens, {place: each.copy() for place, each in zip(places, states, strict=True)}, values


class _TokenBatch:
    """A llama_batch over NumPy arrays, which are faster to fill than those of llama_batch_init."""

    def __init__(self, n_batch: int) -> None:
        self._token = np.zeros(n_batch, np.int32)
        self._pos = np.zeros(n_batch, np.int32)
        self._n_seq_id = np.ones(n_batch, np.int32)
        self._seq_id = np.zeros(n_batch, np.int32)
        self._seq_ids = self._seq_id.ctypes.data + np.arange(n_batch, dtype=np.uintp) * self._seq_id.itemsize
        self._output = np.zeros(n_batch, np.int8)
        self._later = np.zeros(n_batch, np.int32)
        self._filled: object = None  # the sequences of `Next`, if the batch has no others
        self._struct = C.llama_batch(
            token=_pointer(self._token, C.llama_token),
            pos=_pointer(self._pos, C.llama_pos),
            n_seq_id=_pointer(self._n_seq_id, ctypes.c_int32),
            seq_id=_pointer(self._seq_ids, ctypes.POINTER(C.llama_seq_id)),
            logits=_pointer(self._output, ctypes.c_int8),
        )

    def fill(self, following: Next, segments: Sequence[Segment]) -> C.llama_batch:
        next_tokens, positions, sequences = following
        end = len(next_tokens)
        self._token[:end], self._pos[:end] = next_tokens, positions
        if sequences is self._filled and not segments:
            return self._struct
        self._filled = None if segments else sequences
        self._seq_id[:end], self._output[:end], self._later[:end] = sequences, 1, 0
        for segment in segments:
            start, end = end, end + len(segment.tokens)
            self._token[start:end], self._seq_id[start:end] = segment.tokens, segment.seq_id
            self._pos[start:end] = np.arange(segment.position, segment.position + end - start)
            self._output[start:end], self._later[start:end] = 0, segment.is_later * N_SEQ_MAX
            self._output[end - segment.n_outputs : end], self._later[start] = 1, 0
        self._struct.n_tokens = end
        if segments and len(next_tokens):
            # llama.cpp evaluates only adjacent sequences together, in this order: at first a token of each.
            # It then moves the rows of logits that it has computed in another order than the batch's.
            order = np.argsort(self._seq_id[:end] + self._later[:end], kind="stable")
            for column in (self._token, self._pos, self._seq_id, self._output):
                column[:end] = column[:end][order]
        return self._struct


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
