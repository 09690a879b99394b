"""The samplers' arithmetic, compiled by Numba: arrays in, numbers and arrays out.

A kernel is a function `(logits, options, work, ids) -> k` of one row of raw logits:

    logits: float32 (V,). -inf is never a candidate; +inf counts as the largest finite float32.
    options: float64, the numbers listed in the kernel's docstring (`Sampler.kernel_options`).
    work: uint64 (work_size(V),), scratch, but for the last number: `survey` and `ban` use it.
    ids: int32 (V,), receives the candidates' token ids, in any order. Where only some of several equal logits
        are candidates, they are those with the lowest token ids.

It returns k, the number of candidates, or NO_FINITE_LOGIT or HAS_NAN. A threshold
method needs little more than `survey` and `keep_from`.

Candidates are consecutive when sorted by logit: most kernels keep the first k, while typical and xtc may drop
some before them.

No kernel sorts the row. Min-k (arXiv 2604.11012, section 3) looks for the largest weighted drop from one
sorted logit to the next, and only the largest few dozen logits can matter. One vectorised pass finds the
maximum of every block and the minimum of the row; the logits above a threshold taken from the block maxima
are sorted; `_walk` takes them in turn until no smaller logit can matter. If they run out first, the threshold
is lowered. Top-k, top-p and typical find the end of a prefix by quickselect. The other methods keep every
logit above a threshold derived from the maximum and a sum or two over the row.
"""

import math
from functools import partial

import numpy as np

from mink_local.samplers.compile import compiled, helper

NO_FINITE_LOGIT = -1
HAS_NAN = -2

# Order-preserving keys: the bits of a float32 as an int32, with the magnitude flipped if negative, compare
# as the floats do. Unlike those of floats, their maximum and minimum vectorise without promising the compiler
# that there are no NaNs.
_MAGNITUDE = np.int32(0x7FFFFFFF)
_NEGATIVE_INFINITY = np.int32(-0x7F800001)
_LARGEST_FINITE = np.int32(0x7F7FFFFF)
_NEGATIVE_ZERO = np.int32(-1)
_HEIGHT_OF_INFINITY = np.uint32(0xFF000001)  # see `_height`

_LARGEST = np.finfo(np.float32).max
_BLOCK = 256  # logits per stored maximum; at 256 the first pass costs as much as np.max
_SURVEYED = -1  # the place in `work` where `ban` leaves the extremes of a row for `survey`; 0 if it has not
_STRIP = 32  # columns of a block, as many as a word has bits
BITS = np.left_shift(1, np.arange(_STRIP, dtype=np.uint32), dtype=np.uint32)
_FIRST_LOOK = 32  # logits wanted at first
_FIRST_OF_MIN_K = 16  # 16 to 55 are found, which is enough for at least three rows of four
_CHECKED = 8  # logits that Min-k walks before it asks again whether more can matter
_MORE = 4  # times as many logits are looked at next, at most
_FEW = 128  # up to this many entries, comparing each with all is faster than quickselect
_EPSILON = 1e-8  # keeps a row of equal logits (range 0) from dividing by zero


