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
from mink_local.serve.bodies import ApiError, Timings, TokenUsage


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
        request: The request as its client sent it.
        head: What is known so far.
        answers: The answers, which grow meanwhile.
    """

    def __init__(self, model: Model, request: Any, head: ResponseHead, answers: Sequence[Answer]) -> None:
        self.model = model
        self.request = request
        self.head = head
        self.answers = answers
        self._events: list[bytes] = []  # of a stream, to be sent

    @property
    def is_long(self) -> bool:
        """Whether what comes next describes many tokens, which takes too long for the event loop."""
        return False

    def start(self) -> None:  # noqa: B027  # most have nothing to send
        """Send what comes before the first token."""

    def keep_alive(self) -> None:
        """Send something, as a stream has had nothing to send for a while."""
        self._events.append(b": keepalive\n\n")

    @abstractmethod
    def add(self, answer: Answer, piece: Piece) -> None:
        """Take what one step adds to an answer, and send it if there is something to show."""

    @abstractmethod
    def end(self, usage: TokenUsage, timings: Timings) -> None:
        """Send the last events of a stream."""

    def fail(self, error: ApiError) -> None:
        """Send the last event of a stream that fails."""
        self.send(error.body())

    @abstractmethod
    def whole(self, usage: TokenUsage, timings: Timings) -> Any:
        """Return the body of a response that is not streamed; called in a thread."""

    def send(self, value: Any, name: str = "") -> None:
        """Add a value, perhaps with a name, to the events that a stream sends next."""
        if self.request.stream:
            named = f"event: {name}\n".encode() if name else b""
            self._events.append(named + b"data: " + msgspec.json.encode(value) + b"\n\n")

    def take(self) -> bytes:
        """Return the events since the last call."""
        sent, self._events = b"".join(self._events), []
        return sent


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

    Attributes:
        answer: The answer.
        parts: Its parts, in the order in which the model wrote them; only the last one grows.
        finish_reason: Why it has ended, once all of it was added.
    """

    def __init__(self, *known: Any) -> None:
        super().__init__(*known)
        [self.answer] = self.answers
        self.parts: list[Part] = []
        self.finish_reason: FinishReason | None = None

    def add(self, answer: Answer, piece: Piece) -> None:  # noqa: ARG002
        if piece.reasoning:
            self._grow("reasoning", piece.reasoning)
        for event in piece.events:
            if isinstance(event, str):
                self._grow("text", event)
            else:
                self._grow("call", event.arguments, event if event.id else None)
        self.finish_reason = piece.finish_reason

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

    def send_event(self, kind: str, **fields: Any) -> None:
        """Send an event of a kind, which is its name too."""
        self.send({"type": kind, **fields}, kind)
