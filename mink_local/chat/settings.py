"""The settings of `mink-chat`: options that are also environment variables and keys of a TOML file.

Click keeps the precedence: command line, environment, file, default. The samplers, and with them Numba, are
imported only where they are needed.
"""

import json
import logging
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from mink_local.cli import FileText, FiniteFloat, command_line_text, did_you_mean, file_text
from mink_local.errors import MinkError
from mink_local.files import as_text, regular, user_folder, user_path, write_atomic
from mink_local.llama.constants import ALL_LAYERS, MODEL
from mink_local.models.catalog import find, resolve
from mink_local.models.options import (
    OR_MODEL,
    PRESETS,
    SamplerOption,
    SamplerType,
    chat_template_option,
    checkpoint_memory_option,
    complete_file,
    cpu_moe_option,
    ctx_option,
    gpu_layers_option,
    kv_type_option,
    main_gpu_option,
    max_tokens_option,
    model_option,
    n_cpu_moe_option,
    reasoning_budget_option,
    reasoning_marks_option,
    reasoning_sampler_option,
    reasoning_temp_option,
    rpc_option,
    sampler_option,
    seed_option,
    temp_option,
    template_kwargs_option,
    tensor_split_option,
    threads_option,
)
from mink_local.models.placement import PlacementOptions

log = logging.getLogger("mink_local")

if TYPE_CHECKING:
    from mink_local.generation.model import Model
    from mink_local.generation.request import SamplingParams
    from mink_local.llama.constraints import Constraints
    from mink_local.models.recommended import Recommended
    from mink_local.samplers import Sampler

COMMAND_LINE, DEFAULT, SET_HERE = "command line", "default", "set in this chat"  # three sources of values
MIN_K = ("tau", "floor")  # the settings that are options of Min-k
_PRESET = "preset "  # and its name: a source of values
_OF_SERVER = ("MINK_SERVE_", "MINK_API_KEY")  # variables of mink-serve
RARE = "Rarely needed"  # the group of settings that comes last in the help
CONSTRAINTS = "Penalties and limits"  # the group of settings that `Constraints` are made from


def in_words(sampler: object, temperature: float, of_reasoning: str = "") -> str:
    """Return a sampler and a temperature in words, and with them those of the reasoning, if it has others."""
    return f"{sampler}, T = {temperature:g}" + (f"; reasoning: {of_reasoning}" if of_reasoning else "")


class Setting(SamplerOption):
    """An option that is also the variable MINK_NAME and a key of the TOML file.

    Args:
        group: Its title in the help.
        fixed: /set cannot change it.
        reloads: A change loads the model again.

    Attributes:
        key: Its name in the file and for /set.
        about: The first sentence of the help.
    """

    def __init__(
        self, *names: str, group: str, fixed: bool = False, reloads: bool = False, **attributes: Any
    ) -> None:
        super().__init__(names, **attributes)
        self.group, self.fixed, self.reloads = group, fixed, reloads
        self.key = max(self.opts, key=len).removeprefix("--")
        self.envvar = f"MINK_{self.key.replace('-', '_').upper()}"
        self.about = (self.help or "").partition(". ")[0].removesuffix(".") + "."

    @property
    def takes_several(self) -> bool:
        """Whether it takes several values: separated by blanks, or as a list."""
        return self.multiple or self.nargs > 1

    def source(self, ctx: click.Context) -> str:
        """Return where the value comes from: a variable, the path of a file, or in words."""
        sources = {
            ParameterSource.COMMANDLINE: COMMAND_LINE,
            ParameterSource.ENVIRONMENT: str(self.envvar),
            ParameterSource.DEFAULT_MAP: str(ctx.meta.get("config")),
        }
        return sources.get(ctx.get_parameter_source(self.name) or ParameterSource.DEFAULT, DEFAULT)


def model_name(text: str) -> str:
    """Return the name of a model, or the path of a file so that it means the same in every folder."""
    path = user_path(text)
    return text if find(text) or not os.path.isfile(path) else os.path.abspath(path)


def schema_text(path: str) -> FileText:
    """Return the text of a file that is JSON."""
    text = file_text(path)
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise click.BadParameter(f"{path} is not valid JSON: {where}.") from None
    return text


def _token_bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not TOKEN=BIAS, such as 198=-inf.") from None


