"""From a row of logits, borrowed where llama.cpp has them, to a token."""

import ctypes
import weakref
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import GenerationError
from mink_local.llama.constraints import Constrainer
from mink_local.llama.token_data import TOKEN_DATA, write_token_data
from mink_local.samplers import Mirostat, Sampler, Workspace, kernels

_MIROSTAT_M = 100  # tokens that version 1 estimates Zipf's exponent from; llama.cpp's own choice


class SamplingBuffers:
    """What drawing from `n_vocab` logits needs; for any number of `TokenSampler`s, one at a time."""

    def __init__(self, n_vocab: int) -> None:
        self.workspace = Workspace(n_vocab)
        self.records = np.empty(n_vocab, TOKEN_DATA)
        self.record_ids = self.records["id"]
        self.array = C.llama_token_data_array()
        self.array.data = ctypes.cast(self.records.ctypes.data, C.llama_token_data_p)


class TokenSampler:
    """Draws tokens: constraints, where there are any, a sampler's cut, then llama.cpp's `temp` and
    `dist` (or its `mirostat`) over what stands.

    The logits are read where llama.cpp holds them and only the survivors are handed on, so the draw,
    its seed and its generator are llama.cpp's and its 12-byte-per-token candidate array is not built
    for the whole vocabulary. It is where there are constraints, which are llama.cpp's samplers too:
    their logits are read back into a row, and the cut is the same code for every sampler. (In one
    chain with them the cut would have to be a `llama_sampler` itself, a C function for every method:
    `native` has that for chains which are not ours.)

    `k` is the number of candidates of the last draw; of mirostat's, what it kept of them. `buffers`
    may be shared by draws that are made one after the other.
    """

    def __init__(
        self,
        sampler: Sampler,
        temperature: float,
        seed: int,
        n_vocab: int,
        constrainer: Constrainer | None = None,
        buffers: SamplingBuffers | None = None,
    ) -> None:
        self._constrainer = constrainer
        buffers = buffers or SamplingBuffers(n_vocab)
        self._workspace = buffers.workspace
        self._select = sampler.selector(temperature, self._workspace)
        self._records = buffers.records
        self._ids = buffers.record_ids
        self._array = buffers.array
        self._array_pointer = ctypes.byref(self._array)
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        weakref.finalize(self, C.llama_sampler_free, self._chain)
        C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_temp(temperature))
        C.llama_sampler_chain_add(self._chain, _choice(sampler, seed, n_vocab))
        self._certain_is_drawn = isinstance(sampler, Mirostat)  # which learns from every token
        self._draws_owed = 0
        self.k = 0

    def __call__(self, logits: NDArray[np.float32], step: int) -> int:
        """TokenSampler one token from raw logits (V,). Raises GenerationError, naming `step`, for a row with
        a NaN or without a finite logit, from which llama.cpp would silently take some token, and
        where the constraints leave no token."""
        row = logits if self._constrainer is None else self._constrainer.apply(logits)
        k = self._select(row)
        if k < 0:
            if k == kernels.NO_FINITE_LOGIT and np.isfinite(logits).any():
                raise GenerationError(f"grammar, logit bias and penalties leave no token at step {step}")
            raise GenerationError(broken(k, step))
        if k == 1 and not self._certain_is_drawn:
            self._draws_owed += 1
            self.k, token = 1, int(self._workspace.ids[0])
        else:
            token = self._choose(row, k)
        if self._constrainer is not None:
            self._constrainer.accept(token)
        return token

    def _choose(self, row: NDArray[np.float32], k: int) -> int:
        """Let llama.cpp choose among the first k of the scratch ids."""
        # dist spends a random number on a single candidate too: those not spent are made up for here,
        # warm, where it costs a tenth of what it does one by one, after a batch has cleared the caches.
        if self._draws_owed:
            write_token_data(row, self._workspace.ids, 1, self._records)
            for _ in range(self._draws_owed):
                self._apply(1)
            self._draws_owed = 0
        write_token_data(row, self._workspace.ids, k, self._records)
        self._apply(k)
        self.k = self._array.size
        return int(self._ids[self._array.selected])

    def _apply(self, k: int) -> None:
        """Apply temperature and draw to the first k records."""
        array = self._array
        array.size, array.selected, array.sorted = k, -1, False
        C.llama_sampler_apply(self._chain, self._array_pointer)


def broken(error: int, step: int) -> str:
    """What to say of a row that a kernel refused."""
    what = "a NaN among its logits" if error == kernels.HAS_NAN else "no finite logit"
    return (
        f"the model gave {what} at step {step}: its file is damaged, or its weights "
        "overflow on this device (try n_gpu_layers=0)"
    )


def _choice(sampler: Sampler, seed: int, n_vocab: int) -> Any:
    """The last sampler of the chain. mirostat cuts and draws in one, and so stands for `dist`."""
    if not isinstance(sampler, Mirostat):
        return C.llama_sampler_init_dist(seed)
    if sampler.version == 1:
        return C.llama_sampler_init_mirostat(n_vocab, seed, sampler.tau, sampler.eta, _MIROSTAT_M)
    return C.llama_sampler_init_mirostat_v2(seed, sampler.tau, sampler.eta)
