"""The samplers: `MinK(tau=3.0)`, `TopP(p=0.9)`, …: frozen dataclasses that validate their options.

A sampler reads raw logits and decides which tokens remain candidates; temperature and sampling come after
it. Some samplers look at probabilities, which depend on temperature. `order` says whether they see
`softmax(logits / T)`, "temperature-first", as in the papers and Hugging Face's transformers, or
`softmax(logits)`, "temperature-last", as llama.cpp does by default.
"""

import math
import re
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mink_local.checks import check_types, shown
from mink_local.errors import OptionError
from mink_local.samplers.base import (
    SAMPLERS,
    LogitsProcessor,
    Order,
    Sampler,
    Selector,
    Workspace,
    choice,
    number,
)
from mink_local.samplers.chain import Chain, LlamaDefault
from mink_local.samplers.cuts import (
    AdaptiveP,
    DynamicTemperature,
    Eta,
    Greedy,
    MinK,
    MinP,
    Mirostat,
    PLess,
    TopA,
    TopK,
    TopNSigma,
    TopP,
    Typical,
    Xtc,
)
from mink_local.samplers.function import FunctionSampler

__all__ = [
    "SAMPLERS", "AdaptiveP", "AnySampler", "Chain", "DynamicTemperature", "Eta", "Greedy",
    "LlamaDefault", "LogitsProcessor", "MinK", "MinP", "Mirostat", "Order", "PLess", "Sampler",
    "Selector", "TopA", "TopK", "TopNSigma", "TopP", "Typical", "Workspace", "Xtc", "as_sampler", "choice",
    "default_samplers", "label", "number", "parse",
]  # fmt: skip


AnySampler = Sampler | str | Callable[[NDArray[np.float32]], Any]
"""A sampler, its text, or a function of the logits; see `SamplingParams`."""


def as_sampler(given: Any, option: str = "sampler") -> Sampler:
    """Return a sampler, also from its text, or from a function of the logits.

    Args:
        option: What messages call it.

    Raises:
        OptionError: It is none of these.
    """
    if isinstance(given, Sampler):
        return given
    if isinstance(given, str):
        try:
            return parse(given)
        except ValueError as error:
            raise OptionError(option, f"cannot be read: {error}") from None
    is_class = isinstance(given, type)
    if callable(given) and not is_class and not iscoroutinefunction(given):
        return FunctionSampler(given)
    is_kind = is_class and issubclass(given, Sampler)
    instead = f"{given.__name__}(), an object" if is_kind else 'a sampler such as MinK(), or "min-k:tau=3"'
    raise OptionError(option, f"must be {instead}, not {shown(given)}")


def default_samplers() -> list[Sampler]:
    """Return every registered sampler with its default options, in both orders if it has one."""
    samplers: list[Sampler] = []
    for kind in SAMPLERS.values():
        samplers.append(kind())
        if kind.order is not None:
            samplers.append(kind(order="temperature-last"))  # type: ignore[call-arg]
    return samplers


_IN_THE_LAB = ("diff-sampling", "p-step")  # which recorded runs have
_KINDS: dict[type, tuple[Callable[[str], Any], str]] = {
    float: (float, "a number"),
    int: (int, "a whole number"),
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    str: (str, "text"),
}


def parse(text: str, order: Order = "temperature-first") -> Sampler:
    """Return the sampler described by a text; `str()` is the inverse.

    >>> parse("min-k:tau=0.5")
    MinK(tau=0.5, floor=0.0, alpha=1.0, decay='power', normalize=True)

    Args:
        text: `name` or `name:option=value,…`; several joined by + make a `Chain`.
        order: The order of cuts for which the text has none.

    Raises:
        ValueError: A name or value is invalid, or an option is given twice.
    """
    check_types(text=(text, str))
    cuts = [_parse_cut(part, order) for part in _split(text)]
    return cuts[0] if len(cuts) == 1 else Chain(*cuts)


class Setting(NamedTuple):
    """A sampler at a temperature, and perhaps others while the model reasons."""

    sampler: Sampler
    temperature: float
    reasoning: tuple[Sampler, float] | None = None


def parse_setting(text: str, order: Order = "temperature-first") -> Setting:
    """Return the setting of a text such as `min-k:tau=3@5`, or `min-k@1 / top-p:p=0.9@0.5`.

    What comes before a slash applies while the model reasons. The temperature is 1 without an @; it is
    finite, and at least 0. Args and errors as for `parse`.
    """
    reasoning, slash, answer = text.partition("/")
    if slash:
        return Setting(*_parse_phase(answer, order), _parse_phase(reasoning, order))
    return Setting(*_parse_phase(text, order))


def _parse_phase(text: str, order: Order) -> tuple[Sampler, float]:
    sampler, _, temperature = text.partition("@")
    try:
        number = float(temperature or 1)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError(f"temperature must be a finite number of at least 0, not {temperature!r}")
    return parse(sampler, order), number


def _split(text: str) -> list[str]:
    """Split the text of a chain into those of its cuts."""
    return re.split(r"(?<!\de)\+", text)  # not at the sign of 1e+16


def _parse_cut(text: str, order: Order) -> Sampler:
    name, _, rest = text.strip().partition(":")
    if not name:
        raise ValueError("a sampler's name is missing: a chain is written as top-k:k=40+min-k")
    if name in _IN_THE_LAB and name not in SAMPLERS:
        raise ValueError(
            f"{name} is no sampler of the programs any more: in the repository, python -m scripts.lab.rivals "
            "is mink-eval with it"
        )
    if name not in SAMPLERS:
        near = "".join(f", perhaps {one}" for one in get_close_matches(name.lower(), SAMPLERS, n=1))
        raise ValueError(f"unknown sampler {name!r}{near}: the samplers are {', '.join(SAMPLERS)}")
    sampler = SAMPLERS[name]
    kinds = {f.name: type(f.default) for f in fields(sampler)}  # type: ignore[arg-type]
    options: dict[str, Any] = {} if sampler.order is None or "order=" in rest else {"order": order}
    for option in rest.split(",") if rest else []:
        key, _, value = option.partition("=")
        if key not in kinds:
            takes = f"its options are {', '.join(kinds)}" if kinds else "it takes none"
            raise ValueError(f"{name} has no option {key!r}: {takes}")
        if key in options:
            raise ValueError(f"{name}: {key} is given twice")
        read, kind = _KINDS[kinds[key]]
        try:
            options[key] = read(value)
        except (KeyError, ValueError):
            raise ValueError(f"{name}: {key} must be {kind}, not {value!r}") from None
    return sampler(**options)


def label(text: str) -> str:
    """Return the short form of a sampler's text, for tables.

    >>> label("top-p:p=0.9,order=temperature-first")
    'top-p:p=0.9 (T first)'
    """
    return " / ".join(_label_of_phase(phase) for phase in text.split(" / "))


def _label_of_phase(text: str) -> str:
    sampler, at, temperature = text.partition("@")
    return "+".join(map(_label_of_cut, _split(sampler))) + at + temperature


def _label_of_cut(text: str) -> str:
    short, _, order = text.partition("order=temperature-")
    return f"{short.rstrip(':,')} (T {order})" if order else text
