"""Requests to /v1/responses."""

from collections.abc import Iterator, Sequence
from itertools import takewhile
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
    MAX_TOOLS,
    NO_TOOLS,
    ONE_ANSWER,
    TEXT_FORMATS,
    TEXT_ONLY,
    TOOL_CHOICES,
    AnswerFormat,
    Fields,
    Name,
    ReasoningOptions,
    SamplingFields,
    Schema,
    ToolName,
)


class TextFormat(AnswerFormat, frozen=True):
    """What the answer's text is; the response repeats it."""

    name: str | None = None
    strict: bool | None = None


class TextOptions(Fields, frozen=True):
    """Options of the answer's text."""

    format: TextFormat | None = None


class ResponseTool(Fields, frozen=True):
    """A function that the model may call, or a namespace of functions.

    Attributes:
        tools: The functions of a namespace; the model sees them as `namespace.function`.
    """

    type: Literal["function", "namespace"]
    name: ToolName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None
    tools: "Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None" = None

    def __post_init__(self) -> None:
        if any(tool.type == "namespace" for tool in self.tools or ()):
            raise ValueError("a namespace may have functions only")


class ChosenFunction(Fields, frozen=True):
    """The function that the model must call."""

    type: Literal["function"]
    name: Name


class ContentItem(Fields, frozen=True):
    """A part of a message or of reasoning: a text."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text"]
    text: str | None = None
    refusal: str | None = None

    def __post_init__(self) -> None:
        name = "refusal" if self.type == "refusal" else "text"
        if getattr(self, name) is None:
            raise ValueError(f"{name} is missing")


class MessageItem(Fields, frozen=True, tag="message"):
    """A message; an item without a type is one. Several texts are joined by line breaks."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[ContentItem], Meta(max_length=1024)]


class CallItem(Fields, frozen=True, tag="function_call"):
    """A call of a function.

    Attributes:
        namespace: The function's, if it has one.
        arguments: JSON.
    """

    call_id: str
    name: Name
    namespace: str | None = None
    arguments: str | None = None


class OutputItem(Fields, frozen=True, tag="function_call_output"):
    """What a function has returned.

    Attributes:
        call_id: The call's.
    """

    call_id: str
    output: str | list[ContentItem]


class ReasoningItem(Fields, frozen=True, tag="reasoning"):
    """The assistant's reasoning."""

    content: list[ContentItem] | None = None


