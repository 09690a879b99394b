"""The arithmetic of the cuts, compiled by Numba: arrays in, numbers and arrays out.

Min-k (arXiv 2604.11012, section 3) sorts the logits `l_1 >= l_2 >= ...`, weighs the drop after
position i by `(l_i - l_{i+1}) / (l_1 - l_n) / i` and cuts after the heaviest drop. No sort is
needed: every weight from position i on is at most `(l_i - l_n) / (l_1 - l_n) / i`, so the walk down
the sorted logits may stop as soon as the best weight so far has reached that bound, on real logits
after a few dozen positions. One vectorised pass finds the maximum of every block and the overall
minimum; the few logits above a threshold taken from the block maxima go into a heap; the walk pops
them until the bound closes, and starts again with a lower threshold if it does not.

The other cuts need no sort either: top-k and top-p take tokens from the same heap, and min-p, top-nσ,
η and p-less keep every logit above a threshold that follows from the maximum and a sum or two over
the row. Only what is collected is put in order.

What every chat needs has one explicit signature and is compiled when this module is first imported on
a machine; the other methods and Min-k's variants are when they are first called. Two processes that
fill the cache at once write the same thing.
"""

import math
from typing import Any

import numpy as np
from numba import boolean, float32, float64, int32, int64, njit, uint64

from mink_local.samplers.compile import compiled, helper

NO_FINITE_LOGIT = -1
HAS_NAN = -2

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
_FIRST_LOOK = 32  # logits wanted in the heap at first; the walk needs a median of 12 to 34, at most 478 seen
_HEAP_LIMIT = 4096  # more than this many are sorted instead
_DIGIT_BITS = 11  # of a digit of the radix sort, which has three in 32 bits
_DIGITS = 1 << _DIGIT_BITS
_EPSILON = 1e-8  # keeps a row of equal logits (range 0) from dividing by zero


def _kernel(_: object) -> Any:
    return compiled


_lazy_kernel = compiled
_helper = helper
_inlined_helper = njit(nogil=True, error_model="numpy", inline="always")  # for each caller's constants


