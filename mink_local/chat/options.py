"""The settings of `mink-chat`: one table for its options, MINK_* variables, the TOML file, /set and /show.

A setting is a click option, and click has the precedence: command line, environment, file, default.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from mink_local.cli import GpuLayers, finite
from mink_local.models.catalog import DEFAULT_MODEL, read_catalog


class Setting(click.Option):
    """An option that is also the variable MINK_NAME, a key of the TOML file and, unless `fixed`, something
    that /set changes while chatting; `reloads` says that the model must be loaded again for it."""

    def __init__(
        self, *names: str, group: str, fixed: bool = False, reloads: bool = False, **attributes: Any
    ) -> None:
        super().__init__(names, **attributes)
        assert self.name
        self.group, self.fixed, self.reloads = group, fixed, reloads
        self.envvar = f"MINK_{self.name.upper()}"
        self.key = self.name.replace("_", "-")

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            if self.name not in opts:  # the reader of the message has not just typed it
                where = variable_or_file(self, ctx)
                raise click.BadParameter(f"{error.message} (in {where})", ctx, self) from None
            raise


def variable_or_file(setting: Setting, ctx: click.Context) -> str:
    """Where a value that is neither of the command line nor the default is from."""
    return str(setting.envvar if setting.value_from_envvar(ctx) is not None else ctx.meta["config"])


class FileText(str):
    """The text of a file, and its `path`."""

    path: str


class TextFile(click.ParamType[FileText]):
    """An option that names a text file and stands for what is in it."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> FileText:
        if isinstance(value, FileText):
            return value
        stream = click.File(encoding="utf-8").convert(value, param, ctx)
        try:
            text = FileText(stream.read())
        except UnicodeDecodeError:
            self.fail(f"{value!r} is not UTF-8 text.", param, ctx)
        text.path = str(value)
        return text


class Bias(click.ParamType["tuple[int, float]"]):
    name = "TOKEN=BIAS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        token, _, bias = value.partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not TOKEN=BIAS, such as 198=-inf.", param, ctx)


def complete_sampler(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from mink_local.samplers import SAMPLERS

    return [name for name in SAMPLERS if name.startswith(incomplete)]


def complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = [CompletionItem(name) for name in read_catalog() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


DRAWING, LIMITS, MODEL, SCREEN = "Drawing", "Penalties and limits", "Model", "Screen and store"

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "--temp",
        "-t",
        group=DRAWING,
        type=click.FloatRange(min=0),
        default=1.0,
        callback=finite,
        metavar="T",
        help="Temperature, applied after the cut; 0 takes the likeliest token.",
    ),
    Setting(
        "--sampler",
        group=DRAWING,
        default="min-k",
        metavar="NAME[:OPTION=VALUE,…]",
        shell_complete=complete_sampler,
        help="Which tokens may be drawn: min-k, top-p:p=0.9, min-p, top-k, top-n-sigma, eta, p-less, "
        "mirostat, greedy.",
    ),
    Setting(
        "--tau",
        group=DRAWING,
        type=click.FloatRange(min=0),
        callback=finite,
        metavar="TAU",
        help="Min-k's fallback for flat distributions; 0 switches it off.  [default: 3]",
    ),
    Setting(
        "--seed",
        group=DRAWING,
        type=click.IntRange(0, 2**32 - 2),
        metavar="N",
        help="Repeat an answer: same seed, same text.  [default: random]",
    ),
    Setting(
        "--max-tokens",
        "-n",
        group=DRAWING,
        type=click.IntRange(min=1),
        metavar="N",
        help="Longest answer.  [default: as far as the context goes]",
    ),
    Setting("--system", group=DRAWING, metavar="TEXT", help="System prompt."),
    Setting(
        "--think/--no-think",
        group=DRAWING,
        default=None,
        help="Have a model that can think aloud do so, or not.  [default: the model's]",
    ),
    Setting(
        "--repeat-penalty",
        group=LIMITS,
        type=click.FloatRange(min=0, min_open=True),
        metavar="X",
        help="Above 1: repeated tokens lose logits.",
    ),
    Setting("--frequency-penalty", group=LIMITS, type=float, metavar="X", help="For every repetition."),
    Setting("--presence-penalty", group=LIMITS, type=float, metavar="X", help="Once for what was there."),
    Setting("--dry-multiplier", group=LIMITS, type=float, metavar="X", help="Above 0: DRY, for phrases."),
    Setting(
        "--logit-bias",
        group=LIMITS,
        type=Bias(),
        multiple=True,
        metavar="TOKEN=BIAS",
        help="Added to a token's logit; -inf bans it. May be given several times.",
    ),
    Setting("--grammar", group=LIMITS, metavar="FILE", type=TextFile(), help="GBNF to answer in."),
    Setting(
        "--json-schema",
        group=LIMITS,
        metavar="FILE",
        type=TextFile(),
        help="Answer in JSON of this schema.",
    ),
    Setting(
        "--model",
        "-m",
        group=MODEL,
        reloads=True,
        default=DEFAULT_MODEL,
        metavar="NAME|PATH",
        shell_complete=complete_model,
        help="A name of models.txt, a .gguf file, or hf:…, ollama:…, lmstudio:… (see mink-models --help).",
    ),
    Setting(
        "--ctx",
        group=MODEL,
        reloads=True,
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens that the conversation may have, the answer included.  [default: what memory allows]",
    ),
    Setting(
        "--gpu-layers",
        group=MODEL,
        reloads=True,
        type=GpuLayers(),
        default="auto",
        help="Layers on the GPU; auto puts there what fits.",
    ),
    Setting(
        "--sampling",
        group=MODEL,
        reloads=True,
        type=click.Choice(["auto", "host", "graph"]),
        default="auto",
        help="Where tokens are drawn: in llama.cpp's graph, so that no logits leave the GPU, or on the host.",
    ),
    Setting(
        "--threads",
        group=MODEL,
        reloads=True,
        type=click.IntRange(min=1),
        metavar="N",
        help="CPU threads.  [default: one for every physical core]",
    ),
    Setting(
        "--plain/--rich",
        group=SCREEN,
        default=False,
        help="Text as the model wrote it, without colours and Markdown, as where output is no terminal or "
        "NO_COLOR is set; and an input line without menus.",
    ),
    Setting(
        "--thoughts",
        group=SCREEN,
        type=click.Choice(["show", "line"]),
        default="show",
        help="Show what a model thinks aloud, or one line that says how much.",
    ),
    Setting("--status/--no-status", group=SCREEN, default=True, help="A line of figures after every answer."),
    Setting(
        "--keys",
        group=SCREEN,
        fixed=True,
        type=click.Choice(["auto", "emacs", "vi"]),
        default="auto",
        help="Keys of the input line; auto looks into your .inputrc.",
    ),
    Setting("--store/--no-store", group=SCREEN, fixed=True, default=True, help="Keep conversations on disk."),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def in_groups(settings: Iterable[Setting] = SETTINGS) -> dict[str, list[Setting]]:
    groups: dict[str, list[Setting]] = {}
    for setting in settings:
        groups.setdefault(setting.group, []).append(setting)
    return groups
