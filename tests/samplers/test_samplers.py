"""Every method but plain Min-k, which has tests/test_min_k.py: against float64 twins, against llama.cpp's
own samplers, and as the texts that name them."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import asdict

import numba
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.llama.token_data import TOKEN_DATA
from mink_local.samplers import (
    SAMPLERS,
    Eta,
    Greedy,
    MinK,
    MinP,
    Mirostat,
    PLess,
    Sampler,
    Scratch,
    TopK,
    TopNSigma,
    TopP,
    kernels,
    parse,
)
from tests.conftest import SHARED
from tests.support import reference
from tests.support.logits import NAMES as FILES

LOGITS = SHARED / "logits"
JIT = not numba.config.DISABLE_JIT  # without it a whole vocabulary takes minutes
needs_logits = pytest.mark.skipif(not (LOGITS.exists() and JIT), reason="no shared test data, or no JIT")

TEMPERATURES = [1e-300, 1e-9, 0.3, 1.0, 5.0, 1e4, 1e15, 1e300]

TWINS: dict[type[Sampler], Callable[..., reference.Prefix]] = {
    Greedy: reference.greedy,
    TopK: reference.top_k,
    TopP: reference.top_p,
    MinP: reference.min_p,
    TopNSigma: reference.top_n_sigma,
    Eta: reference.eta,
    PLess: reference.p_less,
}
SPLITS_TIES = (Greedy, TopK, TopP)
"""Methods that may keep one of two equal logits; the others have a threshold."""

VARIANTS = [
    MinK(alpha=0.0),
    MinK(alpha=0.5),
    MinK(alpha=2.0),
    MinK(decay="log"),
    MinK(tau=0.0),
    MinK(normalize=False),
    MinK(tau=40.0, alpha=2.0, normalize=False),
]


def check(sampler: Sampler, row: NDArray[np.float32], temperature: float) -> None:
    """The candidates are the twin's, or those that rounding at its threshold allows."""
    options = asdict(sampler)  # type: ignore[call-overload]
    order = options.pop("order", None)
    seen = temperature if order == "temperature-first" else 1.0
    twin = TWINS[type(sampler)](row, seen, **options)
    before = row.copy()
    ids, logits = sampler.candidates(row, temperature)
    np.testing.assert_array_equal(ids, twin.ids[: ids.size])
    assert twin.least <= ids.size <= twin.most
    np.testing.assert_array_equal(row, before)
    np.testing.assert_array_equal(logits, np.minimum(row[ids], np.finfo(np.float32).max))
    if not isinstance(sampler, SPLITS_TIES) and ids.size < twin.ids.size:
        assert row[twin.ids[ids.size]] < row[ids[-1]]


def rows() -> st.SearchStrategy[NDArray[np.float32]]:
    """Rows with a finite logit: of any float32, of a few values with many ties, of what models give."""
    anything = st.floats(width=32)
    few = st.sampled_from([-math.inf, math.nan, math.inf, -2.5, 0.0, -0.0, 1.0, 1.5, 7.0])
    ordinary = st.floats(-30, 30, width=32)
    sizes = st.integers(1, 40) | st.integers(1, 700)
    small = st.one_of(
        *(npst.arrays(np.float32, sizes, elements=e, fill=e) for e in (anything, few, ordinary))
    )
    return (
        small | st.builds(large_row, st.integers(0, 2**32 - 1), st.integers(1, 20_000 if JIT else 5_000))
    ).filter(lambda row: bool((row > -math.inf).any()))