_sampling = partial(Setting, group="Sampling")
_constraint = partial(Setting, group=CONSTRAINTS)
_model = partial(Setting, group="Model", reloads=True)
_rare = partial(Setting, group=RARE, reloads=True)
_screen = partial(Setting, group="Screen and store")

SETTINGS: tuple[Setting, ...] = (
    temp_option.build(_sampling),
    # Not parsed by default: that would import Numba before the model is loaded.
    sampler_option.build(
        _sampling,
        type=SamplerType(is_last=True, or_model=True),
        default=None,
        show_default="min-k",
        help=f"{sampler_option.attributes['help']}{OR_MODEL}",
    ),
    _sampling(
        "--tau",
        type=FiniteFloat(min=0),
        metavar="TAU",
        show_default="3",
        help="Min-k keeps at least TAU / (largest - smallest logit) candidates; 0 turns that off.",
    ),
    _sampling(
        "--floor",
        type=FiniteFloat(min=0),
        metavar="NATS",
        show_default="0",
        help="Min-k also keeps the tokens whose logit is at most NATS below the largest, for more variety. "
        "At 1, those are at least 37% as probable as the best.",
    ),
    seed_option.build(_sampling),
    max_tokens_option.build(_sampling),
    _sampling(
        "--loop-guard/--no-loop-guard",
        default=True,
        help="End an answer that repeats itself, and reasoning, so that the answer follows.",
    ),
    _sampling("--system", type=command_line_text, metavar="TEXT", help="System prompt."),
    _sampling(
        "--reasoning/--no-reasoning",
        default=None,
        show_default="the model's",
        help="Turn reasoning on or off, if the chat template has a switch for it.",
    ),
    reasoning_budget_option.build(_sampling),
    reasoning_sampler_option.build(_sampling),
    reasoning_temp_option.build(_sampling),
    _constraint(
        "--repeat-penalty",
        type=FiniteFloat(min=0, min_open=True),
        metavar="X",
        show_default="1",
        help="Above 1: lower the logits of tokens that have occurred.",
    ),
    _constraint(
        "--frequency-penalty",
        type=FiniteFloat(),
        metavar="X",
        show_default="0",
        help="Subtract X from the logit of a token for each time it has occurred.",
    ),
    _constraint(
        "--presence-penalty",
        type=FiniteFloat(),
        metavar="X",
        show_default="0",
        help="Subtract X from the logit of each token that the answer has already.",
    ),
    _constraint(
        "--dry-multiplier",
        type=FiniteFloat(min=0),
        metavar="X",
        show_default="0",
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
        shell_complete=complete_file,
        help="Restrict the answer to a GBNF grammar.",
    ),
    _constraint(
        "--json-schema",
        type=schema_text,
        metavar="FILE",
        shell_complete=complete_file,
        help="Restrict the answer to JSON that follows this schema.",
    ),
    model_option.build(_model, type=model_name),
    ctx_option.build(_model),
    gpu_layers_option.replace("n_gpu_layers").build(_model),
    _screen(
        "--plain/--rich",
        default=False,
        help="Plain text without colours and Markdown; always if NO_COLOR is set or the output is not a "
        "terminal.",
    ),
    _screen(
        "--theme",
        type=click.Choice(["auto", "dark", "light", "none"]),
        default="auto",
        help="Colours for a dark or a light terminal, or none; auto: as COLORFGBG says, or else dark.",
    ),
    _screen(
        "--show-reasoning/--no-show-reasoning",
        default=True,
        help="Show the reasoning, or one line with its length.",
    ),
    _screen("--status/--no-status", default=True, help="Print figures after every answer."),
    _screen("--store/--no-store", fixed=True, default=True, help="Keep conversations on disk."),
    _screen(
        "--cache/--no-cache",
        default=True,
        help="Keep the KV caches of conversations that take seconds to read on disk, 2 GB at most.",
    ),
    cpu_moe_option.build(_rare, expose_value=True, callback=None),
    n_cpu_moe_option.build(_rare),
    tensor_split_option.build(_rare),
    main_gpu_option.build(_rare),
    kv_type_option.build(_rare),
    checkpoint_memory_option.build(_rare),
    threads_option.replace("n_threads").build(_rare),
    rpc_option.build(_rare, fixed=True),
    chat_template_option.build(_rare),
    template_kwargs_option.build(_rare),
    reasoning_marks_option.build(_rare, fixed=True),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
FORMER_KEYS = {"think": "reasoning"}  # that conversations have been stored with
_SAMPLING = [setting for setting in SETTINGS if setting.group in ("Sampling", CONSTRAINTS)]
# What a conversation keeps besides its system prompt.
_KEPT = [setting for setting in _SAMPLING if setting.key != "system"]


def config_path() -> Path:
    """Return the TOML file that is read unless --config names another."""
    return user_folder("config") / "config.toml"


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the table [chat] of the TOML file click's defaults; the callback of --config."""
    file = ctx.meta["config"] = path or config_path()
    if (path or os.path.exists(file)) and not ctx.resilient_parsing:  # completion is no place for complaints
        chat, presets = _tables(file)
        ctx.default_map = dict(_texts(file, "[chat]", chat))
        ctx.meta["presets"] = {
            name: dict(_texts(file, f"[preset.{name}]", table)) for name, table in presets.items()
        }
    return path


def _tables(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the table [chat] of a file, and the tables [preset.NAME]. Raises click.UsageError for others."""
    try:
        whole = tomllib.loads(as_text(regular(path).read_bytes()))
    except (OSError, ValueError) as error:
        raise click.UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    chat, presets = whole.pop("chat", {}), whole.pop("preset", {})
    if whole or not isinstance(chat, dict):
        name = next(iter(whole), "chat")
        raise click.UsageError(f"{path}: {name!r} is outside of the table [chat], where settings belong.")
    if not (isinstance(presets, dict) and all(isinstance(table, dict) for table in presets.values())):
        raise click.UsageError(f"{path}: the settings of a preset belong into a table [preset.NAME].")
    return chat, presets


def _without_preset(text: str, name: str) -> dict[str, Any]:
    """Return what a configuration file says besides a preset. Raises ValueError if it is not TOML."""
    whole = tomllib.loads(text)
    return {**whole, "preset": {**whole.get("preset", {}), name: None}}


def _texts(path: Path, place: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield settings as they would be typed, so that click parses and checks them; warn of unknown ones."""
    for key, value in table.items():
        setting = BY_KEY.get(key.replace("_", "-"))
        if setting is None:
            hint = did_you_mean(key, BY_KEY) or ": mink-chat --help lists them"
            log.warning("%s: there is no setting %r in %s%s", path, key, place, hint)
        elif isinstance(value, dict) or (isinstance(value, list) and not setting.takes_several):
            raise click.UsageError(f"{path}: {setting.key} must be a single value.")
        elif setting.takes_several:
            yield setting.name, list(map(str, value)) if isinstance(value, list) else str(value).split()
        else:
            yield setting.name, str(value)


def warn_of_variables() -> None:
    """Log each variable that looks like a setting and is none, not even of mink-serve."""
    known = [*(str(setting.envvar) for setting in SETTINGS), "MINK_CONFIG"]
    for name in sorted(os.environ):
        if name.startswith("MINK_") and name not in known and not name.startswith(_OF_SERVER):
            log.warning("there is no setting %s%s", name, did_you_mean(name, known))


class Settings:
    """The value of every setting, by its name in Python; `sources` says where each comes from."""

    def __init__(self, ctx: click.Context) -> None:
        self.sources = {setting.name: setting.source(ctx) for setting in SETTINGS}
        self._values = {setting.name: ctx.params[setting.name] for setting in SETTINGS}
        self.context = ctx
        if name := ctx.params.get("preset"):
            self._take_preset(name, is_open=lambda option: not self.given(option))
        self._at_start = {name: (value, self.sources[name]) for name, value in self._values.items()}

    def __getitem__(self, name: str) -> Any:
        if name == "temp" and self.follows_model and self.sources["temp"] == DEFAULT:
            return self._recommended.temperature
        return self._values[name]

    @property
    def follows_model(self) -> bool:
        """Whether the sampler is what the model's file recommends."""
        return bool(self._values["sampler"] == MODEL)

    @property
    def _recommended(self) -> "Recommended":
        from mink_local.models.recommended import require_recommended

        return require_recommended(resolve(self["model"]).path)

    def given(self, name: str) -> bool:
        """Return whether the value comes from the command line."""
        return self.sources[name] == COMMAND_LINE

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a value that is known to be valid."""
        self._values[name], self.sources[name] = value, source

    @property
    def presets(self) -> dict[str, dict[str, Any]]:
        """The values of presets as text, by their names: those that come with the program, and the user's."""
        return {**PRESETS, **self.context.meta.get("presets", {})}

    def with_preset(self, name: str) -> "Settings":
        """Return a copy with the values of a preset. Raises click.UsageError if it has none, or bad ones."""
        other = copy(self)
        other._values, other.sources = self._values.copy(), self.sources.copy()
        other._take_preset(name, is_open=lambda _: True)
        other.check(is_new=lambda _: False)
        return other

    def _take_preset(self, name: str, is_open: Callable[[str], bool]) -> None:
        """Set the values of a preset for the options that are open to it."""
        if name not in self.presets:
            hint = did_you_mean(name, self.presets) or f": there are {', '.join(self.presets)}."
            raise click.UsageError(f"there is no preset {name!r}{hint}")
        values = self.presets[name]
        if "sampler" in values and is_open("sampler"):
            for option in filter(is_open, MIN_K):
                self.put(option, None, _PRESET + name)
        for setting in (setting for setting in SETTINGS if setting.name in values):
            if is_open(setting.name) and not setting.fixed:
                self.put(setting.name, self._parsed(setting, values[setting.name]), _PRESET + name)

    def save_preset(self, name: str) -> Path:
        """Write the model, the system prompt and the sampling settings to the configuration file.

        Returns the file. Raises MinkError if it cannot be written.
        """
        values = {"model": self["model"], "system": self["system"], **self.kept()}
        lines = [f"{key} = {json.dumps(text, ensure_ascii=False)}" for key, text in values.items() if text]
        block = "\n".join((f"[preset.{name}]", *lines, ""))
        path: Path = self.context.meta["config"]
        before = as_text(path.read_bytes()) if path.exists() else ""
        without = re.sub(rf"(?ms)^\[preset\.{name}\]\n.*?(?=^\[|\Z)", "", before).rstrip("\n")
        text = f"{without}\n\n{block}".lstrip("\n")
        try:
            if _without_preset(text, name) != _without_preset(before, name):
                raise ValueError
        except ValueError:  # strings of several lines, for example
            raise MinkError(f"{path} has a table [preset.{name}] that only you can change") from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
        except OSError as error:
            raise MinkError(f"{path} cannot be written: {error.strerror}") from None
        self.context.meta.setdefault("presets", {})[name] = {
            BY_KEY[key].name: text for key, text in values.items() if text
        }
        return path

    def kept(self) -> dict[str, str | None]:
        """Return the sampling settings that are not the defaults, as `restore` takes them."""
        return {
            setting.key: None if self[setting.name] in (None, ()) else self.shown(setting)
            for setting in _KEPT
            if self.sources[setting.name] != DEFAULT
        }

    def restore(self, kept: Mapping[str, str | None], source: str) -> None:
        """Take the sampling settings of a conversation, perhaps none; the rest is as at the start.

        The command line overrides them.
        """
        kept = {FORMER_KEYS.get(key, key): text for key, text in kept.items()}
        for setting in _SAMPLING:
            value, origin = self._at_start[setting.name]
            if setting.key in kept and origin != COMMAND_LINE and not origin.startswith(_PRESET):
                try:
                    value, origin = self._parsed(setting, kept[setting.key]), source
                except click.UsageError as error:  # a file is gone, or another version kept it
                    log.warning("%s: %s: %s", source, setting.key, error.format_message())
            self.put(setting.name, value, origin)

    def _parsed(self, setting: Setting, text: Any) -> Any:
        """Return the value of a setting; in a chat, standard input is where messages are typed."""
        if text == "-" and getattr(setting.type, "func", None) in (file_text, schema_text):
            raise click.UsageError(f"{setting.key}: standard input is read only at the start: name a file.")
        parts = text.split() if setting.takes_several and isinstance(text, str) else text
        try:
            return setting.process_value(self.context, parts)
        except click.BadParameter as error:
            raise click.UsageError(f"{setting.key}: {error.message}") from None

    def changed(self, setting: Setting, text: str) -> "Settings":
        """Return a copy with one value from text; "default" is the value of the start.

        Raises:
            click.UsageError: The text is not a value of the setting, or does not fit the other settings.
        """
        name, other = setting.name, copy(self)
        other._values, other.sources = self._values.copy(), self.sources.copy()
        if text == "default":
            other.put(name, *self._at_start[name])
        else:
            other.put(name, self._parsed(setting, text), SET_HERE)
            for option in MIN_K if name == "sampler" else ():
                if f"{option}=" in text:  # which the one that was set before must not replace
                    other.put(option, None, SET_HERE)
        other.check(is_new=lambda option: option == name)
        return other

    def check(self, is_new: Callable[[str], bool]) -> None:
        """Raise click.UsageError if settings do not fit together or their text is not valid.

        With another sampler, a new option of Min-k is refused; one that was there before is ignored.
        """
        name = self.sampler.name if self["sampler"] else "min-k"
        for option in MIN_K:
            if is_new(option) and self[option] is not None and name != "min-k":
                raise click.UsageError(f"{option} is an option of min-k, not of {name}.")
        _ = self.constraints

    @property
    def sampler(self) -> "Sampler":
        """The sampler, with --tau and --floor applied."""
        from mink_local.samplers import MinK

        sampler: Sampler = self._recommended.sampler if self.follows_model else self["sampler"] or MinK()
        if isinstance(sampler, MinK):
            return replace(sampler, **{name: self[name] for name in MIN_K if self[name] is not None})
        return sampler

    @property
    def summary(self) -> str:
        """The samplers and the temperatures in words."""
        params = self.params
        other = params.while_reasoning
        of_reasoning = in_words(other.sampler, other.temperature) if params.has_phases else ""
        return in_words(params.sampler, params.temperature, of_reasoning)

    @property
    def params(self) -> "SamplingParams":
        """How answers are sampled."""
        from mink_local.generation.request import SamplingParams

        return SamplingParams(
            sampler=self.sampler,
            temperature=self["temp"],
            max_tokens=self["max_tokens"],
            seed=self["seed"],
            reasoning_budget=self["reasoning_budget"],
            reasoning_sampler=self["reasoning_sampler"],
            reasoning_temperature=self["reasoning_temp"],
            end_loops="all" if self["loop_guard"] else "none",
            constraints=self.constraints,
        )

    def load_model(self) -> "Model":
        """Load the model. Raises what `mink_local.load_model` raises."""
        from mink_local.generation import loading

        placement = {field.name: self[field.name] for field in fields(PlacementOptions)}
        if self["cpu_moe"]:
            placement["n_cpu_moe"] = ALL_LAYERS
        return loading.load_model(
            self["model"],
            n_ctx=self["ctx"],
            placement=PlacementOptions(**placement),
            kv_type=self["kv_type"],
            checkpoint_memory=self["checkpoint_memory"],
            chat_template=self["chat_template_file"],
            template_kwargs=self["template_kwargs"],
            reasoning_marks=self["reasoning_marks"],
            verbose=self.context.params["verbose"],
        )

    @property
    def constraints(self) -> "Constraints | None":
        """The penalties and limits; None if there are none, which is faster."""
        options = [setting.name for setting in SETTINGS if setting.group == CONSTRAINTS]
        given = {**(self._recommended.penalties if self.follows_model else {})}
        given |= {name: self[name] for name in options if self[name]}
        if not given:
            return None
        from mink_local.llama.constraints import Constraints

        try:
            return Constraints(**{**given, "logit_bias": dict(self["logit_bias"])})
        except ValueError as error:
            message = str(error)
            for name in given:
                message = message.replace(name, name.replace("_", "-"))
            raise click.UsageError(f"{message}.") from None

    def shown(self, setting: Setting) -> str:
        """Return a value as /set takes it, or in words what applies if it is not set."""
        value = self[setting.name]
        if setting.name == "sampler":
            value = MODEL if self.follows_model else self.sampler
        elif setting.name in MIN_K and self.sampler.name == "min-k":
            value = getattr(self.sampler, setting.name)
        match value:
            case None | ():
                return setting.show_default if isinstance(setting.show_default, str) else "none"
            case bool():
                return "on" if value else "off"
            case float():
                return f"{value:.15g}"
            case FileText():
                return value.path
            case dict():
                return json.dumps(value, ensure_ascii=False)
            case tuple() if setting.name == "logit_bias":
                return " ".join(f"{token}={bias:g}" for token, bias in value)
            case tuple() if setting.name == "tensor_split":
                return ",".join(f"{share:g}" for share in value)
            case tuple():
                return ",".join(value)
        return str(value)
