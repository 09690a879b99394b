"""An answer of a conversation as it is written: every piece is stored before it is shown."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from mink_local.chat.reasoning import Piece, Splitter
from mink_local.chat.store import How, Message, Outcome
from mink_local.interrupts import until_interrupted

if TYPE_CHECKING:
    from mink_local.chat.session import Session
    from mink_local.generation.model import Reply


class Answer(Iterator[Piece]):
    """An answer as it is written: every piece is stored before it is given out.

    continued: the text that was there before and is gone on with. dropped: how many of the oldest turns
    no longer fitted the context. outcome: how it ended, at its end.
    Where nothing came, because it failed or was interrupted, the conversation is as it was before.
    """

    def __init__(
        self,
        session: "Session",
        reply: "Reply",
        how: How,
        head_before: int | None,
        dropped: int,
        continued: Message | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        self.reply = reply
        self.how = how
        self.dropped = dropped
        self.continued = continued.content if continued else ""
        self.outcome: Outcome | None = None
        self.waiting: Callable[[], None] = lambda: None
        self._begun = begun
        self._session = session
        self._head_before = head_before
        self._message = continued.id if continued else None
        self._earlier = continued.outcome if continued else None
        self._pieces = self._write(continued)

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def kept(self) -> bool:
        """Whether anything of it came, which is part of the conversation then."""
        return self._message is not None

    def close(self) -> None:
        """End it here; what came is kept."""
        self._pieces.close()

    def _write(self, continued: Message | None) -> Generator[Piece, None, None]:
        began = time.perf_counter()
        first = None
        splitter = Splitter(self._state(continued), continued=continued is not None)
        try:
            with closing(until_interrupted(self.reply, lambda: self.waiting())) as texts:
                for text in texts:
                    first = first or time.perf_counter()
                    yield from self._stored(splitter.feed(text))
            yield from self._stored(splitter.end())
        finally:
            self._finish(began, first or time.perf_counter())

    def _state(self, continued: Message | None) -> str:
        if continued and (continued.content or continued.thinking):
            return "text" if continued.content else "thought"
        if self.reply.in_reasoning:
            return "thought"
        return "start" if self._session.model.can_reason else "text"

    def _stored(self, pieces: Iterator[Piece]) -> Iterator[Piece]:
        session = self._session
        for piece in pieces:
            if self._message is None:
                assert session.conversation is not None
                parent = session.branch[-1].id
                self._message = session.store.add(session.conversation, parent, "assistant", how=self.how)
            session.store.append(self._message, piece.text, piece.thinking)
            yield piece

    def _finish(self, began: float, first: float) -> None:
        session, reply = self._session, self.reply
        earlier = self._earlier or Outcome(None)
        self.outcome = Outcome(
            reply.finish_reason,
            [*self._begun, *reply.tokens],
            [*earlier.k, *reply.k],
            reply.prompt_tokens,
            reply.evaluated_tokens,
            first - began,
            time.perf_counter() - began,
        )
        if self._message is None:
            session.go_to(self._head_before)
        else:
            session.store.finish(self._message, self.outcome)
            session.go_to(self._message)
