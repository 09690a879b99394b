"""An answer's text, split into reasoning, content and tool calls while it is generated."""

from mink_local.generation.answer import Piece
from mink_local.generation.text import ReasoningSplitter
from mink_local.generation.tool_calls import Event, ToolParser


class Splitter:
    """Makes pieces of a text.

    Args:
        reasoning: Separates reasoning from content.
        parser: Finds tool calls in the content; None if there can be none.
    """

    def __init__(self, reasoning: ReasoningSplitter, parser: ToolParser | None = None) -> None:
        self._reasoning = reasoning
        self._parser = parser

    @property
    def in_reasoning(self) -> bool:
        """True if reasoning has started and not ended."""
        return self._reasoning.in_reasoning

    def feed(self, text: str) -> Piece:
        """Return a piece with a text, and what is now certain; what may belong to a tag is held back."""
        piece = Piece(text)
        piece.reasoning, content = self._reasoning.feed(text)
        self._read(piece, content)
        return piece

    def end(self, text: str) -> Piece:
        """Return the last piece, with what was held back."""
        piece = self.feed(text)
        reasoning, content = self._reasoning.end()
        piece.reasoning += reasoning
        self._read(piece, content)
        if self._parser is not None:
            self._add(piece, self._parser.end())
        return piece

    def _read(self, piece: Piece, content: str) -> None:
        if self._parser is None:
            piece.content += content
        else:
            self._add(piece, self._parser.feed(content))

    @staticmethod
    def _add(piece: Piece, events: list[Event]) -> None:
        piece.content += "".join(event for event in events if isinstance(event, str))
        piece.tool_calls += tuple(event for event in events if not isinstance(event, str))
