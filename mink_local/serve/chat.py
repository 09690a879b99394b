"""POST /v1/chat/completions."""

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from mink_local.generation.reasoning import ReasoningSplitter, TextPart
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.llama.context import RANDOM_SEED
from mink_local.serve.engine_thread import Event, EventStream
from mink_local.serve.protocol import ChatRequest, parse
from mink_local.serve.respond import Json, respond, usage_of
from mink_local.serve.sampling import sampling_params
from mink_local.serve.service import Service, has_grammar
from mink_local.serve.tokens import logprob_entry
from mink_local.serve.tool_calls import ToolCallDelta, ToolParser, whole_calls
from mink_local.serve.tools import ToolPlan, plan_tools


async def create_chat_completion(http: HttpRequest) -> Response:
    """Answer a conversation, `n` times."""
    service: Service = http.app.state.service
    asked, unknown = parse(await http.body(), ChatRequest)
    preset = service.presets.find(asked.model)
    params, ignored = sampling_params(asked, preset, service.limits)
    model = service.model
    plan = await service.off_loop(plan_tools, asked, model.chat_template, model.supports_tools)
    if plan.grammar is not None:
        constraints = params.constraints or Constraints()
        params = replace(params, constraints=replace(constraints, grammar=plan.grammar, json_schema=None))
    request = Request(
        plan.messages,
        params,
        _enable_thinking(asked, params, service),
        asked.prefix_tokens or (),
        tools=plan.tools,
    )
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


def _enable_thinking(asked: ChatRequest, params: SamplingParams, service: Service) -> bool | None:
    """Return the template's switch: off under a grammar, which leaves no room for reasoning."""
    if not service.model.has_thinking_switch:
        return None
    return False if has_grammar(params) else asked.enable_thinking


class _ChatChoice:
    """Makes the deltas of one choice from the events of its answer."""

    def __init__(self, index: int, splitter: ReasoningSplitter, parser: ToolParser | None) -> None:
        self.index = index
        self.n_reasoning = 0  # tokens
        self.finish_reason: str | None = None
        self.logprobs: list[Json] = []
        self.k: list[int] = []
        self.tokens: list[int] = []
        self._splitter = splitter
        self._parser = parser
        self._text, self._reasoning = "", ""
        self._calls: list[ToolCallDelta] = []
        self._is_first = True

    def deltas(self, event: Event) -> list[Json]:
        """Return what an event adds to the message, perhaps nothing."""
        parts = list(self._splitter.feed(event.piece))
        if event.finish_reason is not None:
            parts += self._splitter.end()
        self.n_reasoning += event.piece.token is not None and self._splitter.in_reasoning
        deltas = [delta for part in parts for delta in self._of_part(part)]
        if event.finish_reason is not None:
            if self._parser is not None:
                deltas += self._of_answer(self._parser.end())
            is_call = self._calls and event.finish_reason == "stop"
            self.finish_reason = "tool_calls" if is_call else event.finish_reason
        if self._is_first:
            self._is_first = False
            deltas.insert(0, {"role": "assistant", "content": ""})
        return deltas

    def message(self) -> Json:
        """Return the whole message."""
        message: Json = {"role": "assistant", "content": self._text or (None if self._calls else "")}
        if self._reasoning:
            message |= _reasoning(self._reasoning)
        if self._calls:
            message["tool_calls"] = whole_calls(self._calls)
        return message

    def _of_part(self, part: TextPart) -> Iterator[Json]:
        if part.is_reasoning:
            self._reasoning += part.text
            yield _reasoning(part.text)
        else:
            yield from self._of_answer(self._parser.feed(part.text) if self._parser else [part.text])

    def _of_answer(self, pieces: Iterable[str | ToolCallDelta]) -> Iterator[Json]:
        for piece in pieces:
            if isinstance(piece, str):
                self._text += piece
                yield {"content": piece}
            else:
                self._calls.append(piece)
                yield {"tool_calls": [piece.to_json()]}


def _reasoning(text: str) -> Json:
    """Return reasoning under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


class _ChatBody:
    """Makes the chunks of a chat completion, or the whole of it."""

    def __init__(
        self, service: Service, asked: ChatRequest, model_id: str, plan: ToolPlan, events: EventStream
    ) -> None:
        self._service = service
        self._asked = asked
        self._answers = [decoding.answer for decoding in events.decodings]
        opened = service.model.opens_reasoning(events.decodings[0].prompt)
        is_constrained = has_grammar(self._answers[0].request.params)
        if is_constrained or asked.reasoning_format == "none" or not service.model.can_reason:
            state = "text"
        else:
            state = "reasoning" if opened else "start"
        self._choices = {
            answer: _ChatChoice(i, ReasoningSplitter(state), plan.parser())
            for i, answer in enumerate(self._answers)
        }
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
        for delta in choice.deltas(event) or ([{}] if extra else []):
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
