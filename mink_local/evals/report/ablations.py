"""Methods of a run that differ in an option: values of one option, and variants of a sampler's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mink_local.evals.report.stats import PairedTest, compare
from mink_local.evals.report.summary import CellResult, Method, Scoring, TaskResult
from mink_local.samplers import Sampler, parse

FEWEST = 3  # values of an option that are worth a picture


@dataclass(frozen=True)
class Sweep:
    """Methods that differ in the value of one numeric option, `methods`, by ascending value.

    `name` is the sampler's, and `fixed` has its other options if they are not the defaults.
    """

    name: str
    option: str
    fixed: str
    methods: Mapping[float, Method]


def sweeps(task: TaskResult) -> list[Sweep]:
    """Return the options that have `FEWEST` values or more among methods alike in all else, by name."""
    found: dict[tuple[str, str, str], dict[float, Method]] = {}
    for method, sampler in _samplers(task).items():
        for field in fields(sampler):  # type: ignore[arg-type]
            if type(field.default) in (int, float):
                fixed = _fixed(sampler, field.name)
                values = found.setdefault((sampler.name, field.name, fixed), {})
                values[getattr(sampler, field.name)] = method
    return [
        Sweep(*key, dict(sorted(found[key].items()))) for key in sorted(found) if len(found[key]) >= FEWEST
    ]


def variants(task: TaskResult) -> dict[Method, Method]:
    """Return the methods whose options are not the sampler's defaults, and the method with the defaults.

    Both have the same order of temperature and cutoff. Methods without such a counterpart are left out.
    """
    samplers = _samplers(task)
    methods = {sampler: method for method, sampler in samplers.items()}
    defaults = {s: type(s)(**({"order": s.order} if s.order else {})) for s in methods}
    return {m: methods[defaults[s]] for m, s in samplers.items() if s != defaults[s] in methods}


@dataclass(frozen=True)
class Ablation:
    """The paired difference between the accuracies of a cell and of its method's `default`."""

    cell: CellResult
    default: Method
    paired: PairedTest


def ablations(task: TaskResult, scoring: Scoring) -> list[Ablation]:
    """Return the comparison of every variant with its default at the same temperature, row by row."""
    found = []
    for method, default in variants(task).items():
        for cell in task.row(method):
            if other := task.cells.get((default.sampler, cell.temperature)):
                paired = compare(cell.outcomes(scoring), other.outcomes(scoring))
                found.append(Ablation(cell, default, paired))
    return found


def _samplers(task: TaskResult) -> dict[Method, Sampler]:
    """Return the sampler of every method; a method of another version may be none of this one."""
    found = {}
    for method in task.methods:
        try:
            found[method] = parse(method.sampler)
        except ValueError:
            continue
    return found


def _fixed(sampler: Sampler, option: str) -> str:
    """Return the options other than this one that are not the defaults, as text."""
    order = sampler.order and f"T {sampler.order.removeprefix('temperature-')}"
    values = {f.name: getattr(sampler, f.name) for f in fields(sampler) if f.name not in (option, "order")}  # type: ignore[arg-type]
    changed = {name: value for name, value in values.items() if value != getattr(type(sampler), name)}
    texts = (
        f"{name}={value:g}" if type(value) is float else f"{name}={value}" for name, value in changed.items()
    )
    return ", ".join(filter(None, (order, *texts)))
