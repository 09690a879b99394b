"""`mink-models`: which models are here and which could be, what is in them, and fetching them."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mink_local import __version__
from mink_local.cli import GpuLayers, run
from mink_local.errors import ModelError, ModelNotFoundError
from mink_local.models import catalog, stores
from mink_local.models.catalog import CatalogEntry
from mink_local.models.gguf import read_metadata, shards
from mink_local.models.info import describe, size_in_words, where_it_fits, where_size_fits
from mink_local.models.memory import Budget, choose_placement, memory_budget

PROGRAM = "mink-models"

EXAMPLES = """\b
Examples:
  mink-models list
  mink-models pull llama-3-8b:Q5_K_M
  mink-models pull hf:Qwen/Qwen3-4B-GGUF:Q8_0
  mink-models info qwen3-4b --ctx 32768
  mink-chat --model llama-3-8b:Q5_K_M

Exit status: 0 done, 1 failed, 2 wrong usage or no such model, 130 interrupted.
"""

# How a size is shown that fits as `fits` says; None where it is not known.
_MARKS = {
    "GPU": ("+", "green"),
    "GPU and CPU": ("~", "yellow"),
    "CPU": (" ", ""),
    "no": ("x", "dim red"),
    None: (" ", "dim"),
}

model_argument = click.argument("model", metavar="NAME|PATH")
json_option = click.option("--json", "as_json", is_flag=True, help="For programs; sizes in bytes.")


@click.group(
    epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True
)
@click.version_option(__version__, prog_name=PROGRAM)
@click.pass_context
def cli(context: click.Context) -> None:
    """Find, fetch and look into models.

    A model is a name of models.txt, with a quantization where it is listed in several (llama-3-8b:Q6_K), a
    path, hf:ORGANISATION/REPOSITORY:FILE, where FILE may be a pattern or a quantization, ollama:NAME:TAG or
    lmstudio:NAME.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command("list")
@click.option("--here", is_flag=True, help="Only what needs no fetching.")
@json_option
def list_(here: bool, as_json: bool) -> None:
    """What is here, what could be, and what fits this machine."""
    from mink_local.llama.devices import gpus

    free = memory_budget()
    rows = _listed(free)
    rows += _found(free, known={row["path"] for row in rows})
    if here:
        rows = [row for row in rows if row["path"]]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    console = Console() if sys.stdout.isatty() else Console(width=200)  # a pipe wants whole lines
    if not here:
        _print_others([row for row in rows if not row["path"]], console)
    _print_here([row for row in rows if row["path"]], console)
    devices = "; ".join(
        f"{gpu.name}: {size_in_words(gpu.free)} of {size_in_words(gpu.total)} free" for gpu in gpus()
    )
    console.print(
        f"\n{size_in_words(free.ram)} of memory are free; {devices or 'no GPU'}.",
        style="dim",
        highlight=False,
    )
    console.print(f"Models of your own: {catalog.user_catalog_path()}", style="dim", highlight=False)


def _listed(free: Budget) -> list[dict[str, Any]]:
    """A row for every model and quantization of the catalogue."""
    return [_row(entry, free) for entries in catalog.read_catalog().values() for entry in entries]


def _row(entry: CatalogEntry, free: Budget) -> dict[str, Any]:
    row: dict[str, Any] = {"name": entry.name, "size": entry.size, "path": None, "fits": None}
    try:
        row |= _here(catalog.resolve(entry.name).path, free)
    except ModelNotFoundError:
        if entry.size:
            row["fits"] = where_size_fits(entry.size, free)
    return row | {"source": entry.source, "licence": entry.licence, "note": entry.note}


def _found(free: Budget, known: set[str | None]) -> list[dict[str, Any]]:
    """A row for every model in the stores whose path is not known yet."""
    return [
        {"name": name, **_here(path, free), "source": name.partition(":")[0], "licence": "", "note": ""}
        for name, path in stores.elsewhere()
        if str(path) not in known
    ]


