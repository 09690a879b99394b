"""What a run shows and does not show, in sentences made from its numbers."""

from collections.abc import Iterable, Iterator, Sequence

from mink_local.evals.stats import ALPHA
from mink_local.evals.summary import SCORINGS, Cell, Comparison, Group, Scoring, Summary
from mink_local.evals.tables import percent, points

HOW_TO_READ = (
    "Strict counts an answer that the paper's regular expression finds, flexible one that a person would accept as "
    "stated. A response that the token limit cut off and a prompt that did not fit the context count as wrong.",
    "An accuracy is the mean over questions. The range below it is Wilson's 95% interval, with as many observations "
    "as there are questions; where questions were asked several times it is wider than needed. ±: the standard "
    "deviation of the repeats' accuracies.",
    "▲ and ▼: significantly more, or less, accurate than the method compared with, on the same questions at the same "
    "temperature: McNemar's exact test; with several responses a question, the exact sign test of which method "
    "answered a question correctly more often. Holm's correction is made over all comparisons of the run under one "
    "scoring, so the chance of even one false mark among them is at most 5%.",
    "Bold: a method marked ▲, or the method compared with where it is significantly better than every other in its "
    "column. The largest number of a column is not bold for being the largest. *: not every question or repeat yet.",
    "Visible: the smallest true difference, in points, that would have been found with a chance of 80%, given the "
    "number of questions, the share of them on which the two methods disagreed, and the level that Holm's "
    "correction asked of the next comparison. With several responses a question: questions won minus lost.",
    "Distinct: the share of different texts among the responses to a question, mean over questions; distinct-2: the "
    "same of pairs of neighbouring words. Both fall as repeats are added, and nonsense is distinct too: read "
    "them beside the accuracy.",
    "Intervals and tests speak of questions like these, with this model file, prompt and token limit.",
)


def findings(summary: Summary) -> list[str]:
    """The section "What this run shows", a sentence or two an item."""
    return [
        *(_size(group) for group in summary.groups),
        *(_not_complete(group) for group in summary.groups if group.incomplete),
        *_comparisons(summary),
        *(sentence for group in summary.groups for sentence in _losses(group)),
        *(sentence for group in summary.groups for sentence in _chance(group)),
        *(_diversity(group) for group in summary.groups),
    ]


def _size(group: Group) -> str:
    temperatures = _listed(f"{t:g}" for t in group.temperatures)
    return (
        f"{_name(group)}: {_count(group.n_questions, 'question')}, {_count(group.n_repeats, 'response')} each from "
        f"{_count(len(group.methods), 'method')} at T = {temperatures}."
    )


def _not_complete(group: Group) -> str:
    cells = _listed(f"{c.method} at T = {c.temperature:g} ({len(c.responses)} responses)" for c in group.incomplete)
    return (
        f"{_name(group)}: the run is not complete: {cells}. Accuracies over different questions cannot be compared; "
        "the tests use the questions that both methods answered."
    )


def _comparisons(summary: Summary) -> Iterator[str]:
    if summary.baseline is None:
        yield "The run has no Min-k to compare the other methods with (--against names another)."
        return
    for scoring in SCORINGS:
        family = summary.family(scoring)
        if not family:
            yield f"There is nothing to compare {summary.baseline} with at the same temperature."
            return
        better, worse = [c for c in family if c.better], [c for c in family if c.worse]
        yield (
            f"{scoring.capitalize()} accuracy, {_count(len(family), 'comparison')} with {summary.baseline}: the other "
            f"method is significantly better in {len(better)} and worse in {len(worse)}; in "
            f"{len(family) - len(better) - len(worse)} no difference was found, which does not show that there is none."
        )
        for group in summary.groups:
            yield from _significant(group, scoring)
            yield from _visible(group, scoring)


def _significant(group: Group, scoring: Scoring) -> Iterator[str]:
    for word in ("better", "worse"):
        found = [c for c in group.comparisons[scoring].values() if getattr(c, word)]
        if found:
            yield f"{_name(group)}, {scoring}, significantly {word}: {_by_method(found)}."


