"""Plugin for `llm`: the models on this machine, as `mink/NAME`, which answer in the process of `llm`.

`llm` imports it for every command, `llm --help` too, so what takes time is imported when it is needed.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import click
import llm
from pydantic import Field, model_validator

from mink_local.errors import MinkError
from mink_local.llama.constants import MODEL

if TYPE_CHECKING:
    from llm.parts import StreamEvent

    from mink_local.llm.answer import PromptAnswer
    from mink_local.samplers import Sampler

log = logging.getLogger("mink_local")


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the catalogue's models that are on this machine."""
    from mink_local.models.catalog import names_here

    try:
        for name in names_here():
            register(MinkModel(name), AsyncMinkModel(name))
    except MinkError as error:  # which would end every command of llm
        log.warning("mink-local: %s", error)


class PromptOptions(llm.Model.Options):
    """Options that a prompt can have; `llm models --options` lists them."""

    temperature: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Temperature; 0 is greedy. There is no upper bound."
    )
    sampler: str | None = Field(None, description="Sampler, such as top-p:p=0.9; model: the file's.")
    reasoning_temperature: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Temperature while the model reasons."
    )
    reasoning_sampler: str | None = Field(None, description="Sampler while the model reasons.")
    max_tokens: int | None = Field(None, ge=1, description="Maximum length of the answer in tokens.")
    seed: int | None = Field(None, ge=0, description="Seed; the same seed gives the same answer.")
    stop: str | list[str] | None = Field(None, description="A string that ends the answer, or several.")
    think: bool | None = Field(None, description="Whether to reason first, if the model has a switch for it.")
    n_ctx: int | None = Field(None, ge=1, description="Tokens that a prompt and its answer share.")

    @model_validator(mode="after")
    def _check_sampler(self) -> "PromptOptions":
        self.parsed_sampler("sampler")
        self.parsed_sampler("reasoning_sampler")
        return self

    def parsed_sampler(self, option: str) -> "Sampler | None":
        """Return the sampler of an option; None for none, and for what the model recommends.

        Raises:
            ValueError: There is no such sampler.
        """
        from mink_local.samplers import parse  # takes a third of a second

        text = getattr(self, option)
        is_own = text is not None and (option, text) != ("sampler", MODEL)
        return parse(text, "temperature-last") if is_own else None


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
        from mink_local.llm.answer import PromptAnswer  # llama.cpp and Numba take a second

        return PromptAnswer(self._name, prompt)


class MinkModel(_AnyMinkModel, llm.Model):
    """A model for synchronous use."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002  # an answer comes in pieces in any case, and llm joins them
        response: llm.Response,
        conversation: llm.Conversation | None,  # noqa: ARG002  # prompt.messages has it
    ) -> Generator["StreamEvent", None, None]:
        """Answer a prompt: yield its events as they come; Ctrl-C ends it."""
        with _prompt_errors():
            answer = self._answer(prompt)
            with closing(answer.pieces()) as pieces:
                for piece in pieces:
                    yield from answer.events(piece)
            answer.finish(response)


class AsyncMinkModel(_AnyMinkModel, llm.AsyncModel):
    """A model for asynchronous use."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,  # noqa: ARG002
    ) -> AsyncGenerator["StreamEvent", None]:
        """Answer a prompt: yield its events as they come; a task that is cancelled ends it."""
        with _prompt_errors():
            beginning = asyncio.ensure_future(asyncio.to_thread(self._answer, prompt))
            try:
                answer = await asyncio.shield(beginning)
                async for piece in answer.reply:
                    for event in answer.events(piece):
                        yield event
            finally:
                (await beginning).reply.interrupt()
            answer.finish(response)


@contextmanager
def _prompt_errors() -> Iterator[None]:
    """Turn the errors of mink-local into PromptError."""
    try:
        yield
    except (MinkError, ValueError) as error:
        raise PromptError(str(error)) from None
