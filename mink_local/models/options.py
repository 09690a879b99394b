"""Options of several programs: the model, where its layers go, a sampler."""

from typing import Any

import click
from click.shell_completion import CompletionItem

from mink_local.cli import AutoOrInt, OptionType
from mink_local.llama.constants import KV_TYPES
from mink_local.models.catalog import DEFAULT_MODEL

MODEL_HELP = "A name of models.txt, a .gguf file, or hf:…, ollama:…, lmstudio:… (see mink-models --help)."

model_option = click.option(
    "--model", "-m", default=DEFAULT_MODEL, show_default=True, metavar="NAME|PATH", help=MODEL_HELP
)

GPU_LAYERS = AutoOrInt(min=-1)
GPU_LAYERS_HELP = "Layers on the GPU: auto puts there what fits, -1 all of them."

gpu_layers_option = click.option(
    "--gpu-layers", type=GPU_LAYERS, default="auto", show_default=True, help=GPU_LAYERS_HELP
)
threads_option = click.option(
    "--threads",
    type=click.IntRange(min=1),
    metavar="N",
    help="CPU threads. If other programs keep the cores busy, fewer are faster: llama.cpp's threads wait for "
    "one another.  [default: one for every physical core]",
)

KV_TYPE = click.Choice(KV_TYPES)
KV_TYPE_HELP = "Type of the KV cache: q8_0 takes about half the memory of f16."

kv_type_option = click.option("--kv-type", type=KV_TYPE, default="f16", show_default=True, help=KV_TYPE_HELP)


class ServersType(OptionType):
    """Type of an option with addresses of RPC servers; its value is a tuple of them."""

    name = "HOST:PORT,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mink_local.llama.rpc import parse_servers

        if not isinstance(value, str):
            return value
        try:
            return parse_servers(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)


RPC_HELP = "Put layers on other machines too, on which mink-models rpc-server runs."

rpc_option = click.option("--rpc", type=ServersType(), envvar="MINK_RPC", help=RPC_HELP)


class SamplerType(OptionType):
    """Type of an option that names a sampler, such as `top-p:p=0.9`; its value is a `Sampler`."""

    name = "NAME[:OPTION=VALUE,…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from mink_local.samplers import parse

        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from mink_local.samplers import SAMPLERS

        return [CompletionItem(name) for name in SAMPLERS if name.startswith(incomplete)]
