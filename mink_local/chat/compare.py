"""/compare: one message answered by several methods with the same random numbers, side by side."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Any

from rich.cells import cell_len
from rich.live import Live
from rich.text import Text

from mink_local.chat.advice import HINT
from mink_local.chat.chat import Chat
from mink_local.chat.comparison import ComparedAnswer, MethodComparison, new_comparison, shared, why_it_leaves
from mink_local.chat.comparison_page import page
from mink_local.chat.completion import Completions, starting_with
from mink_local.chat.progress import candidates
from mink_local.chat.screen import Screen, counted, of_sure_width, one_line
from mink_local.files import user_path, write_atomic
from mink_local.generation.model import Model
from mink_local.interrupts import until_interrupted
from mink_local.samplers import SAMPLERS, MinK, MinP, Mirostat, Sampler, TopNSigma, TopP, parse

USAGE = "compare [T=1,2,…] [METHOD …] [TEXT] [--html F]"

_SHARED = 30  # characters of the common beginning that are shown again
_ORDERS = "; T last: llama.cpp's order, T first: that of the papers"
_ENDS = {"length": "cut off", "interrupted": "interrupted"}


@dataclass(frozen=True)
class Wanted:
    """Arguments of the command; an empty text is the last message."""

    temperatures: list[float]
    samplers: list[Sampler]
    text: str
    page: str  # the path of the HTML page, or empty


def compare(chat: Chat, argument: str) -> None:
    """Answer TEXT, or the last message, with several methods and the same random numbers.

    The conversation stays as it is: /compare take N goes on with answer N, as a branch.

    T=1,2,5: at these temperatures. METHOD, such as top-k:k=5: with this one, and not with the usual ones. --:
    what follows is TEXT, even if it begins with the name of a method. --html FILE: write a page, of the last
    comparison if nothing else is given.
    """
    if taken := re.fullmatch(r"take\s+(\d+)", argument):
        take(chat, int(taken[1]))
        return
    before = chat.comparison
    if before and argument.startswith("--html") and (path := argument.removeprefix("--html").strip()):
        _write_page(chat, before, path)
        return
    wanted = parsed(argument, chat.session.settings["temp"], chat.session.settings.sampler)
    comparison = new_comparison(chat.session, wanted.text, wanted.temperatures, wanted.samplers)
    if not wanted.text:
        chat.note(f"> {one_line(comparison.message, chat.screen.width - 2)}")
    orders = _ORDERS if any(sampler.order for sampler in wanted.samplers) else ""
    chat.note(
        f"(seed {comparison.seed}, the same random numbers for all: at one temperature, texts differ only if "
        f"one method keeps what another cuts{orders})\n"
    )
    _generate(chat, comparison)
    if not any(cell.has_begun for cell in comparison.cells):
        chat.note("(interrupted)")
        return
    chat.comparison = comparison
    if len(wanted.temperatures) > 1:
        _show_grid(chat.screen, comparison)
    if wanted.page:
        _write_page(chat, comparison, wanted.page)
    chat.note(f"(none of these is part of the conversation: /compare take N goes on with one)\n{HINT}")


def parsed(argument: str, temperature: float, own: Sampler) -> Wanted:
    """Return what the argument of /compare asks for; the defaults are the temperature and sampler in use.

    A method with an order that is named without one is compared in both. Raises ValueError.
    """
    rest, *paths = (part.strip() for part in re.split(r"(?<!\S)--html(?!\S)", argument, maxsplit=1))
    if paths == [""]:
        raise ValueError("--html needs a file, such as comparison.html")
    temperatures: list[float] = []
    samplers: list[Sampler] = []
    while rest:
        word = rest.split(maxsplit=1)[0]
        if word.startswith("T="):
            temperatures += map(_temperature, word[2:].split(","))
        elif word.partition(":")[0] in SAMPLERS:
            samplers += _both_orders(parse(word)) if "order=" not in word else [parse(word)]
        elif word != "--":
            break
        rest = rest[len(word) :].lstrip()
        if word == "--":  # what follows is text, even if it begins with the name of a method
            break
    if not (temperatures or temperature):
        raise ValueError("at temperature 0 all methods are one: /compare T=1,5 compares at 1 and 5")
    if any(isinstance(sampler, Mirostat) for sampler in samplers):
        raise ValueError("mirostat samples by itself, and not with the random numbers of the others")
    return Wanted(
        list(dict.fromkeys(temperatures or [temperature])),
        list(dict.fromkeys(samplers or _usual(own))),
        rest,
        paths[0] if paths else "",
    )


def complete(chat: Chat, text: str) -> Completions:
    """Complete the number of an answer to be taken, the name of a method, and the words of /compare."""
    if text.startswith("take ") and chat.comparison:
        cells = enumerate(chat.comparison.cells, start=1)
        numbers = {str(number): f"{cell.label}, temperature {cell.temperature:g}" for number, cell in cells}
        yield from starting_with(text.removeprefix("take "), numbers)
        return
    words = {
        "T=": "temperatures, such as T=1,2,5",
        "take ": "go on with an answer of the last comparison",
        "--html ": "write a page",
        **dict.fromkeys(SAMPLERS, "a method"),
    }
    yield from starting_with(text.rpartition(" ")[2], words)


def _temperature(text: str) -> float:
    try:
        temperature = float(text)
    except ValueError:
        temperature = 0
    if not 0 < temperature < float("inf"):
        raise ValueError(f"{text!r} is no temperature above 0: T=1,2,5")
    return temperature


def _both_orders(sampler: Sampler) -> list[Sampler]:
    """Return a method as llama.cpp has it, temperature last, and as in its paper, temperature first."""
    if sampler.order is None:
        return [sampler]
    ordered: Any = sampler  # a dataclass with that field
    return [replace(ordered, order="temperature-last"), replace(ordered, order="temperature-first")]


def _usual(own: Sampler) -> list[Sampler]:
    """Return Min-k, the sampler in use, and the methods that people use."""
    samplers: list[Sampler] = [own if isinstance(own, MinK) else MinK()]
    samplers += [] if isinstance(own, Mirostat) else [own]
    return [*samplers, *_both_orders(MinP()), *_both_orders(TopP()), TopNSigma()]


def _generate(chat: Chat, comparison: MethodComparison) -> None:
    """Generate the answers; show each as soon as it and those before it are finished."""
    if chat.stopped:
        return
    screen, model = chat.screen, chat.session.model
    unshown = comparison.cells.copy()

    with (
        _progress(screen, comparison, unshown, model) as update,
        closing(until_interrupted(comparison.answers(chat.session), model.interrupt, update)) as finished,
    ):
        for _ in finished:
            while unshown and unshown[0].answer:
                cell = unshown.pop(0)
                screen.progress()
                if cell.has_begun:
                    _show(screen, comparison, comparison.number(cell))
                update()


@contextmanager
def _progress(
    screen: Screen, comparison: MethodComparison, unshown: Sequence[ComparedAnswer], model: Model
) -> Iterator[Callable[[], None]]:
    """Give a function that shows how far the answers are: the ends of their texts, or a number of tokens."""
    if screen.is_plain:

        def count() -> None:
            finished, all_ = len(comparison.cells) - len(unshown), counted(len(comparison.cells), "answer")
            tokens = counted(sum(len(cell.steps) for cell in comparison.cells), "token")
            screen.progress(f"{finished} of {all_}, {tokens}")

        try:
            yield count
        finally:
            screen.progress()
        return
    with Live(
        console=screen.console,
        transient=True,
        auto_refresh=False,
        redirect_stdout=False,
        redirect_stderr=False,
    ) as live:

        def show_ends() -> None:
            live.update(_ends(comparison, unshown, model, screen.width), refresh=True)

        yield show_ends


def _ends(comparison: MethodComparison, unshown: Sequence[ComparedAnswer], model: Model, width: int) -> Text:
    """Return a row for each cell with the end of the text that it has so far."""
    heads = {cell: f"{comparison.number(cell):>2}  {cell.label}, T={cell.temperature:g}" for cell in unshown}
    widest = max(map(cell_len, heads.values()), default=0)
    rows = []
    for cell, head in heads.items():
        row = Text(head.ljust(widest) + "  " if 2 * widest < width else f"{head[:2]}  ", "bold")
        end = of_sure_width(" ".join("".join(model.texts(cell.tokens[-width:])).split()))
        while row.cell_len + cell_len(end) > width:
            end = end[1:]
        rows.append(row.append(end, "not bold"))
    return Text("\n").join(rows)


def _show(screen: Screen, comparison: MethodComparison, number: int) -> None:
    """Show a cell: the first one at a temperature whole, another from where it leaves the first."""
    cell, first = comparison.cells[number - 1], comparison.first_beside(number)
    answer = cell.answer
    assert answer
    screen.show(Text(f"{number}  {cell.label}, temperature {cell.temperature:g}", "bold"))
    if same := comparison.same_before(number):
        screen.show(Text(f"the same text as {same}"))
    elif cell is first:
        screen.show(Text(answer.text.rstrip()))
    else:
        reason = why_it_leaves(first, cell, f"{comparison.number(first)}")
        screen.show(Text(reason or "cut off before it leaves"))
        common = "".join(cell.texts[: shared(first, cell)])
        beginning = Text(f"…{one_line(common[-_SHARED:], _SHARED)} " if common else "", "dim")
        screen.show(Text.assemble(beginning, "▸", answer.text[len(common) :].rstrip()))
    end = answer.error or _ENDS.get(answer.finish_reason or "", "")
    figures = [
        counted(answer.n_tokens, "token"),
        *([end] if end else []),
        *([candidates(cell.k)] if cell.k else []),
    ]
    screen.show(Text(f"({'; '.join(figures)})\n", "dim"))


def _show_grid(screen: Screen, comparison: MethodComparison) -> None:
    """Show methods by temperatures, if there is space: numbers of cells, and their medians of candidates."""
    rows = comparison.rows
    titles = ["answer: median k", *(f"T={row[0].temperature:g}" for row in rows)]
    table = [
        [cells[0].label, *(_figures(comparison, cell) for cell in cells)] for cells in zip(*rows, strict=True)
    ]
    widths = [max(map(cell_len, column)) + 1 for column in zip(titles, *table, strict=True)]
    if sum(widths) <= screen.width:
        screen.table(table, *titles)


def _figures(comparison: MethodComparison, cell: ComparedAnswer) -> str:
    return f"{comparison.number(cell)}: {median_low(cell.k):,}" if cell.k else ""


def take(chat: Chat, number: int) -> None:
    """Make an answer of the last comparison part of the conversation, as a branch."""
    comparison, session = chat.comparison, chat.session
    if comparison is None:
        raise ValueError("nothing has been compared yet: /compare TEXT")
    if not 1 <= number <= len(comparison.cells):
        raise ValueError(f"the comparison has {counted(len(comparison.cells), 'answer')}")
    cell = comparison.cells[number - 1]
    if cell.answer is None or not cell.answer.tokens:
        raise ValueError(f"answer {number} is empty")
    if session.conversation != comparison.conversation:
        raise ValueError("the comparison belongs to another conversation: /load goes back to it")
    comparison.take(cell, session)
    chat.screen.text(session.last_answer().content)
    chat.note(f"(answer {number} is part of the conversation; /pick lists all answers to this message)")


def _write_page(chat: Chat, comparison: MethodComparison, path: str) -> None:
    write_atomic(user_path(path), page(comparison))
    chat.note(f"(written to {path})")
