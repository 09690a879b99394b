"""POST /v1/responses: its requests, its responses, and the way from one to the other."""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType
from starlette.responses import Response

from mink_local.generation.answer import Loop
from mink_local.samplers import Chain, TopP
from mink_local.serve.bodies import ApiError, Json, Output, Timings, TokenUsage
from mink_local.serve.clients import Client
from mink_local.serve.exchange import NamedMessagesBuilder, Part, respond
from mink_local.serve.request.chat import (
    ChatMessage,
    ChatRequest,
    FunctionDefinition,
    TextPart,
    chat_message,
    chat_request,
    joined,
    places_of,
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
    TemplateVariables,
    ToolName,
)
from mink_local.serve.request.parsing import Parsed
from mink_local.serve.service import Service

Status = Literal["completed", "incomplete", "in_progress", "failed"]


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


class MessageItem(Fields, frozen=True, tag="message"):
    """A message; an item without a type is one. Several texts are joined by line breaks."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Meta(max_length=1024)]

    @property
    def message(self) -> ChatMessage:
        """The same for chat completions."""
        return ChatMessage(role=self.role, content=joined(self.content))


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

    @property
    def full_name(self) -> str:
        """The function's name as the model sees it."""
        return f"{self.namespace}.{self.name}" if self.namespace else self.name


class OutputItem(Fields, frozen=True, tag="function_call_output"):
    """What a function has returned.

    Attributes:
        call_id: The call's.
    """

    call_id: str
    output: str | list[TextPart]

    @property
    def message(self) -> ChatMessage:
        """The same for chat completions."""
        return ChatMessage(role="tool", tool_call_id=self.call_id, content=joined(self.output))


class ReasoningPart(Fields, frozen=True):
    """A text of the assistant's reasoning."""

    type: Literal["reasoning_text", "summary_text", "text"]
    text: str


