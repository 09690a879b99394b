"""Requests for answers to conversations and texts: those of /v1/chat/completions and /v1/completions.

Other protocols' requests become a `ChatRequest`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from mink_local.serve.bodies import ApiError
from mink_local.serve.request.fields import (
    MAX_TOOLS,
    NO_TOOLS,
    TEXT_FORMATS,
    TEXT_ONLY,
    TOOL_CHOICES,
    AnswerFormat,
    Fields,
    Name,
    ReasoningOptions,
    SamplingFields,
    Schema,
    TemplateVariables,
    TokenId,
    TokenIds,
    ToolName,
    TopLogprobsCount,
)
from mink_local.serve.request.parsing import with_sampler_fields


class TextPart(Fields, frozen=True):
    """A text in a message's content."""

    type: Literal["text", "input_text", "output_text"]
    text: str


def joined(content: str | list[Any] | None) -> str:
    """Return the text of a message's content: that of its parts, joined by line breaks."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text for part in content or ())


class CalledFunction(Fields, frozen=True):
    """A function and the arguments with which the model called it, as JSON text or as an object."""

    name: Name
    arguments: str | dict[str, Any] | None = None


class ToolCall(Fields, frozen=True, kw_only=True, omit_defaults=False):
    """A call in an assistant's message."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Fields, frozen=True):
    """A message of a conversation.

    Attributes:
        role: `developer` is the same as `system`.
        content: Required unless the role is `assistant`. Several texts are joined by line breaks.
        name: The name of the tool whose result this is.
        tool_calls: The calls that the assistant made.
        tool_call_id: The call whose result this is.
        reasoning_content: The assistant's reasoning.
        reasoning: The same as `reasoning_content`.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Meta(max_length=1024)] | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None

    def __post_init__(self) -> None:
        if self.role != "assistant" and self.content is None:
            raise ValueError("content is missing")

    def for_template(self) -> dict[str, Any]:
        """Return the message for a chat template: its content is a text."""
        message: dict[str, Any] = msgspec.to_builtins(self) | {"content": joined(self.content)}
        if self.role == "developer":
            message["role"] = "system"
        if reasoning := message.pop("reasoning", None):
            message["reasoning_content"] = message.get("reasoning_content") or reasoning
        return message


class FunctionDefinition(Fields, frozen=True):
    """A function that the model may call.

    Attributes:
        parameters: A JSON schema of type `object`.
        strict: Whether arguments conform to it, if the model's calls begin with a tag. Those of a forced call
            do anyway.
    """

    name: ToolName
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class FunctionTool(Fields, frozen=True, kw_only=True, omit_defaults=False):
    """A tool that the model may call; only functions are supported."""

    type: Literal["function"] = "function"
    function: FunctionDefinition


class NamedFunction(Fields, frozen=True):
    """The name of a function."""

    name: Name


class NamedToolChoice(Fields, frozen=True):
    """The tool that the model must call."""

    function: NamedFunction
    type: Literal["function"] = "function"


class ResponseFormat(AnswerFormat, frozen=True):
    """What an answer is: any text, any JSON object, or JSON that conforms to a schema."""

    missing = "json_schema"


class StreamOptions(Fields, frozen=True):
    """Options of a stream.

    Attributes:
        include_usage: Whether a last chunk has `usage` and `timings`.
    """

    include_usage: bool | None = None


class ChoicesRequest(SamplingFields, frozen=True, kw_only=True):
    """The fields of the endpoints whose responses have choices.

    Attributes:
        stream_options: Options of a stream.
        n: Number of answers; their seeds are consecutive.
        return_tokens: Whether choices have `tokens`.
        response_format: What the answer is: text, JSON, or JSON that conforms to a schema.
    """

    instead: ClassVar = {"response_format.type": TEXT_FORMATS}

    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=64)] | None = None
    return_tokens: bool | None = None
    response_format: ResponseFormat | None = None

    def constraints(self) -> Iterator[tuple[str, Any, str]]:
        schema, place = self.response_format.found if self.response_format else (None, "")
        if schema is not None:
            yield "json_schema", schema, f"response_format.{place}"
        yield from super().constraints()

    @property
    def n_answers(self) -> int:
        """Number of answers."""
        return self.n or 1


class ChatRequest(ChoicesRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/chat/completions`.

    Attributes:
        messages: If the last one is the assistant's, the answer continues it.
        logprobs: Whether to return log-probabilities: the model's own, at temperature 1, before the cut.
        top_logprobs: Number of most probable tokens to return for each token, with `logprobs`.
        tools: Functions that the model may call.
        tool_choice: With `required` or a named tool, a grammar makes the answer a valid call.
        parallel_tool_calls: Whether an answer may have several calls.
        reasoning_effort: `none` switches reasoning off, anything else on; chat templates get it too.
        reasoning: Its `effort` is the same.
        reasoning_format: `none` leaves `<think>…</think>` in the content.
        chat_template_kwargs: Variables of the chat template; `enable_thinking` is the switch for reasoning.
        prefix_tokens: Token ids with which the answer begins; it continues from there.
    """

    instead = ChoicesRequest.instead | {
        "messages.content.type": TEXT_ONLY,
        "messages.role": "use system, developer, user, assistant or tool",
        "messages.tool_calls.type": "write the call and its result as text",
        "tools.type": NO_TOOLS,
        "tool_choice": TOOL_CHOICES,
        "tool_choice.type": TOOL_CHOICES,
    }

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=2048)]
    logprobs: bool | None = None
    top_logprobs: TopLogprobsCount | None = None
    tools: Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    reasoning: ReasoningOptions | None = None
    reasoning_format: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    prefix_tokens: TokenIds | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = set[str]()
        for i, tool in enumerate(self.tools or ()):
            function, path = tool.function, f"tools[{i}].function"
            if function.name in names:
                raise ApiError(400, f"there are two tools {function.name!r}", param=f"{path}.name")
            names.add(function.name)
            if (function.parameters or {}).get("type", "object") != "object":
                path = f"{path}.parameters.type"
                raise ApiError(400, f"{path} must be object, for tool {function.name!r}", param=path)

    @property
    def places(self) -> dict[str, str]:
        return ({"grammar": "tools"} if self.tools else {}) | super().places

    @property
    def has_strict_tools(self) -> bool:
        """Whether arguments are to conform to a schema although no call is forced."""
        is_strict = any(tool.function.strict for tool in self.tools or ())
        return is_strict and self.tool_choice in (None, "auto")

    @property
    def effort(self) -> str | None:
        """How much to reason, in words."""
        return self.reasoning_effort or (self.reasoning.effort if self.reasoning else None)

    @property
    def enable_thinking(self) -> bool | None:
        """The switch for reasoning, or None if the client leaves it to the model."""
        given: bool | None = (self.chat_template_kwargs or {}).get("enable_thinking")
        return self.effort != "none" if given is None and self.effort else given

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Variables of the chat template, besides that switch."""
        given = dict(self.chat_template_kwargs or {})
        if self.effort not in (None, "", "none"):
            given.setdefault("reasoning_effort", self.effort)
        return {name: value for name, value in given.items() if name != "enable_thinking"}

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to return for each token, or None for no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(ChoicesRequest, frozen=True, kw_only=True):
    """Body of `POST /v1/completions`.

    Attributes:
        prompt: A text, token ids, or a list of either.
        suffix: The text after the gap that the answer fills, for models trained for that; the prompt is the
            text before it.
        echo: Whether the answer begins with the prompt; with `logprobs`, with the prompt's log-probabilities.
        logprobs: Number of most probable tokens to return for each token.
    """

    prompt: str | list[str | TokenId | TokenIds]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: TopLogprobsCount | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.prompt, list) and len({type(part) for part in self.prompt}) != 1:
            raise ApiError(400, "prompt must be a text, token ids, or a list of either", param="prompt")
        if self.suffix and (self.echo or not all(isinstance(prompt, str) for prompt in self.prompts())):
            raise ApiError(400, "suffix needs a prompt that is text, and no echo", param="suffix")
        if not all(self.prompts()) and not self.suffix:
            raise ApiError(400, "prompt is empty", param="prompt")

    @property
    def logprobs_count(self) -> int | None:
        """Number of most probable tokens to return for each token, or None for no log-probabilities."""
        return self.logprobs

    @property
    def n_answers(self) -> int:
        return len(self.prompts()) * super().n_answers

    @property
    def places(self) -> dict[str, str]:
        return super().places | ({"n": "prompt"} if len(self.prompts()) > 1 else {})

    def prompts(self) -> list[str | list[int]]:
        """Return the prompts: texts or lists of token ids."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and isinstance(self.prompt[0], int):
            return [self.prompt]  # type: ignore[list-item]  # `__post_init__` made sure that all are ints
        return self.prompt  # type: ignore[return-value]


