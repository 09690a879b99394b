"""Cuts in one compiled call: any chain of the kernels, which are called by their addresses.

One function that calls kernels by address is compiled once, for all samplers and chains of them, where one
for each chain would be compiled when somebody first asks for it.
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.samplers.base import Sampler, Workspace, is_own
from mink_local.samplers.compile import call_by_address, compiled, helper, is_compiling
from mink_local.samplers.kernels import (
    BITS,
    HAS_NAN,
    NO_FINITE_LOGIT,
    ban,
    lowest_bit,
    narrow,
    take,
)

# With at most one allowed token, or one banned one, in so many, a list of them is faster than the mask.
_SPARSE, _DENSE = 8, 16
_ALL_BITS = 0xFFFFFFFF
NO_TOKENS = np.empty(0, np.int32)
# As the bits of a float32
_MAGNITUDE, _INFINITY, _NEGATIVE_INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000), np.int32(-0x800000)

_MOST_OPTIONS = 5  # of a kernel

CUT = np.dtype([("kernel", np.uint64), ("options", np.float64, _MOST_OPTIONS)])
"""A cut: the address of its kernel, and its options."""

_call_kernel = call_by_address("int64")


@cache
def address_of(kernel: Any) -> int:
    """Return the address of a kernel of this package, compiled for arrays; 0 if nothing is compiled."""
    if not is_compiling():
        return 0
    kinds = np.float32, np.float64, np.uint64, np.int32
    return int(kernel.address(*(np.empty(1, kind) for kind in kinds)))


@helper
def has_nan(logits):
    """Return whether a logit is NaN."""
    bits = logits.view(np.int32)
    largest = np.int32(0)
    for j in range(bits.size):  # vectorised
        largest = max(largest, np.int32(bits[j] & _MAGNITUDE))
    return largest > _INFINITY


class Masks:
    """The tokens that constraints allow: a mask for each of several answers, at most `n`.

    Attributes:
        bits: A bit for every allowed token, uint32 (n, V / 32).
        arrays: For compiled functions: the bits; token ids, int32 (n, V / 8), that `list` has written; and
            their numbers, int64 (n,) each: of the only allowed tokens, and of the only banned ones. Both are
            0 if only the bits tell.
    """

    def __init__(self, n: int, n_vocab: int) -> None:
        self.bits = np.zeros((n, -(-n_vocab // 32)), np.uint32)
        tokens = np.empty((n, n_vocab // _SPARSE), np.int32)
        self.arrays = self.bits, tokens, np.zeros(n, np.int64), np.zeros(n, np.int64)
        self._n_vocab = n_vocab

    def list(self, n: int) -> None:
        """List the tokens that each of the first n masks allows or bans, if they are few."""
        _list(np.bitwise_count(self.bits[:n]).sum(1, np.int64), *self.arrays, self._n_vocab)


@helper
def _write_tokens(mask, flips, n_vocab, ids):
    """Write the tokens whose bit is set in a mask, after those in `flips` are flipped; return how many."""
    k = 0
    for w in range(mask.size):
        word = np.int64(mask[w]) ^ flips
        while word != 0:
            token = 32 * w + lowest_bit(word)
            if token < n_vocab:
                ids[k] = token
                k += 1
            word &= word - 1
    return k


@compiled
def _list(n_allowed, bits, tokens, n_only_allowed, n_only_banned, n_vocab):
    for i in range(n_allowed.size):
        n_only_allowed[i] = n_only_banned[i] = 0
        if 0 < n_allowed[i] * _SPARSE <= n_vocab:
            n_only_allowed[i] = _write_tokens(bits[i], 0, n_vocab, tokens[i])
        elif (n_vocab - n_allowed[i]) * _DENSE <= n_vocab:
            n_only_banned[i] = _write_tokens(bits[i], _ALL_BITS, n_vocab, tokens[i])


@helper
def masked(logits, mask, row):
    """Write the logits of tokens whose bit is set in `mask` to `row`; others get -inf.

    Returns whether a logit is NaN, of a banned token too.
    """
    bits, written, largest = logits.view(np.int32), row.view(np.int32), np.int32(0)
    for w in range(mask.size):
        word, part, kept = mask[w], bits[32 * w : 32 * w + 32], written[32 * w : 32 * w + 32]
        for j in range(part.size):  # vectorised
            largest = max(largest, np.int32(part[j] & _MAGNITUDE))
            kept[j] = part[j] if (word & BITS[j]) != np.uint32(0) else _NEGATIVE_INFINITY
    return largest > _INFINITY


@helper
def _run(cut, logits, work, ids):
    return _call_kernel(cut.kernel, (logits, cut.options, work, ids))


@compiled
def apply_mask(logits, mask, masks, scratch, row):
    """Leave only the tokens that a mask allows; `select` has the arguments.

    A NaN of a banned token counts too: a ban must not hide that a model is broken.

    Returns:
        How many tokens it listed in `scratch[0]`; or V, if it banned others in `logits`, where `row` has what
        they were, or wrote what it allows to `row`; or HAS_NAN.
    """
    ids, _, work, _, _ = scratch
    bits, tokens, n_only_allowed, n_only_banned = masks
    n_allowed, n_banned = n_only_allowed[mask], n_only_banned[mask]
    if n_banned > 0:
        ban(logits, tokens[mask, :n_banned], row, work)  # keeps every NaN
    elif has_nan(logits) if n_allowed > 0 else masked(logits, bits[mask], row):
        return HAS_NAN
    for i in range(n_allowed):  # a slice's assignment would compile the text of its error, for 3 seconds
        ids[i] = tokens[mask, i]
    return n_allowed if n_allowed > 0 else logits.size


_call_mask = call_by_address("int64")


@cache
def address_of_mask() -> int:
    """Return the address of `apply_mask`, for `select`."""
    row = np.empty(0, np.float32)
    return int(apply_mask.address(row, 0, Masks(1, 0).arrays, Workspace(0).arrays, row))


@helper
def select(logits, mask, apply_mask, masks, cuts, scratch, row):
    """Find a row's candidates, those that all cuts keep: their ids are in `scratch[0]`.

    Args:
        logits: Float32 (V,), changed meanwhile.
        mask: The number of its mask; -1 if all tokens are allowed.
        apply_mask: `address_of_mask()`, where there is a mask: most answers never have one.
        masks: The `arrays` of `Masks`.
        cuts: Of type CUT; each sees what those before it have left.
        scratch: The `arrays` of a `Workspace`.
        row: Float32 (V,), overwritten.

    Returns:
        k, or a kernel's error; and the number of cuts that were needed.
    """
    ids, places, work, part_work, left = scratch
    _, tokens, n_only_allowed, n_only_banned = masks
    n_vocab, n_done, n_banned = logits.size, 0, np.int64(0)
    k, seen = np.int64(n_vocab), logits
    if mask >= 0:
        k, n_banned = _call_mask(apply_mask, (logits, mask, masks, scratch, row)), n_only_banned[mask]
        seen = logits if n_banned > 0 or n_only_allowed[mask] > 0 else row
    if k == HAS_NAN:
        return k, 0
    if k == n_vocab:
        k, n_done = _run(cuts[0], seen, work, ids), 1
    if k > 1 or n_done == 0:
        take(seen, ids, k, left)
    while n_done < cuts.size and (k > 1 or n_done == 0):
        part = left[:k]
        k = _run(cuts[n_done], part, part_work, places) if k > 0 else np.int64(NO_FINITE_LOGIT)
        if k > 0:
            narrow(part, ids, places, k)
        n_done += 1
    for i in range(n_banned):
        logits[tokens[mask, i]] = row[i]
    return k, n_done


class Program(NamedTuple):
    """A sampler's cuts, for `select`.

    Attributes:
        cuts: Of type CUT.
        chances: The probability of each cut; None for one that is always made.
    """

    cuts: NDArray[np.void]
    chances: tuple[float | None, ...]


def program_of(sampler: Sampler, temperature: float) -> Program | None:
    """Return a sampler's cuts, or None if they are not all kernels of this package.

    The errors of a kernel that is called by its address are lost, so others' are called from Python.
    """
    if type(sampler).selector is not Sampler.selector:
        return None
    parts = sampler.as_cuts(temperature)
    if not all(is_own(part.kernel) for part in parts):
        return None
    addresses = [address_of(part.kernel) for part in parts]
    if not all(addresses):
        return None
    cuts = np.zeros(len(parts), CUT)
    cuts["kernel"] = addresses
    for cut, part in zip(cuts, parts, strict=True):
        cut["options"][: part.options.size] = part.options
    return Program(cuts, tuple(part.probability for part in parts))
