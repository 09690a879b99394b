"""An answer while it is generated: every piece is stored before it is shown."""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from mink_local.chat.conversation.loop_guard import LoopGuard
from mink_local.chat.conversation.store import ConversationStore, Outcome, SamplingInfo, StoredMessage
from mink_local.generation.answer import Piece
from mink_local.generation.model import Reply
from mink_local.generation.reasoning import ReasoningSplitter, TextPart
from mink_local.interrupts import until_interrupted


@dataclass(frozen=True)
class Prefix:
    """Tokens that an answer begins with, taken from another answer.

    Attributes:
        k: The number of candidates of each token; 0 if it is not known.
        parts: How the tokens were sampled.
        chosen: Indices of the tokens that the user chose.
        text: What they add to the text, if it is to be shown.
        continued: The answer that they are, whose text is known.
    """

    tokens: Sequence[int] = ()
    k: Sequence[int] = ()
    parts: Sequence[SamplingInfo] = ()
    chosen: Sequence[int] = ()
    text: str = ""
    continued: StoredMessage | None = None


NO_PREFIX = Prefix()


@dataclass(frozen=True)
class PendingAnswer:
    """An answer before its first token.

    Attributes:
        parent: The id of the message that is answered.
        sampling_info: That of the tokens after the prefix.
        starts_as: The first state of the `ReasoningSplitter`.
        dropped: How many of the oldest turns no longer fit the context.
    """

    conversation: int
    parent: int
    sampling_info: SamplingInfo
    starts_as: str
    dropped: int = 0
    prefix: Prefix = NO_PREFIX


class AnswerStream:
    """An answer to iterate over: its parts, each stored before it is yielded; then its `outcome`.

    Args:
        on_end: Called at the end with the id of the stored answer; with None if no token came.
        guard: Ends an answer that repeats itself, whose finish_reason is then "repetition".
    """

    def __init__(
        self,
        reply: Reply,
        store: ConversationStore,
        pending: PendingAnswer,
        on_end: Callable[[int | None], None],
        guard: LoopGuard | None = None,
    ) -> None:
        self.reply = reply
        self.pending = pending
        self.outcome: Outcome | None = None
        self._store = store
        self._on_end = on_end
        self._guard = guard
        self._message: int | None = None

    def __iter__(self) -> Iterator[TextPart]:
        return self.parts()

    @property
    def is_kept(self) -> bool:
        """Whether some of the answer came, so that it is part of the conversation."""
        return self._message is not None

    @property
    def repeats_since(self) -> int | None:
        """The number of the token from which on the answer repeats itself, counted from 1."""
        since = self._guard.since if self._guard else None
        return None if since is None else len(self.pending.prefix.tokens) + since

    def parts(
        self, waiting: Callable[[], None] | None = None, on_token: Callable[[int], None] | None = None
    ) -> Generator[TextPart, None, None]:
        """Yield the parts of the answer, once.

        Args:
            waiting: Called now and then while none comes.
            on_token: Called with the k of every token before its text is yielded.
        """
        began = time.perf_counter()
        first = None
        prefix = self.pending.prefix
        splitter = ReasoningSplitter(self.pending.starts_as, continued=prefix.continued is not None)
        pieces = until_interrupted(self.reply, self.reply.interrupt, waiting or _do_nothing)
        try:
            with closing(pieces):
                for piece in pieces:
                    if first is None:
                        first = time.perf_counter()
                        yield from self._stored(splitter.feed(prefix.text))
                    self._guard_against_loops(piece)
                    if on_token and piece.token is not None:
                        on_token(piece.k)
                    yield from self._stored(splitter.feed(piece))
            yield from self._stored(splitter.end())
        finally:
            self._finish(began, first or time.perf_counter())

    def _guard_against_loops(self, piece: Piece) -> None:
        if self._guard and piece.token is not None and self._guard.feed(piece.token, piece):
            self.reply.interrupt()

    def _stored(self, parts: Iterator[TextPart]) -> Iterator[TextPart]:
        for part in parts:
            message = self._message or self._begin()
            self._store.append(message, part.text, part.is_reasoning)
            yield part

    def _begin(self) -> int:
        """Store the answer, with the text of the one that it continues; return its id."""
        pending, prefix = self.pending, self.pending.prefix
        first = prefix.parts[0] if prefix.parts else pending.sampling_info
        self._message = self._store.add(pending.conversation, pending.parent, "assistant", how=first)
        if prefix.continued:
            self._store.append(self._message, prefix.continued.thinking, thinking=True)
            self._store.append(self._message, prefix.continued.content)
        return self._message

    def _finish(self, began: float, first: float) -> None:
        reply, prefix, guard = self.reply, self.pending.prefix, self._guard
        parts = list(prefix.parts)
        if reply.tokens or not parts:
            parts.append(self.pending.sampling_info)
        finish_reason: str | None = reply.finish_reason
        repeated = 0
        if guard and guard.since is not None and finish_reason == "interrupted":
            finish_reason, repeated = "repetition", guard.repeated
        self.outcome = Outcome(
            finish_reason=finish_reason,
            tokens=[*prefix.tokens, *reply.tokens],
            k=[*prefix.k, *reply.k],
            continued=parts[1:],
            chosen=list(prefix.chosen),
            repeated=repeated,
            prompt_tokens=reply.prompt_tokens,
            evaluated_tokens=reply.evaluated_tokens,
            first_token_s=first - began,
            seconds=time.perf_counter() - began,
        )
        if self._message is not None:
            self._store.finish(self._message, self.outcome)
        self._on_end(self._message)


def _do_nothing() -> None:
    pass
