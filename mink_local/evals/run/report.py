"""The report of a run: its tables, figures and sentences, and its responses for the page's browser."""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any

import pandas as pd

from mink_local.cli import command_line_text
from mink_local.evals.figures import Picture, accuracy_figure
from mink_local.evals.report.report import Report, Section
from mink_local.evals.run.records import RecordedRun
from mink_local.evals.run.summary import (
    ENOUGH_TO_TURN,
    EVERY,
    GROUP,
    Baseline,
    Summary,
    sampler_rank,
    summarise,
)
from mink_local.evals.settings import arm_of
from mink_local.evals.stats import what_can_be_found
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    columns_of,
    count,
    listed,
    of_interval,
    p_value,
    percent,
    points,
    temperature_name,
)
from mink_local.evals.tasks.base import Verdict, without_reasoning
from mink_local.evals.tasks.stated import before_next_question
from mink_local.samplers import label

HOW_TO_READ = (
    "Accuracy counts the answer that a response states last: in a box, or after words such as “the answer "
    "is”. Strict accuracy counts what the paper's regular expression finds. The last number (or option) is "
    "what the lm-evaluation-harness calls flexible-extract: it reads prose without a statement, too, and is "
    "sometimes right by luck. Responses cut off by the token limit count as wrong, as do prompts that did "
    "not fit into the context; how many were cut off is beside an accuracy, and what it would be if all of "
    "them were right. A loop: a response says the same again and again, with nothing in between.",
    "Accuracies are means over questions, with 95% intervals over questions: Clopper and Pearson's, with an "
    "effective number of questions if a question has several responses. Their coverage is at least 95%. ±: "
    "the standard deviation of the repeats' accuracies. Greedy decoding, which has no temperature, is a "
    "column of its own.",
    "▲ and ▼: significantly more, or less, accurate than what a cell is compared with, on the same "
    "questions, by McNemar's exact test; with several responses per question, by the permutation test that "
    "flips the sign of each question's difference, and by the difference's interval. Holm's correction "
    "covers all comparisons of one kind (samplers or models) with one task and model; those of models "
    "cover a task. Bold: a method marked ▲, or the baseline if it is significantly better than every other "
    "method. *: some responses are missing. Accuracies by category are not compared.",
    "The range of a difference is its 95% interval over questions, which holds at least 93% of the time and "
    "excludes 0 if p is at most 0.05. The corrected p decides about ▲ and ▼. Won and lost: questions "
    "answered correctly more often, and less often. The sentence on power has the median share of questions "
    "on which the compared methods disagreed.",
    "Any of k responses right (pass@k): the mean over all choices of k of a question's responses.",
    "Distinct responses: nonsense is distinct too, so compare at equal accuracy, not at equal temperature.",
    "Intervals and tests hold for questions like these, with this model file, prompt and token limit, and "
    "for a number of questions chosen beforehand: extending a run until a difference is significant finds "
    "one too often.",
)
_NOT_IN_NAMES = re.compile(r"[^\w.+=-]+")  # of folders
_ENDINGS = ("stop", "length", "repetition", "overflow", "refused")
_KINDS = {
    "sampler": ("method", "at the same temperature"),
    "model": ("model", "by the same method at the same temperature"),
    "temperature": ("temperature", "by the same method"),
    "arm": ("arm", "on the same questions"),
}


def run_report(run: RecordedRun, chosen: tuple[str, Any] | None = None) -> Report:
    """Return the report on a run, which may still be in progress.

    `chosen` is what to compare with, as for `summarise`. Raises ReportError if the run does not contain it.
    """
    summary = summarise(run, chosen)
    groups = summary.cells[GROUP].drop_duplicates().itertuples(index=False, name=None)
    sections = [_section(run, summary.of(*group), number, *group) for number, group in enumerate(groups, 1)]
    frames = {
        "table": summary.cells,
        "categories": summary.categories,
        "comparisons": summary.comparisons,
        "repeats": summary.attempts,
    }
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    settings = [settings_table(run.manifest)] if run.manifest else []
    against = next((one for one in summary.baselines if one.kind != "temperature"), None)
    return Report(
        "report",
        f"Min-k evaluation: {', '.join(summary.cells['task'].unique())}",
        run.notes,
        [*sections, Section("How to read this", [*HOW_TO_READ, *settings])],
        [part for section in sections for part in section.parts if isinstance(part, Table)],
        list(_run_findings(summary)),
        {"made_with": [row for table in settings for row in table.frame.to_numpy().tolist()]},
        frames,
        csv=frames,
        folder=f"report-against-{_NOT_IN_NAMES.sub('-', str(summary.baselines[0]))}" if chosen else "report",
        responses=pack(run, against),
    )