def large_row(seed: int, size: int) -> NDArray[np.float32]:
    """Normal logits, rounded to make ties, a tenth of them banned."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, size).astype(np.float32).round(int(rng.integers(1, 8)))
    row[rng.random(size) < 0.1] = -np.inf
    return row


orders = st.sampled_from(["temperature-first", "temperature-last"])
unit = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.9, 1.0])
cuts = st.one_of(
    st.just(Greedy()),
    st.builds(TopK, st.integers(1, 60) | st.integers(1, 2**31 - 1)),
    st.builds(TopP, unit, orders),
    st.builds(MinP, unit, orders),
    st.builds(TopNSigma, st.floats(1e-3, 10)),
    st.builds(Eta, st.floats(1e-12, 0.999), orders),
    st.builds(PLess, orders),
)
variants = st.builds(
    MinK, st.floats(0, 1e3), st.sampled_from([0.0, 0.5, 2.0]) | st.floats(0, 8), normalize=st.booleans()
) | st.builds(MinK, st.floats(0, 1e3), decay=st.just("log"), normalize=st.booleans())
mirostats = st.builds(Mirostat, st.floats(1e-3, 99), st.floats(0, 9), st.sampled_from([1, 2]))


@example(MinP(5e-324), np.array([-2.5, math.inf, math.inf], np.float32), 1e-300)
@settings(max_examples=1500 if JIT else 150, deadline=None)
@given(cuts, rows(), st.sampled_from(TEMPERATURES) | st.floats(0.01, 100))
def test_agrees_with_its_twin(sampler: Sampler, row: NDArray[np.float32], temperature: float) -> None:
    check(sampler, row, temperature)


@needs_logits
@pytest.mark.parametrize("file", FILES)
def test_agrees_with_its_twin_on_real_logits(file: str) -> None:
    logits = np.load(LOGITS / f"{file}.npz")["logits"]
    for row in logits:
        for sampler in (Greedy(), TopK(), TopK(1000), TopNSigma(), TopNSigma(2.0)):
            check(sampler, row, 1.0)
    for row in logits[:3]:
        for temperature in (0.3, 1.0, 5.0, 10.0):
            for cut in (TopP(), MinP(), Eta(), PLess()):
                check(cut, row, temperature)


@settings(max_examples=500 if JIT else 100, deadline=None)
@given(variants, rows())
def test_min_k_variants_agree_with_their_twin(sampler: MinK, row: NDArray[np.float32]) -> None:
    np.testing.assert_array_equal(sampler.candidates(row)[0], reference.min_k(row, **asdict(sampler)))


@needs_logits
@pytest.mark.parametrize("file", FILES)
def test_min_k_variants_agree_with_their_twin_on_real_logits(file: str) -> None:
    for row in np.load(LOGITS / f"{file}.npz")["logits"][:4]:
        for sampler in VARIANTS:
            np.testing.assert_array_equal(sampler.candidates(row)[0], reference.min_k(row, **asdict(sampler)))


def test_min_k_variants_by_hand() -> None:
    # Drops after positions 1 to 3 are 3, 4, 9, of a range of 16.
    row = [16.0, 13.0, 9.0, 0.0]
    assert MinK(0).cutoff(row) == 1  # 3, 2, 3: the smallest position on a tie
    assert MinK(0, alpha=0).cutoff(row) == 3  # 3, 4, 9
    assert MinK(0, alpha=0.5).cutoff(row) == 3  # 3, 2.83, 5.20
    assert MinK(0, alpha=2).cutoff(row) == 1  # 3, 1, 1
    assert MinK(0, decay="log").cutoff(row) == 3  # 4.33, 3.64, 6.49
    assert MinK(3, normalize=False).cutoff(row) == 3  # floor(3), not floor(3 / 16)
    assert MinK(3).cutoff(row) == 1


def test_cuts_by_hand() -> None:
    row = np.log([0.5, 0.25, 0.125, 0.125])
    assert TopP(0.6).cutoff(row) == 2  # 0.5 does not reach it, 0.75 does
    assert TopP(0.0).cutoff(row) == 1
    assert TopP(1.0).cutoff(row) == 4
    assert MinP(0.3).cutoff(row) == 2  # 0.15
    assert PLess().cutoff(row) == 1  # 1/4 + 1/16 + 2/64 = 0.34
    assert PLess().cutoff(row, 4.0) == 2  # 0.32, 0.27, 0.22, 0.22, or squared and summed 0.26
    assert PLess("temperature-last").cutoff(row, 4.0) == 1
    assert Eta(0.2).cutoff(row) == 2  # H = 1.75 log(2): sqrt(0.2) * 2**-1.75 = 0.133
    assert Eta(0.05).cutoff(row) == 4  # 0.05 is below sqrt(0.05) * 2**-1.75 = 0.066
    assert Eta(0.2).cutoff(np.log([0.5, 0.25, 0.15, 0.1])) == 3  # sqrt(0.2) * exp(-1.21) = 0.134
    assert TopK(3).candidates(row)[0].tolist() == [0, 1, 2]
    assert TopNSigma(1).cutoff([4.0, 2.0, 0.0, 2.0]) == 1  # σ = sqrt(2): from 2.59 on
    assert TopNSigma(1.5).cutoff([4.0, 2.0, 0.0, 2.0]) == 3  # from 1.88 on


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_equal_logits(name: str, temperature: float) -> None:
    """A method with a threshold keeps all of them, whatever rounding does."""
    row = np.full(1000, -7.3, np.float32)
    row[500] = -np.inf
    kept = {"greedy": 1, "top-k": 20, "top-p": 900}
    ids, _ = parse(name).candidates(row, temperature)
    assert abs(ids.size - kept.get(name, 999)) <= (name == "top-p")
    assert ids.tolist() == [j for j in range(1000) if j != 500][: ids.size]


@pytest.mark.parametrize("name", SAMPLERS)
def test_broken_rows(name: str) -> None:
    sampler, scratch = parse(name), Scratch(3)
    banned = np.full(3, -np.inf, np.float32)
    half = np.array([np.nan, 2.0, -np.inf], np.float32)
    assert sampler.select(banned, 1.0, scratch) == kernels.NO_FINITE_LOGIT
    assert sampler.select(half, 1.0, scratch) == kernels.HAS_NAN
    assert sampler.select(half, 1.0, scratch, allow_nan=True) == 1
    assert scratch.ids[0] == 1
    with pytest.raises(ValueError, match="no logit is finite"):
        sampler.cutoff(banned)
    with pytest.raises(ValueError, match="one row"):
        sampler.cutoff([[1.0, 2.0]])
    for temperature in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="temperature must be a finite number above 0"):
            sampler.cutoff(half, temperature)


@pytest.mark.parametrize("name", SAMPLERS)
def test_nearly_everything_banned(name: str) -> None:
    """As a grammar does: most blocks of logits have no finite one."""
    row = np.full(20_000, -np.inf, np.float32)
    row[[9_000, 500, 19_999]] = [1.0, 1.1, 1.2]
    ids, _ = parse(name).candidates(row)
    expected = {"mirostat": [500, 9_000, 19_999], "greedy": [19_999], "top-n-sigma": [19_999]}
    expected |= {"min-k": [19_999, 500, 9_000], "p-less": [19_999]}
    assert ids.tolist() == expected.get(name, [19_999, 500, 9_000])


def test_top_p_reaches_into_a_flat_tail() -> None:
    """The tail weighs 0.14 beside the largest logit's 1: of the whole 1.14, 0.9 is not reached without
    two ninths of it. In every block one logit sticks out, so that the first look sees no more."""
    row = np.full(20_000, math.log(0.14 / 20_000), np.float32)
    row[::256] += 0.001
    row[12_345] = 0.0
    check(TopP(0.9), row, 1.0)
    assert TopP(0.9).cutoff(row) == pytest.approx(20_000 * (0.9 * 1.14 - 1) / 0.14, rel=1e-2)


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_infinite_logit_is_the_largest_finite_one(name: str) -> None:
    row = np.array([1.0, np.inf, np.finfo(np.float32).max, 2.0], np.float32)
    ids, logits = parse(name).candidates(row)
    expected = {"greedy": [1], "mirostat": [0, 1, 2, 3], "top-k": [1, 2, 3, 0]}.get(name, [1, 2])
    assert ids.tolist() == expected
    assert np.isfinite(logits).all()


@given(rows())
@settings(deadline=None)
def test_mirostat_keeps_every_finite_logit(row: NDArray[np.float32]) -> None:
    ids, _ = Mirostat().candidates(row)
    np.testing.assert_array_equal(ids, np.flatnonzero(row > -np.inf))


def test_exp2() -> None:
    ts = np.concatenate([-np.linspace(0, 1022, 20_001), -np.logspace(-18, 3, 1000)])
    results = np.array([float(kernels._exp2(t)) for t in ts])
    np.testing.assert_allclose(results, 2.0**ts, rtol=1e-13)
    assert kernels._exp2(0.0) == 1.0


# llama.cpp's own samplers


def kept_by_llamacpp(handle: object, row: NDArray[np.float32]) -> NDArray[np.int64]:
    """Sorted token ids that a llama.cpp sampler leaves above -inf."""
    records = np.empty(row.size, TOKEN_DATA)
    records["id"], records["logit"], records["p"] = np.arange(row.size), row, 0
    array = C.llama_token_data_array()
    array.data = ctypes.cast(records.ctypes.data, C.llama_token_data_p)
    array.size, array.selected, array.sorted = records.size, -1, False
    C.llama_sampler_apply(handle, ctypes.byref(array))
    C.llama_sampler_free(handle)
    kept = records[: array.size]
    return np.sort(kept["id"][kept["logit"] > -np.inf]).astype(np.int64)


@needs_logits
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_keeps_what_llamacpp_keeps(file: str, temperature: float) -> None:
    """llama.cpp, behind its own `temp` for temperature-first, keeps the same tokens.

    It computes in float32: its threshold may fall on the other side of a logit that is within 1e-5 of
    it, and its order of equal logits is any. Its sum of the exponentials, a float32 too, was seen to be
    off by 5e-4 over 262,144 of them, so its top-p may stop where p is off by as much.
    """
    for row in np.load(LOGITS / f"{file}.npz")["logits"]:
        scaled = row / np.float32(temperature)
        pairs: list[tuple[Sampler, object]] = [
            (TopK(20), C.llama_sampler_init_top_k(20)),
            (TopK(300), C.llama_sampler_init_top_k(300)),
            (MinP(0.1), C.llama_sampler_init_min_p(0.1, 1)),
            (TopNSigma(1.0), C.llama_sampler_init_top_n_sigma(1.0)),
        ]
        for sampler, handle in pairs:
            ours = sampler.candidates(row, temperature)[0]
            theirs = kept_by_llamacpp(handle, scaled)
            differing = np.setxor1d(ours, theirs)
            np.testing.assert_allclose(row[differing], row[ours[-1]], rtol=0, atol=1e-5 * temperature)
            assert ours.size == theirs.size or not isinstance(sampler, TopK)
        theirs = kept_by_llamacpp(C.llama_sampler_init_top_p(0.9, 1), scaled)
        fewest, most = (TopP(0.9 * factor).cutoff(row, temperature) for factor in (0.999, 1.001))
        assert fewest <= theirs.size <= most
        _, longest = TopP(0.9 * 1.001).candidates(row, temperature)
        np.testing.assert_array_equal(np.sort(row[theirs])[::-1], longest[: theirs.size])


# as logits processors


@pytest.mark.parametrize("name", SAMPLERS)
def test_logits_processor(name: str) -> None:
    """From a strided row, which is what llama-cpp-python passes."""
    sampler = parse(name)
    strided = np.random.default_rng(5).normal(0, 3, (400, 3)).astype(np.float32)[:, 1]
    processor = sampler.at(2.0)
    scores = processor([], strided)
    ids, _ = sampler.candidates(strided, 2.0)
    expected = np.full(400, -np.inf, np.float32)
    expected[ids] = strided[ids]
    np.testing.assert_array_equal(scores, expected)
    if sampler.order is None:
        np.testing.assert_array_equal(sampler([], strided), expected)


@pytest.mark.parametrize("name", [name for name in SAMPLERS if parse(name).order])
def test_logits_processor_without_a_temperature(name: str) -> None:
    row = np.linspace(0, 9, 50, dtype=np.float32)
    with pytest.raises(ValueError, match=r"use \.at\(temperature\)"):
        parse(name)([], row)
    last = parse(f"{name}:order=temperature-last")
    np.testing.assert_array_equal(last([], row), last.at(5.0)([], row))
    assert (parse(name).at(5.0)([], row) > -np.inf).sum() > (last([], row) > -np.inf).sum()
    with pytest.raises(ValueError, match="temperature must be"):
        parse(name).at(0.0)


def test_a_read_only_row_is_taken() -> None:
    row = np.arange(5, dtype=np.float32)
    row.setflags(write=False)
    assert TopK(2).candidates(row)[0].tolist() == [4, 3]


# names


@given(cuts | variants | mirostats)
def test_text_round_trip(sampler: Sampler) -> None:
    assert parse(str(sampler)) == sampler


def test_texts() -> None:
    assert [str(sampler()) for sampler in SAMPLERS.values()] == [
        "min-k:tau=3",
        "greedy",
        "top-k:k=20",
        "top-p:p=0.9,order=temperature-first",
        "min-p:p=0.1,order=temperature-first",
        "top-n-sigma:n=1",
        "eta:epsilon=0.0009,order=temperature-first",
        "p-less:order=temperature-first",
        "mirostat:tau=5,eta=0.1,version=2",
    ]
    assert all(parse(name) == sampler() for name, sampler in SAMPLERS.items())
    assert str(MinK(tau=np.float64(2.5), alpha=0)) == "min-k:tau=2.5,alpha=0"
    assert str(MinK(decay="log", normalize=False)) == "min-k:tau=3,decay=log,normalize=false"
    assert str(TopP(1, "temperature-last")) == "top-p:p=1,order=temperature-last"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("top", "unknown sampler 'top': the samplers are min-k, greedy, top-k, top-p, min-p, top-n-sigma"),
        ("", "unknown sampler ''"),
        ("top-p:q=1", "top-p has no option 'q': its options are p, order"),
        ("greedy:k=1", "greedy has no option 'k': it takes none"),
        ("top-k:k=2.5", "top-k: k must be a whole number, not '2.5'"),
        ("top-k:k=0", "k must be a whole number from 1 to 2^31 - 1, not 0"),
        ("top-k:k=2147483648", "k must be a whole number from 1 to 2^31 - 1"),
        ("top-p:p", "top-p: p must be a number, not ''"),
        ("top-p:p=half", "top-p: p must be a number, not 'half'"),
        ("top-p:p=1.5", "p must be a number from 0 to 1, not 1.5"),
        ("top-p:p=nan", "p must be a number from 0 to 1, not nan"),
        ("top-p:p=0.5,p=0.6", "top-p: p is given twice"),
        ("top-p:p=0.5,", "top-p has no option ''"),
        ("min-p:p=-0.1", "p must be a number from 0 to 1, not -0.1"),
        ("min-p:order=first", "order must be temperature-first or temperature-last, not first"),
        ("top-n-sigma:n=0", "n must be a finite number above 0, not 0.0"),
        ("eta:epsilon=1", "epsilon must be a number above 0 and below 1, not 1.0"),
        ("mirostat:version=3", "version must be 1 or 2, not 3"),
        ("mirostat:tau=inf", "tau must be a finite number above 0, not inf"),
        ("mirostat:eta=-1", "eta must be a finite number of at least 0, not -1.0"),
        ("min-k:tau=-1", "tau must be a finite number of at least 0, not -1.0"),
        ("min-k:alpha=-1", "alpha must be a finite number of at least 0, not -1.0"),
        ("min-k:decay=exp", "decay must be power or log, not exp"),
        ("min-k:normalize=0", "min-k: normalize must be true or false, not '0'"),
        ("min-k:alpha=2,decay=log", "alpha is the exponent of decay=power: decay=log has none"),
    ],
)
def test_bad_texts(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=r".") as raised:
        parse(text)
    assert str(raised.value).startswith(sentence)
