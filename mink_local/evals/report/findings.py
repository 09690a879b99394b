"""Sentences about a whole run, and how to read its tables."""

from collections.abc import Collection, Iterator, Sequence

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
    "An accuracy is the mean over questions. The range below it is Wilson's 95% interval over questions. "
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
    "Any of k responses right (pass@k) and the majority right (maj@k): the mean over all choices of k of a "
    "question's responses, for questions that have all responses, with an interval over questions. Answers "
    "given equally often share a majority; a response without an answer, or cut off, has no vote.",
    "EAD: the share of a question's n-grams of words that are distinct, n = 1 to 5, against what is expected "
    "of 50,000 equally probable words. Self-BLEU: how much of a response the others have too, 0 to 100. Both "
    "are of the first 50 words of each response, and not comparable if responses are shorter (words in "
    "table.csv) or in a script without spaces. Nonsense is diverse too: compare at the same accuracy, not at "
    "the same temperature.",
    "If methods differ only in the value of an option, and there are three values or more, a heatmap has "
    "their accuracies; of them only the sampler's default has a panel in the picture of accuracies.",
    "Tokens per correct answer: all tokens of a cell over its correct responses, the cut-off ones included. "
    "Seconds: from the moment a response gets a slot to its end, while others are generated beside it; they "
    "are of this machine and this run.",
    "Greedy decoding is run once for all temperatures and repeats, and its row repeats those responses.",
    "Intervals and tests are about questions like these, with this model file, prompt and token limit, and "
    "about a number of questions chosen beforehand: a run that is extended until a difference is significant "
    "finds one too often.",
)

COMPARED: dict[Kind, tuple[str, str]] = {
    "sampler": ("method", "at the same temperature"),
    "model": ("model", "by the same method at the same temperature"),
    "temperature": ("temperature", "by the same method"),
}


MOST_NAMED = 6  # cells in a sentence


def findings(summary: Summary) -> list[str]:
    """Return the sentences of "What this run shows": on every model and task, then on all comparisons."""
    tasks = (f"{task.title}: {' '.join(task_findings(summary, task))}" for task in summary.tasks)
    return [*tasks, *run_findings(summary)]


def run_findings(summary: Summary) -> list[str]:
    """Return the sentences on all comparisons of a run, which are corrected together."""
    against = summary.against
    if not summary.scorings:  # all questions are open-ended
        return []
    if against is None:
        return ["The run has no Min-k to compare the other methods with; --against names another."]
    if not summary.family("strict"):
        other, alike = COMPARED[against.kind]
        return [f"There is no other {other} to compare with {against} {alike}."]
    return [_family(summary.family(scoring), scoring, against) for scoring in summary.scorings]


def task_findings(summary: Summary, task: TaskResult) -> list[str]:
    """Return the sentences on one model and task: what was asked, and what to know before its numbers."""
    return [_size(task), *_caveats(task), *_differences(summary, task)]


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
    return f"{sentence} Guessing gets {percent(task.chance)}%." if task.chance else sentence


def _caveats(task: TaskResult) -> Iterator[str]:
    if task.asked and task.recorded < task.asked:
        yield (
            f"{task.recorded:,} of {count(task.asked, 'response')} asked for are there: the command that "
            "started the run generates the rest."
        )
    if task.open_ended:
        yield "Open-ended: its responses have no verdicts, and there is no accuracy."
    elif task.strict_is_silent:
        yield (
            f"Strict finds no answer in {percent(task.no_answer['strict'])}% of the responses, flexible in "
            f"{percent(task.no_answer['flexible'])}%: strict says nothing about this model."
        )
    if not task.open_ended and task.cut_off > 0.5:
        yield (
            f"At T = {task.temperatures[0]:g} {percent(task.cut_off)}% of the responses were cut off at the "
            "token limit and count as wrong: give a larger --max-tokens, or --stop and --shots if the model "
            "does not know where an answer ends, as base models do not."
        )
    if task.n_repeats == 1:
        yield "One response a question shows nothing about diversity; --repeats 2 or more does."
    if task.incomplete:
        n, of = len(task.incomplete), len(task.cells)
        which = f"{n} of {of} cells, marked *" if n > MOST_NAMED else _places(task, task.incomplete)
        yield (
            f"Not complete yet: {which}. Accuracies over different questions cannot be compared; the tests "
            "use the questions that both methods answered."
        )


def _differences(summary: Summary, task: TaskResult) -> Iterator[str]:
    """Yield which cells differ significantly from the baseline, under the scoring to be read first."""
    for scoring in task.scorings[:1]:
        for way in ("better", "worse"):
            pairs = task.comparisons(scoring)
            cells = [cell for cell, comparison in pairs if getattr(comparison, way)]
            if cells:
                yield f"Significantly {way} than {summary.against} ({scoring}): {_places(task, cells)}."


def _places(task: TaskResult, cells: Collection[CellResult]) -> str:
    """Return the cells by method and temperature, in the order of the tables."""
    rows = ((method, [cell for cell in task.row(method) if cell in cells]) for method in task.methods)
    return "; ".join(
        f"{method} at T = {listed(f'{cell.temperature:g}' for cell in row)}" for method, row in rows if row
    )
