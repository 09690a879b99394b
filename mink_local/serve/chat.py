"""POST /v1/chat/completions."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.reasoning import ReasoningSplitter
from mink_local.generation.request import Request
from mink_local.llama.context import RANDOM_SEED
from mink_local.serve.answers import Json, MessageBuilder, engine_request, reasoning_state, usage_of
from mink_local.serve.engine_thread import Event, EventStream
from mink_local.serve.protocol import ChatRequest, parse
from mink_local.serve.respond import respond
from mink_local.serve.sampling import sampling_params
from mink_local.serve.service import Service
from mink_local.serve.tokens import logprob_entry
from mink_local.serve.tool_calls import ToolParser
from mink_local.serve.tools import ToolPlan, needs_grammar, plan_tools


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation, `n` times."""
    service: Service = http.app.state.service
    asked, unknown = parse(await http.body(), ChatRequest)
    preset = service.presets.find(asked.model)
    params, ignored = sampling_params(asked, preset, service.limits)
    model = service.model
    plan = await service.off_loop(
        plan_tools, asked, model.chat_template, model.supports_tools, is_slow=needs_grammar(asked)
    )
    request = engine_request(asked, params, plan, model.has_thinking_switch)
    return await respond(
        http,
        service,
        with_seeds(request, asked.n or 1),
        lambda events: _ChatBody(service, asked, preset.model_id, plan, events),
        is_stream=bool(asked.stream),
        headers=ignored_header([*ignored, *unknown]),
    )


def with_seeds(request: Request, n: int) -> list[Request]:
    """Return a request n times, with seeds that follow each other."""
    seed = request.params.seed
    first = secrets.randbelow(RANDOM_SEED) if seed is None else seed
    return [
        replace(request, params=replace(request.params, seed=(first + i) % RANDOM_SEED)) for i in range(n)
    ]


def ignored_header(fields: Iterable[str]) -> dict[str, str]:
    """Return the header that tells a client which of its sampling fields were ignored."""
    names = ",".join(sorted(set(fields)))
    return {"x-mink-ignored": names} if names else {}


class _ChatChoice(MessageBuilder):
    """Notes, besides its message, what the tokens of one choice are."""

    def __init__(self, index: int, splitter: ReasoningSplitter, parser: ToolParser | None) -> None:
        super().__init__(splitter, parser)
        self.index = index
        self.logprobs: list[Json] = []
        self.k: list[int] = []
        self.tokens: list[int] = []


class _ChatBody:
    """Makes the chunks of a chat completion, or the whole of it."""

    def __init__(
        self, service: Service, asked: ChatRequest, model_id: str, plan: ToolPlan, events: EventStream
    ) -> None:
        self._service = service
        self._asked = asked
        self._answers = [decoding.answer for decoding in events.decodings]
        prompt, prefix = events.decodings[0].prompt, asked.prefix_tokens or []
        opened = service.model.opens_reasoning(prompt[: len(prompt) - len(prefix)])
        params = self._answers[0].request.params
        state = reasoning_state(asked, params, can_reason=service.model.can_reason, opened=opened)
        self._choices = {
            answer: _ChatChoice(i, ReasoningSplitter(state), plan.parser())
            for i, answer in enumerate(self._answers)
        }
        for choice in self._choices.values():
            choice.skip("".join(service.model.texts(prefix)))
        self._head = {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "created": service.now(),
            "model": model_id,
            "system_fingerprint": service.fingerprint,
        }

    def chunks(self, event: Event) -> Iterator[Json]:
        """Yield a chunk for each delta of an event; the first has what is known of the token."""
        choice = self._choices[event.answer]
        extra = self._of_token(choice, event)
        for delta in choice.deltas(event.piece, event.finish_reason) or ([{}] if extra else []):
            yield self._chunk(choice, delta, extra)
            extra = {}
        if event.finish_reason is not None:
            yield self._chunk(choice, {}, {}, choice.finish_reason)

    def usage(self) -> Json:
        """Return OpenAI's `usage`."""
        return usage_of([self._answers], sum(choice.n_reasoning for choice in self._choices.values()))

    def last_chunks(self, usage: Json, timings: Json) -> Iterator[Json]:
        """Yield the chunk with the usage, if it is asked for."""
        if self._asked.include_usage:
            yield self._object("chat.completion.chunk", [], usage=usage, timings=timings)

    def whole(self, usage: Json, timings: Json) -> Json:
        """Return the whole completion."""
        choices = [
            {
                "index": choice.index,
                "message": choice.message(),
                "logprobs": {"content": choice.logprobs} if self._asked.logprobs else None,
                "finish_reason": choice.finish_reason,
                "k": choice.k,
                **({"tokens": choice.tokens} if self._asked.return_tokens else {}),
            }
            for choice in self._choices.values()
        ]
        return self._object("chat.completion", choices, usage=usage, timings=timings)

    def _of_token(self, choice: _ChatChoice, event: Event) -> Json:
        """Note an event's token; return what a chunk says of it, nothing if it only ends the answer."""
        token = event.piece.token
        if token is None or event.is_end_token:
            return {}
        extra: Json = {"k": [event.piece.k]}
        choice.k.append(event.piece.k)
        if self._asked.return_tokens:
            choice.tokens.append(token)
            extra["tokens"] = [token]
        if event.piece.logprob is not None:
            entry = logprob_entry(self._service.model, token, event.piece)
            choice.logprobs.append(entry)
            extra["logprobs"] = {"content": [entry]}
        return extra

    def _chunk(self, choice: _ChatChoice, delta: Json, extra: Json, finish_reason: str | None = None) -> Json:
        body = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._object("chat.completion.chunk", [{**body, **extra}])

    def _object(self, kind: str, choices: list[Json], **others: Any) -> Json:
        return {**self._head, "object": kind, "choices": choices, **others}
