"""From a chat request to what the engine is asked for; from its answers to messages and usage."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.reasoning import ReasoningSplitter, TextPart
from mink_local.generation.request import Request, SamplingParams
from mink_local.llama.constraints import Constraints
from mink_local.serve.protocol import ChatRequest
from mink_local.serve.tool_calls import ToolCallDelta, ToolParser, whole_calls
from mink_local.serve.tools import ToolPlan

Json = dict[str, Any]


def engine_request(
    asked: ChatRequest, params: SamplingParams, plan: ToolPlan, has_thinking_switch: bool
) -> Request:
    """Return a chat request as the engine takes it.

    Args:
        asked: The request.
        params: Its sampling options.
        plan: What its tools change.
        has_thinking_switch: Whether the chat template has a switch for reasoning. It is off under a grammar,
            which leaves no room for reasoning.
    """
    if plan.grammar is not None:
        constraints = params.constraints or Constraints()
        params = replace(params, constraints=replace(constraints, grammar=plan.grammar, json_schema=None))
    thinking = None
    if has_thinking_switch:
        thinking = False if has_grammar(params) else asked.enable_thinking
    return Request(plan.messages, params, thinking, asked.prefix_tokens or (), tools=plan.tools)


def has_grammar(params: SamplingParams) -> bool:
    """Return whether a grammar or a JSON schema decides the form of an answer."""
    constraints = params.constraints
    return constraints is not None and (constraints.grammar or constraints.json_schema) is not None


def reasoning_state(asked: ChatRequest, params: SamplingParams, *, can_reason: bool, opened: bool) -> str:
    """Return the first state of the `ReasoningSplitter` for an answer.

    Args:
        asked: The request.
        params: Its sampling options.
        can_reason: Whether the chat template knows reasoning.
        opened: Whether the prompt ends with the start of reasoning.
    """
    if has_grammar(params) or asked.reasoning_format == "none" or not can_reason:
        return "text"
    return "reasoning" if opened else "start"


class MessageBuilder:
    """Makes the deltas of a message from the pieces of an answer.

    Args:
        splitter: Tells reasoning from the answer.
        parser: Tells calls of tools from the answer's text; None if there are none.

    Attributes:
        n_reasoning: Number of tokens of reasoning so far.
        finish_reason: Why the message has ended, "tool_calls" if with calls; None while it goes on.
    """

    def __init__(self, splitter: ReasoningSplitter, parser: ToolParser | None) -> None:
        self.n_reasoning = 0
        self.finish_reason: str | None = None
        self._splitter = splitter
        self._parser = parser
        self._text, self._reasoning = "", ""
        self._calls: list[ToolCallDelta] = []
        self._is_first = True

    def skip(self, text: str) -> None:
        """Take the beginning of the message, which the client has already."""
        for part in self._splitter.feed(text):
            if self._parser is not None and not part.is_reasoning:
                list(self._parser.feed(part.text))

    def deltas(self, piece: Piece, finish_reason: FinishReason | None) -> list[Json]:
        """Return what a piece adds to the message, perhaps nothing; the last piece has a finish_reason."""
        parts = list(self._splitter.feed(piece))
        if finish_reason is not None:
            parts += self._splitter.end()
        self.n_reasoning += piece.token is not None and self._splitter.in_reasoning
        deltas = [delta for part in parts for delta in self._of_part(part)]
        if finish_reason is not None:
            if self._parser is not None:
                deltas += self._of_answer(self._parser.end())
            is_call = self._calls and finish_reason == "stop"
            self.finish_reason = "tool_calls" if is_call else finish_reason
        if self._is_first:
            self._is_first = False
            deltas.insert(0, {"role": "assistant", "content": ""})
        return deltas

    def message(self) -> Json:
        """Return the whole message."""
        message: Json = {"role": "assistant", "content": self._text or (None if self._calls else "")}
        if self._reasoning:
            message |= _reasoning(self._reasoning)
        if self._calls:
            message["tool_calls"] = whole_calls(self._calls)
        return message

    def _of_part(self, part: TextPart) -> Iterator[Json]:
        if part.is_reasoning:
            self._reasoning += part.text
            yield _reasoning(part.text)
        else:
            yield from self._of_answer(self._parser.feed(part.text) if self._parser else [part.text])

    def _of_answer(self, pieces: Iterable[str | ToolCallDelta]) -> Iterator[Json]:
        for piece in pieces:
            if isinstance(piece, str):
                self._text += piece
                yield {"content": piece}
            else:
                self._calls.append(piece)
                yield {"tool_calls": [piece.to_json()]}


def _reasoning(text: str) -> Json:
    """Return reasoning under both names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}


def usage_of(prompts: Sequence[Sequence[Answer]], n_reasoning: int | None = None) -> Json:
    """Return OpenAI's `usage`: a prompt with several answers counts once.

    Args:
        prompts: For each prompt its answers.
        n_reasoning: Tokens of reasoning; None if there is no such thing.
    """
    n_prompt = sum(answers[0].prompt_tokens for answers in prompts)
    n_evaluated = sum(max(answer.evaluated_tokens for answer in answers) for answers in prompts)
    n_generated = sum(answer.n_tokens for answers in prompts for answer in answers)
    usage: Json = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
        "prompt_tokens_details": {"cached_tokens": n_prompt - n_evaluated},
    }
    if n_reasoning is not None:
        usage["completion_tokens_details"] = {"reasoning_tokens": n_reasoning}
    return usage
