"""From a row of logits, borrowed where llama.cpp has them, to a token."""

import ctypes
import weakref

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local import kernels
from mink_local.errors import GenerationError, MinkError
from mink_local.samplers import Sampler, Scratch

if kernels.TOKEN_DATA.itemsize != ctypes.sizeof(C.llama_token_data):
    raise MinkError(
        f"llama-cpp-python {llama_cpp.__version__} lays out its candidates in a way that is not known "
        "here: install a version from 0.3.36 on and below 0.4"
    )


class Draw:
    """Draws tokens: a sampler's cut, then llama.cpp's `temp` and `dist` over what stands.

    The logits are read where llama.cpp holds them and only the survivors are handed on, so the draw,
    its seed and its generator are llama.cpp's and its 12-byte-per-token candidate array is not built
    for the whole vocabulary. `k` is the number of survivors of the last draw.
    """

    def __init__(self, sampler: Sampler, temperature: float, seed: int, n_vocab: int) -> None:
        self._sampler = sampler
        self._temperature = temperature
        self._scratch = Scratch(n_vocab)
        self._records = np.empty(n_vocab, kernels.TOKEN_DATA)
        self._array = C.llama_token_data_array()
        self._chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        weakref.finalize(self, C.llama_sampler_free, self._chain)
        C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_temp(temperature))
        C.llama_sampler_chain_add(self._chain, C.llama_sampler_init_dist(seed))
        self.k = 0

    def __call__(self, logits: NDArray[np.float32], step: int) -> int:
        """Draw one token from raw logits (V,). Raises GenerationError, naming `step`, for a row with
        a NaN or without a finite logit, from which llama.cpp would silently take some token."""
        ids, records, array = self._scratch.ids, self._records, self._array
        k = self._sampler.select(logits, self._temperature, self._scratch)
        if k < 0:
            what = "a NaN among its logits" if k == kernels.HAS_NAN else "no finite logit"
            raise GenerationError(
                f"the model gave {what} at step {step}: its file is damaged, or its weights "
                "overflow on this device (try n_gpu_layers=0)"
            )
        kernels.write_token_data(logits, ids, k, records)
        array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)
        array.size, array.selected, array.sorted = k, -1, False
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        self.k = k
        return int(records["id"][array.selected])
