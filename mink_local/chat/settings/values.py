"""The values of all settings, and where each comes from.

The samplers, and with them Numba, are imported only where they are needed.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from mink_local.chat.settings.options import COMMAND_LINE, CONSTRAINTS, MIN_K, SETTINGS, FileText, Setting

if TYPE_CHECKING:
    from mink_local.generation.model import Model
    from mink_local.llama.constraints import Constraints
    from mink_local.samplers import Sampler

SET_HERE = "set in this chat"


class Settings:
    """The value of every setting, by its name in Python; `sources` says where each comes from."""

    def __init__(self, ctx: click.Context) -> None:
        self.sources = {setting.name: setting.source(ctx) for setting in SETTINGS}
        self._values = {setting.name: ctx.params[setting.name] for setting in SETTINGS}
        self.context = ctx

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def given(self, name: str) -> bool:
        """Return if the value comes from the command line."""
        return self.sources[name] == COMMAND_LINE

    def put(self, name: str, value: Any, source: str) -> None:
        """Set a value that is known to be good."""
        self._values[name], self.sources[name] = value, source

    def changed(self, setting: Setting, text: str) -> "Settings":
        """Return a copy with one value from text; "default" is the value without the command line.

        Raises:
            click.UsageError: The text is not a value of the setting, or does not suit the other settings.
        """
        name, other = setting.name, copy(self)
        other._values, other.sources = self._values.copy(), self.sources.copy()
        if text == "default":
            path = self.context.params["config"]
            arguments = ["--config", str(path)] if path else []
            defaults = Settings(self.context.command.make_context(None, arguments))
            other.put(name, defaults[name], defaults.sources[name])
        else:
            parts: Any = text.split() if setting.multiple else text
            other.put(name, setting.process_value(self.context, parts), SET_HERE)
            for option in MIN_K if name == "sampler" else ():
                if f"{option}=" in text:  # which the one that was set before must not replace
                    other.put(option, None, SET_HERE)
        other.check(is_new=lambda option: option == name)
        return other

    def check(self, is_new: Callable[[str], bool]) -> None:
        """Raise click.UsageError if settings do not suit each other or their text is not valid.

        A new option of Min-k does not suit another sampler; one that was there before is not used.
        """
        name = self["sampler"].name if self["sampler"] else "min-k"
        for option in MIN_K:
            if is_new(option) and self[option] is not None and name != "min-k":
                raise click.UsageError(f"{option} is an option of min-k, not of {name}.")
        _ = self.constraints

    @property
    def sampler(self) -> "Sampler":
        """The sampler, with --tau and --floor applied."""
        from mink_local.samplers import MinK

        sampler: Sampler = self["sampler"] or MinK()
        if isinstance(sampler, MinK):
            return replace(sampler, **{name: self[name] for name in MIN_K if self[name] is not None})
        return sampler

    def load_model(self) -> "Model":
        """Load the model, and try backend sampling if it is to be used.

        Raises what `mink_local.load_model` raises.
        """
        from mink_local.generation import loading

        model = loading.load_model(
            self["model"],
            n_ctx=self["ctx"],
            n_gpu_layers=self["gpu_layers"],
            n_threads=self["threads"],
            kv_type=self["kv_type"],
            backend_sampling={"auto": None, "host": False, "backend": True}[self["sampling"]],
            rpc=self["rpc"],
            verbose=self.context.params["verbose"],
        )
        from mink_local.generation.request import SamplingParams

        model.sampling(SamplingParams(sampler=self.sampler, temperature=self["temp"]))
        return model

    @property
    def constraints(self) -> "Constraints | None":
        """The penalties and limits; None if there are none, which is faster."""
        names = [setting.name for setting in SETTINGS if setting.group == CONSTRAINTS]
        given = {name: self[name] for name in names if self[name]}
        if not given:
            return None
        from mink_local.llama.constraints import Constraints

        try:
            return Constraints(**{**given, "logit_bias": dict(self["logit_bias"])})
        except ValueError as error:
            raise click.UsageError(f"{error}.") from None

    def shown(self, setting: Setting) -> str:
        """Return a value as /set takes it, or in words what holds if it is not set."""
        from mink_local.samplers import MinK

        value = self[setting.name]
        if setting.name == "sampler":
            return str(self.sampler)
        if setting.name in MIN_K and isinstance(self.sampler, MinK):
            return f"{getattr(self.sampler, setting.name):g}"
        if value is None or value == ():
            return setting.unset
        if isinstance(value, FileText):
            return value.path
        if isinstance(value, bool):
            return "on" if value else "off"
        if setting.name == "rpc":
            return ",".join(value)
        if isinstance(value, tuple):
            return " ".join(f"{token}={bias:g}" for token, bias in value)
        return f"{value:g}" if isinstance(value, float) else str(value)
