"""Write docs/results.md from the measurements in docs/results, and the README's tables of them.

.venv/bin/python scripts/results.py [--from RUNS]

RUNS has a folder for each measurement, the --out of its command; what the page needs of it is copied.
"""

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from mink_local.bench.tables import decode_table
from mink_local.chat.advice import ADVICE
from mink_local.evals.report.format import markdown_table, percent, temperature_name
from mink_local.evals.report.stats import ALPHA, visible_difference
from mink_local.samplers import Greedy, LlamaDefault, MinK, MinP, TopP, label
from scripts.blocks import README, with_blocks
from scripts.claims import claims
from scripts.measured import RESULTS, frontier, most_covered, step_times

DOCS = README.parent / "docs"
PAGE = DOCS / "results.md"

KEPT = (".md", ".svg", ".csv", ".json")
NOT_KEPT = ("manifest.json", "seconds.json")  # of the files beside the document

# The methods of the README's tables of noise and coverage.
_SHOWN = (
    Greedy(),
    MinK(),
    MinK(floor=1.0),
    MinP(order="temperature-last"),
    LlamaDefault(),
    TopP(order="temperature-last"),
)

_MODELS = "-m qwen2.5-coder-0.5b.gguf -r qwen2.5-coder-1.5b.gguf"


@dataclass(frozen=True)
class Measurement:
    """A measurement of the page.

    Attributes:
        name: The folder of its results.
        command: What was typed.
        document: The Markdown file that it wrote, in RUNS/NAME, or decode.json.
        sections: Beginnings of the titles of the sections that the page shows.
        limits: What it does not show.
        picture: A picture that stands before the sections.
        questions: Number of questions whose answers are compared; 0 if there are none.
    """

    name: str
    title: str
    command: str
    document: str
    sections: tuple[str, ...]
    limits: str
    picture: str = ""
    questions: int = 0


_RUN = "-m qwen2.5-coder-1.5b.gguf --shots 4 --max-tokens 200"
_BASELINES = (
    "-s min-k -s greedy -s llama-default -s top-p:order=temperature-last -s top-p:order=temperature-first "
    "-s min-p:order=temperature-last -s min-p:order=temperature-first -s top-n-sigma -t 1 -t 2 -t 5 -t 10"
)
_LARGER = "qwen2.5-coder-1.5b"
_GSM8K = f"gsm8k · {_LARGER} ·"
_FRONTIER = ("What this shows", "The defaults at T = 5", "The most entropy for a wanted noise, at T = 5")


def accuracy(task: str, kind: str, limits: str) -> tuple[Measurement, Measurement]:
    """Return the measurement of all methods on a task, and its comparison of temperatures."""
    return (
        Measurement(
            f"accuracy-{task}",
            f"Accuracy: {kind}",
            f"mink-eval run {task} {_RUN} {_BASELINES} --limit 100 -o accuracy-{task}",
            "report/report.md",
            (f"{task} · {_LARGER} · flexible accuracy", f"{task} · {_LARGER} · steps with one candidate"),
            limits,
            questions=100,
        ),
        Measurement(
            f"temperatures-{task}",
            f"Accuracy at T = 2, 5 and 10 against T = 1: {kind}",
            f"mink-eval report accuracy-{task} --against temp=1",
            "report/report.md",
            (f"{task} · {_LARGER} · flexible, against",),
            "It does not show other answers than those of the run above: it is a second report of it.",
        ),
    )


