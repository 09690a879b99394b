"""A conversation with a model: its messages, settings and answers. It knows nothing about the terminal."""

import hashlib
import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import click

from mink_local.chat.conversation.store import (
    Conversation,
    ConversationStore,
    SamplingInfo,
    StoredMessage,
    StoreError,
    default_path,
)
from mink_local.chat.settings import Settings
from mink_local.errors import GenerationError, MinkError
from mink_local.files import make_room, private_folder
from mink_local.generation.answer import Piece, is_reasoning
from mink_local.generation.engine.slots import common_prefix
from mink_local.generation.model import Model
from mink_local.generation.replies import Reply
from mink_local.generation.request import SamplingParams
from mink_local.interrupts import on_interrupt
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constraints

Messages = list[dict[str, str]]
Branch = list[StoredMessage]

_STORE_SECONDS = 0.5  # between two states of an answer that are stored: a kill loses at most a second
_LAST_SECONDS = 5.0  # to wait for a locked file at the end
MOST_BYTES = 2_000_000_000  # of all KV caches on disk
_MEASURED_TOKENS = 32  # of a prompt, for the time that they took to say something
LEAST_SECONDS = 5.0  # that reading a conversation again would take, for its cache to be kept

log = logging.getLogger("mink_local")


def as_messages(system: str | None, branch: Sequence[StoredMessage]) -> Messages:
    """Return a system prompt, if there is one, and the messages of a branch, without reasoning and loops."""
    messages = [{"role": "system", "content": system}] if system else []
    return messages + [{"role": message.role, "content": message.to_evaluate} for message in branch]


