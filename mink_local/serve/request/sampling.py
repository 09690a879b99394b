"""From the fields of a request to those of the engine's: prompts and sampling parameters."""

import math
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from mink_local.checks import Range
from mink_local.generation.format.template import infill
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constraints
from mink_local.llama.grammars import IS_LARK
from mink_local.samplers import (
    SAMPLERS,
    Chain,
    MinK,
    Mirostat,
    Sampler,
    parse,
)
from mink_local.serve.bodies import ApiError, api_errors
from mink_local.serve.request.chat import ChatRequest, CompletionRequest
from mink_local.serve.request.fields import Fields, SamplingFields
from mink_local.serve.request.presets import Preset

LARGEST_BIAS = 100.0
_OF_PRESETS = ("sampler", "temperature", "reasoning_sampler", "reasoning_temperature")
_ID = re.compile(r"-?\d+", re.ASCII)
_REASONING_FORMATS = ("none", "auto", "deepseek", "parsed")
_REASONING = (
    "reasoning_effort", "reasoning.effort", "thinking.type", "reasoning_budget", "thinking.budget_tokens",
    "reasoning_message", "reasoning_sampler", "reasoning_temperature",
)  # fmt: skip
Options = Mapping[str, float]


def engine_requests(
    model: Model, request: ChatRequest | CompletionRequest, params: SamplingParams
) -> Sequence[Request]:
    """Return n requests for the engine for each prompt. Raises ApiError, or OptionError for its tools."""
    if isinstance(request, ChatRequest):
        return _with_seeds(chat_for_engine(model, request, params), request.n)
    prompts = request.prompts()
    if request.suffix:
        with api_errors("suffix"):
            prompts = [infill(model.weights, str(prompt), request.suffix) for prompt in prompts]
    made = (Request(prompt, params, split_reasoning=False) for prompt in prompts)
    return [one for each in made for one in _with_seeds(each, request.n)]


def _with_seeds(request: Request, n: int | None) -> list[Request]:
    """Return a request n times, with consecutive seeds."""
    seed = request.params.seed
    first = secrets.randbelow(RANDOM_SEED) if seed is None else seed
    seeds = [(first + i) % RANDOM_SEED for i in range(n or 1)]
    return [replace(request, params=replace(request.params, seed=seed)) for seed in seeds]


def chat_for_engine(model: Model, chat: ChatRequest, params: SamplingParams) -> Request:
    """Return a chat request for the engine. Raises OptionError if a call is forced that no tool can have."""
    choice = chat.tool_choice
    is_hidden = choice == "none"  # the model does not even see the tools
    if choice not in ("none", "auto", None) and params.constraints is not None:
        # A schema is about the content, which a call does not have.
        params = replace(params, constraints=replace(params.constraints, json_schema=None))
    has_switch, variables = model.has_thinking_switch, dict(chat.template_kwargs)
    if not has_switch and chat.enable_thinking is not None:
        variables["enable_thinking"] = chat.enable_thinking  # the template may do something else with it
    return Request(
        [message.for_template() for message in chat.messages],
        params,
        enable_thinking=chat.enable_thinking if has_switch else None,
        prefix=chat.prefix_tokens or (),
        tools=() if is_hidden else msgspec.to_builtins(chat.tools or []),
        tool_choice="auto" if is_hidden else msgspec.to_builtins(choice or "auto"),
        parallel_tool_calls=chat.parallel_tool_calls,
        template_kwargs=variables,
        split_reasoning=chat.reasoning_format != "none",
    )


def unread(request: Fields, model: Model) -> Iterator[str]:
    """Yield a request's fields about reasoning, if the model's chat template knows of none."""
    for place in () if model.can_reason or model.has_thinking_switch else _REASONING:
        found: Any = request
        for name in place.split("."):
            found = getattr(found, name, None)
        if found not in (None, -1):
            yield place


