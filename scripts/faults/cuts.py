"""Candidates of any method from any row, in all forms, against the float64 full sort of the tests."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import hypothesis
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mink_local.errors import GenerationError
from mink_local.llama.token_sampler import TokenSampler
from mink_local.native import check as check_native
from mink_local.native import native_sampler
from mink_local.samplers import Mirostat, Sampler
from scripts.faults.kind import Case, Kind
from tests.support.chain import SamplerChain
from tests.support.logits import embedded_logits
from tests.support.methods import ANY_SAMPLER, TEMPERATURES, Row, check, rows

PER_CASE = 100
SAMPLERS = 4  # that get one row: making rows takes longest


def real_row(number: int, scale: float, seed: int, banned: float) -> Row:
    """Return a row of the embedded model, scaled, with a part of its tokens banned."""
    row: Row = embedded_logits()[number] * np.float32(scale)
    row[np.random.default_rng(seed).random(row.size) < banned] = -np.inf
    return row


REAL = st.builds(
    real_row,
    st.integers(0, 19),
    st.sampled_from([1.0, 1.0, 1e-7, 0.01, 1e30]),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.1, 0.999]),
)


def agree(sampler: Sampler, row: Row, temperature: float) -> None:
    """Compare the kernel with its twin, and every other form with the kernel."""
    check(sampler, row, temperature)
    ids = np.sort(sampler.candidates(row, temperature)[0])
    kept = sampler.at(temperature)([], row)
    np.testing.assert_array_equal(np.flatnonzero(kept > -np.inf), ids)
    if isinstance(sampler, Mirostat):  # llama.cpp's own, which has no other form
        return
    direct = TokenSampler(sampler, temperature, 1, row.size)
    chain = SamplerChain(native := native_sampler(sampler, row.size, temperature))
    try:
        records, _ = chain.apply(np.arange(row.size), row)
        if np.isnan(row).any():
            assert refuses(lambda: direct(row, 1))
            assert refuses(lambda: check_native(native, 1))
            return
        np.testing.assert_array_equal(records["id"], ids)
        assert check_native(native, 1) == ids.size
        assert direct(row, 1) in ids
        assert direct.k == ids.size
    finally:
        chain.free()


def refuses(action: Callable[[], object]) -> bool:
    try:
        action()
    except GenerationError:
        return True
    return False


def begin(folder: Path) -> Case:
    hypothesis.configuration.set_hypothesis_home_dir(folder)

    def case(rng: Random, _: Path) -> str:
        @hypothesis.seed(rng.getrandbits(64))
        @settings(
            max_examples=PER_CASE // SAMPLERS,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(
            st.tuples(*[ANY_SAMPLER] * SAMPLERS),
            rows() | REAL,
            st.sampled_from(TEMPERATURES) | st.floats(0.01, 100),
        )
        def all_agree(samplers: tuple[Sampler, ...], row: Row, temperature: float) -> None:
            for sampler in samplers:
                agree(sampler, row, temperature)

        all_agree()
        return "agree"

    return case


KIND = Kind("cuts", 1_000_000, begin, per_case=PER_CASE)
