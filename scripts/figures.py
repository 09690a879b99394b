"""Remeasure the tables in docs/benchmarks.md: each marker names the command that prints the table.

\b
.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [NAME…]
"""

import datetime
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = ["sampler", "decode", "batch", "host", "options", "load"]
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


@click.command(help=__doc__)
@click.option("--machine", metavar="TEXT", required=True, help="Machine that the figures are measured on.")
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
def main(machine: str, names: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()

    def replaced(match: re.Match[str]) -> str:
        head, command, bench, load = match.groups()
        if names and (bench or load) not in names:
            return match[0]
        return f"{head}{measured(command)}\n`{command}`, {today}, {machine}.\n"

    PAGE.write_text(BLOCK.sub(replaced, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