class ReasoningItem(Fields, frozen=True, tag="reasoning"):
    """The assistant's reasoning."""

    content: list[ReasoningPart] | None = None


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
    chat_template_kwargs: TemplateVariables | None = None
    metadata: dict[str, str] | None = None

    @classmethod
    def normalise(cls, fields: dict[str, Any]) -> None:
        super().normalise(fields)
        items = fields.get("input")
        for item in items if isinstance(items, list) else ():
            if isinstance(item, dict) and item.get("type") is None:
                item["type"] = "message"

    def normal(self) -> ChatRequest:
        choice: Any = self.tool_choice
        if isinstance(choice, ChosenFunction):
            choice = {"function": {"name": choice.name}}
        return chat_request(
            self,
            [
                FunctionDefinition(
                    name=name, description=tool.description, parameters=tool.parameters, strict=tool.strict
                )
                for name, _, tool, _ in self.named_tools()
            ],
            messages=[*self._messages()],
            tool_choice=choice,
            parallel_tool_calls=self.parallel_tool_calls,
            reasoning=self.reasoning,
            chat_template_kwargs=self.chat_template_kwargs,
            response_format=self.text and self.text.format,
        )

    @property
    def places(self) -> dict[str, str]:
        tools = (path for *_, path in self.named_tools())
        places = places_of(tools, "parameters")
        return super().places | places | {"messages": "input", "response_format": "text.format"}

    @property
    def allows_several_calls(self) -> bool:
        """Whether an answer may have several calls: a forced one is alone unless more are asked for."""
        given = self.parallel_tool_calls
        return self.tool_choice in (None, "none", "auto") if given is None else given

    def named_tools(self) -> Iterator[tuple[str, str | None, ResponseTool, str]]:
        """Yield the functions: the name that the model sees, the namespace, the function, and its path."""
        for i, tool in enumerate(self.tools or ()):
            if tool.type == "function":
                yield tool.name, None, tool, f"tools[{i}]"
            for j, function in enumerate(tool.tools or ()):
                yield f"{tool.name}.{function.name}", tool.name, function, f"tools[{i}].tools[{j}]"

    def _messages(self) -> Iterator[ChatMessage]:
        """Yield the messages of the chat request.

        Reasoning, a message and calls of the assistant's belong to one message. What the system says first is
        one message: Codex sends several, and many templates take one.
        """
        items: Sequence[Item] = (
            [MessageItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        )
        first = [*takewhile(lambda item: getattr(item, "role", "") in ("system", "developer"), items)]
        texts = [joined(item.content) for item in first if isinstance(item, MessageItem)]
        if system := [*filter(None, [self.instructions, *texts])]:
            yield ChatMessage(role="system", content="\n\n".join(system))
        yield from map(_message, _turns(items[len(first) :]))


def _turns(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items that are one message together: several of the assistant's, with one text at most."""
    turn: list[Item] = []
    for item in items:
        goes_on = turn and _is_assistants(turn[-1]) and _is_assistants(item)
        is_second = isinstance(item, MessageItem) and any(isinstance(one, MessageItem) for one in turn)
        if turn and (is_second or not goes_on):
            yield turn
            turn = []
        turn.append(item)
    if turn:
        yield turn


def _is_assistants(item: Item) -> bool:
    return isinstance(item, CallItem | ReasoningItem) or getattr(item, "role", "") == "assistant"


def _message(turn: Sequence[Item]) -> ChatMessage:
    """Return another's item, or the assistant's reasoning, message and calls, as one message."""
    if isinstance(turn[0], MessageItem | OutputItem) and not _is_assistants(turn[0]):
        return turn[0].message
    return chat_message(
        "assistant",
        "".join(joined(item.content) for item in turn if isinstance(item, MessageItem)),
        [joined(item.content) for item in turn if isinstance(item, ReasoningItem)],
        [(item.call_id, item.full_name, item.arguments) for item in turn if isinstance(item, CallItem)],
    )


class ResponseObject(Output, kw_only=True):
    """The answer of `POST /v1/responses`.

    Attributes:
        status: `completed`, `incomplete` (cut off), `in_progress` or `failed`.
        output: Items: `reasoning`, `message`, `function_call`.
        temperature: The one that was used.
        top_p: That of the top-p that was used; 1 if none was.
        k: Number of candidates that the sampler kept for each token.
        usage: Numbers of tokens.
        loops: Where the answer repeats itself, if it does.
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
    usage: Json | None = None
    metadata: dict[str, str]
    k: list[int]
    loops: list[Loop] | UnsetType = UNSET


async def create_response(service: Service, client: Client, parsed: Parsed[ResponsesRequest]) -> Response:
    """Answer a conversation that is given as items."""
    return await respond(service, client, parsed, ItemsBuilder)


class ItemsBuilder(NamedMessagesBuilder):
    """An answer as items, each of which is opened, filled and closed in a stream."""

    request: ResponsesRequest

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        self._number = 0  # of the next message
        self._origins: dict[str | None, Json] = {
            name: {"name": tool.name, "namespace": namespace}
            for name, namespace, tool, _ in self.request.named_tools()
            if namespace
        }
        given = self.request
        echoed = {
            "instructions": given.instructions,
            "metadata": given.metadata or {},
            "text": {"format": (given.text and given.text.format) or {"type": "text"}},
            "tools": given.tools or [],
        }
        # Encoded once: several messages of a stream have them, and tools may be megabytes.
        self._echoed: Json = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in echoed.items()}

    def send_named(self, kind: str, **fields: Any) -> None:
        super().send_named(f"response.{kind}", sequence_number=self._number, **fields)
        self._number += 1

    def start(self) -> None:
        self.send_named("created", response=self._response("in_progress"))
        self.keep_alive()

    def keep_alive(self) -> None:
        self.send_named("in_progress", response=self._response("in_progress"))

    def opened(self, part: Part) -> None:
        empty = self._item(part) | ({} if part.kind == "call" else {"content": []})
        self.send_named("output_item.added", output_index=part.index, item=empty)
        if part.kind != "call":
            self.send_named("content_part.added", **self._place(part), part=_content(part))

    def grown(self, part: Part, text: str) -> None:
        self.send_named(f"{_KINDS[part.kind]}.delta", **self._place(part), delta=text, **_logprobs(part))

    def closed(self, part: Part) -> None:
        item, place, kind = self._item(part), self._place(part), f"{_KINDS[part.kind]}.done"
        if part.kind == "call":
            self.send_named(kind, **place, arguments=part.text, name=item["name"])
        else:
            self.send_named(kind, **place, text=part.text, **_logprobs(part))
            self.send_named("content_part.done", **place, part=_content(part))
        self.send_named("output_item.done", output_index=part.index, item=item)

    def end(self, usage: TokenUsage, timings: Timings) -> None:
        response = self.whole(usage, timings)
        self.send_named(response.status, response=response)

    def fail(self, error: ApiError) -> None:
        response = self._response("failed")
        response.error = {"code": error.code or "server_error", "message": str(error)}
        self.send_named("failed", response=response)

    def whole(self, usage: TokenUsage, timings: Timings) -> ResponseObject:  # noqa: ARG002
        self.close(self.answer)
        reason = {"length": "max_output_tokens", "repetition": "repetition"}.get(self.finish_reason or "")
        response = self._response("incomplete" if reason else "completed")
        if reason:
            response.incomplete_details = {"reason": reason}
        response.loops = self.answer.loops or UNSET
        response.completed_at = int(time.time())
        response.usage = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": usage.prompt_tokens_details | {"cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": usage.completion_tokens_details,
            "total_tokens": usage.total_tokens,
        }
        return response

    def _response(self, status: Status) -> ResponseObject:
        given, params = self.request, self.head.params
        return ResponseObject(
            id=f"resp_{self.head.request_id}",
            created_at=self.head.created,
            status=status,
            max_output_tokens=given.max_tokens,
            model=self.head.model,
            output=[self._item(part) for part in self.parts[self.answer]],
            parallel_tool_calls=given.allows_several_calls,
            reasoning={"effort": given.reasoning and given.reasoning.effort, "summary": None},
            temperature=params.temperature,
            tool_choice=given.tool_choice or "auto",
            top_p=_top_p(params.effective_sampler),
            k=self.answer.k if status != "in_progress" else [],
            **self._echoed,
        )

    def _item(self, part: Part) -> Json:
        """Return a part as an item."""
        has_ended = self.finish_reason is not None and part is self.parts[self.answer][-1]
        is_cut = has_ended and self.finish_reason in ("length", "repetition") and part.call is None
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


_KINDS = {"text": "output_text", "reasoning": "reasoning_text", "call": "function_call_arguments"}


def _content(part: Part) -> Json:
    """Return the text of a part as an item's content."""
    annotations: Json = {"annotations": []} if part.kind == "text" else {}
    return {"type": _KINDS[part.kind], "text": part.text} | annotations | _logprobs(part)


def _logprobs(part: Part) -> Json:
    """Return the field that the SDKs expect of a text."""
    return {"logprobs": []} if part.kind == "text" else {}


def _top_p(sampler: Any) -> float:
    """Return the p of a sampler's top-p; 1 if it has none."""
    cuts = sampler.cuts if isinstance(sampler, Chain) else [sampler]
    return next((cut.p for cut in cuts if isinstance(cut, TopP)), 1.0)