def _section(run: RecordedRun, part: Summary, number: int, task: str, model: str) -> Section:
    title, of = f"{task} with {model}", f"{task} · {model} ·"
    cells, attempts = part.cells, part.attempts
    is_open = part.judged.empty
    categories = part.categories.sort_values("category", kind="stable")
    if categories["category"].nunique() < 2:
        categories = categories[:0]
    names = categories["category"] + categories["questions"].map(" ({}) · ".format)
    names += categories["sampler"].map(label)
    parts = [
        _accuracies(of, part),
        _grid(
            f"{of} the same by strict scoring, by the last number or option, and no answer found, %",
            cells if not is_open else cells[:0],
            lambda row: Cell(
                f"{percent(row.strict_accuracy)} · {_percent_or_dash(row.last_accuracy)}",
                f"no answer {percent(row.no_answer)}",
            ),
        ),
        *_compared(of, part.comparisons),
        _grid(
            f"{of} accuracy by category, %",
            categories.assign(method=names),
            lambda row: of_interval(row, "accuracy", percent),
        ),
        _grid(
            f"{of} tokens; cut off at the token limit, and with a loop, %",
            cells,
            lambda row: Cell(
                "–" if pd.isna(row.mean_tokens) else f"{row.mean_tokens:.1f}",
                (f"reasoning {row.mean_reasoning_tokens:.1f}, " if row.mean_reasoning_tokens > 0 else "")
                + f"cut off {percent(row.truncated)}, loops {percent(row.looped)}"
                + (f", reasoning cut off {percent(row.thoughts_cut)}" if row.thoughts_cut else ""),
            ),
        ),
        _grid(
            f"{of} distinct responses to a question, %",
            cells.dropna(subset="distinct"),
            lambda row: Cell(percent(row.distinct)),
        ),
    ]
    more = [
        _grid(
            f"{of} steps with one candidate, %, and the k of 95%, 99% and all steps",
            cells.dropna(subset="k_is_1") if "k_is_1" in cells else cells[:0],
            lambda row: Cell(percent(row.k_is_1), f"≤ {row.k_95:,.0f} {row.k_99:,.0f} {row.k_max:,.0f}"),
        ),
        _grid(
            f"{of} any of k responses right, %",
            attempts.assign(
                method=attempts["sampler"].map(label)
                + ", T = "
                + attempts["temperature"].map(temperature_name)
            ),
            lambda row: of_interval(row, "passed", percent),
            "k",
        ),
    ]
    return Section(
        title,
        [one for one in parts if one],
        list(_findings(run, part)),
        _accuracy_picture(part, number, title),
        [table for table in more if table],
    )


def _percent_or_dash(share: float) -> str:
    return "–" if pd.isna(share) else percent(share)


def _accuracy_picture(part: Summary, number: int, title: str) -> Picture | None:
    """Return the figure of accuracy against temperature, if there are several."""
    cells = part.cells.dropna(subset="accuracy")
    if cells[cells["temperature"] > 0]["temperature"].nunique() < 2:
        return None
    draw = partial(accuracy_figure, cells, part.baseline)
    data = cells[["sampler", "temperature", *columns_of(None, "accuracy")]]
    return Picture.of(f"{number}-accuracy", f"Accuracy against temperature, {title}", draw, data)


def _grid(
    title: str, cells: pd.DataFrame, cell: Callable[[Any], Cell], by: str = "temperature"
) -> Table | None:
    """Return a table with a row per method and a column per temperature, "T = 5", or k; None without cells.

    Greedy's column, at temperature 0, is the last.

    Methods are the samplers, or the values of the frame's column `method`.
    """
    if cells.empty:
        return None
    if "method" not in cells:
        cells = cells.assign(method=cells["sampler"].map(label))
    name = "T" if by == "temperature" else by
    heads = {
        number: f"{name} = {temperature_name(number)}" for number in sorted(cells[by].unique()) if number
    }
    if not cells[by].all():
        heads[0.0] = "greedy"
    return Table.grid(title, cells, cell, "method", by, heads)


def _accuracies(of: str, part: Summary) -> Table | None:
    """Return accuracies with intervals and significance, laid out as in the paper's Table 1."""
    compared = part.comparisons
    if any(one.value == EVERY for one in part.baselines):
        compared = compared[:0]  # better than some, and worse than others

    def cell(row: Any) -> Cell:
        here = compared[compared["temperature"] == row.temperature]
        own = here[here["sampler"] == row.sampler]
        is_better, is_worse = (bool(own[way].any()) for way in ("better", "worse"))
        beats_all = own.empty and len(here) and here["worse"].all()
        shown = of_interval(row, "accuracy", percent)
        spread = "" if pd.isna(row.spread) else f"±{percent(row.spread)}"
        marks = "▲" * is_better + "▼" * is_worse + "*" * (not row.complete)
        bound = percent(row.accuracy_if_cut_off_were_right)
        cut = f"; cut off {percent(row.truncated)}, at most {bound}" if row.truncated else ""
        return Cell(f"{shown.text}{spread}{marks}", f"{shown.below}{cut}", is_better or bool(beats_all))

    return _grid(f"{of} accuracy, %", part.cells.dropna(subset="accuracy"), cell)


