"""The cut: against its float64 full-sort twin, and by hand."""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from llama_cpp import LogitsProcessorList
from numpy.typing import NDArray

from mink_local import MinK
from mink_local.llama.token_data import TOKEN_DATA, write_token_data
from mink_local.samplers import Greedy, Scratch, kernels, parse
from tests.support import reference

INF = float("inf")
NAN = float("nan")
LARGEST = float(np.finfo(np.float32).max)

Row = NDArray[np.floating]


def check(row: Row, tau: float = 3.0) -> None:
    """The kernel's candidates are the twin's, in the same order, with the logits that belong to them."""
    expected = reference.min_k(row, tau)
    if expected.size == 0:
        with pytest.raises(ValueError, match="no logit is finite"):
            MinK(tau).cutoff(row)
        return
    ids, logits = MinK(tau).candidates(row)
    assert ids.tolist() == expected.tolist()
    assert logits.tolist() == np.minimum(row[expected], np.float32(LARGEST)).tolist()
    assert MinK(tau).cutoff(row) == expected.size


@pytest.mark.parametrize("tau", [0.0, 3.0, 100.0, 1e4, 1e30])
@pytest.mark.parametrize("scale", [1.0, 0.01, 1e-7, 1e30])
def test_real_logits(logits: Row, tau: float, scale: float) -> None:
    for row in logits:
        check(row * np.float32(scale), tau)


@pytest.mark.parametrize("banned", [0.01, 0.5, 0.999])
def test_real_logits_with_banned_and_broken_tokens(logits: Row, banned: float) -> None:
    random = np.random.default_rng(1)
    for row in logits:
        for value in (-INF, NAN, -NAN):
            broken = row.copy()
            broken[random.random(row.size) < banned] = value
            check(broken)


def test_cut_does_not_move_with_temperature(logits: Row) -> None:
    for row in logits:
        for temperature in (0.25, 4.0):  # powers of two: the division does not round
            assert MinK(0).cutoff(row / np.float32(temperature)) == MinK(0).cutoff(row)


@pytest.mark.parametrize(
    ("row", "tau", "k"),
    [
        ([5.0], 3.0, 1),  # one token
        ([2.0, 2.0, 2.0], 3.0, 3),  # R = 0: everything
        ([2.0, 2.0, 2.0], 0.0, 1),  # and nothing but the first without the fallback
        ([9.0, 8.0, 1.0, 0.0], 3.0, 2),  # w = 1/9, 7/18, 1/27
        ([10.0, 6.0, 0.0], 3.0, 1),  # w = 0.4, 0.3
        ([10.0, 7.0, 1.0], 3.0, 1),  # w = 3/9 and 6/18: a tie, the smaller position
        ([10.0, 7.0, 0.999], 3.0, 2),  # which a hair decides
        ([1.0, 0.9, 0.5], 3.0, 3),  # R = 0.5: the fallback asks for 5 of 3
        ([1.0, 0.9, 0.5], 1.0, 2),  # and for 1, the cliff for 2: w = 0.2, 0.4
        ([3.0, -INF, 1.0, -INF], 3.0, 1),  # banned tokens count for nothing: R = 2
        ([NAN, 3.0, 2.9, NAN, 0.0], 3.0, 2),
        ([INF, 0.0, INF, -1.0], 3.0, 2),  # +inf is the largest finite float32
        ([INF, LARGEST, 0.0], 3.0, 2),
        ([-INF, -INF, -5.0], 3.0, 1),
        ([0.0, -0.0, -9.0], 3.0, 2),  # equal
        ([LARGEST, -LARGEST], 3.0, 1),
    ],
)
def test_by_hand(row: list[float], tau: float, k: int) -> None:
    assert MinK(tau).cutoff(np.array(row, np.float32)) == k
    check(np.array(row, np.float32), tau)


def test_equal_logits_go_by_token_id() -> None:
    row = np.array([0.0, 7.0, -0.0, 7.0, INF, LARGEST, 7.0], np.float32)
    ids, logits = MinK(1e40).candidates(row)
    assert ids.tolist() == [4, 5, 1, 3, 6, 0, 2]
    assert logits.tolist() == [LARGEST, LARGEST, 7.0, 7.0, 7.0, 0.0, 0.0]


