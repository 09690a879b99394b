"""Options of a prompt: `llm -m mink/NAME -o temperature 5 -o sampler min-k:tau=3`."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import llm
from pydantic import Field, ValidationInfo, field_validator

if TYPE_CHECKING:
    from mink_local.samplers import Sampler


class PromptOptions(llm.Model.Options):
    """Options that a prompt can have; `llm models --options` lists them."""

    temperature: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Of the candidates; 0 takes the most probable token."
    )
    sampler: str | None = Field(
        None, description="How the candidates are chosen: min-k:tau=3, top-p:p=0.9, min-p, top-k, greedy, …"
    )
    tau: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Min-k keeps at least tau / (range of the logits).",
    )
    floor: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Min-k also keeps the tokens whose logit is at most floor below the largest.",
    )
    max_tokens: int | None = Field(None, ge=1, description="Most tokens of the answer.")
    seed: int | None = Field(None, ge=0, description="The same seed gives the same answer.")
    stop: str | list[str] | None = Field(None, description="A text that ends the answer, or a list of them.")
    think: bool | None = Field(None, description="Whether a model that can do both reasons first.")
    n_ctx: int | None = Field(
        None, ge=1, description="Tokens that a prompt and its answer share; a running mink-serve has its own."
    )

    @field_validator("sampler")
    @classmethod
    def _check_sampler(cls, sampler: str | None) -> str | None:
        _parsed(sampler)
        return sampler

    @field_validator("tau", "floor")
    @classmethod
    def _check_option(cls, value: float | None, info: ValidationInfo) -> float | None:
        _parsed(info.data.get("sampler"), **{str(info.field_name): value})
        return value

    def parsed_sampler(self) -> "Sampler | None":
        """Return the sampler that `sampler`, `tau` and `floor` ask for, or None."""
        return _parsed(self.sampler, tau=self.tau, floor=self.floor)


def _parsed(sampler: str | None, **options: float | None) -> "Sampler | None":
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if sampler is None and not given:
        return None
    from mink_local.samplers import MinK, parse  # takes a third of a second

    parsed = parse(sampler or MinK.name)
    if not given:
        return parsed
    if not isinstance(parsed, MinK):
        raise ValueError(f"{next(iter(given))} is an option of min-k, not of {parsed.name}")
    return replace(parsed, **given)
