"""Chat: messages and tools as the engine takes them, and answers as messages and usage."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal

from msgspec import UNSET, UnsetType, convert

from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.text import ReasoningSplitter, TextPart
from mink_local.generation.tool_calls import (
    HERMES,
    LLAMA,
    CallForm,
    ToolCallDelta,
    ToolParser,
    calls_grammar,
    form_of,
    merged,
    whole_calls,
)
from mink_local.llama.constraints import Constraints
from mink_local.serve.protocol.fields import ChatRequest, NamedToolChoice
from mink_local.serve.protocol.responses import (
    ApiError,
    AssistantMessage,
    CompletionTokensDetails,
    FunctionCall,
    MessageDelta,
    PromptTokensDetails,
    ResponseToolCall,
    TokenUsage,
)

Message = Mapping[str, Any]

_INSTRUCTIONS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> \
XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""  # as in Qwen's templates


def prepare_chat(model: Model, chat: ChatRequest, params: SamplingParams) -> Request:
    """Return a chat request for the engine.

    If the template has no tools, or writes calls in an unknown form, a system message shows them, and calls
    are text in the form of Hermes. A switch for reasoning is off under a grammar, which leaves no room for
    reasoning.

    Args:
        model: The model.
        chat: The request.
        params: Its sampling parameters.

    Raises:
        ApiError: A grammar is needed, and cannot be made from the tools' parameters.
    """
    form = form_of(model.chat_template) if model.supports_tools and model.chat_template else None
    tools = chat.template_tools()
    messages: Sequence[Message] = chat.template_messages()
    if form is None:
        messages = _calls_as_text(messages)
    elif form is LLAMA:
        messages = list(_one_call_each(messages))
    if form is None and tools:
        messages = _with_instructions(messages, tools)
    if chat.has_call_grammar:
        constraints, grammar = params.constraints or Constraints(), _grammar(chat, form or HERMES)
        params = replace(params, constraints=replace(constraints, grammar=grammar, json_schema=None))
    thinking = None
    if model.has_thinking_switch:
        thinking = False if params.has_grammar else chat.enable_thinking
    return Request(
        messages,
        params,
        thinking,
        chat.prefix_tokens or (),
        tools=tools if form else (),
        template_kwargs=chat.template_kwargs,
    )


def _grammar(request: ChatRequest, form: CallForm) -> str:
    """Return the grammar of a forced call, or of a call or an answer that conforms to a schema.

    It allows several calls only if the client asks for them: a small model does not find the end. It leaves
    no room for reasoning.
    """
    choice = request.tool_choice
    answer = None if request.forces_call else request.answer_schema
    parameters = {
        tool.function.name: tool.function.parameters or {}
        for tool in request.tools or ()
        if not isinstance(choice, NamedToolChoice) or tool.function.name == choice.function.name
    }
    is_parallel = request.parallel_tool_calls is True and not isinstance(choice, NamedToolChoice)
    try:
        return calls_grammar(form, parameters, is_parallel=is_parallel, answer=answer)
    except ValueError as error:
        raise ApiError(400, f"the tools cannot be made into a grammar: {error}", param="tools") from None


def _calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls and results written into contents, in the form of Hermes."""
    texts: list[Message] = []
    for is_result, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        if is_result:
            results = [f"<tool_response>\n{message['content']}\n</tool_response>" for message in group]
            texts.append({"role": "user", "content": "\n".join(results)})
            continue
        for message in map(dict, group):
            calls = [call["function"] for call in message.pop("tool_calls", ())]
            written = [HERMES.write(call["name"], _json(call["arguments"])) for call in calls]
            message["content"] = "\n".join(filter(None, [message["content"], *written]))
            texts.append(message)
    return texts