def work_size(n_vocab: int) -> int:
    """Return the length of the uint64 scratch array that the kernels need for `n_vocab` logits."""
    n_blocks = -(-n_vocab // _BLOCK)
    return n_vocab + -(-n_blocks // 2) + 1


@helper
def _parts(work, n_vocab):
    """Return the parts of `work`: entries uint64 (V,) and block maxima int32 (number of blocks,)."""
    n_blocks = (n_vocab + _BLOCK - 1) // _BLOCK
    return work[:n_vocab], work[n_vocab:].view(np.int32)[:n_blocks]


@helper
def _key(bits):
    return np.int32(bits ^ (np.int32(bits >> np.int32(31)) & _MAGNITUDE))


@helper
def _logit(key):
    """Return the float32 with this key."""
    return np.int32(_key(key)).view(np.float32)


@helper
def _clamped_key(bits):
    """Return a logit's key, with +inf counted as the largest finite float32 and -0.0 as 0.0."""
    key = min(_key(bits), _LARGEST_FINITE)
    return np.int32(0) if key == _NEGATIVE_ZERO else np.int32(key)


@helper
def _height(key):
    """Return how far a key is above -inf's: 0 for -inf itself, and more than +inf's for every NaN."""
    # In 64 bits, so as not to overflow without the JIT; unsigned, so that minima that skip -inf vectorise.
    return np.uint32((np.int64(key) - _NEGATIVE_INFINITY) & 0xFFFFFFFF)


@helper
def _scan(bits, block_max):
    """Write the largest key of every block to `block_max`.

    Returns:
        The largest height of all, and the smallest one that is not 0, less 1.
    """
    highest, lowest = np.uint32(0), np.uint32(0xFFFFFFFF)
    for b in range(block_max.size):
        block = bits[b * _BLOCK : (b + 1) * _BLOCK]
        top = np.uint32(0)
        for j in range(block.size):
            height = _height(_key(block[j]))
            top = max(top, height)
            lowest = min(lowest, np.uint32((np.int64(height) - 1) & 0xFFFFFFFF))
        block_max[b] = np.int32(np.int64(top) + _NEGATIVE_INFINITY)
        highest = max(highest, top)
    return highest, lowest


@helper
def ban(logits, bans, before, work):
    """Set the logits of some tokens to -inf, and survey the row: the next `survey` need not read it again.

    A ban must not hide that a model is broken: a NaN stays.

    Args:
        bans: Token ids, int32, ascending.
        before: Receives their logits, float32 (at least as many,).
    """
    _, block_max = _parts(work, logits.size)
    highest, lowest, n = np.uint32(0), np.uint32(0xFFFFFFFF), 0
    for b in range(block_max.size):
        start, end = b * _BLOCK, (b + 1) * _BLOCK
        while n < bans.size and bans[n] < end:  # in a block that is about to be read
            before[n] = logits[bans[n]]
            if not np.isnan(before[n]):
                logits[bans[n]] = -np.inf
            n += 1
        top, bottom = _scan(logits[start:end].view(np.int32), block_max[b : b + 1])
        highest, lowest = max(highest, top), min(lowest, bottom)
    work[_SURVEYED] = np.uint64(highest) << np.uint64(32) | np.uint64(lowest)


@helper
def survey(logits, work):
    """Return a number above 0, and the smallest and largest finite logit (float64).

    If the row cannot be sampled from, the first number is the (negative) result for the kernel to return. The
    block maxima stay in `work` for `keep_from`.
    """
    _, block_max = _parts(work, logits.size)
    known = work[_SURVEYED]
    work[_SURVEYED] = 0
    highest, lowest = np.uint32(known >> np.uint64(32)), np.uint32(known & np.uint64(0xFFFFFFFF))
    if known == 0:
        highest, lowest = _scan(logits.view(np.int32), block_max)
    if highest > _HEIGHT_OF_INFINITY:
        return HAS_NAN, 0.0, 0.0
    if highest == 0:
        return NO_FINITE_LOGIT, 0.0, 0.0
    smallest = _logit(np.int32(np.int64(lowest) + 1 + _NEGATIVE_INFINITY))
    largest = _logit(np.int32(np.int64(highest) + _NEGATIVE_INFINITY))
    return 1, np.float64(min(smallest, _LARGEST)), np.float64(min(largest, _LARGEST))


@helper
def _extremes(block_max):
    """Return the smallest and the largest of the blocks' maxima."""
    lowest = highest = block_max[0]
    for b in range(block_max.size):
        lowest, highest = min(lowest, block_max[b]), max(highest, block_max[b])
    return lowest, highest


@helper
def _threshold_of_largest(wanted, block_max):
    """Return a float32 reached by at least `wanted` finite logits, or by all if there are fewer.

    That many block maxima reach it, and hardly more.
    """
    if wanted > block_max.size:
        return -_LARGEST
    lowest, highest = _extremes(block_max)
    reached, missed = np.int64(lowest), np.int64(highest) + 1
    count = block_max.size
    while count > 1.25 * wanted and missed - reached > 1:
        middle = (reached + missed) >> 1
        n = np.int32(0)
        for b in range(block_max.size):  # vectorised
            n += np.int32(block_max[b] >= np.int32(middle))
        if n >= wanted:
            reached, count = middle, n
        else:
            missed = middle
    return min(max(_logit(np.int32(reached)), -_LARGEST), _LARGEST)


@helper
def lowest_bit(word):
    """Return the place of the lowest bit of an int64 that is set, below 2**32: the exponent of its value."""
    return (np.float32(word & -word).view(np.int32) >> np.int32(23)) - 127


@helper
def _columns(block, threshold):
    """Return a bit for each column of a block, in rows of _STRIP, in which a logit reaches `threshold`."""
    if block.size < _BLOCK:
        return np.int64(0xFFFFFFFF)  # the last one: any may
    hits = np.uint32(0)
    for j in range(_STRIP):  # vectorised
        top = block[j]
        for i in range(_STRIP + j, _BLOCK, _STRIP):
            top = max(top, block[i])
        hits |= BITS[j] if top >= threshold else np.uint32(0)
    return np.int64(hits)


@helper
def _collect(logits, threshold, block_max, entries):
    """Gather the entries of all logits that reach `threshold`, a finite float32; return how many.

    An entry holds the logit's rank in descending order in its upper 32 bits and the token id in its lower
    ones: entries ascend as logits descend, with ties by token id. They are gathered in any order.

    A processor cannot predict which blocks have such a logit, or where. So there is no branch: every number
    is written, and the next one over it unless it counts. Those of the blocks are at the end of `entries`,
    where those of the tokens never overtake them.
    """
    blocks, n_blocks = entries[entries.size - block_max.size :], 0
    for b in range(block_max.size):
        blocks[n_blocks] = b
        n_blocks += _logit(block_max[b]) >= threshold
    count = 0
    for i in range(n_blocks):
        start = np.int64(blocks[i]) * _BLOCK
        block = logits[start : start + _BLOCK]
        word = _columns(block, threshold)
        while word != 0:
            for j in range(lowest_bit(word), block.size, _STRIP):
                entries[count] = start + j
                count += block[j] >= threshold
            word &= word - 1
    bits = logits.view(np.int32)
    for i in range(count):
        token = np.int64(entries[i])
        entries[i] = _entry(bits[token], token)
    return count


@helper
def sort(numbers):
    """Sort an array of distinct numbers.

    A few each go to where so many are smaller, which is vectorised and needs no branch; more are sorted by
    Shell's method with Gonnet and Baeza-Yates' gaps. NumPy's takes 2 seconds to compile for each type.
    """
    if numbers.size <= _FEW:
        before = numbers.copy()
        for number in before:
            place = 0
            for other in before:
                place += other < number
            numbers[place] = number
        return
    gap = numbers.size
    while gap > 1:
        gap = max(1, 5 * gap // 11)
        for i in range(gap, numbers.size):
            number, place = numbers[i], i
            while place >= gap and numbers[place - gap] > number:
                numbers[place] = numbers[place - gap]
                place -= gap
            numbers[place] = number


@helper
def _entry(bits, token):
    rank = np.uint64(0x7FFFFFFF - np.int64(_clamped_key(bits)))
    return (rank << np.uint64(32)) | np.uint64(token)


@helper
def _token(entry):
    return np.int32(entry & np.uint64(0xFFFFFFFF))


@helper
def _entry_logit(entry):
    return np.float64(_logit(np.int32(0x7FFFFFFF - np.int64(entry >> np.uint64(32)))))


@helper
def _round_up(cut, largest):
    """Return the smallest finite float32 not below `cut`, but at most `largest`."""
    if cut >= largest:
        return np.float32(largest)
    nearest = np.float32(max(cut, -np.float64(_LARGEST)))
    return np.nextafter(nearest, _LARGEST) if np.float64(nearest) < cut else nearest


@helper
def keep_from(cut, largest, logits, work, ids):
    """Write the token ids of all logits >= `cut` (float64), always including the largest; return k.

    `largest` comes from `survey`, which must have been called on this row.
    """
    entries, block_max = _parts(work, logits.size)
    k = _collect(logits, _round_up(cut, largest), block_max, entries)
    return _write_ids(entries, k, ids)


@helper
def _write_ids(entries, k, ids):
    """Write the token ids of the first k entries; return k."""
    for i in range(k):
        ids[i] = _token(entries[i])
    return k


@compiled
def every_finite(logits, options, work, ids):  # noqa: ARG001
    """Keep every finite logit."""
    n, _, largest = survey(logits, work)
    return keep_from(-math.inf, largest, logits, work, ids) if n > 0 else n


@compiled
def greedy(logits, options, work, ids):  # noqa: ARG001
    """Keep the largest logit."""
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    ids[0] = ids[: keep_from(largest, largest, logits, work, ids)].min()
    return 1


@helper
def _decay(i, alpha, logarithmic):
    """Return the divisor of the drop after position i (from 1); it never decreases with i."""
    if logarithmic:
        return math.log(i + 1.0)
    return np.float64(i) if alpha == 1.0 else np.float64(i) ** alpha


@helper
def _most_left(logit, i, common, n_common, smallest, spread, alpha, logarithmic):
    """Return a bound on the weight of every drop after position i or a later one, from `logit` or below.

    `common` is a logit that at least `n_common` reach. So a drop either ends there or above, or starts there
    or below, after `n_common` logits or more. Rounding is monotonic and keeps the order of weights.
    """
    above = (logit - common) / spread / _decay(i, alpha, logarithmic)
    below = (min(logit, common) - smallest) / spread / _decay(max(i, n_common), alpha, logarithmic)
    return max(above, below)


@helper
def _walk(entries, m, common, n_common, smallest, spread, k_fallback, alpha, logarithmic, ids):
    """Find the cliff among the m largest logits, whose entries are sorted; write their ids in order.

    Returns the cliff's position k, and how many of the largest logits it takes to be sure of it; if these are
    more than m, at most _MORE times as many. See `_most_left` for the other arguments.
    """
    k_cliff = 1
    heaviest = -1.0
    previous = 0.0
    for i in range(m):
        ids[i] = _token(entries[i])
        logit = _entry_logit(entries[i])
        if i > 0:
            weight = (previous - logit) / spread / _decay(i, alpha, logarithmic)
            if weight > heaviest:
                heaviest = weight
                k_cliff = i
        previous = logit
        if i % _CHECKED != 0 or i + 1 < k_fallback:
            continue
        # Ties do not matter: the smallest position wins.
        if heaviest >= _most_left(logit, i + 1, common, n_common, smallest, spread, alpha, logarithmic):
            return k_cliff, i + 1
    needed = m
    while needed < _MORE * m:
        if heaviest >= _most_left(previous, needed, common, n_common, smallest, spread, alpha, logarithmic):
            break
        needed += 1
    return k_cliff, needed


@compiled
def min_k(logits, options, work, ids):
    """Keep the Min-k candidates. Options: tau, floor, alpha, 1 for logarithmic decay, 1 to normalize.

    Weights are compared in float64, where differences of float32 logits of ordinary size are exact.
    """
    tau, floor, alpha = options[0], options[1], options[2]
    logarithmic, normalize = options[3] != 0.0, options[4] != 0.0
    n, smallest, largest = survey(logits, work)
    if n <= 0:
        return n
    spread = largest - smallest + _EPSILON if normalize else 1.0
    k_fallback = np.int64(min(np.float64(logits.size), tau / spread))
    entries, block_max = _parts(work, logits.size)
    common = min(max(np.float64(_logit(_extremes(block_max)[0])), smallest), largest)  # each block reaches it
    wanted = max(_FIRST_OF_MIN_K, k_fallback)
    while True:
        m = _collect(logits, _threshold_of_largest(wanted, block_max), block_max, entries)
        sort(entries[:m])
        k_cliff, needed = _walk(
            entries, m, common, block_max.size, smallest, spread, k_fallback, alpha, logarithmic, ids
        )
        if needed <= m or wanted > block_max.size:  # all finite logits were taken
            break
        wanted = max(wanted + 1, min(needed * wanted // m, block_max.size))
    k = max(k_cliff, min(k_fallback, m))
    if floor > 0.0:
        # Both sets are prefixes of the sorted row: if this one is smaller, it only reorders ids already
        # written.
        k = max(k, keep_from(largest - floor, largest, logits, work, ids))
    return k


# exp in plain arithmetic, so that sums of it vectorise: 2**t = 2**n * 2**f with n whole and |f| <= 1/2; the
# first factor is assembled from bits, the second is a Taylor polynomial whose next term is below 1e-13.
_LOG2_E = math.log2(math.e)
_C = tuple(math.log(2) ** i / math.factorial(i) for i in range(12))
_TO_WHOLE = 1.5 * 2.0**52  # added to a float64 of ordinary size, leaves the rounded value in the last bits
_SMALLEST_EXPONENT = -1022.0  # 2**-1022 is the smallest normal float64; anything below becomes this
_SMALLEST_TEMPERATURE = 1e-250  # at this one, any two distinct float32 logits are already far apart

_contracted_helper = partial(helper, fastmath={"contract"})
_reordered_helper = partial(helper, fastmath={"contract", "reassoc"})


@_contracted_helper
def _exp2(t):
    """Return 2**t for -1022 <= t <= 0, float64, to a relative error of 1e-13; exactly 1 for 0."""
    shifted = np.float64(t + _TO_WHOLE)
    f = t - (shifted - _TO_WHOLE)
    high = ((((_C[11] * f + _C[10]) * f + _C[9]) * f + _C[8]) * f + _C[7]) * f + _C[6]
    y = np.float64((((((high * f + _C[5]) * f + _C[4]) * f + _C[3]) * f + _C[2]) * f + _C[1]) * f + _C[0])
    return np.int64(y.view(np.int64) + (shifted.view(np.int64) << np.int64(52))).view(np.float64)


@helper
def _exponent(logit, largest, scale):
    """Return log2 of exp((logit - largest) / T), with scale = log2(e) / T; at least -1022, also for NaN."""
    t = (np.float64(logit) - largest) * scale
    t = t if t > _SMALLEST_EXPONENT else _SMALLEST_EXPONENT
    return t if t < 0.0 else 0.0


@helper
def _scale(temperature):
    return _LOG2_E / max(temperature, _SMALLEST_TEMPERATURE)


@_reordered_helper
def _exp_sums(logits, largest, scale):
    """Return the sums over a row of e, e**2 and e * log2(e), where e = exp((logit - largest) / T)."""
    total = squares = products = 0.0
    for j in range(logits.size):
        t = _exponent(logits[j], largest, scale)
        e = _exp2(t)
        total += e
        squares += e * e
        products += e * t
    return total, squares, products


@_reordered_helper
def _deviation(logits, smallest, largest):
    """Return the population standard deviation of the n finite logits, float64.

    Summing deviations from the middle c of the range takes a single pass: the variance is at least
    range**2 / 2n and (mean - c)**2 at most range**2 / 4, so rounding grows by at most a factor of n / 2.
    """
    middle = 0.5 * (smallest + largest)
    n = total = squares = 0.0
    for j in range(logits.size):
        n += 1.0 if logits[j] > -np.inf else 0.0
        d = np.float64(logits[j]) - middle
        d = d if d >= smallest - middle else 0.0  # -inf, NaN
        d = d if d <= largest - middle else largest - middle  # +inf
        total += d
        squares += d * d
    return math.sqrt(max(squares / n - (total / n) * (total / n), 0.0))


@compiled
def log_total(logits, work):
    """Return log(sum(exp(logits))), float64: a logit minus this is its token's log-probability.

    It is NaN if any logit is NaN or none is finite. `work` is scratch, as for the kernels.
    """
    n, _, largest = survey(logits, work)
    return largest + math.log(_exp_sums(logits, largest, _LOG2_E)[0]) if n > 0 else np.nan


@helper
def _median(a, b, c):
    return max(min(a, b), min(max(a, b), c))


@helper
def _weight(logits, entry, largest, scale):
    """Return exp((logit - largest) / T) for an entry's token."""
    return _exp2(_exponent(min(logits[_token(entry)], _LARGEST), largest, scale))


@helper
def _shortest_prefix(wanted, logits, entries, m, largest, scale, ids):
    """Write the ids of the shortest prefix of the m sorted entries whose weights sum to at least `wanted`.

    Returns the prefix's length, and whether the sum is reached; if not, the prefix is all m entries. Its last
    entry's id is written last. Uses quickselect, since sorting takes 7 times as long.
    """
    start, stop, mass = 0, m, 0.0  # the prefix ends in entries[start:stop]; mass is that before start
    while stop - start > _FEW:
        pivot = _median(entries[start], entries[(start + stop) // 2], entries[stop - 1])
        middle, mass_before = start, mass
        for i in range(start, stop):  # entries are distinct: some are smaller than the pivot, some not
            entry = entries[i]
            if entry < pivot:
                entries[i] = entries[middle]
                entries[middle] = entry
                middle += 1
                mass_before += _weight(logits, entry, largest, scale)
        if mass_before >= wanted:
            stop = middle
        else:
            start, mass = middle, mass_before
    _write_ids(entries, start, ids)
    sort(entries[start:stop])
    for i in range(start, stop):
        ids[i] = _token(entries[i])
        mass += _weight(logits, entries[i], largest, scale)
        if mass >= wanted:
            return i + 1, True
    return stop, False


@compiled
def top_k(logits, options, work, ids):
    """Keep the k >= 1 largest logits. Options: k."""
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    entries, block_max = _parts(work, logits.size)
    m = _collect(logits, _threshold_of_largest(options[0], block_max), block_max, entries)
    # With scale 0, every weight is 1.
    return _shortest_prefix(options[0], logits, entries, m, largest, 0.0, ids)[0]


@compiled
def top_p(logits, options, work, ids):
    """Keep the shortest prefix of the sorted tokens whose total probability reaches p; all for p = 1.

    Options: 0 <= p <= 1, the temperature of the distribution.
    """
    p, temperature = options[0], options[1]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    if p == 1.0:
        return keep_from(-math.inf, largest, logits, work, ids)
    scale = _scale(temperature)
    total, _, _ = _exp_sums(logits, largest, scale)
    entries, block_max = _parts(work, logits.size)
    first = _threshold_of_largest(_FIRST_LOOK, block_max)
    # All tokens below this cut together make up less than 1 - p.
    cut = largest + temperature * math.log((1.0 - p) * total / logits.size)
    k = 0
    for threshold in (first, _round_up(cut, largest)):
        m = _collect(logits, threshold, block_max, entries)
        k, reached = _shortest_prefix(p * total, logits, entries, m, largest, scale, ids)
        if reached:
            break
    return k


@compiled
def min_p(logits, options, work, ids):
    """Keep the tokens with `p_i >= p * max p_j`.

    Options: 0 <= p <= 1, the temperature of the distribution.
    """
    p, temperature = options[0], options[1]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    log_p = math.log(p) if p > 0.0 else -math.inf
    return keep_from(largest + temperature * log_p, largest, logits, work, ids)


@compiled
def top_a(logits, options, work, ids):
    """Keep the tokens with `p_i >= a * (max p_j)**2`. Options: 0 <= a <= 1, the temperature."""
    a, temperature = options[0], options[1]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total, _, _ = _exp_sums(logits, largest, _scale(temperature))
    log_a = math.log(a) if a > 0.0 else -math.inf
    return keep_from(largest + temperature * (log_a - math.log(total)), largest, logits, work, ids)


@_reordered_helper
def _mean_drop(logits, spread, largest, scale):
    """Return the sum of e = exp((logit - largest) / T) over a row, and the e-weighted mean drop.

    A drop is largest - logit, from 0 to `spread`.
    """
    total = drops = 0.0
    for j in range(logits.size):
        e = _exp2(_exponent(logits[j], largest, scale))
        drop = largest - np.float64(logits[j])
        drop = drop if drop <= spread else 0.0  # -inf
        drop = drop if drop >= 0.0 else 0.0  # +inf
        total += e
        drops += e * drop
    return total, drops / total


@helper
def _distance(logit, centre):
    """Return half the distance of a logit from the centre, float32; the full distance might overflow."""
    return np.float32(0.5 * abs(np.float64(min(logit, _LARGEST)) - centre))


@compiled
def typical(logits, options, work, ids):
    """Keep the tokens with the smallest `|-log p_i - H|` until their probability reaches p; all for p = 1.

    H is the entropy. Since `-log p_i - H = (E[l] - l_i) / T`, with the expected logit E[l], these are the
    logits nearest to the expected one. Distances are compared in float32, as in llama.cpp, and ties with the
    last one are kept. Options: 0 <= p <= 1, the temperature of the distribution.
    """
    p, temperature = options[0], options[1]
    n, smallest, largest = survey(logits, work)
    if n <= 0:
        return n
    if p == 1.0:
        return keep_from(-math.inf, largest, logits, work, ids)
    scale = _scale(temperature)
    total, drop = _mean_drop(logits, largest - smallest, largest, scale)
    centre = largest - drop
    entries, _ = _parts(work, logits.size)
    m = 0
    for j in range(logits.size):
        if logits[j] > -np.inf:
            bits = np.uint64(np.float32(_distance(logits[j], centre)).view(np.int32))
            entries[m] = (bits << np.uint64(32)) | np.uint64(j)
            m += 1
    k, _ = _shortest_prefix(p * total, logits, entries, m, largest, scale, ids)
    farthest = _distance(logits[ids[k - 1]], centre)
    k = 0
    for j in range(logits.size):
        if _distance(logits[j], centre) <= farthest:
            ids[k] = j
            k += 1
    return k


@compiled
def xtc(logits, options, work, ids):
    """Drop all but the last of the sorted tokens with `p_i >= threshold`.

    Options: the probability (unused here), the threshold, the temperature of the distribution.
    """
    threshold, temperature = options[1], options[2]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total, _, _ = _exp_sums(logits, largest, _scale(temperature))
    log_threshold = math.log(threshold) if threshold > 0.0 else -math.inf
    log_ratio = log_threshold + math.log(total)  # log(threshold / largest probability)
    if log_ratio > 0.0:
        return keep_from(-math.inf, largest, logits, work, ids)
    entries, block_max = _parts(work, logits.size)
    cut = _round_up(largest + temperature * log_ratio, largest)
    m = _collect(logits, cut, block_max, entries)
    last = entries[:m].max()
    bits = logits.view(np.int32)
    k = 0
    for j in range(logits.size):
        if logits[j] > -np.inf and _entry(bits[j], j) >= last:
            ids[k] = j
            k += 1
    return k


@compiled
def top_n_sigma(logits, options, work, ids):
    """Keep the logits >= `largest - n σ`, σ their population standard deviation. Options: n."""
    n, smallest, largest = survey(logits, work)
    if n <= 0:
        return n
    cut = largest - options[0] * _deviation(logits, smallest, largest)
    return keep_from(cut, largest, logits, work, ids)


@compiled
def eta(logits, options, work, ids):
    """Keep the tokens with `p_i >= min(epsilon, sqrt(epsilon) * exp(-H))`, H the entropy in nats.

    Options: 0 < epsilon < 1, the temperature of the distribution.
    """
    log_epsilon, temperature = math.log(options[0]), options[1]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total, _, products = _exp_sums(logits, largest, _scale(temperature))
    log_total = math.log(total)
    entropy = log_total - products / total / _LOG2_E
    cut = largest + temperature * (log_total + min(log_epsilon, 0.5 * log_epsilon - entropy))
    return keep_from(cut, largest, logits, work, ids)


@compiled
def p_less(logits, options, work, ids):
    """Keep the tokens with `p_i >= sum p_j**2`. Options: the temperature of the distribution."""
    temperature = options[0]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total, squares, _ = _exp_sums(logits, largest, _scale(temperature))
    return keep_from(largest + temperature * math.log(squares / total), largest, logits, work, ids)


# Between the cuts of a chain


@helper
def sort_ids(ids, k, n_vocab):
    """Sort the first k of `ids`, distinct numbers below n_vocab."""
    if k < n_vocab // 32:
        sort(ids[:k])
        return
    kept = np.zeros(n_vocab, np.bool_)  # for many candidates, a pass over all tokens beats sorting
    for i in range(k):
        kept[ids[i]] = True
    i = 0
    for token in range(n_vocab):
        if kept[token]:
            ids[i] = token
            i += 1


@compiled
def take(logits, ids, k, candidates):
    """Sort the first k of `ids` and write their logits to `candidates`, float32 (V,)."""
    sort_ids(ids, k, logits.size)
    for i in range(k):
        candidates[i] = logits[ids[i]]


@compiled
def narrow(candidates, ids, places, k):
    """Keep only the `candidates` and sorted `ids` at the first k of `places`; this sorts the places too."""
    sort_ids(places, k, candidates.size)
    for i in range(k):  # a place is at least i: nothing is overwritten before it is read
        candidates[i] = candidates[places[i]]
        ids[i] = ids[places[i]]
