"""/compare: one message answered by several samplers with the same random numbers."""

import re
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches

from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.conversation.session import Session
from mink_local.chat.conversation.store import StoredMessage
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.progress import candidates
from mink_local.chat.terminal.screen import Screen, counted, one_line
from mink_local.errors import ContextOverflowError, MinkError
from mink_local.generation.answer import Answer
from mink_local.generation.common_numbers import CommonNumbers
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.generation.sampling_step import compared_with
from mink_local.generation.slots import common_prefix
from mink_local.generation.text import visible
from mink_local.interrupts import on_interrupt
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import SAMPLERS, MinK, Sampler, label, parse

_SHARED = 30  # characters of the common beginning that are shown again
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
        MinkError: There is no message to answer again.
    """

    def __init__(self, session: Session, text: str, temperature: float, samplers: Sequence[Sampler]) -> None:
        branch, seed = session.branch, session.settings["seed"]
        if not text:
            if not branch:
                raise MinkError("there is no message yet: /compare TEXT")
            branch = branch[:-1]
        if seed is None:
            seed = secrets.randbelow(RANDOM_SEED)
        self.message = text or branch[-1].content
        self.prompt = session.prompt(branch, text)
        self.samplers = [CommonNumbers(sampler, seed) for sampler in samplers]
        self.answers: list[Answer | None] = [None] * len(samplers)
        params = replace(session.settings.params, temperature=temperature)
        prompt = session.model.prompt_tokens(self.prompt, session.settings["reasoning"])
        self._n_prompt = len(prompt)
        self.info = session.sampling_info(params, seed, prompt, self.prompt, len(branch) + bool(text))
        self.conversation = session.conversation
        self._branch = [*branch, StoredMessage("user", text)] if text else branch

    def generate(
        self, session: Session, waiting: Callable[[], object] = lambda: None
    ) -> Generator[Answer, None, None]:
        """Generate the answers side by side, in KV caches of their own; yield each when it is finished.

        `waiting` is called now and then meanwhile.

        Raises:
            ContextOverflowError: The prompt does not fit the context.
        """
        model, settings, before = session.model, session.settings, session.model.n_ctx
        max_tokens = settings["max_tokens"] or _LONGEST
        params = replace(session.settings.params, temperature=self.info.temperature, max_tokens=max_tokens)
        requests = [
            Request(self.prompt, replace(params, sampler=sampler), enable_thinking=settings["reasoning"])
            for sampler in self.samplers
        ]
        model.reserve(min(before, self._n_prompt + max_tokens), len(requests))
        try:
            for answer in model.answer_all(requests).reading(waiting):
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
            raise MinkError(f"answer {number} is empty")
        session.check_unchanged()
        taken = StoredMessage("assistant", parts=[replace(self.info, sampler=str(sampler))])
        taken.add(answer.reasoning, answer.content)
        taken.end(answer, answer.seconds)
        taken.k = sampler.k
        session.go_to([*self._branch, taken])
        self.conversation = session.conversation


def divergence(first: CommonNumbers, other: CommonNumbers, model: Model) -> str:
    """Say where and why an answer leaves the first one."""

    def name(token: int) -> str:
        ends = model.weights.ends_generation(token)
        return "the end" if ends else repr(visible(model.weights.piece(token)))

    at = common_prefix(first.tokens, other.tokens)
    if at == min(len(first.steps), len(other.steps)):
        return "cut off before it differs from answer 1"
    theirs, ours = first.steps[at], other.steps[at]
    where = f"differs from answer 1 at token {at + 1}: {name(ours.token)} (rank {ours.rank:,})"
    if not theirs.keeps(ours.rank):
        return f"{where}, which answer 1's sampler cuts"
    where += f", not {name(theirs.token)} (rank {theirs.rank:,})"
    return where if ours.keeps(theirs.rank) else f"{where}, which this sampler cuts"


def compare(chat: Chat, argument: str) -> None:
    """Answer TEXT, or the last message, with several samplers and the same random numbers.

    At one temperature, two answers then differ only if one sampler keeps a token that the other cuts. The
    conversation does not change: /compare take N goes on with answer N, as a branch.

    T=5: at this temperature. SAMPLER, such as top-k:k=5: with these samplers, not the usual ones. --: what
    follows is TEXT, even if it begins with the name of a sampler.
    """
    if taken := re.fullmatch(r"take\s+(\d+)", argument):
        take(chat, int(taken[1]))
        return
    session = chat.session
    temperature, samplers, text = parsed(argument, session.settings["temp"], session.settings.sampler)
    comparison = Comparison(session, text, temperature, samplers)
    if not text:
        chat.screen.own(comparison.message)
    chat.screen.note(f"temperature {temperature:g}, seed {comparison.info.seed}, the same random numbers\n")
    _generate(chat, comparison)
    chat.comparison = comparison
    chat.screen.note("the conversation is unchanged: /compare take N continues with answer N")


def parsed(argument: str, temperature: float, own: Sampler) -> tuple[float, list[Sampler], str]:
    """Return temperature, samplers and text of an argument; the first two default to those in use."""
    samplers: list[Sampler] = []
    while argument:
        word = argument.split(maxsplit=1)[0]
        if word.startswith("T="):
            temperature = BY_KEY["temp"].type(word.removeprefix("T="))
        elif _is_meant_as_sampler(word):
            try:
                samplers.append(parse(word, "temperature-last"))
            except ValueError as error:
                raise MinkError(f"{error}; -- before the message sends it as it is") from None
        elif word != "--":
            break
        argument = argument[len(word) :].lstrip()
        if word == "--":
            break
    if temperature == 0:
        raise MinkError("at temperature 0 all samplers are greedy: /compare T=5 compares them at 5")
    for sampler in samplers:
        if sampler.is_stateful:
            raise MinkError(f"{sampler.name} cannot share random numbers: leave it out")
    return temperature, list(dict.fromkeys(samplers or _usual(own))), argument


def _is_meant_as_sampler(word: str) -> bool:
    """Return whether a word is a sampler, or could be a mistyped one: minp:p=0.1, top-k=5."""
    name = re.split("[:=+]", word)[0]
    is_like_one = (name != word or "-" in word) and get_close_matches(name, SAMPLERS, cutoff=0.8)
    return (name == word and name in SAMPLERS) or bool(is_like_one)


def _usual(own: Sampler) -> list[Sampler]:
    """Return the sampler in use, and those with an option to tune, in llama.cpp's order."""
    own, *others = compared_with(MinK() if own.is_stateful else own)
    return [own, *(other for other in others if other.sweep and other.order != "temperature-first")]


