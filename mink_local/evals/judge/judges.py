"""Judges: an OpenAI-compatible endpoint, which is asked several things at a time, or a local GGUF model."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from openai import APIConnectionError, APIError, APIStatusError, APITimeoutError, AsyncOpenAI

from mink_local.errors import GenerationError, JudgeError
from mink_local.evals.run.manifest import file_sha256
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.interrupts import until_interrupted
from mink_local.llama.constraints import Constraints
from mink_local.models.catalog import resolve

SCHEMA = {
    "type": "object",
    "properties": {"winner": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["winner"],
    "additionalProperties": False,
}
RETRIES = 6  # of a request that fails, with pauses that grow to 8 s, or as long as the server asks for
_PROBE_SECONDS = 30.0
_LOCAL_TOKENS, _REMOTE_TOKENS = 64, 2048  # the second leaves room for reasoning
_AGAIN_TEMPERATURE = 0.7  # of another attempt; the first is at 0
_TOO_LONG = re.compile(r"context.{0,20}(length|window|size|holds)|too (long|many tokens)", re.IGNORECASE)
_NOT_SO = (AttributeError, IndexError, TypeError, ValueError)  # of an answer with another structure


class JudgeRequest(NamedTuple):
    """A prompt for a judge; `attempt` counts from 0."""

    prompt: str
    attempt: int

    @property
    def temperature(self) -> float:
        return _AGAIN_TEMPERATURE if self.attempt else 0.0


Answered = Callable[[int, str | None], None]
"""Called with the number of a request and the judge's answer: None if the prompt is too long for it."""


class Judge(Protocol):
    """Something that answers prompts.

    Attributes:
        name: What the records call it.
        sha256: Of its file, or nothing if it is not a file.
    """

    name: str
    sha256: str

    def ask(self, requests: Sequence[JudgeRequest], answered: Answered) -> None:
        """Answer all requests, and report each answer as it comes. Raises MinkError."""
        ...


class LocalJudge:
    """A GGUF model in this process, loaded when it is asked; it can answer with the JSON of a verdict only.

    `options` are those of `load_model`.
    """

    def __init__(self, model: str, **options: Any) -> None:
        file = resolve(model)
        self.name, self.sha256 = file.name, file_sha256(file.path)
        self._file, self._options = model, options
        self._interrupted = False

    @cached_property
    def _model(self) -> Model:
        return load_model(self._file, **self._options)

    def ask(self, requests: Sequence[JudgeRequest], answered: Answered) -> None:
        answers = self._model.complete(map(_local_request, self._until_interrupted(requests)))
        with closing(until_interrupted(answers, self._interrupt)) as finished:
            for answer in finished:
                if answer.finish_reason == "error":
                    raise GenerationError(f"the judge {self.name}: {answer.error}")
                if answer.finish_reason == "overflow":
                    answered(answer.index, None)
                elif answer.finish_reason != "interrupted":
                    answered(answer.index, answer.text)
        if self._interrupted:
            raise KeyboardInterrupt

    def _until_interrupted(self, requests: Sequence[JudgeRequest]) -> Iterator[JudgeRequest]:
        for request in requests:
            if self._interrupted:
                return
            yield request

    def _interrupt(self) -> None:
        self._interrupted = True
        self._model.interrupt()


def _local_request(request: JudgeRequest) -> Request:
    params = SamplingParams(
        temperature=request.temperature,
        seed=request.attempt,
        max_tokens=_LOCAL_TOKENS,
        constraints=Constraints(json_schema=SCHEMA),
    )
    return Request(_messages(request.prompt), params, enable_thinking=False)


def _messages(prompt: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}]


