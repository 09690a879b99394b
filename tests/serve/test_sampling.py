"""From requests to sampling options."""

import json
import math
from typing import Any

import pytest

from mink_local.generation.request import SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.samplers import MinK, MinP, Mirostat, PLess, TopK, TopNSigma, TopP
from mink_local.serve.api_errors import ApiError
from mink_local.serve.presets import Defaults, Preset
from mink_local.serve.protocol import ChatRequest, CompletionRequest, parse
from mink_local.serve.sampling import Limits, sampling_params

SERVER = Preset("m", Defaults(MinK(tau=2.0), 1.5), is_fixed=False)
FIXED = Preset("m:min-k-t5", Defaults(MinK(), 5.0), is_fixed=True)
LIMITS = Limits(n_ctx=4096, tokenize=lambda text: [ord(c) for c in text])


def chat(**fields: Any) -> ChatRequest:
    body = {"messages": [{"role": "user", "content": "Hello"}]} | fields
    return parse(json.dumps(body).encode(), ChatRequest)[0]


def asked(**fields: Any) -> SamplingParams:
    params, ignored = sampling_params(chat(**fields), SERVER, LIMITS)
    assert ignored == []
    return params


NEUTRAL = {
    "top_p": 1, "top_k": 0, "min_p": 0, "typical_p": 1, "top_n_sigma": -1, "mirostat": 0, "min_k": False,
    "xtc_probability": 0, "dynatemp_range": 0, "adaptive_target": -1, "min_k_tau": -1, "min_k_floor": 0,
    "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1, "repeat_last_n": 128,
    "dry_multiplier": 0, "dry_base": 2, "logit_bias": {}, "stop": "", "seed": -1, "min_tokens": 0,
    "max_tokens": -1, "grammar": "",
}  # fmt: skip


def test_a_request_that_asks_for_nothing_is_sampled_as_the_server_says() -> None:
    assert asked() == SamplingParams(sampler=MinK(tau=2.0), temperature=1.5)


@pytest.mark.parametrize("field", NEUTRAL)
def test_a_neutral_value_asks_for_nothing(field: str) -> None:
    assert asked(**{field: NEUTRAL[field]}) == asked()


def test_all_neutral_values_together_ask_for_nothing() -> None:
    assert asked(**NEUTRAL) == asked()


