"""`mink-models`: list, inspect and download models."""

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Literal

import click

from mink_local.cli import FiniteFloat, WholeNumber, json_option, run
from mink_local.errors import ModelError, ModelNotFoundError
from mink_local.files import size_in_words, user_path
from mink_local.llama.constants import RPC_PORT
from mink_local.models import catalog, stores
from mink_local.models.gguf import read_metadata, shards
from mink_local.models.options import (
    complete_model,
    ctx_option,
    gpu_layers_option,
    kv_type_option,
    parallel_option,
    threads_option,
)
from mink_local.version import __version__

PROGRAM = "mink-models"
_LOOPBACK = "127.0.0.1"

EXAMPLES = """\b
Examples:
  mink-models list
  mink-models pull llama-3-8b:Q5_K_M
  mink-models pull hf:Qwen/Qwen3-4B-GGUF:Q8_0
  mink-models info qwen3-4b --ctx 32768
  mink-models default llama-3-8b:Q5_K_M
  mink-models add ~/models

Exit status: 0 success, 1 failure, 2 wrong usage or unknown model, 130 interrupted.
"""

model_argument = click.argument("model", metavar="NAME|PATH", shell_complete=complete_model)


@click.group(epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name=PROGRAM)
def cli() -> None:
    """List, inspect and download models.

    A model is a name from models.txt, optionally with a quantization (llama-3-8b:Q6_K), a path,
    hf:ORGANISATION/REPOSITORY:FILE, where FILE may be a pattern or a quantization, ollama:NAME:TAG or
    lmstudio:NAME.
    """


@cli.command("list")
@click.option("--here", is_flag=True, help="List only models on this machine.")
@json_option
def list_(here: bool, as_json: bool) -> None:
    """List models here and to pull, and which fit in memory."""
    from mink_local.manage.table import print_models
    from mink_local.models.memory import memory_budget
    from mink_local.models.offer import model_list

    budget = memory_budget()
    rows = [row for row in model_list(budget) if row["path"] or not here]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        print_models(rows, budget)


@cli.command()
@model_argument
@ctx_option
@parallel_option
@gpu_layers_option
@kv_type_option
@json_option
def info(
    model: str, ctx: int | None, parallel: int, gpu_layers: int | Literal["auto"], kv_type: str, as_json: bool
) -> None:
    """Show a model's metadata and memory use without loading it."""
    from mink_local.manage.info import conventions_in, in_words, model_info
    from mink_local.models.memory import choose_placement, memory_budget

    metadata = read_metadata(catalog.resolve(model).path)
    budget = memory_budget()
    placement = choose_placement(
        metadata, budget, n_ctx=ctx, n_gpu_layers=gpu_layers, n_parallel=parallel, kv_type=kv_type
    )
    conventions = conventions_in(metadata)
    facts = model_info(metadata, placement, parallel, kv_type, conventions)
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else in_words(facts, conventions))


@cli.command()
@click.argument("models", metavar="NAME…", nargs=-1, required=True)
def pull(models: Sequence[str]) -> None:
    """Download models into the Hugging Face Hub's cache.

    Interrupted downloads resume, and every file is checked against its SHA-256. Set HF_HOME to move the
    cache, HF_TOKEN to log in, HF_ENDPOINT to use another server.
    """
    for model in models:
        entry = catalog.find(model)
        if entry and entry.source.startswith("hf:"):
            stores.hub_cache()  # refuses a malformed HF_ENDPOINT, on which the next import would fail
            from mink_local.models import download

            path = download.pull(entry, partial(click.echo, err=True))
        else:
            path = catalog.resolve(model).path
            click.echo(f"{model} is already on this machine: nothing to pull", err=True)
        click.echo(path)


@cli.command()
@model_argument
def path(model: str) -> None:
    """Print the path of a model's file, or of the first of several."""
    click.echo(catalog.resolve(model).path)


@cli.command()
@click.argument("model", metavar="[NAME|PATH]", required=False)
def default(model: str | None) -> None:
    """Print the model used without --model, or choose another one."""
    if model:
        from mink_local.models import trust

        file = catalog.resolve(model)
        read_metadata(file.path).require_model()
        trust.check(file)
        catalog.choose_model(model if catalog.find(model) else str(file.path))
    click.echo(catalog.default_model())