def _here(path: Path, free: Budget) -> dict[str, Any]:
    try:
        header = read_metadata(path)
    except ModelError:  # `info` says what is wrong with it
        return {"path": str(path), "size": None, "fits": "damaged"}
    return {"path": str(path), "size": header.n_bytes, "fits": where_it_fits(header, free)}


def _print_here(rows: Sequence[dict[str, Any]], console: Console) -> None:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("here", overflow="fold")  # the name is there to be copied
    for title in ("size", "fits", "licence", "note"):
        table.add_column(title)
    for row in rows:
        size = size_in_words(row["size"]) if row["size"] else "?"
        table.add_row(*map(Text, (row["name"], size, row["fits"], row["licence"], row["note"])))
    console.print(table)


def _print_others(rows: Sequence[dict[str, Any]], console: Console) -> None:
    """One row a model, one column a quantization, with the sizes and whether they fit."""
    cells: dict[str, dict[str, Text]] = {}
    for row in rows:
        model, _, quantization = row["name"].partition(":")
        mark, style = _MARKS[row["fits"]]
        size = f"{row['size'] / 1e9:.1f}" if row["size"] else "?"
        cells.setdefault(model, {"licence": Text(row["licence"])})[quantization or "size"] = Text(
            size + mark, style
        )
    quantizations = sorted({name for row in cells.values() for name in row if name != "licence"})
    table = Table("to pull", box=None, padding=(0, 2, 0, 0), header_style="bold")
    for quantization in quantizations:
        table.add_column(quantization, justify="right")
    table.add_column("licence")
    for model, row in cells.items():
        table.add_row(model, *(row.get(name, Text()) for name in (*quantizations, "licence")))
    console.print()
    console.print(table)
    console.print(
        "GB; + fits the GPU, ~ the GPU and memory together, x neither", style="dim", highlight=False
    )


@cli.command()
@model_argument
@click.option("--ctx", type=click.IntRange(min=1), metavar="N", help="Tokens of all sequences together.")
@click.option(
    "--parallel", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Sequences."
)
@click.option("--gpu-layers", type=GpuLayers(), default="auto", show_default=True, help="Layers on the GPU.")
@json_option
def info(model: str, ctx: int | None, parallel: int, gpu_layers: Any, as_json: bool) -> None:
    """What is in a model, and the memory that it takes, from its header, without loading it."""
    header = read_metadata(catalog.resolve(model).path)
    chosen = choose_placement(
        header, memory_budget(), n_ctx=ctx, n_gpu_layers=gpu_layers, n_parallel=parallel
    )
    facts = describe(header, chosen, parallel)
    click.echo(json.dumps(facts, indent=2) if as_json else _in_words(facts))


def _in_words(facts: dict[str, Any]) -> str:
    vocabulary, memory = facts["vocabulary"], facts["memory"]
    experts = f", {facts['experts_used']} of {facts['experts']} experts at work" if facts["experts"] else ""
    bits = f", {facts['bits_per_parameter']} bits each" if facts["bits_per_parameter"] else ""
    kind = f"{vocabulary['kind']}, {vocabulary['split']}" if vocabulary["split"] else vocabulary["kind"]
    lines = [
        ("file", facts["path"]),
        ("size", f"{facts['size']:,} bytes"),
        ("name", facts["name"]),
        ("licence", facts["licence"]),
        ("architecture", f"{facts['architecture']}, {facts['layers']} layers of {facts['width']}{experts}"),
        ("attention", f"{facts['heads']} heads, {facts['kv_heads']} for keys and values"),
        ("parameters", f"{facts['parameters']:,}{bits}"),
        *(("", _type_in_words(row)) for row in facts["tensor_types"]),
        ("context", f"{facts['context_length']:,} tokens"),
        ("vocabulary", f"{vocabulary['tokens']:,} tokens ({kind})"),
        ("chat template", "yes" if facts["chat_template"] else "no"),
        ("thinking", facts["thinking"]),
        ("memory", _memory_in_words(memory)),
        ("", _share_in_words("GPU", memory["gpu"])),
        ("", _share_in_words("CPU", memory["cpu"])),
        ("", memory["warning"]),
    ]
    return "\n".join(f"{label:<15}{text}" for label, text in lines if text)


