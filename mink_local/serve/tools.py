"""Tool calling: what the model is told of the tools, and when it is made to call one."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mink_local.serve.api_errors import ApiError
from mink_local.serve.protocol import ChatRequest, FunctionTool, NamedToolChoice
from mink_local.serve.tool_calls import ToolParser
from mink_local.serve.tool_forms import HERMES, LLAMA, CallForm, calls_grammar, form_of

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


@dataclass(frozen=True)
class ToolPlan:
    """Says how a request's tools change its prompt, its constraints and its answer.

    Attributes:
        messages: The prompt's messages.
        tools: The tools for the chat template.
        grammar: A grammar that makes the answer a call if one is forced, or else, if the request has a schema
            for the answer, one of both; it comes in place of the schema. It leaves no room for reasoning:
            `enable_thinking` must be False, and the parser gets the whole text.
        names: Names of the tools that may be called.
        is_parallel: Whether an answer may have more than one call.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    grammar: str | None = None
    names: Sequence[str] = ()
    is_parallel: bool = True

    def parser(self) -> ToolParser | None:
        """Return a parser for one answer; None if the answer is text."""
        if not self.names:
            return None
        return ToolParser(self.names, is_constrained=bool(self.grammar), is_parallel=self.is_parallel)


def needs_grammar(request: ChatRequest) -> bool:
    """Return whether `plan_tools` makes a grammar, which takes seconds for the largest schemas."""
    if not request.tools or request.tool_choice == "none":
        return False
    return request.tool_choice not in (None, "auto") or request.answer_schema is not None


def plan_tools(request: ChatRequest, chat_template: str | None, supports_tools: bool) -> ToolPlan:
    """Decide how a request's tools are shown to the model, and whether it must call one.

    With tool_choice "none" the model is not shown the tools. If the template shows no tools, or has calls in
    a form that is unknown here, a system message shows them, and calls are text in the form of Hermes.

    Args:
        request: The request, as `protocol.parse` has checked it.
        chat_template: Source of the model's chat template.
        supports_tools: Whether the template shows tools.

    Raises:
        ApiError: A tool's parameters are no object, or a call is forced and they make no grammar.
    """
    form = form_of(chat_template) if supports_tools and chat_template else None
    messages: Sequence[Message] = request.template_messages()
    if form is None:
        messages = _calls_as_text(messages)
    elif form is LLAMA:
        messages = list(_one_call_each(messages))
    if not request.tools or request.tool_choice == "none":
        return ToolPlan(messages)
    _check_parameters(request.tools)
    tools = request.template_tools()
    return ToolPlan(
        _with_instructions(messages, tools) if form is None else messages,
        tools if form else (),
        _grammar(request, form or HERMES),
        [tool.function.name for tool in request.tools],
        request.parallel_tool_calls is not False,
    )


def _grammar(request: ChatRequest, form: CallForm) -> str | None:
    """Return the grammar of what the request wants: a call, or one or an answer by a schema.

    Of several calls only if the client asks for them: a small model does not find the end.
    """
    if not needs_grammar(request):
        return None
    choice = request.tool_choice
    answer = request.answer_schema if choice in (None, "auto") else None
    parameters = {
        tool.function.name: tool.function.parameters or {}
        for tool in request.tools or ()
        if not isinstance(choice, NamedToolChoice) or tool.function.name == choice.function.name
    }
    is_parallel = request.parallel_tool_calls is True and not isinstance(choice, NamedToolChoice)
    try:
        return calls_grammar(form, parameters, is_parallel=is_parallel, answer=answer)
    except ValueError as error:
        raise ApiError(400, f"no grammar can be made of the tools: {error}", param="tools") from None


def _check_parameters(tools: Sequence[FunctionTool]) -> None:
    for i, tool in enumerate(tools):
        if (tool.function.parameters or {}).get("type", "object") != "object":
            raise ApiError(
                400,
                f"the parameters of the tool {tool.function.name} must be a schema of the type object",
                param=f"tools[{i}].function.parameters.type",
            )


def _calls_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with calls and results written into contents, in the form of Hermes."""
    texts: list[Message] = []
    was_result = False
    for message in messages:
        if is_result := message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if was_result:
                result = f"{texts.pop()['content']}\n{result}"
            texts.append({"role": "user", "content": result})
        elif calls := message.get("tool_calls"):
            written = [HERMES.write(call["function"]["name"], _json(call)) for call in calls]
            content = "\n".join(filter(None, [message["content"], *written]))
            rest = {name: value for name, value in message.items() if name != "tool_calls"}
            texts.append({**rest, "content": content})
        else:
            texts.append(message)
        was_result = is_result
    return texts


def _json(call: Mapping[str, Any]) -> str:
    arguments = call["function"]["arguments"]
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
