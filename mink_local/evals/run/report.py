"""The report of a run: its tables, figures and sentences, and its responses for the page's browser."""

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pandas as pd

from mink_local.cli import command_line_text
from mink_local.evals.report.report import Report, Section
from mink_local.evals.run.plots import pictures
from mink_local.evals.run.records import RecordedRun
from mink_local.evals.run.summary import (
    CELL,
    GROUP,
    Baseline,
    Summary,
    default_options,
    sampler_rank,
    summarise,
)
from mink_local.evals.tables import (
    Cell,
    Table,
    count,
    grid,
    listed,
    p_value,
    percent,
    points,
    temperature_name,
    with_interval,
)
from mink_local.evals.tasks.base import Verdict
from mink_local.samplers import label

HOW_TO_READ = (
    "Flexible scoring counts answers that a person would accept as stated, strict scoring those that the "
    "paper's regular expression finds. Responses cut off by the token limit count as wrong, as do prompts "
    "that did not fit into the context.",
    "Accuracies are means over questions, with 95% intervals over questions: Clopper and Pearson's, with an "
    "effective number of questions if a question has several responses. They hold at least 95% of the time. "
    "±: the standard deviation of the repeats' accuracies. Greedy decoding is run once, and its row repeats "
    "those responses.",
    "▲ and ▼: significantly more, or less, accurate than what a cell is compared with, on the same "
    "questions, by McNemar's exact test; with several responses per question, by the permutation test that "
    "flips the sign of each question's difference, and by the difference's interval. Holm's correction "
    "covers all comparisons of one kind (samplers, models, options) with one task and model under one "
    "scoring; those of models cover a task. Bold: a method marked ▲, or the baseline if it is significantly "
    "better than every other method. *: some responses are missing.",
    "The range of a difference is its 95% interval over questions, which holds at least 93% of the time and "
    "excludes 0 if p is at most 0.05. The corrected p decides about ▲ and ▼. Won and lost: questions "
    "answered correctly more often, and less often.",
    "Any of k responses right (pass@k): the mean over all choices of k of a question's responses.",
    "Distinct responses: nonsense is distinct too, so compare at equal accuracy, not at equal temperature.",
    "Intervals and tests hold for questions like these, with this model file, prompt and token limit, and "
    "for a number of questions chosen beforehand: extending a run until a difference is significant finds "
    "one too often.",
)
_KINDS = {
    "sampler": ("method", "at the same temperature"),
    "model": ("model", "by the same method at the same temperature"),
    "temperature": ("temperature", "by the same method"),
    "default": ("variant", "at the same temperature"),
}
_percent, _points = with_interval(percent), with_interval(points)


def run_report(run: RecordedRun, chosen: tuple[str, Any] | None = None) -> Report:
    """Return the report on a run, which may still be in progress.

    `chosen` is what to compare with, as for `summarise`. Raises ReportError if the run does not contain it.
    """
    summary = summarise(run, chosen)
    sections = run_sections(run, summary)
    frames = {"table": summary.cells, "comparisons": summary.comparisons, "repeats": summary.attempts}
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
        folder="report",
        responses=pack(run, against),
    )


def run_sections(run: RecordedRun, summary: Summary) -> list[Section]:
    """Return the sections of a run's report: models side by side, then each model and task."""
    groups = summary.cells[GROUP].drop_duplicates().itertuples(index=False, name=None)
    sections = [_section(run, summary.of(*group), number, *group) for number, group in enumerate(groups, 1)]
    models = (_models_section(summary, task) for task in summary.cells["task"].unique())
    return [*filter(None, models), *sections]


