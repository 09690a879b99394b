"""An answer while it is generated: every piece is stored before it is shown."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing

from mink_local.chat.conversation.loop_guard import LoopGuard
from mink_local.chat.conversation.store import ConversationStore, StoredMessage
from mink_local.generation.model import Reply
from mink_local.generation.text import ReasoningSplitter, TextPart
from mink_local.interrupts import until_interrupted


class AnswerStream:
    """An answer to iterate over: its parts, each stored before it is yielded.

    Args:
        message: The answer before it is generated, with the tokens that it takes over from another one, and
            with the text of these tokens if it is on the screen already.
        prefix: That text if it is to be shown.
        conversation: The id of the conversation that `message` is added to with its first part.
        guard: Ends an answer that repeats itself, whose finish_reason is then "repetition".
        on_end: Called at the end; if no part came, the message has no id.

    Attributes:
        message: The answer so far, as it is stored; tokens and figures come at the end.
        dropped: How many of the oldest turns no longer fit the context.
        repeats_since: Number of the token from which on the answer repeats itself, counted from 1.
    """

    def __init__(
        self,
        reply: Reply,
        message: StoredMessage,
        prefix: str,
        dropped: int,
        store: ConversationStore,
        conversation: int,
        guard: LoopGuard | None,
        on_end: Callable[[], None],
    ) -> None:
        self.reply = reply
        self.message = message
        self.dropped = dropped
        self.repeats_since: int | None = None
        self._prefix = prefix
        self._store = store
        self._conversation = conversation
        self._guard = guard
        self._on_end = on_end
        state = "start" if reply.can_reason else "text"
        if message.content:
            state = "text"
        elif reply.in_reasoning or message.thinking:
            state = "reasoning"
        self._splitter = ReasoningSplitter(state, continued=bool(message.content or message.thinking))

    def __iter__(self) -> Iterator[TextPart]:
        return self.parts()

    def parts(
        self, waiting: Callable[[], None] = lambda: None, on_token: Callable[[int], None] = lambda _: None
    ) -> Generator[TextPart, None, None]:
        """Yield the parts of the answer, once.

        Args:
            waiting: Called now and then while none comes.
            on_token: Called with the k of every token before its text is yielded.
        """
        began = time.perf_counter()
        pieces = until_interrupted(self.reply, self.reply.interrupt, waiting)
        try:
            with closing(pieces):
                for piece in pieces:
                    if not self.message.first_token_s:
                        self.message.first_token_s = time.perf_counter() - began
                        yield from self._stored(self._prefix)
                    if piece.token is not None:
                        self._guard_against_loops(piece.token, piece)
                        on_token(piece.k)
                    yield from self._stored(piece)
            for part in self._splitter.end():
                yield self._store_part(part)
        finally:
            self.message.seconds = time.perf_counter() - began
            self._finish()

    def _guard_against_loops(self, token: int, text: str) -> None:
        if self._guard and self._guard.feed(token, text):
            self.reply.interrupt()

    def _stored(self, text: str) -> Iterator[TextPart]:
        return map(self._store_part, self._splitter.feed(text))

    def _store_part(self, part: TextPart) -> TextPart:
        if not self.message.id:
            self._store.add(self._conversation, self.message)
        self._store.append(self.message, part.text, part.is_reasoning)
        return part

    def _finish(self) -> None:
        message, reply, guard = self.message, self.reply, self._guard
        n_prefix = len(message.tokens)
        message.tokens += reply.tokens
        message.k += reply.k
        message.prompt_tokens = reply.prompt_tokens
        message.evaluated_tokens = reply.evaluated_tokens
        message.finish_reason = reply.finish_reason
        if guard and guard.since is not None and reply.finish_reason == "interrupted":
            message.finish_reason, message.repeated = "repetition", guard.repeated
            self.repeats_since = n_prefix + guard.since
        if message.id:
            self._store.finish(message)
        self._on_end()
