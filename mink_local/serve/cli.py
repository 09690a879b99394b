"""`mink-serve`: a GGUF model for every program that speaks OpenAI's protocol."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from mink_local.cli import FiniteFloat, run
from mink_local.models.options import (
    SamplerType,
    gpu_layers_option,
    kv_type_option,
    model_option,
    rpc_option,
    threads_option,
)
from mink_local.version import __version__

PROGRAM = "mink-serve"

EPILOG = """\b
Examples:
  mink-serve --temp 5
  mink-serve --model ~/models/Qwen3-4B-Q4_K_M.gguf --ctx 8192 --parallel 8
  mink-serve --preset hot=min-k:tau=3@10 --preset cold=greedy@0
  mink-serve --host 0.0.0.0 --api-key-file keys.txt

\b
A client sends its requests to http://127.0.0.1:8080/v1. A browser shows the playground at
http://127.0.0.1:8080. The ids of models are the model's name and, for each preset, NAME:PRESET:
clients that can choose a model and nothing else choose a way of sampling so.

Exit status: 0 stopped, 1 failed, 2 wrong usage.
"""


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@model_option
@click.option("--alias", metavar="NAME", help="Name of the model for clients.  [default: the file's]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one."
)
@click.option(
    "--sampler",
    type=SamplerType(),
    default="min-k",
    show_default=True,
    help="Method for clients that ask for none.",
)
@click.option(
    "--temp",
    type=FiniteFloat(min=0),
    default=1.0,
    show_default=True,
    help="Temperature for clients that ask for none.",
)
@click.option(
    "--ignore-client-sampling", is_flag=True, help="Use --sampler and --temp whatever clients ask for."
)
@click.option(
    "--preset",
    "preset_texts",
    multiple=True,
    metavar="NAME=SAMPLER@TEMP",
    help="A model id more, NAME:PRESET, with its own method and temperature; may be given several times.",
)
@click.option("--any-model", is_flag=True, help="Answer requests for unknown model ids as well.")
@click.option(
    "--ctx",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens that a prompt and its answer share.  [default: by the free memory]",
)
@click.option(
    "--parallel",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    metavar="N",
    help="Answers that are generated at a time.",
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of an answer.  [default: what the context holds]",
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=64,
    show_default=True,
    metavar="N",
    help="Answers that may wait for a slot; others get status 429.",
)
@gpu_layers_option
@threads_option
@kv_type_option
@rpc_option
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    envvar="MINK_API_KEY",
    metavar="KEY",
    help="A key that clients must send; may be given several times.",
)
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keys that clients may send, one a line.",
)
@click.option(
    "--allowed-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which clients may call the server.",
)
@click.option(
    "--allowed-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="A web page's origin that may use the server, such as https://example.com.",
)
@click.option(
    "--drain",
    type=FiniteFloat(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for answers to end after Ctrl-C or SIGTERM.",
)
@click.option(
    "--watchdog",
    type=FiniteFloat(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Time without progress after which the server ends.",
)
@click.option("--verbose", is_flag=True, help="Show the log of llama.cpp, and every request.")
@click.version_option(__version__, prog_name=PROGRAM)
def cli(
    api_key_file: Path | None,
    host: str,
    port: int,
    keys: Sequence[str],
    preset_texts: Sequence[str],
    **options: Any,
) -> None:
    """Serve a GGUF model to programs that speak OpenAI's protocol, with Min-k at any temperature.

    Only this machine can reach the server, unless --host says otherwise, which needs a key.
    """
    if not find_spec("uvicorn") or not find_spec("starlette") or not find_spec("msgspec"):
        raise click.UsageError(
            'the server needs more packages: type  python -m pip install "mink-local[serve]"'
        )
    from mink_local.serve.guard import check_start
    from mink_local.serve.presets import BUILT_IN, Defaults
    from mink_local.serve.start import listen, serve

    named = dict(BUILT_IN)
    for text in preset_texts:
        name, _, defaults = text.partition("=")
        try:
            named[name] = Defaults.parse(defaults)
        except ValueError as error:
            raise click.UsageError(f"--preset {text}: {error}.") from None
        if not re.fullmatch(r"[\w.-]+", name):
            raise click.UsageError(f"--preset {text}: a name has letters, digits, dots, - and _.")
    if api_key_file is not None:
        try:
            lines = api_key_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"--api-key-file {api_key_file} cannot be read: {error}.") from None
        keys = [*keys, *filter(None, map(str.strip, lines))]
        if not keys:
            raise click.UsageError(f"--api-key-file {api_key_file}: the file has no key.")
    check_start(host, keys)
    with listen(host, port) as socket:  # before the model is loaded: a port in use is told at once
        serve(socket, host=host, keys=keys, presets=named, **options)


def main() -> None:
    """Run the program."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
