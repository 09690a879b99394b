"""The models and options that `llm` shows; the models answer in this process."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import llm
from llm.parts import StreamEvent
from pydantic import Field, ValidationInfo, field_validator

from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.models.catalog import locate, read_catalog

if TYPE_CHECKING:
    from mink_local.samplers import Sampler
    from mink_local.serve.llm_plugin.in_process import PromptAnswer


def names() -> Iterator[str]:
    """Yield the names of the catalogue's models that are on this machine."""
    for model, (usual, *others) in read_catalog().items():
        for name, entry in ((model, usual), *((other.name, other) for other in others)):
            try:
                locate(entry)
            except ModelNotFoundError:
                continue
            yield name


class PromptOptions(llm.Model.Options):
    """Options that a prompt can have; `llm models --options` lists them."""

    temperature: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Temperature; 0 is greedy. There is no upper bound."
    )
    sampler: str | None = Field(None, description="Sampler, such as min-k:tau=3 or top-p:p=0.9.")
    tau: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Min-k keeps at least tau / (range of the logits)."
    )
    floor: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Min-k also keeps logits within floor of the largest."
    )
    max_tokens: int | None = Field(None, ge=1, description="Maximum length of the answer in tokens.")
    seed: int | None = Field(None, ge=0, description="Seed; the same seed gives the same answer.")
    stop: str | list[str] | None = Field(None, description="A string that ends the answer, or several.")
    think: bool | None = Field(None, description="Whether to reason first, if the model has a switch for it.")
    n_ctx: int | None = Field(None, ge=1, description="Tokens that a prompt and its answer share.")

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
        """Return the sampler of the options `sampler`, `tau` and `floor`, or None."""
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


class PromptError(llm.ModelError, click.ClickException):
    """A prompt cannot be answered; as click's exception it is one line in `llm chat` too."""


class _AnyMinkModel:
    """The common part of the models for synchronous and for asynchronous use.

    Args:
        name: Its name in the catalogue.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    Options = PromptOptions

    def __init__(self, name: str) -> None:
        self.model_id = f"mink/{name}"
        self._name = name

    def __str__(self) -> str:
        return f"mink-local: {self.model_id}"

    def _answer(self, prompt: llm.Prompt) -> "PromptAnswer":
        from mink_local.serve.llm_plugin.in_process import PromptAnswer  # llama.cpp and Numba take a second

        return PromptAnswer(self._name, prompt)


class MinkModel(_AnyMinkModel, llm.Model):
    """A model for synchronous use."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002  # an answer comes in pieces in any case, and llm joins them
        response: llm.Response,
        conversation: llm.Conversation | None,  # noqa: ARG002  # prompt.messages has it
    ) -> Generator[StreamEvent, None, None]:
        """Answer a prompt: yield its events as they come."""
        with _prompt_errors():
            answer = self._answer(prompt)
            with closing(answer.events()) as events:
                yield from events
            answer.finish(response)


class AsyncMinkModel(_AnyMinkModel, llm.AsyncModel):
    """A model for asynchronous use."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,  # noqa: ARG002
    ) -> AsyncGenerator[StreamEvent, None]:
        """Answer a prompt: yield its events as they come."""
        with _prompt_errors():
            answer = await asyncio.to_thread(self._answer, prompt)
            async with aclosing(answer.async_events()) as events:
                async for event in events:
                    yield event
            answer.finish(response)


@contextmanager
def _prompt_errors() -> Iterator[None]:
    """Turn the errors of mink-local into PromptError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        raise PromptError('msgspec is not installed: type  pip install "mink-local[llm]"') from None
    except (MinkError, ValueError) as error:
        raise PromptError(str(error)) from None