_COMPARED: dict[str, tuple[str, Format]] = {
    "sampler": ("method", label),
    "temperature": ("T", temperature_name),
    "against": ("against", label),
    "difference": ("difference", points),
    "common_questions": ("questions", str),
    "won": ("won", str),
    "lost": ("lost", str),
    "p": ("p", p_value),
    "marks": ("p, Holm", str),
    "cut_off": ("cut off, %", percent),
    "other_cut_off": ("other's, %", percent),
}


def _compared(of: str, comparisons: pd.DataFrame) -> Iterator[Table]:
    """Yield the paired tests against each baseline; those of all pairs are in one table."""
    marks = [
        Cell(f"{p_value(row.p_holm)}{'▲' * row.better}{'▼' * row.worse}", bold=row.better or row.worse)
        for row in comparisons.itertuples()
    ]
    shown = comparisons.assign(marks=marks)
    if comparisons["against"].nunique() > 1 and set(comparisons["kind"]) == {"sampler"}:
        yield Table.of(f"{of} every pair of samplers, points", shown, _COMPARED, 3)
        return
    for (kind, against), rows in shown.groupby(["kind", "against"], sort=False):
        title = f"{of} against {against} {_KINDS[kind][1]}, points"
        yield Table.of(title, rows.drop(columns="against"), _COMPARED, 2)


def _findings(run: RecordedRun, part: Summary) -> Iterator[str]:
    """Yield sentences about one model and task: its size, caveats, and significant differences."""
    cells, responses, judged = part.cells, part.responses, part.judged
    task = cells["task"].iloc[0]
    n_questions, n_repeats = responses["question_id"].nunique(), responses["repeat"].nunique()
    temperatures = sorted(cells["temperature"].unique(), key=lambda t: (t == 0, t))  # greedy's is the last
    sampled = [temperature for temperature in temperatures if temperature] or temperatures
    yield (
        f"{count(n_questions, 'question')}, {count(n_repeats, 'response')} each, "
        f"{count(cells['sampler'].nunique(), 'method')} at T = {listed(map(temperature_name, sampled))}."
    )
    questions = [question for (of, _), question in run.questions.items() if of == task]
    n_choices = {len(question.choices) for question in questions}
    if len(n_choices) == 1 and min(n_choices):
        yield f"Guessing gets {percent(1 / min(n_choices))}%."
    if n_questions < len(questions):
        n_left = count(len(questions) - n_questions, "question")
        yield f"{n_left} of the run without a response yet: repeat the mink-eval run command to resume."
    if judged.empty:
        yield "Open-ended: responses have no verdicts, so there is no accuracy."
    coldest = judged[judged["temperature"] == temperatures[0]]
    cut_off = cells[cells["truncated"] > ENOUGH_TO_TURN]
    if len(cut_off):
        named = (
            f"{label(row.sampler)} at T = {temperature_name(row.temperature)} {percent(row.truncated)}%"
            for row in cut_off.itertuples()
        )
        yield (
            f"Cut off by the token limit, which counts as wrong: {'; '.join(named)}. Raise --max-tokens, or "
            "use --stop and --shots if the model, like most base models, does not end its answers."
        )
    yield from _endings(responses)
    turning = part.comparisons[part.comparisons["could_turn"].astype(bool)]
    if len(turning):
        yield f"Could turn if the responses that were cut off were right: {_places(turning)}."
    complete = coldest[coldest["finish_reason"] == "stop"]
    unread = 1 - complete["answered"].mean()
    if unread > 0.5:
        yield (
            f"At T = {temperature_name(temperatures[0])}, no answer was found in {percent(unread)}% of the "
            'complete responses, which count as wrong: ask for one that is stated, as in "The answer is 5", '
            "or use --scorer."
        )
    n_incomplete = (~cells["complete"]).sum()
    if n_incomplete:
        yield (
            f"Incomplete: {n_incomplete} of {len(cells)} cells, marked *. Accuracies over different "
            "questions are not comparable; the tests use the questions that both methods answered."
        )
    for against in part.comparisons["against"].unique():
        compared = part.comparisons[part.comparisons["against"] == against]
        for way in ("better", "worse"):
            differ = compared[compared[way].astype(bool)]
            if len(differ):
                yield f"Significantly {way} than {against}: {_places(differ)}."


