"""The settings that are measured: every method with its parameter swept, at every temperature."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from mink_local.samplers import SAMPLERS, Sampler, parse

# Method, parameter, values from careful to loose. The method's default is added, where it belongs.
_SWEEPS: tuple[tuple[str, str, Sequence[float]], ...] = (
    ("greedy", "", ()),
    ("min-k", "floor", (0, 0.3, 0.7, 1, 1.4, 1.8, 2.3, 3, 4)),
    ("min-k", "alpha", (2, 1, 0.75, 0.5, 0.35, 0.25)),
    ("min-k", "tau", (3, 50, 75, 100, 150, 300, 600)),
    ("min-p", "p", (0.7, 0.5, 0.35, 0.25, 0.2, 0.15, 0.1, 0.07, 0.05, 0.03, 0.02, 0.01)),
    ("top-p", "p", (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)),
    ("top-n-sigma", "n", (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1, 1.2, 1.5, 2)),
    ("top-k", "k", (2, 3, 5, 10, 20, 40)),
    ("eta", "epsilon", (0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.02, 0.01, 0.003, 9e-4)),
    ("p-less", "", ()),
    ("llama-default", "", ()),
)


@dataclass(frozen=True)
class MeasuredSetting:
    """A sampler at a temperature above 0; infinity makes all candidates equally probable.

    Attributes:
        curve: The settings that differ in one parameter only have the same curve; its name.
        parameter: That parameter; empty for a method without one.
    """

    sampler: Sampler
    temperature: float
    curve: str
    parameter: str

    @property
    def is_default(self) -> bool:
        """True if every option but the order is at its default."""
        return all(
            f.name == "order" or getattr(self.sampler, f.name) == f.default
            for f in fields(self.sampler)  # type: ignore[arg-type]
        )

    @property
    def seen(self) -> float:
        """The temperature of the distribution that the method sees."""
        return self.sampler.seen(self.temperature)

    @property
    def value(self) -> str:
        """The parameter with its value, in short: "p=0.1"."""
        return f"{self.parameter}={getattr(self.sampler, self.parameter):g}" if self.parameter else ""


def default_settings(temperatures: Sequence[float]) -> list[MeasuredSetting]:
    """Return the sweep of every method at every temperature, a curve's settings from careful to loose.

    A method that sees the distribution after temperature has no setting at infinity, where it would see equal
    probabilities and keep every token, and none at 1, where it is the same as before temperature.
    """
    return [
        MeasuredSetting(sampler, temperature, curve, parameter)
        for temperature in temperatures
        for curve, parameter, samplers in _curves()
        for sampler in samplers
        if sampler.order != "temperature-first" or (temperature != 1 and math.isfinite(temperature))
    ]


def _curves() -> Iterator[tuple[str, str, list[Sampler]]]:
    for name, parameter, values in _SWEEPS:
        known = [f.name for f in fields(SAMPLERS[name])]  # type: ignore[arg-type]
        samplers = [parse(f"{name}:{parameter}={value:g}") for value in values] or [parse(name)]
        curve = f"{name} {parameter}" if name == "min-k" else name
        if "order" not in known:
            yield curve, parameter, samplers
            continue
        for order in ("last", "first"):
            ordered = [replace(sampler, order=f"temperature-{order}") for sampler in samplers]  # type: ignore
            yield f"{curve} (T {order})", parameter, ordered
