"""Tool calling: what the model is told of the tools, what it is made to write, and how calls are found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mink_local.serve.tool_calls import ToolParser

if TYPE_CHECKING:
    from mink_local.serve.protocol import ChatRequest


@dataclass(frozen=True)
class ToolPlan:
    """What a chat request with tools changes about its prompt, its constraints and its answer.

    Attributes:
        messages: The prompt's messages.
        tools: The tools for the chat template.
        grammar: A grammar that makes the answer a call, if one is forced. It leaves no room for reasoning:
            the template is told to leave that out, and the whole answer is text for the parser.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    grammar: str | None = None
    names: Sequence[str] = ()
    is_parallel: bool = True

    def parser(self) -> ToolParser | None:
        """Return a parser for one answer; None if no call is expected."""
        raise NotImplementedError


def plan_tools(request: "ChatRequest", chat_template: str | None, supports_tools: bool) -> ToolPlan:
    """Decide how a chat request's tools are shown to the model and its calls are found.

    Not quick if the tools have large schemas: not for the event loop.

    Args:
        request: The request, which `protocol.parse` has checked.
        chat_template: The source of the model's chat template.
        supports_tools: Whether the template shows tools.

    Raises:
        ApiError: A tool's parameters are no object, or cannot be made into a grammar and a call is forced.
    """
    raise NotImplementedError
