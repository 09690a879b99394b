"""A llama.cpp sampler chain that a test builds and applies."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.llama.token_data import TOKEN_DATA

Row = NDArray[np.float32]


class SamplerChain:
    """A llama.cpp chain of these samplers, which it owns."""

    def __init__(self, *samplers: Any) -> None:
        self.handle = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
        for sampler in samplers:
            C.llama_sampler_chain_add(self.handle, sampler)

    def apply(self, ids: NDArray[np.integer[Any]], logits: Row, is_sorted: bool = False) -> Any:
        """Return the candidates that the chain leaves, as records, and which of them it selected."""
        records = np.zeros(len(ids), TOKEN_DATA)
        records["id"], records["logit"] = ids, logits
        array = C.llama_token_data_array()
        array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)
        array.size, array.selected, array.sorted = len(ids), -1, is_sorted
        C.llama_sampler_apply(self.handle, ctypes.byref(array))
        start = (
            ctypes.addressof(array.data.contents) - records.ctypes.data
        ) // TOKEN_DATA.itemsize  # xtc moves it
        return records[start : start + array.size], array.selected

    def sample(self, row: Row) -> int:
        """Return the token that the chain selects from a row of logits."""
        records, selected = self.apply(np.arange(row.size), row)
        return int(records["id"][selected])

    def __del__(self) -> None:
        C.llama_sampler_free(self.handle)
