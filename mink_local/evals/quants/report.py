"""Figures with intervals, the verdict on each file, the report, and a block for a model card.

A mean over positions has Student's 95% interval over the chunks' means, because positions in the same chunk
are dependent. Quantiles are over all positions; that of 99.9% has a bootstrap interval over chunks. All files
are compared on the same chunks, and sorted by their divergence.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

from mink_local.errors import ReportError
from mink_local.evals.figures import COLOURS, FILLED, GREY, Picture
from mink_local.evals.measurement import Results
from mink_local.evals.report.report import Report, Section
from mink_local.evals.run.report import settings_table
from mink_local.evals.stats import Interval, few_clusters, mean
from mink_local.evals.store import public
from mink_local.evals.tables import (
    ENDS,
    Format,
    Table,
    columns_of,
    count,
    listed,
    of_interval,
    percent,
    points,
)

FEWEST = 2  # chunks needed for an interval
ENOUGH = 8  # chunks needed for a verdict, and of each kind of text, unless more or fewer positions are wanted
_RESAMPLES = 200  # of chunks, for an interval
_TAIL_POSITIONS = 20_000
_NOISE_LEVEL = 2  # times the self-noise: within it, a file counts as the base itself
_UNQUANTIZED_BITS = 15.9  # per weight; the largest quantizations have 8.5
_QUANTILES = {
    "kld_median": 0.5,
    "kld_90": 0.9,
    "kld_95": 0.95,
    "kld_99": 0.99,
    "kld_99_9": 0.999,
    "kld_max": 1.0,
}
FIGURES = ("kld_mean", *_QUANTILES, "rms_dp", "ppl", "ppl_ratio", "same_top", "bits_per_weight")
"""Figures that can be limited."""

_COLUMNS: dict[str, tuple[str, Format]] = {
    "file": ("file", str),
    "bytes": ("MB", lambda n: f"{n / 1e6:,.0f}"),
    "bits_per_weight": ("bits", "{:.1f}".format),
    "kld_mean": ("KLD mean", "{:.4f}".format),
    "kld_median": ("median", "{:.3f}".format),
    "kld_90": ("90%", "{:.3f}".format),
    "kld_95": ("95%", "{:.3f}".format),
    "kld_99": ("99%", "{:.3f}".format),
    "kld_99_9": ("99.9%", "{:.3f}".format),
    "kld_max": ("max", "{:.3f}".format),
    "same_top": ("same top, %", percent),
    "rms_dp": ("RMS Δp, %", percent),
    "mean_dp": ("mean Δp, %", lambda share: f"{100 * share:+.2f}".replace("-", "−")),
    "ppl": ("PPL", "{:.2f}".format),
    "ppl_ratio": ("PPL ratio", "{:.3f}".format),
}
DIVERGENCE = ("bytes", "bits_per_weight", "kld_mean", *_QUANTILES)
PREDICTIONS = ("same_top", "rms_dp", "mean_dp", "ppl", "ppl_ratio")
_BRIEF = ("bytes", "bits_per_weight", "kld_mean", "kld_99_9", "same_top", "ppl_ratio")


def figures_of(rows: pd.DataFrame) -> dict[str, Any]:
    """Return a file's figures on some chunks, some as intervals, as used in the report.

    Args:
        rows: The file's rows, one per chunk.
    """
    kld, base_logprob, logprob, same_top = (
        np.array([getattr(one, name) for one in rows["divergence"]])
        for name in ("kld", "base_logprob", "logprob", "same_top")
    )  # (chunks, positions)
    change = np.exp(logprob) - np.exp(base_logprob)
    ratio = mean((base_logprob - logprob).mean(axis=1))
    return {
        **columns_of(mean(kld.mean(axis=1), least=0.0), "kld_mean"),
        **{key: float(np.quantile(kld, level)) for key, level in _QUANTILES.items()},
        **columns_of(_tail(kld), "kld_99_9"),
        **columns_of(mean(same_top.mean(axis=1), 0.0, 1.0), "same_top"),
        "rms_dp": math.sqrt(float(np.mean(change**2))),
        "mean_dp": float(change.mean()),
        "base_ppl": math.exp(-base_logprob.mean()),
        "ppl": math.exp(-logprob.mean()),
        **columns_of(Interval(*np.exp(ratio).tolist()), "ppl_ratio"),
        "positions": kld.size,
        "chunks": len(kld),
    }


def _tail(kld: NDArray[np.float64]) -> Interval:
    """Return the 99.9th percentile of divergences (chunks, positions), with its interval over chunks."""
    drawn = np.random.default_rng(0).integers(len(kld), size=(_RESAMPLES, len(kld)))
    again = [np.quantile(kld[chunks], 0.999) for chunks in drawn]
    return Interval(*map(float, (np.quantile(kld, 0.999), *np.quantile(again, (0.025, 0.975)))))


def _above_noise(rows: pd.DataFrame, base: pd.DataFrame) -> Interval:
    """Return the divergence of a file beyond twice the self-noise of the base."""
    kld, noise = (np.array([one.kld for one in part["divergence"]]).mean(axis=1) for part in (rows, base))
    return mean(kld - _NOISE_LEVEL * noise)


def verdict(figures: Mapping[str, Any]) -> str:
    """Return a sentence about a file, which says no more than the intervals of its figures do."""
    n, name = count(figures["positions"], "position"), figures["file"]
    kld = f"{name}: divergence {figures['kld_mean']:.3g} nats"
    if figures["chunks"] < ENOUGH or math.isnan(figures["above_noise_low"]):
        return f"{kld}; {count(figures['chunks'], 'chunk')}: no verdict below {ENOUGH} (--positions)."
    kld += f" ({figures['kld_mean_low']:.3g}–{figures['kld_mean_high']:.3g})"
    if figures["above_noise_high"] <= 0:
        return f"{kld}, within twice the base's self-noise on {n}."
    if figures["above_noise_low"] <= 0:
        return f"{kld}, not distinguishable from twice the base's self-noise on {n}."
    value, low, high = (points(figures[f"ppl_ratio{end}"] - 1) for end in ENDS)
    is_clear = not figures["ppl_ratio_low"] <= 1 <= figures["ppl_ratio_high"]
    change = f"{value}% ({low} to {high})" if is_clear else f"unclear ({low} to {high}%)"
    return f"{kld}; different top token at {percent(1 - figures['same_top'])}% of {n}; perplexity {change}."


def report(results: Results) -> Report:
    """Return the report on the files.

    Raises ReportError if fewer than two chunks have been measured with the base and a file.
    """
    manifest = results.manifest
    base, facts = manifest["base"]["name"], manifest["facts"]
    rows = _rows(results)
    own = pd.DataFrame(
        {
            "file": name,
            "type": facts[name]["nominal_type"],
            "bytes": facts[name]["bytes"],
            "bits_per_weight": facts[name]["bits_per_weight"],
            **figures_of(found),
            **columns_of(_above_noise(found, rows[base]), "above_noise"),
        }
        for name, found in rows.items()
    )
    figures = pd.concat([own[:1], own[1:].sort_values("kld_mean")], ignore_index=True)
    noise = figures.iloc[0]
    has_verdicts = noise["chunks"] >= ENOUGH
    narrow = few_clusters(noise["chunks"], "chunks") if has_verdicts else None
    kinds = pd.DataFrame(
        {"file": name, "kind": kind, **figures_of(part)}
        for name, found in rows.items()
        for kind, part in found.groupby("kind", sort=False)
    )
    size = Picture.of(
        "quants-size", "Size against the mean divergence, with 95% intervals", lambda: size_figure(figures)
    )
    shown = ("base", "files", "facts")  # in tables of their own
    settings = {key: value for key, value in public(manifest).items() if key not in shown}
    verdicts = [verdict(one) for one in figures[1:].to_dict("records")]
    sections = [
        Section("Quantization loss", list(_tables(figures, kinds)), verdicts, size),
        Section(
            "How to read this", [_how_to_read(results, figures), _files(manifest), settings_table(settings)]
        ),
    ]
    about = {key: public(manifest[key]) for key in ("text", "chunk", "versions")}
    return Report(
        "quants",
        f"Quantization loss against {_base_in_words(manifest)}: {count(len(rows) - 1, 'other file')}",
        list(filter(None, [narrow, results.rows.left_out])),
        sections,
        [files_table(f"Loss against {_base_in_words(manifest)}", figures, _BRIEF)],  # fits most terminals
        about={**about, "base": base, "self_noise": noise.where(noise.notna(), None).to_dict()},
        frames={"files": figures[1:], "kinds": kinds},
        csv={"quants": figures, "quants-kinds": kinds},
        extra={"quants-card.md": _card(manifest, figures, kinds, size)},
    )


def _base_in_words(manifest: Mapping[str, Any]) -> str:
    """Return the base's name, and its type if it is itself a quantization."""
    name = manifest["base"]["name"]
    facts = manifest["facts"][name]
    is_quantized = facts["bits_per_weight"] < _UNQUANTIZED_BITS
    return (
        f"{name}, itself a quantization ({facts['nominal_type'] or 'mixed'})" if is_quantized else str(name)
    )