def _generate(chat: Chat, comparison: Comparison) -> None:
    """Generate the answers; show each as soon as it and those before it are finished."""
    screen, model = chat.screen, chat.session.model
    unshown = list(range(1, len(comparison.answers) + 1))

    def update() -> None:
        n_tokens = sum(len(sampler.tokens) for sampler in comparison.samplers)
        screen.progress(f"{counted(len(unshown), 'answer')} to come, {counted(n_tokens, 'token')} so far")

    with on_interrupt(model.interrupt), closing(comparison.generate(chat.session, update)) as answers:
        for _ in answers:
            while unshown and comparison.answers[unshown[0] - 1]:
                _show(screen, comparison, unshown.pop(0), model)
    screen.progress()


def _show(screen: Screen, comparison: Comparison, number: int, model: Model) -> None:
    """Show an answer: the first one whole, another from where it leaves the first."""
    answer, sampler, first = (
        comparison.answers[number - 1],
        comparison.samplers[number - 1],
        comparison.samplers[0],
    )
    assert answer
    if answer.finish_reason == "interrupted" and not answer.tokens:
        return
    screen.show(Text(f"{number}  {label(str(sampler))}", "bold"))
    same = next(i for i, other in enumerate(comparison.samplers, 1) if other.tokens == sampler.tokens)
    if number == 1:
        screen.show(Text(answer.text.rstrip()))
    elif same < number:
        screen.show(Text(f"the same text as {same}"))
    else:
        common = "".join(model.token_texts(answer.tokens[: common_prefix(first.tokens, sampler.tokens)]))
        beginning = Text(f"…{one_line(common[-_SHARED:], _SHARED)} " if common else "", "dim")
        screen.show(Text(divergence(first, sampler, model)))
        screen.show(Text.assemble(beginning, "▸", answer.text[len(common) :].rstrip()))
    ends = {"length": "; cut off", "interrupted": "; interrupted", "error": f"; {answer.error}"}
    end = ends.get(answer.finish_reason or "", "")
    figures = f"; {candidates(sampler.k)}" if sampler.k else ""
    screen.show(Text(f"({counted(answer.n_tokens, 'token')}{end}{figures})\n", "dim"))


def take(chat: Chat, number: int) -> None:
    """Make an answer of the last comparison part of the conversation, as a branch."""
    comparison, session = chat.comparison, chat.session
    if not isinstance(comparison, Comparison):
        raise MinkError("nothing has been compared yet: /compare TEXT")
    if not 1 <= number <= len(comparison.answers):
        raise MinkError(f"the comparison has {counted(len(comparison.answers), 'answer')}")
    if session.conversation != comparison.conversation:
        raise MinkError("the comparison belongs to another conversation: /load goes back to it")
    comparison.take(number, session)
    chat.screen.text(session.last_answer().content)
    chat.screen.note(f"answer {number} is part of the conversation; /pick lists all answers to this message")