class EndpointJudge:
    """A model behind an OpenAI-compatible server.

    Args:
        url: The base URL, such as http://127.0.0.1:8080/v1.
        model: The model's id; None takes the server's only one.
        key: The API key, or nothing. It is sent to the server, and is neither shown nor written.
        parallel: Requests at a time.
        seconds: Patience with one answer.

    Raises:
        JudgeError: The URL or the key is not one, the server cannot be reached or offers several models.
    """

    sha256 = ""

    def __init__(self, url: str, model: str | None, key: str, parallel: int, seconds: float) -> None:
        self._base = _base_url(url)
        self._key, self._parallel, self._seconds = key.strip(), parallel, seconds
        if not (self._key.isascii() and self._key.isprintable()):
            raise JudgeError("the API key in the environment variable has characters that no key has")
        self._failed = self._proven = False  # a request; the form of the requests, by an answer
        self._optional: dict[str, Any] = {  # what not every server takes; what one refuses is left out
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA},
            },
            "max_tokens": _REMOTE_TOKENS,
            "temperature": 0.0,
        }
        self._model = model or asyncio.run(self._only_model())
        self.name = f"{self._model} at {self._base}"

    def ask(self, requests: Sequence[JudgeRequest], answered: Answered) -> None:
        asyncio.run(self._ask(requests, answered))

    def _client(self, seconds: float, retries: int) -> AsyncOpenAI:
        key = self._key or "none"  # the client insists on one
        return AsyncOpenAI(base_url=self._base, api_key=key, timeout=seconds, max_retries=retries)

    async def _only_model(self) -> str:
        async with self._client(_PROBE_SECONDS, 0) as client:
            try:
                models = [str(model.id) for model in (await client.models.list()).data]
            except APIConnectionError as error:
                why = self._why(error)
                raise JudgeError(f"the judge's server {self._base} cannot be reached: {why}") from None
            except (APIError, *_NOT_SO) as error:
                self._refuse_key(error)
                models = []
        if len(models) == 1:
            return models[0]
        offered = f": it offers {self._shown(', '.join(models))}" if models else ""
        raise JudgeError(f"{self._base} does not say which model is the judge{offered}. Give --judge-model")

    async def _ask(self, requests: Sequence[JudgeRequest], answered: Answered) -> None:
        """Have several workers take requests; if one fails, the others end their present request first."""
        self._failed = False
        left = iter(enumerate(requests))

        async def work() -> None:
            for index, request in left:
                try:
                    answered(index, await self._answer(client, request))
                except BaseException:
                    self._failed = True
                    raise
                if self._failed:
                    return

        async with self._client(self._seconds, RETRIES) as client:
            ends = await asyncio.gather(*(work() for _ in range(self._parallel)), return_exceptions=True)
        for error in filter(None, ends):
            raise error

    async def _answer(self, client: AsyncOpenAI, request: JudgeRequest) -> str | None:
        """Return the judge's answer; None if the prompt is too long. Raises JudgeError.

        The request is sent again without the options that the server refuses.
        """
        while True:
            sent = dict(self._optional)
            if "temperature" in sent:
                sent["temperature"] = request.temperature
            body: Any = {"model": self._model, "messages": _messages(request.prompt), **sent}
            try:
                completion = await client.chat.completions.create(**body)
                text = str(completion.choices[0].message.content or "")
            except _NOT_SO:
                raise JudgeError(self._fails("what it answers is not a chat completion")) from None
            except APIStatusError as error:
                if error.status_code not in (400, 413, 422):
                    raise self._complaint(error) from None
                if _is_too_long(error):
                    if self._optional.pop("max_tokens", None) is None:
                        return None
                elif self._proven:  # the prompt is refused, such as by the server's filter
                    return self._why(error)
                elif not self._leave_out(str(error), sent):
                    raise JudgeError(f"the judge's server refuses the request: {self._why(error)}") from None
            except APIError as error:
                raise JudgeError(self._fails(self._why(error))) from None
            else:
                self._proven = True
                return self._without_key(text)

    def _complaint(self, error: APIStatusError) -> JudgeError:
        self._refuse_key(error)
        if error.status_code in (408, 409, 425, 429) or error.status_code >= 500:
            return JudgeError(self._fails(self._why(error)))
        return JudgeError(
            f"{self._base}/chat/completions: {self._why(error)}. "
            "Give the base URL, which often ends in /v1, and a --judge-model that it has"
        )

    @staticmethod
    def _fails(why: str) -> str:
        return f"the judge's server fails: {why}. The judgements are kept: the same command continues"

    def _refuse_key(self, error: Exception) -> None:
        if isinstance(error, APIStatusError) and error.status_code in (401, 403):
            raise JudgeError(
                f"the judge's server refuses the API key: {self._why(error)}. "
                "Put the right one in the environment variable; see --api-key-variable"
            )

    def _leave_out(self, complaint: str, sent: dict[str, Any]) -> bool:
        """Leave out an option that the server may have refused; return if there was one.

        It is the one that the server names, or else the next one that not every server takes.
        """
        if sent.keys() == self._optional.keys():  # or another request has left one out since
            named = (name for name in sent if name in complaint)
            refused = next(named, next(iter(sent), None))
            if refused is None:
                return False
            del self._optional[refused]
        return True

    def _why(self, error: APIError) -> str:
        """Return what is wrong, in the server's words if it has any; they may repeat the key."""
        if isinstance(error, APITimeoutError):
            return "no answer in time; see --timeout"
        if isinstance(error, APIStatusError):
            body = error.body  # what the client finds under "error"
            text = body.get("message") if isinstance(body, dict) else body
            return f"HTTP {error.status_code} ({self._shown(str(text or error.response.reason_phrase))})"
        return f"no connection ({self._shown(str(error.__cause__ or error))})"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def _shown(self, text: str) -> str:
        text = " ".join(self._without_key(text).split())
        return text if len(text) <= 200 else f"{text[:200]}…"


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        complete = bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        complete = False
    if not complete:
        raise JudgeError(f"{url} is not the URL of a server: write it like http://127.0.0.1:8080/v1")
    if parts.username is not None or parts.query or parts.fragment:
        raise JudgeError(
            "the judge's URL has a user, a password, a query or a fragment: give the base URL alone, and the "
            "key in an environment variable"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _is_too_long(error: APIStatusError) -> bool:
    return error.status_code == 413 or _TOO_LONG.search(str(error)) is not None
