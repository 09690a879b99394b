"""Judges that answer prompts: a model behind an OpenAI-compatible server, or a local GGUF model."""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import urlsplit

from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    DefaultAsyncHttpxClient,
    DefaultHttpxClient,
    Omit,
    OpenAI,
    PermissionDeniedError,
)

from mink_local.errors import GenerationError, JudgeError
from mink_local.evals.inputs import DATE, file_sha256, template_sha256
from mink_local.evals.judge.asking import Answers, Prompt
from mink_local.generation.loading import load_model
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.models.catalog import resolve

log = logging.getLogger("mink_local")

RETRIES = 6  # of a failed request, with pauses of up to 8 s, or as long as the server asks for
_PROBE_SECONDS = 30.0
_POLL_SECONDS = 0.25  # between checks for Ctrl-C
_LOCAL_TOKENS, _REMOTE_TOKENS = 64, 2048  # the second leaves room for reasoning
_MAY_BE_REFUSED = ("max_tokens", "temperature")
_RETRY_TEMPERATURE = 0.7  # the first attempt is at 0


def _message(prompt: str) -> list[Any]:
    return [{"role": "user", "content": prompt}]


def _temperature(attempt: int) -> float:
    return _RETRY_TEMPERATURE if attempt else 0.0


class LocalJudge:
    """A GGUF model in this process whose answers are constrained to JSON of a schema.

    It is loaded on first use. `options` are those of `load_model`.

    Attributes:
        name: Name in the records.
        facts: What the manifest records about it.
    """

    def __init__(self, model: str, **options: Any) -> None:
        file = resolve(model)
        self.name = file.name
        self.facts: Mapping[str, Any] = {
            "sha256": file_sha256(file.path),
            "template_sha256": template_sha256(options),
        }
        self._file, self._options = model, options
        self._interrupted = False

    @cached_property
    def _loaded(self) -> Model:
        return load_model(self._file, date=DATE, **self._options)

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield each prompt's index and answer as it arrives; None if the prompt exceeds the context.

        Raises MinkError.
        """
        for answer in self._loaded.answer_all(map(_local_request, prompts)):
            if self._interrupted:
                return
            if answer.finish_reason == "error":
                raise GenerationError(f"the judge {self.name}: {answer.error}")
            yield answer.index, None if answer.finish_reason == "overflow" else answer.text

    def close(self) -> None:
        """Free the model."""
        if "_loaded" in vars(self):
            self._loaded.close()

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""
        self._interrupted = True
        if "_loaded" in vars(self):  # reading the property would load the model
            self._loaded.interrupt()


def _local_request(prompt: Prompt) -> Request:
    params = SamplingParams(
        temperature=_temperature(prompt.attempt),
        seed=prompt.attempt,
        max_tokens=_LOCAL_TOKENS,
        constraints=Constraints(json_schema=dict(prompt.schema)),
    )
    return Request(_message(prompt.text), params, enable_thinking=False)


class EndpointJudge:
    """A model behind an OpenAI-compatible server.

    Args:
        url: The base URL, such as http://127.0.0.1:8080/v1.
        model: The model's id; None for the server's only one.
        key_variable: Environment variable with the API key for this server; None for no key, or for OpenAI's
            own server OPENAI_API_KEY. A key is only sent to the server, never shown or written.
        parallel: Number of requests at a time.
        seconds: Time limit per answer.

    Raises:
        JudgeError: The URL or the key is invalid, or the server cannot be reached or has several models.
    """

    facts: Mapping[str, Any] = {"sha256": ""}  # a server's model has no file here

    def __init__(
        self, url: str, model: str | None, key_variable: str | None, parallel: int, seconds: float
    ) -> None:
        self._base = _base_url(url)
        self._key, self._parallel, self._seconds = _key_for(self._base, key_variable), parallel, seconds
        self._refused: set[str] = set()  # parameters that the model does not take
        self._interrupted = self._has_answered = False
        self._model = model or self._only_model()
        self.name = f"{self._model} at {self._base}"

    def _options(self, seconds: float) -> dict[str, Any]:
        options = {"base_url": self._base, "api_key": self._key or "none", "timeout": seconds}
        if not _is_openai(self._base):  # the account of OPENAI_ORG_ID is not for others
            options["default_headers"] = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
        return options

    def _only_model(self) -> str:
        transport = DefaultHttpxClient(follow_redirects=False)
        with OpenAI(**self._options(_PROBE_SECONDS), max_retries=0, http_client=transport) as client:
            try:
                models = [str(model.id) for model in client.models.list().data]
            except APIError as error:
                raise self._error(error) from None
            except (AttributeError, TypeError, ValueError):  # not a list of models
                models = []
        own = [name for name in models if not any(name.startswith(f"{other}:") for other in models)]
        if len(own) != 1:  # not counting presets, as "qwen3-4b:creative" is one of mink-serve's
            offers = self._without_key(", ".join(models)) or "none"
            raise JudgeError(f"{self._base} has these models: {offers}; choose one with --judge-model")
        return own[0]

    def close(self) -> None:
        """Do nothing: connections are closed with their answers."""

    def answers(self, prompts: Sequence[Prompt]) -> Answers:
        """Yield answers like `LocalJudge.answers`; after a failure, only those to requests already sent."""
        failed: JudgeError | None = None
        with asyncio.Runner() as runner:
            transport = DefaultAsyncHttpxClient(follow_redirects=False)
            client = AsyncOpenAI(**self._options(self._seconds), max_retries=RETRIES, http_client=transport)
            create = runner.get_loop().create_task
            unasked = enumerate(prompts)
            asked: set[asyncio.Task[tuple[int, str | None]]] = set()
            try:
                while not self._interrupted:
                    if not failed:
                        more = islice(unasked, self._parallel - len(asked))
                        asked.update(create(self._answer(client, index, prompt)) for index, prompt in more)
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

    async def _answer(self, client: AsyncOpenAI, index: int, prompt: Prompt) -> tuple[int, str | None]:
        """Return what `answers` yields for a prompt. Raises JudgeError."""
        asked: Any = {
            "model": self._model,
            "messages": _message(prompt.text),
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdict", "strict": True, "schema": prompt.schema},
            },
            **self._parameters(prompt.attempt),
        }
        try:
            completion = await client.chat.completions.create(**asked)
            text = str(completion.choices[0].message.content or "")
        except BadRequestError as error:
            if error.code == "context_length_exceeded":
                return index, None
            if error.param in _MAY_BE_REFUSED and error.param in asked:
                self._refused.add(error.param)
                return await self._answer(client, index, prompt)
            if self._has_answered:  # so it refuses only this prompt, perhaps due to a content filter
                return index, self._why(error)
            raise self._error(error) from None
        except APIError as error:
            raise self._error(error) from None
        except (AttributeError, IndexError, TypeError, ValueError):
            raise JudgeError(f"{self._base} does not return chat completions") from None
        self._has_answered = True
        return index, self._without_key(text)

    def _parameters(self, attempt: int) -> dict[str, float]:
        """Return the limit and the temperature, as far as the model takes them: reasoning models do not."""
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        temperature = {} if "temperature" in self._refused else {"temperature": _temperature(attempt)}
        return {limit: _REMOTE_TOKENS, **temperature}

    def interrupt(self) -> None:
        """Make `answers` end soon; safe to call from another thread."""
        self._interrupted = True

    def _error(self, error: APIError) -> JudgeError:
        if isinstance(error, APITimeoutError):
            advice = "; see --timeout"
        elif isinstance(error, AuthenticationError | PermissionDeniedError):
            advice = "; see --key-env"
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


def _is_openai(base: str) -> bool:
    """Return whether a base URL is that of OpenAI's own server, encrypted."""
    return base.startswith(("https://api.openai.com/", "https://api.openai.com:443/"))


def _key_for(base: str, variable: str | None) -> str:
    """Return the API key that is meant for a server; empty if none is. Raises JudgeError."""
    if variable is None and not _is_openai(base):
        return ""
    key = os.environ.get(variable or "OPENAI_API_KEY", "").strip()
    if variable and not key:
        raise JudgeError(f"{variable} is empty: set it to the API key, or leave out --key-env")
    if not (key.isascii() and key.isprintable()):
        raise JudgeError("the API key contains an invalid character: see --key-env")
    parts = urlsplit(base)
    if key and parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        log.warning("the API key is sent to %s unencrypted: use https:// if the server has it", base)
    return key