@pytest.mark.parametrize(
    ("fields", "sampler"),
    [
        ({"top_k": 40}, TopK(40)),
        ({"top_p": 0.8}, TopP(0.8, order="temperature-last")),
        ({"min_p": 0.05}, MinP(0.05, order="temperature-last")),
        ({"top_n_sigma": 1.5}, TopNSigma(1.5)),
        ({"mirostat": 1, "mirostat_tau": 4, "mirostat_eta": 0.2}, Mirostat(4.0, 0.2, 1)),
        ({"min_k": True}, MinK()),
        ({"min_k": True, "min_k_tau": 0}, MinK(tau=0.0)),
        ({"min_k_tau": 1}, MinK(tau=1.0)),
        ({"min_k_tau": -1}, MinK(tau=2.0)),
        ({"min_k_floor": 1.5}, MinK(floor=1.5)),
        ({"min_k_tau": 1, "min_k_floor": 0}, MinK(tau=1.0)),
        ({"samplers": ["min-k"], "min_k_floor": 4}, MinK(floor=4.0)),
        ({"sampler": "min-k:floor=1"}, MinK(floor=1.0)),
        ({"sampler": "p-less"}, PLess()),
        ({"sampler": "min-k:tau=0.5"}, MinK(tau=0.5)),
        ({"samplers": ["min_k", "temperature"]}, MinK()),
        ({"samplers": ["min-k"], "min_k_tau": 4}, MinK(tau=4.0)),
        ({"samplers": ["top_p", "temperature"], "top_p": 0.7}, TopP(0.7, order="temperature-last")),
        ({"samplers": ["temperature", "top_p"], "top_p": 0.7}, TopP(0.7, order="temperature-first")),
        ({"samplers": ["top_p"]}, TopP(order="temperature-last")),
        ({"samplers": ["penalties", "dry", "temperature"]}, MinP(0.0, order="temperature-last")),
        ({"samplers": ["top_k", "typ_p", "top_p", "xtc", "temperature"], "top_k": 5}, TopK(5)),
        ({"samplers": ["top_k", "top_p", "temperature"]}, MinK(tau=2.0)),
        ({"samplers": []}, MinK(tau=2.0)),
    ],
)
def test_one_cut_is_the_method(fields: dict[str, Any], sampler: Any) -> None:
    assert asked(**fields) == SamplingParams(sampler=sampler, temperature=1.5)


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"top_k": 40, "top_p": 0.9}, "top_p", "top_k and top_p each cut the candidates"),
        ({"min_k": True, "min_p": 0.1, "top_k": 2}, "top_k", "min_k and top_k and min_p each cut"),
        ({"samplers": ["top_k", "min_k"], "top_k": 3}, "min_k", "or say which with sampler"),
        ({"typical_p": 0.9}, "typical_p", "this method is not available"),
        ({"xtc_probability": 0.5}, "xtc_probability", "this method is not available"),
        ({"dynatemp_range": 0.5}, "dynatemp_range", "this method is not available"),
        ({"adaptive_target": 0.5}, "adaptive_target", "this method is not available"),
        ({"samplers": ["xtc"], "xtc_probability": 0.5}, "xtc_probability", "this method is not available"),
        ({"samplers": ["top_q"]}, "samplers", "samplers names 'top_q': it may name"),
        ({"sampler": "min-q"}, "sampler", "unknown sampler 'min-q'"),
        ({"sampler": "min-k:tau=-1"}, "sampler", "tau must be a finite number"),
        ({"min_k": True, "min_k_tau": -1}, "min_k", "tau must be a finite number"),
        ({"min_k": True, "min_k_floor": -1}, "min_k", "floor must be a finite number"),
        ({"min_k_floor": 1, "top_p": 0.9, "min_p": 0}, "top_p", "min_k and top_p each cut the candidates"),
        ({"top_k": 2**31}, "top_k", "k must be a whole number"),
        ({"repeat_penalty": 0}, "repeat_penalty", "repeat_penalty must be"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be at least 1"),
        ({"logit_bias": {"cat": 1}}, "logit_bias", "'cat': give a token id"),
        ({"logit_bias": [[1, True]]}, "logit_bias", "true is no bias"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], param: str, reason: str) -> None:
    with pytest.raises(ApiError) as caught:
        sampling_params(chat(**fields), SERVER, LIMITS)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"sampler": "min-k", "top_p": 0.9, "samplers": ["top_p"]}, ["top_p", "samplers"]),
        ({"samplers": ["min_k"], "top_p": 0.9, "xtc_probability": 1}, ["top_p", "xtc_probability"]),
    ],
)
def test_a_named_method_wins_and_the_others_are_reported(fields: dict[str, Any], ignored: list[str]) -> None:
    params, found = sampling_params(chat(**fields), SERVER, LIMITS)
    assert (params.sampler, found) == (MinK(), ignored)


def test_a_preset_wins_over_the_clients_method_and_temperature_and_nothing_else() -> None:
    request = chat(temperature=0, top_p=0.5, top_k=3, typical_p=0.5, sampler="min-q", seed=5, stop="a")
    params, ignored = sampling_params(request, FIXED, LIMITS)
    assert params == SamplingParams(sampler=MinK(), temperature=5.0, seed=5, stop=("a",))
    assert sorted(ignored) == ["sampler", "temperature", "top_k", "top_p", "typical_p"]


@pytest.mark.parametrize("temperature", [0, 0.5, 5, 1000])
def test_temperature_has_no_upper_bound(temperature: float) -> None:
    assert asked(temperature=temperature).temperature == temperature


