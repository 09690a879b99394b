"""Judges that answer prompts: a model behind an OpenAI-compatible server, or a local GGUF model."""

import asyncio
from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    OpenAI,
    PermissionDeniedError,
)

from mink_local.errors import GenerationError, JudgeError
from mink_local.evals.run.workers import DATE
from mink_local.evals.store import file_sha256
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.models.catalog import resolve

SCHEMA = {
    "type": "object",
    "properties": {"winner": {"type": "string", "enum": ["A", "B", "tie"]}},
    "required": ["winner"],
    "additionalProperties": False,
}
RETRIES = 6  # of a request that fails, with pauses that grow to 8 s, or as long as the server says
_PROBE_SECONDS = 30.0
_POLL_SECONDS = 0.25  # between two looks at whether Ctrl-C was pressed
_LOCAL_TOKENS, _REMOTE_TOKENS = 64, 2048  # the second leaves room for reasoning
_AGAIN_TEMPERATURE = 0.7  # of another attempt; the first is at 0

Answers = Generator[tuple[int, str | None], None, None]


class JudgeRequest(NamedTuple):
    """A prompt for a judge; `attempt` counts from 0."""

    prompt: str
    attempt: int

    @property
    def messages(self) -> list[Any]:
        return [{"role": "user", "content": self.prompt}]

    @property
    def temperature(self) -> float:
        return _AGAIN_TEMPERATURE if self.attempt else 0.0


class LocalJudge:
    """A GGUF model in this process, which can answer with the JSON of a verdict only.

    It is loaded for its first answer. `options` are those of `load_model`.

    Attributes:
        name: What the records call it.
        sha256: Of its file; empty for a model behind a server.
    """

    def __init__(self, model: str, **options: Any) -> None:
        file = resolve(model)
        self.name = file.name
        self.sha256 = file_sha256(file.path)
        self._file, self._options = model, options
        self._interrupted = False

    @cached_property
    def _loaded(self) -> Model:
        return load_model(self._file, date=DATE, **self._options)

    def answers(self, requests: Sequence[JudgeRequest]) -> Answers:
        """Yield the number of a request and its answer, as they come; None if it is too long for the judge.

        Raises MinkError.
        """
        for answer in self._loaded.answer_all(map(_local_request, requests)):
            if self._interrupted:
                return
            if answer.finish_reason == "error":
                raise GenerationError(f"the judge {self.name}: {answer.error}")
            yield answer.index, None if answer.finish_reason == "overflow" else answer.text

    def interrupt(self) -> None:
        """End `answers` soon; may be called from another thread."""
        self._interrupted = True
        self._loaded.interrupt()


def _local_request(request: JudgeRequest) -> Request:
    params = SamplingParams(
        temperature=request.temperature,
        seed=request.attempt,
        max_tokens=_LOCAL_TOKENS,
        constraints=Constraints(json_schema=SCHEMA),
    )
    return Request(request.messages, params, enable_thinking=False)


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
            raise JudgeError("the API key holds a character that no key has: see --api-key-variable")
        self._interrupted = self._failed = self._has_answered = False
        self._model = model or self._only_model()
        self.name = f"{self._model} at {self._base}"

    def _options(self, seconds: float) -> dict[str, Any]:
        return {"base_url": self._base, "api_key": self._key or "none", "timeout": seconds}

    def _only_model(self) -> str:
        with OpenAI(**self._options(_PROBE_SECONDS), max_retries=0) as client:
            try:
                models = [str(model.id) for model in client.models.list().data]
            except APIError as error:
                raise self._error(error) from None
            except (AttributeError, TypeError, ValueError):  # not a list of models
                models = []
        if len(models) != 1:
            offers = self._without_key(", ".join(models)) or "none"
            raise JudgeError(f"{self._base} offers these models: {offers}. Name one with --judge-model")
        return models[0]

    def answers(self, requests: Sequence[JudgeRequest]) -> Answers:
        """Yield answers as a `LocalJudge` does."""
        self._failed = False
        errors: list[BaseException] = []
        with asyncio.Runner() as runner:
            client = AsyncOpenAI(**self._options(self._seconds), max_retries=RETRIES)
            turns = asyncio.Semaphore(self._parallel)
            create = runner.get_loop().create_task
            waiting = {create(self._answer(client, turns, *numbered)) for numbered in enumerate(requests)}
            try:
                while waiting and not self._interrupted:
                    done, waiting = runner.run(
                        asyncio.wait(waiting, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    )
                    for task in done:
                        if error := task.exception():
                            errors.append(error)
                        elif answer := task.result():
                            yield answer
            finally:
                for task in waiting:
                    task.cancel()
                runner.run(client.close())
        for error in errors:
            raise error

    async def _answer(
        self, client: AsyncOpenAI, turns: asyncio.Semaphore, index: int, request: JudgeRequest
    ) -> tuple[int, str | None] | None:
        """Return the answer to a request; None if another one has failed since. Raises JudgeError."""
        async with turns:
            if self._failed:
                return None
            try:
                text = await self._complete(client, request)
            except BaseException:
                self._failed = True
                raise
            return index, text

    async def _complete(self, client: AsyncOpenAI, request: JudgeRequest) -> str | None:
        verdict: Any = {"name": "verdict", "strict": True, "schema": SCHEMA}
        try:
            completion = await client.chat.completions.create(
                model=self._model,
                messages=request.messages,
                temperature=request.temperature,
                max_tokens=_REMOTE_TOKENS,
                response_format={"type": "json_schema", "json_schema": verdict},
            )
            text = str(completion.choices[0].message.content or "")
        except BadRequestError as error:
            if error.code == "context_length_exceeded":
                return None
            if self._has_answered:  # this prompt is refused, such as by the server's filter
                return self._why(error)
            raise self._error(error) from None
        except APIError as error:
            raise self._error(error) from None
        except (AttributeError, IndexError, TypeError, ValueError):
            raise JudgeError(f"{self._base} does not answer with chat completions") from None
        self._has_answered = True
        return self._without_key(text)

    def interrupt(self) -> None:
        """End `answers` soon; may be called from another thread."""
        self._interrupted = True

    def _error(self, error: APIError) -> JudgeError:
        if isinstance(error, APITimeoutError):
            advice = "; see --timeout"
        elif isinstance(error, AuthenticationError | PermissionDeniedError):
            advice = "; see --api-key-variable"
        else:
            advice = "; see --judge, whose URL often ends in /v1, and --judge-model"
        return JudgeError(f"the judge's server {self._base} fails: {self._why(error)}{advice}")

    def _why(self, error: APIError) -> str:
        """Return what is wrong, in the server's words if it has any, without the key."""
        if isinstance(error, APIStatusError):
            return self._without_key(f"HTTP {error.status_code} ({error.message[:200]})")
        return self._without_key(f"{error.message} {error.__cause__ or ''}").rstrip(" .")

    def _without_key(self, text: str) -> str:
        return " ".join((text.replace(self._key, "…") if self._key else text).split())


def _base_url(url: str) -> str:
    """Return the base URL of a server. Raises JudgeError, whose text does not repeat what may be secret."""
    try:
        parts = urlsplit(url)
        is_base = parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        is_base = False
    if not is_base or parts.username is not None or parts.query or parts.fragment:
        raise JudgeError(
            "--judge is not the base URL of a server: write it like http://127.0.0.1:8080/v1, without user, "
            "password and query, and put a key into an environment variable"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"