def _section(run: RecordedRun, part: Summary, number: int, task: str, model: str) -> Section:
    title, of = f"{task} with {model}", f"{task} · {model} ·"
    cells = part.cells[part.cells["scoring"] != "strict"]
    is_open = bool(cells["scoring"].isna().all())
    drawn = pictures(part, number, title)
    comparisons = part.comparisons[part.comparisons["scoring"].isin(part.scorings)]
    is_variant = comparisons["sampler"].map(default_options) == comparisons["against"]
    attempts = part.attempts[part.attempts["scoring"].isin(part.scorings)].rename(columns={"pass": "passed"})
    n = attempts["k"].max()
    parts = [
        _accuracies(of, part, "flexible"),
        *(picture for subject, picture in drawn.items() if subject not in ("accuracy", "k")),
        _grid(
            f"{of} accuracy minus that of the sampler's default options, points",
            _flexible(comparisons[(comparisons["kind"] == "default") | is_variant]),
            lambda row: _points(row.difference),
        ),
        _grid(
            f"{of} {'mean tokens' if is_open else 'no answer found, %'}; cut off at the token limit, %",
            cells,
            lambda row: Cell(
                f"{row.mean_tokens:.1f}" if is_open else percent(row.no_answer),
                f"cut off {percent(row.truncated)}"
                + (f", thoughts {percent(row.thoughts_cut)}" if row.thoughts_cut else ""),
            ),
        ),
        _grid(f"{of} mean tokens", _flexible(cells), lambda row: Cell(f"{row.mean_tokens:.1f}")),
        _grid(
            f"{of} any of {n} responses right, %",
            _flexible(attempts[attempts["k"] == n]),
            lambda row: _percent(row.passed),
        ),
        _grid(
            f"{of} distinct responses to a question, %",
            cells.dropna(subset="distinct"),
            lambda row: Cell(percent(row.distinct)),
        ),
        _grid(
            f"{of} steps with one candidate, %, and the k of 95%, 99% and all steps",
            cells.dropna(subset="k_is_1"),
            lambda row: Cell(percent(row.k_is_1), f"≤ {row.k_95:,.0f} {row.k_99:,.0f} {row.k_max:,.0f}"),
        ),
        drawn.get("k"),
    ]
    more: list[Table | None] = [_accuracies(of, part, scoring) for scoring in part.scorings[1:]]
    for (kind, against, scoring), rows in comparisons.groupby(["kind", "against", "scoring"], sort=False):
        named = f"{of} {scoring}, against {against} {_KINDS[kind][1]}"
        columns = ("common_questions", "difference", "won", "lost", "p", "adjusted")
        more.append(_comparison_table(named, rows, *columns))
    for scoring, rows in attempts.groupby("scoring"):
        named = f"{of} {scoring}: any of k responses right, %"
        method = rows["sampler"].map(label) + ", T = " + rows["temperature"].map(temperature_name)
        more.append(_grid(named, rows.assign(method=method), lambda row: _percent(row.passed), "k"))
    return Section(
        title,
        [one for one in parts if one],
        list(_findings(run, part, cells)),
        drawn.get("accuracy"),
        [table for table in more if table],
    )


def _flexible(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["scoring"] == "flexible"]


def _grid(
    title: str, cells: pd.DataFrame, cell: Callable[[Any], Cell], by: str = "temperature"
) -> Table | None:
    """Return a table with a row per method and a column per temperature, or k; None without cells.

    Methods are the samplers, or the values of the frame's column `method`.
    """
    if cells.empty:
        return None
    shown = cells.assign(cell=[cell(row) for row in cells.itertuples()])
    if "method" not in shown:
        shown["method"] = shown["sampler"].map(label)
    return Table(title, grid(shown, "method", by, "cell"))


def _accuracies(of: str, part: Summary, scoring: str) -> Table | None:
    """Return accuracies with intervals and significance, laid out as in the paper's Table 1."""
    compared = part.comparisons[part.comparisons["kind"] != "default"]  # these have their own table
    compared = compared[compared["scoring"] == scoring]

    def cell(row: Any) -> Cell:
        here = compared[compared["temperature"] == row.temperature]
        own = here[here["sampler"] == row.sampler]
        is_better, is_worse = (bool(own[way].any()) for way in ("better", "worse"))
        beats_all = own.empty and len(here) and here["worse"].all()
        shown = _percent(row.accuracy)
        spread = "" if pd.isna(row.spread) else f"±{percent(row.spread)}"
        marks = "▲" * is_better + "▼" * is_worse + "*" * (not row.complete)
        return Cell(f"{shown.text}{spread}{marks}", shown.below, is_better or bool(beats_all))

    return _grid(f"{of} {scoring} accuracy, %", part.cells[part.cells["scoring"] == scoring], cell)


