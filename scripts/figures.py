"""Remeasure the tables in docs/benchmarks.md: each marker names the command that prints the table.

\b
.venv/bin/python scripts/figures.py --machine "2-core Intel Xeon virtual machine" [PART…]

Only the tables whose commands have all PARTs are measured.
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
BLOCK = re.compile(r"(<!-- begin: ((?:mink-bench|scripts/)[^\n]*) -->\n).*?(?=<!-- end -->)", re.DOTALL)


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
@click.argument("parts", nargs=-1)
def main(machine: str, parts: Sequence[str]) -> None:
    today = datetime.date.today().isoformat()

    def replaced(match: re.Match[str]) -> str:
        head, command = match.groups()
        if not all(part in command for part in parts):
            return match[0]
        return f"{head}{measured(command)}\n`{command}`, {today}, {machine}.\n"

    PAGE.write_text(BLOCK.sub(replaced, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