def _endings(responses: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about responses that end otherwise than with an answer."""
    texts, reasons = responses["text"], responses["finish_reason"]
    if n := sum(bool(text) and not without_reasoning(text) for text in texts[reasons == "stop"]):
        yield f"{count(n, 'response')} stopped within the reasoning, and no answer followed."
    if n := sum(before_next_question(text) != text for text in texts):
        yield (
            f"{count(n, 'response')} went on to a further question, where no last number is read: end such "
            "responses with --stop, as in --stop '\\nQ:'."
        )
    for reason, n in reasons[~reasons.isin(_ENDINGS)].value_counts().items():
        yield f"{count(n, 'response')} ended by {reason}, and scored as they are."


def _places(cells: pd.DataFrame) -> str:
    """List cells by method and temperature, in the order of the tables."""
    rows = cells.groupby("sampler", sort=False)["temperature"]
    return "; ".join(
        f"{label(str(sampler))} at T = {listed(map(temperature_name, found))}" for sampler, found in rows
    )


def _run_findings(summary: Summary) -> Iterator[str]:
    """Yield sentences about all comparisons of a run."""
    if summary.judged.empty:  # all questions are open-ended
        return
    if not any(one.kind != "model" for one in summary.baselines) and summary.cells["sampler"].nunique() > 1:
        yield "The run has no Min-k to compare other methods with: choose one with --against."
    for baseline in summary.baselines:
        compared = summary.comparisons[summary.comparisons["kind"] == baseline.kind]
        if compared.empty:
            yield f"There is no other {_KINDS[baseline.kind][0]} to compare with {baseline}."
        else:
            yield _family(compared, str(baseline))
            yield from _power(compared)


def _power(compared: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on what the tests can find if methods disagree as in the median comparison."""
    if differing := float(compared["disagreement"].median()):
        n, repeats = (int(compared[name].min()) for name in ("common_questions", "repeats"))
        yield what_can_be_found(n, len(compared), [differing], repeats)


def _family(found: pd.DataFrame, against: str) -> str:
    """Return a sentence about comparisons of one kind."""
    other, alike = _KINDS[found["kind"].iloc[0]]
    n_undecided = int((~(found["better"] | found["worse"]).astype(bool)).sum())
    compared = f"with {against} {alike}: the other {other}"
    if against == EVERY:
        compared = f"of two samplers {alike}: the first"
    sentence = (
        f"{count(len(found), 'comparison')} {compared} is significantly better in {found['better'].sum()} "
        f"and significantly worse in {found['worse'].sum()}"
    )
    if not n_undecided:
        return f"{sentence}."
    return f"{sentence}; {n_undecided} showed no difference, which does not prove that there is none."


def settings_table(manifest: Mapping[str, Any]) -> Table:
    """Return a measurement's settings, a row each, and a row for each environment that it was started in."""
    hidden = ("format", "revision", "measures", "sessions")
    rows = list(_flat({key: value for key, value in manifest.items() if key not in hidden}))
    for session in manifest.get("sessions", []):
        environment = {key: value for key, value in session.items() if key != "started"}
        rows.append(("started with", _in_words(environment)))
    frame = pd.DataFrame(list(dict.fromkeys(rows)), columns=["setting", "value"])
    return Table("Settings of the run", frame, numbers=False)


def _flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings in nested dicts, each named by all of its keys."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(part, f"{name} {key}".strip())
    else:
        yield name, _in_words(value)


def _in_words(value: Any) -> str:
    """Return a setting as text, which is UTF-8 even if a path is not."""
    return command_line_text(value if isinstance(value, str) else json.dumps(value))


def _packed(verdict: Verdict | None) -> tuple[str | None, int | None]:
    return (verdict.answer, int(verdict.correct)) if verdict else (None, None)


def pack(run: RecordedRun, against: Baseline | None) -> bytes:
    """Return questions, cells and responses as gzipped JSON, which `unpack` in page.js reads.

    A response starts with the indices of its cell and its question.
    """
    cell_of = attrgetter("model", "task", "sampler", "temperature")
    cells = sorted(
        set(map(cell_of, run.responses)),
        key=lambda cell: (*cell[:2], cell[3], *sampler_rank(cell[2])),
    )
    cell_numbers = {cell: number for number, cell in enumerate(cells)}
    question_numbers = {key: number for number, key in enumerate(run.questions)}
    content = {
        "baseline": [against.kind, against.value] if against else [None, None],
        "questions": [[task, q.id, q.prompt, q.gold] for (task, _), q in run.questions.items()],
        "cells": [[*cell, label(cell[2]), arm_of(*cell[2:])] for cell in cells],
        "responses": [
            [
                cell_numbers[cell_of(r)],
                question_numbers[r.task, r.question_id],
                r.repeat,
                r.response,
                *_packed(r.strict),
                *_packed(r.flexible),
                r.finish_reason,
                r.n_tokens,
                len(r.k) - r.k.count(0),
                r.k.count(1),
                max(r.k, default=0),
            ]
            for r in run.responses
        ],
    }
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode("ascii"), 6, mtime=0)