def _type_in_words(row: dict[str, Any]) -> str:
    size = f"{row['bytes'] / 1e6:>10,.1f} MB"
    return f"{row['type']:<8}{row['tensors']:>5} tensors {row['parameters']:>16,} parameters {size}"


def _memory_in_words(memory: dict[str, Any]) -> str:
    sequences = f" of {memory['parallel']} sequences" if memory["parallel"] > 1 else ""
    return f"for {memory['ctx']:,} tokens{sequences}, {memory['kv_per_token']:,} bytes of KV cache each:"


def _share_in_words(device: str, share: dict[str, int]) -> str:
    if not share["total"]:
        return ""
    sizes = {name: size_in_words(share[name]) for name in share}
    return (
        f"{device}: {sizes['total']} = {sizes['weights']} weights + {sizes['kv']} KV cache + "
        f"about {sizes['compute']} to compute with"
    )


@cli.command()
@click.argument("models", metavar="NAME…", nargs=-1, required=True)
def pull(models: Sequence[str]) -> None:
    """Fetch models into the Hugging Face Hub's cache.

    What was interrupted is continued; every file is checked by its SHA-256. HF_HOME says where the cache is,
    HF_TOKEN who you are, HF_ENDPOINT which server to ask.
    """
    from mink_local.models import download as hub
    from mink_local.models import trust as vetting

    for model in models:
        entry = catalog.find(model)
        if entry is None and model.startswith("hf:"):
            entry = catalog.unlisted(model)
        if entry is None or not entry.source.startswith("hf:"):
            path = catalog.resolve(model).path
            click.echo(f"{model} is not from the Hugging Face Hub; it is here", err=True)
            click.echo(path)
            continue
        path = hub.pull(entry, lambda sentence: click.echo(sentence, err=True))
        if entry.sha256 and len(shards(path)) == 1:
            vetting.remember(path)  # just hashed: it is the file that the catalogue vouches for
        click.echo(path)


@cli.command()
@model_argument
def path(model: str) -> None:
    """Where a model's file is; the first one of several."""
    click.echo(catalog.resolve(model).path)


@cli.command()
@model_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(model: str, yes: bool) -> None:
    """Delete a model that was pulled."""
    from mink_local.models import download as hub

    file = catalog.resolve(model)
    if not file.path.is_relative_to(stores.hub_cache()):
        raise click.UsageError(f"{model} was not pulled: its file is {file.path}.")
    size = sum(part.stat().st_size for part in shards(file.path))
    if not yes:
        click.confirm(f"Delete {file.name}, {size_in_words(size)}?", abort=True, err=True)
    click.echo(f"{size_in_words(hub.remove(file.path))} are free again", err=True)


@cli.command()
@click.argument("name")
@click.argument("model", metavar="MODEL")
@click.option(
    "--revision", default="main", show_default=True, help="Branch, tag or commit of the repository."
)
@click.option("--size", default="-", metavar="GB", help="Size in GB.")
@click.option("--sha256", default="-", metavar="HEX", help="What the file must hash to.")
@click.option("--licence", default="-", help="Under what licence it is.")
@click.option("--note", default="-", help="What you want to remember of it.")
def add(name: str, model: str, revision: str, size: str, sha256: str, licence: str, note: str) -> None:
    """Give MODEL a NAME of your own: a path, hf:…, ollama:… or lmstudio:…."""
    if model.startswith(stores.PREFIXES):
        entry = catalog.unlisted(model)
        source, file = entry.source, entry.file
    else:
        source, file = "file", str(catalog.resolve(model).path)
    catalog.add([name, source, file, revision, size, sha256, licence, note])
    click.echo(f"{name} is in {catalog.user_catalog_path()}", err=True)


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
