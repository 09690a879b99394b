"""llama.cpp through the bindings of llama-cpp-python: `Weights` is a GGUF file that llama.cpp has
loaded, `Context` a KV cache to decode batches with.

Numba is not imported here: it takes as long as loading a small model, and the two overlap.
"""

import ctypes
import sys
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError, ModelError

ALL_LAYERS = -1
N_BATCH = 512  # most tokens in one llama_decode; a longer batch aborts the process
N_SEQ_MAX: int = C.llama_max_parallel_sequences()
RANDOM_SEED = C.LLAMA_DEFAULT_SEED  # the one seed that llama.cpp takes to mean "any"

_ERROR, _CONTINUED = 4, 5  # of enum ggml_log_level


class _Log:
    """Where llama.cpp's log goes: to standard error, or nowhere but for its errors, which are kept."""

    def __init__(self) -> None:
        self._verbose = False
        self._errors: deque[str] = deque(maxlen=20)
        self._level = 0
        self._callback = C.llama_log_callback(self._take)

    def begin(self, verbose: bool) -> None:
        """Start anew: what `reason` says is about what comes now."""
        self._verbose = verbose
        self._errors.clear()
        C.llama_log_set(self._callback, None)

    def _take(self, level: int, text: bytes, _: object) -> None:
        self._level = self._level if level == _CONTINUED else level
        line = text.decode("utf-8", "replace")
        if self._level == _ERROR:
            self._errors.append(line.strip() or "an error without words")
        if self._verbose:
            print(line, end="", file=sys.stderr, flush=True)

    def reason(self) -> str:
        """llama.cpp's first complaint, without the name of the function that it is from."""
        if not self._errors:
            return "llama.cpp gave no reason"
        first = self._errors[0].splitlines()[0]
        return (first.partition(": ")[2] or first).removeprefix("error loading model: ")


_log = _Log()


def gpu_missing() -> str | None:
    """Why no layer can go to a GPU, or None if one can."""
    C.llama_backend_init()
    if C.llama_supports_gpu_offload():
        return None
    if any(name in C.llama_print_system_info() for name in (b"CUDA", b"Metal", b"Vulkan", b"HIP")):
        return "no GPU was found"
    return "llama-cpp-python was built without GPU support"