def _rows(results: Results) -> dict[str, pd.DataFrame]:
    """Return the rows of the base and of each file, by name, on the chunks that all of them have."""
    base, names = results.manifest["base"]["name"], results.manifest["files"]
    wide = results.frame.pivot(index="chunk", columns="file", values="divergence")
    measured = [name for name in (base, *names) if name in wide and wide[name].notna().sum() >= FEWEST]
    chunks = wide[measured].dropna().index
    if len(chunks) < FEWEST or measured[:1] != [base] or len(measured) < 2:
        raise ReportError(f"{results.folder} has too few chunks yet: repeat the mink-eval quants command")
    frame = results.frame[results.frame["chunk"].isin(chunks)].sort_values("chunk")
    return {name: frame[frame["file"] == name] for name in measured}


def _how_to_read(results: Results, figures: pd.DataFrame) -> str:
    manifest = results.manifest
    kept = sum(path.stat().st_size for path in results.folder.glob("base/*"))
    return (
        f"{count(figures['positions'].iloc[0], 'position')} of the text ({manifest['text']['source']}): the "
        f"second half of every {manifest['chunk']} tokens is scored. Divergence: D(base ‖ file), in nats. "
        "Below means: Student's 95% intervals over chunks. The 99.9th percentile has a bootstrap interval "
        f"over chunks; of fewer than {_TAIL_POSITIONS:,} positions it is one of the largest few. "
        "The base's row is its self-noise: the same file with another batch split, which changes the last "
        "bits of llama.cpp's sums. "
        + (
            "Chats and calls of tools are rendered by the base's chat template."
            if manifest["text"]["source"] == "bundled"
            else "Markup in the file, such as <|im_start|>, is read as text."
        )
        + f" The base's distributions take {kept / 1e6:,.0f} MB in base/." * bool(kept)
    )


