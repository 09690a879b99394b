"""From a request's bytes to its type: decoded, its fields given this server's names, and converted.

Errors name what the client sent, and what has no effect is listed for it.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, Generic, TypeVar

import msgspec

from mink_local.sandbox import in_a_line
from mink_local.serve.bodies import ApiError, Json
from mink_local.serve.request.fields import Fields, SamplingFields, sampler_fields

RequestT = TypeVar("RequestT", bound=Fields)

NOT_GIVEN: tuple[Any, ...] = (None, "", [], {})
"""Values that ask for nothing."""

_OFF_AT_0 = (
    "background", "ban_eos_token", "diversity_penalty", "early_stopping", "epsilon_cutoff", "eta_cutoff",
    "include_stop_str_in_output", "max_tokens_second", "min_keep", "no_repeat_ngram_size", "penalty_alpha",
    "rep_pen_range", "repetition_decay", "repetition_penalty_range", "sampler_order", "sampler_priority",
    "skew", "smoothing_factor", "speculative_ngram", "store", "use_beam_search", "vllm_xargs",
)  # fmt: skip
_OFF_AT_1 = (
    "add_bos_token", "best_of", "cache_prompt", "do_sample", "encoder_repetition_penalty", "guidance_scale",
    "include_reasoning", "length_penalty", "n", "num_beams", "rep_pen_slope", "skip_special_tokens",
    "smoothing_curve", "spaces_between_special_tokens", "temperature_last", "tfs", "tfs_z", "trim_stop",
)  # fmt: skip
NEUTRAL = dict.fromkeys(_OFF_AT_0, 0) | dict.fromkeys(_OFF_AT_1, 1) | {"truncation": "disabled"}
"""Fields of other servers that ask for nothing with these values."""

_LABELS = frozenset({"description", "id", "name", "signature", "status", "strict"})
"""Fields inside others that only name something, or ask for what is done anyway."""

_NOTES = frozenset({"api_server", "api_type", "num_ctx", "truncation_length"})
"""Fields that front ends write down for themselves."""

_ESCAPE = re.compile(  # in JSON: a whole character, half of one, or another
    rb"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\.", re.DOTALL
)
_MOST_IGNORED = 32  # fields that are listed


@dataclass(frozen=True)
class Parsed(Generic[RequestT]):
    """A request.

    Attributes:
        request: The request.
        places: Where its client gave fields that have other names here.
        ignored: The client's fields that have no effect; more become known when it is answered.
    """

    request: RequestT
    places: Mapping[str, str]
    ignored: set[str]

    def about_field(self, error: ApiError) -> ApiError:
        """Return an error about the engine's request as one about the client's."""
        maps = [self.request.places, self.places]
        with suppress(ApiError):
            maps.insert(0, self.request.normal().places)
        return reduce(renamed, maps, error)

    @property
    def listed(self) -> list[str]:
        """The fields that have no effect, by the client's names, which may be any text, for a header."""
        names = (self.places.get(name, name)[:128] for name in self.ignored)
        safe = {re.sub(r"[^\w.-]", "?", name, flags=re.ASCII) for name in names}
        return sorted(filter(None, safe))[:_MOST_IGNORED]


def parse(body: bytes, kind: type[RequestT]) -> Parsed[RequestT]:
    """Return the request of a JSON body.

    Raises:
        ApiError: The body is no JSON object, a field has the wrong type or is out of range, or it asks for
            what is not supported.
    """
    fields = _decoded(body)
    for name, instead in kind.refused.items():
        if _asks(name, fields.get(name)):
            message = f"{name} is not supported: {instead}"
            raise ApiError(400, message, param=name, code="unsupported_parameter")
    places, ignored = _rename(fields, kind)
    kind.normalise(fields)
    try:
        request = _converted(fields, with_sampler_fields(kind))
    except ApiError as error:
        raise renamed(error, places) from None
    return Parsed(request, places, {*ignored, *_unknown(fields, request)})


def _decoded(body: bytes) -> Json:
    """Return a JSON object without its nulls, which are as good as absent fields."""
    try:
        fields = msgspec.json.decode(_ESCAPE.sub(_whole, body.removeprefix(b"\xef\xbb\xbf")))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return {name: value for name, value in fields.items() if value is not None}


