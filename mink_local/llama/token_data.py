"""llama.cpp's candidate records (`llama_token_data`), written and read by compiled functions."""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from mink_local.llama.library import C
from mink_local.samplers import Workspace
from mink_local.samplers.compile import call_by_address, compiled, helper
from mink_local.samplers.kernels import sort_ids
from mink_local.samplers.rows import NO_TOKENS, has_nan, masked, select

APPLY = np.uint64(ctypes.cast(C._lib.llama_sampler_apply, ctypes.c_void_p).value or 0)
"""Address of `llama_sampler_apply`."""

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
    """Vocabulary-sized scratch arrays; samplers that never run at the same time may share them.

    Attributes:
        arrays: For compiled functions: the workspace's; a row of logits; a flag for each token, all False;
            TOKEN_DATA (V,); and ARRAY (1,) with the address of that.
    """

    def __init__(self, n_vocab: int) -> None:
        self.workspace = Workspace(n_vocab)
        records, array = np.empty(n_vocab, TOKEN_DATA), np.zeros(1, ARRAY)
        array["data"] = records.ctypes.data
        row, seen = np.empty(n_vocab, np.float32), np.zeros(n_vocab, np.bool_)
        self.arrays = self.workspace.arrays, row, seen, records, array


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


NO_MASK = np.empty(0, np.uint32)

TASK = np.dtype(
    [
        *((name, np.int64) for name in ("row", "cut", "cut_end", "ban", "change", "change_end", "mask")),
        *((name, np.int64) for name in ("token", "k", "n_cuts")),
        *((name, np.uint64) for name in ("penalties", "chain")),
    ]
)
"""What `sample_rows` does for an answer.

Fields:
    row: The row of logits.
    cut, cut_end: The range of its cuts.
    ban, change, change_end: The edited tokens: those from `ban` are banned, those from `change` are what its
        penalties may change.
    mask: The number of its mask; -1 if there is none.
    penalties, chain: Addresses of llama.cpp's samplers, for the penalties (0 if there are none), and for what
        comes after the cuts.
    token, k, n_cuts: The results: the sampled token; the number of candidates, or a kernel's error; and the
        number of cuts that were needed.
"""

_call_apply = call_by_address("none")


@helper
def _apply(apply, chain, n, array):
    """Have a chain of llama.cpp's samplers read the first n records."""
    array["size"][0], array["selected"][0], array["sorted"][0] = n, -1, False
    _call_apply(apply, (chain, array.ctypes.data))


@compiled
def edit(apply, row, bans, penalties, tokens, buffers):
    """Ban some tokens of a row, and apply the penalties to others, of which some may be equal."""
    _, _, seen, records, array = buffers
    for token in bans:
        if not np.isnan(row[token]):  # a ban must not hide that a model is broken
            row[token] = -np.inf
    n = 0
    for token in tokens:
        if not seen[token]:
            seen[token] = True
            _write(records, n, token, row[token])
            n += 1
    if n > 0:
        _apply(apply, penalties, n, array)
    for i in range(n):
        row[records["id"][i]] = records["logit"][i]
        seen[records["id"][i]] = False


@compiled
def edited(apply, logits, bans, penalties, tokens, mask, buffers):
    """Return a row of logits as the cuts see it; see `sample_rows`.

    A row with a NaN is not masked: a ban must not hide that a model is broken.
    """
    row = buffers[1]
    for i in range(row.size):
        row[i] = logits[i]
    edit(apply, row, bans, penalties, tokens, buffers)
    if mask.size > 0 and not has_nan(row):
        masked(row, mask, row)
    return row


@compiled
def choose(apply, chain, row, k, buffers):
    """Return the token that llama.cpp's samplers choose of the k candidates in `buffers`, and their new k."""
    scratch, _, _, records, array = buffers
    write_token_data(row, scratch[0], k, records)
    _apply(apply, chain, k, array)
    return records["id"][array["selected"][0]], array["size"][0]


_call_edit = call_by_address("none")


@cache
def address_of_edit() -> int:
    """Return the address of `edit`, for `sample_rows`."""
    row = np.empty(0, np.float32)
    return int(edit.address(APPLY, row, NO_TOKENS, APPLY, NO_TOKENS, SamplingBuffers(0).arrays))


@compiled
def sample_rows(apply, logits, tasks, cuts, edits, masks, addresses, buffers):
    """Sample a token for each task: bans, penalties, mask, cuts, and llama.cpp's own samplers.

    Args:
        apply: APPLY.
        logits: float32 (rows, V), edited meanwhile: no other thread may use a row of the tasks.
        tasks: Of type TASK; the results are written to them.
        cuts: Of type CUT.
        edits: Token ids, int32.
        masks: The `arrays` of `Masks`.
        addresses: `address_of_edit()` and `address_of_mask()`, uint64 (2,), where a task has edits or a mask:
            most never have, and to compile both takes as long as half of the rest.
        buffers: The `arrays` of `SamplingBuffers`.
    """
    for i in range(tasks.size):
        task = tasks[i]
        row, tokens = logits[task.row], edits[task.ban : task.change_end]
        before = np.empty(tokens.size, np.float32)
        for j in range(tokens.size):
            before[j] = row[tokens[j]]
        if tokens.size > 0:
            n_bans = task.change - task.ban
            _call_edit(addresses[0], (apply, row, tokens[:n_bans], task.penalties, tokens[n_bans:], buffers))
        own = cuts[task.cut : task.cut_end]
        k, n_cuts = select(row, task.mask, addresses[1], masks, own, buffers[0], buffers[1])
        tasks["k"][i], tasks["n_cuts"][i] = k, n_cuts
        if k > 0:
            tasks["token"][i], tasks["k"][i] = choose(apply, task.chain, row, k, buffers)
        for j in range(tokens.size):
            row[tokens[j]] = before[j]
