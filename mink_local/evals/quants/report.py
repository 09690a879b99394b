"""Figures with intervals, the verdict on each file, and the report.

A mean over positions has Student's 95% interval over the means of the chunks, because positions of one chunk
depend on each other; quantiles are over all positions. All files are compared on the same chunks.
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray
from rich.console import Console

from mink_local.cli import printable
from mink_local.errors import ReportError
from mink_local.evals.figures import GREY, MARKERS, to_svg
from mink_local.evals.measurement import Results
from mink_local.evals.quants.divergence import N_PEAKS
from mink_local.evals.report.page import FOLDER, content_policy, report_run
from mink_local.evals.report.plots import Picture
from mink_local.evals.report.recorded_run import read_run, rescore
from mink_local.evals.stats import Interval, few_clusters, mean, paired_test
from mink_local.evals.store import public
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    count,
    escape_markdown,
    percent,
    points,
    show_file,
    to_csv,
    with_interval,
)
from mink_local.samplers import label

RUN = "run"  # folder of the task's responses
FIGURES = (
    *("kld_mean", "kld_median", "kld_90", "kld_99", "kld_max", "rms_dp", "ppl", "ppl_ratio"),
    "bits_per_weight",
)
"""Figures that grow with what is lost, and can be limited."""

_QUANTILES = {"kld_median": 0.5, "kld_90": 0.9, "kld_99": 0.99, "kld_max": 1.0}
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#332288")
_FORMATS: dict[str, Format] = {
    "KLD mean": with_interval("{:.4f}".format),
    **dict.fromkeys(("median", "90%", "99%", "max"), "{:.3f}".format),
    "same top, %": with_interval(percent),
    "RMS Δp, %": percent,
    "mean Δp, %": lambda share: f"{100 * share:+.2f}".replace("-", "−"),
    "PPL": "{:.2f}".format,
    "PPL ratio": with_interval("{:.3f}".format),
}


def file_figures(
    name: str, rows: pd.DataFrame, facts: Mapping[str, Any], is_base: bool = False
) -> dict[str, Any]:
    """Return the figures of a file, intervals among them, as the report has them.

    Args:
        rows: Those of the file, one for each chunk.
        facts: Its size, bits a weight and tensors; see `measure.file_facts`.
        is_base: Its speed is that of the usual batch split then, the first of both.
    """
    found = list(rows["divergence"])
    kld, base_logprob, logprob, same_top = (
        np.array([one[key] for one in found]) for key in ("kld", "base_logprob", "logprob", "same_top")
    )  # (chunks, positions)
    change = np.exp(logprob) - np.exp(base_logprob)
    log_ratio = mean((base_logprob - logprob).mean(axis=1))
    prompt, answer = (np.array(list(rows[f"{part}_seconds"])).sum(axis=0) for part in ("prompt", "answer"))
    n_prompt, side = rows["n_prompt"].sum(), 0 if is_base else 1
    samplers = list(found[0]["same_set"])
    k_is_1 = {one: np.mean(np.concatenate([row["k_is_1"][one] for row in found]), axis=0) for one in samplers}
    return {
        "file": name,
        "bytes": facts["bytes"],
        "bits_per_weight": facts["bits_per_weight"],
        "kld_mean": mean(kld.mean(axis=1), least=0.0),
        **{key: float(np.quantile(kld, level)) for key, level in _QUANTILES.items()},
        "same_top": mean(same_top.mean(axis=1), 0.0, 1.0),
        "rms_dp": math.sqrt(float(np.mean(change**2))),
        "mean_dp": float(change.mean()),
        "base_ppl": math.exp(-base_logprob.mean()),
        "ppl": math.exp(-logprob.mean()),
        "ppl_ratio": Interval(*np.exp(log_ratio).tolist()),
        "set_same": {one: float(np.mean([row["same_set"][one] for row in found])) for one in samplers},
        "base_k_is_1": {one: float(k_is_1[one][0]) for one in samplers},
        "k_is_1": {one: float(k_is_1[one][1]) for one in samplers},
        "prompt_tokens_per_s": float(n_prompt / prompt[side]),
        "tokens_per_s": float(facts["n_answer"] * len(rows) / answer[side]),
        "prompt_speed_ratio": float(prompt[0] / prompt[side]),
        "speed_ratio": float(answer[0] / answer[side]),
        "positions": kld.size,
    }


def verdict(figures: Mapping[str, Any], noise: float) -> str:
    """Return a sentence on a file, from its figures and the base's self-noise."""
    kld, n = figures["kld_mean"].value, count(figures["positions"], "position")
    if kld <= 2 * noise:
        return f"{figures['file']}: within twice the noise of the base on {n}."
    times = f", {kld / noise:,.0f} times the noise of the base" if noise else ""
    ratio = figures["ppl_ratio"].value - 1
    return (
        f"{figures['file']}: divergence {kld:.3g} nats{times}; another top token at "
        f"{percent(1 - figures['same_top'].value)}% of {n}; perplexity {points(ratio)}%."
    )


