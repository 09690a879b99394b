"""What a run shows and does not show, in sentences made from its numbers."""

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from mink_local.evals.report.summary import SCORINGS, Cell, Comparison, Group, Scoring, Summary
from mink_local.evals.report.tables import percent, points

HOW_TO_READ = (
    "Strict counts an answer that the paper's regular expression finds, flexible one that a person would "
    "accept as stated. A response that the token limit cut off and a prompt that did not fit the context "
    "count as wrong.",
    "An accuracy is the mean over questions. The range below it is Wilson's 95% interval, with as many "
    "observations as there are questions; where questions were asked several times it is wider than "
    "needed. ±: the standard deviation of the repeats' accuracies.",
    "▲ and ▼: significantly more, or less, accurate than the method compared with, on the same questions "
    "at the same temperature: McNemar's exact test; with several responses a question, the exact sign test "
    "of which method answered a question correctly more often. Holm's correction is made over all "
    "comparisons of the run under one scoring, so the chance of even one false mark among them is at most "
    "5%.",
    "Bold: a method marked ▲, or the method compared with where it is significantly better than every "
    "other in its column. The largest number of a column is not bold for being the largest. *: not every "
    "question or repeat yet.",
    "Visible: the smallest true difference, in points, that would have been found with a chance of 80%, "
    "given the number of questions, the share of them on which the two methods disagreed, and the level "
    "that Holm's correction asked of the next comparison. With several responses a question: questions won "
    "minus lost.",
    "Distinct: the share of different texts among the responses to a question, mean over questions; "
    "distinct-2: the same of pairs of neighbouring words. Both fall as repeats are added, and nonsense is "
    "distinct too: read them beside the accuracy.",
    "Greedy decoding is run once for all temperatures and repeats, and its row repeats those responses.",
    "Intervals and tests speak of questions like these, with this model file, prompt and token limit.",
)


def findings(summary: Summary) -> dict[str, list[str]]:
    """The section "What this run shows": sentences by heading, on the whole run and on each group."""
    about = {"The whole run": list(_families(summary))}
    for group in summary.groups:
        about[f"{group.task} with {group.model}"] = [
            _size(group),
            *(
                _compared(group, scoring, summary.baseline)
                for scoring in SCORINGS
                if group.comparisons[scoring]
            ),
            *_losses(group),
            *_chance(group),
            _diversity(group),
        ]
    return about


def _families(summary: Summary) -> Iterator[str]:
    if summary.baseline is None:
        yield "The run has no Min-k to compare the other methods with; --against names another."
    elif not summary.family("strict"):
        yield f"There is no other method at the temperatures of {summary.baseline} to compare it with."
    else:
        for scoring in SCORINGS:
            family = summary.family(scoring)
            better, worse = sum(c.better for c in family), sum(c.worse for c in family)
            yield (
                f"{scoring.capitalize()}: of {_count(len(family), 'comparison')} with {summary.baseline} at "
                f"the same temperature, the other method is significantly better in {better} and "
                f"significantly worse in {worse}; in {len(family) - better - worse} no difference was "
                "found, which does not show that there is none."
            )


def _size(group: Group) -> str:
    temperatures = _listed(f"{t:g}" for t in group.temperatures)
    sentence = (
        f"{_count(group.n_questions, 'question')}, {_count(group.n_repeats, 'response')} each, "
        f"{_count(len(group.methods), 'method')} at T = {temperatures}."
    )
    if group.incomplete:
        sentence += (
            f" Not complete yet: {_places(group.incomplete)}. Accuracies over different questions cannot be "
            "compared; the tests use the questions that both methods answered."
        )
    return sentence


def _compared(group: Group, scoring: Scoring, baseline: str | None) -> str:
    comparisons = list(group.comparisons[scoring].values())
    better, worse = (_by_method([c for c in comparisons if getattr(c, word)]) for word in ("better", "worse"))
    found = f"{scoring.capitalize()}, significantly better than {baseline}: {better}. Worse: {worse}."
    return f"{found} {_visible(comparisons)}"


def _by_method(comparisons: Sequence[Comparison]) -> str:
    methods: dict[str, list[str]] = {}
    for c in comparisons:
        at = f"T = {c.cell.temperature:g} ({points(c.paired.difference)} points)"
        methods.setdefault(str(c.cell.method), []).append(at)
    return "; ".join(f"{method} at {_listed(at)}" for method, at in methods.items()) or "none"


def _visible(comparisons: Sequence[Comparison]) -> str:
    visible = sorted(c.visible for c in comparisons if c.visible is not None)
    sentence = ""
    if visible:
        difference = _range(visible, " points", ", depending on the two methods,")
        sentence = (
            f"A difference of {difference} would have been found "
            "with a chance of 80%; smaller ones are more likely missed."
        )
    if blind := len(comparisons) - len(visible):
        sentence += (
            f" {_count(blind, 'comparison')} could not have found any difference with so few questions."
        )
    return sentence.strip()


def _losses(group: Group) -> Iterator[str]:
    cells = list(group.cells.values())
    strict, flexible = (fmean(c.no_answer[s] for c in cells) for s in SCORINGS)
    yield f"No answer found, mean over the cells: {percent(strict)}% strict, {percent(flexible)}% flexible."
    most = max(cells, key=lambda c: c.truncated)
    if most.truncated:
        yield (
            "Cut off at the token limit and counted as wrong, mean over the cells: "
            f"{percent(fmean(c.truncated for c in cells))}%; most with {_places([most])}, "
            f"{percent(most.truncated)}%."
        )
    if overflowed := fmean(c.overflowed for c in cells):
        yield f"{percent(overflowed)}% of the prompts did not fit the context, which counts as wrong."


def _chance(group: Group) -> Iterator[str]:
    """Where there are options to choose from: how many accuracies could be guesses."""
    choices = {len(question.choices) for question in group.questions.values()}
    if 0 in choices or len(choices) != 1:
        return
    chance = 1 / choices.pop()
    for scoring in SCORINGS:
        accuracies = [c.accuracy[scoring] for c in group.cells.values()]
        guesses, below = (
            sum(a.low <= chance <= a.high for a in accuracies),
            sum(a.high < chance for a in accuracies),
        )
        yield (
            f"{scoring.capitalize()}: guessing gets {percent(chance)}%; the intervals of {guesses} of "
            f"{len(accuracies)} cells include that, and {below} lie below it."
        )


def _diversity(group: Group) -> str:
    shares = {c: c.distinct for c in group.cells.values() if c.distinct is not None}
    if not shares:
        return "One response a question says nothing about diversity; a run with --repeats 2 or more does."
    distinct = _range(
        sorted(shares.values()), "% of a question's responses are distinct", ", depending on the cell"
    )
    sentence = f"{distinct}."
    if alike := [cell for cell, share in shares.items() if share <= 1.1 / group.n_repeats]:
        sentence += f" The same text every time for at least nine questions in ten: {_places(alike)}."
    return sentence


def _places(cells: Iterable[Cell]) -> str:
    methods: dict[str, list[str]] = {}
    for cell in cells:
        methods.setdefault(str(cell.method), []).append(f"{cell.temperature:g}")
    return "; ".join(f"{method} at T = {_listed(at)}" for method, at in methods.items())


def _range(ascending: Sequence[float], unit: str, depending: str) -> str:
    """Lowest to highest, and what that depends on, or the one number that all are."""
    low, high = percent(ascending[0]), percent(ascending[-1])
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}{depending}"


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "s")


def _listed(items: Iterable[str]) -> str:
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last
