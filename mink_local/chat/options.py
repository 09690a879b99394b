"""The settings of `mink-chat`: options that are also environment variables and keys of a TOML file.

Click keeps the precedence: command line, environment, file, default.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from platformdirs import user_config_path

from mink_local.cli import FiniteFloat, Number, WholeNumber
from mink_local.models.catalog import DEFAULT_MODEL, read_catalog
from mink_local.models.options import (
    GPU_LAYERS,
    GPU_LAYERS_HELP,
    KV_TYPE,
    KV_TYPE_HELP,
    MODEL_HELP,
    RPC_HELP,
    SamplerType,
    ServersType,
)

COMMAND_LINE, DEFAULT = "command line", "default"  # two of the sources of values
MIN_K = ("tau", "floor")  # the settings that are options of Min-k
CONSTRAINTS = "Penalties and limits"  # the group of settings that `Constraints` are made from


class Setting(click.Option):
    """An option that is also the variable MINK_NAME and a key of the TOML file.

    `group` is its title in the help. /set cannot change a `fixed` one; if it `reloads`, the model is loaded
    again. `unset` says what holds if it is not set.
    """

    def __init__(
        self,
        *names: str,
        group: str,
        help: str,  # noqa: A002
        unset: str = "none",
        fixed: bool = False,
        reloads: bool = False,
        **attributes: Any,
    ) -> None:
        if unset != "none":
            help = f"{help}  [default: {unset}]"  # noqa: A001
        super().__init__(names, help=help, **attributes)
        self.group, self.unset, self.fixed, self.reloads = group, unset, fixed, reloads
        self.envvar = f"MINK_{self.name.upper()}"
        self.key = self.name.replace("_", "-")

    @property
    def about(self) -> str:
        """The first sentence of the help."""
        return (self.help or "").partition("  [")[0].partition(". ")[0].removesuffix(".") + "."

    def source(self, ctx: click.Context) -> str:
        """Return where the value comes from: a variable, the path of a file, or in words."""
        sources = {
            ParameterSource.COMMANDLINE: COMMAND_LINE,
            ParameterSource.ENVIRONMENT: str(self.envvar),
            ParameterSource.DEFAULT_MAP: str(ctx.meta.get("config")),
        }
        return sources.get(ctx.get_parameter_source(self.name) or ParameterSource.DEFAULT, DEFAULT)

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        """Convert a value; in the words of the chat if a switch gets another."""
        try:
            return super().type_cast_value(ctx, value)
        except click.BadParameter:
            if not self.is_flag:
                raise
            raise click.BadParameter(f"{value!r} is neither on nor off.", ctx, self) from None

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Parse the value; name the variable or the file that a bad one comes from."""
        try:
            return super().handle_parse_result(ctx, opts, args)
        except click.BadParameter as error:
            if (source := self.source(ctx)) == COMMAND_LINE:
                raise
            raise click.BadParameter(f"{error.message} (in {source})", ctx, self) from None