def _by_method(comparisons: Sequence[Comparison]) -> str:
    methods: dict[str, list[str]] = {}
    for c in comparisons:
        at = f"T = {c.cell.temperature:g} ({points(c.paired.difference)} points)"
        methods.setdefault(str(c.cell.method), []).append(at)
    return "; ".join(f"{method} at {_listed(at)}" for method, at in methods.items())


def _visible(group: Group, scoring: Scoring) -> Iterator[str]:
    comparisons = group.comparisons[scoring].values()
    visible = sorted(c.visible for c in comparisons if c.visible is not None)
    if visible:
        yield (
            f"{_name(group)}, {scoring}: a difference of {_range(visible)} points, depending on the methods compared, "
            "would have been found with a chance of 80%; smaller ones mostly stay unseen with this many questions."
        )
    if len(visible) < len(comparisons):
        yield f"{_name(group)}, {scoring}: {len(comparisons) - len(visible)} of the comparisons have too few questions to find any difference."


def _losses(group: Group) -> Iterator[str]:
    cells = list(group.cells.values())
    truncated = max(cells, key=lambda c: c.truncated)
    if truncated.truncated:
        yield (
            f"{_name(group)}: {percent(_overall(cells, 'truncated'))}% of the responses were cut off at the token limit "
            f"and count as wrong, most with {_place(truncated)}, {percent(truncated.truncated)}%."
        )
    strict, flexible = (_mean([(c.no_answer[s], len(c.responses)) for c in cells]) for s in SCORINGS)
    yield f"{_name(group)}: no answer was found in {percent(strict)}% (strict) and {percent(flexible)}% (flexible) of the responses."
    if overflowed := _overall(cells, "overflowed"):
        yield f"{_name(group)}: {percent(overflowed)}% of the prompts did not fit the context and count as wrong."


def _chance(group: Group) -> Iterator[str]:
    """Where there are options to choose from: how many accuracies could be guesses."""
    choices = {len(question.choices) for question in group.questions.values()}
    if 0 in choices or len(choices) != 1:
        return
    chance = 1 / choices.pop()
    for scoring in SCORINGS:
        guesses = [c for c in group.cells.values() if c.accuracy[scoring].low <= chance <= c.accuracy[scoring].high]
        below = [c for c in group.cells.values() if c.accuracy[scoring].high < chance]
        yield (
            f"{_name(group)}, {scoring}: guessing gets {percent(chance)}%; the intervals of {len(guesses)} of "
            f"{len(group.cells)} cells include that, and {len(below)} lie below it."
        )


def _diversity(group: Group) -> str:
    cells = [c for c in group.cells.values() if c.distinct is not None]
    if not cells:
        return f"{_name(group)}: one response a question says nothing about diversity; --repeats 2 or more does."
    alike = [c for c in cells if c.distinct is not None and c.distinct <= 1.1 / group.n_repeats]
    varied = _range(sorted(c.distinct for c in cells if c.distinct is not None))
    sentence = f"{_name(group)}: {varied}% of the responses to a question are distinct, depending on method and temperature."
    if alike:
        sentence += f" (Nearly) always the same text: {_listed(_place(c) for c in alike)}; their repeats add nothing."
    return sentence


def _overall(cells: Iterable[Cell], rate: str) -> float:
    return _mean([(getattr(c, rate), len(c.responses)) for c in cells])


def _mean(weighted: Sequence[tuple[float, int]]) -> float:
    return sum(value * n for value, n in weighted) / sum(n for _, n in weighted)


def _place(cell: Cell) -> str:
    return f"{cell.method} at T = {cell.temperature:g}"


def _name(group: Group) -> str:
    return f"{group.task} with {group.model}"


def _range(ascending: Sequence[float]) -> str:
    low, high = percent(ascending[0]), percent(ascending[-1])
    return low if low == high else f"{low} to {high}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
