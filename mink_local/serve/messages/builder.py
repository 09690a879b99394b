"""POST /v1/messages and its count_tokens."""

import json
from functools import partial
from typing import Any, Literal

from starlette.responses import Response

from mink_local.serve.bodies import Output, Timings, TokenUsage
from mink_local.serve.builder import Part, PartsBuilder, server_sent
from mink_local.serve.endpoints.tokens import InputTokens, count_input_tokens
from mink_local.serve.errors import ApiError
from mink_local.serve.exchange import Exchange
from mink_local.serve.messages.requests import MessagesRequest
from mink_local.serve.request.parsing import naming
from mink_local.serve.service import Service

Json = dict[str, Any]


class MessageUsage(Output, kw_only=True):
    """Numbers of tokens; those of the prompt that were in the KV cache count apart."""

    input_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens: int


class MessageObject(Output, kw_only=True):
    """The answer of `POST /v1/messages`.

    Attributes:
        content: Blocks: `thinking`, `text`, `tool_use`.
        stop_reason: `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
        stop_sequence: The one that ended the answer.
        k: Number of candidates that the sampler kept for each token.
    """

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Json]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    k: list[int]


async def create_message(service: Service, request: MessagesRequest) -> Response:
    """Answer a conversation that is given as blocks."""
    if request.max_tokens is None:
        raise ApiError(400, "max_tokens is missing", param="max_tokens")
    with naming(request.places):
        return await Exchange(service, request.chat(), partial(_MessageBuilder, request)).respond()


async def count_message_tokens(service: Service, request: MessagesRequest) -> InputTokens:
    """Count the tokens of a conversation's prompt."""
    with naming(request.places):
        return await count_input_tokens(service, request.chat())


class _MessageBuilder(PartsBuilder):
    """An answer as blocks, each of which is started, filled and stopped in a stream."""

    def start(self) -> bytes:
        usage = MessageUsage(input_tokens=self.answer.prompt_tokens, output_tokens=0)
        self.send("message_start", message=self._message(usage))
        return self.sent() + self.keep_alive()

    def keep_alive(self) -> bytes:
        return server_sent({"type": "ping"}, "ping")

    def opened(self, part: Part) -> None:
        self.send("content_block_start", index=part.index, content_block=_block(part))

    def grown(self, part: Part, text: str) -> None:
        names = {"reasoning": ("thinking_delta", "thinking"), "text": ("text_delta", "text")}
        kind, field = names.get(part.kind, ("input_json_delta", "partial_json"))
        self.send("content_block_delta", index=part.index, delta={"type": kind, field: text})

    def closed(self, part: Part) -> None:
        self.send("content_block_stop", index=part.index)

    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        message = self.whole(usage, timings)
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        self.send("message_delta", delta=delta, usage=message.usage)
        self.send("message_stop")
        return self.sent()

    def fail(self, error: ApiError) -> bytes:
        return server_sent(error.as_anthropic(), "error")

    def whole(self, usage: TokenUsage, timings: Timings) -> MessageObject:  # noqa: ARG002
        self.close()
        n_cached = usage.prompt_tokens_details.cached_tokens
        message = self._message(
            MessageUsage(
                input_tokens=usage.prompt_tokens - n_cached,
                cache_read_input_tokens=n_cached,
                output_tokens=usage.completion_tokens,
            )
        )
        message.stop_reason, message.k = "end_turn", self.k
        if self.finish_reason == "length":
            message.stop_reason = "max_tokens"
        elif self.answer.tool_calls and not self.answer.has_cut_call:
            message.stop_reason = "tool_use"
        elif self.answer.stopped_by in self.answer.request.params.stop:  # not the template's own
            message.stop_reason, message.stop_sequence = "stop_sequence", str(self.answer.stopped_by)
        return message

    def _message(self, usage: MessageUsage) -> MessageObject:
        return MessageObject(
            id=f"msg_{self.head.request_id}",
            model=self.head.model,
            content=[_block(part) for part in self.parts],
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
            k=[],
        )


def _block(part: Part) -> Json:
    """Return a part as a block; a call whose arguments are cut off has no input."""
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if part.call is None:
        return {"type": "text", "text": part.text}
    try:
        arguments = json.loads(part.text or "{}")
    except ValueError:
        arguments = {}
    return {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": arguments}
