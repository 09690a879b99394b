"""The model behind all endpoints, and the way from requests to the events of their answers."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import llama_cpp

from mink_local.errors import MinkError
from mink_local.generation.decoding import Decoding
from mink_local.generation.model import Model
from mink_local.generation.request import Prompt, Request, is_token_ids
from mink_local.sandbox import ChildStartError
from mink_local.serve.answers import has_grammar
from mink_local.serve.api_errors import ApiError
from mink_local.serve.engine_thread import EngineDownError, EngineThread, EventStream
from mink_local.serve.metrics import Metrics
from mink_local.serve.presets import Presets
from mink_local.serve.sampling import Limits
from mink_local.version import __version__

T = TypeVar("T")

_PREPARERS = 4  # threads that render and tokenize prompts; llama.cpp's own threads want the cores
_GRAMMAR_PREPARERS = 2  # others for requests with a grammar: trying a hostile one can take 20 s
_WATCH_SECONDS = 0.5  # between two looks at the engine
_USUAL_SECONDS = 5.0  # an answer's time before one is finished

log = logging.getLogger("mink_local")


class Service:
    """Answers the requests of all clients with one model.

    Args:
        model: The model, which nobody else uses from now on.
        presets: The ids under which clients know it.
        metrics: Counts what is generated.
        max_waiting: Most answers that may wait for a slot; one more is refused.
        max_tokens: Most tokens of an answer, whatever the client asks for; None is the context's length.
        stall_seconds: Time without a step after which the engine counts as stuck.
    """

    def __init__(
        self,
        model: Model,
        presets: Presets,
        metrics: Metrics,
        *,
        max_waiting: int = 64,
        max_tokens: int | None = None,
        stall_seconds: float = 300,
    ) -> None:
        self.model = model
        self.presets = presets
        self.limits = Limits(model.n_ctx, model.tokenize, max_tokens)
        self.metrics = metrics
        self.created = int(time.time())
        identity = f"{__version__} {llama_cpp.__version__} {model.name}"
        self.fingerprint = f"b-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
        self._capacity = model.n_parallel + max_waiting
        self._stall_seconds = stall_seconds
        self._n_preparing = 0
        self._seconds = _USUAL_SECONDS  # of an answer, a moving average
        self._pool = ThreadPoolExecutor(_PREPARERS, "prepare")
        self._grammar_pool = ThreadPoolExecutor(_GRAMMAR_PREPARERS, "prepare-grammar")
        self._engine: EngineThread | None = None
        self._watch: asyncio.Task[None] | None = None

    async def start(self, on_failure: Callable[[], None]) -> None:
        """Start the engine's thread; `on_failure` is called if it ends or is stuck, and not by `stop`."""
        self._engine = EngineThread(self.model.engine)
        self._watch = asyncio.create_task(self._watch_engine(on_failure))

    async def stop(self) -> None:
        """End all answers and the engine's thread, and free the model, unless the thread is stuck."""
        if self._watch is not None:
            self._watch.cancel()
        ended = self._engine is not None and await self._engine.stop()
        for pool in (self._pool, self._grammar_pool):  # a request in preparation uses the model's vocabulary
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)
        if ended:
            self.model.close()

    @property
    def failure(self) -> str | None:
        """The reason why nothing can be generated, or None."""
        return "the server is not started" if self._engine is None else self._engine.failure

    def metrics_text(self) -> str:
        """Return the numbers about the server in Prometheus's text format."""
        engine = self._live()
        n_waiting = self._n_preparing + self.model.engine.n_waiting
        return self.metrics.text(
            running=engine.n_answers + self._n_preparing - n_waiting,
            waiting=n_waiting,
            slots=self.model.n_parallel,
            busy_slots=self.model.engine.n_busy,
            steps=engine.n_steps,
        )

    @staticmethod
    def now() -> int:
        """Return the time of a response, in seconds since 1970."""
        return int(time.time())

    async def begin(self, requests: Sequence[Request]) -> EventStream:
        """Prepare requests off the event loop, and have their answers generated.

        Raises:
            ApiError: A request cannot be answered by this model, the queue is full, or the engine is down.
        """
        if len(requests) > self._capacity:
            message = f"{len(requests)} answers are more than the {self._capacity} that fit: ask for fewer"
            raise ApiError(400, message, param="n")
        n_present = self._n_preparing + self._live().n_answers
        if n_present + len(requests) > self._capacity:
            seconds = max(1, round(n_present / self.model.n_parallel * self._seconds))
            raise ApiError(
                429,
                f"{n_present} of at most {self._capacity} answers are generated or wait: try again later",
                code="queue_full",
                kind="rate_limit_error",
                headers={"retry-after": str(seconds)},
            )
        self._n_preparing += len(requests)
        try:
            decodings = [
                await self.off_loop(self._prepare, request, is_slow=has_grammar(request.params))
                for request in requests
            ]
        finally:
            self._n_preparing -= len(requests)
        try:
            return self._live().generate(decodings)
        except EngineDownError as error:
            raise down(str(error)) from None

    def cancel(self, stream: EventStream) -> None:
        """End what a stream waits for; other answers go on."""
        if self._engine is not None and self._engine.cancel(stream):
            self.metrics.count_cancelled()

    def finished(self, seconds: float) -> None:
        """Note the time that an answer took, for the advice to clients that are refused."""
        self._seconds += 0.1 * (seconds - self._seconds)

    async def off_loop(self, function: Callable[..., T], *arguments: Any, is_slow: bool = False) -> T:
        """Call a function in a thread, so that other clients are served meanwhile."""
        pool = self._grammar_pool if is_slow else self._pool
        return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)

    def _live(self) -> EngineThread:
        if self._engine is None or self._engine.failure is not None:
            raise down(self.failure)
        return self._engine

    def tokens(self, request: Request) -> list[int]:
        """Return the token ids of a request's prompt. Raises ApiError if the model refuses it."""
        self._refuse_giant(request.prompt)
        with _api_errors():
            return self.model.tokens(request.prompt, request.enable_thinking, request.tools)

    def _prepare(self, request: Request) -> Decoding:
        """Render, tokenize, and make the constraints of a request."""
        self._refuse_giant(request.prompt)
        with _api_errors():
            decoding = self.model.engine.prepare(request)
        answer = decoding.answer
        if answer.finish_reason == "overflow":
            is_completion = isinstance(request.prompt, str) or is_token_ids(request.prompt)
            param = "prompt" if is_completion else "messages"
            raise _overflow(param, answer.prompt_tokens, self.model.n_ctx)
        return decoding

    def _refuse_giant(self, prompt: Prompt) -> None:
        """Refuse a text that cannot fit before it is tokenized, which takes seconds for each megabyte."""
        longest_token = self.model.weights.longest_token
        if isinstance(prompt, str):
            n_least = max(len(prompt) // longest_token, self.n_control_tokens(prompt))
        else:
            texts = [part.get("content") or "" for part in prompt if isinstance(part, Mapping)]
            n_least = sum(map(len, texts)) // longest_token
        if n_least > self.model.n_ctx:
            raise _overflow("prompt" if isinstance(prompt, str) else "messages", n_least, self.model.n_ctx)

    def n_control_tokens(self, text: str) -> int:
        """Return the number of control tokens in a text; llama.cpp's time grows with its square."""
        return sum(text.count(token) for token in self.model.weights.control_tokens if token)

    async def _watch_engine(self, on_failure: Callable[[], None]) -> None:
        """Wait until the engine ends or is stuck; then tell all clients, and the program."""
        engine = self._engine
        assert engine is not None
        while engine.failure is None:
            await asyncio.sleep(_WATCH_SECONDS)
            if engine.seconds_without_step > self._stall_seconds:
                engine.fail(f"the engine has made no step for {self._stall_seconds:g} s")
        log.error("%s", engine.failure)
        on_failure()


@contextmanager
def _api_errors() -> Iterator[None]:
    """Turn what is wrong with a request into an ApiError."""
    try:
        yield
    except ChildStartError as error:
        raise ApiError(500, str(error), kind="server_error") from None
    except (ValueError, MinkError) as error:
        raise ApiError(400, str(error)) from None


def _overflow(param: str, n_tokens: int, n_ctx: int) -> ApiError:
    """Return the error for a prompt that does not fit, in the words that LiteLLM and LangChain look for."""
    return ApiError(
        400,
        f"This model's maximum context length is {n_ctx} tokens and the prompt is too long with {n_tokens}: "
        "shorten it, or start mink-serve with a larger --ctx",
        param=param,
        code="context_length_exceeded",
        details={"n_prompt_tokens": n_tokens, "n_ctx": n_ctx},
    )


def down(reason: str | None) -> ApiError:
    """Return the error for a request that no engine is left for."""
    return ApiError(503, f"{reason}: start mink-serve again", code="engine_down", kind="server_error")
