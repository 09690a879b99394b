"""Answers: the text so far, split into reasoning, content and tool calls, and how its tokens were sampled."""

import secrets
import time
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import TYPE_CHECKING, Any, Literal

from mink_local.checks import no_attribute
from mink_local.errors import GenerationError, NoTokenLeftError
from mink_local.generation.format.text import Marks, ReasoningSplitter, StopStrings
from mink_local.generation.format.tool_calls import Part, ToolCallDelta, ToolParser, merged
from mink_local.generation.request import Request
from mink_local.llama.json_types import object_of

FinishReason = Literal["stop", "length", "repetition", "interrupted", "overflow", "error"]
TopLogprobs = tuple[tuple[int, float], ...]

_COUNTERPARTS = {  # of other libraries' attributes
    "outputs": "text; one answer is one output",
    "choices": "text or message, or as_dict()",
    "token_ids": "tokens",
    "cumulative_logprob": "sum(answer.logprobs)",
}
_LEAST_LOGPROB = -9999.0  # JSON has no infinity; OpenAI's number for it


@dataclass(frozen=True)
class Loop:
    """Where an answer repeats itself.

    Attributes:
        token: Index in the answer's tokens of the first one that is a repetition.
        in_reasoning: Whether it is reasoning.
        is_ended: Whether that ended the reasoning, or the answer (`end_loops`).
    """

    token: int
    in_reasoning: bool
    is_ended: bool


def is_reasoning(borders: Sequence[int], index: int) -> bool:
    """Return whether a token is reasoning, which begins and ends at the borders in turn."""
    return bisect(borders, index) % 2 == 1


class Piece(str):
    """The text that one step adds to an answer, possibly empty, with details of the step.

    A piece without a token releases text that was held back.

    Attributes:
        reasoning: What the text adds to the answer's reasoning, without tags.
        content: What it adds to the answer's content.
        tool_calls: What it adds to the answer's tool calls.
        parts: Content and tool calls, in the order in which the model wrote them; reasoning comes before.
        token: Id of the sampled token, or None.
        k: Number of candidates in the step; 0 if the token was forced or there is none.
        is_end_token: Whether the token ends the answer and is not part of it.
        logprob: Log-probability in nats; see `SamplingParams.logprobs`.
        top_logprobs: Pairs of token id and log-probability, most probable first.
        finish_reason: The answer's, if this is its last piece.
    """

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    parts: tuple[Part, ...] = ()
    token: int | None = None
    k: int = 0
    is_end_token: bool = False
    logprob: float | None = None
    top_logprobs: TopLogprobs = ()
    finish_reason: FinishReason | None = None


