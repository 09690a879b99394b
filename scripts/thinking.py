"""How hot to reason: `python -m scripts.thinking MODEL` is `mink-eval run` with the arms of docs/thinking.md.

Further options are those of `mink-eval run`, such as `--dry-run`, `--limit` or `-o`, and may replace its own.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import product

from mink_local.evals.cli import cli
from mink_local.models.catalog import resolve
from mink_local.models.recommended import recommended_by

SAMPLERS = ("min-k", "top-k:k=20+top-p:p=0.95", "min-p:p=0.05")
REASONING = (0.3, 0.6, 1.0, 1.5)
ANSWER = ("{sampler}@{temperature}", "greedy@0")  # as hot as the reasoning, or cold


def arms(model: str) -> Iterator[str]:
    """Yield the arms: what the file recommends, if it does, then greedy, then as many for each sampler."""
    if recommended_by(resolve(model).path):
        yield "model"
    yield "greedy@0"
    for sampler, temperature, answer in product(SAMPLERS, REASONING, ANSWER):
        hot = f"{sampler}@{temperature}"
        yield f"{hot} / {answer.format(sampler=sampler, temperature=temperature)}"


def arguments(model: str, options: Sequence[str] = ()) -> list[str]:
    """Return the arguments of mink-eval."""
    own = ["--model", model, "--max-tokens", "16384", "--out", "thinking"]
    chosen = [argument for arm in arms(model) for argument in ("--arm", arm)]
    return ["run", "math500", *own, *chosen, *options]


if __name__ == "__main__":
    cli(arguments(sys.argv[1], sys.argv[2:]) if sys.argv[1:] else ["run", "--help"])
