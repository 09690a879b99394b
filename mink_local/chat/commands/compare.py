"""/compare: one message answered by several samplers with the same random numbers."""

import re
from collections.abc import Sequence
from contextlib import closing, nullcontext

from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from mink_local.chat.chat import Chat
from mink_local.chat.commands.completion import Completions, starting_with
from mink_local.chat.conversation.comparison import Comparison, divergence
from mink_local.chat.settings import BY_KEY
from mink_local.chat.terminal.progress import candidates
from mink_local.chat.terminal.screen import Screen, counted, of_sure_width, one_line
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import compared_with
from mink_local.generation.slots import common_prefix
from mink_local.interrupts import until_interrupted
from mink_local.samplers import SAMPLERS, MinK, Sampler, label, parse

USAGE = "compare [T=N] [SAMPLER …] [TEXT]"

_SHARED = 30  # characters of the common beginning that are shown again


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
        chat.note(f"> {one_line(comparison.message, chat.screen.width - 2)}")
    chat.note(f"(temperature {temperature:g}, seed {comparison.info.seed}, the same random numbers)\n")
    _generate(chat, comparison)
    chat.comparison = comparison
    chat.note("(none of these is part of the conversation: /compare take N goes on with one)")


def parsed(argument: str, temperature: float, own: Sampler) -> tuple[float, list[Sampler], str]:
    """Return temperature, samplers and text of an argument; the first two default to those in use."""
    samplers: list[Sampler] = []
    while argument:
        word = argument.split(maxsplit=1)[0]
        if word.startswith("T="):
            temperature = BY_KEY["temp"].type(word.removeprefix("T="))
        elif word.partition(":")[0] in SAMPLERS:
            samplers.append(parse(word))
        elif word != "--":
            break
        argument = argument[len(word) :].lstrip()
        if word == "--":
            break
    if temperature == 0:
        raise ValueError("at temperature 0 all samplers are greedy: /compare T=5 compares them at 5")
    for sampler in samplers:
        if sampler.is_stateful:
            raise ValueError(f"{sampler.name} cannot share random numbers: leave it out")
    return temperature, list(dict.fromkeys(samplers or _usual(own))), argument


def _usual(own: Sampler) -> list[Sampler]:
    """Return the sampler in use, and those with an option to tune, in llama.cpp's order."""
    own, *others = compared_with(MinK() if own.is_stateful else own)
    return [own, *(other for other in others if other.sweep and other.order != "temperature-first")]


def _generate(chat: Chat, comparison: Comparison) -> None:
    """Generate the answers; show each as soon as it and those before it are finished."""
    screen, model = chat.screen, chat.session.model
    unshown = list(range(1, len(comparison.answers) + 1))
    live = Live(
        console=screen.console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    )

    def update() -> None:
        if screen.is_plain:
            screen.progress(f"{counted(len(unshown), 'answer')} to come" if unshown else "")
        else:
            live.update(_tails(comparison, unshown, model, screen.width), refresh=True)

    with (
        nullcontext() if screen.is_plain else live,
        closing(comparison.generate(chat.session)) as generated,
        closing(until_interrupted(generated, model.interrupt, update)) as answers,
    ):
        for _ in answers:
            while unshown and comparison.answers[unshown[0] - 1]:
                screen.progress()
                _show(screen, comparison, unshown.pop(0), model)
            update()


def _tails(comparison: Comparison, unshown: Sequence[int], model: Model, width: int) -> Text:
    """Return a row for each unfinished answer, with the end of the text that it has so far."""
    rows = []
    for number in unshown:
        tokens = comparison.samplers[number - 1].tokens[-width:]
        row = Text(f"{comparison.title(number)[: width // 2]}  ", "bold")
        tail = of_sure_width(" ".join("".join(model.token_texts(tokens)).split()))
        while row.cell_len + cell_len(tail) > width:
            tail = tail[1:]
        rows.append(row.append(tail, "not bold"))
    return Text("\n").join(rows)


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
    screen.show(Text(comparison.title(number), "bold"))
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
    if comparison is None:
        raise ValueError("nothing has been compared yet: /compare TEXT")
    if not 1 <= number <= len(comparison.answers):
        raise ValueError(f"the comparison has {counted(len(comparison.answers), 'answer')}")
    if session.conversation != comparison.conversation:
        raise ValueError("the comparison belongs to another conversation: /load goes back to it")
    comparison.take(number, session)
    chat.screen.text(session.last_answer().content)
    chat.note(f"(answer {number} is part of the conversation; /pick lists all answers to this message)")


def complete(chat: Chat, text: str) -> Completions:
    """Complete the number of an answer to take, or the name of a sampler."""
    if text.startswith("take ") and chat.comparison:
        samplers = enumerate(chat.comparison.samplers, start=1)
        numbers = {str(number): label(str(sampler)) for number, sampler in samplers}
        yield from starting_with(text.removeprefix("take "), numbers)
        return
    words = {"take ": "go on with an answer of the last comparison", "T=": "temperature"}
    words.update({name: sampler.keeps for name, sampler in SAMPLERS.items() if not sampler.is_stateful})
    yield from starting_with(text.rpartition(" ")[2], words)