def sampling_params(
    request: ChatRequest | CompletionRequest, preset: Preset, model: Model, most_tokens: int | None = None
) -> tuple[SamplingParams, list[str]]:
    """Return the sampling parameters of a request, and its fields that have no effect.

    Args:
        request: The request.
        preset: The preset that it chooses by its model id.
        model: Tells the context's length and the tokens of texts.
        most_tokens: Maximum length of an answer; None leaves it to the context.

    Raises:
        ApiError: An option is out of range.
    """
    sampler, temperature, ignored = _sampler(request, preset)
    is_echo = isinstance(request, CompletionRequest) and bool(request.echo)
    limits = [limit for limit in (request.token_limit, most_tokens) if limit is not None]
    with api_errors():
        params = SamplingParams(
            sampler=sampler,
            temperature=temperature,
            max_tokens=min(limits, default=None),
            min_tokens=request.min_tokens or 0,
            seed=None if request.seed in (None, -1) else request.seed % RANDOM_SEED,
            stop=_texts(request.stop),
            stop_token_ids=request.stop_token_ids or (),
            ignore_eos=bool(request.ignore_eos),
            logprobs=request.logprobs_count,
            prompt_logprobs=request.logprobs_count if is_echo else None,
            reasoning_budget=request.reasoning_budget,
            reasoning_message=request.reasoning_message,
            **_of_reasoning(request, preset),
            end_loops=request.end_loops or "reasoning",
            constraints=_constraints(request, model, preset),
        )
    needs = {
        "top_logprobs": request.logprobs,
        "stream_options": request.stream,
        "reasoning_format": getattr(request, "reasoning_format", "") in _REASONING_FORMATS,
    }
    ignored += [name for name, needed in needs.items() if getattr(request, name, None) and not needed]
    return params, ignored


def _sampler(request: SamplingFields, preset: Preset) -> tuple[Sampler, float, list[str]]:
    """Return the sampler, the temperature, and the fields that have no effect beside them."""
    chosen = _chosen_options(request)
    fields = [field for given in chosen.values() for field in given]
    if preset.is_fixed:
        fields += [name for name in _OF_PRESETS if getattr(request, name) is not None]
        return preset.sampler, preset.temperature, fields
    temperature = preset.temperature if request.temperature is None else request.temperature
    if temperature == 0 and request.sampler not in (None, "greedy"):
        fields.append("sampler")
    if request.sampler is not None:
        with api_errors("sampler"):
            return parse(request.sampler, "temperature-last"), temperature, fields
    acting = _acting(chosen)
    cuts = [_cut(kind, chosen[kind]) for kind in acting]
    ignored = [
        field for kind, given in chosen.items() if kind not in acting or temperature == 0 for field in given
    ]
    return Chain(*cuts) if len(cuts) > 1 else next(iter(cuts), preset.sampler), temperature, ignored


def _of_reasoning(request: SamplingFields, preset: Preset) -> dict[str, Any]:
    """Return the sampler and the temperature of reasoning: the preset's, or a client's in their place."""
    given: dict[str, Any] = {}
    if request.reasoning_sampler is not None:
        with api_errors("reasoning_sampler"):
            given["reasoning_sampler"] = parse(request.reasoning_sampler, "temperature-last")
    if request.reasoning_temperature is not None:
        given["reasoning_temperature"] = request.reasoning_temperature
    own = {name: getattr(preset, name) for name in ("reasoning_sampler", "reasoning_temperature")}
    return own if preset.is_fixed else own | given


def _chosen_options(request: SamplingFields) -> dict[type[Sampler], Options]:
    """Return the samplers that a request asks for, each with the fields that it gives for it.

    A sampler's first field can switch it off (`top_k: 0`). Without that field, samplers such as xtc are off,
    since clients send their other options in every request.
    """
    chosen: dict[type[Sampler], Options] = {}
    options = request.sampler_options
    for sampler in SAMPLERS.values():
        given = {field: options[field] for field in sampler.request_fields if field in options}
        switch = next(iter(sampler.request_fields), "")
        if switch in given:
            is_on = not sampler.is_off(given[switch])
        else:
            is_on = not sampler.is_stateful and any(value > 0 for value in given.values())
        if sampler is MinK and request.min_k is not None:
            is_on, given = request.min_k, given | {"min_k": True}
        if is_on:
            chosen[sampler] = given
    return chosen