class Answer:
    """The answer to a request; it grows as it is generated.

    Attributes:
        request: The request.
        index: Index of the request among those submitted together.
        prompt_index: Index of the prompt in `generate`; elsewhere the same as `index`.
        sample: Index of the answer among the n to one prompt.
        model: Name of the model.
        seed: Seed used for sampling.
        prompt: Token ids of the prompt and of what the answer begins with (`Request.prefix`).
        evaluated_tokens: Number of prompt tokens that were not in the KV cache.
        begun: The text of the assistant's message that the answer continues, if any. It and the next are not
            part of the answer's texts, but of its `message`.
        prefix: The text of `Request.prefix`.
        tool_calls: Calls of the request's tools, in OpenAI's message format.
        has_call_grammar: Whether its calls must fit their tools' schemas, as forced and strict ones do.
        has_cut_call: Whether the answer was cut off in a call, which is left out.
        tokens: Ids of the tokens so far, without the one that ends the answer.
        n_reasoning: Number of these that are reasoning.
        phase_borders: Numbers of tokens after which reasoning began and ended, in turn; see `is_reasoning`.
        k: Number of candidates for each of `tokens`; 0 if it was forced, not sampled.
        reasoning_cut: Whether the reasoning was made to end: by `SamplingParams.reasoning_budget`, or because
            it was a loop.
        loops: Where the answer repeats itself, at most once in its reasoning and once after it: `token`, the
            index of the first token that is a repetition; `in_reasoning`; and `is_ended`, whether that ended
            the reasoning, or the answer.
        logprobs: Log-probability of each of `tokens` in nats, if requested (`SamplingParams.logprobs`).
        top_logprobs: For each of `tokens`, the most probable ones as (token id, log-probability) pairs.
        token_bytes: For every token in these two, what it writes: UTF-8, perhaps a part of a character.
        prompt_logprobs: Log-probability of each prompt token, None for the first, if requested
            (`SamplingParams.prompt_logprobs`).
        prompt_top_logprobs: For each prompt token, the most probable ones; none for the first.
        finish_reason: "stop" (ended by the model, a stop string or a stop token), "length" (max_tokens, or
            the context is full), "repetition" (a loop; see `SamplingParams.end_loops`), "interrupted",
            "overflow" (the prompt does not fit into the context),
            "error" (see `error`); None while unfinished.
        stopped_by: The request's stop string or stop token that ended the answer, if any.
        error: What went wrong, if finish_reason is "error"; its text says what to do.
        began: When generation started (not queued), as `time.perf_counter`; 0 before that.
        seconds: Seconds from then to the end.
    """

    def __init__(self, request: Request, index: int = 0, n: int = 1) -> None:
        self.request = request
        self.index = index
        self.prompt_index, self.sample = divmod(index, n)
        self.model = ""
        self.seed = 0
        self.prompt: Sequence[int] = ()
        self.evaluated_tokens = 0
        self.begun = self.prefix = Piece()
        # Texts grow in linear time.
        self._text, self._reasoning, self._content = StringIO(), StringIO(), StringIO()
        self.tool_calls: list[dict[str, Any]] = []
        self.has_call_grammar = self.has_cut_call = False
        self.tokens: list[int] = []
        self.n_reasoning = 0
        self.phase_borders: list[int] = []
        self.k: list[int] = []
        self.reasoning_cut = False
        self.loops: list[Loop] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[TopLogprobs] = []
        self.token_bytes: dict[int, bytes] = {}
        self.prompt_logprobs: list[float | None] = []
        self.prompt_top_logprobs: list[TopLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | int | None = None
        self.error: Exception | None = None
        self.began = 0.0
        self.seconds = 0.0

    @property
    def text(self) -> str:
        """The text so far, as the model wrote it."""
        return self._text.getvalue()

    @property
    def reasoning(self) -> str:
        """The reasoning before the answer, without tags; empty if there is none."""
        return self._reasoning.getvalue()

    @property
    def content(self) -> str:
        """The text without reasoning and tool calls."""
        return self._content.getvalue()

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.prompt)

    @property
    def n_tokens(self) -> int:
        """Number of tokens so far."""
        return len(self.tokens)

    def is_reasoning(self, index: int) -> bool:
        """Return whether a token was sampled as reasoning: with its closing tag, not the opening one.

        Args:
            index: The token's in `tokens`, or their number for the next one.
        """
        return is_reasoning(self.phase_borders, index)

    @property
    def no_token_left(self) -> bool:
        """Whether the answer failed because the request's constraints left no token, or took too long."""
        return isinstance(self.error, NoTokenLeftError)

    @property
    def usage(self) -> dict[str, int]:
        """Token counts under OpenAI's names: prompt_tokens, completion_tokens, total_tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.n_tokens,
            "total_tokens": self.prompt_tokens + self.n_tokens,
        }

    @property
    def message(self) -> dict[str, Any]:
        """The answer as an assistant message, whole, with what it continues."""
        whole = self.begun, self.prefix, self
        message: dict[str, Any] = {"role": "assistant", "content": "".join(part.content for part in whole)}
        if reasoning := "".join(part.reasoning for part in whole):
            message["reasoning_content"] = reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message

    @property
    def parsed(self) -> Any:
        """The content as what its JSON says: an object of the type, if the request's `json_schema` is one.

        Raises:
            GenerationError: The request has no `json_schema`; the answer is not whole, or is a call; or the
                type refuses what its schema allows.
        """
        constraints = self.request.params.constraints
        if constraints is None or constraints.json_schema is None:
            raise GenerationError("there is no json_schema: pass constraints=Constraints(json_schema=…)")
        if self.finish_reason != "stop":
            cuts = {
                None: "is not finished",
                "length": f"was cut off after {self.n_tokens} tokens (max_tokens)",
            }
            raise GenerationError(
                f"the answer {cuts.get(self.finish_reason, 'has failed')}: there is no whole JSON"
            )
        if self.tool_calls:
            raise GenerationError("the answer is a call: see tool_calls")
        try:
            return object_of(constraints.json_schema, self.prefix.content + self.content)
        except ValueError as error:
            raise GenerationError(f"the answer is not as its type wants: {error}") from error

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in the form of OpenAI's chat completions.

        A finish_reason of "stop" is "tool_calls" there if there are some, and "overflow" is "length";
        "interrupted" and "error" stay as they are.
        """
        other = {"overflow": "length", "stop": "tool_calls" if self.tool_calls else "stop"}
        reason = other.get(str(self.finish_reason), self.finish_reason)
        return {
            "id": f"chatcmpl-{secrets.token_hex(12)}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": self.model,
            "choices": [
                {
                    "index": self.sample,
                    "message": self.message,
                    "finish_reason": reason,
                    "logprobs": {"content": self._described_logprobs()} if self.logprobs else None,
                }
            ],
            "usage": self.usage,
        }

    def _described_logprobs(self) -> list[dict[str, Any]]:
        def described(token: int, logprob: float) -> dict[str, Any]:
            written = self.token_bytes[token]
            text = written.decode(errors="replace")
            return {"token": text, "logprob": max(logprob, _LEAST_LOGPROB), "bytes": [*written]}

        steps = zip(self.tokens, self.logprobs, self.top_logprobs, strict=True)
        return [
            {**described(token, logprob), "top_logprobs": [described(*each) for each in top]}
            for token, logprob, top in steps
        ]

    def add(self, piece: Piece) -> None:
        """Append a piece of text."""
        self._text.write(piece)
        self._reasoning.write(piece.reasoning)
        self._content.write(piece.content)
        for call in piece.tool_calls:
            function = {"name": call.name, "arguments": call.arguments}
            self.tool_calls.append({"id": call.id, "type": "function", "function": function})

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: all but functions, which often cannot be."""
        return {**vars(self), "request": replace(self.request, watch=None, edit=None)}

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _COUNTERPARTS)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.index}: {self.n_tokens} tokens, "
            f"{self.finish_reason or 'not finished'}, {self.text!r}>"
        )


def _plain(text: str) -> Piece:
    """Return a piece of content, in which nothing has to be looked for."""
    piece = Piece(text)
    piece.content, piece.parts = text, (text,) * bool(text)
    return piece


class Splitter:
    """Makes pieces of a text, up to a stop string in its content.

    Args:
        reasoning: Separates reasoning from content.
        parser: Finds tool calls in the content; None if there can be none.
        reasoning_in_content: Whether the reasoning stays in the content, with its tags.

    Attributes:
        waiting: The text that is held back.
    """

    def __init__(
        self,
        reasoning: ReasoningSplitter,
        parser: ToolParser | None = None,
        *,
        reasoning_in_content: bool = False,
    ) -> None:
        self._reasoning = reasoning
        self._parser = parser
        self._in_content = reasoning_in_content
        self._considered = ""  # reasoning that may end in calls
        self._stops = StopStrings()
        self._may_end: Callable[[str], bool] = bool
        self.waiting = ""  # for a piece

    def stop_at(self, strings: Sequence[str], may_end: Callable[[str], bool]) -> None:
        """End the content from here on at the first of some strings.

        Args:
            strings: The strings.
            may_end: Returns whether the text may end with the beginning of `waiting`, which it is given.
        """
        self._stops, self._may_end = StopStrings(strings), may_end

    @property
    def stopped_by(self) -> str | None:
        """The string that ended the content."""
        return self._stops.stopped_by

    @property
    def has_cut_call(self) -> bool:
        """Whether a tool call was cut off, and left out."""
        return self._parser is not None and self._parser.is_cut

    @property
    def marks(self) -> Marks:
        """What stands around the reasoning."""
        return self._reasoning.marks

    @property
    def in_content(self) -> bool:
        """True if the text has got to the content, and not into a tool call."""
        return self._reasoning.in_content and not (self._parser and self._parser.in_call)

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self._reasoning.in_reasoning

    @property
    def reasons(self) -> bool:
        """True if what comes next is reasoning, as far as is known: not a call that has begun in it."""
        begins_call = self._parser is not None and self._parser.begins_call(self._considered)
        return self.in_reasoning and not begins_call

    def feed(self, text: str, *, is_final: bool = False, is_cut: bool = False) -> Piece:
        """Return a piece with what is now certain; what may belong to a tag or the like is held back.

        Args:
            text: More of the text.
            is_final: Whether this is its end.
            is_cut: Whether it is cut off there; see `ToolParser.feed`.
        """
        needs_look = is_final or self.waiting or self._parser is not None or self._stops.strings
        if not needs_look and self._reasoning.is_over:
            return _plain(text)
        had_content = self._reasoning.in_content
        self.waiting += text
        reasoning, content = self._reasoning.feed(text, is_final=is_final)
        found: Iterable[Part] = [content]
        if self._parser is not None:
            reasoning, self._considered = self._parser.split_reasoning(self._considered + reasoning)
            found = self._parser.feed(content, is_final=is_final, is_cut=is_cut)
            if is_final and self.in_reasoning and not is_cut:
                self._considered, found = self._parser.calls_at_end(self._considered)
            if is_final or not self.in_reasoning:  # these were only considered
                reasoning, self._considered = reasoning + self._considered, ""
        shown = ""
        if self._in_content and not had_content:
            n_later = self._reasoning.n_held + len(self._considered) + len(content)
            shown = self.waiting[: len(self.waiting) - n_later]
            if shown and self._reasoning.follows_tag:
                shown = f"{self._reasoning.marks.start}{shown.lstrip()}"
                self._reasoning.follows_tag = False
            reasoning = ""
        parts = [shown, *self._until_stopped(found)]
        if is_final and self.stopped_by is None:
            parts.append(self._stops.flush())
        return self._piece(reasoning, parts)

    def _until_stopped(self, found: Iterable[Part]) -> Iterator[Part]:
        for part in found:
            if isinstance(part, str):
                yield self._stops.feed(part, self._may_end_before)
            else:
                yield self._stops.flush()
                yield part
            if self.stopped_by is not None:
                return

    def _may_end_before(self, n_characters: int) -> bool:
        n_held = n_characters + (self._parser.n_held if self._parser else 0)
        return self._may_end(self.waiting[: max(0, len(self.waiting) - n_held)])

    def _piece(self, reasoning: str, found: Iterable[Part]) -> Piece:
        n_held = self._reasoning.n_held + len(self._stops.held) + len(self._considered)
        n_held += self._parser.n_held if self._parser else 0
        n_certain = max(0, len(self.waiting) - n_held)
        piece, self.waiting = Piece(self.waiting[:n_certain]), self.waiting[n_certain:]
        piece.reasoning = reasoning
        piece.parts = tuple(merged(filter(None, found)))
        piece.content = "".join(part for part in piece.parts if isinstance(part, str))
        piece.tool_calls = tuple(part for part in piece.parts if not isinstance(part, str))
        return piece
