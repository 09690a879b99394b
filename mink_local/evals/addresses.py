"""A model behind an OpenAI-compatible address, such as http://127.0.0.1:8080/v1."""

import asyncio
import logging
import os
import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from openai import (
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    BadRequestError,
    DefaultAsyncHttpxClient,
    Omit,
)

from mink_local.errors import ServerError
from mink_local.evals.answering import Answered, Answerer, ModelSession, with_reasoning
from mink_local.generation.request import EndLoops, Request
from mink_local.samplers import Greedy, Sampler, TopP
from mink_local.sandbox import in_a_line

log = logging.getLogger("mink_local")

PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)  # before asking again, in seconds: longer than a limit per minute
_PASSING = (0, 408, 409, 429)  # statuses (see `_status`) after which it is worth asking again, as from 500 on
_ADVICE = {
    **dict.fromkeys((0, 404), "; check the URL, which often ends in /v1, and the model's name after its #"),
    **dict.fromkeys((401, 403), "; see --key-env"),
    408: "; see --timeout",
}
_PROBE_SECONDS = 30.0
_SLOTS = 8  # requests at a time, of a server that does not say how many it answers at once
_POLL_SECONDS = 0.25  # between checks for Ctrl-C
_FOR_REASONING = 2048  # tokens beyond the limit for models whose reasoning cannot be switched off
_NO_ACCOUNT = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}  # OPENAI_ORG_ID is not for others
_MINK = "mink-local"  # who owns the models of mink-serve, by its own list


def is_address(text: str) -> bool:
    """Return whether a model's name is a server's address."""
    return text.startswith(("http://", "https://"))


class _Served(NamedTuple):
    """A model as its server lists it."""

    model: str
    is_mink: bool
    is_preset: bool
    n_slots: int


