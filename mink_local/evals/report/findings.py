"""Sentences about a whole run, and how to read its tables."""

from collections.abc import Iterable, Iterator, Sequence

from mink_local.evals.report.format import count, listed, percent, points
from mink_local.evals.report.summary import (
    Baseline,
    CellResult,
    Comparison,
    Kind,
    Scoring,
    Summary,
    TaskResult,
)

HOW_TO_READ = (
    "Strict counts an answer that the paper's regular expression finds, flexible one that a person would "
    "accept as stated. A response that the token limit cut off counts as wrong, and so does a prompt that "
    "did not fit the context.",
    "An accuracy is the mean over questions. The range below it is Wilson's 95% interval, with as many "
    "observations as there are questions; if questions were asked several times, it is wider than needed. "
    "±: the standard deviation of the repeats' accuracies; greedy decoding, which is run once, has none.",
    "▲ and ▼: significantly more, or less, accurate than the method compared with, on the same questions "
    "at the same temperature (or than the model or temperature compared with, by the same method), by "
    "McNemar's exact test; with several responses a question, by the permutation test that flips the sign of "
    "each question's difference. Holm's correction is made over all comparisons of the run under one "
    "scoring, so the chance of even one false mark among them is at most 5%.",
    "The range of a difference is its 95% interval over questions, of each comparison alone: the correction "
    "is not in it. Won and lost: questions answered correctly more often, and less often.",
    "Bold: a method marked ▲, or the method compared with if it is significantly better than every other in "
    "its column. The largest number of a column is not bold for being the largest. *: some questions or "
    "repeats have no response yet.",
    "Visible: the smallest true difference of the accuracies, in points, that would have been found with a "
    "chance of 80%, given the number of questions, how far the two methods disagreed on them, and the level "
    "that Holm's correction asked of the next comparison. A smaller one is found less often, not never.",
    "Distinct: the share of different texts among the responses to a question, mean over questions; "
    "distinct-2: the same for pairs of neighbouring words. Both fall as repeats are added, and nonsense is "
    "distinct too: read them beside the accuracy.",
    "Greedy decoding is run once for all temperatures and repeats, and its row repeats those responses.",
    "Intervals and tests are about questions like these, with this model file, prompt and token limit.",
)

COMPARED: dict[Kind, tuple[str, str]] = {
    "sampler": ("method", "at the same temperature"),
    "model": ("model", "by the same method at the same temperature"),
    "temperature": ("temperature", "by the same method"),
}


def findings(summary: Summary) -> list[str]:
    """Return the sentences of "What this run shows": on all comparisons, and on the size of every grid."""
    return [*_families(summary), *(f"{task.title}: {_size(task)}" for task in summary.tasks)]


def _families(summary: Summary) -> Iterator[str]:
    against = summary.against
    if against is None:
        yield "The run has no Min-k to compare the other methods with; --against names another."
    elif not summary.family("strict"):
        other, alike = COMPARED[against.kind]
        yield f"There is no other {other} to compare with {against} {alike}."
    else:
        yield from (_family(summary.family(scoring), scoring, against) for scoring in summary.scorings)


def _family(family: Sequence[Comparison], scoring: Scoring, against: Baseline) -> str:
    other, alike = COMPARED[against.kind]
    better, worse = sum(c.better for c in family), sum(c.worse for c in family)
    undecided = [c.paired.interval for c in family if not (c.better or c.worse)]
    sentence = (
        f"{scoring.capitalize()}: of {count(len(family), 'comparison')} with {against} {alike}, the other "
        f"{other} is significantly better in {better} and significantly worse in {worse}; in "
        f"{len(undecided)} no difference was found"
    )
    if undecided:
        lows, highs = zip(*undecided, strict=True)
        reach = f"{points(min(lows))} to {points(max(highs))} points"
        sentence += f", which does not show that there is none: 95% intervals reach from {reach}"
    sentence += "."
    visible = [c.visible for c in family if c.visible is not None]
    if not visible:
        return f"{sentence} With so few questions none could have been found."
    low, high = percent(min(visible)), percent(max(visible))
    span = f"{low} points" if low == high else f"{low} to {high} points, depending on the comparison,"
    return f"{sentence} A difference of {span} would have been found with a chance of 80%."


def _size(task: TaskResult) -> str:
    temperatures = listed(f"{t:g}" for t in task.temperatures)
    sentence = (
        f"{count(task.n_questions, 'question')}, {count(task.n_repeats, 'response')} each, "
        f"{count(len(task.methods), 'method')} at T = {temperatures}."
    )
    if task.strict_is_silent:
        sentence += (
            f" Strict finds no answer in {percent(task.no_answer['strict'])}% of the responses, flexible in "
            f"{percent(task.no_answer['flexible'])}%: strict says nothing about this model."
        )
    if task.chance:
        sentence += f" Guessing gets {percent(task.chance)}%."
    if task.n_repeats == 1:
        sentence += " One response a question shows nothing about diversity; --repeats 2 or more does."
    if task.incomplete:
        sentence += (
            f" Not complete yet: {_places(task.incomplete)}. Accuracies over different questions cannot be "
            "compared; the tests use the questions that both methods answered."
        )
    return sentence


def _places(cells: Iterable[CellResult]) -> str:
    temperatures: dict[str, list[str]] = {}
    for cell in cells:
        temperatures.setdefault(str(cell.method), []).append(f"{cell.temperature:g}")
    return "; ".join(f"{method} at T = {listed(at)}" for method, at in temperatures.items())
