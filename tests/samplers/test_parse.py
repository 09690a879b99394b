"""The texts that name samplers: `parse`, `str` and `label`."""

from inspect import signature

import numpy as np
import pytest
from hypothesis import given

from mink_local.samplers import (
    SAMPLERS,
    Chain,
    Eta,
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Mirostat,
    PLess,
    Sampler,
    TopK,
    TopNSigma,
    TopP,
    label,
    parse,
    parse_setting,
)
from tests.support.methods import ANY_CHAIN, ANY_SAMPLER


@given(ANY_SAMPLER | ANY_CHAIN)
def test_parse_is_the_inverse_of_str(sampler: Sampler) -> None:
    assert parse(str(sampler)) == sampler


def test_options_for_ablations_are_given_by_name() -> None:
    by_name = [one.name for one in signature(MinK).parameters.values() if one.kind is one.KEYWORD_ONLY]
    assert by_name == ["alpha", "decay", "normalize"]


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        (MinK(), "min-k:tau=3"),
        (TopP(), "top-p:p=0.9,order=temperature-first"),
        (TopP(1, "temperature-last"), "top-p:p=1,order=temperature-last"),
        (MinP(), "min-p:p=0.1,order=temperature-first"),
        (TopNSigma(), "top-n-sigma:n=1"),
        (Eta(), "eta:epsilon=0.0009,order=temperature-first"),
        (PLess(), "p-less:order=temperature-first"),
        (LlamaDefault(), "llama-default:k=40,p=0.95,min_p=0.05"),
        (Mirostat(), "mirostat:tau=5,eta=0.1,version=2"),
        (MinK(tau=np.float64(2.5), alpha=0), "min-k:tau=2.5,alpha=0"),
        (MinK(decay="log", normalize=False), "min-k:tau=3,decay=log,normalize=false"),
        (MinK(floor=1.0, alpha=2.0), "min-k:tau=3,floor=1,alpha=2"),
        (Chain(MinK(tau=1e16), TopK(9)), "min-k:tau=1e+16+top-k:k=9"),
    ],
)
def test_texts_in_records_stay_as_they_are(sampler: Sampler, text: str) -> None:
    assert str(sampler) == text


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_name_alone_means_the_defaults(name: str) -> None:
    assert parse(name) == SAMPLERS[name]()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("top", "'top'"),
        ("", "name"),
        ("min-k:mu=1", "'mu'"),
        ("greedy:k=1", "'k'"),
        ("top-k:k=2.5", "'2.5'"),
        ("top-k:k=0", "k "),
        ("top-k:k=2147483648", "k .*2147483648"),
        ("top-p:p", "p .*''"),
        ("top-p:p=half", "'half'"),
        ("top-p:p=1.5", "p .*1.5"),
        ("top-p:p=nan", "p .*nan"),
        ("top-p:p=0.5,p=0.6", "p "),
        ("top-p:p=0.5,", "''"),
        ("min-p:p=-0.1", "p .*-0.1"),
        ("min-p:order=first", "order .*first"),
        ("top-n-sigma:n=0", "n .*0.0"),
        ("eta:epsilon=1", "epsilon .*1.0"),
        ("mirostat:version=3", "version .*3"),
        ("mirostat:tau=inf", "tau .*inf"),
        ("mirostat:eta=-1", "eta .*-1.0"),
        ("min-k:tau=-1", "tau .*-1.0"),
        ("min-k:floor=inf", "floor .*inf"),
        ("min-k:floor=nan", "floor .*nan"),
        ("min-k:floor=low", "floor .*'low'"),
        ("min-k:alpha=-1", "alpha .*-1.0"),
        ("min-k:decay=exp", "decay .*exp"),
        ("min-k:normalize=0", "normalize .*'0'"),
        ("min-k:alpha=2,decay=log", "alpha .*decay=log"),
        ("min-k+", "name"),
        ("top-k+min-q", "'min-q'"),
        ("top-k:k=1e+2", "'1e\\+2'"),
        ("mirostat+top-k", "mirostat"),
    ],
)
def test_bad_texts(text: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        parse(text)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("greedy", "greedy"),
        ("min-k:tau=3", "min-k:tau=3"),
        ("min-k:tau=3,decay=log,normalize=false", "min-k:tau=3,decay=log,normalize=false"),
        ("p-less:order=temperature-first", "p-less (T first)"),
        ("top-p:p=0.9,order=temperature-last", "top-p:p=0.9 (T last)"),
        ("top-k:k=9+top-p:p=0.9,order=temperature-last", "top-k:k=9+top-p:p=0.9 (T last)"),
        ("a method of another version", "a method of another version"),
        ("top-p:p=0.9,order=temperature-last@1.5 / greedy", "top-p:p=0.9 (T last)@1.5 / greedy"),
    ],
)
def test_label(text: str, short: str) -> None:
    assert label(text) == short


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("min-k", (MinK(), 1.0, None)),
        ("min-k@1.5/greedy@0", (Greedy(), 0.0, (MinK(), 1.5))),
        ("top-k:k=9+min-k@2 / min-k:tau=1@.5", (MinK(tau=1.0), 0.5, (Chain(TopK(9), MinK()), 2.0))),
    ],
)
def test_a_setting_may_have_another_for_reasoning(text: str, setting: object) -> None:
    assert parse_setting(text) == setting


@pytest.mark.parametrize("text", ["/", "min-k/", "/min-k", "min-k@1/min-k@2/greedy", "min-k@x/greedy"])
def test_half_a_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"missing|option|temperature|unknown"):
        parse_setting(text)


def test_a_cut_without_an_order_gets_the_callers() -> None:
    chain = parse("top-p:p=0.5+min-p:order=temperature-first+min-k", "temperature-last")
    assert chain == Chain(TopP(0.5, "temperature-last"), MinP(), MinK())
    assert parse("top-p") == TopP()
