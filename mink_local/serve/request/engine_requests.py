"""Requests as the engine takes them, and the usage of their answers."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from mink_local.errors import ConstraintError
from mink_local.generation.answer import Answer
from mink_local.generation.call_styles import (
    HERMES,
    LLAMA,
    NO_PARAMETERS,
    CallStyle,
    calls_grammar,
    style_of,
)
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams
from mink_local.generation.template import infill
from mink_local.generation.tool_calls import ToolParser
from mink_local.llama.constraints import Constraints
from mink_local.llama.guide import check
from mink_local.serve.bodies import CompletionTokensDetails, PromptTokensDetails, TokenUsage
from mink_local.serve.errors import ApiError
from mink_local.serve.request.chat import ChatRequest, CompletionRequest, NamedToolChoice

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


def engine_requests(
    model: Model, request: ChatRequest | CompletionRequest, params: SamplingParams
) -> Sequence[Request]:
    """Return a request for the engine for each prompt. Raises ApiError."""
    if isinstance(request, ChatRequest):
        return [prepare_chat(model, request, params)]
    prompts = request.prompts()
    if request.suffix:
        try:
            prompts = [infill(model.weights, str(prompt), request.suffix) for prompt in prompts]
        except ValueError as error:
            message = f"{error}: put the text after the gap into the prompt"
            raise ApiError(400, message, param="suffix", code="unsupported_parameter") from None
    return [Request(prompt, params) for prompt in prompts]


def prepare_chat(model: Model, chat: ChatRequest, params: SamplingParams) -> Request:
    """Return a chat request for the engine.

    If the template has no tools, or writes calls in an unknown form, a system message shows them, and calls
    are text in the form of Hermes.

    Args:
        model: The model.
        chat: The request.
        params: Its sampling parameters.

    Raises:
        ApiError: A call is forced, and the tools' parameters cannot be kept.
    """
    style = style_of(model.chat_template) if model.supports_tools and model.chat_template else None
    tools = chat.template_tools()
    messages: Sequence[Message] = chat.template_messages()
    if style is None:
        messages = _calls_as_text(messages)
    elif style is LLAMA:
        messages = list(_one_call_each(messages))
    if style is None and tools:
        messages = _with_instructions(messages, tools)
    if chat.has_call_grammar:
        constraints, grammar = params.constraints or Constraints(), _grammar(chat, style or HERMES)
        params = replace(
            params,
            constraints=replace(constraints, grammar=grammar, json_schema=None, regex=None, choice=None),
        )
    thinking = chat.enable_thinking if model.has_thinking_switch else None
    return Request(
        messages,
        params,
        thinking,
        chat.prefix_tokens or (),
        tools=tools if style else (),
        template_kwargs=chat.template_kwargs,
        make_parser=_make_parser(chat),
        split_reasoning=chat.reasoning_format != "none",
    )


def _make_parser(chat: ChatRequest) -> Callable[[Collection[str]], ToolParser] | None:
    """Return what makes the parser of an answer to a chat request; None if it calls no tools."""
    if not chat.usable_tools:
        return None
    return partial(ToolParser, chat.template_tools(), is_parallel=chat.parallel_tool_calls is not False)


def _grammar(request: ChatRequest, style: CallStyle) -> str:
    """Return the grammar of a forced call, or of a call or an answer that conforms to a schema.

    It allows several calls only if the client asks for them: a small model does not find the end.
    """
    choice = request.tool_choice
    answer = None if request.forces_call else request.answer_schema
    parameters = {}
    for i, tool in enumerate(request.tools or ()):
        if isinstance(choice, NamedToolChoice) and tool.function.name != choice.function.name:
            continue
        schema = parameters[tool.function.name] = tool.function.parameters or NO_PARAMETERS
        try:
            check("json_schema", schema, f"tools[{i}].function.parameters")
        except ConstraintError as error:
            raise ApiError(400, str(error), param=error.place) from None
    is_parallel = request.parallel_tool_calls is True and not isinstance(choice, NamedToolChoice)
    return calls_grammar(style, parameters, is_parallel=is_parallel, answer=answer)


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


def usage_of(prompts: Sequence[Sequence[Answer]]) -> TokenUsage:
    """Return the numbers of tokens, given the answers to each prompt: a prompt counts once."""
    n_prompt = sum(answers[0].prompt_tokens for answers in prompts)
    n_evaluated = sum(max(answer.evaluated_tokens for answer in answers) for answers in prompts)
    n_generated = sum(answer.n_tokens for answers in prompts for answer in answers)
    n_reasoning = sum(answer.n_reasoning for answers in prompts for answer in answers)
    return TokenUsage(
        prompt_tokens=n_prompt,
        completion_tokens=n_generated,
        total_tokens=n_prompt + n_generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=n_prompt - n_evaluated),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=n_reasoning),
    )