def chat_request(sampling: SamplingFields, tools: Sequence[FunctionDefinition], **fields: Any) -> ChatRequest:
    """Return a chat request with the sampling fields of another request. Raises ApiError."""
    names = with_sampler_fields(SamplingFields).__struct_fields__
    given = {name: getattr(sampling, name) for name in names} | fields
    functions = [FunctionTool(function=tool) for tool in tools]
    return with_sampler_fields(ChatRequest)(**given, tools=functions)


def chat_message(
    role: Literal["system", "user", "assistant"],
    text: str,
    reasoning: Iterable[str],
    calls: Iterable[tuple[str, str, Any]],
) -> ChatMessage:
    """Return a message, given the ids, names and arguments of its calls."""
    made = [
        ToolCall(id=call_id, function=CalledFunction(name=name, arguments=arguments))
        for call_id, name, arguments in calls
    ]
    return ChatMessage(
        role=role,
        content=text,
        tool_calls=made or None,
        reasoning_content="\n".join(filter(None, reasoning)) or None,
    )


def places_of(tools: Iterable[str], parameters: str) -> dict[str, str]:
    """Return where the tools of a chat request are, given their paths and a schema's name."""
    places = {}
    for i, path in enumerate(tools):
        places[f"tools[{i}].function.parameters"] = f"{path}.{parameters}"
        places[f"tools[{i}].function"] = path
    return places
