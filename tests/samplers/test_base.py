"""The samplers' common part: `cutoff`, `candidates`, the logits processor; your own samplers."""

import doctest
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from mink_local import samplers
from mink_local.native import native_sampler
from mink_local.samplers import SAMPLERS, Greedy, MinK, Sampler, TopK, parse
from tests.support import reference
from tests.support.methods import EXAMPLES, JIT, Near, Row

INF = float("inf")
NAN = float("nan")


# What is given


@pytest.mark.parametrize("row", [[-INF], [NAN], [-INF, NAN, -INF]])
@pytest.mark.parametrize("name", SAMPLERS)
def test_no_finite_logit_is_an_error(name: str, row: list[float]) -> None:
    sampler = parse(name)
    for call in (sampler.cutoff, sampler.candidates):
        with pytest.raises(ValueError, match="finite"):
            call(np.array(row, np.float32))


@pytest.mark.parametrize("shape", [(0,), (2, 3), ()])
def test_other_shapes_are_an_error(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"shape \(V,\)"):
        MinK().cutoff(np.zeros(shape, np.float32))


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_other_temperatures_are_an_error(temperature: float) -> None:
    for call in (lambda: Greedy().cutoff([1.0], temperature), lambda: Greedy().at(temperature)):
        with pytest.raises(ValueError, match="temperature"):
            call()


def test_a_negative_seed_is_not_taken_for_the_positive_one() -> None:
    for seed in (-1, -(2**40)):
        with pytest.raises(ValueError, match=f"seed.*{seed}"):
            Greedy().at(1.0, seed)
        with pytest.raises(ValueError, match=f"seed.*{seed}"):
            native_sampler(Greedy(), 9, seed=seed)


def _strided(row: Row) -> Row:
    """The row as llama-cpp-python hands it to a processor, with 12 bytes from one logit to the next."""
    return np.repeat(row, 3).reshape(-1, 3)[:, 0]


def _read_only(row: Row) -> Row:
    copy = row.copy()
    copy.setflags(write=False)
    return copy


@pytest.mark.parametrize(
    "form", [_strided, _read_only, np.float64, np.ndarray.tolist, lambda row: row[::-1][::-1]]
)
def test_any_form_of_a_row_is_taken(form: Callable[[Row], Any]) -> None:
    row = np.random.default_rng(2).normal(0, 3, 500).astype(np.float32)
    assert MinK(2000.0).candidates(form(row))[0].tolist() == MinK(2000.0).candidates(row)[0].tolist()


def test_threads_do_not_share_a_workspace() -> None:
    random = np.random.default_rng(3)
    rows = [random.normal(0, 3, 5000).astype(np.float32) for _ in range(8)]
    expected = [reference.min_k(row, 1.0, 1000.0) for row in rows]

    def many(_: int) -> bool:
        return all(
            MinK(1000.0).candidates(row)[0].tolist() == twin.may.tolist()
            for _ in range(20 if JIT else 1)
            for row, twin in zip(rows, expected, strict=True)
        )

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(many, range(4)))


# As logits processors


@pytest.mark.parametrize("sampler", EXAMPLES, ids=str)
def test_logits_processor(sampler: Sampler) -> None:
    row = np.random.default_rng(5).normal(0, 3, 400).astype(np.float32)
    row[7] = INF
    strided, before = _strided(row), row.copy()
    if sampler.comes_last:
        with pytest.raises(TypeError, match=r"llama\.cpp's own"):
            sampler.at(2.0)
        return
    scores = sampler.at(2.0)([], strided)
    ids, logits = sampler.candidates(row, 2.0)
    expected = np.full(400, -np.inf, np.float32)
    expected[ids] = logits
    np.testing.assert_array_equal(scores, expected)
    np.testing.assert_array_equal(strided, before)
    if sampler.order is None:
        np.testing.assert_array_equal(sampler([], strided), expected)


@pytest.mark.parametrize("name", ["top-a", "typical", "top-p", "min-p", "eta", "p-less"])
def test_logits_processor_without_a_temperature(name: str) -> None:
    row = np.linspace(0, 9, 50, dtype=np.float32)
    assert np.flatnonzero(parse(name)([], row) > -np.inf).tolist() == [49]
    last = parse(f"{name}:order=temperature-last")
    np.testing.assert_array_equal(last([], row), last.at(5.0)([], row))
    assert (parse(name).at(5.0)([], row) > -np.inf).sum() > (last([], row) > -np.inf).sum()


# Your own samplers


@pytest.mark.skipif(not JIT, reason="takes minutes")
def test_the_documented_sampler_works_as_pasted() -> None:
    text = Sampler.__doc__.partition("kernel's options:")[2].partition("A subclass that sets")[0]  # type: ignore[union-attr]
    pasted: dict[str, Any] = {}
    try:
        exec(dedent(text), pasted)
        near = pasted["Near"](2.0)
        assert near.candidates([5.0, 1.0, 4.0])[0].tolist() == [0, 2]
        assert parse(str(near)) == near
    finally:
        SAMPLERS.pop("near", None)


def test_a_sampler_of_ones_own() -> None:
    row = np.array([1.0, 3.0, NAN, 2.5, -INF, 2.0], np.float32)
    assert Near().cutoff(row) == 3
    assert Near(0.6).candidates(row, 1.0)[0].tolist() == [1, 3]
    assert Near(0.6).candidates(row, 2.0)[0].tolist() == [1, 3, 5]
    kept = Near(0.6).at(2.0)([], row)
    assert kept.tolist() == [-INF, 3.0, -INF, 2.5, -INF, 2.0]
    with pytest.raises(ValueError, match="finite"):
        Near().cutoff([NAN])


def test_candidates_are_in_order_whatever_the_kernel_leaves() -> None:
    row = np.array([2.0, 3.0, 2.5, 3.0], np.float32)
    assert Near(5.0).candidates(row)[0].tolist() == TopK(4).candidates(row)[0].tolist() == [1, 3, 2, 0]


def test_examples_in_docstrings() -> None:
    failed, tried = doctest.testmod(samplers)
    assert (failed, tried) == (0, 2)