def _acting(chosen: Collection[type[Sampler]]) -> list[type[Sampler]]:
    """Return which of the samplers act, in llama.cpp's order; mirostat does so without cuts."""
    last = [kind for kind in chosen if kind.comes_last][-1:]
    if Mirostat in last:
        return last
    return [*(kind for kind in chosen if not kind.comes_last), *last]


def _cut(kind: type[Sampler], given: Options) -> Sampler:
    """Return a sampler with the options of a request's fields, each within its range, as in llama-server.

    It acts before temperature.

    Raises ApiError if the options are out of range all the same.
    """
    options: dict[str, Any] = {}
    for field in given.keys() & kind.request_fields.keys():
        option = kind.__dataclass_fields__[kind.request_fields[field]]  # type: ignore[attr-defined]
        limits = option.metadata.get("range", Range())
        options[option.name] = type(option.default)(min(max(given[field], limits.low), limits.high))
    if kind.order is not None:
        options["order"] = "temperature-last"
    with api_errors(next(iter(given))):
        return kind(**options)


def _texts(stop: str | list[str] | None) -> tuple[str, ...]:
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _constraints(request: SamplingFields, model: Model, preset: Preset) -> Constraints | None:
    """Return what changes the logits before the cut, or None if nothing does."""
    options = preset.penalties | _given(
        logit_bias=_bias(request, model),
        repeat_penalty=request.repeat_penalty,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        dry_multiplier=request.dry_multiplier,
        **_constraint(request),
    )
    if Constraints(**options) == Constraints():
        return None  # the neutral values that many clients send cost nothing
    return Constraints(
        **options
        | _given(
            penalty_last_n=model.n_ctx if request.repeat_last_n == -1 else request.repeat_last_n,
            dry_base=request.dry_base,
            dry_allowed_length=request.dry_allowed_length,
            dry_penalty_last_n=model.n_ctx
            if request.dry_penalty_last_n == -1
            else request.dry_penalty_last_n,
            dry_sequence_breakers=_texts(request.dry_sequence_breakers) or None,
        ),
    )


def _constraint(request: SamplingFields) -> dict[str, Any]:
    """Return what the answer conforms to. Raises ApiError for a grammar in Lark's syntax."""
    given = {option: value for option, value, _ in request.constraints()}
    if IS_LARK.search(given.get("grammar", "")):  # which can keep llguidance busy for ever
        raise ApiError(400, "grammar must be GBNF: Lark's syntax is not supported here", param="grammar")
    return given


def _bias(request: SamplingFields, model: Model) -> dict[int, float]:
    """Return the logit bias by token id, within ±100; -100 and `false` ban a token."""
    bans = request.custom_token_bans or ()
    biases = dict.fromkeys(map(int, _ID.findall(bans) if isinstance(bans, str) else bans), -math.inf)
    given = request.logit_bias or {}
    is_mapping = isinstance(given, Mapping)
    for token, value in given.items() if isinstance(given, Mapping) else given:
        if value is True or math.isnan(value):
            raise ApiError(400, f"logit_bias: {value} is not a bias".lower(), param="logit_bias")
        bias = max(-LARGEST_BIAS, min(LARGEST_BIAS, value))
        if isinstance(token, int) or (is_mapping and _ID.fullmatch(token)):
            ids = [int(token)]
        else:
            ids = model.tokenize(token)
        for token_id in ids:
            biases[token_id] = -math.inf if value is False or bias == -LARGEST_BIAS else bias
    return biases
