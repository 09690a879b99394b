"""POST /v1/messages: its requests, its responses, and the way from one to the other."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field
from starlette.responses import Response

from mink_local.generation.answer import Loop
from mink_local.serve.bodies import ApiError, Json, Output, Timings, TokenUsage
from mink_local.serve.clients import Client
from mink_local.serve.exchange import NamedMessagesBuilder, Part, respond
from mink_local.serve.request.chat import (
    ChatMessage,
    ChatRequest,
    FunctionDefinition,
    chat_message,
    chat_request,
    joined,
    places_of,
)
from mink_local.serve.request.fields import (
    MAX_TOKENS,
    MAX_TOOLS,
    NO_TOOLS,
    ONE_ANSWER,
    TEXT_ONLY,
    AnswerFormat,
    Fields,
    Name,
    SamplingFields,
    Schema,
    TemplateVariables,
    ToolName,
)
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.service import Service


class TextBlock(Fields, frozen=True, tag="text"):
    """A text."""

    text: str


class ThinkingBlock(Fields, frozen=True, tag="thinking"):
    """The assistant's reasoning; without a text if it is hidden."""

    thinking: str = ""


class RedactedThinking(Fields, frozen=True, tag="redacted_thinking"):
    """Reasoning that only Anthropic's servers can read; it is left out."""


class ToolUse(Fields, frozen=True, tag="tool_use"):
    """A call of a tool.

    Attributes:
        input: The call's arguments.
    """

    id: str
    name: Name
    input: dict[str, Any] = field(default_factory=dict)


class Source(Fields, frozen=True):
    """The text of a document.

    Attributes:
        data: For `text`: the text.
        content: For `content`: the texts.
    """

    type: Literal["text", "content"]
    data: str | None = None
    content: str | list[TextBlock] | None = None


class DocumentBlock(Fields, frozen=True, tag="document"):
    """A document, read as its title and text."""

    source: Source
    title: str | None = None

    @property
    def text(self) -> str:
        """What the model reads."""
        return "\n".join(filter(None, [self.title, self.source.data, joined(self.source.content)]))


class SearchResult(Fields, frozen=True, tag="search_result"):
    """A result of a search, read as its title, source and texts."""

    title: str
    source: str
    content: list[TextBlock]

    @property
    def text(self) -> str:
        """What the model reads."""
        return "\n".join([self.title, self.source, joined(self.content)])


class ToolReference(Fields, frozen=True, tag="tool_reference"):
    """The name of a tool that was found, read as a text."""

    tool_name: str

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"tool: {self.tool_name}"


Readable = TextBlock | DocumentBlock | SearchResult | ToolReference


class ToolResult(Fields, frozen=True, tag="tool_result"):
    """The result of a call.

    Attributes:
        tool_use_id: The call whose result this is.
        is_error: Whether the call has failed, which the model is told.
    """

    tool_use_id: str
    content: str | list[Readable] | None = None
    is_error: bool | None = None

    @property
    def message(self) -> ChatMessage:
        """The same for chat completions; that it is an error is said in words."""
        text = ("Error: " if self.is_error else "") + joined(self.content)
        return ChatMessage(role="tool", tool_call_id=self.tool_use_id, content=text)


Block = Readable | ThinkingBlock | RedactedThinking | ToolUse | ToolResult


class BlockMessage(Fields, frozen=True):
    """A message of a conversation. Several texts are joined by line breaks."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(max_length=1024)]


class InputTool(Fields, frozen=True):
    """A tool that the model may call.

    Attributes:
        type: `custom`; those of Anthropic's servers are left out if there are others.
        strict: Whether arguments conform to `input_schema`, if the model's calls begin with a tag. Those of a
            forced call do anyway.
    """

    name: ToolName
    input_schema: Schema | None = None
    description: str | None = None
    type: str | None = None
    strict: bool | None = None

    @property
    def is_own(self) -> bool:
        """Whether the client has it."""
        return self.type in (None, "custom")

    def __post_init__(self) -> None:
        if self.is_own and self.input_schema is None:
            raise ValueError("input_schema is missing")


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
        if self.type == "tool" and self.name is None:
            raise ValueError("name is missing")

    @property
    def for_chat(self) -> Any:
        """The same for chat completions."""
        if self.type == "tool":
            return {"function": {"name": self.name}}
        return "required" if self.type == "any" else self.type


class Thinking(Fields, frozen=True):
    """Whether the model reasons first, and for how many tokens at most."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS)] | None = None