@cli.command()
@model_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def rm(model: str, yes: bool) -> None:
    """Delete a pulled model, and its line in your models.txt."""
    entry = catalog.find(model)
    own = entry if entry in catalog.own_entries() else None
    file = None
    with suppress(ModelNotFoundError) if own else nullcontext():
        file = catalog.resolve(model)
    if file and file.path.is_relative_to(stores.hub_cache()):
        size = size_in_words(sum(shard.stat().st_size for shard in shards(file.path)))
        if not yes:
            click.confirm(f"Delete {file.name}, {size}?", abort=True, err=True)
        freed = stores.remove_from_hub_cache(file.path)
        kept = f"removed {file.name}; a file of another name has the same content, so its {size} are kept"
        click.echo(f"freed {size_in_words(freed)}" if freed else kept, err=True)
    elif file and not own:
        raise click.UsageError(f"{model} was not pulled: its file is {file.path}.")
    if own:
        catalog.remove(own.name)
        click.echo(f"removed {own.name} from {catalog.user_catalog_path()}", err=True)
    if default := catalog.chosen_model():
        try:
            catalog.resolve(default)
        except ModelNotFoundError:
            catalog.choose_model(catalog.EMBEDDED)
            click.echo(f"{default} was the default: it is {catalog.EMBEDDED} again", err=True)


@cli.command()
@click.argument("name", metavar="[NAME]")
@click.argument("model", metavar="MODEL|FOLDER", required=False)
@click.option("--revision", show_default="main", help="Branch, tag or commit of the repository.")
@click.option("--size", type=FiniteFloat(0, 999_999), default=0, metavar="GB", help="Size in GB.")
@click.option("--sha256", default="", metavar="HEX", help="Expected SHA-256 of the file.")
@click.option("--licence", default="", help="Licence.")
@click.option("--note", default="", help="A note.")
def add(
    name: str, model: str | None, revision: str | None, size: float, sha256: str, licence: str, note: str
) -> None:
    """Give a model a name of your choice.

    NAME may have a quantization, NAME:QUANTIZATION. MODEL is a path, hf:…, ollama:… or lmstudio:….
    Without NAME, each model in FOLDER gets the name of its file.
    """
    if model is None:
        if revision or size or sha256 or licence or note:
            raise click.UsageError("options say something of one model: write NAME and MODEL.")
        _add_files(user_path(name))
        return
    if revision and not model.startswith("hf:"):
        raise click.UsageError(f"--revision is for hf:…, not for {model}.")
    if model.startswith(stores.PREFIXES):
        entry = catalog.store_entry(model)
        source = f"{entry.source}@{revision}" if revision else entry.source
        file = entry.file
    else:
        source, file = f"file:{catalog.resolve(model).path}", ""
    catalog.add(catalog.CatalogEntry(name, source, file, round(size * 1e9), sha256, licence, note))
    click.echo(f"added {name} to {catalog.user_catalog_path()}", err=True)


def _add_files(place: Path) -> None:
    """Give each model in a folder, or the one of a file, the name of its file.

    A name that another model has already begins with that of the folder, and of its folders.
    """
    paths = stores.models_in(place) if os.path.isdir(place) else [catalog.resolve(str(place)).path]
    if not paths:
        raise ModelNotFoundError(f"{place} has no .gguf file: name a folder that has, or NAME and MODEL")
    for path in map(Path.absolute, paths):
        try:
            read_metadata(path).require_model()
        except ModelError as error:
            click.echo(f"left out: {error}", err=True)
            continue
        name, source = catalog.name_of(path), f"file:{path}"
        for folder in path.parents:
            if (known := catalog.find(name)) is None or known.source == source:
                break
            name = f"{catalog.name_of(folder)}-{name}"
        catalog.add(catalog.CatalogEntry(name, source))
        click.echo(f"added {name} to {catalog.user_catalog_path()}", err=True)


@cli.command("rpc-server")
@click.option(
    "--host", default=_LOOPBACK, show_default=True, metavar="ADDRESS", help="IPv4 address of this machine."
)
@click.option("--port", type=WholeNumber(1, 65535), default=RPC_PORT, show_default=True, metavar="PORT")
@threads_option
def rpc_server(host: str, port: int, threads: int | None) -> None:
    """Offer this machine's GPUs, or its CPU, to other machines.

    Serves one program at a time, which names it with --rpc. llama.cpp's RPC is neither authenticated nor
    encrypted: anyone who can reach the port can take over this machine. Never expose it to an untrusted
    network.
    """
    from mink_local.llama.devices import n_cores
    from mink_local.llama.rpc import run_server

    if host != _LOOPBACK:
        click.echo(f"{PROGRAM}: anyone who can reach {host}:{port} can take over this machine", err=True)
    run_server(host, port, threads or n_cores())


def main() -> None:
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
