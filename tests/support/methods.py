"""The table of methods that drives their tests: a new sampler is one row here."""

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from numpy.typing import NDArray

from mink_local.samplers import (
    AdaptiveP,
    Chain,
    DynamicTemperature,
    Eta,
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Mirostat,
    Order,
    PLess,
    Sampler,
    TopA,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from mink_local.samplers.compile import compiled
from mink_local.samplers.kernels import keep_from, survey
from tests.support import reference

Row = NDArray[np.float32]

JIT = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"  # without it a whole vocabulary takes minutes
LARGEST = float(np.finfo(np.float32).max)
ABOVE_ONE = float(np.nextafter(np.float32(1), np.float32(2)))
TEMPERATURES = [1e-300, 1e-9, 0.3, 1.0, 5.0, 1e4, 1e15, 1e300]


class Method(NamedTuple):
    """What the tests know of a method.

    twin: The slow and plain form of its kernel: of a row, a temperature and the sampler's options.
    samplers: The samplers with any options.
    examples: The samplers whose candidates on real logits are compared, and in each form.
    splits_ties: If one of two equal logits may be kept; a method with a threshold keeps both.
    """

    twin: Callable[..., reference.Kept]
    samplers: st.SearchStrategy[Sampler]
    examples: tuple[Sampler, ...]
    splits_ties: bool = False


_orders = st.sampled_from(["temperature-first", "temperature-last"])
_unit = st.floats(0, 1) | st.sampled_from([0.0, 0.1, 0.9, 1.0])
_taus = st.sampled_from([0.0, 3.0]) | st.floats(0, 1e12)
_alphas = st.sampled_from([0.0, 0.5, 2.0]) | st.floats(0, 8)
_floors = st.sampled_from([0.0, 1.0, 1e30]) | st.floats(0, 30) | st.floats(0, LARGEST)
_min_ks = (
    st.builds(MinK, _taus)
    | st.builds(MinK, _taus, _floors)
    | st.builds(MinK, _taus, _floors, alpha=_alphas, normalize=st.booleans())
    | st.builds(MinK, _taus, _floors, decay=st.just("log"), normalize=st.booleans())
)
_variants = (
    MinK(tau=0.0), MinK(tau=2000.0), MinK(tau=1e30), MinK(alpha=0.0), MinK(alpha=0.5), MinK(alpha=2.0),
    MinK(decay="log", normalize=False), MinK(tau=40.0, alpha=2.0, normalize=False),
    MinK(floor=0.5), MinK(floor=1.0), MinK(floor=2.3), MinK(floor=8.0), MinK(floor=1e30),
    MinK(tau=2000.0, floor=2.0), MinK(alpha=0.5, floor=1.0),
)  # fmt: skip

METHODS: dict[type[Sampler], Method] = {
    MinK: Method(reference.min_k, _min_ks, (MinK(), *_variants), splits_ties=True),
    Greedy: Method(reference.greedy, st.just(Greedy()), (Greedy(),), splits_ties=True),
    TopNSigma: Method(
        reference.top_n_sigma, st.builds(TopNSigma, st.floats(1e-3, 10)), (TopNSigma(), TopNSigma(2.0))
    ),
    TopK: Method(
        reference.top_k,
        st.builds(TopK, st.integers(1, 60) | st.integers(1, 2**31 - 1)),
        (TopK(), TopK(1000)),
        splits_ties=True,
    ),
    TopA: Method(reference.top_a, st.builds(TopA, _unit, _orders), (TopA(), TopA(order="temperature-last"))),
    Typical: Method(
        reference.typical,
        st.builds(Typical, _unit, _orders),
        (Typical(), Typical(0.3), Typical(0.95, order="temperature-last")),
    ),
    TopP: Method(
        reference.top_p,
        st.builds(TopP, _unit, _orders),
        (TopP(), TopP(order="temperature-last")),
        splits_ties=True,
    ),
    MinP: Method(reference.min_p, st.builds(MinP, _unit, _orders), (MinP(), MinP(order="temperature-last"))),
    Xtc: Method(
        reference.xtc,
        st.builds(Xtc, _unit, _unit, _orders),
        (Xtc(1.0), Xtc(1.0, 0.01, "temperature-last")),
        splits_ties=True,
    ),
    Eta: Method(
        reference.eta,
        st.builds(Eta, st.floats(1e-12, 0.999), _orders),
        (Eta(), Eta(order="temperature-last")),
    ),
    PLess: Method(reference.p_less, st.builds(PLess, _orders), (PLess(), PLess("temperature-last"))),
    DynamicTemperature: Method(
        reference.every_finite,
        st.builds(DynamicTemperature, st.floats(0, 9), st.floats(0.1, 9)),
        (DynamicTemperature(),),
    ),
    AdaptiveP: Method(
        reference.every_finite,
        st.builds(AdaptiveP, _unit, st.floats(0, 0.99)),
        (AdaptiveP(),),
    ),
    Mirostat: Method(
        reference.every_finite,
        st.builds(Mirostat, st.floats(1e-3, 99), st.floats(0, 9), st.sampled_from([1, 2])),
        (Mirostat(),),
    ),
    LlamaDefault: Method(
        reference.llama_default,
        st.builds(LlamaDefault, st.integers(1, 60) | st.integers(1, 2**31 - 1), _unit, _unit),
        (LlamaDefault(), LlamaDefault(k=1000, p=1.0, min_p=0.001)),
        splits_ties=True,
    ),
}

EXAMPLES = [sampler for method in METHODS.values() for sampler in method.examples]
ANY_SAMPLER = st.one_of(*(method.samplers for method in METHODS.values()))
ANY_CHAIN = st.builds(
    lambda cuts, last: Chain(*cuts, last),
    st.lists(ANY_SAMPLER.filter(lambda one: not one.comes_last), min_size=1, max_size=3),
    ANY_SAMPLER,
)


# Somebody's own sampler: a kernel, a dataclass, and nothing else.


@compiled
def near(logits: Any, options: Any, work: Any, ids: Any) -> Any:
    """Keep the logits of at least `largest - distance * temperature`."""
    n, _, largest = survey(logits, work)
    return keep_from(largest - options[0] * options[1], largest, logits, work, ids) if n > 0 else n


@dataclass(frozen=True)
class Near(Sampler):
    distance: float = 1.0
    order: Order = "temperature-first"

    name = "near"
    kernel = staticmethod(near)


def twin_of(
    sampler: Sampler, row: Row, temperature: float, methods: Mapping[type[Sampler], Method] = METHODS
) -> reference.Kept:
    """What the sampler's twin keeps of a row."""
    options = asdict(sampler)  # type: ignore[call-overload]
    options.pop("order", None)
    return methods[type(sampler)].twin(row, sampler.seen(temperature), **options)


def check(
    sampler: Sampler, row: Row, temperature: float = 1.0, methods: Mapping[type[Sampler], Method] = METHODS
) -> None:
    """Check that the candidates are the twin's or those that rounding at its threshold allows.

    They come in descending order of their logits, in which they are consecutive.
    """
    twin = twin_of(sampler, row, temperature, methods)
    before = row.copy()
    ids, logits = sampler.candidates(row, temperature)
    assert set(twin.must) <= set(ids) <= set(twin.may)
    descending, _ = reference.descending(row)
    first = int(np.flatnonzero(descending == ids[0])[0])
    np.testing.assert_array_equal(ids, descending[first : first + ids.size])
    assert sampler.cutoff(row, temperature) == ids.size
    np.testing.assert_array_equal(row, before)
    np.testing.assert_array_equal(logits, np.minimum(row[ids], np.float32(LARGEST)))
    if not methods[type(sampler)].splits_ties:
        cut = np.delete(descending, slice(first, first + ids.size))
        assert not np.isin(np.minimum(row[cut], np.float32(LARGEST)), logits).any()


def rows() -> st.SearchStrategy[Row]:
    """Rows with a finite logit: of any float32, of a few values with many ties, of what models give."""
    anything = st.floats(width=32)
    few = st.sampled_from(
        [-math.inf, math.nan, math.inf, -2.5, 0.0, -0.0, 1.0, ABOVE_ONE, 7.0, LARGEST, -LARGEST]
    )
    ordinary = st.floats(-30, 30, width=32)
    sizes = st.integers(1, 40) | st.integers(1, 700)
    small = st.one_of(
        *(npst.arrays(np.float32, sizes, elements=e, fill=e) for e in (anything, few, ordinary))
    )
    large = st.builds(large_row, st.integers(0, 2**32 - 1), st.integers(1, 20_000 if JIT else 2_000))
    return (small | large).filter(lambda row: bool((row > -math.inf).any()))


def large_row(seed: int, size: int) -> Row:
    """Return normal logits, rounded to make ties, a tenth of them banned."""
    rng = np.random.default_rng(seed)
    row = rng.normal(0, 3, size).astype(np.float32).round(int(rng.integers(1, 8)))
    row[rng.random(size) < 0.1] = -np.inf
    return row