class Weights:
    """A GGUF file loaded by llama.cpp: tensors, vocabulary and chat template.

    n_gpu_layers: how many layers go to the GPU, ALL_LAYERS for every one.
    Raises ModelError where llama.cpp does not load the file or it is no model that writes text.
    A damaged file can abort the process inside llama.cpp: see `vetting`.
    """

    def __init__(self, path: Path, n_gpu_layers: int = 0, verbose: bool = False) -> None:
        _log.begin(verbose)
        C.llama_backend_init()
        params = C.llama_model_default_params()
        params.n_gpu_layers = n_gpu_layers
        self.handle = C.llama_model_load_from_file(bytes(path), params)
        if not self.handle:
            raise ModelError(f"llama.cpp cannot load {path}: {_log.reason()}")
        weakref.finalize(self, C.llama_model_free, self.handle)
        self.path = path
        self.on_gpu = n_gpu_layers != 0  # the output layer is the first to go there
        self.vocab = C.llama_model_get_vocab(self.handle)
        self.n_vocab: int = C.llama_vocab_n_tokens(self.vocab)
        self.n_layers: int = C.llama_model_n_layer(self.handle)
        self.n_ctx_train: int = C.llama_model_n_ctx_train(self.handle)
        self._pieces: dict[int, bytes] = {}
        if C.llama_vocab_type(self.vocab) == C.LLAMA_VOCAB_TYPE_NONE or self.n_vocab == 0:
            raise ModelError(f"{path} has no vocabulary: it cannot read or write text")
        if C.llama_model_has_encoder(self.handle) or not C.llama_model_has_decoder(self.handle):
            raise ModelError(f"{path} is not a decoder-only model: it cannot be chatted with")
        if C.llama_model_is_diffusion(self.handle):
            raise ModelError(f"{path} is a diffusion model: it does not write token by token")

    @cached_property
    def chat_template(self) -> str | None:
        """The Jinja source in the file, or None where it has none."""
        template = C.llama_model_chat_template(self.handle, None)
        return template.decode("utf-8", "replace") if template else None

    @cached_property
    def control_tokens(self) -> tuple[str, ...]:
        """The texts that the tokenizer may read as a control token instead of as text."""
        special = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        return tuple(
            self.token_text(token)
            for token in range(self.n_vocab)
            if C.llama_vocab_get_attr(self.vocab, token) & special
        )

    @cached_property
    def bos(self) -> str:
        return self.token_text(C.llama_vocab_bos(self.vocab))

    @cached_property
    def eos(self) -> str:
        return self.token_text(C.llama_vocab_eos(self.vocab))

    def token_text(self, token: int) -> str:
        """A token as the vocabulary spells it; empty for the -1 of a token that is not there."""
        text = C.llama_vocab_get_text(self.vocab, token) if 0 <= token < self.n_vocab else b""
        return (text or b"").decode("utf-8", "replace")

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Token ids of `text`. `parse_special` reads control tokens in it as such."""
        data = text.encode("utf-8", "replace")
        tokens = (C.llama_token * (len(data) + 8))()
        args = (tokens, len(tokens), add_special, parse_special)
        n_tokens = C.llama_tokenize(self.vocab, data, len(data), *args)
        if n_tokens < 0:
            raise GenerationError(f"llama.cpp could not tokenize a text of {len(data)} bytes")
        return list(tokens[:n_tokens])

    def piece(self, token: int) -> bytes:
        """The bytes that a token writes, perhaps part of a character; none for a control token."""
        if token not in self._pieces:
            buffer = ctypes.create_string_buffer(32)
            size = C.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            if size < 0:
                buffer = ctypes.create_string_buffer(-size)
                size = C.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
            self._pieces[token] = buffer.raw[:size]
        return self._pieces[token]

    def ends_generation(self, token: int) -> bool:
        return bool(C.llama_vocab_is_eog(self.vocab, token))


class Part(NamedTuple):
    """Consecutive tokens of one sequence, for a batch: they stand at `position` and on. `outputs`: of how
    many of the last ones logits, or a token from the sampler that is attached, are wanted."""

    tokens: Sequence[int]
    position: int
    seq_id: int = 0
    outputs: int = 1


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
        self.handle = C.llama_init_from_model(weights.handle, params)
        if not self.handle:
            raise ModelError(f"no context of {n_seq} x {n_ctx} tokens for {weights.path}: {_log.reason()}")
        # The finalizer holds the weights: a context must be freed before its model.
        weakref.finalize(self, _free_context, self.handle, weights, self._interrupt)
        self._memory = C.llama_get_memory(self.handle)
        if not self._memory:
            raise ModelError(f"{weights.path} is an embedding model: it has no decoder to write with")
        self.n_ctx: int = C.llama_n_ctx_seq(self.handle)
        self.n_seq = n_seq
        self.n_threads = n_threads
        self.n_batch: int = C.llama_n_batch(self.handle)
        self._n_vocab = weights.n_vocab
        self._views: dict[int, NDArray[np.float32]] = {}
        self._chains: dict[int, Any] = {}
        self._batch = _Batch(self.n_batch)

    def ask_between_nodes(self, flag_is_set: int) -> None:
        """Have llama.cpp ask the C function at this address, `bool (*)(void *flag)`, whether it is to
        stop a batch in the middle, as it does on the CPU, instead of only after it."""
        self._abort = C.ggml_abort_callback(flag_is_set)
        C.llama_set_abort_callback(self.handle, self._abort, ctypes.addressof(self._interrupt))

    @property
    def interrupted(self) -> bool:
        return self._interrupt.value != 0

    @interrupted.setter
    def interrupted(self, value: bool) -> None:
        """May be set from any thread: a batch that is being decoded on the CPU stops soon after."""
        self._interrupt.value = value

    def decode(self, *parts: Part) -> bool:
        """Evaluate parts of as many sequences, together no more than `n_batch` tokens.

        Returns False where it was interrupted: nothing of the parts may be relied on then.
        Raises GenerationError where llama.cpp fails.
        """
        status = C.llama_decode(self.handle, self._batch.fill(parts))
        if status == 2:
            return False
        if status != 0:
            n_tokens = sum(len(part.tokens) for part in parts)
            raise GenerationError(
                f"llama.cpp failed on {n_tokens} tokens of {len(parts)} sequences "
                f"(status {status}): {_log.reason()}"
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

    def fill(self, parts: Iterable[Part]) -> C.llama_batch:
        end = 0
        for tokens, position, seq_id, outputs in parts:
            start, end = end, end + len(tokens)
            self._token[start:end] = tokens
            self._pos[start:end] = range(position, position + len(tokens))
            self._seq_id[start:end] = seq_id
            self._output[start : end - outputs] = 0
            self._output[end - outputs : end] = 1
        self._struct.n_tokens = end
        return self._struct


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _free_context(handle: object, *_: object) -> None:
    C.llama_free(handle)