def work_size(n_vocab: int) -> int:
    """Length of the uint64 scratch array that the kernels need for `n_vocab` logits."""
    n_blocks = -(-n_vocab // _BLOCK)
    return 2 * n_vocab + 3 * _DIGITS + -(-n_blocks // 2)


@_helper
def _buffers(work, n_vocab):
    """The parts of `work`: entries (V,), scratch (V + counters,), block_max (number of blocks,)."""
    scratch_end = 2 * n_vocab + 3 * _DIGITS
    n_blocks = (n_vocab + _BLOCK - 1) // _BLOCK
    return work[:n_vocab], work[n_vocab:scratch_end], work[scratch_end:].view(np.int32)[:n_blocks]


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
def _digit(entry, position):
    shift = np.uint64(32 + _DIGIT_BITS * position)
    return np.int64((entry >> shift) & np.uint64(_DIGITS - 1))


@_helper
def _radix_sort(entries, scratch, size):
    """Sort `size` entries by their upper 32 bits; returns the array, of the two, that has them.

    Stable, and `_collect` went by token id, so equal logits stay in that order. `scratch` has room for
    the entries and, at its end, for a counter of every digit.
    """
    starts = scratch[scratch.size - 3 * _DIGITS :].view(np.int64).reshape(3, _DIGITS)
    starts[:] = 0
    for i in range(size):
        for position in range(3):
            starts[position, _digit(entries[i], position)] += 1
    source, target = entries, scratch
    for position in range(3):
        start = np.int64(0)
        for digit in range(_DIGITS):
            start, starts[position, digit] = start + starts[position, digit], start
        for i in range(size):
            digit = _digit(source[i], position)
            target[starts[position, digit]] = source[i]
            starts[position, digit] += 1
        source, target = target, source
    return source


@_helper
def _arrange(entries, scratch, size):
    """Make the entries ready for `_take`; returns the array that has them, and whether they are a
    heap there, and not sorted."""
    if size <= _HEAP_LIMIT:
        _heapify(entries, size)
        return entries, True
    return _radix_sort(entries, scratch, size), False


@_helper
def _take(entries, i, size, by_heap):
    """The i-th of `size` arranged entries, largest logit first; i must run 0, 1, 2, …"""
    if not by_heap:
        return entries[i]
    entry = entries[0]
    entries[0] = entries[size - 1 - i]
    _sift_down(entries, 0, size - 1 - i)
    return entry


@_helper
def _token(entry):
    return np.int32(entry & np.uint64(0xFFFFFFFF))


@_helper
def _entry_logit(entry):
    return np.float64(_logit(np.int32(0x7FFFFFFF - np.int64(entry >> np.uint64(32)))))


@_helper
def _collect_from(logits, threshold, block_max, entries, scratch):
    """`_collect` and `_arrange`: returns how many entries, their array, and whether they are a heap."""
    m = _collect(logits, block_max, threshold, entries)
    arranged, by_heap = _arrange(entries, scratch, m)
    return m, arranged, by_heap


@_helper
def _largest(wanted, block_max, scratch):
    """A threshold that at least the `wanted` largest logits pass, or every finite one if there are
    fewer."""
    if wanted >= block_max.size:
        return _SMALLEST_FINITE
    return max(_SMALLEST_FINITE, _tame(_nth_block_max(block_max, wanted, scratch)))


@_helper
def _looks(n_blocks, n_vocab):
    """How many of the largest logits to look at: at first, if that was not enough, and so on to all."""
    half = max(2 * _FIRST_LOOK, n_blocks // 2)
    return _FIRST_LOOK, half, max(half, n_blocks * 15 // 16), n_vocab


@_helper
def _decay(i, alpha, logarithmic):
    """What the drop after position i (from 1 on) is divided by; never decreases with i."""
    if logarithmic:
        return math.log(i + 1.0)
    return np.float64(i) if alpha == 1.0 else np.float64(i) ** alpha


@_inlined_helper
def _min_k(logits, tau, alpha, logarithmic, normalize, allow_nan, work, ids):
    entries, scratch, block_max = _buffers(work, logits.size)
    n, lowest, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    smallest = np.float64(_logit(lowest))
    spread = np.float64(_logit(highest)) - smallest + _EPSILON if normalize else 1.0
    k_fallback = n if tau / spread >= n else np.int64(tau / spread)

    for wanted in _looks(block_max.size, logits.size):
        if wanted < k_fallback and wanted < logits.size:
            continue
        threshold = _largest(wanted, block_max, scratch)
        m, arranged, by_heap = _collect_from(logits, threshold, block_max, entries, scratch)
        k_cliff = 1
        best = -1.0
        previous = 0.0
        closed = False
        for i in range(m):
            entry = _take(arranged, i, m, by_heap)
            ids[i] = _token(entry)
            if not closed:
                logit = _entry_logit(entry)
                if i > 0:
                    weight = (previous - logit) / spread / _decay(i, alpha, logarithmic)
                    if weight > best:
                        best = weight
                        k_cliff = i
                closed = best >= (logit - smallest) / spread / _decay(i + 1, alpha, logarithmic)
                previous = logit
            if closed and i + 1 >= k_fallback:
                break
        if (closed and m >= k_fallback) or m == n:
            return min(n, max(k_cliff, k_fallback))
    return NO_FINITE_LOGIT  # not reached: the last look takes every finite logit


@_kernel(int64(float32[::1], float64, boolean, uint64[::1], int32[::1]))
def min_k(logits, tau, allow_nan, work, ids):
    """Select the Min-k candidates of one row of raw logits.

    logits: float32 (V,), tau >= 0, work: uint64 (work_size(V),) scratch, ids: int32 (V,).
    Returns k and leaves the k token ids in `ids`, largest logit first, equal logits by token id; or
    NO_FINITE_LOGIT, or HAS_NAN where there is a NaN and `allow_nan` does not let it pass as -inf.
    Weights are compared in float64, where the difference of two float32 logits of ordinary size is
    exact.
    """
    return _min_k(logits, tau, 1.0, False, True, allow_nan, work, ids)


@_lazy_kernel
def min_k_variant(logits, tau, alpha, logarithmic, normalize, allow_nan, work, ids):
    """`min_k` with another weight, for the paper's ablations.

    The drop after position i is divided by `i**alpha`, alpha >= 0, or where `logarithmic` by
    `log(i + 1)`; and, with the fallback, by the range only if `normalize`.
    """
    return _min_k(logits, tau, alpha, logarithmic, normalize, allow_nan, work, ids)


@_kernel(int64(float32[::1], boolean, uint64[::1], int32[::1]))
def greedy(logits, allow_nan, work, ids):
    """`min_k` for the largest logit alone: leaves its id, the lowest on a tie, in `ids`, returns 1."""
    _, _, block_max = _buffers(work, logits.size)
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


@_lazy_kernel
def top_k(logits, k, allow_nan, work, ids):
    """`min_k` for the k >= 1 largest logits."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, _, _ = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    threshold = _largest(k, block_max, scratch)
    m, arranged, by_heap = _collect_from(logits, threshold, block_max, entries, scratch)
    k = min(k, m)
    for i in range(k):
        ids[i] = _token(_take(arranged, i, m, by_heap))
    return k


@_lazy_kernel
def every_finite(logits, allow_nan, work, ids):
    """`min_k` for no cut at all, and in no order but that of the token ids."""
    _, _, block_max = _buffers(work, logits.size)
    n, _, _ = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    count = 0
    for j in range(logits.size):
        if logits[j] > -np.inf:  # never true of a NaN
            ids[count] = j
            count += 1
    return count


# exp, in plain arithmetic so that sums of it vectorise: 2**t is 2**n * 2**f with n whole and |f| <= 1/2,
# the first made of bits, the second a Taylor polynomial whose next term is below 1e-13.
_LOG2_E = math.log2(math.e)
_C = tuple(math.log(2) ** i / math.factorial(i) for i in range(12))
_TO_WHOLE = 1.5 * 2.0**52  # added to a float64 of ordinary size, leaves it rounded in its last bits
_SMALLEST_EXPONENT = -1022.0  # 2**-1022, the smallest normal float64, stands for what is below it
_SMALLEST_TEMPERATURE = 1e-250  # two float32 logits that differ are far apart at this one already

_contracted_helper = njit(nogil=True, error_model="numpy", fastmath={"contract"})
_reordered_helper = njit(nogil=True, error_model="numpy", fastmath={"contract", "reassoc"})


@_contracted_helper
def _exp2(t):
    """2**t for -1022 <= t <= 0, float64, to a relative 1e-13; exactly 1 for 0."""
    shifted = np.float64(t + _TO_WHOLE)
    f = t - (shifted - _TO_WHOLE)
    high = ((((_C[11] * f + _C[10]) * f + _C[9]) * f + _C[8]) * f + _C[7]) * f + _C[6]
    y = np.float64((((((high * f + _C[5]) * f + _C[4]) * f + _C[3]) * f + _C[2]) * f + _C[1]) * f + _C[0])
    return np.int64(y.view(np.int64) + (shifted.view(np.int64) << np.int64(52))).view(np.float64)


@_helper
def _exponent(logit, largest, scale):
    """log2 of exp((logit - largest) / T), scale being log2(e) / T; -1022 at the least, NaN so too."""
    t = (np.float64(logit) - largest) * scale
    t = t if t > _SMALLEST_EXPONENT else _SMALLEST_EXPONENT
    return t if t < 0.0 else 0.0


@_helper
def _scale(temperature):
    return _LOG2_E / max(temperature, _SMALLEST_TEMPERATURE)


@_reordered_helper
def _exp_sums(logits, largest, scale):
    """Sums over a row of e, e**2 and e * log2(e), e being exp((logit - largest) / T)."""
    total = squares = products = 0.0
    for j in range(logits.size):
        t = _exponent(logits[j], largest, scale)
        e = _exp2(t)
        total += e
        squares += e * e
        products += e * t
    return total, squares, products


@_reordered_helper
def _deviation(logits, n, smallest, largest):
    """Population standard deviation of the n finite logits, float64.

    The sums are about the middle c of the range, where one pass is enough: the variance is at least
    range**2 / 2n, and (mean - c)**2 at most range**2 / 4, so rounding grows by a factor n / 2 at most.
    """
    middle = 0.5 * (smallest + largest)
    total = squares = 0.0
    for j in range(logits.size):
        d = np.float64(logits[j]) - middle
        d = d if d >= smallest - middle else 0.0  # -inf, NaN
        d = d if d <= largest - middle else largest - middle  # +inf
        total += d
        squares += d * d
    return math.sqrt(max(squares / n - (total / n) * (total / n), 0.0))


@_lazy_kernel
def log_probability(logits, token):
    """Natural logarithm of a token's probability in softmax(logits), float64; NaN where a logit is NaN
    and where none is finite."""
    largest = -np.inf
    for j in range(logits.size):
        if np.isnan(logits[j]):
            return np.nan
        largest = max(largest, np.float64(logits[j]))
    if largest == -np.inf:
        return np.nan
    total, _, _ = _exp_sums(logits, largest, _LOG2_E)
    return np.float64(logits[token]) - largest - math.log(total)


@_helper
def _threshold(cut, highest):
    """Key of the smallest float32 that is not below `cut`, float64; `highest` at the most."""
    if cut <= _logit(_SMALLEST_FINITE):
        return _SMALLEST_FINITE
    if cut >= _logit(highest):
        return highest
    nearest = np.float32(cut)
    key = _key(nearest.view(np.int32))
    return _tame(np.int32(key + (np.float64(nearest) < cut)))


@_helper
def _keep_from(cut, logits, highest, block_max, entries, scratch, ids):
    """Leave the ids of the logits that are `cut` or larger, and always the largest, in `ids`."""
    threshold = _threshold(cut, highest)
    m, arranged, by_heap = _collect_from(logits, threshold, block_max, entries, scratch)
    for i in range(m):
        ids[i] = _token(_take(arranged, i, m, by_heap))
    return m


@_lazy_kernel
def top_p(logits, p, temperature, allow_nan, work, ids):
    """`min_k` for the shortest prefix of the sorted tokens whose probability reaches 0 <= p <= 1 in
    softmax(logits / temperature); all for p = 1."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, _, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    largest = np.float64(_logit(highest))
    scale = _scale(temperature)
    wanted_mass = math.inf
    cut = -math.inf
    if p < 1.0:
        total, _, _ = _exp_sums(logits, largest, scale)
        wanted_mass = p * total
        # What is below this makes up less than 1 - p, being at most n times it.
        cut = largest + temperature * math.log((1.0 - p) * total / n)
    m = 0
    for threshold in (_largest(_FIRST_LOOK, block_max, scratch), _threshold(cut, highest)):
        m, arranged, by_heap = _collect_from(logits, threshold, block_max, entries, scratch)
        mass = 0.0
        for i in range(m):
            entry = _take(arranged, i, m, by_heap)
            ids[i] = _token(entry)
            mass += _exp2(_exponent(_entry_logit(entry), largest, scale))
            if mass >= wanted_mass:
                return i + 1
    return m


@_lazy_kernel
def min_p(logits, p, temperature, allow_nan, work, ids):
    """`min_k` for the tokens with `p_i >= p * max p_j`, 0 <= p <= 1, in softmax(logits / temperature)."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, _, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    log_p = math.log(p) if p > 0.0 else -math.inf
    cut = np.float64(_logit(highest)) + temperature * log_p
    return _keep_from(cut, logits, highest, block_max, entries, scratch, ids)


@_lazy_kernel
def top_n_sigma(logits, n_sigma, allow_nan, work, ids):
    """`min_k` for the logits of at least `largest - n_sigma * σ`, σ the population standard deviation."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, lowest, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    largest = np.float64(_logit(highest))
    cut = largest - n_sigma * _deviation(logits, n, np.float64(_logit(lowest)), largest)
    return _keep_from(cut, logits, highest, block_max, entries, scratch, ids)


@_lazy_kernel
def eta(logits, epsilon, temperature, allow_nan, work, ids):
    """`min_k` for the tokens with `p_i >= min(epsilon, sqrt(epsilon) * exp(-H))`, 0 < epsilon < 1, in
    softmax(logits / temperature), H its entropy in nats; always the largest."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, _, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    largest = np.float64(_logit(highest))
    total, _, products = _exp_sums(logits, largest, _scale(temperature))
    log_total = math.log(total)
    entropy = log_total - products / total / _LOG2_E
    log_epsilon = math.log(epsilon)
    cut = largest + temperature * (log_total + min(log_epsilon, 0.5 * log_epsilon - entropy))
    return _keep_from(cut, logits, highest, block_max, entries, scratch, ids)


@_lazy_kernel
def p_less(logits, temperature, allow_nan, work, ids):
    """`min_k` for the tokens with `p_i >= sum p_j**2` in softmax(logits / temperature)."""
    entries, scratch, block_max = _buffers(work, logits.size)
    n, _, highest = _survey(logits.view(np.int32), block_max, allow_nan)
    if n <= 0:
        return n
    largest = np.float64(_logit(highest))
    total, squares, _ = _exp_sums(logits, largest, _scale(temperature))
    cut = largest + temperature * math.log(squares / total)
    return _keep_from(cut, logits, highest, block_max, entries, scratch, ids)
