"""From the fields of a request to sampling parameters, and the presets that clients choose by model id.

A client that can only choose a model can so have Min-k at temperature 5: `qwen3-4b:min-k-t5`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constraints
from mink_local.samplers import (
    SAMPLERS,
    Chain,
    Greedy,
    LlamaDefault,
    MinK,
    MinP,
    Sampler,
    TopNSigma,
    TopP,
    parse,
)
from mink_local.serve.protocol.fields import ChatRequest, CompletionRequest, SamplingFields
from mink_local.serve.protocol.responses import ApiError

LARGEST_BIAS = 100.0
Options = Mapping[str, float]


@dataclass(frozen=True)
class Preset:
    """A sampler and a temperature, with the model id that selects them.

    Args:
        sampler: The sampler.
        temperature: At least 0.
        model_id: What clients send as `model`.
        is_fixed: Whether they override what a client sends; otherwise they are defaults.
    """

    sampler: Sampler
    temperature: float = 1.0
    model_id: str = ""
    is_fixed: bool = True

    @classmethod
    def parse(cls, text: str) -> "Preset":
        """Return the preset of a text such as `min-k:tau=3@5`: a sampler, and a temperature after an @.

        Raises:
            ValueError: The sampler or the temperature is invalid.
        """
        sampler, _, temperature = text.partition("@")
        try:
            number = float(temperature or 1)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"temperature must be a finite number of at least 0, not {temperature!r}")
        return cls(parse(sampler), number)


BUILT_IN: Mapping[str, Preset] = {
    "min-k": Preset(MinK()),
    "min-k-t5": Preset(MinK(), 5.0),
    "creative": Preset(MinK(floor=1.8)),  # for prose; docs/results.md has what was measured
    "code": Preset(MinK()),
    "llama-default": Preset(LlamaDefault(), 0.8),
    "top-p": Preset(TopP(order="temperature-last")),  # as llama.cpp's users have them
    "min-p": Preset(MinP(order="temperature-last")),
    "greedy": Preset(Greedy(), 0.0),
}
"""The presets that every server has."""


class Presets:
    """The model ids of a server: the model's name, and NAME:PRESET for each preset.

    Args:
        default: The preset of the first id, which is the model's name.
        named: Presets by what follows the colon.
        any_model: Whether an unknown id means the first.
    """

    def __init__(
        self, default: Preset, named: Mapping[str, Preset] = BUILT_IN, *, any_model: bool = False
    ) -> None:
        self.default = default
        ids = {f"{default.model_id}:{name}": preset for name, preset in named.items()}
        self.by_id = {default.model_id: default}
        self.by_id |= {model_id: replace(preset, model_id=model_id) for model_id, preset in ids.items()}
        self._any_model = any_model

    def find(self, model_id: str | None) -> Preset:
        """Return the preset of a model id; None is the model's own name.

        Raises:
            ApiError: No model has the id.
        """
        if model_id is None:
            return self.default
        if (preset := self.by_id.get(model_id)) is not None:
            return preset
        if self._any_model:
            return self.default
        message = f"there is no model {model_id[:100]!r}: this server has {', '.join(self.by_id)}"
        raise ApiError(404, message, param="model", code="model_not_found")


def sampling_params(
    request: ChatRequest | CompletionRequest, preset: Preset, model: Model, most_tokens: int | None = None
) -> tuple[SamplingParams, list[str]]:
    """Return the sampling parameters of a request, and its fields that have no effect.

    With `max_tokens: 0` one token is sampled, which the endpoints leave out.

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
    max_tokens = request.token_limit or (None if request.token_limit is None else 1)
    if most_tokens is not None:
        max_tokens = min(most_tokens, most_tokens if max_tokens is None else max_tokens)
    try:
        params = SamplingParams(
            sampler=sampler,
            temperature=temperature,
            max_tokens=max_tokens,
            min_tokens=request.min_tokens or 0,
            seed=None if request.seed is None or request.seed == -1 else request.seed % RANDOM_SEED,
            stop=_texts(request.stop),
            stop_token_ids=request.stop_token_ids or (),
            ignore_eos=bool(request.ignore_eos),
            logprobs=request.logprobs_count,
            prompt_logprobs=request.logprobs_count if is_echo else None,
            constraints=_constraints(request, model),
        )
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        raise ApiError(400, str(error), param=name if hasattr(request, name) else None) from None
    return params, sorted(request.unsupported.union(ignored))


