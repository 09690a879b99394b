"""A conversation with a model: its messages, its settings, its answers. It knows nothing of the terminal."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mink_local.chat.answer_stream import Answer
from mink_local.chat.reasoning import joined
from mink_local.chat.settings import Settings
from mink_local.chat.store import Conversation, How, Message, Store

if TYPE_CHECKING:
    from mink_local.generation.model import Model, Reply

Messages = list[dict[str, str]]


def drop_oldest_turns(messages: Messages, model: "Model", max_tokens: int | None) -> tuple[Messages, int]:
    """`messages` that leave room for an answer, and how many turns were dropped for it.

    A turn is a user's message and its answer. Where the conversation has outgrown the context, the
    oldest turns go until half of it is free: dropping one at a time would change the beginning of the
    prompt, and with it the whole KV cache, at every turn. System messages and the last turn stay.
    """
    room = model.n_ctx // 4 if max_tokens is None else min(max_tokens, model.n_ctx // 4)
    if model.count_tokens(messages) <= model.n_ctx - room:
        return messages, 0
    system = [message for message in messages if message["role"] == "system"]
    others = [message for message in messages if message["role"] != "system"]
    starts = [i for i, message in enumerate(others) if message["role"] == "user"]
    for dropped, start in enumerate(starts):
        kept = system + others[start:]
        if dropped and model.count_tokens(kept) <= model.n_ctx // 2:
            break
    return kept, dropped


class Session:
    """A model, the settings, and the conversation that is talked on, in a store.

    branch: the messages so far, as the store has them. conversation: its number there, None before the first
    message.
    """

    def __init__(self, model: "Model", settings: Settings, store: Store) -> None:
        self.model = model
        self.settings = settings
        self.store = store
        self.clear()

    def clear(self) -> None:
        """Begin another conversation; the one before stays in the store."""
        self.conversation: int | None = None
        self.branch: list[Message] = []
        self._undone: list[int] = []  # where `undo` came from
        self._start = 0  # of the branch: what is before no longer fits the context

    def load(self, conversation: Conversation) -> str | None:
        """Go on with a conversation. Returns the text of a last message that was never answered, which is
        taken back: it can be sent again."""
        self.conversation = conversation.id
        self._undone.clear()
        self.settings.put(
            "system", conversation.system, f"conversation {conversation.name or conversation.id}"
        )
        self._start = 0
        self.go_to(conversation.head)
        if self.branch and self.branch[-1].role == "user":
            text = self.branch[-1].content
            self.go_to(self.branch[-1].parent)
            return text
        return None

    def changed_model(self) -> None:
        """Note that another model goes on with the conversation."""
        self._start = 0
        if self.conversation is not None:
            self.store.set_model(self.conversation, self.settings["model"])

    def set_system(self, text: str | None) -> None:
        self.settings["system"] = text
        if self.conversation is not None:
            self.store.set_system(self.conversation, text)

    def go_to(self, head: int | None) -> None:
        """Have the branch end at a message, None for before the first."""
        assert self.conversation is not None
        self.store.set_head(self.conversation, head)
        self.branch = self.store.branch(head)
        if self._start >= len(self.branch):
            self._start = 0

    # What can be asked for

    def ask(self, text: str) -> Answer:
        """The answer to `text`, to be iterated over. Raises ValueError or MinkError where there is none, and
        then the message is not part of the conversation."""
        if self.conversation is None:
            self.conversation = self.store.begin(self.settings["model"], self.settings["system"])
        before = self.branch[-1].id if self.branch else None
        self.go_to(self.store.add(self.conversation, before, "user", text))
        return self._answer(before, self.options())

    def edit(self, text: str) -> Answer:
        """Answer `text` in place of the last message; that one and its answer stay in the store."""
        last = self.last_answer()
        assert self.conversation is not None
        self.go_to(self.store.add(self.conversation, self.branch[-2].parent, "user", text))
        return self._answer(last.id, self.options())

    def regenerate(self, temperature: float | None = None, seed: int | None = None) -> Answer:
        """Another answer to the last message. A fixed seed gives another text too: it is counted up."""
        last = self.last_answer()
        assert self.conversation is not None
        if seed is None and self.settings["seed"] is not None:
            others = len(self.store.children(self.conversation, last.parent))
            seed = (self.settings["seed"] + others) % (2**32 - 1)
        self.go_to(last.parent)
        options = self.options()
        options["temperature"] = options["temperature"] if temperature is None else temperature
        options["seed"] = options["seed"] if seed is None else seed
        return self._answer(last.id, options)

    def extend(self) -> Answer:
        """Go on with an answer that was cut short."""
        last = self.last_answer()
        if last.outcome and last.outcome.finish_reason == "stop":
            raise ValueError("the last answer is finished: there is nothing to go on with")
        return self._answer(last.id, self.options(), last)

    def undo(self) -> Message:
        """Take back the last message and its answer; returns the message. `redo` brings them back."""
        if not self.branch:
            raise ValueError("there is nothing to take back")
        message = self.branch[-2]
        self._undone.append(self.branch[-1].id)
        self.go_to(message.parent)
        return message

    def redo(self) -> None:
        """Bring back what `undo` took, or else the newest of what was ever said here."""
        if self._undone:
            self.go_to(self._undone.pop())
            return
        if self.conversation is not None:
            head = self.branch[-1].id if self.branch else None
            for message in reversed(self.store.children(self.conversation, head)):
                if answers := self.store.children(self.conversation, message.id):
                    self.go_to(answers[-1].id)
                    return
        raise ValueError("there is nothing to bring back")

    def alternatives(self) -> list[Message]:
        """The answers that were ever given to the last message, oldest first."""
        last = self.last_answer()
        assert self.conversation is not None
        return self.store.children(self.conversation, last.parent)

    def choose(self, answer: Message) -> None:
        """Go on with another answer to the last message."""
        self.go_to(answer.id)

    def last_answer(self) -> Message:
        """Raises ValueError where there is none."""
        if not self.branch:
            raise ValueError("there is no answer yet")
        return self.branch[-1]

    # What the model is given

    def prompt(self, branch: Sequence[Message], forget: bool = False) -> tuple[Messages, int]:
        """The messages for the model, without thoughts and without what no longer fits the context, and
        how many turns had to be dropped from it now. forget: they are dropped for good."""
        system = self.settings["system"]
        whole = [{"role": "system", "content": system}] if system else []
        whole += [{"role": message.role, "content": message.content} for message in branch[self._start :]]
        kept, dropped = drop_oldest_turns(whole, self.model, self.settings["max_tokens"])
        if forget:
            self._start += len(whole) - len(kept)
        return kept, dropped

    def written(self, answer: Message) -> list[int]:
        """The tokens of an answer: as they were drawn, or, where that is not known or another model drew
        them, as this model would read them."""
        if answer.outcome and answer.outcome.tokens and answer.how and answer.how.model == self.model.name:
            return answer.outcome.tokens
        messages, _ = self.prompt(self.branch[:-1])
        opened = self.model.opens_reasoning(messages, self.settings["think"])
        return self.model.tokenize(joined(answer.thinking, answer.content, opened))

    def options(self, **changes: Any) -> dict[str, Any]:
        """Of `Model.chat`, as the settings are."""
        settings = self.settings
        options = {
            "sampler": settings.sampler,
            "temperature": settings["temp"],
            "max_tokens": settings["max_tokens"],
            "seed": settings["seed"],
            "constraints": settings.constraints,
            "enable_thinking": settings["think"],
        }
        return {**options, **changes}

    def reread(self) -> "Reply | None":
        """What has the model read the conversation as it is iterated over, so that the next answer begins
        at once; None where there is nothing to read."""
        if not self.branch:
            return None
        messages, _ = self.prompt(self.branch)
        return self.model.chat(messages, max_tokens=1, enable_thinking=self.settings["think"])

    def _answer(
        self, head_before: int | None, options: dict[str, Any], continued: Message | None = None
    ) -> Answer:
        """Answer the last message of the branch; `head_before` is gone back to where nothing comes."""
        self._undone.clear()
        try:
            messages, dropped = self.prompt(self.branch[:-1] if continued else self.branch, forget=True)
            begun = self.written(continued) if continued else []
            reply = self.model.chat(messages, prefix=begun, **options)
        except BaseException:
            self.go_to(head_before)
            raise
        how = How(self.model.name, str(options["sampler"]), options["temperature"], reply.seed)
        return Answer(self, reply, how, head_before, dropped, continued, begun)
