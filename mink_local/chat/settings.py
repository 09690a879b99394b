"""The values of all settings, and where each comes from."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click

from mink_local.chat.options import CONSTRAINTS, SETTINGS
from mink_local.chat.setting import COMMAND_LINE, FileText, Setting
from mink_local.llama.constraints import Constraints
from mink_local.samplers import MinK, Sampler

SET_HERE = "set in this chat"

SettingsState = tuple[dict[str, Any], dict[str, str]]  # values and sources


class Settings:
    """The value of every setting, by its name in Python.

    Args:
        ctx: A context of the command.

    Attributes:
        sources: Where each value comes from.
    """

    def __init__(self, ctx: click.Context) -> None:
        self.sources = {setting.name: setting.source(ctx) for setting in SETTINGS}
        self._values = {setting.name: ctx.params[setting.name] for setting in SETTINGS}
        self._context = ctx

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def given(self, name: str) -> bool:
        """Return if the value comes from the command line."""
        return self.sources[name] == COMMAND_LINE

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a value that is known to be good."""
        self._values[name], self.sources[name] = value, source

    def change(self, setting: Setting, text: str) -> None:
        """Set a value from text; "default" is the value without the command line.

        Raises:
            ValueError: The text is not a value of the setting, or does not suit the other settings.
        """
        try:
            if text == "default":
                defaults = Settings(self._without_command_line())
                value, source = defaults[setting.name], defaults.sources[setting.name]
            else:
                parts: Any = text.split() if setting.multiple else text
                value, source = setting.process_value(self._context, parts), SET_HERE
            self._check({**self._values, setting.name: value}, setting.name)
        except click.UsageError as error:
            raise ValueError(error.message.removesuffix(".")) from None
        self.put(setting.name, value, source)

    def check(self) -> None:
        """Raise click.UsageError if settings do not suit each other or their text is not valid."""
        self._check(self._values, "tau" if self.given("tau") else "sampler")

    def state(self) -> SettingsState:
        """Return a copy of values and sources, for `restore`."""
        return self._values.copy(), self.sources.copy()

    def restore(self, state: SettingsState) -> None:
        """Take back all changes since `state` was called."""
        self._values, self.sources = (part.copy() for part in state)

    @property
    def sampler(self) -> Sampler:
        """The sampler, with --tau applied."""
        return _sampler(self._values)

    @property
    def backend_sampling(self) -> bool | None:
        """The setting `sampling` as `load_model` takes it."""
        return {"auto": None, "host": False}.get(self["sampling"], True)

    @property
    def constraints(self) -> Constraints | None:
        """The penalties and limits; None if there are none, which is faster."""
        return _constraints(self._values)

    def shown(self, setting: Setting) -> str:
        """Return a value as /set takes it."""
        value = self[setting.name]
        if setting.name == "sampler":
            return str(self.sampler)
        if value is None or value == ():
            return "-"
        if isinstance(value, FileText):
            return value.path
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return " ".join(f"{token}={bias:g}" for token, bias in value)
        return f"{value:g}" if isinstance(value, float) else str(value)

    def _without_command_line(self) -> click.Context:
        """Return a context with the values of environment, file and defaults."""
        path = self._context.params["config"]
        return self._context.command.make_context(None, ["--config", str(path)] if path else [])

    def _check(self, values: Mapping[str, Any], changed: str) -> None:
        sampler = _sampler(values)
        if changed == "tau" and values["tau"] is not None and sampler.name != "min-k":
            raise click.UsageError(f"--tau is an option of min-k, not of {sampler.name}.")
        _constraints(values)


def _sampler(values: Mapping[str, Any]) -> Sampler:
    sampler: Sampler = values["sampler"]
    if values["tau"] is not None and isinstance(sampler, MinK):
        return replace(sampler, tau=values["tau"])
    return sampler


def _constraints(values: Mapping[str, Any]) -> Constraints | None:
    names = (setting.name for setting in SETTINGS if setting.group == CONSTRAINTS)
    given = {name: values[name] for name in names if values[name]}
    if not given:
        return None
    try:
        return Constraints(**{**given, "logit_bias": dict(values["logit_bias"])})
    except ValueError as error:
        raise click.UsageError(f"{error}.") from None
