"""Write docs/results.md from the measurements in docs/results, and the README's table of advice.

.venv/bin/python scripts/results.py [--from RUNS]

RUNS has a folder for each measurement, the --out of its command; what the page needs of it is copied.
"""

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from mink_local.chat.advice import ADVICE
from mink_local.evals.report.format import markdown_table
from mink_local.samplers import LlamaDefault, Sampler

README = Path(__file__).parents[1] / "README.md"
ADVICE_BLOCK = re.compile(r"(<!-- begin: advice -->\n).*?(<!-- end -->)", re.DOTALL)
DOCS = README.parent / "docs"
RESULTS = DOCS / "results"
PAGE = DOCS / "results.md"

KEPT = (".md", ".svg", ".csv", ".json")
NOT_KEPT = ("manifest.json", "seconds.json")  # of the files beside the document

_MODELS = "-m qwen2.5-coder-0.5b.gguf -r qwen2.5-coder-1.5b.gguf"


@dataclass(frozen=True)
class Measurement:
    """A measurement of the page.

    Attributes:
        name: The folder of its results.
        command: What was typed.
        document: The Markdown file that it wrote, in RUNS/NAME.
        sections: Beginnings of the titles of the sections that the page shows.
        limits: What it does not show.
        picture: A picture that stands before the sections.
    """

    name: str
    title: str
    command: str
    document: str
    sections: tuple[str, ...]
    limits: str
    picture: str = ""


_FRONTIER = ("What this shows", "The defaults at T = 5", "The most entropy for a wanted noise, at T = 5")

MEASUREMENTS = (
    Measurement(
        "frontier-open",
        "Noise against variety: open text",
        f"mink-eval frontier {_MODELS} --prompts alpaca_eval_instructions.jsonl --limit 70 --seed 12",
        "frontier.md",
        _FRONTIER,
        "It does not show how a text goes on after a noisy token, or whether a person minds it.",
        "frontier.svg",
    ),
    Measurement(
        "frontier-math",
        "Noise against variety: mathematics",
        f"mink-eval frontier {_MODELS} --task gsm8k --limit 70 --seed 12 -n 256",
        "frontier.md",
        _FRONTIER,
        "It does not show which answers are right: many ways of writing lead to one number.",
        "frontier.svg",
    ),
    Measurement(
        "frontier-code",
        "Noise against variety: code",
        f"mink-eval frontier {_MODELS} --prompts python_functions.jsonl --limit 70 --seed 12 -n 256",
        "frontier.md",
        _FRONTIER,
        "It does not show which functions work: none is run. The prompts ask for functions of Python's "
        "standard library by signature and docstring (`scripts/python_functions.py`), which both "
        "models have seen in training.",
        "frontier.svg",
    ),
)


HEAD = """\
# Results

What Min-k and other methods are worth for two small models, measured with `mink-eval`:
Qwen2.5-Coder-0.5B-Instruct and -1.5B-Instruct, both with weights of 4 to 6 bits, on a 2-core virtual machine
without a GPU. `scripts/results.py` writes this page from the files in [results](results), which the commands
below have written.
"""


def section(text: str, title: str) -> tuple[str, str]:
    """Return title and body of the section whose title begins so. Raises LookupError if there is none."""
    found = re.search(rf"^#+ ({re.escape(title)}[^\n]*)\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise LookupError(f"there is no section {title!r}")
    return found[1], found[2].strip()


def copy(measurement: Measurement, runs: Path) -> None:
    """Copy the files of a measurement, if it has been made."""
    document, target = runs / measurement.name / measurement.document, RESULTS / measurement.name
    if document.exists():
        target.mkdir(parents=True, exist_ok=True)
        for file in document.parent.iterdir():
            if file.suffix in KEPT and file.name not in NOT_KEPT:
                shutil.copyfile(file, target / file.name)


def written(measurement: Measurement) -> Iterator[str]:
    """Yield the parts of the page on a measurement."""
    folder = Path(RESULTS.name, measurement.name)
    document = folder / Path(measurement.document).name
    text = (DOCS / document).read_text(encoding="utf-8")
    yield f"## {measurement.title}"
    yield measurement.limits
    if measurement.picture:
        yield f"![{measurement.title}]({folder.as_posix()}/{measurement.picture})"
    for beginning in measurement.sections:
        title, body = section(text, beginning)
        yield f"### {title}"
        yield body.replace("](", f"]({folder.as_posix()}/")  # its pictures lie beside the document
    yield f"`{measurement.command}` ([all tables]({document.as_posix()}))"


def figures(folder: str, sampler: Sampler, temperature: float) -> dict[str, list[float]]:
    """Return what `mink-eval frontier` found for a setting: values with the ends of their intervals."""
    rows = json.loads((RESULTS / folder / "frontier.json").read_text(encoding="utf-8"))["rows"]
    return next(row for row in rows if (row["sampler"], row["temperature"]) == (str(sampler), temperature))


def advice_table() -> str:
    """Return the README's table of what `mink-chat` advises."""
    rows = []
    for one in ADVICE:
        temperature = one.temperature or 1.0  # greedy is measured once
        own = figures(one.results, one.sampler, temperature)
        usual = figures(one.results, LlamaDefault(), temperature)
        rows.append(
            [
                one.kind,
                f"`{one.settings('--')}`",
                _percents(own["noise_0.01"]),
                _percents(usual["noise_0.01"]),
                f"{own['entropy'][0]:.2f}",
            ]
        )
    heads = ("for", "options", "noise, %", "noise of llama.cpp's default cuts, %", "entropy, nats")
    return markdown_table(heads, rows)


def _percents(estimate: Sequence[float]) -> str:
    return "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * number for number in estimate))


@click.command(help=__doc__)
@click.option("--from", "runs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="RUNS")
def main(runs: Path | None) -> None:
    if runs:
        for measurement in MEASUREMENTS:
            copy(measurement, runs)
    made = [one for one in MEASUREMENTS if (RESULTS / one.name / Path(one.document).name).exists()]
    parts = [HEAD.strip(), *(part for one in made for part in written(one))]
    PAGE.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    readme = README.read_text(encoding="utf-8")
    README.write_text(ADVICE_BLOCK.sub(rf"\g<1>{advice_table()}\n\g<2>", readme), encoding="utf-8")


if __name__ == "__main__":
    main()