def _sampler(request: SamplingFields, preset: Preset) -> tuple[Sampler, float, list[str]]:
    """Return the sampler, the temperature, and the fields that these override."""
    chosen = _chosen_options(request.sampler_options, request.min_k)
    fields = [field for given in chosen.values() for field in given]
    if request.min_k:
        fields.append("min_k")
    if preset.is_fixed:
        fields += [name for name in ("sampler", "temperature") if getattr(request, name) is not None]
        return preset.sampler, preset.temperature, fields
    temperature = preset.temperature if request.temperature is None else request.temperature
    if request.sampler is not None:
        try:
            return parse(request.sampler), temperature, fields
        except ValueError as error:
            raise ApiError(400, f"sampler: {error}", param="sampler") from None
    cuts = [_cut(sampler, given) for sampler, given in chosen.items()]
    for cut in cuts:
        if cut.is_stateful:  # mirostat, as in llama.cpp: it leaves the other cuts out
            return cut, temperature, [field for field in fields if field not in cut.request_fields]
    cuts.sort(key=lambda cut: not isinstance(cut, MinK | TopNSigma))  # then llama.cpp's order
    sampler = Chain(*cuts) if len(cuts) > 1 else next(iter(cuts), preset.sampler)
    return sampler, temperature, []


def _chosen_options(options: Options, min_k: bool | None) -> dict[type[Sampler], Options]:
    """Return the samplers that a request asks for, each with the fields of its options.

    A sampler's first field switches it off with a neutral value (`top_k: 0`). Without that field, Mirostat is
    off, since clients send its other options in every request.
    """
    chosen: dict[type[Sampler], Options] = {}
    for sampler in SAMPLERS.values():
        given = {field: options[field] for field in sampler.request_fields if field in options}
        switch = next(iter(sampler.request_fields), "")
        if switch in given:
            is_on = not _is_neutral(switch, given[switch])
        else:
            is_on = not sampler.is_stateful and any(not _is_neutral(*item) for item in given.items())
        if sampler is MinK and min_k is not None:
            is_on = min_k
        if is_on:
            chosen[sampler] = given
    return chosen


def _is_neutral(field: str, value: float) -> bool:
    """Return whether a field's value stands for not using the sampler."""
    if field == "top_p":
        return value == 1
    return value < 0 or (value == 0 and field != "min_k_tau")


def _cut(sampler: type[Sampler], given: Options) -> Sampler:
    """Return a sampler with the options of a request's fields. Raises ApiError if one is out of range."""
    options: dict[str, Any] = {sampler.request_fields[field]: value for field, value in given.items()}
    if sampler.order is not None:
        options["order"] = "temperature-last"  # as in llama.cpp
    try:
        return sampler(**options)
    except ValueError as error:
        field = next(iter(given))
        raise ApiError(400, f"{field}: {error}", param=field) from None


def _texts(stop: str | list[str] | None) -> tuple[str, ...]:
    return tuple(filter(None, [stop] if isinstance(stop, str) else stop or ()))


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _constraints(request: SamplingFields, model: Model) -> Constraints | None:
    """Return what changes the logits before the cut, or None if nothing does."""
    form = request.form
    repeat = request.repeat_penalty if request.repeat_penalty is not None else request.repetition_penalty
    options = _given(
        logit_bias=_bias(request, model),
        repeat_penalty=repeat,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        dry_multiplier=request.dry_multiplier,
        grammar=form if isinstance(form, str) else None,
        json_schema=request.answer_schema,
    )
    if Constraints(**options) == Constraints():
        return None  # the neutral values that many clients send cost nothing
    return Constraints(
        **options,
        **_given(
            penalty_last_n=model.n_ctx if request.repeat_last_n == -1 else request.repeat_last_n,
            dry_base=request.dry_base,
            dry_allowed_length=request.dry_allowed_length,
            dry_penalty_last_n=model.n_ctx
            if request.dry_penalty_last_n == -1
            else request.dry_penalty_last_n,
            dry_sequence_breakers=_texts(request.dry_sequence_breakers) or None,
        ),
    )


def _bias(request: SamplingFields, model: Model) -> dict[int, float]:
    """Return the logit bias by token id, within ±100; -100 and `false` ban a token."""
    biases = {}
    given = request.logit_bias or {}
    for token, value in given.items() if isinstance(given, Mapping) else given:
        if value is True:
            raise ApiError(400, "logit_bias: true is not a bias", param="logit_bias")
        bias = max(-LARGEST_BIAS, min(LARGEST_BIAS, value))
        for token_id in [token] if isinstance(token, int) else model.tokenize(token):
            biases[token_id] = -math.inf if value is False or bias == -LARGEST_BIAS else bias
    return biases
