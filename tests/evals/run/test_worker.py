"""The worker of an evaluation."""

from collections.abc import Callable
from pathlib import Path

from mink_local.evals.run.workers import Worker


def test_a_template_that_writes_the_date_gets_the_same_every_day(tiny: Callable[..., Path]) -> None:
    """A run that passes midnight goes on with the same prompts."""
    path = str(tiny(template="{{ strftime_now('%d %b %Y') }}"))
    worker = Worker(path, {}, seed=0, ctx=None, n_parallel=1, placement={"n_threads": 1})
    model = worker.load()
    assert model.apply_chat_template([{"role": "user", "content": "Hello"}]) == "26 Jul 2024"
