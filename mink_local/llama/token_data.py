"""llama.cpp's candidate records (`llama_token_data`), written and read by compiled functions."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from mink_local.samplers import Workspace
from mink_local.samplers.compile import compiled, helper
from mink_local.samplers.kernels import sort_ids

_LARGEST = np.finfo(np.float32).max


def layout(structure: Any, **formats: Any) -> np.dtype[np.void]:
    """Return a dtype for some fields of a ctypes structure; NumPy itself rejects structures with pointers."""
    return np.dtype(
        {
            "names": list(formats),
            "formats": list(formats.values()),
            "offsets": [getattr(structure, name).offset for name in formats],
            "itemsize": ctypes.sizeof(structure),
        }
    )


TOKEN_DATA = layout(C.llama_token_data, id=np.int32, logit=np.float32, p=np.float32)
"""One entry of a `llama_token_data_array`."""


class SamplingBuffers:
    """Vocabulary-sized scratch arrays; samplers that never run at the same time may share them."""

    def __init__(self, n_vocab: int) -> None:
        self.workspace = Workspace(n_vocab)
        self.logits = np.empty(n_vocab, np.float32)  # with constraints applied
        self.records = np.empty(n_vocab, TOKEN_DATA)
        self.array = C.llama_token_data_array()
        self.array.data = ctypes.cast(self.records.ctypes.data, C.llama_token_data_p)


@helper
def _write(records, i, token, logit):
    records["id"][i] = token
    records["logit"][i] = min(logit, _LARGEST)  # a NaN stays NaN
    records["p"][i] = np.float32(0)


@compiled
def write_token_data(logits, ids, k, records):
    """Write the first k of `ids` with their logits to `records`, in the order of the token ids.

    llama.cpp's `dist` walks its array in order, so all forms of a sampler must agree on an order to sample
    the same token for a given seed. Sorts the first k of `ids`.
    """
    sort_ids(ids, k, logits.size)
    for i in range(k):
        _write(records, i, ids[i], logits[ids[i]])


@compiled
def fill_token_data(logits, records):
    """Write all tokens with their logits to `records`, by id; return True if a logit is NaN."""
    has_nan = False
    for i in range(logits.size):
        _write(records, i, i, logits[i])
        has_nan |= np.isnan(logits[i])
    return has_nan


@compiled
def read_token_data(records, logits):
    """Write the logits of `records`, in any order, to `logits` by token id; other tokens get -inf.

    Returns False, with `logits` incomplete, if an id is outside 0 to V - 1.
    """
    logits[:] = -np.inf
    for i in range(records.size):
        token = records["id"][i]
        if not 0 <= token < logits.size:
            return False
        logits[token] = records["logit"][i]
    return True


@compiled
def mask_logits(logits, mask, masked):
    """Write the logits of tokens whose bit is set in `mask`, uint32 (V / 32,), to `masked`; others get -inf.

    Returns True if a logit is NaN, of a banned token too. `masked` may be `logits` itself.
    """
    has_nan = False
    for i in range(logits.size):
        has_nan |= np.isnan(logits[i])
        is_set = (mask[i >> 5] >> np.uint32(i & 31)) & np.uint32(1)
        masked[i] = logits[i] if is_set else np.float32(-np.inf)
    return has_nan
