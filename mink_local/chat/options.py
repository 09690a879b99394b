"""The table of settings: the options of `mink-chat` that /set and the TOML file know as well."""

import click
from click.shell_completion import CompletionItem

from mink_local.chat.setting import Setting, command_line_text, file_text, token_bias
from mink_local.cli import FiniteFloat
from mink_local.models.catalog import DEFAULT_MODEL, read_catalog
from mink_local.models.options import (
    GPU_LAYERS,
    GPU_LAYERS_HELP,
    KV_TYPE,
    KV_TYPE_HELP,
    MODEL_HELP,
    SamplerType,
)

# The groups, in the order of the help. `Constraints` are made from the settings of the second.
SAMPLING, CONSTRAINTS, MODEL, SCREEN = "Sampling", "Penalties and limits", "Model", "Screen and store"


def _complete_model(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    names = [CompletionItem(name) for name in read_catalog() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "--temp",
        "-t",
        group=SAMPLING,
        type=FiniteFloat(min=0),
        default=1.0,
        metavar="T",
        help="Temperature of the candidates that the sampler keeps; 0 takes the most probable token.",
    ),
    Setting(
        "--sampler",
        group=SAMPLING,
        type=SamplerType(),
        default="min-k",
        metavar="NAME[:OPTION=VALUE,…]",
        help="How the candidates for the next token are chosen: min-k, top-p:p=0.9, min-p, top-k, "
        "top-n-sigma, eta, p-less, mirostat, greedy.",
    ),
    Setting(
        "--tau",
        group=SAMPLING,
        type=FiniteFloat(min=0),
        metavar="TAU",
        help="Min-k keeps at least TAU / (largest - smallest logit) candidates; 0 switches that off.  "
        "[default: 3]",
    ),
    Setting(
        "--seed",
        group=SAMPLING,
        type=click.IntRange(0, 2**32 - 2),
        metavar="N",
        help="The same seed gives the same answer again.  [default: random]",
    ),
    Setting(
        "--max-tokens",
        "-n",
        group=SAMPLING,
        type=click.IntRange(min=1),
        metavar="N",
        help="The longest answer.  [default: until the context is full]",
    ),
    Setting("--system", group=SAMPLING, type=command_line_text, metavar="TEXT", help="System prompt."),
    Setting(
        "--think/--no-think",
        group=SAMPLING,
        default=None,
        help="Have the model reason before it answers, or not, if its chat template has a switch for that.  "
        "[default: the model's]",
    ),
    Setting(
        "--repeat-penalty",
        group=CONSTRAINTS,
        type=click.FloatRange(min=0, min_open=True),
        metavar="X",
        help="Above 1: lower the logits of tokens that occurred.  [default: 1]",
    ),
    Setting(
        "--frequency-penalty",
        group=CONSTRAINTS,
        type=float,
        metavar="X",
        help="Subtract X from the logit of a token for every time it occurred.",
    ),
    Setting(
        "--presence-penalty",
        group=CONSTRAINTS,
        type=float,
        metavar="X",
        help="Subtract X from the logit of every token that occurred.",
    ),
    Setting(
        "--dry-multiplier",
        group=CONSTRAINTS,
        type=float,
        metavar="X",
        help="DRY: penalise tokens that would repeat a phrase; 0 is off.",
    ),
    Setting(
        "--logit-bias",
        group=CONSTRAINTS,
        type=token_bias,
        multiple=True,
        metavar="TOKEN=BIAS",
        help="Add BIAS to the logit of a token id; -inf bans the token. May be given several times.",
    ),
    Setting(
        "--grammar",
        group=CONSTRAINTS,
        type=file_text,
        metavar="FILE",
        help="Restrict the answer to a GBNF grammar.",
    ),
    Setting(
        "--json-schema",
        group=CONSTRAINTS,
        type=file_text,
        metavar="FILE",
        help="Restrict the answer to JSON of this schema.",
    ),
    Setting(
        "--model",
        "-m",
        group=MODEL,
        reloads=True,
        default=DEFAULT_MODEL,
        metavar="NAME|PATH",
        shell_complete=_complete_model,
        help=MODEL_HELP,
    ),
    Setting(
        "--ctx",
        group=MODEL,
        reloads=True,
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens that the conversation and its answer share.  [default: as many as the memory allows]",
    ),
    Setting("--gpu-layers", group=MODEL, reloads=True, type=GPU_LAYERS, default="auto", help=GPU_LAYERS_HELP),
    Setting(
        "--sampling",
        group=MODEL,
        reloads=True,
        type=click.Choice(["auto", "host", "backend", "graph"]),  # graph: the earlier name of backend
        default="auto",
        metavar="[auto|host|backend]",
        help="Where tokens are sampled: backend is in llama.cpp's graph, so that no logits leave the GPU; "
        "host is on the CPU; auto is backend if the model is on a GPU.",
    ),
    Setting("--kv-type", group=MODEL, reloads=True, type=KV_TYPE, default="f16", help=KV_TYPE_HELP),
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
        help="Plain text without colours and Markdown, and a simple input line. Always the case if NO_COLOR "
        "is set or the output is not a terminal.",
    ),
    Setting(
        "--thoughts",
        group=SCREEN,
        type=click.Choice(["show", "line"]),
        default="show",
        help="Show the reasoning of a model, or one line that says how long it is.",
    ),
    Setting("--status/--no-status", group=SCREEN, default=True, help="Print figures after every answer."),
    Setting(
        "--keys",
        group=SCREEN,
        fixed=True,
        type=click.Choice(["emacs", "vi"]),
        default="emacs",
        help="Key bindings of the input line.",
    ),
    Setting("--store/--no-store", group=SCREEN, fixed=True, default=True, help="Keep conversations on disk."),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
