"""Answers: the text generated so far, with tokens, candidate counts and log-probabilities."""

from collections.abc import Collection
from typing import Any, Literal

from mink_local.generation.call_formats import OPEN
from mink_local.generation.request import Request
from mink_local.generation.text import ReasoningSplitter, ReasoningState
from mink_local.generation.tool_calls import ToolCallDelta, ToolParser, whole_calls

FinishReason = Literal["stop", "length", "interrupted", "overflow", "error"]
TopLogprobs = tuple[tuple[int, float], ...]


class Piece(str):
    """The text that one step adds to an answer, possibly empty, with details of the step.

    A piece without a token releases text that was held back.

    Attributes:
        token: Id of the sampled token, or None.
        k: Number of candidates in the step; 0 if the token was forced or there is none.
        is_end_token: Whether the token ends the answer and is not part of it.
        logprob: Log-probability in nats; see `SamplingParams.logprobs`.
        top_logprobs: Pairs of token id and log-probability, most probable first.
    """

    token: int | None = None
    k: int = 0
    is_end_token: bool = False
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()


class Answer:
    """The answer to a request; it grows as it is generated.

    Attributes:
        request: The request.
        index: Index of the request among those submitted together.
        seed: Seed used for sampling.
        prompt_tokens: Length of the prompt in tokens.
        evaluated_tokens: Number of prompt tokens that were not in the KV cache.
        reasoning_state: Whether the text begins inside reasoning, may begin with it, or has none.
        call_marks: What the model writes before tool calls.
        text: The text so far.
        tokens: Ids of the tokens so far, without the one that ends the answer.
        k: Number of candidates for each of `tokens`; 0 if it was forced, not sampled.
        reasoning_cut: Whether `SamplingParams.reasoning_budget` ended the reasoning.
        logprobs: Log-probability of each of `tokens` in nats, if requested (`SamplingParams.logprobs`).
        top_logprobs: For each of `tokens`, the most probable ones as (token id, log-probability) pairs.
        prompt_logprobs: Log-probability of each prompt token, None for the first, if requested
            (`SamplingParams.prompt_logprobs`).
        prompt_top_logprobs: For each prompt token, the most probable ones; none for the first.
        finish_reason: "stop" (ended by the model, a stop string or a stop token), "length" (max_tokens, or
            the context is full), "interrupted", "overflow" (the prompt does not fit into the context),
            "error" (see `error`); None while unfinished.
        stopped_by: The request's stop string or stop token that ended the answer, if any.
        error: What went wrong and what to do, if finish_reason is "error".
        no_token_left: Whether the error is that the request's constraints excluded every token.
        seconds: Time from getting a slot to the end.
    """

    def __init__(self, request: Request, index: int = 0) -> None:
        self.request = request
        self.index = index
        self.seed = 0
        self.prompt_tokens = 0
        self.evaluated_tokens = 0
        self.reasoning_state: ReasoningState = "text"
        self.call_marks: Collection[str] = (OPEN,)
        self.text = ""
        self.tokens: list[int] = []
        self.k: list[int] = []
        self.reasoning_cut = False
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []
        self.prompt_logprobs: list[float | None] = []
        self.prompt_top_logprobs: list[TopLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        self.error: str | None = None
        self.no_token_left = False
        self.seconds = 0.0
        self._message: tuple[str, dict[str, Any]] = "", {"role": "assistant", "content": ""}

    @property
    def n_tokens(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts under OpenAI's names: prompt_tokens, completion_tokens, total_tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.n_tokens,
            "total_tokens": self.prompt_tokens + self.n_tokens,
        }

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer, without tags; empty if there is none."""
        return str(self.message.get("reasoning_content", ""))

    @property
    def content(self) -> str:
        """The text without reasoning and tool calls."""
        return str(self.message["content"])

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """Calls of the request's tools, in OpenAI's message format."""
        return list(self.message.get("tool_calls", ()))

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an assistant message."""
        text, message = self._message
        if text != self.text:  # the same text's calls keep their ids
            message = self._parsed()
            self._message = self.text, message
        return message

    def _parsed(self) -> dict[str, Any]:
        splitter = ReasoningSplitter(self.reasoning_state)
        parts = [*splitter.feed(self.text), *splitter.end()]
        reasoning = "".join(part.text for part in parts if part.is_reasoning)
        content = "".join(part.text for part in parts if not part.is_reasoning)
        calls = []
        if self.request.tools:
            parser = ToolParser(self.request.tools, self.call_marks)
            events = [*parser.feed(content), *parser.end()]
            content = "".join(event for event in events if isinstance(event, str))
            calls = whole_calls(event for event in events if isinstance(event, ToolCallDelta))
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return message

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.index}: {self.n_tokens} tokens, "
            f"{self.finish_reason or 'not finished'}, {self.text!r}>"
        )