def _whole(escape: re.Match[bytes]) -> bytes:
    """Return an escape; half of an emoji, where JavaScript has cut a text, is U+FFFD."""
    return b"\\ufffd" if escape[1] else escape[0]


def _rename(fields: Json, kind: type[Fields]) -> tuple[dict[str, str], list[str]]:
    """Give fields this server's names; return where those were, and the fields that others win over.

    One that asks for nothing wins over none, but alone it is read, as its type may be wrong.
    """
    places, losers = {}, []
    for name, names in kind.names.items():
        values = {other: fields.pop(other) for other in names if other in fields}
        if given := sorted(values, key=lambda other: values[other] in NOT_GIVEN):
            fields[name] = values[given[0]]
            losers += [other for other in given[1:] if values[other] != fields[name]]
            if given[0] != name:
                places[name] = given[0]
    return places, losers


def _converted(fields: Json, kind: type[RequestT]) -> RequestT:
    """Return a request of the given type. Raises ApiError."""
    try:
        return msgspec.convert(fields, kind, strict=False, str_keys=True)
    except msgspec.ValidationError as error:
        found = str(error)
    text, path = _complaint(found)
    if missing := re.fullmatch(r"Object missing required field `(\w+)`|([\w.]+) is missing", text):
        path = f"{path}.{missing[1] or missing[2]}".strip(".")
        raise ApiError(400, f"{path} is missing", param=path)
    instead = kind.instead.get(re.sub(r"\[\d+\]", "", path))
    if instead and (value := re.match(r"Invalid (?:enum )?value (.*)", text)):
        message = f"{path}: {value[1]} is not supported: {instead}"
        raise ApiError(400, message, param=path, code="unsupported_value")
    raise ApiError(400, f"{path}: {text}" if path else text, param=path or None)


def _complaint(error: str) -> tuple[str, str]:
    """Return what msgspec complains about, and where: `$.messages[0].role`, or `key` in `$.logit_bias`."""
    text, _, place = error.partition(" - at ")
    return in_a_line(text), place.rpartition("`$")[2].strip(".`").replace("[...]", "")


def _unknown(given: Any, read: Any, path: str = "") -> Iterator[str]:
    """Yield the paths, without indices, of what was given, asks for something, and has no field."""
    if isinstance(given, list) and isinstance(read, list):
        for one, its in zip(given, read, strict=True):
            if isinstance(one, dict):  # a prompt may have a million token ids
                yield from _unknown(one, its, path)
    elif isinstance(given, dict) and isinstance(read, msgspec.Struct):
        known = {*read.__struct_fields__, read.__struct_config__.tag_field}
        for name, inner in given.items():
            if name in known:
                yield from _unknown(inner, getattr(read, name, None), f"{path}{name}.")
            elif _asks(name, inner) and not (path and name in _LABELS):
                yield f"{path}{name[:64]}"


def _asks(name: str, value: Any) -> bool:
    """Return whether a field asks for anything."""
    return value not in NOT_GIVEN and name not in _NOTES and value != NEUTRAL.get(name)


def renamed(error: ApiError, places: Mapping[str, str]) -> ApiError:
    """Return an error whose field has the client's name, given the client's names by this server's."""
    param = error.param or ""
    for ours, theirs in places.items():
        if param == ours or param.startswith((f"{ours}.", f"{ours}[")):
            return error.about(theirs + param[len(ours) :])
    return error


def with_sampler_fields(kind: type[RequestT]) -> type[RequestT]:
    """Return the type of a request with the options of samplers, if it has sampling fields."""
    return _with_fields(kind, sampler_fields()) if issubclass(kind, SamplingFields) else kind


@cache
def _with_fields(kind: type[RequestT], names: tuple[str, ...]) -> type[RequestT]:
    new = [name for name in dict.fromkeys(names) if name not in kind.__struct_fields__]
    fields = [(name, int | float | None, None) for name in new]
    return msgspec.defstruct(kind.__name__, fields, bases=(kind,), frozen=True, kw_only=True)  # type: ignore[return-value]
