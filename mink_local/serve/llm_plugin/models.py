"""The models of `llm`: each answers in this process, or on a running `mink-serve`."""

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from typing import Any, Protocol

import click
import llm
from llm.parts import StreamEvent

from mink_local.errors import MinkError, ModelNotFoundError
from mink_local.models.catalog import locate, read_catalog
from mink_local.serve.llm_plugin.answer_log import AnswerLog
from mink_local.serve.llm_plugin.messages import chat_request
from mink_local.serve.llm_plugin.options import PromptOptions
from mink_local.serve.llm_plugin.server_client import ServerClient

_LISTING_SECONDS = 0.5  # for a server to say which models it has, while models are listed
_SECONDS = 5.0  # the same before a prompt: loading the model here takes long, too
_KEY_NAME, _KEY_VARIABLE = "mink", "MINK_API_KEY"


def names() -> dict[str, bool]:
    """Return the names of the models that can be used now, and whether each is on this machine."""
    found = dict.fromkeys(_downloaded(), True)
    key = llm.get_key(alias=_KEY_NAME, env=_KEY_VARIABLE)
    try:
        served = ServerClient(key).models(_LISTING_SECONDS)
    except MinkError:  # said when the server is asked to answer
        served = []
    return dict.fromkeys(served, False) | found


def _downloaded() -> Iterator[str]:
    """Yield the names of the catalogue's models that are on this machine."""
    for model, (usual, *others) in read_catalog().items():
        for name, entry in ((model, usual), *((other.name, other) for other in others)):
            try:
                locate(entry)
            except ModelNotFoundError:
                continue
            yield name


class Source(Protocol):
    """Answers chat requests in OpenAI's protocol."""

    def chunks(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        """Yield the chunks of a chat completion as they come."""

    def async_chunks(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a chat completion as they come."""


class PromptError(llm.ModelError, click.ClickException):
    """A prompt cannot be answered; `llm` shows its sentence, and `llm chat` too because it is click's."""


class _AnyMinkModel:
    """Has in common what the models for synchronous and for asynchronous use have.

    Args:
        name: Its name in the catalogue, or its id on the server.
        is_here: Whether it is on this machine.
    """

    can_stream = True
    supports_schema = True
    supports_tools = True
    needs_key: str | None = _KEY_NAME
    key_env_var: str | None = _KEY_VARIABLE
    Options = PromptOptions

    def __init__(self, name: str, is_here: bool) -> None:
        self.model_id = f"mink/{name}"
        self._name = name
        self._is_here = is_here

    def __str__(self) -> str:
        return f"mink-local: {self.model_id}"

    def get_key(self, explicit_key: str | None = None) -> str | None:
        """Return the key for the server, or None: most servers ask for none."""
        return llm.get_key(explicit_key, _KEY_NAME, _KEY_VARIABLE)

    def _prepare(self, prompt: llm.Prompt, key: str | None) -> tuple[Source, dict[str, Any], AnswerLog]:
        """Return what answers a prompt, the request for it, and the log of the answer."""
        options = prompt.options
        assert isinstance(options, PromptOptions)
        body = chat_request(self._name, prompt, options)
        server = self._server(key)
        log = AnswerLog(self._name, body["seed"], server.url if server else None)
        if server is not None:
            return server, body, log
        from mink_local.serve.llm_plugin.in_process import InProcess  # llama.cpp and Numba take a second

        return InProcess(options.n_ctx), body, log

    def _server(self, key: str | None) -> ServerClient | None:
        """Return the server, or None if it does not have the model and this machine does."""
        server = ServerClient(key)
        served = server.models(_SECONDS)
        if self._name in served:
            return server
        if not self._is_here:
            has = f"it has {', '.join(served)}" if served else "start mink-serve, or set MINK_URL"
            raise MinkError(f"no mink-serve at {server.url} has {self._name}: {has}")
        if server.is_chosen:
            click.echo(f"mink: no mink-serve at {server.url} has {self._name}: it is loaded here", err=True)
        return None


class MinkModel(_AnyMinkModel, llm.KeyModel):
    """A model for synchronous use."""

    def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002  # an answer comes in pieces in any case, and llm joins them
        response: llm.Response,
        conversation: llm.Conversation | None,  # noqa: ARG002  # prompt.messages has it
        key: str | None,
    ) -> Generator[StreamEvent, None, None]:
        """Answer a prompt: yield its events as they come."""
        with _prompt_errors():
            source, body, log = self._prepare(prompt, key)
            with closing(source.chunks(body)) as chunks:
                for chunk in chunks:
                    yield from log.events(chunk)
            log.finish(response)


class AsyncMinkModel(_AnyMinkModel, llm.AsyncKeyModel):
    """A model for asynchronous use."""

    async def execute(
        self,
        prompt: llm.Prompt,
        stream: bool,  # noqa: ARG002
        response: llm.AsyncResponse,
        conversation: llm.AsyncConversation | None,  # noqa: ARG002
        key: str | None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Answer a prompt: yield its events as they come."""
        with _prompt_errors():
            source, body, log = await asyncio.to_thread(self._prepare, prompt, key)
            async with aclosing(source.async_chunks(body)) as chunks:
                async for chunk in chunks:
                    for event in log.events(chunk):
                        yield event
            log.finish(response)


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