def drop_oldest_turns(
    messages: Messages, model: Model, max_tokens: int | None, reasoning: bool | None
) -> Messages:
    """Return messages that leave space in the context for an answer, at most a quarter of it.

    If the conversation has outgrown the context, the oldest turns are dropped until half of it is free: with
    one turn at a time the beginning of the prompt, and so the whole KV cache, would change at every turn.
    The system message, before the first turn, and the last turn are always kept.
    """

    def fits(messages: Messages, n_tokens: int) -> bool:
        return len(model.prompt_tokens(messages, reasoning)) <= n_tokens

    reserved = model.n_ctx // 4 if max_tokens is None else min(max_tokens, model.n_ctx // 4)
    if not messages or fits(messages, model.n_ctx - reserved):
        return messages
    starts = [i for i, message in enumerate(messages) if message["role"] == "user"]
    without = [messages[: starts[0]] + messages[start:] for start in starts[1:]] or [messages]
    at = bisect_left(without, True, key=lambda kept: fits(kept, model.n_ctx // 2))  # the first that fits
    return [*without, without[-1]][at]


def cache_path(conversation: int) -> Path:
    """Return the file for a conversation's KV cache."""
    return default_path().parent / "kv" / f"{conversation}.kv"


def write_cache(model: Model, path: Path) -> None:
    """Write what a model holds of a conversation; delete the oldest files beyond `MOST_BYTES`.

    Raises OSError.
    """
    folder = private_folder(path.parent)
    if model.save_cache(path, MOST_BYTES):
        make_room(folder.iterdir(), MOST_BYTES)


def _goes_on(turn: Branch, turns: Sequence[Branch]) -> bool:
    """Return whether another turn is this one with the rest of its answer, as /continue leaves it."""
    *before, answer = turn
    return answer.role == "assistant" and any(
        other[:1] == before
        and other[-1].reasoning.startswith(answer.reasoning)
        and other[-1].content.startswith(answer.content)
        and len(other[-1].parts) > len(answer.parts)
        for other in turns
    )


def _is_cut(answer: StoredMessage, tokens: Sequence[int]) -> bool:
    """Return whether an answer's tokens end within its reasoning; those that are not known do."""
    return tokens is not answer.tokens or is_reasoning(answer.borders, len(tokens))


def prompt_digest(tokens: Sequence[int]) -> str:
    """Return a digest of a prompt's token ids."""
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=8).hexdigest()


class Session:
    """A model, the settings, and the current conversation in a store.

    Attributes:
        conversation: Its id in the store, from its first message on.
        branch: The current one, from the first message to the last.
    """

    def __init__(self, model: Model, settings: Settings, store: ConversationStore) -> None:
        self.model = model
        self.settings = settings
        self.store = store
        self._begin()

    def clear(self) -> None:
        """Begin another conversation, with the settings of the start; the store keeps the one before."""
        self._save_cache()
        self._begin()
        self.settings.restore({}, "")

    def _begin(self) -> None:
        self.conversation: int | None = None
        self.branch: Branch = []
        self._unkept: list[Branch] = []  # what is to be stored, oldest first; further messages try again
        self._undone: list[Branch] = []  # the branches that `undo` left, the last one last
        self._start = 0  # index of the first message of the branch that still fits the context
        self._stored = 0.0  # when an answer was stored that is being generated
        self._author = ""  # the model of the conversation, until another one answers
        self._head: int | None = None  # the end of the branch in the store, as it was last known

    def load(self, conversation: Conversation) -> StoredMessage | None:
        """Continue a conversation; return a last message that was never answered, which is taken back."""
        branch = self.store.branch(conversation.end)  # which may fail
        self.clear()
        self.conversation, self._author = conversation.id, conversation.model
        self.settings.restore(conversation.settings, conversation.label)
        self.settings.put("system", conversation.system, conversation.label)
        if (path := self._cache_path) and path.exists() and self.model.load_cache(path):
            path.touch()
        unanswered = branch.pop() if branch and branch[-1].role == "user" else None
        self.branch, self._head = branch, conversation.head
        if unanswered or self.settings.kept() != conversation.settings:
            self.go_to(branch)
        return unanswered

    def changed_model(self) -> None:
        """Note that another model continues the conversation: all of it may fit the context."""
        self._start, self._author = 0, ""

    def set_system(self, text: str | None, source: str) -> None:
        """Set the system prompt, None for none, and keep it with the conversation."""
        self.settings.put("system", text, source)
        self.go_to(self.branch)

    def check_unchanged(self) -> None:
        """Raise MinkError, once, if another program has gone on with the conversation."""
        if self.conversation is None or self.flush():
            return
        stored = self.store.get(self.conversation)
        if self.branch and self.branch[-1].is_unfinished:  # another program may have finished it meanwhile
            self.branch = self.store.branch(self.branch[-1].id)
        if stored.head != self._head:
            self._head = stored.head
            name = stored.name or stored.id
            raise MinkError(
                f"this conversation was continued in another window: /load {name} to continue there; "
                "repeat to continue here as a new branch"
            )

    def ask(self, text: str, files: str = "", replaces: bool = False) -> "AnswerStream":
        """Return the answer to a message, which after an error is not part of the conversation.

        Args:
            files: What stands before the text.
            replaces: Whether the message replaces the last one.

        Raises:
            click.UsageError: A setting does not suit the model.
            MinkError: There is no message to replace, the prompt does not fit the context, the template
                refuses it, or another program went on with the conversation; but the next time the message
                begins a branch.
        """
        self.check_unchanged()
        if replaces:
            self.last_answer()
        before = self.branch[:-2] if replaces else self.branch
        branch = [*before, StoredMessage("user", files + text, attached=len(files))]
        self._keep(branch)
        return self._answer(branch, self.settings.params)

    def regenerate(self, temperature: float | None = None, seed: int | None = None) -> "AnswerStream":
        """Return another answer to the last message. Raises as `ask` does.

        A seed of the settings is counted up by the number of earlier answers, so that the text differs.
        """
        self.check_unchanged()
        params, earlier = self.settings.params, self.alternatives()
        if temperature is None:
            temperature = params.temperature
        if seed is None and params.seed is not None:
            seed = (params.seed + len(earlier)) % RANDOM_SEED
        return self._answer(self.branch[:-1], replace(params, temperature=temperature, seed=seed))

    def extend(self) -> "AnswerStream":
        """Return an answer that was cut short and its rest, as another answer. Raises as `ask` does."""
        self.check_unchanged()
        last = self.last_answer()
        if last.finish_reason == "stop":
            raise MinkError("the last answer is finished: there is nothing to continue")
        return self._going_on(self.answer_tokens(last))

    def fork(self, at: int, token: int) -> "AnswerStream":
        """Return another answer to the last message: the last answer before token `at`, then another token.

        `at` counts from 0. Raises as `ask` does.
        """
        self.check_unchanged()
        return self._going_on([*self.answer_tokens(self.last_answer())[:at], token])

    def rewrite(self, text: str) -> "AnswerStream":
        """Return another answer to the last message, which begins with a text. Raises as `ask` does.

        It keeps the reasoning of the last answer, which ends there, and of its text what is the same.
        """
        self.check_unchanged()
        last = self.last_answer()
        tokens, begun = self.answer_tokens(last), self.model.tokenize(text)
        texts = self.model.token_texts(tokens)
        start = max("".join(texts).rfind(last.content), 0) if last.reasoning else 0
        n_reasoning = sum(end <= start for end in accumulate(map(len, texts)))
        if last.reasoning and not last.content and _is_cut(last, tokens):
            begun = self._written(last.reasoning, text)[len(self._written(last.reasoning)) :]
        return self._going_on(tokens[:n_reasoning] + begun)

    def _going_on(self, tokens: list[int]) -> "AnswerStream":
        """Return another answer to the last message, which begins with tokens: those of the last answer, and
        from where they leave it the user's.
        """
        last = self.last_answer()
        known = self.answer_tokens(last)
        same = common_prefix(known, tokens)
        if known is not last.tokens:  # nothing is known of them but what wrote them
            last = StoredMessage("assistant", parts=last.parts[:1])
        beginning = StoredMessage(
            "assistant",
            tokens=[*tokens],
            k=[*last.k[: same + 1], *[0] * len(tokens)][: len(tokens)],
            parts=[part for part in last.parts if part.first_token <= same],
            chosen=[*(at for at in last.chosen if at < same), *range(same, len(tokens))],
            borders=last.borders,
        )
        return self._answer(self.branch[:-1], self.settings.params, beginning)

    def undo(self, n: int = 1) -> StoredMessage:
        """Take back the last n messages and their answers; return the first. `redo` brings them back."""
        if not self.branch:
            raise MinkError("there is nothing to undo")
        self.check_unchanged()
        self._undone.append(self.branch)
        self.go_to(self.branch[: -2 * n])
        return self._undone[-1][-2 * n]

    def redo(self) -> StoredMessage | None:
        """Bring back what the last `undo` took, or else the newest turn that ever came next.

        Returns its message if it was never answered, and so does not become part of the branch.
        """
        if self._undone:
            self.go_to(self._undone.pop())
            return None
        turns = self._turns(self.branch)
        if not turns:
            raise MinkError("there is nothing to redo")
        newest = max(turns, key=lambda turn: (len(turn), turn[-1].created))
        return self._go_on(self.branch, newest)

    def versions(self) -> list[Branch]:
        """Return all versions of the last turn: each message with each of its answers, or without any."""
        self.last_answer()
        return self._turns(self.branch[:-2])

    def alternatives(self) -> list[StoredMessage]:
        """Return all answers to the last message, oldest first."""
        return [answer for message, *rest in self.versions() if message == self.branch[-2] for answer in rest]

    def choose(self, turn: Branch) -> StoredMessage | None:
        """Continue with another version of the last turn; return its message if it was never answered."""
        self.check_unchanged()
        self._undone.clear()
        return self._go_on(self.branch[:-2], turn)

    def _go_on(self, before: Branch, turn: Branch) -> StoredMessage | None:
        message, *answer = turn
        self.go_to([*before, *turn] if answer else before)
        return None if answer else message

    def _turns(self, before: Branch) -> list[Branch]:
        """Return what ever came after a branch: messages with an answer, or without any if nothing else is
        known of their text.
        """
        n, turns = len(before), []
        if self.conversation is not None:
            following = partial(self.store.following, self.conversation)
            for message in following(before[-1].id if before else None):
                turns += [[message, answer] for answer in following(message.id)] or [[message]]
        unkept = [branch[n : n + 2] for branch in self._unkept if branch[n:] and branch[:n] == before]
        turns += [turn for turn in unkept if not turn[-1].id]
        turns = [turn for turn in turns if turn == self.branch[n : n + 2] or not _goes_on(turn, turns)]
        told = {turn[0].content: turn for turn in sorted(turns, key=len)}
        return [turn for turn in turns if turn[1:] or told[turn[0].content] is turn]

    def last_answer(self) -> StoredMessage:
        """Return the last answer. Raises MinkError if there is none."""
        if not self.branch:
            raise MinkError("there is no answer yet")
        return self.branch[-1]

    def prompt(self, branch: Sequence[StoredMessage], text: str = "") -> Messages:
        """Return the messages for the model: without reasoning, and without turns that do not fit.

        A text is one more message of the user.
        """
        messages = as_messages(self.settings["system"], branch[self._start :])
        if text:
            messages.append({"role": "user", "content": text})
        return drop_oldest_turns(
            messages, self.model, self.settings["max_tokens"], self.settings["reasoning"]
        )

    def answer_tokens(self, answer: StoredMessage) -> list[int]:
        """Return the sampled token ids of an answer, or this model's if they are unknown or another's."""
        if answer.tokens and answer.parts and answer.parts[-1].model == self.model.name:
            return answer.tokens
        return self._written(answer.reasoning, answer.content)

    def _written(self, reasoning: str, content: str = "") -> list[int]:
        """Return an answer to the last message as the model writes it; without content, reasoning goes on."""
        messages, reasons = self.prompt(self.branch[:-1]), self.settings["reasoning"]
        begun = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        n_prompt = len(self.model.prompt_tokens(messages, reasons))
        return self.model.prompt_tokens([*messages, begun], reasons)[n_prompt:]

    def grow(self, branch: Branch, piece: Piece) -> None:
        """Add a piece to the last message of a branch, which is stored at the first, then twice a second."""
        branch[-1].add(piece.reasoning, piece.content)
        if not branch[-1].id or time.monotonic() - self._stored >= _STORE_SECONDS:
            self._stored = time.monotonic()
            self._keep(branch)

    def go_to(self, branch: Branch) -> None:
        """Make a branch the current one."""
        self._keep(branch)
        self.branch = branch
        if self._start >= len(branch):
            self._start = 0

    def _keep(self, branch: Branch) -> None:
        """Store a branch now, or with what comes next."""
        if branch or self.conversation is not None:
            self._unkept = [other for other in self._unkept if other is not branch]
            self._unkept.append(branch)
            self.flush()

    def flush(self) -> str:
        """Store what could not be stored before; return why that is not possible yet, or "" if it is done."""
        while self._unkept:
            branch = self._unkept[0]
            try:
                model, system = self._author or self.settings["model"], self.settings["system"]
                kept = self.settings.kept()
                self.conversation = self.store.save(self.conversation, branch, model, system, kept)
            except StoreError as error:
                return str(error)
            self._head = branch[-1].id if branch else None
            self._unkept.pop(0)
        return ""

    def end(self) -> None:
        """Store what is left, in some seconds if need be, and the KV cache. Raises MinkError if it cannot."""
        give_up = time.monotonic() + _LAST_SECONDS
        while (problem := self.flush()) and time.monotonic() < give_up:
            time.sleep(0.1)
        self._save_cache()
        if problem:
            raise MinkError(f"the last messages could not be saved: {problem}")

    @property
    def _cache_path(self) -> Path | None:
        """The file for the KV cache of the conversation: one that is continued is not evaluated again."""
        if self.conversation is None or not (self.store.is_on_disk and self.settings["cache"]):
            return None
        return cache_path(self.conversation)

    @property
    def _seconds_to_read(self) -> float:
        """How long reading the conversation again would take, as its last long prompt did."""
        read = [answer for answer in self.branch if answer.evaluated_tokens >= _MEASURED_TOKENS]
        seconds = sum(answer.first_token_s / answer.evaluated_tokens for answer in read[-1:])
        return self.model.n_cached * seconds

    def _save_cache(self) -> None:
        path = self._cache_path
        if path and (path.exists() or self._seconds_to_read > LEAST_SECONDS):
            try:
                self.store.get(self.conversation or 0)
                write_cache(self.model, path)
            except (MinkError, OSError) as error:  # it was deleted, or the disk is full
                log.info("%s", error)

    def _answer(
        self, branch: Branch, params: SamplingParams, answer: StoredMessage | None = None
    ) -> "AnswerStream":
        """Generate an answer to the last message of a branch; if no token comes, the branch stays as it was.

        Args:
            answer: What it begins with; see `AnswerStream`.
        """
        answer, self._author = answer or StoredMessage("assistant"), ""
        self._undone.clear()
        try:
            messages = self.prompt(branch)
            reasons = self.settings["reasoning"]
            reply = self.model.chat(messages, params, enable_thinking=reasons, prefix=answer.tokens)
        except ValueError as error:  # a setting that does not suit this model: a grammar, a token id
            self.go_to(self.branch)
            raise click.UsageError(f"{error}.") from None
        except BaseException:
            self.go_to(self.branch)
            raise
        n_taken = len(answer.tokens)
        prompt = reply.prompt[: reply.prompt_tokens - n_taken]
        other = params.while_reasoning
        info = SamplingInfo(
            model=self.model.name,
            sampler=str(params.sampler),
            temperature=params.temperature,
            seed=reply.seed,
            first_token=n_taken,
            first_message=len(branch) - sum(message["role"] != "system" for message in messages),
            system=self.settings["system"],
            reasoning=reasons,
            constraints=_given(params.constraints or Constraints()),
            prompt=prompt_digest(prompt),
            reasoning_sampler=str(other.sampler) if params.has_phases else None,
            reasoning_temperature=other.temperature if params.has_phases else None,
        )
        answer.parts = [*answer.parts, info]
        dropped, self._start = info.first_message - self._start, info.first_message
        return AnswerStream(self, reply, [*branch, answer], dropped // 2)


class AnswerStream:
    """An answer while it is generated: its `pieces`, stored twice a second and at the end.

    Args:
        session: Goes on with the branch in the end, if any text came.
        branch: The messages before the answer, and the answer, which has the tokens that it begins with.

    Attributes:
        message: The answer so far, as it is stored; tokens and figures come at the end.
        dropped: How many of the oldest turns no longer fit the context.
    """

    def __init__(self, session: Session, reply: Reply, branch: Branch, dropped: int) -> None:
        self.reply = reply
        self.message = branch[-1]
        self.dropped = dropped
        self._session = session
        self._branch = branch
        self._has_text = False
        self._began = time.perf_counter()

    def pieces(self, waiting: Callable[[int], None] = lambda _: None) -> Generator[Piece, None, None]:
        """Yield the pieces of the answer that have a text, once, with what it begins with; Ctrl-C ends it.

        Args:
            waiting: Called now and then while none comes, with the number of unread tokens of the prompt.
        """
        reply, message = self.reply, self.message
        engine = self._session.model.core.engine
        unseen = [reply.prefix]
        try:
            with on_interrupt(reply.interrupt):
                for piece in iter(reply).reading(lambda: waiting(engine.unevaluated(reply.answer))):
                    message.first_token_s = message.first_token_s or time.perf_counter() - self._began
                    for part in (*unseen, piece):
                        if part.reasoning or part.content:
                            self._has_text = True
                            self._session.grow(self._branch, part)
                            yield part
                    unseen = []
        finally:
            reply.interrupt()  # the screen may have failed
            with suppress(GenerationError):
                reply.read()
            self._finish()

    def _finish(self) -> None:
        message, reply = self.message, self.reply
        if ended := [loop.token for loop in reply.loops if loop.is_ended]:
            message.repeats_since = len(message.tokens) + ended[-1] + 1
            if reply.finish_reason == "repetition":
                message.repeated = len("".join(self._session.model.token_texts(reply.tokens[ended[-1] :])))
        message.end(reply, time.perf_counter() - self._began)
        is_kept = self._has_text or message.finish_reason == "stop"
        self._session.go_to(self._branch if is_kept else self._session.branch)


def _given(constraints: Constraints) -> dict[str, object]:
    """Return the options that are not the defaults."""
    default = Constraints()
    return {name: value for name, value in vars(constraints).items() if value != getattr(default, name)}
