"""Cuts in one compiled call: any chain of the kernels, which are called by their addresses.

One function that calls kernels by address is compiled once, for all samplers and chains of them, where one
for each chain would be compiled when somebody first asks for it.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers.base import Sampler, Workspace
from mink_local.samplers.compile import call_by_address, helper, is_compiling
from mink_local.samplers.kernels import HAS_NAN, NO_FINITE_LOGIT, every_finite, narrow, take

_SPARSE = 8  # with at most one allowed token in so many, copying those is faster than masking the row
_BITS = np.left_shift(1, np.arange(32, dtype=np.uint32), dtype=np.uint32)

CUT = np.dtype([("kernel", np.uint64), ("start", np.int64), ("stop", np.int64), ("is_off", np.int64)])
"""A cut: the address of its kernel, the range of its options, and whether it keeps all tokens this time."""

_call_kernel = call_by_address("int64", 5)


@cache
def address_of(kernel: Any) -> int:
    """Return the address of a kernel compiled for arrays; 0 if it is not compiled code of this package.

    The errors of a kernel that is called by its address are lost, so others' are called from Python.
    """
    if not is_compiling() or getattr(kernel, "__module__", "") != "mink_local.samplers.kernels":
        return 0
    return int(kernel.address(np.float32, np.float64, np.uint64, np.int32))


@helper
def has_nan(logits):
    """Return whether a logit is NaN."""
    bits = logits.view(np.int32)
    largest = np.int32(0)
    for j in range(bits.size):  # vectorised
        largest = max(largest, np.int32(bits[j] & np.int32(0x7FFFFFFF)))
    return largest > np.int32(0x7F800000)


@helper
def _n_allowed(mask):
    """Return the number of set bits."""
    count = np.uint32(0)
    for word in mask:  # vectorised
        bits = np.uint32(word - ((word >> np.uint32(1)) & np.uint32(0x55555555)))
        bits = np.uint32((bits & np.uint32(0x33333333)) + ((bits >> np.uint32(2)) & np.uint32(0x33333333)))
        bits = np.uint32((bits + (bits >> np.uint32(4))) & np.uint32(0x0F0F0F0F))
        count += np.uint32(bits * np.uint32(0x01010101)) >> np.uint32(24)
    return count


@helper
def _allowed(mask, n_vocab, ids):
    """Write the tokens whose bit is set in `mask`, uint32 (V / 32,), to `ids`; return how many."""
    k = 0
    for w in range(mask.size):
        word = mask[w]
        if word == np.uint32(0):
            continue
        for j in range(32):
            if (word >> np.uint32(j)) & np.uint32(1) and 32 * w + j < n_vocab:
                ids[k] = 32 * w + j
                k += 1
    return k


@helper
def masked(logits, mask, row):
    """Write the logits of tokens whose bit is set in `mask` to `row`; others get -inf."""
    for w in range(mask.size):
        word, part, kept = mask[w], logits[32 * w : 32 * w + 32], row[32 * w : 32 * w + 32]
        for j in range(part.size):  # vectorised
            kept[j] = part[j] if (word & _BITS[j]) != np.uint32(0) else np.float32(-np.inf)


@helper
def _run(cut, logits, options, work, ids):
    if cut.is_off:
        return every_finite(logits, options, work, ids)
    return _call_kernel(cut.kernel, logits, options[cut.start : cut.stop], work, ids)


@helper
def select(logits, mask, cuts, options, scratch):
    """Find a row's candidates, those that all cuts keep: their ids are in `scratch[1]`.

    Args:
        mask: Bits of the allowed tokens, uint32 (V / 32,); empty if all are.
        cuts: Of type CUT; each sees what those before it have left.
        options: Those of all cuts, float64.
        scratch: See `scratch_arrays`.

    Returns:
        k, or a kernel's error; and the number of cuts that were needed.
    """
    work, ids, left, part_work, places, row = scratch[:6]
    k, n_done = np.int64(logits.size), 0
    if mask.size > 0:
        if has_nan(logits):  # of a banned token too: a ban must not hide that a model is broken
            return np.int64(HAS_NAN), n_done
        if _n_allowed(mask) * _SPARSE <= logits.size:
            k = _allowed(mask, logits.size, ids)
        else:
            masked(logits, mask, row)
            logits = row
    if k == logits.size:
        k, n_done = _run(cuts[0], logits, options, work, ids), 1
    if k > 1 or n_done == 0:
        take(logits, ids, k, left)
    while n_done < cuts.size and (k > 1 or n_done == 0):
        part = left[:k]
        k = _run(cuts[n_done], part, options, part_work, places) if k > 0 else np.int64(NO_FINITE_LOGIT)
        if k > 0:
            narrow(part, ids, places, k)
        n_done += 1
    return k, n_done


class Program(NamedTuple):
    """A sampler's cuts, for `select`.

    Attributes:
        cuts: Of type CUT.
        options: Those of all cuts.
        chances: The probability of each cut; None for one that is always made.
    """

    cuts: NDArray[np.void]
    options: NDArray[np.float64]
    chances: tuple[float | None, ...]


def program_of(sampler: Sampler, temperature: float) -> Program | None:
    """Return a sampler's cuts, or None if only its `selector` knows what it does."""
    members = sampler.members
    if not all(
        _owner(type(each), "selector") is _owner(type(each), "as_cuts") for each in (sampler, *members)
    ):
        return None
    parts = sampler.as_cuts(temperature)
    addresses = [address_of(part.kernel) for part in parts]
    if not all(addresses):
        return None
    ends = np.cumsum([part.options.size for part in parts])
    cuts = np.zeros(len(parts), CUT)
    cuts["kernel"], cuts["start"][1:], cuts["stop"] = addresses, ends[:-1], ends
    return Program(cuts, np.concatenate([p.options for p in parts]), tuple(p.probability for p in parts))


def _owner(kind: type, name: str) -> type:
    """Return the class from which another one has a method."""
    return next(each for each in kind.__mro__ if name in vars(each))


def scratch_arrays(n_vocab: int) -> tuple[NDArray[Any], ...]:
    """Return what `select` overwrites, for rows of `n_vocab` logits: for each thread that calls it."""
    whole, part = Workspace(n_vocab), Workspace(n_vocab)
    return whole.work, whole.ids, whole.left, part.work, part.ids, np.empty(n_vocab, np.float32)
