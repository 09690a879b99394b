"""From an answer's events to a response: whole, or as server-sent events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from mink_local.generation.answer import Answer, FinishReason, Piece
from mink_local.generation.model import Model
from mink_local.generation.request import SamplingParams
from mink_local.generation.tool_calls import ToolCallDelta
from mink_local.serve.bodies import Timings, TokenUsage
from mink_local.serve.errors import ApiError


@dataclass(frozen=True)
class ResponseHead:
    """What is known of a response before there are answers.

    Attributes:
        request_id: Identifies the request.
        created: In seconds since 1970.
        model: The model id that was asked for.
        fingerprint: Identifies the model and the versions.
        params: How the answers are sampled.
        client: The name of the key that was used; "" without keys.
    """

    request_id: str
    created: int
    model: str
    fingerprint: str
    params: SamplingParams
    client: str


class ResponseBuilder(ABC):
    """Builds an endpoint's response to a request: whole, or as the events of a stream.

    Args:
        model: The model.
        request: The request.
        head: What is known so far.
        answers: The answers, which grow meanwhile.
    """

    def __init__(self, model: Model, request: Any, head: ResponseHead, answers: Sequence[Answer]) -> None:
        self.model = model
        self.request = request
        self.head = head
        self.answers = answers

    @property
    def is_long(self) -> bool:
        """Whether the next event describes many tokens, which takes too long for the event loop."""
        return False

    def start(self) -> bytes:
        """Return the events before the first token."""
        return b""

    def keep_alive(self) -> bytes:
        """Return what a stream sends when it has had nothing to send for a while."""
        return b": keepalive\n\n"

    @abstractmethod
    def add(self, answer: Answer, piece: Piece) -> None:
        """Take what one step adds to an answer."""

    @abstractmethod
    def take(self, answer: Answer) -> bytes:
        """Return the events for what an answer has grown by; none if there is nothing to show."""

    @abstractmethod
    def end(self, usage: TokenUsage, timings: Timings) -> bytes:
        """Return the last events of a stream."""

    def fail(self, error: ApiError) -> bytes:
        """Return the last event of a stream that fails."""
        return server_sent(error.body())

    @abstractmethod
    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        """Return the body of a response that is not streamed; called in a thread."""


@dataclass
class Part:
    """A part of an answer: reasoning, text, or a call of a tool.

    Attributes:
        index: Its number.
        text: The text so far; of a call, its arguments.
        call: The call's id and name.
        is_open: Whether it may still grow.
    """

    kind: Literal["reasoning", "text", "call"]
    index: int
    text: str = ""
    call: ToolCallDelta | None = None
    is_open: bool = True


class PartsBuilder(ResponseBuilder):
    """Builds a response of one answer's parts, whose stream is made of events with names.

    Args:
        given: The request as its client sent it.
        known: What `ResponseBuilder` takes.

    Attributes:
        answer: The answer.
        parts: Its parts, in the order in which the model wrote them; only the last one grows.
        k: Number of candidates of each token.
        finish_reason: Why the answer has ended, or None.
    """

    def __init__(self, given: Any, *known: Any) -> None:
        super().__init__(*known)
        self.given = given
        [self.answer] = self.answers
        self.parts: list[Part] = []
        self.k: list[int] = []
        self.finish_reason: FinishReason | None = None
        self._events: list[bytes] = []

    def add(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        if piece.token is not None and not piece.is_end_token:
            self.k.append(piece.k)
        self.finish_reason = piece.finish_reason
        if piece.reasoning:
            self._grow("reasoning", piece.reasoning)
        for event in piece.events:
            if isinstance(event, str):
                self._grow("text", event)
            else:
                self._grow("call", event.arguments, event if event.id else None)

    def _grow(
        self, kind: Literal["reasoning", "text", "call"], text: str, call: ToolCallDelta | None = None
    ) -> None:
        """Add a text to the open part, or open one."""
        if call or not self.parts or self.parts[-1].kind != kind:
            self.close()
            self.parts.append(Part(kind, len(self.parts), call=call))
            self.opened(self.parts[-1])
        self.parts[-1].text += text
        if text:
            self.grown(self.parts[-1], text)

    def close(self) -> None:
        """Close the open part, if there is one."""
        if self.parts and self.parts[-1].is_open:
            self.parts[-1].is_open = False
            self.closed(self.parts[-1])

    @abstractmethod
    def opened(self, part: Part) -> None:
        """Send what begins a part."""

    @abstractmethod
    def grown(self, part: Part, text: str) -> None:
        """Send what a part has grown by."""

    @abstractmethod
    def closed(self, part: Part) -> None:
        """Send what ends a part."""

    def send(self, kind: str, **fields: Any) -> None:
        """Add an event to those that a stream sends next."""
        if self.request.stream:
            self._events.append(server_sent({"type": kind, **fields}, kind))

    def sent(self) -> bytes:
        """Return the events since the last call."""
        sent, self._events = b"".join(self._events), []
        return sent

    def take(self, answer: Answer) -> bytes:  # noqa: ARG002
        return self.sent()


def server_sent(value: Any, name: str = "") -> bytes:
    """Return a value as a server-sent event, perhaps with a name."""
    named = f"event: {name}\n".encode() if name else b""
    return named + b"data: " + msgspec.json.encode(value) + b"\n\n"