def command_line_text(text: str) -> str:
    """Return a text of the command line, with U+FFFD for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class FileText(str):
    """The text of a file, with its `path`."""

    path: str


def file_text(path: str) -> FileText:
    """Return the text of a UTF-8 file; - is standard input."""
    try:
        with click.open_file(path, encoding="utf-8") as stream:
            text = FileText(stream.read())
    except UnicodeDecodeError:
        raise click.BadParameter(f"{path!r} is not UTF-8 text.") from None
    except OSError as error:
        raise click.BadParameter(f"{path!r}: {error.strerror}.") from None
    text.path = path
    return text


def _token_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not TOKEN=BIAS, such as 198=-inf.") from None


def _complete_file(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="file")]


def _complete_model(ctx: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = [CompletionItem(name) for name in read_catalog() if name.startswith(incomplete)]
    return names or _complete_file(ctx, option, incomplete)


_sampling = partial(Setting, group="Sampling")
_constraint = partial(Setting, group=CONSTRAINTS)
_model = partial(Setting, group="Model", reloads=True)
_screen = partial(Setting, group="Screen and store")

SETTINGS: tuple[Setting, ...] = (
    _sampling(
        "--temp",
        "-t",
        type=FiniteFloat(min=0),
        default=1.0,
        metavar="T",
        help="Temperature of the candidates that the sampler keeps; 0 takes the most probable token.",
    ),
    _sampling(
        "--sampler",
        type=SamplerType(),
        unset="min-k",
        metavar="NAME[:OPTION=VALUE,…]",
        help="How the candidates for the next token are chosen: min-k, top-p:p=0.9, min-p, top-k, "
        "top-n-sigma, eta, p-less, llama-default, mirostat, greedy.",
    ),
    _sampling(
        "--tau",
        type=FiniteFloat(min=0),
        metavar="TAU",
        unset="3",
        help="Min-k keeps at least TAU / (largest - smallest logit) candidates; 0 switches that off.",
    ),
    _sampling(
        "--floor",
        type=FiniteFloat(min=0),
        metavar="NATS",
        unset="0",
        help="Min-k also keeps the tokens whose logit is at most NATS below the largest, for more "
        "candidates. With 1 these have at least 37% of the largest probability.",
    ),
    _sampling(
        "--seed",
        type=WholeNumber(0, 2**32 - 2),
        metavar="N",
        unset="random",
        help="The same seed gives the same answer again.",
    ),
    _sampling(
        "--max-tokens",
        "-n",
        type=WholeNumber(min=1),
        metavar="N",
        unset="until the context is full",
        help="The longest answer.",
    ),
    _sampling(
        "--loop-guard/--no-loop-guard",
        default=True,
        help="Stop an answer that says the same again and again.",
    ),
    _sampling("--system", type=command_line_text, metavar="TEXT", help="System prompt."),
    _sampling(
        "--think/--no-think",
        default=None,
        unset="the model's",
        help="Have the model reason before it answers, or not, if its chat template has a switch for that.",
    ),
    _constraint(
        "--repeat-penalty",
        type=FiniteFloat(min=0, min_open=True),
        metavar="X",
        unset="1",
        help="Above 1: lower the logits of tokens that occurred.",
    ),
    _constraint(
        "--frequency-penalty",
        type=Number(),
        metavar="X",
        unset="0",
        help="Subtract X from the logit of a token for every time it occurred.",
    ),
    _constraint(
        "--presence-penalty",
        type=Number(),
        metavar="X",
        unset="0",
        help="Subtract X from the logit of every token that occurred.",
    ),
    _constraint(
        "--dry-multiplier",
        type=Number(),
        metavar="X",
        unset="0",
        help="DRY: penalise tokens that would repeat a phrase; 0 is off.",
    ),
    _constraint(
        "--logit-bias",
        type=_token_bias,
        multiple=True,
        metavar="TOKEN=BIAS",
        help="Add BIAS to the logit of a token id; -inf bans the token. May be given several times.",
    ),
    _constraint(
        "--grammar",
        type=file_text,
        metavar="FILE",
        shell_complete=_complete_file,
        help="Restrict the answer to a GBNF grammar.",
    ),
    _constraint(
        "--json-schema",
        type=file_text,
        metavar="FILE",
        shell_complete=_complete_file,
        help="Restrict the answer to JSON of this schema.",
    ),
    _model(
        "--model",
        "-m",
        default=DEFAULT_MODEL,
        metavar="NAME|PATH",
        shell_complete=_complete_model,
        help=MODEL_HELP,
    ),
    _model(
        "--ctx",
        type=WholeNumber(min=1),
        metavar="N",
        unset="as many as the memory allows",
        help="Tokens that the conversation and its answer share.",
    ),
    _model("--gpu-layers", type=GPU_LAYERS, default="auto", help=GPU_LAYERS_HELP),
    _model(
        "--sampling",
        type=click.Choice(["auto", "host", "backend", "graph"]),  # graph: the earlier name of backend
        default="auto",
        metavar="[auto|host|backend]",
        help="Where tokens are sampled: backend is in llama.cpp's graph, so that no logits leave the GPU; "
        "host is on the CPU; auto is backend if the model is on a GPU and that is faster. Before its first "
        "use backend is compared with host; if they differ, host is used.",
    ),
    _model("--kv-type", type=KV_TYPE, default="f16", help=KV_TYPE_HELP),
    _model(
        "--threads",
        type=WholeNumber(min=1),
        metavar="N",
        unset="one for every physical core",
        help="CPU threads.",
    ),
    _model("--rpc", fixed=True, type=ServersType(), help=RPC_HELP),
    _screen(
        "--plain/--rich",
        default=False,
        help="Plain text without colours and Markdown, and a simple input line. Always the case if NO_COLOR "
        "is set or the output is not a terminal.",
    ),
    _screen(
        "--thoughts",
        type=click.Choice(["show", "line"]),
        default="show",
        help="Show the reasoning of a model, or one line that says how long it is.",
    ),
    _screen(
        "--heat",
        type=click.Choice(["off", "k", "surprise", "entropy", "rank", "top-p"]),
        default="off",
        help="Colour the tokens of answers on a terminal by their number of candidates (k), surprise, "
        "entropy, rank, or if top-p would have cut them; without Markdown.",
    ),
    _screen("--status/--no-status", default=True, help="Print figures after every answer."),
    _screen(
        "--keys",
        fixed=True,
        type=click.Choice(["emacs", "vi"]),
        default="emacs",
        help="Key bindings of the input line.",
    ),
    _screen("--store/--no-store", fixed=True, default=True, help="Keep conversations on disk."),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}


def config_path() -> Path:
    """Return the TOML file that is read if --config names no other."""
    return user_config_path("mink-local") / "config.toml"


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the table [chat] of the TOML file click's defaults; the callback of --config."""
    file = ctx.meta["config"] = path or config_path()
    if path or file.exists():
        ctx.default_map = dict(_texts(file))
    return path


def _texts(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a file as they would be typed, so that click parses and checks them."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("chat", {})
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}.") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: chat must be a table, [chat].")
    for key, value in table.items():
        setting = BY_KEY.get(key.replace("_", "-"))
        if setting is None:
            raise click.UsageError(f"{path}: there is no setting {key!r} in [chat].")
        if setting.multiple and isinstance(value, list):
            yield setting.name, [str(item) for item in value]
        elif isinstance(value, list | dict):
            raise click.UsageError(f"{path}: {setting.key} must be a single value.")
        else:
            yield setting.name, str(value)
