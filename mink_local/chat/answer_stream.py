"""An answer while it is generated: every piece is stored before it is shown."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mink_local.chat.store import ConversationStore, Outcome, SamplingInfo, StoredMessage
from mink_local.generation.answer import Piece
from mink_local.generation.model import Reply
from mink_local.generation.reasoning import ReasoningSplitter, TextPart
from mink_local.generation.repetition import LoopGuard
from mink_local.generation.sampling_step import TokenFigures, token_figures
from mink_local.interrupts import until_interrupted


@dataclass(frozen=True)
class Beginning:
    """Tokens that an answer begins with, each with its k (0: not known), and how they were sampled."""

    tokens: Sequence[int] = ()
    k: Sequence[int] = ()
    hows: Sequence[SamplingInfo] = ()
    chosen: Sequence[int] = ()  # indices of tokens that the user chose
    text: str = ""  # of a fork, whose message does not have it yet


@dataclass(frozen=True)
class Draft:
    """An answer before its first token."""

    conversation: int
    parent: int  # the id of the message that is answered
    how: SamplingInfo  # of the tokens after `begun`
    starts_as: str  # the first state of the `ReasoningSplitter`
    dropped: int = 0  # how many of the oldest turns did not fit the context any more
    continued: StoredMessage | None = None  # the answer that is continued, if it is
    begun: Beginning = Beginning()


class AnswerStream:
    """An answer to iterate over: its parts, each stored before it is yielded; then its `outcome`.

    With a `guard`, an answer that repeats itself is ended, and its finish_reason is "repetition".
    `on_end` is called at the end with the id of the stored answer; with None if no token came, because the
    generation failed or was interrupted.

    Attributes:
        on_token: Called with the k of every token, and with its figures if `rows` receives the logits of the
            steps, before the text of the token is yielded.
    """

    def __init__(
        self,
        reply: Reply,
        store: ConversationStore,
        draft: Draft,
        on_end: Callable[[int | None], None],
        guard: LoopGuard | None = None,
        rows: deque[NDArray[np.float32]] | None = None,
    ) -> None:
        self.reply = reply
        self.draft = draft
        self.outcome: Outcome | None = None
        self.on_token: Callable[[int, TokenFigures | None], None] = lambda *_: None
        self._store = store
        self._on_end = on_end
        self._guard = guard
        self._rows = rows  # the logits of tokens that were sampled and not yielded yet
        self._message = draft.continued.id if draft.continued else None

    def __iter__(self) -> Iterator[TextPart]:
        return self.parts()

    @property
    def is_kept(self) -> bool:
        """If something of the answer came, so that it is part of the conversation."""
        return self._message is not None

    @property
    def repeats_since(self) -> int | None:
        """The number of the token from which on the answer repeats itself, counted from 1."""
        since = self._guard.since if self._guard else None
        return None if since is None else len(self.draft.begun.tokens) + since

    def parts(self, waiting: Callable[[], None] = lambda: None) -> Generator[TextPart, None, None]:
        """Yield the parts of the answer, once; `waiting` is called now and then while none comes."""
        began = time.perf_counter()
        first = None
        splitter = ReasoningSplitter(self.draft.starts_as, continued=self.draft.continued is not None)
        try:
            with closing(until_interrupted(self.reply, self.reply.interrupt, waiting)) as pieces:
                for piece in pieces:
                    if first is None:
                        first = time.perf_counter()
                        yield from self._stored(splitter.feed(self.draft.begun.text))
                    self._watch(piece)
                    yield from self._stored(splitter.feed(piece))
            yield from self._stored(splitter.end())
        finally:
            self._finish(began, first or time.perf_counter())

    def _watch(self, piece: Piece) -> None:
        """Tell `on_token` of a token, and end an answer that repeats itself."""
        if piece.token is None:
            return
        self.on_token(piece.k, token_figures(self._rows.popleft(), piece.token) if self._rows else None)
        if self._guard and self._guard.feed(piece.token, piece):
            self.reply.interrupt()

    def _stored(self, parts: Iterator[TextPart]) -> Iterator[TextPart]:
        for part in parts:
            if self._message is None:
                draft = self.draft
                how = [*draft.begun.hows, draft.how][0]
                self._message = self._store.add(draft.conversation, draft.parent, "assistant", how=how)
            self._store.append(self._message, part.text, part.is_reasoning)
            yield part

    def _finish(self, began: float, first: float) -> None:
        reply, begun, guard = self.reply, self.draft.begun, self._guard
        hows = [*begun.hows, *([self.draft.how] if reply.k or not begun.hows else [])]
        is_loop = self.repeats_since is not None and reply.finish_reason == "interrupted"
        self.outcome = Outcome(
            finish_reason="repetition" if is_loop else reply.finish_reason,
            tokens=[*begun.tokens, *reply.tokens],
            k=[*begun.k, *reply.k],
            continued=hows[1:],
            chosen=list(begun.chosen),
            repeated=guard.repeated if guard and is_loop else 0,
            prompt_tokens=reply.prompt_tokens,
            evaluated_tokens=reply.evaluated_tokens,
            first_token_s=first - began,
            seconds=time.perf_counter() - began,
        )
        if self._message is not None:
            self._store.finish(self._message, self.outcome)
        self._on_end(self._message)