def _files(manifest: Mapping[str, Any]) -> Table:
    """Return the table of the files: what they are and how they are known."""
    files = [manifest["base"], *manifest["files"].values()]
    rows = [
        {
            "file": one["name"],
            "type": manifest["facts"][one["name"]]["nominal_type"],
            "KV cache": one.get("kv_type", "f16"),
            "imatrix": manifest["facts"][one["name"]].get("imatrix", ""),
            "SHA-256": one["sha256"],
        }
        for one in files
    ]
    return Table("Files", pd.DataFrame(rows), numbers=False)


def _tables(figures: pd.DataFrame, kinds: pd.DataFrame) -> Iterator[Table]:
    """Yield the tables of divergence, kinds of text, and predictions."""
    yield files_table("Divergence", figures, DIVERGENCE)
    every = pd.concat([figures.assign(kind="all"), kinds]) if kinds["kind"].nunique() > 1 else kinds
    for figure, name in (("kld_mean", "Mean divergence"), ("kld_99_9", "99.9th percentile")):
        files = [figures["file"][0], *figures[1:].sort_values(figure)["file"]]
        ordered = every.set_index("file").loc[files].reset_index()
        yield kinds_table(f"{name}, sorted, by kind of text", ordered, figure)
    yield files_table("Predictions and perplexity", figures, PREDICTIONS)


