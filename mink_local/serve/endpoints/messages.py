"""POST /v1/messages and its count_tokens: Anthropic's interface, whose messages are lists of blocks."""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta
from starlette.responses import Response

from mink_local.generation.answer import Answer, Piece
from mink_local.serve.endpoints.exchange import Exchange, NamedEventsForm, server_sent
from mink_local.serve.endpoints.tokens import count_input_tokens
from mink_local.serve.protocol.fields import (
    TEXT_ONLY,
    AnswerFormat,
    ChatRequest,
    Fields,
    Name,
    SamplingFields,
    Schema,
    StopString,
    ToolName,
    as_chat,
    function_tool,
    naming,
    tool_names,
)
from mink_local.serve.protocol.responses import ApiError, InputTokens, Output, Timings, TokenUsage
from mink_local.serve.service import Service

Json = dict[str, Any]


class TextBlock(Fields, frozen=True):
    """A text."""

    type: Literal["text"]
    text: str


class Block(Fields, frozen=True):
    """A part of a message: text, thinking, a call of a tool, or its result.

    Attributes:
        text: Of `text`.
        thinking: Of `thinking`.
        id: Of a call.
        name: The tool that is called.
        input: The call's arguments.
        tool_use_id: The call whose result this is.
        content: The result.
        is_error: Whether the call has failed.
    """

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: Name | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None

    def __post_init__(self) -> None:
        needed = {
            "text": ("text",),
            "thinking": ("thinking",),
            "tool_use": ("id", "name", "input"),
            "tool_result": ("tool_use_id",),
        }
        self.require(*needed.get(self.type, ()))


class BlockMessage(Fields, frozen=True):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=1024)]


class InputTool(Fields, frozen=True):
    """A tool that the model may call."""

    name: ToolName
    input_schema: Schema
    description: str | None = None
    type: Literal["custom"] | None = None


class ToolChoice(Fields, frozen=True):
    """Whether, and which tool, the model must call.

    Attributes:
        name: For `tool`: the one to call.
        disable_parallel_tool_use: Whether an answer has at most one call.
    """

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None

    def __post_init__(self) -> None:
        if self.type == "tool":
            self.require("name")


class Thinking(Fields, frozen=True):
    """Whether the model reasons first, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None


class OutputFormat(AnswerFormat, frozen=True):
    """The form of the answer's text."""

    type: Literal["json_schema"]


class OutputConfig(Fields, frozen=True):
    """Options of the answer.

    Attributes:
        format: A JSON schema that the answer's text conforms to.
    """

    format: OutputFormat | None = None


class MessagesRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`; the sampling fields are those of chat completions.

    Attributes:
        messages: If the last one is the assistant's, the answer continues it.
        system: A system message before the others.
        tools: Tools that the model may call.
        tool_choice: With `any` or `tool`, the answer is a valid call.
        stop_sequences: Strings that end the answer and are not part of it.
        thinking: Whether the model reasons first, if it can.
        output_config: The form of the answer.
        chat_template_kwargs: Variables of the chat template.
        max_tokens: Maximum length of the answer in tokens, with its thinking.
    """

    instead = ChatRequest.instead | {
        "messages.role": "use system, user or assistant; a tool's result is a tool_result of the user's",
        "messages.content.content.type": TEXT_ONLY,
        "system.type": TEXT_ONLY,
        "thinking.type": "use enabled, adaptive or disabled",
        "tool_choice.type": "use none, auto, any or tool",
        "output_config.format.type": "use json_schema",
    }

    messages: Annotated[list[BlockMessage], Meta(min_length=1, max_length=2048)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[InputTool], Meta(max_length=128)] | None = None
    tool_choice: ToolChoice | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """Return the same request to chat completions. Raises ApiError."""
        choice, thinking = self.tool_choice, self.thinking
        body: Json = {
            "messages": [*self._messages()],
            "tools": [
                function_tool(tool.name, tool.description, tool.input_schema) for tool in self.tools or ()
            ],
        }
        if choice:
            forced = {"type": "function", "function": {"name": choice.name}}
            body["tool_choice"] = {"any": "required", "tool": forced}.get(choice.type, choice.type)
            body["parallel_tool_calls"] = not choice.disable_parallel_tool_use
        if thinking:
            switch = {"enable_thinking": thinking.type != "disabled"}
            body["chat_template_kwargs"] = switch | (self.chat_template_kwargs or {})
        return as_chat(self, body)

    @property
    def chat_names(self) -> dict[str, str]:
        """The fields of the chat request that have other names here."""
        tools = tool_names([f"tools[{i}]" for i in range(len(self.tools or ()))], "input_schema")
        return {"messages.*": "messages"} | tools

    def _messages(self) -> Iterator[Json]:
        if self.system:
            yield {"role": "system", "content": _text(self.system)}
        for message in self.messages:
            if isinstance(message.content, str):
                yield {"role": message.role, "content": message.content}
                continue
            made: Json = {"role": message.role, "content": ""}
            for block in message.content:
                if block.type == "tool_result":
                    yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _text(block.content)}
                elif block.type == "tool_use":
                    function = {"name": block.name, "arguments": block.input}
                    made.setdefault("tool_calls", []).append({"id": block.id, "function": function})
                elif block.type == "thinking":
                    made["reasoning_content"] = made.get("reasoning_content", "") + str(block.thinking)
                else:
                    made["content"] += block.text or ""
            is_result = any(block.type == "tool_result" for block in message.content)
            if made["content"] or message.role == "assistant" or not is_result:
                yield made


def _text(content: str | Sequence[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block.text for block in content)


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
    with naming(request.chat_names):
        if request.max_tokens is None:
            raise ApiError(400, "max_tokens is missing", param="max_tokens")
        return await Exchange(service, request.chat(), partial(_MessageForm, request)).respond()


async def count_message_tokens(service: Service, request: MessagesRequest) -> InputTokens:
    """Count the tokens of a conversation's prompt."""
    with naming(request.chat_names):
        return await count_input_tokens(service, request.chat())


class _MessageForm(NamedEventsForm):
    """An answer as blocks, each of which is started, filled and stopped in a stream."""

    def __init__(self, given: MessagesRequest, *of_form: Any) -> None:
        super().__init__(*of_form)
        self._stops = given.stop_sequences or ()
        self._blocks: list[Json] = []
        self._arguments = ""  # of the last block, a call

    def start(self) -> bytes:
        n_prompt = self.answer.prompt_tokens
        message = self._message(MessageUsage(input_tokens=n_prompt, output_tokens=0))
        self.send("message_start", message=message)
        return self.sent() + self.keep_alive()

    def keep_alive(self) -> bytes:
        return server_sent({"type": "ping"}, "ping")

    def add(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        if piece.reasoning:
            self._grow("thinking", "thinking", piece.reasoning)
        for event in piece.events:
            if isinstance(event, str):
                self._grow("text", "text", event)
                continue
            if event.id:
                self._open({"type": "tool_use", "id": event.id, "name": event.name, "input": {}})
            if event.arguments:
                self._arguments += event.arguments
                self._delta({"type": "input_json_delta", "partial_json": event.arguments})

    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        message = self.whole(usage, timings)
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        self.send("message_delta", delta=delta, usage=message.usage)
        self.send("message_stop")
        return self.sent()

    def fail(self, error: ApiError) -> bytes:
        return server_sent(error.as_anthropic(), "error")

    def whole(self, usage: TokenUsage, timings: Timings) -> MessageObject:  # noqa: ARG002
        self._close()
        n_cached = usage.prompt_tokens_details.cached_tokens
        message = self._message(
            MessageUsage(
                input_tokens=usage.prompt_tokens - n_cached,
                cache_read_input_tokens=n_cached,
                output_tokens=usage.completion_tokens,
            )
        )
        reason, stopped_by = self.answer.finish_reason, self.answer.stopped_by
        message.stop_reason = {"length": "max_tokens"}.get(str(reason), "end_turn")
        if self.answer.tool_calls and reason == "stop":
            message.stop_reason = "tool_use"
        elif stopped_by in self._stops:
            message.stop_reason, message.stop_sequence = "stop_sequence", str(stopped_by)
        message.k = list(self.answer.k)
        return message

    def _message(self, usage: MessageUsage) -> MessageObject:
        return MessageObject(
            id=f"msg_{self.head.request_id}",
            model=self.head.model,
            content=self._blocks,
            stop_reason=None,
            stop_sequence=None,
            usage=usage,
            k=[],
        )

    def _grow(self, kind: str, field: str, text: str) -> None:
        """Add a text to the open block, or open one."""
        if not self._blocks or self._blocks[-1]["type"] != kind:
            self._open({"type": kind, field: ""} | ({"signature": ""} if kind == "thinking" else {}))
        self._blocks[-1][field] += text
        self._delta({"type": f"{kind}_delta", field: text})

    def _open(self, block: Json) -> None:
        self._close()
        self._blocks.append(block)
        self.send("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _delta(self, delta: Json) -> None:
        self.send("content_block_delta", index=len(self._blocks) - 1, delta=delta)

    def _close(self) -> None:
        """Stop the last block, if there is one; a call that was cut off has no input."""
        if not self._blocks:
            return
        if self._blocks[-1]["type"] == "tool_use":
            try:
                self._blocks[-1]["input"] = json.loads(self._arguments or "{}")
            except ValueError:
                self._blocks[-1]["input"] = {}
            self._arguments = ""
        self.send("content_block_stop", index=len(self._blocks) - 1)
