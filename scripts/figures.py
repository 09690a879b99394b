"""Remeasure the tables in docs/benchmarks.md: each marker names the command that prints the table.

\b
.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [NAME…]
.venv-cuda/bin/python scripts/figures.py --device cuda        writes docs/devices/cuda.md
"""

import datetime
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mink_local.llama.devices import gpu_missing, gpus

ROOT = Path(__file__).parents[1]
PAGE, DEVICES = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "devices"
BLOCK = re.compile(
    r"(<!-- begin: ((?:mink-bench|scripts/bench\.py) (\w+)[^\n]*|scripts/(load)\.py[^\n]*) -->\n)"
    r".*?(?=<!-- end -->)",
    re.DOTALL,
)


def measured(command: str) -> str:
    """Return the Markdown printed by mink-bench or a script."""
    program, *arguments = shlex.split(command)
    start = ["-m", "mink_local.bench.cli"] if program == "mink-bench" else [program]
    if program != "scripts/load.py":  # which prints nothing else
        arguments.append("--markdown")
    done = subprocess.run(
        [sys.executable, *start, *arguments], stdout=subprocess.PIPE, check=True, cwd=ROOT, text=True
    )
    return done.stdout.strip() + "\n"


def write_device(device: str, today: str) -> None:
    """Write a GPU's page: generation, batches and single steps."""
    if missing := gpu_missing():
        raise click.ClickException(f"nothing to measure: {missing}")
    parts = [f"# {device}\n", f"{', '.join(gpu.name for gpu in gpus())}, {today}.\n"]
    for command in ("scripts/bench.py decode", "scripts/bench.py batch", "mink-bench sampler"):
        parts += [f"`{command}`\n", measured(command)]
    DEVICES.mkdir(exist_ok=True)
    (DEVICES / f"{device}.md").write_text("\n".join(parts), encoding="utf-8")


@click.command(help=__doc__)
@click.option("--machine", metavar="TEXT", help="Machine that the figures are measured on.")
@click.option("--device", metavar="NAME", help="Write a page for this machine's GPU instead.")
@click.argument("names", nargs=-1, type=click.Choice(["sampler", "decode", "batch", "load"]))
def main(machine: str | None, device: str | None, names: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()
    if device:
        write_device(device, today)
        return
    if not machine:
        raise click.UsageError("give the machine that the figures are measured on with --machine")

    def replaced(match: re.Match[str]) -> str:
        head, command, bench, load = match.groups()
        if names and (bench or load) not in names:
            return match[0]
        return f"{head}{measured(command)}\n`{command}`, {today}, {machine}.\n"

    PAGE.write_text(BLOCK.sub(replaced, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
