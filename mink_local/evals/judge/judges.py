"""Judges: an OpenAI-compatible endpoint, which is asked several things at a time, or a local GGUF model."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import httpx

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
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds before a request that failed is sent again
LONGEST_PAUSE = 300.0  # seconds that a server may ask for
_PROBE_SECONDS = 30.0
_LOCAL_TOKENS, _REMOTE_TOKENS = 64, 2048  # the second leaves room for reasoning
_AGAIN_TEMPERATURE = 0.7  # of another attempt; the first is at 0
_TOO_LONG = re.compile(r"context.{0,20}(length|window|size|holds)|too (long|many tokens)", re.IGNORECASE)
_NOT_SO = (ValueError, KeyError, TypeError, IndexError, RecursionError)  # of JSON with another structure
_CONTINUES = "The judgements are kept: the same command continues"


class JudgeServerError(Exception):
    """A server did not answer as it should. Another try may help, after `wait` seconds."""

    def __init__(self, problem: str, wait: float = 0.0) -> None:
        super().__init__(problem)
        self.wait = wait


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

    def _client(self, seconds: float) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx.AsyncClient(headers=headers, timeout=seconds)

    async def _only_model(self) -> str:
        async with self._client(_PROBE_SECONDS) as client:
            try:
                response = await client.get(f"{self._base}/models")
            except httpx.RequestError as error:
                why = self._shown(_why(error))
                raise JudgeError(f"the judge's server {self._base} cannot be reached: {why}") from None
        self._refuse_key(response)
        try:
            models = [str(model["id"]) for model in response.json()["data"]]
        except _NOT_SO:
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

        async with self._client(self._seconds) as client:
            ends = await asyncio.gather(*(work() for _ in range(self._parallel)), return_exceptions=True)
        for error in filter(None, ends):
            raise error

    async def _answer(self, client: httpx.AsyncClient, request: JudgeRequest) -> str | None:
        """Return the judge's answer; None if the prompt is too long. Raises JudgeError."""
        pauses = iter(PAUSES)
        while True:
            try:
                return await self._try(client, request)
            except JudgeServerError as failure:
                pause = next(pauses, None)
                if pause is None or failure.wait > LONGEST_PAUSE or self._failed:
                    raise JudgeError(f"the judge's server fails: {failure}. {_CONTINUES}") from None
                await asyncio.sleep(max(pause, failure.wait))

    async def _try(self, client: httpx.AsyncClient, request: JudgeRequest) -> str | None:
        """Send a request, again without the options that the server refuses; return as `_answer` does."""
        while True:
            sent = dict(self._optional)
            if "temperature" in sent:
                sent["temperature"] = request.temperature
            body = {"model": self._model, "messages": _messages(request.prompt), **sent}
            try:
                async with asyncio.timeout(self._seconds):
                    response = await client.post(f"{self._base}/chat/completions", json=body)
            except (httpx.RequestError, TimeoutError) as error:
                raise JudgeServerError(self._shown(_why(error))) from None
            if response.status_code not in (400, 413, 422):
                return self._content(response)
            if _is_too_long(response):
                if self._optional.pop("max_tokens", None) is None:
                    return None
            elif self._proven:  # the prompt is refused, such as by the server's filter
                return self._message(response)
            elif not self._leave_out(response.text, sent):
                raise JudgeError(f"the judge's server refuses the request: {self._message(response)}")

    def _content(self, response: httpx.Response) -> str:
        """Return the text of a chat completion. Raises JudgeServerError, or JudgeError if no try helps."""
        status = response.status_code
        if status == 200:
            try:
                text = str(response.json()["choices"][0]["message"]["content"] or "")
            except _NOT_SO:
                raise JudgeServerError("what it answers is not a chat completion") from None
            self._proven = True
            return self._without_key(text)
        if status in (408, 409, 425, 429) or status >= 500:
            wait = _retry_after(response.headers.get("retry-after", ""))
            asked = f", and it asks to wait {wait:.0f} s" if wait > LONGEST_PAUSE else ""
            raise JudgeServerError(self._message(response) + asked, wait)
        self._refuse_key(response)
        raise JudgeError(
            f"{self._base}/chat/completions: {self._message(response)}. "
            "Give the base URL, which often ends in /v1, and a --judge-model that it has"
        )

    def _refuse_key(self, response: httpx.Response) -> None:
        if response.status_code in (401, 403):
            raise JudgeError(
                f"the judge's server refuses the API key: {self._message(response)}. "
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

    def _message(self, response: httpx.Response) -> str:
        """Return the status and the server's message, in which a server may repeat the key."""
        try:
            error = json.loads(response.text)["error"]
            text = str(error["message"] if isinstance(error, dict) else error)
        except _NOT_SO:
            text = response.reason_phrase
        return f"HTTP {response.status_code} ({self._shown(text)})"

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text

    def _shown(self, text: str) -> str:
        text = " ".join(self._without_key(text).split())
        return text if len(text) <= 200 else f"{text[:200]}…"


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        complete = bool(parts.hostname) and parts.port != 0 and bool(httpx.URL(url).host)
    except (ValueError, httpx.InvalidURL):
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


def _why(error: httpx.RequestError | TimeoutError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no connection ({error or 'refused'})"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return "no answer in time; see --timeout"
    return f"the connection broke ({error or type(error).__name__})"


def _is_too_long(response: httpx.Response) -> bool:
    return response.status_code == 413 or _TOO_LONG.search(response.text) is not None


def _retry_after(text: str) -> float:
    """Return the seconds that a Retry-After header asks for; 0 if it cannot be read."""
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    try:
        then = parsedate_to_datetime(text)
    except ValueError:
        return 0.0
    return max(0.0, (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp() - time.time())
