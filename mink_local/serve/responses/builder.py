"""POST /v1/responses and its input_tokens."""

import time
from functools import partial
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from mink_local.samplers import Chain, TopP
from mink_local.serve.bodies import Output, Timings, TokenUsage
from mink_local.serve.builder import Part, PartsBuilder
from mink_local.serve.endpoints.tokens import InputTokens, count_input_tokens
from mink_local.serve.errors import ApiError
from mink_local.serve.exchange import Exchange
from mink_local.serve.request.parsing import naming
from mink_local.serve.responses.requests import ResponsesRequest
from mink_local.serve.service import Service

Json = dict[str, Any]
Status = Literal["completed", "incomplete", "in_progress", "failed"]


class ResponseUsage(Output, kw_only=True):
    """Numbers of tokens."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseObject(Output, kw_only=True):
    """The answer of `POST /v1/responses`.

    Attributes:
        status: `completed`, `incomplete` (cut off), `in_progress` or `failed`.
        output: Items: `reasoning`, `message`, `function_call`.
        temperature: The one that was used.
        top_p: That of the top-p that was used; 1 if none was.
        k: Number of candidates that the sampler kept for each token.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    error: Json | None = None
    incomplete_details: Json | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: list[Json]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: Json
    store: bool = False
    temperature: float
    text: Json
    tool_choice: Any
    tools: list[Json]
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metadata: dict[str, str]
    k: list[int]


async def create_response(service: Service, request: ResponsesRequest) -> Response:
    """Answer a conversation that is given as items."""
    with naming(request.places):
        return await Exchange(service, request.chat(), partial(_ItemsBuilder, request)).respond()


async def count_response_tokens(service: Service, request: ResponsesRequest) -> InputTokens:
    """Count the tokens of a conversation's prompt."""
    with naming(request.places):
        return await count_input_tokens(service, request.chat())


class _ItemsBuilder(PartsBuilder):
    """An answer as items, each of which is opened, filled and closed in a stream."""

    given: ResponsesRequest

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._number = 0  # of the next event
        self._origins: dict[str | None, Json] = {
            name: {"name": tool.name, "namespace": namespace}
            for name, namespace, tool, _ in self.given.named_tools()
            if namespace
        }

    def send(self, kind: str, **fields: Any) -> None:
        super().send(kind, sequence_number=self._number, **fields)
        self._number += 1

    def start(self) -> bytes:
        for name in ("created", "in_progress"):
            self.send(f"response.{name}", response=self._response("in_progress"))
        return self.sent()

    def keep_alive(self) -> bytes:
        self.send("response.in_progress", response=self._response("in_progress"))
        return self.sent()

    def opened(self, part: Part) -> None:
        empty = self._item(part) | ({} if part.kind == "call" else {"content": []})
        self.send("response.output_item.added", output_index=part.index, item=empty)
        if part.kind != "call":
            self.send("response.content_part.added", **self._place(part), part=_content(part))

    def grown(self, part: Part, text: str) -> None:
        logprobs: Json = {"logprobs": []} if part.kind == "text" else {}
        self.send(f"response.{_EVENTS[part.kind]}.delta", **self._place(part), delta=text, **logprobs)

    def closed(self, part: Part) -> None:
        item, place, kind = self._item(part), self._place(part), f"response.{_EVENTS[part.kind]}.done"
        if part.kind == "call":
            self.send(kind, **place, arguments=part.text, name=item["name"])
        else:
            logprobs: Json = {"logprobs": []} if part.kind == "text" else {}
            self.send(kind, **place, text=part.text, **logprobs)
            self.send("response.content_part.done", **place, part=_content(part))
        self.send("response.output_item.done", output_index=part.index, item=item)

    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        response = self.whole(usage, timings)
        self.send(f"response.{response.status}", response=response)
        return self.sent()

    def fail(self, error: ApiError) -> bytes:
        response = self._response("failed")
        response.error = {"code": error.code or "server_error", "message": str(error)}
        self.send("response.failed", response=response)
        return self.sent()

    def whole(self, usage: TokenUsage, timings: Timings) -> ResponseObject:  # noqa: ARG002
        self.close()
        is_cut = self.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed")
        if is_cut:
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.completed_at = int(time.time())
        n_cached = usage.prompt_tokens_details.cached_tokens
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details={"cached_tokens": n_cached, "cache_write_tokens": 0},
            output_tokens=usage.completion_tokens,
            output_tokens_details={"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            total_tokens=usage.total_tokens,
        )
        return response

    def _response(self, status: Status) -> ResponseObject:
        given, params = self.given, self.head.params
        return ResponseObject(
            id=f"resp_{self.head.request_id}",
            created_at=self.head.created,
            status=status,
            instructions=given.instructions,
            max_output_tokens=given.max_tokens,
            model=self.head.model,
            output=[self._item(part) for part in self.parts],
            parallel_tool_calls=given.parallel_tool_calls is not False,
            reasoning={"effort": given.reasoning and given.reasoning.effort, "summary": None},
            temperature=params.temperature,
            text={"format": (given.text and given.text.format) or {"type": "text"}},
            tool_choice=given.tool_choice or "auto",
            tools=msgspec.to_builtins(given.tools or []),
            top_p=_top_p(params.effective_sampler),
            metadata=given.metadata or {},
            k=self.k if status != "in_progress" else [],
        )

    def _item(self, part: Part) -> Json:
        """Return a part as an item."""
        is_last = part is self.parts[-1]
        is_cut = is_last and (self.finish_reason == "length" or self.answer.has_cut_call)
        status = "in_progress" if part.is_open else "incomplete" if is_cut else "completed"
        item: Json = {"id": self._id(part), "status": status}
        if part.call is not None:
            name = self._origins.get(part.call.name, {"name": part.call.name})
            return item | {"type": "function_call", "call_id": part.call.id, "arguments": part.text} | name
        if part.kind == "text":
            return item | {"type": "message", "role": "assistant", "content": [_content(part)]}
        return item | {"type": "reasoning", "summary": [], "content": [_content(part)]}

    def _id(self, part: Part) -> str:
        prefix = {"text": "msg", "reasoning": "rs", "call": "fc"}[part.kind]
        return f"{prefix}_{self.head.request_id}_{part.index}"

    def _place(self, part: Part) -> Json:
        """Return where a part is."""
        place = {"item_id": self._id(part), "output_index": part.index}
        return place if part.kind == "call" else place | {"content_index": 0}


_EVENTS = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


def _content(part: Part) -> Json:
    """Return the text of a part as an item's content."""
    more: Json = {"annotations": [], "logprobs": []} if part.kind == "text" else {}
    return {"type": _EVENTS[part.kind], "text": part.text} | more


def _top_p(sampler: Any) -> float:
    """Return the p of a sampler's top-p; 1 if it has none."""
    cuts = sampler.cuts if isinstance(sampler, Chain) else [sampler]
    return next((cut.p for cut in cuts if isinstance(cut, TopP)), 1.0)