class AddressAnswerer(Answerer):
    """A model behind an OpenAI-compatible server.

    Samplers are sent to mink-serve only: others would drop them in silence.

    Args:
        url: The base URL, such as http://127.0.0.1:8080/v1, and the model's id after a # unless the server
            has only one.
        key_variable: Environment variable with the API key for this server; None for no key. A key is only
            sent to the server, never shown or written.
        parallel: Number of requests at a time; "auto" for as many as mink-serve or llama-server has slots.
        seconds: Time limit per answer.
        extra: Further fields of every request, such as `top_k`.
        is_strict: Whether a temperature or seed that the model refuses is an error; else it is left out.

    Raises:
        ServerError: The URL or the key is invalid, or the server cannot be reached or has several models.
    """

    def __init__(
        self,
        url: str,
        key_variable: str | None,
        parallel: int | Literal["auto"],
        seconds: float,
        extra: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_strict: bool = False,
    ) -> None:
        base, _, self._wanted = url.partition("#")
        self._base = _base_url(base)
        self._key, self._parallel, self._seconds = _key_for(self._base, key_variable), parallel, seconds
        self._extra = dict(extra)
        self._droppable = {"max_tokens"} if is_strict else {"max_tokens", "temperature", "seed"}
        self._refused: set[str] = set()  # parameters that the model does not take
        self._is_begun = self._has_answered = self._has_failed = False

    @cached_property
    def _served(self) -> _Served:
        """The model, found on its server when it is first needed."""
        listed, n_slots = asyncio.run(self._listed())
        names = [str(getattr(model, "id", "")) for model in listed]
        own = [name for name in names if not any(name.startswith(f"{other}:") for other in names)]
        if not self._wanted and len(own) != 1:  # not counting presets, as "qwen3-4b:creative" of mink-serve
            offers = self._without_key(", ".join(names)) or "none"
            raise ServerError(f"{self._base} has these models: {offers}; choose one with {self._base}#MODEL")
        model = self._wanted or own[0]
        is_mink = bool(listed) and all(getattr(one, "owned_by", None) == _MINK for one in listed)
        return _Served(model, is_mink, is_mink and model in {*names}.difference(own), n_slots)

    @property
    def name(self) -> str:
        return f"{self._served.model} at {self._base}"

    @property
    def facts(self) -> Mapping[str, Any]:
        return {"sha256": "", **({"fields": self._extra} if self._extra else {})}  # its file is not here

    def check(
        self, samplers: Sequence[Sampler], reasoning_budget: int | None, end_loops: EndLoops = "none"
    ) -> None:
        if self._served.is_preset:
            raise ServerError(f"{self.name} is a preset with its own sampler: use the model without it")
        if self._served.is_mink:
            return
        unknown = [str(sampler) for sampler in samplers if not isinstance(sampler, Greedy | TopP)]
        if unknown:
            raise ServerError(
                f"{self._base} is not mink-serve and would ignore {', '.join(unknown)}: use --sampler top-p "
                "(top-p:p=1 for temperature alone) or greedy, or serve the model with mink-serve"
            )
        if reasoning_budget is not None or end_loops != "none":
            raise ServerError(f"{self._base} is not mink-serve: leave out --reasoning-budget and --end-loops")

    def _client(self, seconds: float) -> AsyncOpenAI:
        try:
            client = DefaultAsyncHttpxClient(follow_redirects=False)
        except (ImportError, OSError, ValueError) as error:
            reason = in_a_line(str(error))
            raise ServerError(
                f"no request can be sent: check SSL_CERT_FILE and the proxy (HTTPS_PROXY): {reason}"
            ) from None
        return AsyncOpenAI(
            base_url=self._base,
            api_key=self._key or "none",
            timeout=seconds,
            max_retries=0,
            default_headers=_NO_ACCOUNT,  # type: ignore[arg-type]  # that of a request may be omitted, too
            http_client=client,
        )

    async def _listed(self) -> tuple[list[Any], int]:
        """Return the models that the server lists, if it does, and how many requests it answers at once."""
        async with self._client(_PROBE_SECONDS) as client:
            try:
                listed = list((await client.models.list()).data)
            except APIError as error:
                if not (self._wanted and isinstance(error, APIStatusError)):
                    raise self._error(error) from None
                listed = []
            except (AttributeError, TypeError, ValueError):  # not a list of models
                listed = []
            try:
                props: Any = await client.get(f"{self._base.removesuffix('/v1')}/props", cast_to=object)
                return listed, int(props["total_slots"])
            except (APIError, KeyError, TypeError, ValueError):
                return listed, _SLOTS

    def answers(
        self,
        requests: Sequence[Request],
        room: Iterable[Request],  # noqa: ARG002
    ) -> Generator[Answered | ModelSession, None, None]:
        """Yield answers in order of completion; after a failure, only those to requests already sent."""
        n_parallel = self._served.n_slots if self._parallel == "auto" else self._parallel
        if not self._is_begun:  # it makes its own room
            self._is_begun = True
            yield ModelSession(None, {"executor": "address", "n_parallel": n_parallel})
        failed: ServerError | None = None
        with asyncio.Runner() as runner:
            client = self._client(self._seconds)
            create = runner.get_loop().create_task
            unasked = enumerate(requests)
            asked: set[asyncio.Task[Answered]] = set()
            try:
                while not self.interrupted:
                    more = islice(unasked, 0 if failed else n_parallel - len(asked))
                    asked.update(create(self._answer(client, index, one)) for index, one in more)
                    if not asked:
                        break
                    done, asked = runner.run(
                        asyncio.wait(asked, timeout=_POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                    )
                    for task in done:
                        try:
                            yield task.result()
                        except ServerError as error:
                            failed = error
            finally:
                for task in asked:
                    task.cancel()
                runner.run(client.close())
        if failed:
            raise failed

    async def _answer(self, client: AsyncOpenAI, index: int, request: Request) -> Answered:
        """Return the answer to a request. Raises ServerError."""
        fields, began = self._fields(request), time.monotonic()
        try:
            choice, usage = await self._completion(client, fields)
        except BadRequestError as error:
            if error.code == "context_length_exceeded":
                return Answered(index, "", "overflow")
            if error.param in self._droppable and error.param in fields:
                self._refused.add(error.param)
                return await self._answer(client, index, request)
            if self._has_answered:  # so it refuses only this prompt, perhaps due to a content filter
                return Answered(index, "", "refused", error=self._why(error))
            raise self._error(error) from None
        except (APIError, ValueError) as error:
            raise self._error(error) from None
        self._has_answered = True
        details = getattr(usage, "completion_tokens_details", None)
        return Answered(
            index,
            self._without_key(_text(choice.message)),
            str(choice.finish_reason or "stop"),
            usage.completion_tokens if usage else None,
            usage.prompt_tokens if usage else 0,
            seconds=time.monotonic() - began,
            n_reasoning=getattr(details, "reasoning_tokens", None),
        )

    async def _completion(self, client: AsyncOpenAI, fields: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return a chat completion's choice and usage; after a failure that may pass, ask again.

        A gateway may also say 200 and have an error, or half an answer, for which a ValueError is raised.
        """
        pauses = iter(PAUSES)
        while True:
            try:
                completion: Any = await client.chat.completions.create(**fields)
                if not getattr(completion, "choices", None):
                    raise ValueError(getattr(completion, "error", None) or completion)
                return completion.choices[0], completion.usage
            except (APIError, ValueError) as error:
                pause = next(pauses, None)
                if pause is None or not self._may_pass(error):
                    raise
                if not self._has_failed:
                    log.warning("%s: %s; asking again, also in future", self._base, self._why(error))
                self._has_failed = True
                await asyncio.sleep(pause)

    def _may_pass(self, error: Exception) -> bool:
        """Return whether a request may succeed when it is repeated."""
        status = _status(error)
        if status == 200:
            return self._has_answered or "error" in str(error)  # or it is no such server
        return status in _PASSING or status >= 500

    def _fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of a chat completion."""
        params, sampler = request.params, request.params.effective_sampler
        messages: Any = request.prompt
        limit = "max_completion_tokens" if "max_tokens" in self._refused else "max_tokens"
        schema = params.constraints and params.constraints.json_schema
        verdict = {"name": "verdict", "strict": True, "schema": schema}
        own = {
            "sampler": str(sampler),
            "reasoning_budget": params.reasoning_budget,
            "chat_template_kwargs": {"enable_thinking": False} if request.enable_thinking is False else None,
            "end_loops": params.end_loops,
            "reasoning_sampler": params.reasoning_sampler and str(params.reasoning_sampler),
            "reasoning_temperature": params.reasoning_temperature,
        }
        fields = {
            "model": self._served.model,
            "messages": [_sendable(message) for message in messages],
            limit: (params.max_tokens or 0) + (_FOR_REASONING if request.enable_thinking is False else 0),
            "temperature": params.temperature,
            "seed": params.seed if self._served.is_mink or params.seed is None else params.seed % 2**31,
            "stop": list(params.stop) or None,
            "response_format": {"type": "json_schema", "json_schema": verdict} if schema else None,
            "extra_body": {**(_given(own) if self._served.is_mink else {}), **self._extra} or None,
            "top_p": sampler.p if isinstance(sampler, TopP) and not self._served.is_mink else None,
        }
        return {key: one for key, one in _given(fields).items() if key not in self._refused}

    def _error(self, error: Exception) -> ServerError:
        status = _status(error)
        what = "does not return chat completions, but" if status == 200 else "failed:"
        return ServerError(f"{self._base} {what} {self._why(error)}{_ADVICE.get(status, '')}")

    def _why(self, error: Exception) -> str:
        """Return the error in the server's own words, if any, without the key."""
        if isinstance(error, APIStatusError):
            words = error.body if isinstance(error.body, str) else error.message
            said = f"HTTP {error.status_code} ({words})"
        else:
            said = f"{error} {error.__cause__ or ''}".rstrip(" .")
        return in_a_line(self._without_key(said))

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "…") if self._key else text


def _status(error: Exception) -> int:
    """Return a failure's HTTP status: 408 if time ran out, 0 without an answer, 200 with another one."""
    if isinstance(error, APIStatusError):
        return error.status_code
    if isinstance(error, APITimeoutError):
        return 408
    return 0 if isinstance(error, APIError) else 200


def _text(message: Any) -> str:
    """Return a message with its reasoning, which vLLM and OpenRouter name otherwise than the others."""
    reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None) or ""
    return with_reasoning(reasoning, message.content or "")


def _sendable(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without lone surrogates, which cannot be sent."""
    return {**message, "content": message["content"].encode("utf-8", "replace").decode()}


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _base_url(url: str) -> str:
    """Return a server's base URL. Raises ServerError, which does not quote anything that may be secret."""
    try:
        parts = urlsplit(url)
        is_base = parts.hostname and parts.port != 0 and url.isprintable()
    except ValueError:
        is_base = False
    if not is_base or parts.username is not None or parts.query:
        raise ServerError(
            "the address is not a server's base URL: write http://127.0.0.1:8080/v1, without user, password "
            "or query; an API key goes into an environment variable"
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


def _key_for(base: str, variable: str | None) -> str:
    """Return the API key in an environment variable; empty without one. Raises ServerError."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ServerError(f"{variable} is empty: set it to the API key, or leave out --key-env")
    if not (key.isascii() and key.isprintable()):
        raise ServerError("the API key contains an invalid character: see --key-env")
    parts = urlsplit(base)
    if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
        log.warning("the API key is sent to %s unencrypted: use https:// if the server has it", base)
    return key