@pytest.mark.parametrize("row", [[-INF], [NAN], [-INF, NAN, -INF]])
def test_no_finite_logit_is_an_error(row: list[float]) -> None:
    for call in (MinK().cutoff, MinK().candidates, Greedy().cutoff):
        with pytest.raises(ValueError, match="no logit is finite"):
            call(np.array(row, np.float32))


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_other_shapes_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="one row of shape"):
        MinK().cutoff(np.zeros(shape, np.float32))


ANY_FLOAT = st.floats(width=32, allow_nan=True, allow_infinity=True)
ABOVE_1 = float(np.nextafter(np.float32(1), np.float32(2)))
FEW_VALUES = st.sampled_from([0.0, -0.0, 1.0, ABOVE_1, 2.0, -3.5, 30.0, -INF, INF, NAN, LARGEST, -LARGEST])
TAUS = st.one_of(st.sampled_from([0.0, 3.0]), st.floats(0, 1e12))


@settings(max_examples=500, deadline=None)
@given(arrays(np.float32, st.integers(1, 300), elements=ANY_FLOAT), TAUS)
def test_any_row(row: Row, tau: float) -> None:
    check(row, tau)


@settings(max_examples=500, deadline=None)
@given(
    arrays(np.float32, st.integers(1, 2000), elements=FEW_VALUES, fill=st.sampled_from([0.0, -INF, 1.0])),
    TAUS,
)
def test_rows_of_few_values(row: Row, tau: float) -> None:
    check(row, tau)


def _flat(n: int, _: np.random.Generator) -> Row:
    return np.full(n, 1.5, np.float32)


def _ramp(n: int, random: np.random.Generator) -> Row:
    return random.permutation(np.linspace(-10, 20, n))


def _normal(n: int, random: np.random.Generator) -> Row:
    return random.normal(0, 3, n)


def _steps(n: int, random: np.random.Generator) -> Row:
    return random.integers(-5, 6, n).astype(float)


