"""Write the tables of figures into README.md: runs the `mink-bench` command that each marker names.

.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [NAME…]
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

from mink_local.bench.batch import BatchSpeed
from mink_local.bench.decode import DecodeSpeed
from mink_local.bench.sampler import SamplerCost
from mink_local.bench.serve import ServerSpeed
from mink_local.bench.tables import Rows, batch_table, decode_table, sampler_table, serve_table

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- begin: (mink-bench (\w+)[^\n]*?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

TABLES: dict[str, tuple[Callable[..., Any], Callable[[Any], Rows]]] = {
    "sampler": (SamplerCost, sampler_table),
    "decode": (DecodeSpeed, decode_table),
    "batch": (BatchSpeed, batch_table),
    "serve": (ServerSpeed, serve_table),
}


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = ["| " + " | ".join(row) + " |" for row in [head, *body]]
    return "\n".join([lines[0], "|---|" + "--:|" * (len(head) - 1), *lines[1:], ""])


def measured(name: str, command: str) -> Rows:
    """Return the table of what a `mink-bench` command measures."""
    program = [sys.executable, "-m", "mink_local.bench.cli", *shlex.split(command)[1:], "--json"]
    printed = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
    result, table = TABLES[name]
    return table([result(**fields) for fields in json.loads(printed)])


@click.command(help=__doc__)
@click.option("--machine", required=True, metavar="TEXT", help="What the figures are measured on.")
@click.argument("names", nargs=-1, type=click.Choice(list(TABLES)))
def main(machine: str, names: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()

    def written(block: "re.Match[str]") -> str:
        begin, command, name, _, end = block.groups()
        if name not in (names or TABLES):
            return block[0]
        table = markdown(measured(name, command))
        return f"{begin}{table}\n`{command}`, {today}, {machine}.\n{end}"

    README.write_text(BLOCK.sub(written, README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
