"""Options shared by several programs, each defined once."""

import os
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from mink_local.cli import AutoOrInt, FiniteFloat, ParsedType, WholeNumber, file_text
from mink_local.files import json_object, user_path
from mink_local.llama.constants import (
    ALL_LAYERS,
    KV_TYPES,
    MAX_SEED,
    MAX_THREADS,
    MODEL,
    N_SEQ_MAX,
    check_split,
    check_template_kwargs,
)
from mink_local.models.catalog import EMBEDDED, default_model, names_here, read_catalog
from mink_local.models.placement import PlacementOptions

# Samplers and temperatures that suit kinds of text (docs/results.md), by their names in mink-chat and
# mink-serve; as text, since importing the samplers is slow.
PRESETS = {
    "creative": {"sampler": "min-k:floor=1.4", "temp": "5"},
    "prose": {"sampler": "min-k:floor=1.8", "temp": "1"},
    "code": {"sampler": "min-k:floor=0", "temp": "1"},
    "mathematics": {"sampler": "min-k:floor=0", "temp": "1"},
}

Command = TypeVar("Command", bound=Callable[..., Any])
AnyOption = TypeVar("AnyOption", bound=click.Option)


class SharedOption:
    """An option shared by several programs: a decorator for commands.

        @model_option
        @sampler_option.replace("samplers", multiple=True)
        @click.command()
        def command(model, samplers): ...

    Args:
        names: As for `click.option`: `--model`, `-m`.
        attributes: As for `click.option`.
    """

    def __init__(self, *names: str, **attributes: Any) -> None:
        self.names, self.attributes = names, {"show_default": True, **attributes}

    def __call__(self, command: Command) -> Command:
        return click.option(*self.names, **self.attributes)(command)

    def replace(self, *names: str, **attributes: Any) -> "SharedOption":
        """Return the option with additional names, such as its parameter's, and other attributes.

        A required option has no default.
        """
        attributes = {**self.attributes, **attributes}
        if attributes.get("required"):
            attributes.pop("default", None)
        return SharedOption(*self.names, *names, **attributes)

    def build(self, option_class: Callable[..., AnyOption], **attributes: Any) -> AnyOption:
        """Return the option as an instance of a class that takes names and attributes like this one."""
        own = {name: value for name, value in self.attributes.items() if name != "cls"}
        return option_class(*self.names, **{**own, **attributes})


class SamplerType(ParsedType):
    """Type of an option that takes a sampler, such as `top-p:p=0.9`; its value is a `Sampler`, or MODEL.

    Args:
        is_last: Whether a cut that is given without an order comes before temperature, as in llama.cpp.
        or_model: Whether it takes MODEL.
    """

    def __init__(self, *, is_last: bool = False, or_model: bool = False) -> None:
        def parsed(text: str) -> Any:
            if or_model and text == MODEL:
                return MODEL
            from mink_local.samplers import parse

            return parse(text, "temperature-last" if is_last else "temperature-first")

        super().__init__("NAME[:OPTION=VALUE,…]", parsed)
        self._or_model = or_model

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        from mink_local.samplers import SAMPLERS

        known = {name: sampler.keeps for name, sampler in SAMPLERS.items()}
        known |= {MODEL: "what the model's file recommends"} if self._or_model else {}
        return [
            CompletionItem(name, help=keeps) for name, keeps in known.items() if name.startswith(incomplete)
        ]


class SamplerOption(click.Option):
    """An option whose help contains `{samplers}` for the names of all samplers.

    They are looked up only when the help is shown: importing the samplers imports NumPy.
    """

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's names and its help."""
        template = self.help or ""
        self.help = with_sampler_names(template)
        try:
            return super().get_help_record(ctx)
        finally:
            self.help = template


def with_sampler_names(text: str) -> str:
    """Return a help text with `{samplers}` replaced by the names of all samplers."""
    if "{samplers}" not in text:
        return text
    from mink_local.samplers import SAMPLERS

    return text.replace("{samplers}", ", ".join(SAMPLERS))


