"""From the fields of a request to sampling options: which method it asks for, and what is ignored.

A field with a neutral value (`top_p: 1`, `top_k: 0`) asks for nothing. One that cuts is the method, applied
before temperature as in llama.cpp; two are refused, since one method decides the candidates here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mink_local.generation.request import SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.llama.context import RANDOM_SEED
from mink_local.samplers import MinK, MinP, Mirostat, Order, Sampler, TopK, TopNSigma, TopP, parse
from mink_local.serve.api_errors import ApiError
from mink_local.serve.presets import Preset
from mink_local.serve.protocol import ChatRequest, CompletionRequest, SamplingFields

LARGEST_BIAS = 100.0


@dataclass(frozen=True)
class Limits:
    """The server's limits, and what the fields of a request are read with.

    Args:
        n_ctx: Tokens that a prompt and its answer share.
        tokenize: Gives the token ids of a text in which control tokens are text.
        max_tokens: Most tokens of an answer; None leaves it to the context.
    """

    n_ctx: int
    tokenize: Callable[[str], list[int]]
    max_tokens: int | None = None


def sampling_params(
    request: ChatRequest | CompletionRequest, preset: Preset, limits: Limits
) -> tuple[SamplingParams, list[str]]:
    """Return the sampling options that a request asks for, and its fields that are ignored.

    With `echo` and no tokens asked for, one token is sampled, which the endpoint leaves out.

    Raises:
        ApiError: The request asks for several methods or an unknown one, or an option is out of range.
    """
    sampler, temperature, ignored = _method(request, preset)
    try:
        params = SamplingParams(
            sampler=sampler,
            temperature=temperature,
            max_tokens=_max_tokens(request, limits),
            min_tokens=request.min_tokens or 0,
            seed=None if request.seed is None or request.seed == -1 else request.seed % RANDOM_SEED,
            stop=_texts(request.stop),
            stop_token_ids=request.stop_token_ids or (),
            ignore_eos=bool(request.ignore_eos),
            logprobs=request.logprobs_count,
            prompt_logprobs=request.prompt_logprobs_count,
            constraints=_constraints(request, limits),
        )
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        raise ApiError(400, str(error), param=name if hasattr(request, name) else None) from None
    return params, ignored


def _max_tokens(request: ChatRequest | CompletionRequest, limits: Limits) -> int | None:
    asked = request.token_limit
    if asked == 0 and isinstance(request, CompletionRequest) and request.echo:
        return 1
    return min((limit for limit in (asked, limits.max_tokens) if limit is not None), default=None)


def _texts(stop: str | list[str] | None) -> tuple[str, ...]:
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


# How each method is made of the request's fields; a field that is absent has the method's own default.
_METHODS: Mapping[str, Callable[[SamplingFields, Order], Sampler]] = {
    "min_k": lambda request, _: MinK(**_given(tau=request.min_k_tau, floor=request.min_k_floor)),
    "top_k": lambda request, _: TopK(**_given(k=request.top_k)),
    "top_p": lambda request, order: TopP(**_given(p=request.top_p), order=order),
    "min_p": lambda request, order: MinP(**_given(p=request.min_p), order=order),
    "top_n_sigma": lambda request, _: TopNSigma(**_given(n=request.top_n_sigma)),
    "mirostat": lambda request, _: Mirostat(
        **_given(version=request.mirostat, tau=request.mirostat_tau, eta=request.mirostat_eta)
    ),
}
_NO_CUT = MinP(0.0, order="temperature-last")

# Values that ask for nothing, of the fields that switch a method on.
_NEUTRAL: Mapping[str, Callable[[Any], bool]] = {
    "top_k": lambda value: value <= 0,
    "top_p": lambda value: value == 1,
    "min_p": lambda value: value == 0,
    "top_n_sigma": lambda value: value <= 0,
    "mirostat": lambda value: value == 0,
    "typical_p": lambda value: value >= 1,
    "xtc_probability": lambda value: value <= 0,
    "dynatemp_range": lambda value: value == 0,
    "adaptive_target": lambda value: value < 0,
}

# What `samplers` may name besides methods, by llama.cpp's names; with the field that switches each on.
_STEPS = {
    "temperature": "temperature",
    "penalties": "repeat_penalty",
    "dry": "dry_multiplier",
    "typ_p": "typical_p",
    "typical_p": "typical_p",
    "xtc": "xtc_probability",
    "adaptive_p": "adaptive_target",
}


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _method(request: SamplingFields, preset: Preset) -> tuple[Sampler, float, list[str]]:
    """Return the sampler, the temperature, and the fields that are ignored."""
    asked, defaults = _asked(request), preset.defaults
    if preset.is_fixed:
        given = [
            name for name in ("sampler", "samplers", "temperature") if getattr(request, name) is not None
        ]
        return defaults.sampler, defaults.temperature, given + asked
    temperature = defaults.temperature if request.temperature is None else request.temperature
    if request.sampler is not None:
        return _parsed(request.sampler), temperature, asked + ["samplers"] * (request.samplers is not None)
    if not request.samplers:
        return _one(asked, request, "temperature-last") or defaults.sampler, temperature, []
    names = [_field(name) for name in request.samplers]
    chosen = _chosen(names, request, asked)
    is_last = "temperature" not in names or not chosen or names.index("temperature") > names.index(chosen[0])
    sampler = _one(chosen, request, "temperature-last" if is_last else "temperature-first")
    if sampler is None:
        sampler = defaults.sampler if any(name in _METHODS for name in names) else _NO_CUT
    return sampler, temperature, [name for name in asked if name not in chosen]


def _asked(request: SamplingFields) -> list[str]:
    """Return the fields that switch a method on."""
    tau, floor = request.min_k_tau, request.min_k_floor
    has_option = (tau is not None and tau >= 0) or (floor is not None and floor > 0)
    asks_min_k = request.min_k or (request.min_k is None and has_option)
    values = {name: getattr(request, name) for name in _NEUTRAL}
    others = [name for name, value in values.items() if value is not None and not _NEUTRAL[name](value)]
    return ["min_k"] * bool(asks_min_k) + others


def _field(step: str) -> str:
    """Return the field that switches on what `samplers` names, such as `typical_p` for `typ_p`."""
    name = step.lower().replace("-", "_")
    if name not in _METHODS and name not in _STEPS:
        known = ", ".join(_METHODS.keys() | _STEPS.keys())
        raise ApiError(400, f"samplers names {step!r}: it may name {known}", param="samplers")
    return _STEPS.get(name, name)


def _chosen(names: Sequence[str], request: SamplingFields, asked: Sequence[str]) -> list[str]:
    """Return the methods of a list that are on: Min-k without a field of its own, and one that is alone."""
    chosen = [name for name in names if name in asked or name == "min_k"]
    methods = [name for name in names if name in _METHODS]
    if not chosen and len(methods) == 1 and getattr(request, methods[0]) is None:
        return methods
    return chosen


def _one(names: Sequence[str], request: SamplingFields, order: Order) -> Sampler | None:
    """Return the sampler of the one method among the names, or None if there are no names."""
    for name in names:
        if name not in _METHODS:
            raise ApiError(400, f"{name}: this method is not available, leave it out", param=name)
    if len(names) > 1:
        message = (
            f"{' and '.join(names)} each cut the candidates: give one of them, or say which with sampler"
        )
        raise ApiError(400, message, param=names[1])
    try:
        return _METHODS[names[0]](request, order) if names else None
    except ValueError as error:
        raise ApiError(400, f"{names[0]}: {error}", param=names[0]) from None


def _parsed(text: str) -> Sampler:
    try:
        return parse(text)
    except ValueError as error:
        raise ApiError(400, f"sampler: {error}", param="sampler") from None


def _constraints(request: SamplingFields, limits: Limits) -> Constraints | None:
    """Return what changes the logits before the cut, or None if nothing does."""
    repeat = request.repeat_penalty if request.repeat_penalty is not None else request.repetition_penalty
    options = _given(
        logit_bias=_bias(request, limits),
        repeat_penalty=repeat,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        dry_multiplier=request.dry_multiplier,
        grammar=request.grammar or None,
        json_schema=request.answer_schema,
    )
    if Constraints(**options) == Constraints():
        return None  # the neutral values that many clients send cost nothing
    return Constraints(
        **options,
        **_given(
            penalty_last_n=_last_n(request.repeat_last_n, limits),
            dry_base=request.dry_base,
            dry_allowed_length=request.dry_allowed_length,
            dry_penalty_last_n=_last_n(request.dry_penalty_last_n, limits),
            dry_sequence_breakers=_texts(request.dry_sequence_breakers) or None,
        ),
    )


def _last_n(asked: int | None, limits: Limits) -> int | None:
    return limits.n_ctx if asked == -1 else asked


def _bias(request: SamplingFields, limits: Limits) -> dict[int, float]:
    """Return the logit bias by token id, within ±100; -100 and `false` ban a token."""
    asked = request.logit_bias or {}
    biases = {}
    for token, value in asked.items() if isinstance(asked, Mapping) else asked:
        for token_id in _token_ids(token, limits, is_key=isinstance(asked, Mapping)):
            if value is True:
                raise ApiError(400, "logit_bias: true is no bias, give a number or false", param="logit_bias")
            bias = max(-LARGEST_BIAS, min(LARGEST_BIAS, value))
            biases[token_id] = -math.inf if value is False or bias == -LARGEST_BIAS else bias
    return biases


def _token_ids(token: int | str, limits: Limits, is_key: bool) -> list[int]:
    """Return the ids of a token in `logit_bias`: an id, or as a key of an object digits, or a text."""
    if isinstance(token, int):
        return [token]
    if not is_key:
        return limits.tokenize(token)
    if not token.isdecimal():
        raise ApiError(400, f"logit_bias has the key {token!r}: give a token id", param="logit_bias")
    return [int(token)]