@pytest.mark.parametrize(
    ("seed", "reduced"),
    [
        (0, 0),
        (5, 5),
        (2**32 - 2, 2**32 - 2),
        (2**32 - 1, 0),
        (-2, 2**32 - 3),
        (-(2**63), 2**31 - 1),
        (-1, None),
    ],
)
def test_any_whole_number_is_a_seed(seed: int, reduced: int | None) -> None:
    assert asked(seed=seed).seed == reduced


def test_the_servers_limit_of_tokens_holds() -> None:
    limits = Limits(n_ctx=4096, tokenize=lambda _: [], max_tokens=10)
    for given, limit in ({}, 10), ({"max_tokens": 20}, 10), ({"max_tokens": 5}, 5):
        assert sampling_params(chat(**given), SERVER, limits)[0].max_tokens == limit


def test_the_end_of_an_answer_is_the_clients() -> None:
    params = asked(stop=["a", ""], stop_token_ids=[3], ignore_eos=True, min_tokens=2)
    assert (params.stop, params.stop_token_ids) == (("a",), [3])
    assert (params.ignore_eos, params.min_tokens) == (True, 2)


def constraints(**fields: Any) -> Constraints | None:
    return asked(**fields).constraints


def test_a_bias_is_kept_within_100_and_bans_at_its_end() -> None:
    wanted = Constraints(logit_bias={1: 2.5, 2: 100.0, 3: -math.inf})
    assert constraints(logit_bias={"1": 2.5, "2": 500, "3": -100}) == wanted


def test_a_bias_is_given_by_text_as_in_llama_cpp() -> None:
    wanted = Constraints(logit_bias={7: 1.0, 97: -math.inf, 98: -math.inf})
    assert constraints(logit_bias=[[7, 1], ["ab", False]]) == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"repetition_penalty": 1.2}, Constraints(repeat_penalty=1.2)),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, Constraints(repeat_penalty=1.1)),
        (
            {"frequency_penalty": 0.5, "presence_penalty": 1, "repeat_last_n": -1},
            Constraints(frequency_penalty=0.5, presence_penalty=1.0, penalty_last_n=4096),
        ),
        (
            {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 3, "dry_penalty_last_n": 9},
            Constraints(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=3, dry_penalty_last_n=9),
        ),
        (
            {"dry_multiplier": 1, "dry_sequence_breakers": ["a"]},
            Constraints(dry_multiplier=1.0, dry_sequence_breakers=("a",)),
        ),
        ({"grammar": 'root ::= "a"'}, Constraints(grammar='root ::= "a"')),
        ({"json_schema": {"type": "string"}}, Constraints(json_schema={"type": "string"})),
        ({"response_format": {"type": "json_object"}}, Constraints(json_schema={"type": "object"})),
    ],
)
def test_constraints_have_the_names_of_llama_cpp(fields: dict[str, Any], wanted: Constraints) -> None:
    assert constraints(**fields) == wanted


def completion(**fields: Any) -> SamplingParams:
    request = parse(json.dumps({"prompt": "Hello"} | fields).encode(), CompletionRequest)[0]
    return sampling_params(request, SERVER, LIMITS)[0]


def test_logprobs_are_asked_for_in_each_endpoints_way() -> None:
    assert asked(logprobs=True).logprobs == 0
    assert asked(logprobs=True, top_logprobs=3).logprobs == 3
    assert asked(logprobs=False).logprobs is None
    assert (completion(logprobs=2).logprobs, completion(logprobs=2).prompt_logprobs) == (2, None)
    assert completion(logprobs=1, echo=True).prompt_logprobs == 1


def test_no_tokens_after_an_echo_are_one_that_is_left_out() -> None:
    assert completion(max_tokens=0, echo=True).max_tokens == 1
    with pytest.raises(ApiError, match="max_tokens must be at least 1"):
        completion(max_tokens=0)