def _comparison_table(title: str, rows: pd.DataFrame, *columns: str) -> Table:
    """Return a table of compared cells: their method and temperature, and these columns."""
    shown = rows.assign(
        method=rows["sampler"].map(label),
        T=rows["temperature"].map(temperature_name),
        adjusted=[
            Cell(f"{p_value(row.p_holm)}{'▲' * row.better}{'▼' * row.worse}", bold=row.better or row.worse)
            for row in rows.itertuples()
        ],
    )
    names = {
        "common_questions": "questions",
        "adjusted": "p, Holm",
        "lost_questions": "right → wrong",
        "won_questions": "wrong → right",
    }
    frame = shown[["method", "T", *columns]].rename(columns=names)
    return Table(title, frame, 2 + ("model" in columns), {"difference": _points, "p": p_value})


def _models_section(summary: Summary, task: str) -> Section | None:
    """Return a section with a task's models side by side, if they are compared."""
    found = _flexible(summary.comparisons)
    found = found[(found["task"] == task) & (found["kind"] == "model")]
    if found.empty:
        return None
    against = str(found["against"].iloc[0])
    cells = _flexible(summary.cells)[[*CELL, "accuracy"]]
    cells = cells.assign(accuracy=cells["accuracy"].map(_percent))
    base = cells[cells["model"] == against].drop(columns="model").rename(columns={"accuracy": against})
    rows = found.merge(base, on=["task", "sampler", "temperature"]).merge(cells, on=CELL)
    title = f"{task} · flexible accuracy, %, and the difference from {against} on the same questions, points"
    table = _comparison_table(title, rows, "model", "accuracy", against, "difference", "adjusted")
    title = f"{task} · questions that flipped from {against}, or that are answered right less or more often"
    flips = _comparison_table(title, found, "model", "lost_questions", "won_questions")
    return Section(f"{task}: models side by side", [table], [_family(found)], more=[flips])


def _findings(run: RecordedRun, part: Summary, cells: pd.DataFrame) -> Iterator[str]:
    """Yield sentences about one model and task: its size, caveats, and significant differences."""
    task, responses = cells["task"].iloc[0], part.responses
    n_questions, n_repeats = responses["question_id"].nunique(), responses["repeat"].nunique()
    temperatures = sorted(cells["temperature"].unique())
    yield (
        f"{count(n_questions, 'question')}, {count(n_repeats, 'response')} each, "
        f"{count(cells['sampler'].nunique(), 'method')} at T = {listed(map(temperature_name, temperatures))}."
    )
    questions = [question for (of, _), question in run.questions.items() if of == task]
    n_choices = {len(question.choices) for question in questions}
    if len(n_choices) == 1 and min(n_choices):
        yield f"Guessing gets {percent(1 / min(n_choices))}%."
    if n_questions < len(questions):
        n_left = count(len(questions) - n_questions, "question")
        yield f"{n_left} of the run without a response yet: repeat the mink-eval run command to resume."
    if part.verdicts.empty:
        yield "Open-ended: responses have no verdicts, so there is no accuracy."
    elif len(part.scorings) > 1:
        none = part.verdicts.loc[part.verdicts["scoring"] == "strict", "answer"].isna().mean()
        yield f"Strict scoring (under More tables) finds no answer in {percent(none)}% of the responses."
    coldest = _flexible(part.verdicts)
    coldest = coldest[coldest["temperature"] == temperatures[0]]
    cut_off = (coldest["finish_reason"] == "length").mean()
    if cut_off > 0.5:
        yield (
            f"At T = {temperature_name(temperatures[0])}, the token limit cut off {percent(cut_off)}% of the "
            "responses, which count as wrong: raise --max-tokens, or use --stop and --shots if the model, "
            "like most base models, does not end its answers."
        )
    if n_repeats == 1:
        yield "One response per question shows nothing about diversity: use --repeats 2 or more."
    n_incomplete = (~cells["complete"]).sum()
    if n_incomplete:
        yield (
            f"Incomplete: {n_incomplete} of {len(cells)} cells, marked *. Accuracies over different "
            "questions are not comparable; the tests use the questions that both methods answered."
        )
    compared = _flexible(part.comparisons)
    for against in map(str, part.baselines):
        for way in ("better", "worse"):
            differ = compared[(compared["against"] == against) & compared[way].astype(bool)]
            if len(differ):
                yield f"Significantly {way} than {against}: {_places(differ)}."


