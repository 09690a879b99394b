"""A `mink-serve` that may be running: its models, and its answers."""

import json
import os
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import click
import openai

from mink_local.errors import GenerationError, MinkError

_OWNER = "mink-local"  # of the models of a mink-serve; other servers use its usual port, too
_PATH = "/chat/completions"
Chunk = dict[str, Any]


class ServerClient:
    """The server at MINK_URL, by default one on this machine; perhaps there is none.

    Args:
        key: The API key for it, if there is one.

    Attributes:
        url: Its address, without a path.
        is_chosen: Whether MINK_URL names it.
    """

    def __init__(self, key: str | None) -> None:
        chosen = os.environ.get("MINK_URL")
        self.is_chosen = bool(chosen)
        self.url = (chosen or "http://127.0.0.1:8080").rstrip("/").removesuffix("/v1")
        self._key = key

    def models(self, seconds: float) -> list[str]:
        """Return the ids of its models; none if no `mink-serve` answers in time.

        Raises:
            MinkError: MINK_URL is no URL, or the server asks for another key.
        """
        if not self.url.startswith(("http://", "https://")):
            raise MinkError(f"MINK_URL is {self.url}: write it as http://127.0.0.1:8080")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        try:
            with urlopen(Request(f"{self.url}/v1/models", headers=headers), timeout=seconds) as answer:
                return [model["id"] for model in json.load(answer)["data"] if model["owned_by"] == _OWNER]
        except HTTPError as error:
            if error.code == 401 and (self.is_chosen or self._key):
                raise MinkError(
                    f"{self.url} refuses the API key: set MINK_API_KEY, or type  llm keys set mink"
                ) from None
            return []
        except (OSError, ValueError, LookupError, TypeError):
            return []

    def chunks(self, body: dict[str, Any]) -> Generator[Chunk, None, None]:
        """Yield the chunks of a chat completion as they come.

        Raises:
            GenerationError: The server refuses the request, fails, or does not answer.
        """
        with self._sentences(), openai.OpenAI(**self._options) as client:
            stream = client.post(
                _PATH, body=_streamed(body), cast_to=Chunk, stream=True, stream_cls=openai.Stream[Chunk]
            )
            with stream:
                _tell_ignored(body, stream.response.headers)
                yield from stream

    async def async_chunks(self, body: dict[str, Any]) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a chat completion as they come; see `chunks`."""
        with self._sentences():
            async with openai.AsyncOpenAI(**self._options) as client:
                stream = await client.post(
                    _PATH,
                    body=_streamed(body),
                    cast_to=Chunk,
                    stream=True,
                    stream_cls=openai.AsyncStream[Chunk],
                )
                async with stream:
                    _tell_ignored(body, stream.response.headers)
                    async for chunk in stream:
                        yield chunk

    @property
    def _options(self) -> dict[str, Any]:
        return {"base_url": f"{self.url}/v1", "api_key": self._key or "none"}

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn the errors of the client library into GenerationError."""
        try:
            yield
        except openai.APIConnectionError as error:
            reason = error.__cause__ or error
            raise GenerationError(f"mink-serve at {self.url} does not answer any more: {reason}") from None
        except openai.APIError as error:
            body = error.body
            message = body.get("message") if isinstance(body, dict) else None
            raise GenerationError(f"mink-serve at {self.url}: {message or error.message}") from None


def _streamed(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def _tell_ignored(body: dict[str, Any], headers: Any) -> None:
    """Say which options have no effect because the server's preset has its own."""
    if names := headers.get("x-mink-ignored"):
        options = names.replace(",", ", ")
        click.echo(f"mink: {body['model']} has its own way of sampling, without your {options}", err=True)
