"""POST /v1/responses: OpenAI's newer interface, whose answers are lists of items. Nothing is stored."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from mink_local.generation.answer import Answer, Piece
from mink_local.serve.endpoints.exchange import Exchange, NamedEventsForm
from mink_local.serve.protocol.fields import (
    NO_TOOLS,
    TEXT_FORMATS,
    TEXT_ONLY,
    AnswerFormat,
    ChatRequest,
    Fields,
    Name,
    ReasoningOptions,
    SamplingFields,
    Schema,
    ToolName,
    as_chat,
    function_tool,
    naming,
    tool_names,
)
from mink_local.serve.protocol.responses import ApiError, Output, Timings, TokenUsage
from mink_local.serve.service import Service

Json = dict[str, Any]


class TextFormat(AnswerFormat, frozen=True):
    """The form of the answer's text."""

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
    tools: "Annotated[list[ResponseTool], Meta(max_length=128)] | None" = None

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
        self.require("refusal" if self.type == "refusal" else "text")


class InputItem(Fields, frozen=True):
    """A message, a call of a function, its output, or reasoning.

    Attributes:
        type: `message` if it is left out.
        role: Of a message.
        content: Of a message or of reasoning.
        call_id: Of a call and its output.
        name: The function that is called.
        namespace: The function's, if it has one.
        arguments: The call's, as JSON.
        output: What the function has returned.
        summary: Of reasoning; it is not used.
    """

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Annotated[list[ContentItem], Meta(max_length=1024)] | None = None
    call_id: str | None = None
    name: Name | None = None
    namespace: str | None = None
    arguments: str | None = None
    output: str | list[ContentItem] | None = None
    summary: list[Any] | None = None
    id: str | None = None
    status: str | None = None

    def __post_init__(self) -> None:
        needed = {
            "message": ("role", "content"),
            "function_call": ("call_id", "name", "arguments"),
            "function_call_output": ("call_id", "output"),
        }
        self.require(*needed.get(self.type, ()))


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of `POST /v1/responses`; the sampling fields are those of chat completions.

    Attributes:
        input: A text, or items.
        instructions: A system message before the input.
        tools: Functions that the model may call.
        tool_choice: With `required` or a function, the answer is a valid call.
        parallel_tool_calls: Whether an answer may have several calls.
        text: The form of the answer.
        reasoning: `effort: none` switches reasoning off, anything else on.
        chat_template_kwargs: Variables of the chat template.
        max_output_tokens: Maximum length of the answer in tokens, with its reasoning.
        previous_response_id: Not supported: send the whole conversation as `input`.
    """

    instead = ChatRequest.instead | {
        "input.content.type": TEXT_ONLY,
        "input.output.type": TEXT_ONLY,
        "input.role": "use system, developer, user or assistant; a tool's result is a function_call_output",
        "input.type": "this server knows messages, function calls, their outputs and reasoning: leave it out",
        "text.format.type": TEXT_FORMATS,
        "tools.tools.type": NO_TOOLS,
    }

    input: str | Annotated[list[InputItem], Meta(min_length=1, max_length=2048)]
    instructions: str | None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        instead = {
            "previous_response_id": "this server stores no responses: send the whole conversation as input",
            "conversation": "this server stores no conversations: send the whole conversation as input",
            "background": "read the response as a stream",
            "prompt": "this server stores no prompts: send the text as instructions and input",
        }
        for name, remedy in instead.items():
            if getattr(self, name):
                message = f"{name} is not supported: {remedy}"
                raise ApiError(400, message, param=name, code="unsupported_parameter")

    def chat(self) -> ChatRequest:
        """Return the same request to chat completions. Raises ApiError."""
        body: Json = {
            "messages": [*self._messages()],
            "tools": [
                function_tool(name, tool.description, tool.parameters)
                for name, _, tool, _ in self.named_tools()
            ],
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "reasoning": self.reasoning,
        }
        if isinstance(self.tool_choice, ChosenFunction):
            body["tool_choice"] = {"type": "function", "function": {"name": self.tool_choice.name}}
        return as_chat(self, body)

    @property
    def chat_names(self) -> dict[str, str]:
        """The fields of the chat request that have other names here."""
        paths = [path for *_, path in self.named_tools()]
        return {"messages.*": "input"} | tool_names(paths, "parameters")

    def named_tools(self) -> Iterator[tuple[str, str | None, ResponseTool, str]]:
        """Yield the functions: the name that the model sees, the namespace, the function, and its path."""
        for i, tool in enumerate(self.tools or ()):
            if tool.type == "function":
                yield tool.name, None, tool, f"tools[{i}]"
            for j, function in enumerate(tool.tools or ()):
                yield f"{tool.name}.{function.name}", tool.name, function, f"tools[{i}].tools[{j}]"

    def _messages(self) -> Iterator[Json]:
        """Yield the input as messages; calls and reasoning belong to one message of the assistant's.

        What the system says first is one message: Codex sends several, and many templates take one.
        """
        items = [InputItem(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        first = [*takewhile(lambda item: item.role in ("system", "developer"), items)]
        if system := [*filter(None, [self.instructions, *(_text(item.content) for item in first)])]:
            yield {"role": "system", "content": "\n\n".join(system)}
        turn: Json = {}
        for item in items[len(first) :]:
            if item.type == "reasoning" or item.role == "assistant" or item.type == "function_call":
                turn = turn or {"role": "assistant", "content": "", "tool_calls": []}
                if item.type == "reasoning":
                    turn["reasoning_content"] = _text(item.content)
                elif item.type == "message":
                    turn["content"] += _text(item.content)
                else:
                    name = f"{item.namespace}.{item.name}" if item.namespace else item.name
                    function = {"name": name, "arguments": item.arguments}
                    turn["tool_calls"].append({"id": item.call_id, "function": function})
                continue
            if turn:
                yield turn
                turn = {}
            if item.type == "message":
                yield {"role": item.role, "content": _text(item.content)}
            else:
                yield {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
        if turn:
            yield turn


def _text(content: str | Sequence[ContentItem] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text or part.refusal or "" for part in content)


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
        k: Number of candidates that the sampler kept for each token.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: Literal["completed", "incomplete", "in_progress", "failed"]
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
    top_p: float = 1.0
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    metadata: Json
    k: list[int]


async def create_response(service: Service, request: ResponsesRequest) -> Response:
    """Answer a conversation that is given as items."""
    with naming(request.chat_names):
        return await Exchange(service, request.chat(), partial(_ResponseForm, request)).respond()


class _ResponseForm(NamedEventsForm):
    """An answer as items, each of which is opened, filled and closed in a stream."""

    def __init__(self, given: ResponsesRequest, *of_form: Any) -> None:
        super().__init__(*of_form)
        self._given = given
        self._origins: dict[str | None, Json] = {
            name: {"name": tool.name, "namespace": namespace}
            for name, namespace, tool, _ in given.named_tools()
            if namespace
        }
        self._number = 0
        self._items: list[Json] = []

    def start(self) -> bytes:
        for name in ("created", "in_progress"):
            self.send(f"response.{name}", response=self._response("in_progress"))
        return self.sent()

    def keep_alive(self) -> bytes:
        self.send("response.in_progress", response=self._response("in_progress"))
        return self.sent()

    def add(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        if piece.reasoning:
            self._grow("reasoning", "reasoning_text", piece.reasoning)
        for event in piece.events:
            if isinstance(event, str):
                self._grow("message", "output_text", event)
                continue
            if event.id:
                named = self._origins.get(event.name, {"name": event.name})
                self._open({"type": "function_call", "call_id": event.id, "arguments": ""} | named)
            if event.arguments:
                self._items[-1]["arguments"] += event.arguments
                place = self._place()
                self.send("response.function_call_arguments.delta", **place, delta=event.arguments)

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
        self._close(self.answer.finish_reason)
        is_cut = self.answer.finish_reason == "length"
        response = self._response("incomplete" if is_cut else "completed")
        if is_cut:
            response.incomplete_details = {"reason": "max_output_tokens"}
        response.completed_at = int(time.time())
        response.usage = ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details={
                "cached_tokens": usage.prompt_tokens_details.cached_tokens,
                "cache_write_tokens": 0,
            },
            output_tokens=usage.completion_tokens,
            output_tokens_details={"reasoning_tokens": usage.completion_tokens_details.reasoning_tokens},
            total_tokens=usage.total_tokens,
        )
        return response

    def _grow(self, kind: str, part: str, text: str) -> None:
        """Add a text to the open item, or open one."""
        if not self._items or self._items[-1]["type"] != kind or self._items[-1]["status"] != "in_progress":
            more: Json = {"role": "assistant"} if kind == "message" else {"summary": []}
            self._open({"type": kind, "content": []} | more)
            self._items[-1]["content"].append(_part(part))
            self.send("response.content_part.added", **self._place(0), part=_part(part))
        self._items[-1]["content"][0]["text"] += text
        logprobs: Json = {"logprobs": []} if kind == "message" else {}
        self.send(f"response.{part}.delta", **self._place(0), delta=text, **logprobs)

    def _open(self, item: Json) -> None:
        self._close("stop")
        prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[item["type"]]
        item |= {"id": f"{prefix}_{self.head.request_id}_{len(self._items)}", "status": "in_progress"}
        self._items.append(item)
        self.send("response.output_item.added", output_index=len(self._items) - 1, item=item)

    def _close(self, reason: str | None) -> None:
        """Close the open item, if there is one."""
        if not self._items or self._items[-1]["status"] != "in_progress":
            return
        item = self._items[-1]
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            self.send("response.function_call_arguments.done", **self._place(), **done)
        else:
            [part] = item["content"]
            more: Json = {"logprobs": []} if item["type"] == "message" else {}
            place = self._place(0)
            self.send(f"response.{part['type']}.done", **place, text=part["text"], **more)
            self.send("response.content_part.done", **place, part=part)
        item["status"] = "incomplete" if reason == "length" else "completed"
        self.send("response.output_item.done", output_index=len(self._items) - 1, item=item)

    def _place(self, part: int | None = None) -> Json:
        """Return where the last item is, or a part of it."""
        place = {"item_id": self._items[-1]["id"], "output_index": len(self._items) - 1}
        return place if part is None else place | {"content_index": part}

    def send(self, kind: str, **fields: Any) -> None:
        super().send(kind, sequence_number=self._number, **fields)
        self._number += 1

    def _response(
        self, status: Literal["completed", "incomplete", "in_progress", "failed"]
    ) -> ResponseObject:
        given, params = self._given, self.head.params
        form = given.text.format if given.text else None
        return ResponseObject(
            id=f"resp_{self.head.request_id}",
            created_at=self.head.created,
            status=status,
            instructions=given.instructions,
            max_output_tokens=given.max_output_tokens,
            model=self.head.model,
            output=self._items,
            parallel_tool_calls=given.parallel_tool_calls is not False,
            reasoning={"effort": given.reasoning and given.reasoning.effort, "summary": None},
            temperature=params.temperature,
            text={"format": form or {"type": "text"}},
            tool_choice=given.tool_choice or "auto",
            tools=msgspec.to_builtins(given.tools or []),
            metadata={},
            k=list(self.answer.k) if status != "in_progress" else [],
        )


def _part(kind: str) -> Json:
    """Return an empty part of an item's content."""
    return {"type": kind, "text": ""} | ({"annotations": [], "logprobs": []} if kind == "output_text" else {})