def report(results: Results) -> pd.DataFrame:
    """Print the table, write the report, and return the figures of the files, the base's self-noise apart.

    Raises ReportError if no two chunks have been measured with the base and a file.
    """
    manifest = results.manifest
    base, names = manifest["base"]["name"], list(manifest["files"])
    wide = results.frame.pivot(index="chunk", columns="file", values="n_prompt")
    measured = [name for name in (base, *names) if name in wide and wide[name].notna().sum() > 1]
    chunks = wide[measured].dropna().index
    if len(chunks) < 2 or measured[:1] != [base] or len(measured) < 2:
        raise ReportError(f"{results.folder} has too few chunks yet: type the mink-eval quants command again")
    frame = results.frame[results.frame["chunk"].isin(chunks)]
    rows = {name: frame[frame["file"] == name].sort_values("chunk") for name in measured}
    found = {name: file_figures(name, rows[name], manifest["facts"][name], name == base) for name in measured}
    noise = found.pop(base)
    files = pd.DataFrame(list(found.values()))
    n = count(noise["positions"], "position")
    few = few_clusters(len(chunks), "chunks")
    findings = [verdict(one, noise["kld_mean"].value) for one in found.values()]
    findings += [*_fallbacks(manifest["facts"], measured), *_flips(results.folder, base, list(found))]
    tables = list(_tables(noise, files, manifest["facts"], rows))
    text = (
        f"{n} in {count(len(chunks), 'chunk')} of the text ({manifest['text']['source']}): the second half "
        f"of every {manifest['chunk']} tokens is scored. Divergences are D(base ‖ file), in nats. In "
        "brackets: Student's 95% intervals over chunks. The row of the base is its self-noise: the same file "
        "with its tokens in another batch split. Speeds are of this run, measured in turns; × is beside the "
        "base in the same rounds. Memory is estimated for a context of 4,096 tokens."
    )
    pictures = [
        Picture("quants-size", "Divergence against size", to_svg(lambda: _size_figure(noise, files))),
        Picture(
            "quants-distribution",
            "Distribution of divergence",
            to_svg(lambda: _distribution_figure(rows, base)),
        ),
    ]
    console = Console()
    _in_brief(tables[0].frame, noise, files).print(console)
    for sentence in findings:
        console.print(f"• {printable(sentence)}", highlight=False, markup=False)
    notes = [few] if few else []
    title = f"What is lost: {base} and {count(len(found), 'other file')}"
    _write(results, title, [*notes, text], findings, tables, pictures)
    results.write("quants.csv", to_csv(_flat(pd.DataFrame([noise, *found.values()]))))
    results.write("quants.json", _json(manifest, noise, found))
    show_file(console, results.folder / "quants.html")
    return files.assign(kld_mean=files["kld_mean"].str[0], ppl_ratio=files["ppl_ratio"].str[0])


def _tables(
    noise: Mapping[str, Any], files: pd.DataFrame, facts: Mapping[str, Any], rows: Mapping[str, pd.DataFrame]
) -> Iterator[Table]:
    """Yield the table of figures, of speed and size, of tensors, and of where the files differ."""
    every = pd.concat([pd.DataFrame([noise]), files], ignore_index=True)
    shown = pd.DataFrame({"file": every["file"]})
    shown.loc[0, "file"] = f"{noise['file']} (base)"
    shown["MB"] = every["bytes"].map(lambda n: f"{n / 1e6:,.0f}")
    shown["bits"] = every["bits_per_weight"].map("{:.1f}".format)
    columns = ("kld_mean", *_QUANTILES, "same_top", "rms_dp", "mean_dp", "ppl", "ppl_ratio")
    for head, column in zip(_FORMATS, columns, strict=True):
        shown[head] = every[column]
    kept = pd.DataFrame({"file": shown["file"]})
    for sampler in noise["set_same"]:
        same, single = (
            every[name].map(lambda by_sampler, sampler=sampler: percent(by_sampler[sampler]))
            for name in ("set_same", "k_is_1")
        )
        kept[label(sampler)] = [Cell(*pair) for pair in zip(same, single, strict=True)]
    yield Table("What is lost", shown, formats=_FORMATS)
    yield Table("Positions with the same candidates, % (below: with a single one)", kept)
    speed = pd.DataFrame({"file": shown["file"]})
    for head, rate, ratio in (
        ("prompt, tokens/s", "prompt_tokens_per_s", "prompt_speed_ratio"),
        ("answer, tokens/s", "tokens_per_s", "speed_ratio"),
    ):
        speed[head] = [
            Cell(f"{one[rate]:.1f}", "" if i == 0 else f"×{one[ratio]:.2f}")
            for i, one in enumerate(every.to_dict("records"))
        ]
    speed["memory, MB"] = every["file"].map(lambda name: f"{facts[name]['memory'] / 1e6:,.0f}")
    yield Table("Speed and memory", speed)
    types = [{"file": name, **one} for name in rows for one in facts[name]["types"]]
    yield Table(
        "Size by type of tensor",
        pd.DataFrame(types),
        keys=2,
        formats={"parameters": "{:,}".format, "bytes": "{:,}".format},
    )
    for name in files["file"]:
        yield Table(f"Where {name} differs most", _peaks(rows[name]), numbers=False)


