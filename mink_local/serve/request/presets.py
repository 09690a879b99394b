"""The presets that clients choose by model id.

Even a client that can only choose a model can have Min-k at temperature 5: `qwen3-4b:min-k-t5`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from mink_local.models.options import PRESETS
from mink_local.models.recommended import Recommended, require_recommended
from mink_local.samplers import Greedy, LlamaDefault, MinK, MinP, Sampler, TopP, parse_setting
from mink_local.serve.bodies import ApiError


@dataclass(frozen=True)
class Preset:
    """A sampler and a temperature, with the model id that selects them.

    Args:
        sampler: The sampler.
        temperature: At least 0.
        model_id: What clients send as `model`.
        is_fixed: Whether they override what a client sends; otherwise they are defaults.
        penalties: Options of `Constraints`, which a client's replace.
        reasoning_sampler: The sampler while the model reasons; None for the same.
        reasoning_temperature: The temperature then; None for the same.
    """

    sampler: Sampler
    temperature: float = 1.0
    model_id: str = ""
    is_fixed: bool = True
    penalties: dict[str, Any] = field(default_factory=dict)
    reasoning_sampler: Sampler | None = None
    reasoning_temperature: float | None = None

    @classmethod
    def recommended(cls, found: Recommended) -> "Preset":
        """Return what a model's file recommends, as defaults."""
        return cls(found.sampler, found.temperature, is_fixed=False, penalties=found.penalties)

    @classmethod
    def default(
        cls,
        path: Path,
        sampler: Sampler | Literal["model"],
        temperature: float | None,
        *,
        is_fixed: bool,
        **of_reasoning: Any,
    ) -> "Preset":
        """Return the preset of the model's own name.

        Args:
            path: The model's file, which says what is meant by "model".
            temperature: None for 1, or what the file recommends.
            is_fixed: See `Preset`.
            of_reasoning: The sampler and the temperature of reasoning.

        Raises:
            ModelError: The file recommends nothing.
        """
        own = cls.recommended(require_recommended(path)) if isinstance(sampler, str) else cls(sampler)
        return replace(
            own,
            temperature=own.temperature if temperature is None else temperature,
            is_fixed=is_fixed,
            **of_reasoning,
        )

    @classmethod
    def parse(cls, text: str) -> "Preset":
        """Return the preset of a text such as `min-k:tau=3@5`; see `parse_setting`.

        Raises:
            ValueError: The sampler or the temperature is invalid.
        """
        found = parse_setting(text, "temperature-last")
        sampler, temperature = found.reasoning or (None, None)
        return cls(
            found.sampler,
            found.temperature,
            reasoning_sampler=sampler,
            reasoning_temperature=temperature,
        )


BUILT_IN: Mapping[str, Preset] = {
    "min-k-t5": Preset(MinK(), 5.0),
    **{name: Preset.parse("{sampler}@{temp}".format(**options)) for name, options in PRESETS.items()},
    "llama-default": Preset(LlamaDefault(), 0.8),
    "top-p": Preset(TopP(order="temperature-last")),  # as in llama.cpp
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
        with_ids = (replace(one, model_id=f"{default.model_id}:{name}") for name, one in named.items())
        self.by_id = {preset.model_id: preset for preset in (default, *with_ids)}
        self._any_model = any_model

    def find(self, model_id: str | None) -> Preset:
        """Return the preset of a model id; None and "" are the model's own name.

        Raises:
            ApiError: No model has the id.
        """
        if not model_id or (self._any_model and model_id not in self.by_id):
            return self.default
        if model_id not in self.by_id:
            message = f"there is no model {model_id[:100]!r}: this server has {', '.join(self.by_id)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return self.by_id[model_id]
