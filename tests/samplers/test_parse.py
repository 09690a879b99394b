"""The texts that name samplers: `parse`, `str` and `label`."""

import numpy as np
import pytest
from hypothesis import given

from mink_local.samplers import SAMPLERS, MinK, Sampler, TopP, label, parse
from tests.support.methods import ANY_SAMPLER


@given(ANY_SAMPLER)
def test_parse_is_the_inverse_of_str(sampler: Sampler) -> None:
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
        "llama-default:k=40,p=0.95,min_p=0.05",
        "mirostat:tau=5,eta=0.1,version=2",
    ]
    assert all(parse(name) == sampler() for name, sampler in SAMPLERS.items())
    assert str(MinK(tau=np.float64(2.5), alpha=0)) == "min-k:tau=2.5,alpha=0"
    assert str(MinK(decay="log", normalize=False)) == "min-k:tau=3,decay=log,normalize=false"
    assert str(MinK(floor=1.0, alpha=2.0)) == "min-k:tau=3,floor=1,alpha=2"
    assert str(MinK(floor=0)) == "min-k:tau=3"  # as it was before there was a floor
    assert str(TopP(1, "temperature-last")) == "top-p:p=1,order=temperature-last"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("top", "unknown sampler 'top': the samplers are min-k, greedy, top-k, top-p, min-p, top-n-sigma"),
        ("", "unknown sampler ''"),
        ("min-k:mu=1", "min-k has no option 'mu': its options are tau, floor, alpha, decay, normalize"),
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
        ("min-k:floor=-1", "floor must be a finite number of at least 0, not -1.0"),
        ("min-k:floor=inf", "floor must be a finite number of at least 0, not inf"),
        ("min-k:floor=nan", "floor must be a finite number of at least 0, not nan"),
        ("min-k:floor=low", "min-k: floor must be a number, not 'low'"),
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


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("greedy", "greedy"),
        ("min-k:tau=3", "min-k:tau=3"),
        ("min-k:tau=3,decay=log,normalize=false", "min-k:tau=3,decay=log,normalize=false"),
        ("p-less:order=temperature-first", "p-less (T first)"),
        ("top-p:p=0.9,order=temperature-last", "top-p:p=0.9 (T last)"),
        ("a method of another version", "a method of another version"),
    ],
)
def test_label(text: str, short: str) -> None:
    assert label(text) == short
