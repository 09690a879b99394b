"""A setting: an option of `mink-chat` that is also a variable and a key of a TOML file.

Settings are click options, and click keeps the precedence: command line, environment, file, default.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from platformdirs import user_config_path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

COMMAND_LINE, DEFAULT = "command line", "default"  # two of the sources of values


class Setting(click.Option):
    """An option that is also the variable MINK_NAME and a key of the TOML file.

    Args:
        names: As of `click.Option`.
        group: The title it has in the help.
        fixed: /set cannot change it.
        reloads: The model is loaded again after a change.
        attributes: As of `click.Option`.
    """

    def __init__(
        self, *names: str, group: str, fixed: bool = False, reloads: bool = False, **attributes: Any
    ) -> None:
        super().__init__(names, **attributes)
        self.group, self.fixed, self.reloads = group, fixed, reloads
        self.envvar = f"MINK_{self.name.upper()}"
        self.key = self.name.replace("_", "-")

    def source(self, ctx: click.Context) -> str:
        """Return where the value comes from: a variable, the path of a file, or in words."""
        sources = {
            ParameterSource.COMMANDLINE: COMMAND_LINE,
            ParameterSource.ENVIRONMENT: str(self.envvar),
            ParameterSource.DEFAULT_MAP: str(ctx.meta.get("config")),
        }
        return sources.get(ctx.get_parameter_source(self.name) or ParameterSource.DEFAULT, DEFAULT)

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


def token_bias(text: str) -> tuple[int, float]:
    """Return the token id and the bias of TOKEN=BIAS."""
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not TOKEN=BIAS, such as 198=-inf.") from None


def config_path() -> Path:
    """Return the TOML file that is read if --config names no other."""
    return user_config_path("mink-local") / "config.toml"


def read_config(ctx: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Make the table [chat] of the TOML file click's defaults; the callback of --config."""
    ctx.meta["config"] = path or config_path()
    if path or ctx.meta["config"].exists():
        ctx.default_map = _read_toml(ctx.meta["config"], ctx.command)
    return path


def _read_toml(path: Path, command: click.Command) -> dict[str, Any]:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8")).get("chat", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {error}.") from None
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: chat must be a table, [chat].")
    settings = {option.key: option for option in command.params if isinstance(option, Setting)}
    defaults = {}
    for key, value in table.items():
        setting = settings.get(key.replace("_", "-"))
        if setting is None:
            raise click.UsageError(f"{path}: there is no setting {key!r} in [chat].")
        defaults[setting.name] = _as_typed(path, setting, value)
    return defaults


def _as_typed(path: Path, setting: Setting, value: object) -> Any:
    """Return a TOML value as it would be typed, so that click parses and checks it."""
    if setting.multiple and isinstance(value, list):
        return [str(item) for item in value]
    if isinstance(value, list | dict):
        raise click.UsageError(f"{path}: {setting.key} must be a single value.")
    return str(value).lower() if isinstance(value, bool) else str(value)
