"""A comparison: one message, answered by several samplers at several temperatures with one seed."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from mink_local.chat.session import Messages, Session
from mink_local.chat.store import Outcome, SamplingInfo
from mink_local.errors import ContextOverflowError
from mink_local.generation.answer import Answer
from mink_local.generation.common_numbers import CommonNumbers, SampledToken
from mink_local.generation.model import Model
from mink_local.generation.reasoning import ReasoningSplitter
from mink_local.generation.request import Request
from mink_local.generation.slots import common_prefix
from mink_local.generation.text_stream import visible
from mink_local.llama.context import RANDOM_SEED
from mink_local.samplers import Sampler, label

_LONGEST = 200  # tokens of an answer, unless max-tokens is set: at T = 5 some never end


class ComparedAnswer:
    """One answer of a comparison: None until it is finished.

    Attributes:
        texts: What each token adds to the text.
        names: Each step's token in quotes, including the one that ends the answer.
    """

    def __init__(self, sampler: Sampler, temperature: float, seed: int) -> None:
        self.label = label(str(sampler))
        self.temperature = temperature
        self.sampler = CommonNumbers(sampler, seed)
        self.answer: Answer | None = None
        self.texts: list[str] = []
        self.names: list[str] = []

    @property
    def steps(self) -> list[SampledToken]:
        """The sampled tokens so far, including the one that ends the answer."""
        return self.sampler.steps

    @property
    def k(self) -> list[int]:
        return [step.k for step in self.steps]

    @property
    def tokens(self) -> list[int]:
        return [step.token for step in self.steps]

    @property
    def has_begun(self) -> bool:
        """True if it has a token, or an error took its place."""
        return bool(self.steps or (self.answer and self.answer.error))

    def finish(self, answer: Answer, model: Model) -> None:
        self.texts = model.texts(answer.tokens)
        self.names = [_name(token, model) for token in self.tokens]
        self.answer = answer


def shared(first: ComparedAnswer, other: ComparedAnswer) -> int:
    """Return how many steps two answers have in common."""
    return common_prefix(first.tokens, other.tokens)


def why_it_leaves(first: ComparedAnswer, other: ComparedAnswer, name: str) -> str:
    """Return where and why an answer leaves the `first`, which is called `name`; empty if it does not."""
    at = shared(first, other)
    if at == min(len(first.steps), len(other.steps)):
        return ""
    theirs, ours = first.steps[at], other.steps[at]
    where = f"leaves {name} at token {at + 1}: {other.names[at]}"
    if ours.rank > theirs.k:
        return f"{where}, rank {ours.rank:,}; {name} had cut at {theirs.k:,}"
    reason = f"{name} has {first.names[at]}, rank {theirs.rank:,}"
    if theirs.rank > ours.k:
        return f"{where}; {reason}, which is cut here at {ours.k:,}"
    return f"{where}, rank {ours.rank:,}; {reason}"  # equal logits, or sums that round differently


def _name(token: int, model: Model) -> str:
    return "the end" if model.weights.ends_generation(token) else repr(visible(model.weights.piece(token)))


@dataclass
class MethodComparison:
    """The cells, row by row of equal temperature, and the place of the message in the conversation."""

    message: str
    messages: Messages  # the prompt, with the message at its end
    seed: int
    cells: list[ComparedAnswer]
    n_methods: int
    how: SamplingInfo  # of all answers, except for sampler and temperature
    starts_as: str  # the first state of the `ReasoningSplitter` of an answer
    conversation: int | None
    parent: int | None  # the id of the message; of the one before it if it `is_new`
    is_new: bool  # the message is not part of the conversation

    @property
    def rows(self) -> list[list[ComparedAnswer]]:
        """The cells of each temperature."""
        starts = range(0, len(self.cells), self.n_methods)
        return [self.cells[start : start + self.n_methods] for start in starts]

    def first_beside(self, number: int) -> ComparedAnswer:
        """Return the first cell at the temperature of cell `number`, which counts from 1."""
        return self.rows[(number - 1) // self.n_methods][0]

    def number(self, cell: ComparedAnswer) -> int:
        """Return the number that a cell is called by."""
        return self.cells.index(cell) + 1

    def same_before(self, number: int) -> int | None:
        """Return the number of the first cell before cell `number` that has the same text."""
        cell = self.cells[number - 1]
        earlier = self.cells[: number - 1]
        return next((self.number(other) for other in earlier if other.tokens == cell.tokens), None)

    def answers(self, session: Session) -> Iterator[ComparedAnswer]:
        """Return an iterator that generates the answers, several at a time: cells as they are finished."""
        settings, model = session.settings, session.model
        params = replace(session.params(), max_tokens=settings["max_tokens"] or _LONGEST)
        requests = [
            Request(
                self.messages,
                replace(params, sampler=cell.sampler, temperature=cell.temperature),
                settings["think"],
            )
            for cell in self.cells
        ]

        def finished(answer: Answer) -> ComparedAnswer:
            if answer.finish_reason == "overflow":
                raise ContextOverflowError(answer.prompt_tokens, model.n_ctx)
            cell = self.cells[answer.index]
            cell.finish(answer, model)
            return cell

        return map(finished, model.complete(requests))

    def take(self, cell: ComparedAnswer, session: Session) -> None:
        """Make the answer of a cell the last one of the session's conversation.

        Raises ConversationChangedError as `Session.check_unchanged` does.
        """
        answer, store = cell.answer, session.store
        assert answer
        session.check_unchanged()
        if self.conversation is None:
            settings = session.settings
            self.conversation = session.conversation = store.begin(settings["model"], settings["system"])
        if self.is_new:
            self.parent = store.add(self.conversation, self.parent, "user", self.message)
            self.is_new = False  # another cell that is taken later answers the same message
        how = replace(self.how, sampler=str(cell.sampler), temperature=cell.temperature)
        message = store.add(self.conversation, self.parent, "assistant", how=how)
        splitter = ReasoningSplitter(self.starts_as)
        for part in [*splitter.feed(answer.text), *splitter.end()]:
            store.append(message, part.text, part.is_reasoning)
        outcome = Outcome(
            finish_reason=answer.finish_reason,
            tokens=answer.tokens,
            k=cell.k,
            prompt_tokens=answer.prompt_tokens,
            evaluated_tokens=answer.evaluated_tokens,
            seconds=answer.seconds,
        )
        store.finish(message, outcome)
        session.adopt(message)


def new_comparison(
    session: Session, text: str, temperatures: Sequence[float], samplers: Sequence[Sampler]
) -> MethodComparison:
    """Return a comparison whose answers are to be generated; without a text, of the last message.

    The seed is that of the settings, or a random one. Raises ValueError if there is no message.
    """
    branch = session.branch
    if not text:
        if not branch:
            raise ValueError("there is no message yet to be answered again: /compare TEXT")
        branch = branch[:-1]
    seed = session.settings["seed"]
    seed = secrets.randbelow(RANDOM_SEED) if seed is None else seed
    model, messages = session.model, session.prompt(branch, text)
    opened = model.opens_reasoning(messages, session.settings["think"])
    return MethodComparison(
        message=text or branch[-1].content,
        messages=messages,
        seed=seed,
        cells=[
            ComparedAnswer(sampler, temperature, seed) for temperature in temperatures for sampler in samplers
        ],
        n_methods=len(samplers),
        how=session.sampling_info(session.params(), seed, messages, len(branch) + bool(text)),
        starts_as="reasoning" if opened else "start" if model.can_reason else "text",
        conversation=session.conversation,
        parent=branch[-1].id if branch else None,
        is_new=bool(text),
    )