MEASUREMENTS = (
    *accuracy(
        "gsm8k",
        "mathematics (GSM8K)",
        "It does not show variety, nor what a larger model or longer reasoning would do: the four examples "
        "make the answers short.",
    ),
    *accuracy(
        "aqua",
        "multiple choice (AQuA)",
        "It does not show reasoning alone: one of five options is right by chance. Nor does it show long "
        "answers: what is cut off at 200 tokens before it names an option counts as wrong. Most of "
        "the responses come from a llama.cpp that was changed to add values of attention in float32, where "
        "its own code for this processor adds in float16.",
    ),
    Measurement(
        "repeats",
        "Several answers to a question: pass@k, maj@k, diversity",
        f"mink-eval run gsm8k {_RUN} -s greedy -s min-k -s min-k:floor=1 "
        "-s min-p:p=0.1,order=temperature-last -s llama-default -s top-n-sigma -t 5 --repeats 8 --limit 30",
        "report/report.md",
        (f"{_GSM8K} flexible accuracy of k", f"{_GSM8K} EAD"),
        "It does not show the best setting of each method, which would have to be chosen on other questions.",
    ),
    Measurement(
        "heatmap",
        "Min-k's options: τ against temperature, and the ablations",
        f"mink-eval run gsm8k {_RUN} --limit 100 -o heatmap -s greedy "
        "-s min-k:tau=1 -s min-k -s min-k:tau=10 -s min-k:tau=30 -t 1 -t 5 -t 10, then the same with "
        "-s min-k -s min-k:tau=0 -s min-k:alpha=0 -s min-k:alpha=0.5 -s min-k:decay=log "
        "-s min-k:normalize=false -t 5",
        "report/report.md",
        (f"{_GSM8K} flexible accuracy", f"{_GSM8K} flexible accuracy minus"),
        "It does not show what the options do to open text, where fewer steps have one candidate. A cell "
        "that the first run of the page has too differs from it by up to one point, with the same seeds: "
        "answers are generated beside others, and llama.cpp's sums depend in their last bits on what is "
        "evaluated together.",
        "1-min-k-tau-flexible.svg",
        questions=100,
    ),
    *(
        Measurement(
            f"coverage-{size}",
            f"Validity and coverage: the {size.upper()}",
            f"mink-eval coverage -m qwen2.5-coder-{size}.gguf --rest 0.02",
            "coverage.md",
            ("Most coverage with a validity at most 1", "Most coverage with a validity at most 5"),
            "It does not show longer answers: the valid ones are a few words each.",
            "coverage.svg",
        )
        for size in ("0.5b", "1.5b")
    ),
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
    Measurement(
        "decode",
        "Time of a step",
        "mink-bench decode -m qwen2.5-coder-1.5b.gguf -n 32 --rounds 21 --json",
        "decode.json",
        (),
        "It does not show a GPU, where a step is shorter and a method's share of it larger.",
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
    if measurement.questions:
        yield power(measurement.questions)
    if measurement.picture:
        yield f"![{measurement.title}]({folder.as_posix()}/{measurement.picture})"
    if document.suffix == ".json":
        head, *rows = decode_table(step_times())
        yield markdown_table(head, rows)
    for beginning in measurement.sections:
        title, body = section(text, beginning)
        yield f"### {title}"
        yield body.replace("](", f"]({folder.as_posix()}/")  # its pictures lie beside the document
    yield f"`{measurement.command}` ([all tables]({document.as_posix()}))"


def power(n_questions: int) -> str:
    """Return what could be found with so many questions, as it was stated before the run."""
    differences = [
        f"{percent(visible_difference(n_questions, share * n_questions, ALPHA) or 1)} points if they "
        f"disagree on {share:.0%} of the questions"
        for share in (0.2, 0.4)
    ]
    return (
        f"Stated before the run: with {n_questions} questions, one comparison of two methods finds a "
        f"difference of {' and of '.join(differences)} (with a chance of 80%, at a level of 5%)."
    )


def accuracy_table(task: str) -> str:
    """Return the README's table of accuracies on a task."""
    text = (RESULTS / f"accuracy-{task}" / "report.md").read_text(encoding="utf-8")
    _, body = section(text, f"{task} · {_LARGER} · flexible accuracy")
    return body.partition("\n\n")[0]


def claims_table() -> str:
    """Return the paper's claims beside what was found."""
    rows = ([claim.paper, claim.found, claim.verdict] for claim in claims())
    table = markdown_table(("the paper's claim", "what was found here", "so the claim"), rows)
    return table.replace("--:", "---")  # no column of numbers


def noise_table() -> str:
    """Return the README's table of noise and variety at T = 5."""
    rows = []
    for sampler in (*_SHOWN, TopP()):
        found = frontier("frontier-open", sampler, 5.0)
        rows.append(
            [
                label(str(sampler)),
                _percents(found["noise_0.01"]),
                f"{found['entropy'][0]:.2f}",
                percent(found["k_is_1"][0]),
            ]
        )
    return markdown_table(("at T = 5", "noise, %", "entropy, nats", "steps with one candidate, %"), rows)


def coverage_table() -> str:
    """Return the README's table of validity and coverage."""
    best = ((label(str(sampler)), most_covered("coverage-1.5b", sampler)) for sampler in _SHOWN)
    rows = [
        [name, temperature_name(point.temperature), _percents(point.valid), _percents(point.covered)]
        for name, point in best
    ]
    return markdown_table(("method", "T", "validity, %", "coverage, %"), rows)


def advice_table() -> str:
    """Return the README's table of what `mink-chat` advises."""
    rows = []
    for one in ADVICE:
        temperature = one.temperature or 1.0  # greedy is measured once
        own = frontier(one.results, one.sampler, temperature)
        usual = frontier(one.results, LlamaDefault(), temperature)
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


def page() -> str:
    """Return the page."""
    made = [one for one in MEASUREMENTS if (RESULTS / one.name / Path(one.document).name).exists()]
    parts = [HEAD.strip(), claims_table(), *(part for one in made for part in written(one))]
    return "\n\n".join(parts) + "\n"


def with_tables(readme: str) -> str:
    """Return the text of README.md with its tables of results."""
    tables: dict[str, Callable[[], str]] = {
        "advice": advice_table,
        "accuracy gsm8k": partial(accuracy_table, "gsm8k"),
        "accuracy aqua": partial(accuracy_table, "aqua"),
        "noise": noise_table,
        "coverage": coverage_table,
    }
    return with_blocks(readme, lambda name: f"{tables[name]()}\n" if name in tables else None)


@click.command(help=__doc__)
@click.option("--from", "runs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="RUNS")
def main(runs: Path | None) -> None:
    if runs:
        for measurement in MEASUREMENTS:
            copy(measurement, runs)
    PAGE.write_text(page(), encoding="utf-8")
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