def _servers(text: str) -> tuple[str, ...]:
    """Return the addresses of RPC servers."""
    from mink_local.llama.rpc import parse_servers

    return parse_servers(text)


def _keep_all_experts(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    if is_given:
        ctx.params["n_cpu_moe"] = ALL_LAYERS


def _template_kwargs(text: str) -> dict[str, Any]:
    """Return a JSON object of variables for chat templates."""
    if (value := json_object(text)) is None:
        raise ValueError('template kwargs are a JSON object, such as {"reasoning_effort": "low"}')
    check_template_kwargs(value)
    return value


def _call_style(text: str) -> str | dict[str, Any]:
    """Return the name of a call style, or what a JSON file says of it."""
    path = user_path(text)
    if os.path.isdir(path) or not os.path.exists(path):
        return text
    if (value := json_object(file_text(str(path)))) is None:
        raise ValueError(
            f"{text} is no JSON object: mink-models info --json prints one under conventions.calls"
        )
    return value


def complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a path."""
    return [CompletionItem(incomplete, type="file")]


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a model name, those on this machine first, or a path if no model name matches."""
    places = dict.fromkeys(names_here(), "on this machine")
    for name in read_catalog():
        places.setdefault(name, "to pull")
    items = [
        CompletionItem(name, help=place) for name, place in places.items() if name.startswith(incomplete)
    ]
    return items or [CompletionItem(incomplete, type="file")]


MODEL_HELP = "A name from models.txt, a .gguf file, or hf:…, ollama:…, lmstudio:… (see mink-models --help)."

model_option = SharedOption(
    "--model",
    "-m",
    default=default_model,
    show_default=f"{EMBEDDED}, or the one set with mink-models default",
    metavar="NAME|PATH",
    shell_complete=complete_model,
    help=MODEL_HELP,
)
ctx_option = SharedOption(
    "--ctx",
    type=WholeNumber(min=1),
    metavar="N",
    show_default="as large as memory allows",
    help="Context size: maximum tokens of a prompt plus its answer.",
)
parallel_option = SharedOption(
    "--parallel",
    type=WholeNumber(1, N_SEQ_MAX),
    default=1,
    metavar="N",
    help="Number of answers generated at a time.",
)
gpu_layers_option = SharedOption(
    "--gpu-layers",
    type=AutoOrInt(min=-1),
    default="auto",
    help="Layers to put on the GPU; auto: as many as fit; -1: all.",
)
cpu_moe_option = SharedOption(
    "--cpu-moe",
    is_flag=True,
    expose_value=False,
    callback=_keep_all_experts,
    show_default=False,
    help="Keep all experts of a mixture on the CPU, as --n-cpu-moe with the number of its layers.",
)
n_cpu_moe_option = SharedOption(
    "--n-cpu-moe",
    type=WholeNumber(min=0),
    is_eager=True,  # before --cpu-moe
    metavar="N",
    show_default="with --gpu-layers auto, as many as needed",
    help="Keep the experts of the first N layers of a mixture on the CPU.",
)
tensor_split_option = SharedOption(
    "--tensor-split",
    type=ParsedType("N,N,…", lambda text: check_split(map(FiniteFloat(min=0), text.split(",")))),
    show_default="by free memory",
    help="Proportions of layers that several GPUs get, such as 3,1; RPC servers first.",
)
main_gpu_option = SharedOption(
    "--main-gpu",
    type=WholeNumber(min=0),
    metavar="N",
    show_default="all GPUs",
    help="Use only this GPU, counted from 0; RPC servers first.",
)
threads_option = SharedOption(
    "--threads",
    type=WholeNumber(1, MAX_THREADS),
    metavar="N",
    show_default="one per physical core",
    help="CPU threads; use fewer if other programs keep the cores busy.",
)
kv_type_option = SharedOption(
    "--kv-type",
    type=click.Choice(KV_TYPES),
    default="f16",
    help="KV cache type; q8_0 takes about half the memory of f16.",
)
checkpoint_memory_option = SharedOption(
    "--checkpoint-memory",
    type=FiniteFloat(min=0),
    metavar="MB",
    show_default="512, or a twentieth of the free memory",
    help="Memory for checkpoints, with which hybrid and recurrent models need not read a conversation again.",
)
rpc_option = SharedOption(
    "--rpc",
    type=ParsedType("HOST:PORT,…", _servers),
    envvar="MINK_RPC",
    help="Also put layers on other machines that run mink-models rpc-server.",
)
chat_template_option = SharedOption(
    "--chat-template-file",
    type=file_text,
    metavar="FILE",
    shell_complete=complete_file,
    help="Use the Jinja chat template in FILE in place of the model's.",
)
template_kwargs_option = SharedOption(
    "--template-kwargs",
    type=ParsedType("JSON", _template_kwargs),
    help='Variables for the chat template, as a JSON object such as {"reasoning_effort": "low"}.',
)
call_style_option = SharedOption(
    "--call-style",
    type=ParsedType("NAME|FILE", _call_style),
    shell_complete=complete_file,
    show_default="as the chat template shows it",
    help="How the model writes tool calls: hermes, gpt-oss, lfm2, granite-3.3, or a JSON file with what "
    "mink-models info --json prints under conventions.calls.",
)
reasoning_marks_option = SharedOption(
    "--reasoning-marks",
    nargs=2,
    metavar="START END",
    show_default="as the chat template shows them",
    help="What stands before and after the model's reasoning, such as '<think>' '</think>'.",
)
sampler_option = SharedOption(
    "--sampler",
    "-s",
    cls=SamplerOption,
    type=SamplerType(),
    default="min-k",
    help="Sampler that selects the candidates for the next token, such as top-p:p=0.9, or a chain such as "
    "top-k:k=40+min-k. The samplers are {samplers}.",
)
OR_MODEL = " model: what the model's file recommends, with its temperature unless --temp is given."
temp_option = SharedOption(
    "--temp",
    "-t",
    type=FiniteFloat(min=0),
    default=1.0,
    metavar="T",
    help="How evenly to choose among the candidates that the sampler keeps; 0 means greedy.",
)
seed_option = SharedOption(
    "--seed",
    type=WholeNumber(0, MAX_SEED),
    metavar="N",
    show_default="random",
    help="Seed; the same seed gives the same answer.",
)
max_tokens_option = SharedOption(
    "--max-tokens",
    "-n",
    type=WholeNumber(min=1),
    metavar="N",
    show_default="until the context is full",
    help="Maximum length of an answer in tokens.",
)
reasoning_sampler_option = SharedOption(
    "--reasoning-sampler",
    cls=SamplerOption,
    type=SamplerType(is_last=True),
    show_default="as for the answer",
    help="Sampler while the model reasons.",
)
reasoning_temp_option = SharedOption(
    "--reasoning-temp",
    type=FiniteFloat(min=0),
    metavar="T",
    show_default="as for the answer",
    help="Temperature while the model reasons.",
)
reasoning_budget_option = SharedOption(
    "--reasoning-budget",
    type=WholeNumber(min=-1),
    metavar="N",
    show_default="no limit",
    help="Maximum length of the reasoning in tokens, after which the answer begins; 0: none; -1: no limit.",
)


def placement_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for where a model's layers go; the command gets them as `placement`."""

    @wraps(command)
    def placed(*arguments: Any, **given: Any) -> Any:
        own = {field.name: given.pop(field.name) for field in fields(PlacementOptions)}
        return command(*arguments, placement=PlacementOptions(**own), **given)

    for option in (
        rpc_option,
        threads_option.replace("n_threads"),
        main_gpu_option,
        tensor_split_option,
        cpu_moe_option,
        n_cpu_moe_option,
        gpu_layers_option.replace("n_gpu_layers"),
    ):
        option(placed)
    return placed
