"""`mink-serve`: a GGUF model for every program that speaks OpenAI's protocol or Anthropic's."""

import re
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from mink_local.cli import FiniteFloat, WholeNumber, command_line_text, run, variables_of
from mink_local.errors import MinkError
from mink_local.llama.constants import MODEL
from mink_local.models.options import (
    OR_MODEL,
    SamplerType,
    call_style_option,
    chat_template_option,
    checkpoint_memory_option,
    ctx_option,
    kv_type_option,
    max_tokens_option,
    model_option,
    parallel_option,
    placement_options,
    reasoning_marks_option,
    reasoning_sampler_option,
    reasoning_temp_option,
    sampler_option,
    temp_option,
    template_kwargs_option,
)
from mink_local.version import __version__

if TYPE_CHECKING:
    from mink_local.samplers import Sampler

PROGRAM = "mink-serve"
_OF_MODEL = (  # parameters of `load_model`
    "n_ctx", "n_parallel", "kv_type", "checkpoint_memory", "chat_template", "template_kwargs", "call_style",
    "reasoning_marks", "placement", "verbose",
)  # fmt: skip

EPILOG = """\b
Examples:
  mink-serve --temp 5
  mink-serve --model ~/models/Qwen3-4B-Q4_K_M.gguf --ctx 8192 --parallel 8
  mink-serve --preset hot=min-k:tau=3@10 --preset cold=greedy@0
  mink-serve --host 0.0.0.0 --api-key-file keys.txt

Clients send requests to http://127.0.0.1:8080/v1; browsers find the playground at http://127.0.0.1:8080.
The model ids are the model's name and NAME:PRESET for each preset, so that clients with only a model picker
can still select a sampler and temperature.

Every option can be set by the environment: MINK_SERVE_CTX for --ctx; several values are separated by spaces.
When --api-key-file changes, it is read again, without a restart.

Exit status: 0 success, 1 failure, 2 wrong usage or unknown model.
"""


