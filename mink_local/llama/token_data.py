"""llama.cpp's records of candidates (`llama_token_data`), written and read by compiled functions."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C
from numba import types, uint8

from mink_local.samplers.compile import c_function, compiled, helper

_LARGEST = np.finfo(np.float32).max


def layout(structure: Any, **formats: Any) -> np.dtype[np.void]:
    """Return a NumPy type of some fields of a ctypes structure: NumPy itself refuses one with a pointer."""
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


@helper
def _write(records, i, token, logit):
    records["id"][i] = token
    records["logit"][i] = min(logit, _LARGEST)  # a NaN stays one
    records["p"][i] = np.float32(0)


@compiled
def write_token_data(logits, ids, k, records):
    """Write the first k of `ids` with their logits to `records`, in the order of the token ids.

    llama.cpp's `dist` walks its array from the first entry to the last: only in one order do all forms of
    a sampler sample the same token for a seed. The first k of `ids` are sorted.
    """
    if k < logits.size // 32:
        ids[:k].sort()
    else:  # for many candidates, marking them and going through all tokens is cheaper than a sort
        kept = np.zeros(logits.size, np.bool_)
        for i in range(k):
            kept[ids[i]] = True
        i = 0
        for token in range(logits.size):
            if kept[token]:
                ids[i] = token
                i += 1
    for i in range(k):
        _write(records, i, ids[i], logits[ids[i]])


@compiled
def fill_token_data(logits, records):
    """Write every token with its logit to `records`, by id; return True if one of them is a NaN."""
    has_nan = False
    for i in range(logits.size):
        _write(records, i, i, logits[i])
        has_nan |= np.isnan(logits[i])
    return has_nan


@compiled
def read_token_data(records, logits):
    """Write the logits of `records`, in any order, to `logits` by token id, and -inf for other tokens.

    Returns False, with `logits` unfinished, if an id is not one of 0 to V - 1.
    """
    logits[:] = -np.inf
    for i in range(records.size):
        token = records["id"][i]
        if not 0 <= token < logits.size:
            return False
        logits[token] = records["logit"][i]
    return True


@c_function(uint8(types.CPointer(uint8)))
def flag_is_set(flag):
    """C function: return if the byte at `flag` is not zero. llama.cpp asks it whether to abort a batch."""
    return flag[0] != 0
