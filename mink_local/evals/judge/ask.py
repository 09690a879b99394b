"""Judges that answer prompts: a model behind an OpenAI-compatible server, or a local GGUF model."""

import asyncio
from collections.abc import Generator, Sequence
from functools import cached_property
from itertools import islice, starmap
from typing import Any
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
from mink_local.evals.inputs import DATE, file_sha256
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
RETRIES = 6  # of a failed request, with pauses of up to 8 s, or as long as the server asks for
_PROBE_SECONDS = 30.0
_POLL_SECONDS = 0.25  # between checks for Ctrl-C
_LOCAL_TOKENS, _REMOTE_TOKENS = 64, 2048  # the second leaves room for reasoning
_RETRY_TEMPERATURE = 0.7  # the first attempt is at 0

Prompt = tuple[str, int]
"""A prompt, and how many unreadable answers it has received."""
Answers = Generator[tuple[int, str | None], None, None]


def _message(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def _temperature(attempt: int) -> float:
    return _RETRY_TEMPERATURE if attempt else 0.0


class LocalJudge:
    """A GGUF model in this process whose answers are constrained to verdicts as JSON.

    It is loaded on first use. `options` are those of `load_model`.

    Attributes:
        name: Name in the records.
        sha256: SHA-256 of the file; empty for a model behind a server.
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

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield each prompt's index and answer as it arrives; None if the prompt exceeds the context.

        Raises MinkError.
        """
        for answer in self._loaded.answer_all(starmap(_local_request, prompts)):
            if self._interrupted:
                return
            if answer.finish_reason == "error":
                raise GenerationError(f"the judge {self.name}: {answer.error}")
            yield answer.index, None if answer.finish_reason == "overflow" else answer.text

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""
        self._interrupted = True
        if "_loaded" in vars(self):  # reading the property would load the model
            self._loaded.interrupt()


def _local_request(prompt: str, attempt: int) -> Request:
    params = SamplingParams(
        temperature=_temperature(attempt),
        seed=attempt,
        max_tokens=_LOCAL_TOKENS,
        constraints=Constraints(json_schema=SCHEMA),
    )
    return Request(_message(prompt), params, enable_thinking=False)


class EndpointJudge:
    """A model behind an OpenAI-compatible server.

    Args:
        url: The base URL, such as http://127.0.0.1:8080/v1.
        model: The model's id; None for the server's only one.
        key: The API key, or an empty string. It is only sent to the server, never shown or written.
        parallel: Number of requests at a time.
        seconds: Time limit per answer.

    Raises:
        JudgeError: The URL or the key is invalid, or the server cannot be reached or has several models.
    """

    sha256 = ""

    def __init__(self, url: str, model: str | None, key: str, parallel: int, seconds: float) -> None:
        self._base = _base_url(url)
        self._key, self._parallel, self._seconds = key.strip(), parallel, seconds
        if not (self._key.isascii() and self._key.isprintable()):
            raise JudgeError("the API key contains an invalid character: see --api-key-variable")
        self._interrupted = self._has_answered = False
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
            raise JudgeError(f"{self._base} has these models: {offers}; choose one with --judge-model")
        return models[0]

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield answers like `LocalJudge.answers`; after a failure, only those to requests already sent."""
        failed: JudgeError | None = None
        with asyncio.Runner() as runner:
            client = AsyncOpenAI(**self._options(self._seconds), max_retries=RETRIES)
            create = runner.get_loop().create_task
            unasked = enumerate(prompts)
            asked: set[asyncio.Task[tuple[int, str | None]]] = set()
            try:
                while not self._interrupted:
                    if not failed:
                        more = islice(unasked, self._parallel - len(asked))
                        asked.update(create(self._answer(client, index, *prompt)) for index, prompt in more)
                    if not asked:
                        break
                    done, asked = runner.run(
                        asyncio.wait(asked, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    )
                    # Answers come first: a prompt without one may end the loop of the caller.
                    for task in sorted(done, key=_has_no_answer):
                        try:
                            yield task.result()
                        except JudgeError as error:
                            failed = error
            finally:
                for task in asked:
                    task.cancel()
                runner.run(client.close())
        if failed:
            raise failed

    async def _answer(
        self, client: AsyncOpenAI, index: int, prompt: str, attempt: int
    ) -> tuple[int, str | None]:
        """Return what `answers` yields for a prompt. Raises JudgeError."""
        verdict: Any = {"name": "verdict", "strict": True, "schema": SCHEMA}
        try:
            completion = await client.chat.completions.create(
                model=self._model,
                messages=_message(prompt),
                temperature=_temperature(attempt),
                max_tokens=_REMOTE_TOKENS,
                response_format={"type": "json_schema", "json_schema": verdict},
            )
            text = str(completion.choices[0].message.content or "")
        except BadRequestError as error:
            if error.code == "context_length_exceeded":
                return index, None
            if self._has_answered:  # so it refuses only this prompt, perhaps due to a content filter
                return index, self._why(error)
            raise self._error(error) from None
        except APIError as error:
            raise self._error(error) from None
        except (AttributeError, IndexError, TypeError, ValueError):
            raise JudgeError(f"{self._base} does not return chat completions") from None
        self._has_answered = True
        return index, self._without_key(text)

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""
        self._interrupted = True

    def _error(self, error: APIError) -> JudgeError:
        if isinstance(error, APITimeoutError):
            advice = "; see --timeout"
        elif isinstance(error, AuthenticationError | PermissionDeniedError):
            advice = "; see --api-key-variable"
        else:
            advice = "; check the URL of --judge, which often ends in /v1, and --judge-model"
        return JudgeError(f"the judge's server {self._base} failed: {self._why(error)}{advice}")

    def _why(self, error: APIError) -> str:
        """Return the error in the server's own words, if any, without the key."""
        if isinstance(error, APIStatusError):
            return self._without_key(f"HTTP {error.status_code} ({error.message[:200]})")
        return self._without_key(f"{error.message} {error.__cause__ or ''}").rstrip(" .")

    def _without_key(self, text: str) -> str:
        return " ".join((text.replace(self._key, "…") if self._key else text).split())


def _has_no_answer(task: "asyncio.Task[tuple[int, str | None]]") -> bool:
    return task.exception() is not None or task.result()[1] is None


def _base_url(url: str) -> str:
    """Return a server's base URL. Raises JudgeError, which does not quote anything that may be secret."""
    try:
        parts = urlsplit(url)
        is_base = parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        is_base = False
    if not is_base or parts.username is not None or parts.query or parts.fragment:
        raise JudgeError(
            "--judge is not a server's base URL: write http://127.0.0.1:8080/v1, without user, password or "
            "query; an API key goes into an environment variable"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"
