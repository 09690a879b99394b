"""KV caches over a model's weights, and the batches that llama.cpp evaluates in them."""

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError, ModelError
from mink_local.llama.log import logged, reason
from mink_local.llama.weights import Weights
from mink_local.samplers.kernels import flag_is_set

ALL_LAYERS = -1  # as a number of layers on the GPU
N_BATCH = 512  # most tokens in one llama_decode; a longer batch aborts the process
N_SEQ_MAX: int = C.llama_max_parallel_sequences()
RANDOM_SEED: int = C.LLAMA_DEFAULT_SEED  # the one seed that llama.cpp takes to mean "any"
MAX_SEED = RANDOM_SEED - 1


class Segment(NamedTuple):
    """Consecutive tokens of one sequence, for a batch: they stand at `position` and on. `n_outputs`: of how
    many of the last ones logits, or a token from the sampler that is attached, are wanted."""

    tokens: Sequence[int]
    position: int
    seq_id: int = 0
    n_outputs: int = 1


class Context:
    """KV caches of `n_ctx` tokens for each of `n_seq` sequences over `weights`, and the batches that fill
    them, which have room for the logits of `n_outputs` tokens, by default one for each sequence.

    `n_ctx` is what llama.cpp made of the number asked for. Raises ModelError where the memory for it
    is not to be had or the model has no KV cache to generate with.
    """

    def __init__(
        self, weights: Weights, n_ctx: int, n_threads: int, n_seq: int = 1, n_outputs: int = 0
    ) -> None:
        params = C.llama_context_default_params()
        params.n_ctx = n_ctx * n_seq
        params.n_seq_max = n_seq
        params.n_batch = params.n_ubatch = min(N_BATCH, params.n_ctx)
        self.n_outputs = params.n_outputs_max = n_outputs or n_seq
        params.n_threads = params.n_threads_batch = n_threads
        self._interrupt = ctypes.c_uint8(0)
        params.abort_callback = C.ggml_abort_callback(flag_is_set.address)
        params.abort_callback_data = ctypes.addressof(self._interrupt)
        with logged(weights.verbose):
            self.handle = C.llama_init_from_model(weights.handle, params)
        if not self.handle:
            raise ModelError(f"no context of {n_seq} x {n_ctx} tokens for {weights.path}: {reason()}")
        # The finalizer holds the weights: a context must be freed before its model.
        weakref.finalize(self, _free_context, self.handle, weights, self._interrupt)
        self._memory = C.llama_get_memory(self.handle)
        if not self._memory:
            raise ModelError(f"{weights.path} is an embedding model: it has no decoder to write with")
        self.n_ctx: int = C.llama_n_ctx_seq(self.handle)
        self.n_seq = n_seq
        self.n_threads = n_threads
        self.n_batch: int = C.llama_n_batch(self.handle)
        self._n_vocab, self._verbose = weights.n_vocab, weights.verbose
        self._views: dict[int, NDArray[np.float32]] = {}
        self._chains: dict[int, Any] = {}
        self._batch = _Batch(self.n_batch)

    @property
    def interrupted(self) -> bool:
        return self._interrupt.value != 0

    @interrupted.setter
    def interrupted(self, value: bool) -> None:
        """May be set from any thread: a batch that is being decoded on the CPU stops soon after."""
        self._interrupt.value = value

    def decode(self, *segments: Segment) -> bool:
        """Evaluate parts of as many sequences, together no more than `n_batch` tokens.

        Returns False where it was interrupted: nothing of the parts may be relied on then.
        Raises GenerationError where llama.cpp fails.
        """
        with logged(self._verbose):
            status = C.llama_decode(self.handle, self._batch.fill(segments))
        if status == 2:
            return False
        if status != 0:
            n_tokens = sum(len(segment.tokens) for segment in segments)
            raise GenerationError(
                f"llama.cpp failed on {n_tokens} tokens of {len(segments)} sequences "
                f"(status {status}): {reason()}"
            )
        return True

    def logits(self, output: int = -1) -> NDArray[np.float32]:
        """The logits (V,) of a token of the last batch that was an output, by its place in the batch;
        by default of the last one. Where llama.cpp holds them, until the next batch."""
        pointer = C.llama_get_logits_ith(self.handle, output)
        if not pointer:
            raise GenerationError("llama.cpp has no logits for a token that they were asked for")
        address = ctypes.addressof(pointer.contents)
        if address not in self._views:
            if len(self._views) >= self.n_outputs:  # llama.cpp has moved them
                self._views.clear()
            array = (ctypes.c_float * self._n_vocab).from_address(address)
            self._views[address] = np.ctypeslib.as_array(array)
        return self._views[address]

    def attach(self, chain: Any, seq_id: int = 0) -> None:
        """Have llama.cpp sample a sequence by a llama_sampler_chain, in place of the one before, inside
        its graph, and give no logits for it. The chain must be detached before it is freed."""
        if not C.llama_set_sampler(self.handle, seq_id, chain):
            raise GenerationError("llama.cpp does not sample in the graph of this model")
        self._chains[seq_id] = chain

    def detach(self, chain: Any = None, seq_id: int = 0) -> None:
        """Have llama.cpp give logits for a sequence again, unless another chain than this is attached."""
        if seq_id in self._chains and chain in (None, self._chains[seq_id]):
            C.llama_set_sampler(self.handle, seq_id, None)
            del self._chains[seq_id]

    def sampled(self, output: int = -1) -> tuple[int, float]:
        """The token that the attached chain drew for an output of the last batch, and the first of
        what it left as probabilities."""
        token = C.llama_get_sampled_token_ith(self.handle, output)
        report = C.llama_get_sampled_probs_ith(self.handle, output)
        if token < 0 or not report:
            raise GenerationError("llama.cpp sampled no token in its graph")
        return token, report[0]

    def truncate(self, length: int, seq_id: int = 0) -> bool:
        """Forget all but the first `length` tokens of a sequence; False where the model cannot."""
        return bool(C.llama_memory_seq_rm(self._memory, seq_id, length, -1))

    def copy(self, source: int, target: int) -> None:
        """Have the sequence `target`, which must be empty, hold what `source` does."""
        C.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def clear(self, seq_id: int = 0) -> None:
        """Forget a whole sequence, which every model can."""
        C.llama_memory_seq_rm(self._memory, seq_id, -1, -1)