Item = MessageItem | CallItem | OutputItem | ReasoningItem


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`.

    Attributes:
        input: A text, or items.
        instructions: A system message before the input.
        tools: Functions that the model may call.
        tool_choice: With `required` or a function, the answer is a valid call.
        parallel_tool_calls: Whether an answer may have several calls.
        text: What the answer is.
        reasoning: `effort: none` switches reasoning off, anything else on.
        chat_template_kwargs: Variables of the chat template.
        metadata: Up to the client; the response has it too.
    """

    refused = (
        SamplingFields.refused
        | ONE_ANSWER
        | {
            "previous_response_id": "this server stores no responses: send the whole conversation as input",
            "conversation": "this server stores no conversations: send the whole conversation as input",
            "background": "read the response as a stream",
            "prompt": "this server stores no prompts: send the text as instructions and input",
        }
    )
    instead: ClassVar = {
        "input.content.type": TEXT_ONLY,
        "input.output.type": TEXT_ONLY,
        "input.role": "use system, developer, user or assistant; a tool's result is a function_call_output",
        "input.type": "only message, function_call, function_call_output and reasoning items are supported",
        "text.format.type": TEXT_FORMATS,
        "tool_choice": TOOL_CHOICES,
        "tool_choice.type": TOOL_CHOICES,
        "tools.type": NO_TOOLS,
        "tools.tools.type": NO_TOOLS,
    }

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=2048)]
    instructions: str | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def normalise(cls, fields: dict[str, Any]) -> None:
        items = fields.get("input")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("type") is None:
                item["type"] = "message"

    def chat(self) -> ChatRequest:
        """Return the same request to chat completions. Raises ApiError; see `places`."""
        choice: Any = self.tool_choice
        if isinstance(choice, ChosenFunction):
            choice = NamedToolChoice(function=NamedFunction(name=choice.name))
        functions = [
            FunctionDefinition(name=name, description=tool.description, parameters=tool.parameters)
            for name, _, tool, _ in self.named_tools()
        ]
        return chat_request(
            self,
            messages=[message for message, _ in self._messages()],
            tools=[FunctionTool(function=function) for function in functions],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning=self.reasoning,
            chat_template_kwargs=self.chat_template_kwargs,
            response_format=self.text and self.text.format,
        )

    @property
    def places(self) -> dict[str, str]:
        """Where the client gave the fields of the chat request."""
        messages = {f"messages[{i}]": path for i, (_, path) in enumerate(self._messages())}
        tools = tool_places([path for *_, path in self.named_tools()], "parameters")
        return messages | tools | {"messages": "input", "response_format": "text.format"}

    def named_tools(self) -> Iterator[tuple[str, str | None, ResponseTool, str]]:
        """Yield the functions: the name that the model sees, the namespace, the function, and its path."""
        for i, tool in enumerate(self.tools or ()):
            if tool.type == "function":
                yield tool.name, None, tool, f"tools[{i}]"
            for j, function in enumerate(tool.tools or ()):
                yield f"{tool.name}.{function.name}", tool.name, function, f"tools[{i}].tools[{j}]"

    def _messages(self) -> Iterator[tuple[ChatMessage, str]]:
        """Yield the messages of the chat request, each with its place here.

        Reasoning, a message and calls of the assistant's belong to one message. What the system says first is
        one message: Codex sends several, and many templates take one.
        """
        items: Sequence[Item] = (
            [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        )
        first = [*takewhile(lambda item: getattr(item, "role", "") in ("system", "developer"), items)]
        texts = [_text(item.content) for item in first if isinstance(item, MessageItem)]
        if system := [*filter(None, [self.instructions, *texts])]:
            yield (
                ChatMessage(role="system", content="\n\n".join(system)),
                "input" if texts else "instructions",
            )
        turn: list[Item] = []  # of the assistant's
        for i, item in enumerate(items[len(first) :], len(first)):
            is_turn = isinstance(item, CallItem | ReasoningItem) or getattr(item, "role", "") == "assistant"
            is_second = isinstance(item, MessageItem) and any(isinstance(one, MessageItem) for one in turn)
            if turn and (is_second or not is_turn):
                yield _turn(turn), f"input[{i - 1}]"
                turn = []
            if is_turn:
                turn.append(item)
            elif isinstance(item, MessageItem):
                yield ChatMessage(role=item.role, content=_text(item.content)), f"input[{i}]"
            elif isinstance(item, OutputItem):
                content = _text(item.output)
                yield ChatMessage(role="tool", tool_call_id=item.call_id, content=content), f"input[{i}]"
        if turn:
            yield _turn(turn), f"input[{len(items) - 1}]"


def _turn(items: Sequence[Item]) -> ChatMessage:
    """Return the assistant's reasoning, message and calls as one message."""
    calls = []
    for item in items:
        if isinstance(item, CallItem):
            name = f"{item.namespace}.{item.name}" if item.namespace else item.name
            function = CalledFunction(name=name, arguments=item.arguments)
            calls.append(ToolCall(id=item.call_id, function=function))
    reasoning = [_text(item.content) for item in items if isinstance(item, ReasoningItem)]
    content = [_text(item.content) for item in items if isinstance(item, MessageItem)]
    return ChatMessage(
        role="assistant",
        content="".join(content),
        tool_calls=calls or None,
        reasoning_content="\n".join(filter(None, reasoning)) or None,
    )


def _text(content: str | Sequence[ContentItem] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part.text or part.refusal or "" for part in content)
