"""The report as a document: the tables, pictures and sentences of `report.html` and `report.md`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from mink_local.evals.report.plots import Picture, pictures
from mink_local.evals.report.recorded_run import RecordedRun
from mink_local.evals.report.summary import Summary
from mink_local.evals.stats import few_clusters
from mink_local.evals.tables import (
    Cell,
    Table,
    count,
    escape_markdown,
    grid,
    listed,
    p_value,
    percent,
    points,
    temperature_name,
    with_interval,
)
from mink_local.samplers import label

HOW_TO_READ = (
    "Flexible scoring counts an answer that a person would accept as stated, strict scoring one that the "
    "paper's regular expression finds. A response that the token limit cut off counts as wrong, and so does "
    "a prompt that did not fit the context.",
    "An accuracy is the mean over questions, with its 95% interval over questions: Wilson's, with an "
    "effective number of questions if a question has several responses. ±: the standard deviation of the "
    "repeats' accuracies. Greedy decoding is run once, and its row repeats those responses.",
    "▲ and ▼: significantly more, or less, accurate than what a cell is compared with, on the same "
    "questions, by McNemar's exact test; with several responses a question, by the permutation test that "
    "flips the sign of each question's difference. Holm's correction is made over all comparisons of one "
    "kind (samplers, models, options) under one scoring. Bold: a method marked ▲, or the method compared "
    "with if it is significantly better than every other. *: some responses are missing.",
    "The range of a difference is its 95% interval over questions, without that correction. Won and lost: "
    "questions answered correctly more often, and less often.",
    "Any of k responses right (pass@k) and the majority right (maj@k): the mean over choices of k of a "
    "question's responses. Answers given equally often share a majority; a response without an answer, or "
    "cut off, has no vote.",
    "Self-BLEU: how much of a response's first 50 words the question's other responses have too, 0 to 100. "
    "Nonsense is diverse too: compare at the same accuracy, not at the same temperature.",
    "Tokens per correct answer: all tokens of a cell over its correct responses.",
    "Intervals and tests are about questions like these, with this model file, prompt and token limit, and "
    "about a number of questions chosen beforehand: a run that is extended until a difference is "
    "significant finds one too often.",
)
_KINDS = {
    "sampler": ("method", "at the same temperature"),
    "model": ("model", "by the same method at the same temperature"),
    "temperature": ("temperature", "by the same method"),
    "default": ("variant", "at the same temperature"),
}


@dataclass(frozen=True)
class Section:
    """The part of a report about one model and task, or about several models on one task.

    `lead` and `findings` open the report; `parts` follow in the order in which they are to be read, and
    `more` are tables for a second look.
    """

    title: str
    lead: Picture | None
    findings: Sequence[str]
    parts: Sequence[Table | Picture]
    more: Sequence[Table] = ()

    @property
    def tables(self) -> list[Table]:
        return [part for part in self.parts if isinstance(part, Table)]


@dataclass(frozen=True)
class Document:
    """A report without the responses; `notes` are what the reader must know first."""

    title: str
    notes: Sequence[str]
    sections: Sequence[Section]
    findings: Sequence[str]
    made_with: Table | None

    @property
    def pictures(self) -> list[Picture]:
        found = ([section.lead, *section.parts] for section in self.sections)
        return [part for parts in found for part in parts if isinstance(part, Picture)]

    def markdown(self) -> str:
        """Return the document as Markdown, with links to the pictures' SVG files."""
        parts = [f"# {escape_markdown(self.title)}", *map(escape_markdown, self.notes)]
        parts.append("## What this run shows")
        for section in self.sections:
            parts.append(f"### {escape_markdown(section.title)}")
            parts += [_markdown(section.lead)] if section.lead else []
            parts.append(_bullets(section.findings))
        parts.append(_bullets(self.findings))
        for section in self.sections:
            parts.append(f"## {escape_markdown(section.title)}")
            parts += map(_markdown, (*section.parts, *section.more))
        parts += ["## How to read this", *map(escape_markdown, HOW_TO_READ)]
        parts += [_markdown(self.made_with)] if self.made_with else []
        return "\n\n".join(parts) + "\n"


