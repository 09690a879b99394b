"""Figures with intervals, the verdict on each file, and the report.

A mean over positions has Student's 95% interval over the chunks' means, because positions in the same chunk
are dependent; quantiles are over all positions. All files are compared on the same chunks.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from mink_local.errors import ReportError
from mink_local.evals.figures import COLOURS, FILLED, GREY, Picture
from mink_local.evals.measurement import Results
from mink_local.evals.quants.divergence import Divergence
from mink_local.evals.report.report import Part, Report, Section
from mink_local.evals.run.records import RecordedRun, read_run, rescore
from mink_local.evals.run.report import HOW_TO_READ, pack, run_sections, settings_table
from mink_local.evals.run.summary import Baseline, summarise
from mink_local.evals.stats import Interval, few_clusters, mean, mean_ratio
from mink_local.evals.store import public
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    count,
    listed,
    percent,
    points,
    spread,
    values,
    with_interval,
)
from mink_local.samplers import label

RUN = "run"  # folder with the task's responses
_NOISE_LEVEL = 2  # times the self-noise: within it, a file counts as the base itself
N_PEAKS = 10  # positions shown, and kept per chunk
FIGURES = (
    *("kld_mean", "kld_median", "kld_90", "kld_99", "kld_max", "rms_dp", "ppl", "ppl_ratio"),
    *("same_top", "bits_per_weight", "prompt_speed_ratio", "speed_ratio"),
)
"""Figures that can be limited."""

_QUANTILES = {"kld_median": 0.5, "kld_90": 0.9, "kld_99": 0.99, "kld_max": 1.0}
_LOST: dict[str, tuple[str, Format]] = {
    "MB": ("bytes", lambda n: f"{n / 1e6:,.0f}"),
    "bits": ("bits_per_weight", "{:.1f}".format),
    "KLD mean": ("kld_mean", with_interval("{:.4f}".format)),
    "median": ("kld_median", "{:.3f}".format),
    "90%": ("kld_90", "{:.3f}".format),
    "99%": ("kld_99", "{:.3f}".format),
    "max": ("kld_max", "{:.3f}".format),
    "same top, %": ("same_top", with_interval(percent)),
    "RMS Δp, %": ("rms_dp", percent),
    "mean Δp, %": ("mean_dp", lambda share: f"{100 * share:+.2f}".replace("-", "−")),
    "PPL": ("ppl", "{:.2f}".format),
    "PPL ratio": ("ppl_ratio", with_interval("{:.3f}".format)),
}
_FORMATS = {head: as_text for head, (_, as_text) in _LOST.items()}
_BRIEF = ["file", "MB", "bits", "KLD mean", "99%", "same top, %", "PPL ratio"]


def file_figures(
    name: str, rows: pd.DataFrame, facts: Mapping[str, Any], base: pd.DataFrame
) -> dict[str, Any]:
    """Return a file's figures, some as intervals, as used in the report.

    Args:
        rows: The file's rows, one per chunk.
        facts: The file's size, bits per weight and tensors; see `measure.file_facts`.
        base: The base's rows, for its self-noise. Its speed is that of the usual batch split, the first one.
    """
    found: list[Divergence] = list(rows["divergence"])
    kld, base_logprob, logprob, same_top = (
        np.array([getattr(one, name) for one in found])
        for name in ("kld", "base_logprob", "logprob", "same_top")
    )  # (chunks, positions)
    change = np.exp(logprob) - np.exp(base_logprob)
    log_ratio = mean((base_logprob - logprob).mean(axis=1))
    self_noise = np.array([one.kld for one in base["divergence"]]).mean(axis=1)
    prompt, answer, load = (
        np.array(list(rows[f"{part}_seconds"])).T for part in ("prompt", "answer", "load")
    )  # (base and file, chunks)
    n_prompt, side = rows["n_prompt"].sum(), 0 if rows is base else 1
    samplers = list(found[0].same_set)
    k_is_1 = {one: np.mean(np.concatenate([row.k_is_1[one] for row in found]), axis=0) for one in samplers}
    return {
        "file": name,
        "bytes": facts["bytes"],
        "bits_per_weight": facts["bits_per_weight"],
        "kld_mean": mean(kld.mean(axis=1), least=0.0),
        "above_noise": mean(kld.mean(axis=1) - _NOISE_LEVEL * self_noise),
        **{key: float(np.quantile(kld, level)) for key, level in _QUANTILES.items()},
        "same_top": mean(same_top.mean(axis=1), 0.0, 1.0),
        "rms_dp": math.sqrt(float(np.mean(change**2))),
        "mean_dp": float(change.mean()),
        "base_ppl": math.exp(-base_logprob.mean()),
        "ppl": math.exp(-logprob.mean()),
        "ppl_ratio": Interval(*np.exp(log_ratio).tolist()),
        "set_same": {one: float(np.mean([row.same_set[one] for row in found])) for one in samplers},
        "base_k_is_1": {one: float(k_is_1[one][0]) for one in samplers},
        "k_is_1": {one: float(k_is_1[one][1]) for one in samplers},
        "prompt_tokens_per_s": float(n_prompt / prompt[side].sum()),
        "tokens_per_s": float(facts["n_answer"] * len(rows) / answer[side].sum()),
        "prompt_speed_ratio": mean_ratio(prompt[0], prompt[side]),
        "speed_ratio": mean_ratio(answer[0], answer[side]),
        "load_seconds": float(load.sum()),
        "memory": int(rows["memory"].max()),
        "positions": kld.size,
    }


def verdict(figures: Mapping[str, Any]) -> str:
    """Return a sentence about a file, which says no more than the intervals of its figures do."""
    n, above = count(figures["positions"], "position"), figures["above_noise"]
    kld = "divergence {:.3g} nats ({:.3g}–{:.3g})".format(*figures["kld_mean"])
    if above.high <= 0:
        return f"{figures['file']}: {kld}, within twice the base's self-noise on {n}."
    if above.low <= 0:
        return f"{figures['file']}: {kld}, not distinguishable from twice the base's self-noise on {n}."
    value, low, high = (points(one - 1) for one in figures["ppl_ratio"])
    is_clear = not figures["ppl_ratio"].low <= 1 <= figures["ppl_ratio"].high
    change = f"{value}% ({low} to {high})" if is_clear else f"unclear ({low} to {high}%)"
    return (
        f"{figures['file']}: {kld}; different top token at {percent(1 - figures['same_top'].value)}% of {n}; "
        f"perplexity {change}."
    )


def report(results: Results) -> Report:
    """Return the report on the files, and on the task's run if there is one.

    Raises ReportError if fewer than two chunks have been measured with the base and a file.
    """
    manifest = results.manifest
    base, facts = manifest["base"]["name"], manifest["facts"]
    rows = _rows(results)
    figures = pd.DataFrame(
        [file_figures(name, found, facts[name], rows[base]) for name, found in rows.items()]
    )
    run = _task_run(results.folder)
    against = Baseline("model", base)
    few = few_clusters(len(rows[base]), "chunks")
    settings = settings_table({key: value for key, value in public(manifest).items() if key != "facts"})
    how_to_read: list[Part] = [_how_to_read(manifest, figures), *(HOW_TO_READ if run else []), settings]
    return Report(
        "quants",
        f"Quantization loss: {base} and {count(len(rows) - 1, 'other file')}",
        [few] if few else [],
        [
            _section(figures, facts, rows),
            *(_task_sections(run, against) if run else []),
            Section("How to read this", how_to_read),
        ],
        [_in_brief(figures)],
        responses=pack(run, against) if run else b"",
        **_numbers(manifest, figures),
    )


def _rows(results: Results) -> dict[str, pd.DataFrame]:
    """Return the rows of the base and of each file, by name, on the chunks that all of them have."""
    base, names = results.manifest["base"]["name"], results.manifest["files"]
    wide = results.frame.pivot(index="chunk", columns="file", values="n_prompt")
    measured = [name for name in (base, *names) if name in wide and wide[name].notna().sum() > 1]
    chunks = wide[measured].dropna().index
    if len(chunks) < 2 or measured[:1] != [base] or len(measured) < 2:
        raise ReportError(f"{results.folder} has too few chunks yet: repeat the mink-eval quants command")
    frame = results.frame[results.frame["chunk"].isin(chunks)].sort_values("chunk")
    return {name: frame[frame["file"] == name] for name in measured}


def _section(figures: pd.DataFrame, facts: Mapping[str, Any], rows: Mapping[str, pd.DataFrame]) -> Section:
    _, *others = figures.to_dict("records")
    lost, *tables = _tables(figures, facts, rows)
    distribution = Picture.of(
        "quants-distribution", "Distribution of divergence", lambda: _distribution_figure(rows)
    )
    return Section(
        "Quantization loss",
        [lost, distribution, *tables],
        [verdict(one) for one in others] + list(_fallbacks(facts, rows)),
        Picture.of("quants-size", "Divergence against size", lambda: _size_figure(figures)),
    )


def _how_to_read(manifest: Mapping[str, Any], figures: pd.DataFrame) -> str:
    n = figures["positions"].iloc[0]
    in_turns = any(session.get("in_turns") for session in manifest["sessions"])
    return (
        f"{count(n, 'position')} of the text ({manifest['text']['source']}): the second half of every "
        f"{manifest['chunk']} tokens is scored. Divergences are D(base ‖ file), in nats. In brackets: "
        "Student's 95% intervals over chunks. The base's row is its self-noise: the same file with a "
        "different batch split, which changes the last bits of llama.cpp's sums. Speeds are from this run, "
        "alternating with the base chunk by chunk; × is the mean ratio to the base in the same rounds. "
        "Memory is how much the process grew when it loaded the file, with a context for one chunk. Loading: "
        "total seconds over all loads, including those of the base for comparison with the file."
        + " Two files did not fit into memory together and were loaded in turns."
        * in_turns
    )


def _tables(
    figures: pd.DataFrame, facts: Mapping[str, Any], rows: Mapping[str, pd.DataFrame]
) -> Iterator[Table]:
    """Yield the tables of figures, candidates, speed and memory, tensors, and peaks."""
    names = _names(figures)
    yield Table("Divergence and perplexity", _lost(figures), formats=_FORMATS)
    kept = {
        label(sampler): [
            Cell(percent(same[sampler]), percent(single[sampler]))
            for same, single in zip(figures["set_same"], figures["k_is_1"], strict=True)
        ]
        for sampler in figures["set_same"].iloc[0]
    }
    title = "Positions with the same candidates, % (below: with a single candidate)"
    yield Table(title, pd.DataFrame({"file": names, **kept}))
    speed = {
        "prompt, tokens/s": _beside(figures["prompt_tokens_per_s"], figures["prompt_speed_ratio"]),
        "answer, tokens/s": _beside(figures["tokens_per_s"], figures["speed_ratio"]),
        "memory, MB": figures["memory"].map(_FORMATS["MB"]),
        "loading, s": figures["load_seconds"].map("{:.1f}".format),
    }
    yield Table("Speed and memory", pd.DataFrame({"file": names, **speed}))
    types = pd.DataFrame([{"file": name, **one} for name in rows for one in facts[name]["types"]])
    types["fell_back"] = types["fell_back"].replace(0, np.nan)
    formats = {"parameters": "{:,}".format, "bytes": "{:,}".format, "fell back": "{:.0f}".format}
    types = types.rename(columns={"fell_back": "fell back"})
    yield Table("Tensors by type, and how many fell back to that type", types, keys=2, formats=formats)
    for name in list(rows)[1:]:
        yield Table(f"Where {name} differs most", _peaks(rows[name]), numbers=False)


def _beside(speeds: pd.Series, ratios: pd.Series) -> list[Cell]:
    pairs = zip(speeds, ratios, strict=True)
    return [Cell(f"{speed:.1f}", "×{:.2f} ({:.2f}–{:.2f})".format(*ratio)) for speed, ratio in pairs]


def _names(figures: pd.DataFrame) -> pd.Series:
    return figures["file"].mask(figures.index == 0, figures["file"] + " (base)")


def _lost(figures: pd.DataFrame) -> pd.DataFrame:
    columns = {head: figures[column] for head, (column, _) in _LOST.items()}
    return pd.DataFrame({"file": _names(figures), **columns})


def _in_brief(figures: pd.DataFrame) -> Table:
    """Return the table to print, which fits most terminals."""
    sampler, *_ = figures["set_same"].iloc[0]
    brief = _lost(figures)[_BRIEF].assign(
        **{
            "same set, %": [percent(same[sampler]) for same in figures["set_same"]],
            "answer speed, ×": figures["speed_ratio"].map(with_interval("{:.2f}".format)),
        }
    )
    return Table(f"Quantization loss (same set: {label(sampler)})", brief, formats=_FORMATS)


def _peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a file's positions with the largest divergence."""
    peaks = pd.DataFrame(list(chain.from_iterable(rows["peaks"])))
    peaks = peaks.sort_values("kld", ascending=False).head(N_PEAKS)
    return pd.DataFrame(
        {
            "KLD": peaks["kld"].map("{:.2f}".format),
            "text before": peaks["before"].map(lambda text: repr(text)[1:-1]),
            "follows": peaks["follows"].map(repr),
            "base": peaks["base"].map(_in_words),
            "file": peaks["file"].map(_in_words),
        }
    )


