"""A comparison: one message answered by several samplers with the same random numbers."""

import secrets
from collections.abc import Generator, Sequence
from dataclasses import replace

from mink_local.chat.conversation.session import Session
from mink_local.chat.conversation.store import StoredMessage
from mink_local.errors import ContextOverflowError
from mink_local.generation.answer import Answer
from mink_local.generation.common_numbers import CommonNumbers
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.generation.slots import common_prefix
from mink_local.generation.text import visible
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import Sampler, label

_LONGEST = 200  # tokens of an answer, unless max-tokens is set: at T = 5 some never end


class Comparison:
    """Answers of several samplers to one message, and the place of the message in the conversation.

    The seed is that of the settings, or a random one.

    Args:
        text: The message; "" answers the last one again.

    Attributes:
        samplers: With the tokens they have sampled so far, including the one that ends an answer.
        answers: Those of the samplers, None until they are finished.

    Raises:
        ValueError: There is no message to answer again.
    """

    def __init__(self, session: Session, text: str, temperature: float, samplers: Sequence[Sampler]) -> None:
        branch, seed = session.branch, session.settings["seed"]
        if not text:
            if not branch:
                raise ValueError("there is no message yet: /compare TEXT")
            branch = branch[:-1]
        if seed is None:
            seed = secrets.randbelow(RANDOM_SEED)
        self.message = text or branch[-1].content
        self.prompt = session.prompt(branch, text)
        self.samplers = [CommonNumbers(sampler, seed) for sampler in samplers]
        self.answers: list[Answer | None] = [None] * len(samplers)
        params = replace(session.settings.params, temperature=temperature)
        self.info = session.sampling_info(params, seed, self.prompt, len(branch) + bool(text))
        self.conversation = session.conversation
        self._branch = [*branch, StoredMessage("user", text)] if text else branch

    def title(self, number: int) -> str:
        """Return the number of an answer, which counts from 1, and its sampler."""
        return f"{number}  {label(str(self.samplers[number - 1]))}"

    def generate(self, session: Session) -> Generator[Answer, None, None]:
        """Generate the answers side by side, in KV caches of their own; yield each when it is finished.

        Raises:
            ContextOverflowError: The prompt does not fit the context.
        """
        model, settings, before = session.model, session.settings, session.model.n_ctx
        max_tokens = settings["max_tokens"] or _LONGEST
        params = replace(session.settings.params, temperature=self.info.temperature, max_tokens=max_tokens)
        requests = [
            Request(self.prompt, replace(params, sampler=sampler), settings["think"])
            for sampler in self.samplers
        ]
        n_prompt = len(model.prompt_tokens(self.prompt, settings["think"]))
        model.reserve(min(before, n_prompt + max_tokens), len(requests))
        try:
            for answer in model.answer_all(requests):
                if answer.finish_reason == "overflow":
                    raise ContextOverflowError(answer.prompt_tokens, before)
                self.answers[answer.index] = answer
                yield answer
        finally:
            model.reserve(before)

    def take(self, number: int, session: Session) -> None:
        """Make an answer the last one of the session's conversation.

        Raises ConversationChangedError as `Session.check_unchanged` does.
        """
        answer, sampler = self.answers[number - 1], self.samplers[number - 1]
        if answer is None or not answer.tokens:
            raise ValueError(f"answer {number} is empty")
        session.check_unchanged()
        if not self._branch[-1].id:  # another answer that is taken later is one to the same message
            session.add(self._branch)
        taken = StoredMessage(
            "assistant",
            answer.content,
            thinking=answer.reasoning,
            parts=[replace(self.info, sampler=str(sampler))],
            finish_reason=answer.finish_reason,
            tokens=answer.tokens,
            k=sampler.k,
            prompt_tokens=answer.prompt_tokens,
            evaluated_tokens=answer.evaluated_tokens,
            seconds=answer.seconds,
        )
        session.add([*self._branch, taken])
        session.go_to([*self._branch, taken])
        self.conversation = session.conversation


def divergence(first: CommonNumbers, other: CommonNumbers, model: Model) -> str:
    """Say where and why an answer leaves the first one."""

    def name(token: int) -> str:
        ends = model.weights.ends_generation(token)
        return "the end" if ends else repr(visible(model.weights.piece(token)))

    at = common_prefix(first.tokens, other.tokens)
    if at == min(len(first.steps), len(other.steps)):
        return "cut off before it leaves 1"
    theirs, ours = first.steps[at], other.steps[at]
    where = f"leaves 1 at token {at + 1}: {name(ours.token)}, rank {ours.rank:,}"
    if ours.rank > theirs.k:
        return f"{where}; 1 had cut at {theirs.k:,}"
    where += f"; 1 has {name(theirs.token)}, rank {theirs.rank:,}"
    return f"{where}, which is cut here at {ours.k:,}" if theirs.rank > ours.k else where
