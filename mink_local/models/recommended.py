"""The sampling that a model's makers recommend, as its file says it: `general.sampling.*`.

The keys are llama.cpp's, whose converter fills them from a `generation_config.json`. Where llama.cpp adds its
own default cuts to those that a file names, this takes what the file says and nothing else.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from mink_local.checks import Range
from mink_local.errors import ModelError, OptionError
from mink_local.llama.constants import MODEL
from mink_local.models.gguf import Metadata, read_metadata
from mink_local.samplers import Chain, MinP, Mirostat, Order, Sampler, TopK, TopP, Xtc

_SHARE, _WHOLE = Range(0, 1), 2**31 - 1
_MOST = 1e6  # of what has no other limit: no float32 overflows
_RANGES = {  # of the keys, in the order in which they are shown
    "temp": Range(0, _MOST),
    "top_k": Range(-1, _WHOLE, whole=True),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "mirostat": Range(0, 2, whole=True),
    "mirostat_tau": Range(0, _MOST, low_open=True),
    "mirostat_eta": Range(0, _MOST),
    "penalty_repeat": Range(0, _MOST, low_open=True),
    "penalty_last_n": Range(-1, _WHOLE, whole=True),
}
_OFF = {"top_k": (-1, 0), "top_p": (1,), "min_p": (0,), "xtc_probability": (0,), "mirostat": (0,)}
_SEQUENCE = "penalties;top_k;top_p;min_p;xtc;temperature"  # llama.cpp's, without what no key sets
_ALIASES = {"nucleus": "topp", "temp": "temperature"}


@dataclass(frozen=True)
class Recommended:
    """The sampling that a file recommends; `str()` says it in words.

    Attributes:
        sampler: The cuts; without any, all tokens are candidates.
        temperature: At least 0; 1 if the file has none.
        penalties: Options of `Constraints`, none if the file has no penalty.
        values: What the file says, by the end of its key.
        ignored: The keys whose value is out of range, or of another type.
    """

    sampler: Sampler
    temperature: float
    penalties: dict[str, Any]
    values: Mapping[str, Any]
    ignored: Sequence[str] = ()

    def __str__(self) -> str:
        return values_in_words(self.values)


def values_in_words(values: Mapping[str, Any]) -> str:
    """Return what a file says: `T = 0.6, top-p 0.95`."""
    named = {"T =" if key == "temp" else key.replace("_", "-"): value for key, value in values.items()}
    return ", ".join(f"{name} {value:g}" for name, value in named.items())


def recommended(metadata: Metadata) -> Recommended | None:
    """Return the sampling that a file recommends, or None if it recommends none.

    The file is a stranger's: what is not a number in its range is ignored.
    """
    given = {key: metadata.values.get(f"general.sampling.{key}") for key in _RANGES}
    values = {key: number for key, value in given.items() if (number := _number(key, value)) is not None}
    if not values:
        return None
    steps = _steps(metadata.text("general.sampling.sequence"))
    cuts = _cuts(values, steps)
    penalty = values.get("penalty_repeat", 1) if "penalties" in steps else 1
    penalties = {"repeat_penalty": penalty}
    if "penalty_last_n" in values:
        penalties["penalty_last_n"] = values["penalty_last_n"]
    return Recommended(
        Chain(*cuts) if len(cuts) > 1 else next(iter(cuts), MinP(0, "temperature-last")),
        values.get("temp", 1.0) if "temperature" in steps else 1.0,
        penalties if penalty != 1 else {},
        values,
        [key for key, value in given.items() if value is not None and key not in values],
    )


@lru_cache(maxsize=16)
def recommended_by(path: Path) -> Recommended | None:
    """Return the sampling that a model's file recommends, or None; None if only llama.cpp can read it."""
    try:
        return recommended(read_metadata(path))
    except ModelError:
        return None


def require_recommended(path: Path) -> Recommended:
    """Return the sampling that a model's file recommends.

    Raises:
        ModelError: It recommends none.
    """
    if found := recommended_by(path):
        return found
    raise ModelError(
        f"{path.name} recommends no sampling (it has no general.sampling.*): name a sampler, not {MODEL!r}"
    )


def _number(key: str, value: Any) -> float | None:
    """Return a key's value, or None if it is not a number in its range, or if there is none."""
    if isinstance(value, float) and abs(value) < _MOST:
        value = float(str(np.float32(value)))  # as which 0.95 is stored
    try:
        number: float = _RANGES[key].check(key, value)
    except OptionError:
        return None
    return number


def _steps(sequence: str | None) -> list[str]:
    """Return the names of llama.cpp's samplers in a sequence, or in its default one, in one spelling."""
    names = (re.sub("[_-]", "", name.strip().lower()) for name in (sequence or _SEQUENCE).split(";"))
    return [*dict.fromkeys(_ALIASES.get(name, name) for name in names)]


def _cuts(values: Mapping[str, Any], steps: Sequence[str]) -> list[Sampler]:
    """Return the cuts for a file's values, in the order of `steps`."""
    on = {key: value for key, value in values.items() if value not in _OFF.get(key, ())}
    if "mirostat" in on:  # which in llama.cpp replaces all cuts
        options = {name: on[f"mirostat_{name}"] for name in ("tau", "eta") if f"mirostat_{name}" in on}
        return [Mirostat(version=on["mirostat"], **options)]
    at = steps.index("temperature") if "temperature" in steps else len(steps)
    cuts = [_cut(step, on, "temperature-last") for step in steps[:at]]
    cuts += [_cut(step, on, "temperature-first") for step in steps[at:]]
    return [cut for cut in cuts if cut]


def _cut(step: str, on: Mapping[str, Any], order: Order) -> Sampler | None:
    match step:
        case "topk" if "top_k" in on:
            return TopK(on["top_k"])
        case "topp" if "top_p" in on:
            return TopP(on["top_p"], order)
        case "minp" if "min_p" in on:
            return MinP(on["min_p"], order)
        case "xtc" if "xtc_probability" in on:
            return Xtc(on["xtc_probability"], on.get("xtc_threshold", 0.1), order)
    return None
