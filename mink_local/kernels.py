"""The arithmetic of the cuts, compiled by Numba: arrays in, numbers and arrays out.

Min-k (arXiv 2604.11012, section 3) sorts the logits `l_1 >= l_2 >= ...`, weighs the drop after
position i by `(l_i - l_{i+1}) / (l_1 - l_n) / i` and cuts after the heaviest drop. No sort is
needed: every weight from position i on is at most `(l_i - l_n) / (l_1 - l_n) / i`, so the walk down
the sorted logits may stop as soon as the best weight so far has reached that bound, on real logits
after a few dozen positions. One vectorised pass finds the maximum of every block and the overall
minimum; the few logits above a threshold taken from the block maxima go into a heap; the walk pops
them until the bound closes, and starts again with a lower threshold if it does not.

Every kernel has one explicit signature: it is compiled when this module is first imported on a
machine, and two processes that fill the cache at once write the same thing.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import boolean, carray, cfunc, float32, float64, int32, int64, njit, types, uint8, uint64
from platformdirs import user_cache_path

NO_FINITE_LOGIT = -1
HAS_NAN = -2

TOKEN_DATA = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""One entry of llama.cpp's `llama_token_data_array`."""

# Order-preserving keys: the bits of a float32 as an int32, magnitude flipped where it is negative,
# compare as the floats do, and, unlike floats, their maximum and minimum vectorise with no promise
# to the compiler that no NaN will come.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_LOWEST = np.int32(-0x80000000)
_POSITIVE_INFINITY = np.int32(0x7F800000)
_NEGATIVE_INFINITY = np.int32(-0x7F800001)
_LARGEST_FINITE = np.int32(0x7F7FFFFF)
_SMALLEST_FINITE = np.int32(-0x7F800000)
_NEGATIVE_ZERO = np.int32(-1)

_BLOCK = 256  # logits whose maximum is kept; at 256 the first pass costs what np.max costs
_STRIP = 64  # logits of a block that are searched at once
_FIRST_LOOK = 48  # logits wanted in the heap at first; the walk needs a median of 12 to 30
_HEAP_LIMIT = 4096  # more than this many are sorted instead
_EPSILON = 1e-8  # keeps a row of equal logits (range 0) from dividing by zero


def _cache_folder() -> Path | None:
    """The folder of the compiled code, or None where no private one can be had.

    Numba's cache is pickle: a folder that others can write to is code execution, so only one of our
    own with mode 0700 is used.
    """
    folder = user_cache_path("mink-local") / "numba"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return None
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextlib.contextmanager
def _numba_cache(folder: Path) -> Iterator[None]:
    """Point Numba at `folder` while a function is decorated, and only then: the setting is global."""
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


_CACHE = None if "NUMBA_CACHE_DIR" in os.environ else _cache_folder()


def _compile(decorator: Callable[..., Any], signature: Any, **options: Any) -> Callable[..., Any]:
    """`decorator(signature, cache=...)`, cached in our own folder or where NUMBA_CACHE_DIR says."""

    def decorate(function: Callable[..., Any]) -> Any:
        if _CACHE is not None:
            with _numba_cache(_CACHE):
                return decorator(signature, cache=True, **options)(function)
        return decorator(signature, cache="NUMBA_CACHE_DIR" in os.environ, **options)(function)

    return decorate


def _kernel(signature: Any) -> Callable[..., Any]:
    return _compile(njit, signature, nogil=True, error_model="numpy")


_helper = njit(nogil=True, error_model="numpy")  # compiled into the kernels that call it


def work_size(n_vocab: int) -> int:
    """Length of the uint64 scratch array that the kernels need for `n_vocab` logits."""
    n_blocks = -(-n_vocab // _BLOCK)
    return 2 * n_vocab + -(-n_blocks // 2)


@_helper
def _key(bits):
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _MAGNITUDE))


@_helper
def _scan(bits, block_max):
    """Write the largest key of every block to `block_max` and return the smallest key of all."""
    lowest = _MAGNITUDE
    for b in range(block_max.size):
        block = bits[b * _BLOCK : (b + 1) * _BLOCK]
        highest = _LOWEST
        for j in range(block.size):
            key = _key(block[j])
            highest = key if key > highest else highest
            lowest = key if key < lowest else lowest
        block_max[b] = highest
    return lowest


@_helper
def _scan_finite(bits, block_max):
    """`_scan` for a row with -inf or NaN in it, which count for nothing.

    Returns the smallest key that counts and how many logits do.
    """
    lowest = _MAGNITUDE
    count = 0
    for b in range(block_max.size):
        block = bits[b * _BLOCK : (b + 1) * _BLOCK]
        highest = _LOWEST
        for j in range(block.size):
            key = _key(block[j])
            counts = _NEGATIVE_INFINITY < key <= _POSITIVE_INFINITY
            highest = key if counts and key > highest else highest
            lowest = key if counts and key < lowest else lowest
            count += counts
        block_max[b] = highest
    return lowest, count