def _json(arguments: str | Mapping[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_instructions(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages with the tools at the end of the system message."""
    listed = _INSTRUCTIONS.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": listed}, *messages]
    return [{**messages[0], "content": f"{messages[0]['content']}\n\n{listed}"}, *messages[1:]]


def _one_call_each(messages: Sequence[Message]) -> Iterator[Message]:
    """Yield the messages with one call in each, and its result after it, as LLaMA-3's template wants them."""
    waiting: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool" and waiting:
            ids = [call["tool_calls"][0].get("id") for call in waiting]
            result_of = message.get("tool_call_id")
            yield waiting.pop(ids.index(result_of) if result_of in ids else 0)
            yield message
            continue
        yield from waiting
        waiting = [{**message, "tool_calls": [call]} for call in message.get("tool_calls", ())]
        if not waiting:
            yield message
    yield from waiting


def message_builder(chat: ChatRequest, answer: Answer) -> "MessageBuilder":
    """Return the builder for the message of an answer to a chat request."""
    state = "text" if chat.reasoning_format == "none" else answer.reasoning_state
    return MessageBuilder(ReasoningSplitter(state), tool_parser(chat, answer.call_marks))


def tool_parser(chat: ChatRequest, marks: Collection[str]) -> ToolParser | None:
    """Return a parser for an answer to a chat request; None if the answer is text."""
    if not chat.usable_tools:
        return None
    return ToolParser(chat.template_tools(), marks, is_parallel=chat.parallel_tool_calls is not False)


class MessageBuilder:
    """Makes a message, or the deltas of a stream, from the pieces of an answer.

    Args:
        splitter: Separates reasoning from the answer.
        parser: Separates tool calls from the answer's text; None if there are none.

    Attributes:
        n_reasoning: Number of tokens of reasoning so far.
    """

    def __init__(self, splitter: ReasoningSplitter, parser: ToolParser | None) -> None:
        self.n_reasoning = 0
        self._splitter = splitter
        self._parser = parser
        self._text = self._reasoning = ""
        self._calls: list[ToolCallDelta] = []

    def skip(self, text: str) -> None:
        """Take the beginning of the message, which the client has already."""
        self.add(Piece(text))
        self.delta()

    def add(self, piece: Piece) -> None:
        """Take a piece of the answer."""
        self._add(self._splitter.feed(piece))
        self.n_reasoning += piece.token is not None and self._splitter.in_reasoning

    def end(self, finish_reason: FinishReason) -> str:
        """Take the end of the answer; return why the message has ended: "tool_calls" if with calls."""
        self._add(self._splitter.end())
        self._add_events(self._parser.end() if self._parser else ())
        has_calls = self._parser is not None and self._parser.n_calls > 0
        return "tool_calls" if has_calls and finish_reason == "stop" else finish_reason

    def delta(self) -> MessageDelta:
        """Return what was added since the last delta, perhaps nothing."""
        delta = MessageDelta(content=self._text or UNSET)
        self._describe(delta, [_call_delta(call) for call in merged(self._calls)])
        self._text = self._reasoning = ""
        self._calls = []
        return delta

    def message(self) -> AssistantMessage:
        """Return the whole message, if no delta was taken of it."""
        message = AssistantMessage(content=self._text or (None if self._calls else ""))
        self._describe(message, convert(whole_calls(self._calls), list[ResponseToolCall]))
        return message

    def _describe(self, message: MessageDelta, calls: list[ResponseToolCall]) -> None:
        """Add the reasoning and the calls to a message."""
        if self._reasoning:
            message.reasoning_content = message.reasoning = self._reasoning
        if calls:
            message.tool_calls = calls

    def _add(self, parts: Iterable[TextPart]) -> None:
        for part in parts:
            if part.is_reasoning:
                self._reasoning += part.text
            else:
                self._add_events(self._parser.feed(part.text) if self._parser else [part.text])

    def _add_events(self, events: Iterable[str | ToolCallDelta]) -> None:
        for event in events:
            if isinstance(event, str):
                self._text += event
            else:
                self._calls.append(event)


def _call_delta(delta: ToolCallDelta) -> ResponseToolCall:
    function = FunctionCall(name=delta.name or UNSET, arguments=delta.arguments)
    kind: Literal["function"] | UnsetType = "function" if delta.id else UNSET
    return ResponseToolCall(index=delta.index, id=delta.id or UNSET, type=kind, function=function)


def usage_of(prompts: Sequence[Sequence[Answer]], n_reasoning: int) -> TokenUsage:
    """Return the numbers of tokens: a prompt with several answers counts once.

    Args:
        prompts: For each prompt its answers.
        n_reasoning: Tokens of reasoning.
    """
    n_prompt = sum(answers[0].prompt_tokens for answers in prompts)
    n_evaluated = sum(max(answer.evaluated_tokens for answer in answers) for answers in prompts)
    n_generated = sum(answer.n_tokens for answers in prompts for answer in answers)
    return TokenUsage(
        prompt_tokens=n_prompt,
        completion_tokens=n_generated,
        total_tokens=n_prompt + n_generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=n_prompt - n_evaluated),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=n_reasoning),
    )
