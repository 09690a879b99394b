"""A conversation with a model: its messages, its settings, its answers. It knows nothing of the terminal."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from mink_local.chat.conversation.answer_stream import NO_PREFIX, AnswerStream, PendingAnswer, Prefix
from mink_local.chat.conversation.loop_guard import LoopGuard
from mink_local.chat.conversation.store import Conversation, ConversationStore, SamplingInfo, StoredMessage
from mink_local.chat.settings.values import Settings
from mink_local.errors import MinkError
from mink_local.generation.model import Model, Reply
from mink_local.generation.reasoning import joined
from mink_local.generation.request import SamplingParams
from mink_local.llama.constants import RANDOM_SEED
from mink_local.llama.constraints import Constraints

Messages = list[dict[str, str]]


class ConversationChangedError(MinkError):
    """Another program has changed the conversation since this one looked last."""


def as_messages(system: str | None, branch: Sequence[StoredMessage]) -> Messages:
    """Return a system prompt, if there is one, and the messages of a branch, without reasoning and loops."""
    messages = [{"role": "system", "content": system}] if system else []
    return messages + [{"role": message.role, "content": message.to_evaluate} for message in branch]


def drop_oldest_turns(messages: Messages, model: Model, max_tokens: int | None) -> Messages:
    """Return messages that leave space in the context for an answer, at most a quarter of it.

    If the conversation has outgrown the context, the oldest turns are dropped until half of it is free: with
    one turn at a time the beginning of the prompt, and so the whole KV cache, would change at every turn.
    System messages and the last turn are always kept.
    """
    reserved = model.n_ctx // 4 if max_tokens is None else min(max_tokens, model.n_ctx // 4)
    if not messages or model.count_tokens(messages) <= model.n_ctx - reserved:
        return messages
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    starts = [i for i, message in enumerate(others) if message["role"] == "user"]
    kept = messages
    for start in starts[1:]:
        kept = system + others[start:]
        if model.count_tokens(kept) <= model.n_ctx // 2:
            break
    return kept


def prompt_digest(tokens: Sequence[int]) -> str:
    """Return what tells a prompt's token ids from any other's."""
    return hashlib.blake2b(array("i", tokens).tobytes(), digest_size=8).hexdigest()


class Session:
    """A model, the settings, and the current conversation in a store."""

    def __init__(self, model: Model, settings: Settings, store: ConversationStore) -> None:
        self.model = model
        self.settings = settings
        self.store = store
        self.clear()

    def clear(self) -> None:
        """Begin another conversation; the store keeps the one before."""
        self.conversation: int | None = None  # its id, from its first message on
        self.branch: list[StoredMessage] = []  # the current one, from the first message to the last
        self._undone: list[int] = []  # the ends of the branches that `undo` left, the last one last
        self._start = 0  # index of the first message of the branch that still fits the context
        self._head: int | None = None  # the end of the branch in the store, as it was last known

    def load(self, conversation: Conversation) -> str | None:
        """Continue a conversation; return a last message that was never answered, which is taken back."""
        self.clear()
        self.conversation = conversation.id
        source = f"conversation {conversation.name or conversation.id}"
        self.settings.put("system", conversation.system, source)
        self._go_to(conversation.head)
        if self.branch and self.branch[-1].role == "user":
            text = self.branch[-1].content
            self._go_to(self.branch[-1].parent)
            return text
        return None

    def changed_model(self) -> None:
        """Note that another model continues the conversation."""
        self._start = 0
        if self.conversation is not None:
            self.store.change(self.conversation, model=self.settings["model"])

    def set_system(self, text: str | None, source: str) -> None:
        """Set the system prompt, None for none, and keep it with the conversation."""
        self.settings.put("system", text, source)
        if self.conversation is not None:
            self.store.change(self.conversation, system=text)

    def check_unchanged(self) -> None:
        """Raise ConversationChangedError, once, if another program went on with the conversation."""
        if self.conversation is None:
            return
        stored = self.store.get(self.conversation)
        if stored.head != self._head:
            self._head = stored.head
            name = stored.name or stored.id
            raise ConversationChangedError(
                f"this conversation was continued in another window: /load {name} goes on from there; "
                "the same again goes on from here, as another branch"
            )

    def ask(self, text: str) -> AnswerStream:
        """Return the answer to a message, which after an error is not part of the conversation.

        Raises ValueError if a setting does not suit the model; MinkError if the prompt does not fit the
        context, or the chat template refuses it; ConversationChangedError if another program went on with
        the conversation, but not the next time, when the message begins a branch.
        """
        self.check_unchanged()
        if self.conversation is None:
            self.conversation = self.store.begin(self.settings["model"], self.settings["system"])
        before = self.branch[-1].id if self.branch else None
        self._go_to(self.store.add(self.conversation, before, "user", text))
        return self._answer(before, self.params())

    def edit(self, text: str) -> AnswerStream:
        """Return the answer to a message that replaces the last one. Raises as `ask` does."""
        last = self.last_answer()
        self.check_unchanged()
        assert self.conversation is not None
        self._go_to(self.store.add(self.conversation, self.branch[-2].parent, "user", text))
        return self._answer(last.id, self.params())

    def regenerate(self, temperature: float | None = None, seed: int | None = None) -> AnswerStream:
        """Return another answer to the last message. Raises as `ask` does.

        A seed of the settings is counted up by the number of earlier answers, so that the text differs.
        """
        last = self.last_answer()
        self.check_unchanged()
        if seed is None and self.settings["seed"] is not None:
            seed = (self.settings["seed"] + len(self.alternatives())) % RANDOM_SEED
        params = self.params()
        if temperature is not None:
            params = replace(params, temperature=temperature)
        if seed is not None:
            params = replace(params, seed=seed)
        self._go_to(last.parent)
        return self._answer(last.id, params)

    def extend(self) -> AnswerStream:
        """Return an answer that was cut short and its rest, as another answer. Raises as `ask` does."""
        last = self.last_answer()
        if last.outcome and last.outcome.finish_reason == "stop":
            raise ValueError("the last answer is finished: there is nothing to continue")
        prefix = replace(self._prefix(last), continued=last)
        self.check_unchanged()
        self._go_to(last.parent)
        return self._answer(last.id, self.params(), prefix)

    def fork(self, at: int, token: int) -> AnswerStream:
        """Return another answer to the last message: the last answer before token `at`, then another token.

        `at` counts from 0. Raises as `ask` does.
        """
        last = self.last_answer()
        whole = self._prefix(last)
        tokens = [*whole.tokens[:at], token]
        prefix = Prefix(
            tokens=tokens,
            k=whole.k[: at + 1],
            parts=[part for part in whole.parts if part.first_token <= at],
            chosen=[*(index for index in whole.chosen if index < at), at],
            text="".join(self.model.token_texts(tokens)),
        )
        self.check_unchanged()
        self._go_to(last.parent)
        return self._answer(last.id, self.params(), prefix)

    def undo(self) -> StoredMessage:
        """Take back the last message and its answer; return the message. `redo` brings both back."""
        if not self.branch:
            raise ValueError("there is nothing to take back")
        self.check_unchanged()
        message = self.branch[-2]
        self._undone.append(self.branch[-1].id)
        self._go_to(message.parent)
        return message

    def redo(self) -> None:
        """Bring back the message and the answer that the last `undo` took."""
        if not self._undone:
            raise ValueError("there is nothing to bring back")
        self._go_to(self._undone.pop())

    def alternatives(self) -> list[StoredMessage]:
        """Return all answers to the last message, oldest first."""
        last = self.last_answer()
        assert self.conversation is not None
        return self.store.children(self.conversation, last.parent)

    def choose(self, answer: StoredMessage) -> None:
        """Continue with another answer to the last message."""
        self.check_unchanged()
        self.adopt(answer.id)

    def adopt(self, answer: int) -> None:
        """Continue with the answer of an id, which was added to the conversation in the store."""
        self._undone.clear()
        self._go_to(answer)

    def last_answer(self) -> StoredMessage:
        """Return the last answer. Raises ValueError if there is none."""
        if not self.branch:
            raise ValueError("there is no answer yet")
        return self.branch[-1]

    def prompt(self, branch: Sequence[StoredMessage], text: str = "") -> Messages:
        """Return the messages for the model: without reasoning, and without turns that do not fit.

        A text is one more message of the user.
        """
        messages = self.messages(branch) + ([{"role": "user", "content": text}] if text else [])
        return drop_oldest_turns(messages, self.model, self.settings["max_tokens"])

    def messages(self, branch: Sequence[StoredMessage]) -> Messages:
        """Return the messages that the context holds, before space is made for an answer."""
        return as_messages(self.settings["system"], branch[self._start :])

    def answer_tokens(self, answer: StoredMessage) -> list[int]:
        """Return the sampled token ids of an answer, or this model's if they are unknown or another's."""
        written_by = answer.parts[-1].model if answer.parts else None
        if answer.outcome and answer.outcome.tokens and written_by == self.model.name:
            return answer.outcome.tokens
        messages = self.prompt(self.branch[:-1])
        opened = self.model.opens_reasoning(messages, self.settings["think"])
        return self.model.tokenize(joined(answer.thinking, answer.content, opened))

    def _prefix(self, answer: StoredMessage) -> Prefix:
        """Return the tokens of an answer as the prefix of another."""
        tokens, outcome = self.answer_tokens(answer), answer.outcome
        if outcome and tokens is outcome.tokens:
            return Prefix(tokens, outcome.k[: len(tokens)], answer.parts, outcome.chosen)
        return Prefix(tokens, [0] * len(tokens), answer.parts[:1])

    def params(self) -> SamplingParams:
        """Return how the next answer is sampled."""
        settings = self.settings
        return SamplingParams(
            sampler=settings.sampler,
            temperature=settings["temp"],
            max_tokens=settings["max_tokens"],
            seed=settings["seed"],
            constraints=settings.constraints,
        )

    def sampling_info(
        self, params: SamplingParams, seed: int, messages: Messages, n_messages: int, first_token: int = 0
    ) -> SamplingInfo:
        """Return what is stored with an answer to messages: the last ones of a branch of `n_messages`."""
        thinking = self.settings["think"]
        return SamplingInfo(
            model=self.model.name,
            sampler=str(params.sampler),
            temperature=params.temperature,
            seed=seed,
            first_token=first_token,
            first_message=n_messages - sum(message["role"] != "system" for message in messages),
            system=self.settings["system"],
            thinking=thinking,
            constraints=_given(params.constraints),
            prompt=prompt_digest(self.model.prompt_tokens(messages, thinking)),
        )

    def _go_to(self, head: int | None) -> None:
        """Make a message the end of the branch; None: before the first message."""
        assert self.conversation is not None
        self.store.change(self.conversation, head=head)
        self._head = head
        self.branch = self.store.branch(head)
        if self._start >= len(self.branch):
            self._start = 0

    def _answer(
        self, head_before: int | None, params: SamplingParams, prefix: Prefix = NO_PREFIX
    ) -> AnswerStream:
        """Generate an answer to the last message; if no token comes, the branch is reset to `head_before`."""
        self._undone.clear()
        try:
            messages = self.prompt(self.branch)
            thinking = self.settings["think"]
            reply = self.model.chat(messages, params, enable_thinking=thinking, prefix=prefix.tokens)
        except BaseException:
            self._go_to(head_before)
            raise
        info = self.sampling_info(params, reply.seed, messages, len(self.branch), len(prefix.tokens))
        dropped, self._start = info.first_message - self._start, info.first_message
        assert self.conversation is not None
        pending = PendingAnswer(
            conversation=self.conversation,
            parent=self.branch[-1].id,
            sampling_info=info,
            starts_as=self._starts_as(reply, prefix.continued),
            dropped=dropped // 2,
            prefix=prefix,
        )
        guard = LoopGuard() if self.settings["loop_guard"] else None
        return AnswerStream(reply, self.store, pending, partial(self._end_answer, head_before), guard)

    def _starts_as(self, reply: Reply, continued: StoredMessage | None) -> str:
        """Return the first state of the `ReasoningSplitter` of an answer."""
        if continued and continued.content:
            return "text"
        if reply.in_reasoning or (continued and continued.thinking):
            return "reasoning"
        return "start" if self.model.can_reason else "text"

    def _end_answer(self, head_before: int | None, message: int | None) -> None:
        self._go_to(head_before if message is None else message)


def _given(constraints: Constraints | None) -> dict[str, Any]:
    """Return the options that are not the defaults."""
    given = vars(constraints or Constraints())
    return {name: value for name, value in given.items() if value != getattr(Constraints(), name)}
