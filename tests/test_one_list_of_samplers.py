"""What samplers' names mean, and that one added at run time, by a kernel and a dataclass alone, is listed."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from mink_local.bench.cli import cli as mink_bench
from mink_local.chat.cli import cli as mink_chat
from mink_local.chat.comparing import compared_with
from mink_local.chat.settings import Settings
from mink_local.evals.cli import cli as mink_eval
from mink_local.evals.figures import look
from mink_local.evals.settings import sweep
from mink_local.llm.plugin import PromptOptions
from mink_local.samplers import SAMPLERS, MinK, Order, Sampler, default_samplers, parse
from mink_local.serve.cli import cli as mink_serve
from mink_local.serve.endpoints.state import playground_page
from mink_local.serve.request.fields import sampler_fields
from mink_local.serve.request.presets import Preset
from tests.chat.conftest import context
from tests.serve.test_requests import accepted
from tests.support.methods import Near

NAME = "close"
COMMANDS = {
    "mink-chat": mink_chat,
    "mink-eval run": mink_eval.commands["run"],
    "mink-serve": mink_serve,
}


@pytest.fixture
def kind() -> Iterator[type[Sampler]]:
    """A sampler of one's own, registered for the test only; its default is not among the swept values."""

    @dataclass(frozen=True)
    class Close(Near):
        distance: float = 0.7

        name = NAME
        keeps = "logits within `distance` of the largest"
        sweep = ("distance", (0.1, 0.5, 1.0))
        request_fields: ClassVar = {"close_cutoff": "distance"}

    yield Close
    del SAMPLERS[NAME]


def test_it_is_parsed_compared_swept_and_coloured(kind: type[Sampler]) -> None:
    for text in ("close", "close:distance=0.11,order=temperature-last"):
        sampler = parse(text)
        assert isinstance(sampler, kind)
        assert parse(str(sampler)) == sampler
    for listed in (default_samplers(), compared_with(MinK())):
        orders = {sampler.order for sampler in listed if isinstance(sampler, kind)}
        assert orders == {"temperature-first", "temperature-last"}
    found = [one for one in sweep([1.0, 2.0]) if isinstance(one.sampler, kind)]
    assert [(one.curve, one.option, one.temperature) for one in found] == [
        (f"close (T {order})", f"distance={distance}", temperature)
        for temperature, orders in ((1.0, ["last"]), (2.0, ["first", "last"]))
        for order in orders
        for distance in (0.1, 0.5, 0.7, 1)
    ]
    assert look(NAME)["color"] not in [look(name)["color"] for name in SAMPLERS if name != NAME]


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_it_is_in_the_help_and_completed(command: click.Command) -> None:
    assert NAME in CliRunner().invoke(command, ["--help"], catch_exceptions=False).output
    completion = ShellComplete(command, {}, "program", "_COMPLETE")
    assert NAME in [item.value for item in completion.get_completions(["--sampler"], "cl")]


def test_it_is_in_the_playground_and_a_field_of_requests(kind: type[Sampler]) -> None:
    page, _ = playground_page(tuple(map(str, default_samplers())))
    assert str(kind()) in page
    assert "close_cutoff" in sampler_fields()


def option(command: click.Command, name: str) -> Sampler:
    """Return what a command takes `--sampler NAME` for."""
    [sampler] = [one for one in command.params if "--sampler" in one.opts]
    value = sampler.type_cast_value(click.Context(command), [name] if sampler.multiple else name)
    return value[0] if sampler.multiple else value  # type: ignore[no-any-return]


LLAMA_CPP: Order = "temperature-last"  # where people chat
PAPERS: Order = "temperature-first"
MEANINGS: dict[str, tuple[Callable[[str], object], Order]] = {
    "mink-chat": (lambda name: Settings(context("-s", name)).sampler, LLAMA_CPP),
    "mink-serve": (lambda name: option(mink_serve, name), LLAMA_CPP),
    "a preset": (lambda name: Preset.parse(f"{name}@1").sampler, LLAMA_CPP),
    "a request": (lambda name: accepted(sampler=name).sampler, LLAMA_CPP),
    "llm": (
        lambda name: PromptOptions.model_validate({"sampler": name}).parsed_sampler("sampler"),
        LLAMA_CPP,
    ),
    "mink-eval run": (lambda name: option(mink_eval.commands["run"], name), PAPERS),
    "mink-bench": (lambda name: option(mink_bench.commands["sampler"], name), PAPERS),
    "Python": (parse, PAPERS),
}


@pytest.mark.parametrize("where", MEANINGS)
@pytest.mark.parametrize("name", [name for name, kind in SAMPLERS.items() if kind.order is not None])
def test_a_name_without_an_order_has_that_of_its_place(where: str, name: str) -> None:
    meaning, order = MEANINGS[where]
    assert meaning(name) == SAMPLERS[name](order=order)  # type: ignore[call-arg]
    for given in (LLAMA_CPP, PAPERS):
        assert meaning(f"{name}:order={given}") == SAMPLERS[name](order=given)  # type: ignore[call-arg]