class OutputConfig(Fields, frozen=True):
    """Options of the answer.

    Attributes:
        format: A JSON schema that the answer's text conforms to.
    """

    format: AnswerFormat | None = None


class MessagesRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/messages`.

    Attributes:
        messages: If the last one is the assistant's, the answer continues it.
        system: A system message before the others.
        tools: Tools that the model may call.
        tool_choice: With `any` or `tool`, the answer is a valid call.
        thinking: Whether the model reasons first, if it can.
        output_config: What the answer is.
        chat_template_kwargs: Variables of the chat template.
    """

    refused = SamplingFields.refused | ONE_ANSWER | {"output_format": "use output_config.format"}
    instead: ClassVar = {
        "messages.role": "use system, user or assistant; a tool's result is a tool_result of the user's",
        "messages.content.type": TEXT_ONLY,
        "messages.content.content.type": TEXT_ONLY,
        "messages.content.source.type": TEXT_ONLY,
        "messages.content.content.source.type": TEXT_ONLY,
        "system.type": TEXT_ONLY,
        "thinking.type": "use enabled, adaptive or disabled",
        "tool_choice.type": "use none, auto, any or tool",
        "output_config.format.type": "use json_schema",
    }

    messages: Annotated[list[BlockMessage], Meta(min_length=1, max_length=2048)]
    system: str | list[TextBlock] | None = None
    tools: Annotated[list[InputTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: TemplateVariables | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tools and not self.own_tools:
            kind = self.tools[0].type
            raise ApiError(
                400, f"tools[0].type: '{kind}' is not supported: {NO_TOOLS}", param="tools[0].type"
            )

    @property
    def own_tools(self) -> list[InputTool]:
        """The tools that the client has."""
        return [tool for tool in self.tools or () if tool.is_own]

    @property
    def left_out(self) -> Iterable[str]:
        return [f"tools.{tool.type}" for tool in self.tools or () if not tool.is_own]

    def normal(self) -> ChatRequest:
        choice, thinking, config = self.tool_choice, self.thinking, self.output_config
        switch = {} if thinking is None else {"enable_thinking": thinking.type != "disabled"}
        budget = (
            thinking.budget_tokens if thinking and self.reasoning_budget is None else self.reasoning_budget
        )
        return chat_request(
            self,
            [
                FunctionDefinition(
                    name=tool.name,
                    description=tool.description,
                    parameters=tool.input_schema,
                    strict=tool.strict,
                )
                for tool in self.own_tools
            ],
            reasoning_budget=budget,
            messages=[*self._messages()],
            tool_choice=choice and choice.for_chat,
            parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
            chat_template_kwargs=switch | (self.chat_template_kwargs or {}),
            response_format=config and config.format,
        )

    @property
    def places(self) -> dict[str, str]:
        tools = (f"tools[{i}]" for i, tool in enumerate(self.tools or ()) if tool.is_own)
        places = places_of(tools, "input_schema")
        return super().places | places | {"response_format": "output_config.format"}

    def _messages(self) -> Iterator[ChatMessage]:
        """Yield the messages of the chat request; of each, results come first."""
        if self.system:
            yield ChatMessage(role="system", content=joined(self.system))
        for message in self.messages:
            content = message.content
            blocks = [TextBlock(text=content)] if isinstance(content, str) else content
            results = [block.message for block in blocks if isinstance(block, ToolResult)]
            yield from results
            if message.role == "assistant" or len(results) < len(blocks) or not results:
                yield _message(message.role, blocks)


def _message(role: Literal["user", "assistant", "system"], blocks: Sequence[Block]) -> ChatMessage:
    """Return the texts, the reasoning and the calls of blocks as a message."""
    return chat_message(
        role,
        joined([block for block in blocks if isinstance(block, Readable)]),
        [block.thinking for block in blocks if isinstance(block, ThinkingBlock)],
        [(block.id, block.name, block.input) for block in blocks if isinstance(block, ToolUse)],
    )


class MessageObject(Output, kw_only=True):
    """The answer of `POST /v1/messages`.

    Attributes:
        content: Blocks: `thinking`, `text`, `tool_use`.
        stop_reason: `end_turn`, `max_tokens`, `stop_sequence` or `tool_use`.
        stop_sequence: The one that ended the answer.
        usage: Numbers of tokens; those of the prompt that were in the KV cache count apart.
        k: Number of candidates that the sampler kept for each token.
        loops: Where the answer repeats itself, if it does.
    """

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Json]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, int]
    k: list[int]
    loops: list[Loop] | UnsetType = UNSET


async def create_message(service: Service, client: Client, parsed: Parsed[MessagesRequest]) -> Response:
    """Answer a conversation that is given as blocks."""
    if parsed.request.max_tokens is None:
        raise ApiError(400, "max_tokens is missing", param="max_tokens")
    return await respond(service, client, parsed, MessageBuilder)


class MessageBuilder(NamedMessagesBuilder):
    """An answer as blocks, each of which is started, filled and stopped in a stream."""

    def start(self) -> None:
        self.send_named("message_start", message=self._message(self.answer.prompt_tokens))
        self.keep_alive()

    def keep_alive(self) -> None:
        self.send_named("ping")

    def opened(self, part: Part) -> None:
        self.send_named("content_block_start", index=part.index, content_block=_block(part))

    def grown(self, part: Part, text: str) -> None:
        names = {"reasoning": ("thinking_delta", "thinking"), "text": ("text_delta", "text")}
        kind, field = names.get(part.kind, ("input_json_delta", "partial_json"))
        self.send_named("content_block_delta", index=part.index, delta={"type": kind, field: text})

    def closed(self, part: Part) -> None:
        self.send_named("content_block_stop", index=part.index)

    def end(self, usage: TokenUsage, timings: Timings) -> None:
        message = self.whole(usage, timings)
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        self.send_named("message_delta", delta=delta, usage=message.usage)
        self.send_named("message_stop")

    def fail(self, error: ApiError) -> None:
        self.send(error.as_anthropic(), "error")

    def whole(self, usage: TokenUsage, timings: Timings) -> MessageObject:  # noqa: ARG002
        self.close(self.answer)
        n_cached = usage.prompt_tokens_details["cached_tokens"]
        message = self._message(usage.prompt_tokens - n_cached, n_cached, usage.completion_tokens)
        message.stop_reason, message.k = "end_turn", self.answer.k
        message.loops = self.answer.loops or UNSET
        if self.finish_reason in ("length", "repetition"):
            message.stop_reason = "max_tokens"
        elif self.answer.tool_calls:
            message.stop_reason = "tool_use"
        elif self.answer.stopped_by in self.answer.request.params.stop:  # not the template's own
            message.stop_reason, message.stop_sequence = "stop_sequence", str(self.answer.stopped_by)
        return message

    def _message(self, n_read: int, n_cached: int = 0, n_generated: int = 0) -> MessageObject:
        return MessageObject(
            id=f"msg_{self.head.request_id}",
            model=self.head.model,
            content=[_block(part) for part in self.parts[self.answer]],
            stop_reason=None,
            stop_sequence=None,
            usage={
                "input_tokens": n_read,
                "cache_read_input_tokens": n_cached,
                "cache_creation_input_tokens": 0,
                "output_tokens": n_generated,
            },
            k=[],
        )


def _block(part: Part) -> Json:
    """Return a part as a block; a call that has only begun has no input yet."""
    if part.kind == "reasoning":
        return {"type": "thinking", "thinking": part.text, "signature": ""}
    if part.call is None:
        return {"type": "text", "text": part.text}
    arguments = json.loads(part.text or "{}")
    return {"type": "tool_use", "id": part.call.id, "name": part.call.name, "input": arguments}
