"""llama.cpp's candidate records (`llama_token_data`), written and read by compiled functions."""

import ctypes
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from mink_local.samplers import Workspace
from mink_local.samplers.compile import call_by_address, compiled, helper
from mink_local.samplers.kernels import sort_ids
from mink_local.samplers.rows import has_nan, masked, select

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


ARRAY = layout(C.llama_token_data_array, data=np.uint64, size=np.uint64, selected=np.int64, sorted=np.bool_)
"""A `llama_token_data_array`."""

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
def mask_logits(logits, mask, row):
    """Write the logits of tokens whose bit is set in `mask`, uint32 (V / 32,), to `row`; others get -inf.

    Returns True if a logit is NaN, of a banned token too. `row` may be `logits` itself.
    """
    is_broken = has_nan(logits)
    masked(logits, mask, row)
    return is_broken


TASK = np.dtype(
    [
        *((name, np.int64) for name in ("row", "cut", "cut_end", "ban", "change", "change_end", "mask")),
        *((name, np.uint64) for name in ("penalties", "chain")),
        *((name, np.int64) for name in ("token", "k", "n_cuts")),
    ]
)
"""What `sample_rows` does for an answer.

Fields:
    row: The row of logits.
    cut, cut_end: The range of its cuts.
    ban, change, change_end: The edited tokens: those from `ban` are banned, those from `change` are what its
        penalties may change.
    mask: The row of its mask; -1 if there is none.
    penalties, chain: Addresses of llama.cpp's samplers, for the penalties (0 if there are none), and for what
        comes after the cuts.
    token, k, n_cuts: The results: the sampled token; the number of candidates, or a kernel's error; and the
        number of cuts that were needed.
"""

_call_apply = call_by_address("none", 3)


@helper
def _penalize(apply, penalties, tokens, row, seen, records, array):
    """Have a chain of llama.cpp's penalties change the logits of some tokens, of which some may be equal."""
    n = 0
    for token in tokens:
        if not seen[token]:
            seen[token] = True
            _write(records, n, token, row[token])
            n += 1
    array["size"][0], array["selected"][0], array["sorted"][0] = n, -1, False
    _call_apply(apply, penalties, array.ctypes.data)
    for i in range(n):
        row[records["id"][i]] = records["logit"][i]
        seen[records["id"][i]] = False


@compiled
def sample_rows(apply, logits, tasks, cuts, options, edits, masks, scratch, seen, records, array):
    """Sample a token for each task: bans, penalties, mask, cuts, and llama.cpp's own samplers.

    Args:
        apply: Address of `llama_sampler_apply`.
        logits: float32 (rows, V).
        tasks: Of type TASK; the results are written to them.
        cuts, options: See `select`.
        edits: Token ids, int32.
        masks: uint32 (masks, V / 32).
        scratch: See `scratch_arrays`.
        seen: False (V,), of which nothing is left.
        records, array: Of type TOKEN_DATA (V,), and ARRAY (1,) with the address of the former.
    """
    for i in range(tasks.size):
        task = tasks[i]
        row = logits[task.row]
        if task.change_end > task.ban:
            edited = scratch[5]
            edited[:] = row
            row = edited
            for token in edits[task.ban : task.change]:
                if not np.isnan(row[token]):  # a ban must not hide that a model is broken
                    row[token] = -np.inf
            if task.change_end > task.change:
                tokens = edits[task.change : task.change_end]
                _penalize(apply, task.penalties, tokens, row, seen, records, array)
        mask = masks[task.mask] if task.mask >= 0 else masks[0, :0]
        k, n_cuts = select(row, mask, cuts[task.cut : task.cut_end], options, scratch)
        tasks["k"][i], tasks["n_cuts"][i] = k, n_cuts
        if k <= 0:
            continue
        ids = scratch[1]
        write_token_data(row, ids, k, records)
        array["size"][0], array["selected"][0], array["sorted"][0] = k, -1, False
        _call_apply(apply, task.chain, array.ctypes.data)
        tasks["k"][i] = array["size"][0]
        tasks["token"][i] = records["id"][array["selected"][0]]