def _places(cells: pd.DataFrame) -> str:
    """List cells by method and temperature, in the order of the tables."""
    rows = cells.groupby("sampler", sort=False)["temperature"]
    return "; ".join(
        f"{label(str(sampler))} at T = {listed(map(temperature_name, found))}" for sampler, found in rows
    )


def _run_findings(summary: Summary) -> Iterator[str]:
    """Yield sentences about all comparisons of a run."""
    if summary.verdicts.empty:  # all questions are open-ended
        return
    if not any(one.kind != "model" for one in summary.baselines) and summary.cells["sampler"].nunique() > 1:
        yield "The run has no Min-k to compare other methods with: choose one with --against."
    for baseline in summary.baselines:
        compared = summary.comparisons[summary.comparisons["kind"] == baseline.kind]
        if compared.empty:
            yield f"There is no other {_KINDS[baseline.kind][0]} to compare with {baseline}."
        for scoring in summary.scorings if len(compared) else ():
            yield _family(compared[compared["scoring"] == scoring])


def _family(found: pd.DataFrame) -> str:
    """Return a sentence about comparisons of one kind."""
    first = found.iloc[0]
    other, alike = _KINDS[first["kind"]]
    n_undecided = int((~(found["better"] | found["worse"]).astype(bool)).sum())
    sentence = (
        f"{first['scoring'].capitalize()}: of {count(len(found), 'comparison')} with {first['against']} "
        f"{alike}, the other {other} is significantly better in {found['better'].sum()} and significantly "
        f"worse in {found['worse'].sum()}"
    )
    if not n_undecided:
        return f"{sentence}."
    return f"{sentence}; {n_undecided} showed no difference, which does not prove that there is none."


def settings_table(manifest: Mapping[str, Any]) -> Table:
    """Return a measurement's settings: a row per setting, model, task and environment."""
    rows = pd.DataFrame(list(_settings(manifest)), columns=["setting", "value"])
    return Table("Settings of the run", rows, numbers=False)


def _settings(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    hidden = ("format", "revision", "measures", "sessions")
    for key, value in manifest.items():
        if key in ("models", "tasks"):
            yield from ((f"{key[:-1]} {name}", _in_words(entry)) for name, entry in value.items())
        elif key == "asked":
            yield from (("wanted", _in_words(grid)) for grid in value)
        elif key not in hidden:
            yield key.replace("_", " "), _in_words(value)
    starts: dict[str, list[str]] = {}  # by environment; a run may be resumed many times
    for session in manifest.get("sessions", []):
        environment = {key: value for key, value in session.items() if key != "started"}
        starts.setdefault(_in_words(environment), []).append(session.get("started", "?"))
    for words, times in starts.items():
        span = " to ".join(dict.fromkeys((times[0], times[-1])))
        yield f"started {count(len(times), 'time')}", f"{span}: {words}"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{str(key).replace('_', ' ')} {_in_words(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "none"
    return "not given" if value is None else command_line_text(str(value))  # paths may not be UTF-8


def _packed(verdict: Verdict | None) -> tuple[str | None, int | None]:
    return (verdict.answer, int(verdict.correct)) if verdict else (None, None)


def pack(run: RecordedRun, against: Baseline | None) -> bytes:
    """Return questions, cells and responses as gzipped JSON, which `unpack` in page.js reads.

    A response starts with the indices of its cell and its question.
    """
    cells = sorted(
        {response.key[:4] for response in run.responses},
        key=lambda cell: (*cell[:2], cell[3], *sampler_rank(cell[2])),
    )
    cell_numbers = {cell: number for number, cell in enumerate(cells)}
    question_numbers = {key: number for number, key in enumerate(run.questions)}
    content = {
        "baseline": [against.kind, against.value] if against else [None, None],
        "questions": [[task, q.id, q.prompt, q.gold] for (task, _), q in run.questions.items()],
        "cells": [[*cell, label(cell[2])] for cell in cells],
        "responses": [
            [
                cell_numbers[r.key[:4]],
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
