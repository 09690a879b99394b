"""Write the tables of figures into README.md: runs the `mink-bench` command that each marker names.

.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [sampler] [decode] [batch]
"""

import datetime
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from mink_local.samplers import label

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- begin: (mink-bench (\w+)[^\n]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

Rows = list[dict[str, Any]]


def number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def sampler_table(costs: Rows) -> list[list[str]]:
    head = ["method", "cut, µs", "× np.max", "step, µs", "llama.cpp's own, µs", "processor, µs"]
    floor = costs[0]["select"]
    rows = [
        [
            label(cost["method"]),
            number(cost["select"]),
            number(cost["select"] / floor),
            number(cost["step"]),
            number(cost["llama_cpp"]),
            number(cost["processor"]),
        ]
        for cost in costs
    ]
    return [head, *rows]


def decode_table(speeds: Rows) -> list[list[str]]:
    head = ["method", "sampled by", "tokens/s", "sampling, µs", "slowdown against greedy", "95% interval"]
    rows = [
        [
            label(speed["method"]),
            speed["form"],
            number(speed["tokens_per_second"]),
            number(speed["sampling_us"]),
            f"{speed['slowdown']:+.1f}%",
            f"{speed['slowdown_low']:+.1f}% to {speed['slowdown_high']:+.1f}%",
        ]
        for speed in speeds
    ]
    return [head, *rows]


def batch_table(speeds: Rows) -> list[list[str]]:
    head = ["answers at a time", "tokens/s", "bare llama_decode", "share of it", "× one at a time"]
    rows = [
        [
            str(speed["n_parallel"]),
            number(speed["tokens_per_second"]),
            number(speed["bare_tokens_per_second"]),
            f"{100 * speed['share']:.1f}%",
            number(speed["gain"], 2),
        ]
        for speed in speeds
    ]
    return [head, *rows]


TABLES: dict[str, Callable[[Rows], list[list[str]]]] = {
    "sampler": sampler_table,
    "decode": decode_table,
    "batch": batch_table,
}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in [head, *body]]
    return "\n".join([lines[0], "|---|" + "--:|" * (len(head) - 1), *lines[1:], ""])


def measured(command: str) -> Rows:
    """Run a `mink-bench` command; return what it prints as JSON."""
    arguments = [*shlex.split(command)[1:], "--json"]
    program = [sys.executable, "-m", "mink_local.bench.cli", *arguments]
    rows: Rows = json.loads(subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout)
    return rows


@click.command(help=__doc__)
@click.option("--machine", required=True, metavar="TEXT", help="What the figures are measured on.")
@click.argument("names", nargs=-1, type=click.Choice(list(TABLES)))
def main(machine: str, names: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()

    def written(block: "re.Match[str]") -> str:
        begin, command, name, _, end = block.groups()
        if name not in (names or TABLES):
            return block[0]
        table = markdown(TABLES[name](measured(command)))
        return f"{begin}{table}\n`{command}`, {today}, {machine}.\n{end}"

    README.write_text(BLOCK.sub(written, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