def _deep_cliff(n: int, random: np.random.Generator) -> Row:
    """The heaviest weight sits in the middle of the row."""
    return random.permutation(
        np.concatenate([np.linspace(20, 20.001, n // 2), np.linspace(0, 0.1, n - n // 2)])
    )


def _near_ties(n: int, random: np.random.Generator) -> Row:
    """Gaps that grow with the position: every weight is the same but for rounding."""
    return random.permutation(-np.arange(n, dtype=float) * np.arange(1, n + 1) / 2)


def _crowded_block(n: int, random: np.random.Generator) -> Row:
    """All that matters stands in one block of the first pass, all the rest is alike."""
    row = np.full(n, -4.0)
    row[:200] = random.normal(10, 1, min(n, 200))
    return row


@pytest.mark.parametrize("shape", [_flat, _ramp, _normal, _steps, _deep_cliff, _near_ties, _crowded_block])
@pytest.mark.parametrize("n", [1, 2, 255, 256, 257, 5000, 12_288, 40_000])
def test_hard_shapes(shape: Callable[[int, np.random.Generator], Row], n: int) -> None:
    random = np.random.default_rng(n)
    for tau in (0.0, 3.0, 500.0):
        check(shape(n, random).astype(np.float32), tau)


def test_greedy_is_argmax(logits: Row) -> None:
    for row in logits:
        assert Greedy().candidates(row)[0].tolist() == [int(np.argmax(row))]
    ids, values = Greedy().candidates(np.array([NAN, 1.0, INF, LARGEST, -INF], np.float32))
    assert (ids.tolist(), values.tolist()) == ([2], [LARGEST])


def test_select_reports_broken_rows() -> None:
    scratch = Scratch(600)
    for sampler in (MinK(), Greedy()):
        for nan in (NAN, -NAN):
            row = np.linspace(0, 1, 600, dtype=np.float32)
            row[500] = nan
            assert sampler.select(row, 1.0, scratch) == kernels.HAS_NAN
            assert sampler.select(row, 1.0, scratch, allow_nan=True) >= 1
        row = np.full(600, -INF, np.float32)
        assert sampler.select(row, 1.0, scratch) == kernels.NO_FINITE_LOGIT


@pytest.mark.parametrize("k", [1, 2, 100, 155, 156, 157, 4999, 5000])
def test_survivors_are_handed_on_by_token_id(k: int) -> None:
    random = np.random.default_rng(k)
    row = random.normal(0, 3, 5000).astype(np.float32)
    row[:50] = INF
    chosen = random.permutation(5000)[:k].astype(np.int32)
    ids = np.full(5000, -1, np.int32)
    ids[:k] = chosen
    records = np.empty(5000, TOKEN_DATA)
    write_token_data(row, ids, k, records)
    assert records["id"][:k].tolist() == sorted(chosen.tolist())
    expected = np.minimum(row[records["id"][:k]], np.float32(LARGEST))
    assert records["logit"][:k].tolist() == expected.tolist()


def test_strided_and_other_arrays(logits: Row) -> None:
    """llama-cpp-python hands its processors a view with 12 bytes between the logits."""
    row = logits[0]
    records = np.zeros(row.size, TOKEN_DATA)
    records["logit"] = row
    assert records["logit"].strides == (12,)
    for scores in (records["logit"], row.astype(np.float64), row[::-1], row.tolist()):
        assert MinK().cutoff(scores) == MinK().cutoff(row)


def test_logits_processor(logits: Row) -> None:
    for row in logits:
        before = row.copy()
        cut = MinK()(np.array([1, 2]), row)
        ids, kept = MinK().candidates(row)
        assert np.array_equal(row, before)
        assert np.flatnonzero(cut > -INF).tolist() == sorted(ids.tolist())
        assert cut[ids].tolist() == kept.tolist()


def test_logits_processor_in_llama_cpp_python(smollm2_path: object) -> None:
    """The one line that a program of one's own needs; every token drawn at T = 5 was a candidate."""
    llama = llama_cpp.Llama(str(smollm2_path), n_ctx=256, verbose=False, seed=1)
    cuts: list[list[int]] = []

    class Watched(MinK):
        def __call__(self, input_ids: object, scores: Row) -> Row:
            cut = super().__call__(input_ids, scores)
            cuts.append(np.flatnonzero(cut > -INF).tolist())
            return cut

    answer = llama.create_chat_completion(
        [{"role": "user", "content": "Tell me a long story about a dragon."}],
        logits_processor=LogitsProcessorList([Watched()]),
        temperature=5.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=24, seed=1,
    )  # fmt: skip
    drawn = llama.input_ids[answer["usage"]["prompt_tokens"] : llama.n_tokens].tolist()
    assert len(drawn) >= 20
    assert any(len(cut) > 1 for cut in cuts)
    assert all(token in cut for token, cut in zip(drawn, cuts, strict=False))
    llama.close()


def test_threads_do_not_share_scratch(logits: Row) -> None:
    expected = [reference.min_k(row, 100.0).tolist() for row in logits]

    def many(_: int) -> bool:
        sampler = MinK(100.0)
        return all(
            sampler.candidates(row)[0].tolist() == ids
            for _ in range(20)
            for row, ids in zip(logits, expected, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(8)))


@pytest.mark.parametrize("tau", [-1.0, NAN, INF])
def test_tau_out_of_range(tau: float) -> None:
    with pytest.raises(ValueError, match="tau must be a finite number of at least 0"):
        MinK(tau)


@given(st.floats(0, allow_infinity=False))
def test_parse_is_the_inverse_of_str(tau: float) -> None:
    assert parse(str(MinK(tau))) == MinK(tau)


def test_parse() -> None:
    assert str(MinK()) == "min-k:tau=3"
    assert parse("min-k") == MinK(3.0)
    assert parse("min-k:tau=0.5") == MinK(0.5)
    assert parse("greedy") == Greedy()
    assert str(Greedy()) == "greedy"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("max-k", "unknown sampler 'max-k': the samplers are min-k"),
        ("min-k:mu=1", "min-k has no option 'mu': its options are tau"),
        ("min-k:tau=x", "min-k: tau must be a number, not 'x'"),
        ("min-k:tau=-1", "tau must be a finite number"),
        ("greedy:k=1", "greedy has no option 'k': it takes none"),
        ("", "unknown sampler ''"),
    ],
)
def test_parse_complains(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text)


def test_fallback_is_idle_on_real_models(logits: Row) -> None:
    """What the docs say of tau: the range is 30 or so, so floor(3 / R) is 0."""
    for row in logits:
        assert math.floor(3.0 / float(row.max() - row.min())) == 0
