"""The values of the settings, where each is from, and the TOML file."""

import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from platformdirs import user_config_path

from mink_local.chat.options import BY_KEY, LIMITS, SETTINGS, FileText, Setting, variable_or_file

if TYPE_CHECKING:
    from mink_local.llama.constraints import Constraints
    from mink_local.samplers import Sampler

HERE = "set in this chat"


class Settings(dict[str, Any]):
    """The value of every setting by its name in Python; `sources` says where each comes from."""

    def __init__(self, ctx: click.Context) -> None:
        super().__init__({_name(setting): ctx.params[_name(setting)] for setting in SETTINGS})
        self.context = ctx
        self.sources = {_name(setting): _source(setting, ctx) for setting in SETTINGS}

    def given(self, name: str) -> bool:
        """Whether a value is from the command line."""
        return self.context.get_parameter_source(name) is ParameterSource.COMMANDLINE

    def change(self, setting: Setting, text: str) -> None:
        """Set from text, "default" being the default. Raises ValueError where the text is not fit."""
        name = _name(setting)
        value: Any = setting.get_default(self.context) if text == "default" else text
        if setting.multiple and text != "default":
            value = text.split()
        try:
            value = setting.process_value(self.context, value)
            self._check({**self, name: value}, name)
        except click.UsageError as error:
            raise ValueError(error.message.removesuffix(".")) from None
        self[name] = value
        self.sources[name] = HERE if text != "default" else _default_source(setting, self.context)

    def put(self, name: str, value: Any, source: str) -> None:
        """Set from within, where the value is known to be good."""
        self[name], self.sources[name] = value, source

    def check(self) -> None:
        """Raises click.UsageError where settings do not go together or their text is not fit."""
        self._check(self, "tau" if self.given("tau") else "sampler")

    def _check(self, values: Mapping[str, Any], changed: str) -> None:
        sampler = _sampler(values)
        if changed == "tau" and values["tau"] is not None and sampler.name != "min-k":
            raise click.UsageError(f"--tau is min-k's, not {sampler.name}'s.")
        _constraints(values)

    @property
    def sampler(self) -> "Sampler":
        return _sampler(self)

    @property
    def constraints(self) -> "Constraints | None":
        """None where nothing constrains: without, the candidates need not all be laid out."""
        return _constraints(self)

    def shown(self, setting: Setting) -> str:
        """The value as /set takes it."""
        value = self[_name(setting)]
        if value is None or value == ():
            return "-"
        if isinstance(value, FileText):
            return value.path
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return " ".join(f"{token}={bias:g}" for token, bias in value)
        return f"{value:g}" if isinstance(value, float) else str(value)


def _name(setting: Setting) -> str:
    assert setting.name
    return setting.name


def _default_source(setting: Setting, ctx: click.Context) -> str:
    return str(ctx.meta["config"]) if _name(setting) in (ctx.default_map or {}) else "default"


def _source(setting: Setting, ctx: click.Context) -> str:
    source = ctx.get_parameter_source(_name(setting))
    if source is ParameterSource.COMMANDLINE:
        return "command line"
    if source in (ParameterSource.ENVIRONMENT, ParameterSource.DEFAULT_MAP):
        return variable_or_file(setting, ctx)
    return "default"


def _sampler(values: Mapping[str, Any]) -> "Sampler":
    from mink_local.samplers import MinK, parse

    try:
        sampler = parse(values["sampler"])
    except ValueError as error:
        raise click.BadParameter(f"{error}.", param_hint="'--sampler'") from None
    if values["tau"] is not None and isinstance(sampler, MinK):
        return replace(sampler, tau=values["tau"])
    return sampler


def _constraints(values: Mapping[str, Any]) -> "Constraints | None":
    names = (_name(setting) for setting in SETTINGS if setting.group == LIMITS)
    asked_for = {name: values[name] for name in names if values[name]}
    if not asked_for:
        return None
    from mink_local.llama.constraints import Constraints

    try:
        return Constraints(**{**asked_for, "logit_bias": dict(values["logit_bias"])})
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None


def config_path() -> Path:
    return user_config_path("mink-local") / "config.toml"


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Callback of the option that names the TOML file: its table [chat] becomes click's defaults."""
    ctx.meta["config"] = path or config_path()
    if path or ctx.meta["config"].exists():
        ctx.default_map = _read_toml(ctx.meta["config"])
    return path


def _read_toml(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("chat", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}.") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: chat must be a table, [chat].")
    settings = {key.replace("_", "-"): value for key, value in table.items()}
    for key in settings.keys() - BY_KEY.keys():
        raise click.UsageError(f"{path}: there is no setting {key!r} in [chat].")
    return {_name(BY_KEY[key]): _toml_text(path, BY_KEY[key], value) for key, value in settings.items()}


def _toml_text(path: Path, setting: Setting, value: object) -> Any:
    """A value as it would stand on the command line, for click to read."""
    if setting.multiple and isinstance(value, list):
        return [str(item) for item in value]
    if not isinstance(value, str | int | float) or (isinstance(value, float) and math.isnan(value)):
        raise click.UsageError(f"{path}: {setting.key} has a value of another kind.")
    return str(value).lower() if isinstance(value, bool) else str(value)