@_helper
def _tame(key):
    """The key that stands for a logit: +inf is the largest finite float32, -0.0 equals 0.0."""
    if key > _LARGEST_FINITE:
        return _LARGEST_FINITE
    return np.int32(0) if key == _NEGATIVE_ZERO else key


@_helper
def _logit(key):
    """The float32 that has this (finite) key."""
    return np.int32(_key(key)).view(np.float32)


@_helper
def _survey(bits, block_max, allow_nan):
    """Block maxima, how many logits are finite (or an error code), and the extreme keys."""
    n = np.int64(bits.size)
    lowest = _scan(bits, block_max)
    highest = block_max.max()
    if lowest <= _NEGATIVE_INFINITY or highest > _POSITIVE_INFINITY:
        if not allow_nan and (lowest < _NEGATIVE_INFINITY or highest > _POSITIVE_INFINITY):
            return np.int64(HAS_NAN), lowest, highest
        lowest, n = _scan_finite(bits, block_max)
        highest = block_max.max()
        if n == 0:
            return np.int64(NO_FINITE_LOGIT), lowest, highest
    return n, _tame(lowest), _tame(highest)


@_helper
def _sift_down(heap, i, size):
    """Restore the order of a min-heap below its entry i."""
    entry = heap[i]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = entry


@_helper
def _heapify(heap, size):
    for i in range(size // 2 - 1, -1, -1):
        _sift_down(heap, i, size)


@_helper
def _nth_block_max(block_max, count, heap):
    """The `count`-th largest block maximum: at least `count` logits have this key or a larger one."""
    count = min(count, block_max.size)
    for b in range(count):
        heap[b] = np.uint64(np.int64(block_max[b]) + 0x80000000)
    _heapify(heap, count)
    for b in range(count, block_max.size):
        entry = np.uint64(np.int64(block_max[b]) + 0x80000000)
        if entry > heap[0]:
            heap[0] = entry
            _sift_down(heap, 0, count)
    return np.int32(np.int64(heap[0]) - 0x80000000)


@_helper
def _collect(logits, block_max, threshold, entries):
    """Gather every logit whose key is `threshold` or larger; returns how many.

    An entry is the logit's rank in descending order in its upper 32 bits and the token id in its
    lower ones: entries ascend as logits descend, equal logits by token id.
    """
    bits = logits.view(np.int32)
    smallest = _logit(threshold)
    count = 0
    for b in range(block_max.size):
        if _tame(block_max[b]) < threshold:
            continue
        stop = min((b + 1) * _BLOCK, logits.size)
        for start in range(b * _BLOCK, stop, _STRIP):
            strip = logits[start : min(start + _STRIP, stop)]
            hits = np.int32(0)
            for j in range(strip.size):  # vectorised; most strips of a block have no hit
                hits += np.int32(strip[j] >= smallest)  # never true of a NaN
            if hits == 0:
                continue
            for j in range(start, start + strip.size):
                if logits[j] >= smallest:
                    rank = np.uint64(0x7FFFFFFF - np.int64(_tame(_key(bits[j]))))
                    entries[count] = (rank << np.uint64(32)) | np.uint64(j)
                    count += 1
    return count


@_helper
def _radix_sort(entries, scratch, size):
    """Sort by the upper 32 bits. Stable, and `_collect` went by token id, so ties stay so ordered."""
    source, target = entries, scratch
    for shift in (32, 40, 48, 56):
        starts = np.zeros(257, np.int64)
        for i in range(size):
            starts[np.int64((source[i] >> np.uint64(shift)) & np.uint64(255)) + 1] += 1
        for digit in range(256):
            starts[digit + 1] += starts[digit]
        for i in range(size):
            digit = np.int64((source[i] >> np.uint64(shift)) & np.uint64(255))
            target[starts[digit]] = source[i]
            starts[digit] += 1
        source, target = target, source


@_kernel(int64(float32[::1], float64, boolean, uint64[::1], int32[::1]))
def min_k(logits, tau, allow_nan, work, ids):
    """Select the Min-k candidates of one row of raw logits.

    logits: float32 (V,), tau >= 0, work: uint64 (work_size(V),) scratch, ids: int32 (V,).
    Returns k and leaves the k token ids in `ids`, largest logit first, equal logits by token id; or
    NO_FINITE_LOGIT, or HAS_NAN where there is a NaN and `allow_nan` does not let it pass as -inf.
    Weights are compared in float64, where the difference of two float32 logits of ordinary size is
    exact.
    """
    n_vocab = logits.size
    n_blocks = (n_vocab + _BLOCK - 1) // _BLOCK
    bits = logits.view(np.int32)
    entries = work[:n_vocab]
    scratch = work[n_vocab : 2 * n_vocab]
    block_max = work[2 * n_vocab :].view(np.int32)[:n_blocks]

    n, lowest, highest = _survey(bits, block_max, allow_nan)
    if n <= 0:
        return n
    smallest = np.float64(_logit(lowest))
    spread = np.float64(_logit(highest)) - smallest + _EPSILON
    k_fallback = n if tau / spread >= n else np.int64(tau / spread)

    for wanted in (_FIRST_LOOK, max(2 * _FIRST_LOOK, n_blocks // 2), n_vocab):
        if wanted < k_fallback and wanted < n_vocab:
            continue
        threshold = _SMALLEST_FINITE
        if wanted < n_blocks:
            threshold = max(threshold, _tame(_nth_block_max(block_max, wanted, scratch)))
        m = _collect(logits, block_max, threshold, entries)
        by_heap = m <= _HEAP_LIMIT
        if by_heap:
            _heapify(entries, m)
        else:
            _radix_sort(entries, scratch, m)

        k_cliff = 1
        best = -1.0
        previous = 0.0
        closed = False
        for i in range(m):
            if by_heap:
                entry = entries[0]
                entries[0] = entries[m - 1 - i]
                _sift_down(entries, 0, m - 1 - i)
            else:
                entry = entries[i]
            ids[i] = np.int32(entry & np.uint64(0xFFFFFFFF))
            if not closed:
                logit = np.float64(_logit(np.int32(0x7FFFFFFF - np.int64(entry >> np.uint64(32)))))
                if i > 0:
                    weight = (previous - logit) / spread / i
                    if weight > best:
                        best = weight
                        k_cliff = i
                closed = best >= (logit - smallest) / spread / (i + 1)
                previous = logit
            if closed and i + 1 >= k_fallback:
                break
        if (closed and m >= k_fallback) or m == n:
            return min(n, max(k_cliff, k_fallback))
    return NO_FINITE_LOGIT  # not reached: the last look takes every finite logit


@_kernel(int64(float32[::1], boolean, uint64[::1], int32[::1]))
def greedy(logits, allow_nan, work, ids):
    """`min_k` for the largest logit alone: leaves its id, the lowest on a tie, in `ids`, returns 1."""
    block_max = work.view(np.int32)[: (logits.size + _BLOCK - 1) // _BLOCK]
    n, _, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    largest = _logit(highest)
    b = 0
    while _tame(block_max[b]) < highest:
        b += 1
    j = b * _BLOCK
    while not logits[j] >= largest:
        j += 1
    ids[0] = j
    return 1


@_kernel(types.void(float32[::1], int32[::1], int64, numba.from_dtype(TOKEN_DATA)[::1]))
def write_token_data(logits, ids, k, records):
    """Write the first k of `ids` with their logits to `records`, in the order of the token ids.

    llama.cpp's `dist` walks its array in the order it finds it: by token id, every way of hanging
    the cut on llama.cpp draws the same token for a seed.
    """
    ids[:k].sort()
    largest = _logit(_LARGEST_FINITE)
    for i in range(k):
        records[i].id = ids[i]
        records[i].logit = min(logits[ids[i]], largest)
        records[i].p = np.float32(0)


@_compile(cfunc, uint8(types.voidptr))
def flag_is_set(flag):
    """C function: whether the byte at `flag` is not zero. llama.cpp asks it whether to stop a batch."""
    return carray(flag, (1,), np.uint8)[0] != 0


@_kernel(boolean(float32[::1], numba.from_dtype(TOKEN_DATA)[::1]))
def fill_token_data(logits, records):
    """Write every token with its logit to `records`, by id; returns whether one of them is a NaN."""
    largest = _logit(_LARGEST_FINITE)
    has_nan = False
    for i in range(logits.size):
        records[i].id = i
        records[i].logit = min(logits[i], largest)
        records[i].p = np.float32(0)
        has_nan |= np.isnan(logits[i])
    return has_nan


@_kernel(boolean(numba.from_dtype(TOKEN_DATA)[::1], float32[::1]))
def read_token_data(records, logits):
    """Write the logits of `records`, in whatever order they are, to `logits` by token id, -inf where
    there is no record; returns whether every id is one of 0 to V - 1."""
    logits[:] = -np.inf
    for i in range(records.size):
        token = records[i].id
        if not 0 <= token < logits.size:
            return False
        logits[token] = records[i].logit
    return True


def native(signature: Any) -> Callable[..., Any]:
    """A C function of this signature, compiled and cached as the kernels are."""
    return _compile(cfunc, signature, error_model="numpy")
