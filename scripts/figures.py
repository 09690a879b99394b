"""Write tables of figures: into README.md, by the `mink-bench` command that each marker names, or for a GPU.

\b
.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [NAME…]
.venv-cuda/bin/python scripts/figures.py --device cuda        writes docs/devices/cuda.md
"""

import datetime
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from mink_local.bench.batch import BatchSpeed
from mink_local.bench.decode import DecodeSpeed
from mink_local.bench.sampler import SamplerCost
from mink_local.bench.serve import ServerSpeed
from mink_local.bench.tables import Rows, batch_table, decode_table, sampler_table, serve_table
from mink_local.evals.report.format import markdown_table
from mink_local.llama.devices import gpu_missing, gpu_names
from scripts.blocks import README, with_blocks

DEVICES = README.parent / "docs" / "devices"

TABLES: dict[str, tuple[Callable[..., Any], Callable[[Any], Rows]]] = {
    "sampler": (SamplerCost, sampler_table),
    "decode": (DecodeSpeed, decode_table),
    "batch": (BatchSpeed, batch_table),
    "serve": (ServerSpeed, serve_table),
}


def measured(name: str, command: str) -> str:
    """Return what a `mink-bench` command measures, as Markdown."""
    program = [sys.executable, "-m", "mink_local.bench.cli", *shlex.split(command)[1:], "--json"]
    printed = subprocess.run(program, stdout=subprocess.PIPE, check=True).stdout
    result, table = TABLES[name]
    head, *rows = table([result(**fields) for fields in json.loads(printed)])
    return markdown_table(head, rows) + "\n"


def write_device(device: str, today: str) -> None:
    """Write the page of a GPU: generation with tokens sampled on the host and in the graph, and batches."""
    if missing := gpu_missing():
        raise click.ClickException(f"there is nothing to measure: {missing}")
    parts = [f"# Figures on {device}\n", f"{', '.join(gpu_names())}, {today}.\n"]
    for name in ("decode", "batch", "sampler"):
        parts += [f"`mink-bench {name}`\n", measured(name, f"mink-bench {name}")]
    DEVICES.mkdir(exist_ok=True)
    (DEVICES / f"{device}.md").write_text("\n".join(parts), encoding="utf-8")


@click.command(help=__doc__)
@click.option("--machine", metavar="TEXT", help="What the figures in README.md are measured on.")
@click.option("--device", metavar="NAME", help="Write the page of this machine's GPU instead.")
@click.argument("names", nargs=-1, type=click.Choice(list(TABLES)))
def main(machine: str | None, device: str | None, names: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()
    if device:
        write_device(device, today)
        return
    if not machine:
        raise click.UsageError("say with --machine what the figures are measured on")

    def written(command: str) -> str | None:
        program, _, rest = command.partition(" ")
        name = rest.partition(" ")[0]
        if program != "mink-bench" or name not in (names or TABLES):
            return None
        return f"{measured(name, command)}\n`{command}`, {today}, {machine}.\n"

    README.write_text(with_blocks(README.read_text(encoding="utf-8"), written), encoding="utf-8")


if __name__ == "__main__":
    main()
