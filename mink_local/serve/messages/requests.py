"""Requests to /v1/messages."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mink_local.serve.request.chat import (
    CalledFunction,
    ChatMessage,
    ChatRequest,
    FunctionDefinition,
    FunctionTool,
    NamedFunction,
    NamedToolChoice,
    ToolCall,
    chat_request,
    tool_places,
)
from mink_local.serve.request.fields import (
    MAX_TOKENS,
    MAX_TOOLS,
    ONE_ANSWER,
    TEXT_ONLY,
    AnswerFormat,
    Fields,
    Name,
    SamplingFields,
    Schema,
    ToolName,
)


class TextBlock(Fields, frozen=True, tag="text"):
    """A text."""

    text: str


class ThinkingBlock(Fields, frozen=True, tag="thinking"):
    """The assistant's reasoning."""

    thinking: str


class RedactedThinking(Fields, frozen=True, tag="redacted_thinking"):
    """Reasoning that only Anthropic's servers can read; it is left out."""


class ToolUse(Fields, frozen=True, tag="tool_use"):
    """A call of a tool.

    Attributes:
        input: The call's arguments.
    """

    id: str
    name: Name
    input: dict[str, Any]


class ToolResult(Fields, frozen=True, tag="tool_result"):
    """The result of a call.

    Attributes:
        tool_use_id: The call whose result this is.
        is_error: Whether the call has failed, which the model is told.
    """

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


Block = TextBlock | ThinkingBlock | RedactedThinking | ToolUse | ToolResult


class BlockMessage(Fields, frozen=True):
    """A message of a conversation. Several texts are joined by line breaks."""

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
        if self.type == "tool" and self.name is None:
            raise ValueError("name is missing")

    @property
    def for_chat(self) -> Any:
        """The same for chat completions."""
        if self.name is not None and self.type == "tool":
            return NamedToolChoice(function=NamedFunction(name=self.name))
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

    refused = SamplingFields.refused | ONE_ANSWER
    instead: ClassVar = {
        "messages.role": "use system, user or assistant; a tool's result is a tool_result of the user's",
        "messages.content.type": TEXT_ONLY,
        "messages.content.content.type": TEXT_ONLY,
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
    chat_template_kwargs: dict[str, Any] | None = None

    def chat(self) -> ChatRequest:
        """Return the same request to chat completions. Raises ApiError; see `places`."""
        choice, thinking, config = self.tool_choice, self.thinking, self.output_config
        switch = {} if thinking is None else {"enable_thinking": thinking.type != "disabled"}
        budget = (
            thinking.budget_tokens if thinking and self.reasoning_budget is None else self.reasoning_budget
        )
        return chat_request(
            self,
            reasoning_budget=budget,
            messages=[message for message, _ in self._messages()],
            tools=[
                FunctionTool(
                    function=FunctionDefinition(
                        name=tool.name, description=tool.description, parameters=tool.input_schema
                    )
                )
                for tool in self.tools or ()
            ],
            tool_choice=choice and choice.for_chat,
            parallel_tool_calls=None if choice is None else not choice.disable_parallel_tool_use,
            chat_template_kwargs=switch | (self.chat_template_kwargs or {}),
            response_format=config and config.format,
        )

    @property
    def places(self) -> dict[str, str]:
        """Where the client gave the fields of the chat request."""
        paths = [f"tools[{i}]" for i in range(len(self.tools or ()))]
        messages = {f"messages[{i}]": path for i, (_, path) in enumerate(self._messages())}
        return messages | tool_places(paths, "input_schema") | {"response_format": "output_config.format"}

    def _messages(self) -> Iterator[tuple[ChatMessage, str]]:
        """Yield the messages of the chat request, each with its place here; results come first."""
        if self.system:
            yield ChatMessage(role="system", content=_text(self.system)), "system"
        for i, message in enumerate(self.messages):
            made, content = [], message.content
            blocks = [TextBlock(text=content)] if isinstance(content, str) else content
            made = [_result(block) for block in blocks if isinstance(block, ToolResult)]
            if message.role == "assistant" or len(made) < len(blocks) or not made:
                made.append(_message(message.role, blocks))
            yield from ((one, f"messages[{i}]") for one in made)


def _result(block: ToolResult) -> ChatMessage:
    """Return the result of a call as a message; that it is an error is said in words."""
    text = ("Error: " if block.is_error else "") + _text(block.content)
    return ChatMessage(role="tool", tool_call_id=block.tool_use_id, content=text)


def _message(role: Literal["user", "assistant", "system"], blocks: Sequence[Block]) -> ChatMessage:
    """Return the texts, the reasoning and the calls of blocks as a message."""
    calls = [
        ToolCall(id=block.id, function=CalledFunction(name=block.name, arguments=block.input))
        for block in blocks
        if isinstance(block, ToolUse)
    ]
    reasoning = "\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    return ChatMessage(
        role=role,
        content=_text([block for block in blocks if isinstance(block, TextBlock)]),
        tool_calls=calls or None,
        reasoning_content=reasoning or None,
    )


def _text(content: str | Sequence[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(block.text for block in content)