@click.command(
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@model_option
@click.option(
    "--alias",
    type=command_line_text,
    metavar="NAME",
    show_default="the file's",
    help="The model's name for clients.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=8080,
    show_default=True,
    metavar="PORT",
    help="Port; 0 picks a free port.",
)
@sampler_option.replace(
    type=SamplerType(is_last=True, or_model=True), help=f"Default sampler. One of {{samplers}}, or{OR_MODEL}"
)
@temp_option.replace(default=None, show_default="1", help="Temperature for requests that have none.")
@reasoning_sampler_option
@reasoning_temp_option
@click.option(
    "--ignore-client-sampling", is_flag=True, help="Use these samplers and temperatures for all requests."
)
@click.option(
    "--preset",
    multiple=True,
    metavar="NAME=[SAMPLER@TEMP/]SAMPLER@TEMP",
    help="Add a model id NAME:PRESET with its own sampler and temperature, and before a slash perhaps others "
    "for reasoning; repeatable.",
)
@click.option("--no-presets", is_flag=True, help="Offer no model ids but the model's and those of --preset.")
@click.option("--any-model", is_flag=True, help="Accept unknown model ids.")
@ctx_option.replace("n_ctx")
@parallel_option.replace("n_parallel", type=WholeNumber(1, 256), default=4)
@max_tokens_option
@click.option(
    "--queue",
    type=WholeNumber(min=0),
    default=64,
    show_default=True,
    metavar="N",
    help="Answers that may wait for a slot; more are refused with status 429.",
)
@click.option(
    "--key-slots",
    type=WholeNumber(min=1),
    metavar="N",
    help="Slots that one API key (or without keys, one address) may use while others wait.",
)
@placement_options
@kv_type_option
@checkpoint_memory_option
@click.option(
    "--cache",
    type=click.Path(file_okay=False, writable=True, path_type=Path),
    metavar="DIR",
    help="Keep ended conversations' KV caches in this folder, over a restart too, each for its key alone.",
)
@click.option(
    "--cache-size",
    type=FiniteFloat(min=0),
    default=10.0,
    show_default=True,
    metavar="GB",
    help="Size of these caches; the oldest are deleted.",
)
@click.option(
    "--cache-days",
    type=FiniteFloat(min=0),
    default=30.0,
    show_default=True,
    metavar="DAYS",
    help="How long caches are kept that nobody uses.",
)
@chat_template_option.replace("chat_template")
@template_kwargs_option
@call_style_option
@reasoning_marks_option
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    envvar="MINK_API_KEY",
    show_envvar=True,
    metavar="[NAME:]KEY",
    help="Require this API key; repeatable. The name is logged, never the key.",
)
@click.option(
    "--api-key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Require one of the API keys in a file, one [NAME:]KEY a line; # begins a comment.",
)
@click.option(
    "--allowed-host",
    multiple=True,
    metavar="NAME",
    help="Host name that clients may use for the server; repeatable.",
)
@click.option(
    "--allowed-origin",
    multiple=True,
    metavar="URL",
    help="Origin of web pages that may use the server, such as https://example.com; repeatable.",
)
@click.option(
    "--drain",
    type=FiniteFloat(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to let running answers finish after Ctrl-C or SIGTERM.",
)
@click.option(
    "--watchdog",
    type=FiniteFloat(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="Exit if the engine makes no progress for this long.",
)
@click.option(
    "--no-history",
    is_flag=True,
    help="Don't keep the last 100 requests in memory (the playground can show them by id); see --cache.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log format; one line per request on standard error.",
)
@click.option("--log-llama", "verbose", is_flag=True, help="Show llama.cpp's messages too.")
@click.version_option(__version__, prog_name=PROGRAM)
def cli(
    api_key_file: Path | None,
    host: str,
    port: int,
    keys: Sequence[str],
    preset: Sequence[str],
    no_presets: bool,
    model: str,
    sampler: "Sampler | Literal['model']",
    temp: float | None,
    reasoning_sampler: "Sampler | None",
    reasoning_temp: float | None,
    ignore_client_sampling: bool,
    **options: Any,
) -> None:
    """Serve a GGUF model over OpenAI's protocol and Anthropic's, with Min-k at any temperature.

    By default only this machine can connect; to listen elsewhere (--host), set an API key.
    """
    if any(
        find_spec(package) is None for package in ("uvicorn", "starlette", "msgspec", "prometheus_client")
    ):
        raise click.UsageError(
            'the server needs more packages: type  python -m pip install "mink-local[serve]"'
        )
    from mink_local.generation.engine.kept import own_folder
    from mink_local.generation.loading import load_model
    from mink_local.models.catalog import resolve
    from mink_local.models.recommended import recommended_by
    from mink_local.serve import request_log
    from mink_local.serve.guard import check_start
    from mink_local.serve.keys import Keys
    from mink_local.serve.process import Options, listen, serve
    from mink_local.serve.request.presets import BUILT_IN, Preset

    load = partial(load_model, model, **{name: options.pop(name) for name in _OF_MODEL})
    presets = {} if no_presets else dict(BUILT_IN)
    for text in preset:
        named = re.fullmatch(r"([\w.-]+)=(.*)", text)
        if named is None:
            raise click.UsageError(
                f"--preset {text}: write NAME=SAMPLER@TEMP, with letters, digits, dots, - and _ in the name."
            )
        try:
            presets[named[1]] = Preset.parse(named[2])
        except ValueError as error:
            raise click.UsageError(f"--preset {text}: {error}.") from None
    if options["cache"] is not None:
        try:
            own_folder(options["cache"])
        except (MinkError, OSError) as error:
            reason = getattr(error, "strerror", None) or error
            raise click.UsageError(f"--cache {options['cache']}: {reason}") from None
    try:
        path = resolve(model).path
        default = Preset.default(
            path,
            sampler,
            temp,
            is_fixed=ignore_client_sampling,
            reasoning_sampler=reasoning_sampler,
            reasoning_temperature=reasoning_temp,
        )
        if not no_presets and (found := recommended_by(path)):
            presets.setdefault(MODEL, Preset.recommended(found))
        api_keys = Keys(keys, api_key_file)
        host = host.strip("[]")
        check_start(host, has_keys=bool(api_keys))
        chosen = Options(
            model=model, load=load, host=host, keys=api_keys, default=default, presets=presets, **options
        )
        # Before the model is loaded: a port in use is reported at once.
        with listen(host, port) as socket:
            serve(socket, chosen)
    except MinkError as error:
        if options["log_format"] != "json":
            raise
        request_log.set_up("json")
        request_log.log.error("%s", error)
        raise SystemExit(1) from None


for _option in cli.params:  # the environment sets --ctx by MINK_SERVE_CTX
    if isinstance(_option, click.Option) and _option.name != "version":
        _variable = f"MINK_SERVE_{max(_option.opts, key=len).strip('-').replace('-', '_').upper()}"
        _option.envvar = [_variable, *variables_of(_option)]


def main() -> None:
    """Run the program."""
    run(cli, PROGRAM)


if __name__ == "__main__":
    main()