def _markdown(part: Table | Picture) -> str:
    if isinstance(part, Picture):
        return f"![{escape_markdown(part.description)}]({part.stem}.svg)"
    return f"### {escape_markdown(part.title)}\n\n{part.markdown()}"


def _bullets(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {escape_markdown(sentence)}" for sentence in sentences)


def make_document(run: RecordedRun, summary: Summary, notes: Sequence[str]) -> Document:
    """Return the report of a run, with its pictures."""
    groups = summary.cells.groupby(["task", "model"], sort=False)
    sections = [_section(run, summary, number, *key) for number, (key, _) in enumerate(groups, start=1)]
    tasks = list(summary.cells["task"].unique())
    return Document(
        f"Min-k evaluation: {', '.join(tasks)}",
        notes,
        [*filter(None, (_models_section(summary, task) for task in tasks)), *sections],
        list(_run_findings(summary)),
        made_with_table(run.manifest) if run.manifest else None,
    )


def _part(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows that have these values."""
    for name, value in values.items():
        frame = frame[frame[name] == value] if len(frame) else frame
    return frame


def _section(run: RecordedRun, summary: Summary, number: int, task: str, model: str) -> Section:
    cells = _part(summary.cells, task=task, model=model)
    comparisons = _part(summary.comparisons, task=task, model=model)
    attempts = _part(summary.attempts, task=task, model=model)
    of = f"{task} · {model} ·"
    first = cells[cells["scoring"].isna() | (cells["scoring"] == "flexible")]
    is_open = first["scoring"].isna().all()
    drawn = {picture.subject: picture for picture in pictures(summary, number, task, model)}
    lead = drawn.pop("accuracy", None)
    parts: list[Table | Picture] = [] if is_open else [_accuracies(of, cells, comparisons, "flexible")]
    variants = _part(comparisons, kind="default", scoring="flexible")
    if len(variants):
        title = f"{of} accuracy minus that of the sampler's default options, points"
        parts.append(_grid(title, variants, lambda row: with_interval(points)(row.difference)))
    parts += [picture for subject, picture in drawn.items() if subject.startswith("sweep")]
    parts += _rates(of, first, is_open)
    if len(attempts):
        parts.append(_all_attempts(of, _part(attempts, scoring="flexible")))
    if "self_bleu" in first and first["self_bleu"].notna().any():
        title = f"{of} self-BLEU-4, and distinct responses to a question, %"
        parts.append(_grid(title, first, lambda row: Cell(f"{row.self_bleu:.1f}", percent(row.distinct))))
        parts += [drawn["diversity"]] if "diversity" in drawn else []
    if "k_is_1" in first and first["k_is_1"].notna().any():
        title = f"{of} steps with one candidate, %, and the k of 95%, 99% and all steps"
        parts.append(_grid(title, first, _cutoffs))
        parts += [drawn["k"]] if "k" in drawn else []
    more = [
        *(_accuracies(of, cells, comparisons, scoring) for scoring in summary.scorings[1:] if not is_open),
        *_comparison_tables(of, comparisons, summary.scorings),
        *(
            _attempts_table(of, _part(attempts, scoring=one), one)
            for one in summary.scorings
            if len(attempts)
        ),
    ]
    findings = list(_findings(run, summary, first, comparisons, is_open))
    return Section(f"{task} with {model}", lead, findings, parts, more)


def _grid(title: str, cells: pd.DataFrame, cell: Callable[[Any], Cell | str]) -> Table:
    """Return a table with a row for each method and a column for each temperature."""
    shown = [cell(row) for row in cells.itertuples()]
    wide = grid(cells.assign(method=cells["sampler"].map(label), cell=shown), "method", "temperature", "cell")
    names = {name: f"T = {temperature_name(name)}" for name in wide.columns if name != "method"}
    return Table(title, wide.rename(columns=names))


def _accuracies(of: str, cells: pd.DataFrame, comparisons: pd.DataFrame, scoring: str) -> Table:
    """Return accuracies with intervals and significance, laid out as in the paper's Table 1."""
    compared = [
        row
        for row in _part(comparisons, scoring=scoring).itertuples()
        if row.kind != "default"  # which has a table of its own
    ]
    better = {(row.sampler, row.temperature) for row in compared if row.better}
    worse = {(row.sampler, row.temperature) for row in compared if row.worse}
    undecided = {row.temperature for row in compared if not row.worse}
    beaten = {row.temperature for row in compared} - undecided
    others = {(row.sampler, row.temperature) for row in compared}

    def cell(row: Any) -> Cell:
        place = (row.sampler, row.temperature)
        shown = with_interval(percent)(row.accuracy)
        spread = "" if pd.isna(row.spread) else f"±{percent(row.spread)}"
        marks = "▲" * (place in better) + "▼" * (place in worse) + "*" * (not row.complete)
        is_best = place in better or (place not in others and row.temperature in beaten)
        return Cell(f"{shown.text}{spread}{marks}", shown.below, is_best)

    return _grid(f"{of} {scoring} accuracy, %", _part(cells, scoring=scoring), cell)


def _rates(of: str, cells: pd.DataFrame, is_open: bool) -> Iterator[Table]:
    def ends(row: Any) -> Cell:
        found = f"{row.mean_tokens:.1f}" if is_open else percent(row.no_answer)
        return Cell(found, f"cut off {percent(row.truncated)}")

    def costs(row: Any) -> Cell:
        per_correct = "–" if pd.isna(row.tokens_per_correct) else f"{row.tokens_per_correct:,.0f}"
        return Cell(f"{row.mean_tokens:.1f}", per_correct)

    found = "mean tokens" if is_open else "no answer found, %"
    yield _grid(f"{of} {found}; cut off at the token limit, %", cells, ends)
    if not is_open:
        yield _grid(f"{of} mean tokens; tokens per correct answer", cells, costs)


def _cutoffs(row: Any) -> Cell:
    if pd.isna(row.k_is_1):
        return Cell()
    return Cell(percent(row.k_is_1), f"≤ {row.k_95:,.0f} {row.k_99:,.0f} {row.k_max:,.0f}")


def _attempt(row: Any) -> Cell:
    passed, majority = (with_interval(percent)(getattr(row, name)) for name in ("passed", "maj"))
    return Cell(f"{passed.text} / {majority.text}", f"{passed.below} / {majority.below}")


def _all_attempts(of: str, attempts: pd.DataFrame) -> Table:
    n = attempts["k"].max()
    title = f"{of} accuracy of {n} responses: any right / the majority right, %"
    return _grid(title, _part(attempts, k=n).rename(columns={"pass": "passed"}), _attempt)


def _attempts_table(of: str, attempts: pd.DataFrame, scoring: str) -> Table:
    """Return pass@k and maj@k with intervals: a row for every method and temperature that has repeats."""
    found = attempts.rename(columns={"pass": "passed"})
    method = found["sampler"].map(label) + ", T = " + found["temperature"].map(temperature_name)
    found = found.assign(method=method, cell=[_attempt(row) for row in found.itertuples()])
    wide = grid(found, "method", "k", "cell")
    title = f"{of} {scoring} accuracy of k responses: any right / the majority right, %"
    return Table(
        title, wide.rename(columns={name: f"k = {name}" for name in wide.columns if name != "method"})
    )


def _comparison_tables(of: str, comparisons: pd.DataFrame, scorings: Sequence[str]) -> Iterator[Table]:
    """Yield every comparison of a model and task: a table for each kind and scoring."""
    if comparisons.empty:
        return
    comparisons = comparisons[comparisons["scoring"].isin(scorings)]
    for (kind, against, scoring), found in comparisons.groupby(["kind", "against", "scoring"], sort=False):
        shown = found.assign(
            method=found["sampler"].map(label),
            T=found["temperature"].map(temperature_name),
            adjusted=[Cell(p_value(row.p_holm), bold=row.better or row.worse) for row in found.itertuples()],
        )
        names = {"common_questions": "questions", "adjusted": "p, Holm"}
        columns = ["method", "T", "common_questions", "difference", "won", "lost", "p", "adjusted"]
        yield Table(
            f"{of} {scoring}, against {against} {_KINDS[kind][1]}",
            shown[columns].rename(columns=names),
            keys=2,
            formats={"difference": with_interval(points), "p": p_value},
        )


def _models_section(summary: Summary, task: str) -> Section | None:
    """Return the models of a task side by side, if they are compared."""
    found = _part(summary.comparisons, task=task, kind="model", scoring="flexible")
    if found.empty:
        return None
    against = str(found["against"].iloc[0])
    cells = _part(summary.cells, task=task, scoring="flexible").set_index(["model", "sampler", "temperature"])
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    for row in found.itertuples():
        base = cells["accuracy"][against, row.sampler, row.temperature]
        entry = rows.setdefault(
            (row.sampler, row.temperature),
            {"method": label(row.sampler), "T": temperature_name(row.temperature), against: base},
        )
        entry[row.model] = cells["accuracy"][row.model, row.sampler, row.temperature]
        shown = with_interval(points)(row.difference)
        entry[f"{row.model} − {against}"] = shown._replace(
            text=f"{shown.text}{'▲' * row.better}{'▼' * row.worse}", bold=row.better or row.worse
        )
        entry[f"p, Holm ({row.model})"] = p_value(row.p_holm)
    table = pd.DataFrame(list(rows.values()))
    formats = dict.fromkeys(summary.cells["model"].unique(), with_interval(percent))
    title = f"{task} · flexible accuracy, %, and the difference from {against} on the same questions, points"
    return Section(
        f"{task}: models side by side",
        None,
        [_family(found, against, "flexible", "model")],
        [Table(title, table, 2, formats)],
    )


def _findings(
    run: RecordedRun, summary: Summary, cells: pd.DataFrame, comparisons: pd.DataFrame, is_open: bool
) -> Iterator[str]:
    """Yield sentences on one model and task: its size, what to know before its numbers, and what differs."""
    task, model = cells["task"].iloc[0], cells["model"].iloc[0]
    responses = _part(summary.responses, task=task, model=model)
    n_questions, n_repeats = responses["question_id"].nunique(), responses["repeat"].nunique()
    temperatures = sorted(cells["temperature"].unique())
    yield (
        f"{count(n_questions, 'question')}, {count(n_repeats, 'response')} each, "
        f"{count(cells['sampler'].nunique(), 'method')} at T = {listed(map(temperature_name, temperatures))}."
    )
    n_choices = {len(question.choices) for (of, _), question in run.questions.items() if of == task}
    if len(n_choices) == 1 and min(n_choices):
        yield f"Guessing gets {percent(1 / min(n_choices))}%."
    if few := few_clusters(n_questions, "questions"):
        yield few
    recorded = sum((r.task, r.model) == (task, model) for r in run.responses)
    wanted = run.asked.get((model, task), 0)
    if recorded < wanted:
        yield f"{recorded:,} of {count(wanted, 'response')} are there: the same mink-eval run continues."
    if is_open:
        yield "Open-ended: its responses have no verdicts, and there is no accuracy."
    elif len(summary.scorings) > 1:
        none = responses["strict answer"].isna().mean()
        yield f"Strict scoring, under More tables, finds no answer in {percent(none)}% of the responses."
    coldest = responses[responses["temperature"] == temperatures[0]]
    cut_off = (coldest["finish_reason"] == "length").mean()
    if not is_open and cut_off > 0.5:
        yield (
            f"At T = {temperature_name(temperatures[0])} the token limit cut off {percent(cut_off)}% of the "
            "responses, which count as wrong: give a larger --max-tokens, or --stop and --shots if the model "
            "does not end its answers, as base models do not."
        )
    if n_repeats == 1:
        yield "One response a question shows nothing about diversity; --repeats 2 or more does."
    incomplete = cells[~cells["complete"]]
    if len(incomplete):
        yield (
            f"Incomplete: {len(incomplete)} of {len(cells)} cells, marked *. Accuracies over different "
            "questions cannot be compared; the tests use the questions that both methods answered."
        )
    for kind, against in dict.fromkeys((one.kind, str(one)) for one in summary.baselines):
        compared = _part(comparisons, kind=kind, scoring="flexible")
        for way in ("better", "worse"):
            differ = compared[compared[way]] if len(compared) else compared
            if len(differ):
                yield f"Significantly {way} than {against}: {_places(differ)}."


def _places(cells: pd.DataFrame) -> str:
    """Return cells by method and temperature, in the order of the tables."""
    rows = cells.groupby("sampler", sort=False)["temperature"]
    return "; ".join(
        f"{label(str(sampler))} at T = {listed(map(temperature_name, found))}" for sampler, found in rows
    )


def _run_findings(summary: Summary) -> Iterator[str]:
    """Yield sentences on all comparisons of a run, which are corrected together."""
    if summary.cells["scoring"].isna().all():  # all questions are open-ended
        return
    if (
        not any(one.kind != "model" for one in summary.baselines)
        and summary.responses["sampler"].nunique() > 1
    ):
        yield "The run has no Min-k to compare the other methods with; --against names another."
    for baseline in summary.baselines:
        for scoring in summary.scorings:
            found = _part(summary.comparisons, kind=baseline.kind, scoring=scoring)
            if len(found):
                yield _family(found, str(baseline), scoring, baseline.kind)
            elif scoring == "flexible":
                yield f"There is no other {_KINDS[baseline.kind][0]} to compare with {baseline}."


def _family(found: pd.DataFrame, against: str, scoring: str, kind: str) -> str:
    other, alike = _KINDS[kind]
    undecided = [row.difference for row in found.itertuples() if not (row.better or row.worse)]
    sentence = (
        f"{scoring.capitalize()}: of {count(len(found), 'comparison')} with {against} {alike}, the other "
        f"{other} is significantly better in {found['better'].sum()} and significantly worse in "
        f"{found['worse'].sum()}"
    )
    if not undecided:
        return f"{sentence}."
    low, high = min(one.low for one in undecided), max(one.high for one in undecided)
    return (
        f"{sentence}; in {len(undecided)} no difference was found, which does not show that there is none: "
        f"95% intervals reach from {points(low)} to {points(high)} points."
    )


def made_with_table(manifest: Mapping[str, Any]) -> Table:
    """Return the settings of a run: a row for each, for each model and task, and for each environment."""
    rows = pd.DataFrame(list(_settings(manifest)), columns=["setting", "value"])
    return Table("What the run was made with", rows, numbers=False)


def _settings(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in manifest.items():
        if key in ("models", "tasks") and isinstance(value, dict):
            yield from ((f"{key[:-1]} {name}", _in_words(entry)) for name, entry in value.items())
        elif key == "asked" and isinstance(value, list):
            yield from (("wanted", _in_words(grid)) for grid in value)
        elif key == "sessions" and isinstance(value, list):
            yield from _sessions(value)
        elif key not in ("format", "revision", "measures"):
            yield key.replace("_", " "), _in_words(value)


def _sessions(sessions: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the environments in which the run was started, each once: a run may be killed many times."""
    times: dict[str, list[str]] = {}
    for session in sessions:
        entry = dict(session) if isinstance(session, dict) else {}
        started = str(entry.pop("started", "?"))
        times.setdefault(_in_words(entry), []).append(started)
    for environment, starts in times.items():
        span = starts[0] if len(starts) == 1 else f"{starts[0]} to {starts[-1]}"
        yield f"started {count(len(starts), 'time')}", f"{span}: {environment}"


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{str(key).replace('_', ' ')} {_in_words(part)}" for key, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(_in_words, value)) or "none"
    return "not given" if value is None else str(value)