class _Batch:
    """A llama_batch over arrays of ours: llama_batch_init's would be filled element by element."""

    def __init__(self, n_batch: int) -> None:
        self._token = np.zeros(n_batch, np.int32)
        self._pos = np.zeros(n_batch, np.int32)
        self._n_seq_id = np.ones(n_batch, np.int32)
        self._seq_id = np.zeros(n_batch, np.int32)
        self._seq_ids = self._seq_id.ctypes.data + np.arange(n_batch, dtype=np.uintp) * self._seq_id.itemsize
        self._output = np.zeros(n_batch, np.int8)
        self._struct = C.llama_batch(
            token=_pointer(self._token, C.llama_token),
            pos=_pointer(self._pos, C.llama_pos),
            n_seq_id=_pointer(self._n_seq_id, ctypes.c_int32),
            seq_id=_pointer(self._seq_ids, ctypes.POINTER(C.llama_seq_id)),
            logits=_pointer(self._output, ctypes.c_int8),
        )

    def fill(self, segments: Iterable[Segment]) -> C.llama_batch:
        end = 0
        for tokens, position, seq_id, n_outputs in segments:
            start, end = end, end + len(tokens)
            self._token[start:end] = tokens
            self._pos[start:end] = range(position, position + len(tokens))
            self._seq_id[start:end] = seq_id
            self._output[start : end - n_outputs] = 0
            self._output[end - n_outputs : end] = 1
        self._struct.n_tokens = end
        return self._struct


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _free_context(handle: object, *_: object) -> None:
    C.llama_free(handle)