def kinds_table(title: str, kinds: pd.DataFrame, figure: str = "kld_mean") -> Table:
    """Return the table of a figure of the files by kind of text."""
    heads = {kind: kind for kind in kinds["kind"].unique()}
    return Table.grid(
        title, kinds, lambda row: of_interval(row, figure, "{:.4f}".format), "file", "kind", heads
    )


def _card(manifest: Mapping[str, Any], figures: pd.DataFrame, kinds: pd.DataFrame, size: Picture) -> str:
    """Return a block for a model card: a table, the files' hashes, how to repeat it, and one picture."""
    versions = ", ".join(f"{program} {version}" for program, version in manifest["versions"].items())
    base, files, text = manifest["base"], manifest["files"].values(), manifest["text"]
    names = dict.fromkeys(f"./{Path(one['path']).name}" for one in (base, *files))
    cached = [one for one in files if one["path"] == base["path"]]  # the base with other types of KV cache
    options = ["--chunk", str(manifest["chunk"]), "--positions", str(figures["positions"].iloc[0])]
    if text["source"] != "bundled":
        options += ["--text", text["source"]]
    for one in (base, *cached) if cached else ():
        options += ["--kv-type", one.get("kv_type", "f16")]
    return "\n\n".join(
        [
            f"## Loss by quantization, against {_base_in_words(manifest)}",
            files_table("", figures, _BRIEF).markdown(),
            "KLD: the divergence of the next-token distributions from the base's, in nats, on "
            f"{count(figures['positions'].iloc[0], 'position')} of {listed(kinds['kind'].unique())} (SHA-256 "
            f"{text['sha256'][:12]}); 99.9%: at one position in a thousand it is larger. The base's row is "
            "its self-noise.",
            f"![{size.description}]({size.stem}.svg)",
            _files(manifest).markdown(),
            f"{versions}:",
            f"```\n{shlex.join(['mink-eval', 'quants', *names, *options])}\n```\n",
        ]
    )


def files_table(title: str, figures: pd.DataFrame, names: Sequence[str]) -> Table:
    """Return the table of some figures of the files."""
    columns = {name: _COLUMNS[name] for name in ("file", *names)}
    named = figures["file"].mask(figures.index == 0, figures["file"] + " (base)")
    return Table.of(title, figures.assign(file=named), columns, 1)


def size_figure(figures: pd.DataFrame) -> Figure:
    """Draw the mean divergence with its interval over size, and the base's self-noise as a line."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    noise, *others = figures.itertuples()
    for i, one in enumerate(others):
        x, y = one.bytes / 1e6, one.kld_mean
        ends = [[max(0.0, y - one.kld_mean_low)], [max(0.0, one.kld_mean_high - y)]]
        axis.errorbar(x, y, np.nan_to_num(ends), fmt=FILLED[i % len(FILLED)], color=COLOURS[i % len(COLOURS)])
        above = 5 if i % 2 == 0 else -12  # so that names of files with the same size do not overlap
        axis.annotate(one.file, (x, y), xytext=(6, above), textcoords="offset points", fontsize="small")
    if noise.kld_mean:
        axis.axhline(noise.kld_mean, color=GREY, linestyle="--", label="self-noise of the base")
        axis.legend(frameon=False, fontsize="small")
    axis.set(yscale="log", xlabel="size, MB", ylabel="mean divergence, nats")
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.margins(x=0.4, y=0.12)  # names are to the right of their points
    return figure
