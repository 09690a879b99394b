"""/compare: one message answered by several samplers with the same random numbers."""

import re
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from difflib import get_close_matches

from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.comparing import CommonNumbers
from mink_local.chat.conversation.session import Messages, Session
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.progress import candidates
from mink_local.chat.terminal.screen import Screen, one_line
from mink_local.cli import counted
from mink_local.errors import ContextOverflowError, MinkError
from mink_local.generation.answer import Answer
from mink_local.generation.engine.slots import common_prefix
from mink_local.generation.format.text import visible
from mink_local.generation.model import Model
from mink_local.generation.request import Request
from mink_local.interrupts import on_interrupt
from mink_local.llama.constants import RANDOM_SEED
from mink_local.samplers import SAMPLERS, MinK, Sampler, label, parse

_SHARED = 30  # characters of the common beginning that are shown again
_LONGEST = 200  # tokens of an answer, unless max-tokens is set: at T = 5 some never end


def compare(chat: Chat, argument: str) -> None:
    """Answer TEXT, or the last message, with several samplers and the same random numbers.

    At one temperature, two answers then differ only if one sampler keeps a token that the other cuts. The
    conversation does not change: /sampler NAME and /regen go on with another sampler.

    They are the sampler in use, llama.cpp's default and min-p, unless you name others. T=5: at this
    temperature. SAMPLER, such as top-k:k=5: with these samplers. --: what follows is TEXT, even if it begins
    with the name of a sampler.
    """
    session, screen = chat.session, chat.screen
    temperature, samplers, text = parsed(argument, session.settings["temp"], session.settings.sampler)
    if not (text or session.branch):
        raise MinkError("there is no message yet: /compare TEXT")
    prompt = session.prompt(session.branch if text else session.branch[:-1], text)
    seed = session.settings["seed"]
    if seed is None:
        seed = secrets.randbelow(RANDOM_SEED)
    common = [CommonNumbers(sampler, seed) for sampler in samplers]
    if not text:
        screen.own(session.branch[-2].typed)
    screen.note(f"temperature {temperature:g}, seed {seed}, the same random numbers")
    screen.show("")
    _generate(chat, prompt, temperature, common)


def _answers(
    session: Session,
    prompt: Messages,
    temperature: float,
    samplers: Sequence[Sampler],
    waiting: Callable[[], object],
) -> Generator[Answer, None, None]:
    """Generate the answers side by side, in KV caches of their own; yield each in order.

    `waiting` is called now and then meanwhile. Raises ContextOverflowError if the prompt does not fit.
    """
    model, settings, before = session.model, session.settings, session.model.n_ctx
    max_tokens, reasoning = settings["max_tokens"] or _LONGEST, settings["reasoning"]
    params = replace(
        settings.params,
        temperature=temperature,
        max_tokens=max_tokens,
        reasoning_sampler=None,  # which no random numbers would be shared with
        reasoning_temperature=None,
    )
    requests = [
        Request(prompt, replace(params, sampler=sampler), enable_thinking=reasoning) for sampler in samplers
    ]
    model.reserve(min(before, len(model.prompt_tokens(prompt, reasoning)) + max_tokens), len(requests))
    try:
        for answer in model.answer_all(requests, ordered=True).reading(waiting):
            if answer.finish_reason == "overflow":
                raise ContextOverflowError(answer.prompt_tokens, before)
            yield answer
    finally:
        model.reserve(before)


def divergence(first: CommonNumbers, other: CommonNumbers, n_common: int, model: Model) -> str:
    """Say where and why an answer leaves the first one, with which it has `n_common` tokens in common."""

    def name(token: int) -> str:
        ends = token in model.weights.end_tokens
        return "the end" if ends else repr(visible(model.weights.piece(token)))

    at = common_prefix(first.tokens, other.tokens)
    if at == min(len(first.steps), len(other.steps)):
        return "cut off before it differs from answer 1"
    theirs, ours = first.steps[at], other.steps[at]
    where = f"differs from answer 1 at token {n_common + 1}: {name(ours.token)} (rank {ours.rank:,})"
    if not theirs.keeps(ours.rank):
        return f"{where}, which answer 1's sampler cuts"
    where += f", not {name(theirs.token)} (rank {theirs.rank:,})"
    return where if ours.keeps(theirs.rank) else f"{where}, which this sampler cuts"


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
    """Return the sampler in use, llama.cpp's default, and min-p in llama.cpp's order."""
    names = ("llama-default", "min-p")
    return [MinK() if own.is_stateful else own, *(parse(name, "temperature-last") for name in names)]


def _generate(chat: Chat, prompt: Messages, temperature: float, samplers: Sequence[CommonNumbers]) -> None:
    """Generate the answers; show each as soon as it and those before it are finished."""
    screen, model = chat.screen, chat.session.model
    answers: list[Answer] = []

    def update() -> None:
        n_tokens = sum(len(one.tokens) for one in samplers)
        to_come = counted(len(samplers) - len(answers), "answer")
        screen.progress(f"{to_come} to come, {counted(n_tokens, 'token')} so far")

    with (
        on_interrupt(model.interrupt),
        closing(_answers(chat.session, prompt, temperature, samplers, update)) as coming,
    ):
        for answer in coming:
            answers.append(answer)
            _show(screen, model, answer, samplers)
    screen.progress()
    if not any(one.tokens or one.finish_reason != "interrupted" for one in answers):
        screen.note("interrupted")


def _show(screen: Screen, model: Model, answer: Answer, samplers: Sequence[CommonNumbers]) -> None:
    """Show an answer: the first one whole, another from where it leaves the first."""
    first, sampler, number = samplers[0], samplers[answer.index], answer.index + 1
    if answer.finish_reason == "interrupted" and not answer.tokens:
        return
    screen.show(Text(f"{number}  {label(str(sampler))}", "bold"))
    same = next(i for i, other in enumerate(samplers, 1) if other.tokens == sampler.tokens)
    if number == 1:
        screen.show(Text(answer.text.rstrip()))
    elif same < number:
        screen.show(Text(f"the same text as {same}"))
    else:
        at = common_prefix(first.tokens, sampler.tokens)
        sampled = [place for place, k in enumerate(answer.k) if k]  # the others were forced
        n_common = sampled[at] if at < len(sampled) else answer.n_tokens
        common = "".join(model.token_texts(answer.tokens[:n_common]))
        beginning = Text(f"…{one_line(common[-_SHARED:], _SHARED)} " if common else "", "dim")
        screen.show(Text(divergence(first, sampler, n_common, model)))
        screen.show(Text.assemble(beginning, "▸", answer.text[len(common) :].rstrip()))
    ends = {"length": "; cut off", "interrupted": "; interrupted", "error": f"; {answer.error}"}
    end = ends.get(answer.finish_reason or "", "")
    figures = f"; {candidates(sampler.k)}" if sampler.k else ""
    screen.note(f"{counted(answer.n_tokens, 'token')}{end}{figures}")
    screen.show("")