def _in_words(distribution: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{token!r} {100 * p:.0f}%" for token, p in distribution)


def _fallbacks(facts: Mapping[str, Any], names: Iterable[str]) -> Iterator[str]:
    for name in names:
        types = pd.DataFrame(facts[name]["types"])
        larger = types[types["fell_back"] > 0]
        if len(larger):
            to = listed(f"{row.fell_back} to {row.type}" for row in larger.itertuples())
            yield (
                f"{name}: {larger['fell_back'].sum()} of {count(types['tensors'].sum(), 'tensor')} fell back "
                f"from {facts[name]['nominal_type']} to larger types ({to}), because their rows are not a "
                "multiple of 256."
            )


def _task_run(folder: Path) -> RecordedRun | None:
    """Return the task's run, if it has any responses."""
    try:
        return rescore(read_run(folder / RUN))
    except ReportError:
        return None


def _task_sections(run: RecordedRun, against: Baseline) -> Iterator[Section]:
    """Yield the questions that flip, and the run's report."""
    summary = summarise(run, against)
    judged = summary.judged
    flips = _flips(run, judged.assign(answer=[one.answer for one in judged["flexible"]]), against.value)
    if len(flips):
        yield Section("Questions that flip", [Table("Answers", flips, keys=3, numbers=False)])
    yield from run_sections(run, summary)


def _flips(run: RecordedRun, verdicts: pd.DataFrame, base: str) -> pd.DataFrame:
    """Return the questions that only a file or only the base answers correctly, with both answers."""
    wide = verdicts.pivot(index=["task", "question_id"], columns="model", values=["correct", "answer"])
    right, answers = wide["correct"], wide["answer"]
    found = []
    for name in right.columns.drop(base):
        both = right[[base, name]].dropna()
        for task, question_id in both.index[both[base] != both[name]]:
            question = run.questions[task, question_id]
            given = [answers.loc[(task, question_id), one] or "none" for one in (base, name)]
            change = "wrong → right" if both.loc[(task, question_id), name] else "right → wrong"
            found.append((name, question_id, change, question.prompt, question.gold, *given))
    head = ["file", "question", "change", "text", "gold", "base's answer", "file's answer"]
    return pd.DataFrame(found, columns=head)


def _size_figure(figures: pd.DataFrame) -> Figure:
    """Draw mean divergence over size with its interval, and the self-noise as a line."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    noise, *others = figures.itertuples()
    means = values(figures["kld_mean"])
    least = means[means > 0].min() / 2  # stands in for 0, which has no logarithm
    for i, one in enumerate(others):
        value, low, high = (max(least, end) for end in one.kld_mean)
        error = [[value - low], [high - value]]
        look: dict[str, Any] = {"color": COLOURS[i % len(COLOURS)], "fmt": FILLED[i % len(FILLED)]}
        axis.errorbar([one.bytes / 1e6], [value], error, capsize=3, **look)
        above = 5 if i % 2 == 0 else -12  # so that names of files with the same size do not overlap
        place = (one.bytes / 1e6, value)
        axis.annotate(one.file, place, xytext=(6, above), textcoords="offset points", fontsize="small")
    if noise.kld_mean.value:
        axis.axhline(noise.kld_mean.value, color=GREY, linestyle="--", label="self-noise of the base")
        axis.legend(frameon=False, fontsize="small")
    axis.set(yscale="log", xlabel="size, MB", ylabel="mean divergence from the base, nats")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.margins(x=0.4, y=0.12)  # names are to the right of their points
    return figure


def _distribution_figure(rows: Mapping[str, pd.DataFrame]) -> Figure:
    """Draw the share of positions with at least a given divergence, for each file and the self-noise."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    for i, (name, found) in enumerate(rows.items()):
        kld = np.concatenate([one.kld for one in found["divergence"]])
        look: dict[str, Any] = {"color": COLOURS[(i - 1) % len(COLOURS)], "label": name}
        if i == 0:
            look = {"color": GREY, "label": f"{name}, self-noise", "linestyle": "--"}
        axis.ecdf(kld, complementary=True, **look)
    axis.set(xscale="log", yscale="log", xlim=(1e-6, None))
    axis.set(xlabel="divergence, nats", ylabel="share of positions with at least that")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter("{x:g}")
    axis.legend(frameon=False, fontsize="small")
    return figure


def _numbers(manifest: Mapping[str, Any], figures: pd.DataFrame) -> dict[str, Any]:
    """Return what the JSON and the CSV say: an interval has three keys, NAME, NAME_low and NAME_high."""
    table = spread(figures).assign(types=[manifest["facts"][file]["types"] for file in figures["file"]])
    noise = table.iloc[0].to_dict()
    own = ("file", "bytes", "bits_per_weight", "prompt_tokens_per_s", "tokens_per_s", "memory", "types")
    base = {key: noise[key] for key in own} | {"ppl": noise["base_ppl"], "k_is_1": noise["base_k_is_1"]}
    settings = {key: public(manifest[key]) for key in ("text", "chunk", "samplers", "versions")}
    flat = pd.json_normalize(table.drop(columns="types").to_dict("records"), sep=" ")
    return {
        "about": {**settings, "base": base, "self_noise": noise},
        "frames": {"files": table[1:]},
        "csv": {"quants": flat},
    }