def _in_brief(lost: pd.DataFrame, noise: Mapping[str, Any], files: pd.DataFrame) -> Table:
    """Return the table that is printed, which fits most terminals."""
    brief = lost[["file", "MB", "bits", "KLD mean", "99%", "same top, %", "PPL ratio"]].copy()
    first, *_ = noise["set_same"]
    same = pd.Series([noise["set_same"], *files["set_same"]])
    brief["same set, %"] = same.map(lambda by_sampler: percent(by_sampler[first]))
    brief["answer speed"] = ["×1.00", *(f"×{ratio:.2f}" for ratio in files["speed_ratio"])]
    return Table(f"What is lost (same set: of {label(first)})", brief, formats=_FORMATS)


def _peaks(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the positions of a file with the largest divergence."""
    peaks = [(peak, row) for row in rows.itertuples() for peak in row.divergence["peaks"]]
    peaks.sort(key=lambda one: -one[0]["kld"])
    shown = []
    for peak, row in peaks[:N_PEAKS]:
        before, token = row.before[str(peak["position"])]

        def tops(side: str, peak: Any = peak, row: Any = row) -> str:
            return ", ".join(f"{row.tokens[str(token)]!r} {100 * p:.0f}%" for token, p in peak[side])

        shown.append((f"{peak['kld']:.2f}", repr(before)[1:-1], repr(token), tops("base"), tops("file")))
    return pd.DataFrame(shown, columns=["KLD", "text before", "follows", "base", "file"])


def _fallbacks(facts: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    for name in names:
        n = facts[name]["fell_back"]
        if n:
            yield (
                f"{name}: {n} of {count(facts[name]['tensors'], 'tensor')} fell back to a larger type than "
                f"{facts[name]['nominal_type']}."
            )


def _flips(folder: Path, base: str, names: Sequence[str]) -> Iterator[str]:
    """Report on the task's run, if there is one, and yield what each file changes."""
    if not (folder / RUN).is_dir():
        return
    run = rescore(read_run(folder / RUN))
    report_run(folder / RUN, ("model", base))
    judged = pd.DataFrame(
        [
            (one.task, one.model, one.question_id, one.flexible.correct)
            for one in run.responses
            if one.flexible
        ],
        columns=["task", "model", "question", "correct"],
    )
    for task, of_task in judged.groupby("task"):
        right = of_task.pivot(index="question", columns="model", values="correct")
        for name in names:
            if name not in right or base not in right:
                continue
            pairs = right[[base, name]].dropna().astype(int)
            gains = pairs[name] - pairs[base]
            test = paired_test(gains.tolist())
            low, high = points(test.difference.low), points(test.difference.high)
            lost, won = ([str(one) for one in gains.index[gains == sign]] for sign in (-1, 1))
            yield (
                f"{name}: {points(test.difference.value)} points [{low}, {high}] on "
                f"{count(test.n, 'question')} of {task} (p = {test.p:.3f}). "
                f"Right → wrong: {', '.join(lost) or 'none'}; wrong → right: {', '.join(won) or 'none'}."
            )


def _size_figure(noise: Mapping[str, Any], files: pd.DataFrame) -> Figure:
    """Draw mean divergence over size with its interval, and the self-noise as a line."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    least = max(1e-9, min(noise["kld_mean"].value or math.inf, files["kld_mean"].str[0].min()) / 2)
    for i, one in enumerate(files.itertuples()):
        value, low, high = (max(least, end) for end in one.kld_mean)
        color, marker = _COLOURS[i % len(_COLOURS)], MARKERS[i % len(MARKERS)]
        x = one.bytes / 1e6
        axis.errorbar([x], [value], [[value - low], [high - value]], capsize=3, color=color, fmt=marker)
        above = 5 if i % 2 == 0 else -12  # so that two files of one size have both names
        axis.annotate(one.file, (x, value), xytext=(6, above), textcoords="offset points", fontsize="small")
    if noise["kld_mean"].value:
        axis.axhline(noise["kld_mean"].value, color=GREY, linestyle="--")
        place = axis.get_yaxis_transform()
        axis.text(
            0.01, noise["kld_mean"].value, "self-noise of the base", va="bottom", color=GREY, transform=place
        )
    axis.set(yscale="log", xlabel="size, MB", ylabel="mean divergence from the base, nats")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.margins(x=0.25, y=0.12)
    return figure


def _distribution_figure(rows: Mapping[str, pd.DataFrame], base: str) -> Figure:
    """Draw the share of positions with at least a divergence, a line a file and a grey one of self-noise."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    others = [name for name in rows if name != base]
    for name, found in rows.items():
        kld: NDArray[np.float64] = np.sort(np.concatenate([one["kld"] for one in found["divergence"]]))
        share = 100 * (1 - np.arange(kld.size) / kld.size)
        colour = GREY if name == base else _COLOURS[others.index(name) % len(_COLOURS)]
        title = f"{name}, self-noise" if name == base else name
        axis.step(kld, share, color=colour, linestyle="--" if name == base else "-", label=title)
    axis.set(xscale="log", yscale="log", ylim=(None, 130), xlim=(1e-6, None))
    axis.set(xlabel="divergence, nats", ylabel="positions with at least that, %")
    for ticks in (axis.xaxis, axis.yaxis):
        ticks.set_major_formatter("{x:g}")
    axis.legend(frameon=False, fontsize="small")
    return figure


def _write(
    results: Results,
    title: str,
    text: Sequence[str],
    findings: Sequence[str],
    tables: Sequence[Table],
    pictures: Sequence[Picture],
) -> None:
    """Write quants.md, quants.html and the pictures."""
    parts = [f"# {escape_markdown(title)}", "\n".join(f"- {escape_markdown(one)}" for one in findings)]
    parts += [escape_markdown(one) for one in text]
    for picture in pictures:
        results.write(f"{picture.stem}.svg", picture.svg)
        parts.append(f"![{picture.description}]({picture.stem}.svg)")
    for table in tables:
        parts += [f"## {escape_markdown(table.title)}", table.markdown()]
    results.write("quants.md", "\n\n".join(parts) + "\n")
    style = (FOLDER / "page.css").read_text(encoding="utf-8")
    environment = Environment(
        loader=FileSystemLoader([Path(__file__).parent, FOLDER]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("quants.html").render(
        title=title,
        text=text,
        findings=findings,
        tables=tables,
        pictures=pictures,
        has_run=(results.folder / RUN / "report").is_dir(),
        image=lambda svg: f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}",
        style=Markup(style),
        policy=content_policy(style, ""),
    )
    results.write("quants.html", page.encode("utf-8", "replace"))


def _flat(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a frame with a column for every sampler's share."""
    shares = [
        pd.DataFrame(frame[name].tolist()).add_prefix(f"{name} ")
        for name in ("set_same", "base_k_is_1", "k_is_1")
    ]
    return pd.concat([frame.drop(columns=["set_same", "base_k_is_1", "k_is_1"]), *shares], axis=1)


def _json(manifest: Mapping[str, Any], noise: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return the figures as JSON; an interval has three keys: NAME, NAME_low and NAME_high."""
    base = {"ppl": noise["base_ppl"], "k_is_1": noise["base_k_is_1"]}
    shared = {key: noise[key] for key in ("bytes", "bits_per_weight", "prompt_tokens_per_s", "tokens_per_s")}
    about = {key: public(manifest[key]) for key in ("text", "chunk", "samplers", "versions")}
    content = {
        **about,
        "base": {"file": noise["file"], **shared, **base, "types": manifest["facts"][noise["file"]]["types"]},
        "files": [
            {**_with_ends(one), "types": manifest["facts"][name]["types"]} for name, one in found.items()
        ],
        "self_noise": _with_ends(noise),
    }
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _with_ends(figures: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in figures.items():
        if isinstance(value, Interval):
            flat |= {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
        else:
            flat[name] = value
    return flat
