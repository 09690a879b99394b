"""Model ids: the model's name with the server's default way of sampling, and a preset each behind a colon.

A client with nothing but a list of models can so choose Min-k at temperature 5: `qwen3-4b:min-k-t5`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mink_local.samplers import Greedy, MinK, MinP, Sampler, TopP, parse
from mink_local.serve.api_errors import ApiError


@dataclass(frozen=True)
class Defaults:
    """A sampler and a temperature.

    Args:
        sampler: The method that decides the candidates.
        temperature: At least 0.
    """

    sampler: Sampler
    temperature: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Defaults":
        """Return what a text such as `min-k:tau=3@5` describes: a sampler, and a temperature after an @.

        Raises:
            ValueError: The sampler or the temperature is wrong.
        """
        sampler, _, temperature = text.partition("@")
        try:
            number = float(temperature or 1)
        except ValueError:
            number = math.nan
        if not 0 <= number < math.inf:
            raise ValueError(f"a temperature is a finite number of at least 0, not {temperature!r}")
        return cls(parse(sampler), number)

    def __str__(self) -> str:
        return f"{self.sampler}@{self.temperature:g}"


BUILT_IN: Mapping[str, Defaults] = {
    "min-k": Defaults(MinK()),
    "min-k-t5": Defaults(MinK(), 5.0),
    "top-p": Defaults(TopP()),
    "min-p": Defaults(MinP()),
    "greedy": Defaults(Greedy(), 0.0),
}
"""The presets that every server has."""


@dataclass(frozen=True)
class Preset:
    """The way of sampling that a model id names.

    Args:
        model_id: What clients send as `model`.
        defaults: Sampler and temperature.
        is_fixed: Whether they win over what a client sends; otherwise they are for what it leaves out.
    """

    model_id: str
    defaults: Defaults
    is_fixed: bool


class Presets:
    """The model ids of a server.

    Args:
        model_name: The model's name, which is the first id.
        default: How it is sampled if the client does not say.
        named: Presets by name, which is what follows the colon.
        ignore_client_sampling: Whether the first id is fixed too.
        any_model: Whether an unknown id means the first.
    """

    def __init__(
        self,
        model_name: str,
        default: Defaults,
        named: Mapping[str, Defaults] = BUILT_IN,
        *,
        ignore_client_sampling: bool = False,
        any_model: bool = False,
    ) -> None:
        self.default = Preset(model_name, default, ignore_client_sampling)
        presets = [self.default]
        presets += [Preset(f"{model_name}:{name}", defaults, True) for name, defaults in named.items()]
        self._presets = {preset.model_id: preset for preset in presets}
        self._any_model = any_model

    @property
    def ids(self) -> list[str]:
        """The model ids, the model's own name first."""
        return list(self._presets)

    def find(self, model_id: str | None) -> Preset:
        """Return the preset of a model id; None is the model's own name.

        Raises:
            ApiError: No model has the id.
        """
        if model_id is None:
            return self.default
        if (preset := self._presets.get(model_id)) is not None:
            return preset
        if self._any_model:
            return self.default
        message = f"there is no model {model_id[:100]!r}: this server has {', '.join(self._presets)}"
        raise ApiError(404, message, param="model", code="model_not_found")
