"""A sampler added at run time, by a kernel and a dataclass alone, appears wherever samplers are listed."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from numpy.typing import NDArray

from mink_local.bench.cli import cli as mink_bench
from mink_local.chat.cli import cli as mink_chat
from mink_local.evals.cli import cli as mink_eval
from mink_local.evals.figures import look
from mink_local.evals.settings import sweep
from mink_local.generation.sampling_step import compared_with
from mink_local.samplers import SAMPLERS, MinK, Order, Sampler, default_samplers, parse
from mink_local.samplers.compile import compiled
from mink_local.samplers.kernels import keep_from, survey
from mink_local.serve.cli import cli as mink_serve
from mink_local.serve.endpoints.information import playground_page
from mink_local.serve.protocol.fields import sampler_fields

NAME = "epsilon"


COMMANDS = {
    "mink-chat": mink_chat,
    "mink-eval run": mink_eval.commands["run"],
    "mink-serve": mink_serve,
}


@compiled
def probable(logits: Any, options: Any, work: Any, ids: Any) -> Any:
    """Keep the tokens with `p_i >= epsilon`. Options: epsilon, the temperature of the distribution."""
    temperature = options[1]
    n, _, largest = survey(logits, work)
    if n <= 0:
        return n
    total = 0.0
    for logit in logits:
        total += np.exp((logit - largest) / temperature)
    return keep_from(largest + temperature * np.log(options[0] * total), largest, logits, work, ids)


@pytest.fixture
def kind() -> Iterator[type[Sampler]]:
    """Epsilon sampling, registered for the test only."""

    @dataclass(frozen=True)
    class Epsilon(Sampler):
        epsilon: float = 0.05
        order: Order = "temperature-first"

        name = NAME
        keeps = "probabilities of at least epsilon"
        sweep = ("epsilon", (0.5, 0.2, 0.1, 0.05))
        request_fields: ClassVar = {"epsilon_cutoff": "epsilon"}
        kernel = staticmethod(probable)

    yield Epsilon
    del SAMPLERS[NAME]


@pytest.fixture
def row() -> NDArray[np.float32]:
    return np.log([0.5, 0.3, 0.1, 0.06, 0.04]).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "temperature", "k"),
    [
        ("epsilon", 1.0, 4),
        ("epsilon:epsilon=0.11", 1.0, 2),
        ("epsilon:epsilon=0.11,order=temperature-last", 9.0, 2),
    ],
)
def test_it_cuts_as_defined(
    kind: type[Sampler], row: NDArray[np.float32], text: str, temperature: float, k: int
) -> None:
    sampler = parse(text)
    assert isinstance(sampler, kind)
    assert parse(str(sampler)) == sampler
    assert sampler.candidates(row, temperature)[0].tolist() == list(range(k))


@pytest.mark.parametrize("listed", [default_samplers, lambda: compared_with(MinK())])
def test_it_is_listed_in_both_orders(kind: type[Sampler], listed: Callable[[], Iterable[Sampler]]) -> None:
    ours = [sampler for sampler in listed() if isinstance(sampler, kind)]
    assert {sampler.order for sampler in ours} == {"temperature-first", "temperature-last"}


@pytest.mark.usefixtures("kind")
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_it_is_in_the_help(command: click.Command) -> None:
    assert NAME in CliRunner().invoke(command, ["--help"], catch_exceptions=False).output


@pytest.mark.usefixtures("kind")
def test_it_is_completed() -> None:
    completion = ShellComplete(mink_chat, {}, "mink-chat", "_COMPLETE")
    assert NAME in [item.value for item in completion.get_completions(["--sampler"], "ep")]


@pytest.mark.usefixtures("kind")
def test_it_is_timed(tmp_path: Path, row: NDArray[np.float32]) -> None:
    np.savez(tmp_path / "rows.npz", logits=row[None])
    arguments = ["sampler", "--logits", str(tmp_path / "rows.npz"), "--rounds", "1", "--json"]
    printed = CliRunner().invoke(mink_bench, arguments, catch_exceptions=False).stdout
    assert str(parse(NAME)) in [cost["method"] for cost in json.loads(printed)]


def test_it_is_swept(kind: type[Sampler]) -> None:
    samplers = [setting.sampler for setting in sweep([5.0]) if isinstance(setting.sampler, kind)]
    assert [sampler.epsilon for sampler in samplers] == 2 * [0.5, 0.2, 0.1, 0.05]  # type: ignore[attr-defined]


def test_it_is_in_the_playground_and_a_field_of_requests(kind: type[Sampler]) -> None:
    page, _ = playground_page(tuple(map(str, default_samplers())))
    assert str(kind()) in page
    assert "epsilon_cutoff" in sampler_fields()


@pytest.mark.usefixtures("kind")
def test_it_has_a_colour_of_its_own() -> None:
    assert look(NAME)["color"] not in [look(name)["color"] for name in SAMPLERS if name != NAME]
