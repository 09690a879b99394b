"""Torture the programs: faults by the ten thousand, seeded and resumable, with a report at the end."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from scripts.faults.kinds import KINDS
from scripts.faults.torture import do, torture

out_option = click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), default="torture", show_default=True,
    metavar="DIR", help="Folder of what is done, of the findings' files and of the report torture.md.",
)  # fmt: skip


@click.group(help=__doc__)
def cli() -> None:
    pass


@cli.command()
@click.argument("kinds", nargs=-1, type=click.Choice(list(KINDS)))
@click.option(
    "--scale", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
    help="Part of the full numbers.",
)  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Other seeds are other cases.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Cases at once.")
@out_option
def run(kinds: Sequence[str], scale: float, seed: int, jobs: int, out: Path) -> None:
    """Do the cases of all KINDS, or of those named. A second call does what a killed one left."""
    out.mkdir(parents=True, exist_ok=True)
    findings = torture([KINDS[name] for name in kinds or KINDS], out, scale, seed, jobs)
    click.echo(f"{len(findings)} findings: {out / 'torture.md'}")
    sys.exit(1 if findings else 0)


@cli.command()
@click.argument("cases", nargs=-1, required=True, metavar="CASE…")
@out_option
def repeat(cases: Sequence[str], out: Path) -> None:
    """Do cases again, such as gguf-0-123, and say what came of each. Its folder stays if there is a fault."""
    for case in cases:
        kind = KINDS.get(case.partition("-")[0])
        if kind is None:
            raise click.UsageError(f"{case} is no case: name one as the report does, gguf-0-123.")
        for ended in do(kind, [case], out):
            click.echo(f"{ended.case}: {ended.outcome}, {ended.seconds:.1f} s\n{ended.text}".strip())


if __name__ == "__main__":
    cli(prog_name="scripts/torture")
