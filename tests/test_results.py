"""docs/results.md and README.md have the numbers of docs/results, which come from the reports of runs.

Numbers with a decimal point or a % sign must be in the tables named in <!-- from: NAME … --> at the end of a
paragraph, or of a table's row, whose second cell is checked; in docs no number with a decimal point may be
without.
"""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mink_local.evals.stats import Interval
from mink_local.evals.tables import ENDS
from scripts import results
from scripts.lab import rivals_tables
from tests.support.made_run import write_run
from tests.support.mink_eval import read_responses

ROOT = Path(__file__).parents[1]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FROM = re.compile(r"\s*<!-- from: (.+) -->(?: \|)?$")
NUMBER = re.compile(r"(?<![\w.=,])[-−+]?\d[\d,]*(?:\.\d+(?![\w.])|(?=%))")
KNOWN = re.compile(r"(?<![\w.=,])[-−+]?\d[\d,]*(?:\.\d+)?")
TABLE = """\
<!-- begin: hens -->
| method | T = 1 | difference |
| --- | --: | --: |
| min-k:tau=3 | 33.0 (24.6–42.7) | −3.0 (−9.8 to +4.0) |
<!-- end -->
"""


@pytest.fixture
def hens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of results with one table."""
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    (tmp_path / "hens.md").write_text("".join(TABLE.splitlines(keepends=True)[1:-1]), "utf-8")


def complaints(text: str, every: bool = True) -> Iterator[str]:
    """Yield what is wrong with a page; `every` number with a decimal point needs a table."""
    if results.with_tables(text) != text:
        yield "a table differs from docs/results"
    for paragraph in re.split(r"\n\s*\n|\n(?=[-|#] ?)", FENCED.sub("", results.BLOCK.sub("", text))):
        source = FROM.search(paragraph)
        said = re.sub(r"`[^`]*`|\]\([^)]*\)", "", FROM.sub("", paragraph))
        numbers = NUMBER.findall(said.split(" | ")[1] if said.startswith("| ") else said)
        if source:
            known = [number for name in source[1].split() for number in KNOWN.findall(results.read(name))]
            missing = [number for number in numbers if not any(is_same(number, one) for one in known)]
            yield from (f"{number} is not in {source[1]}" for number in missing)
        elif every:
            yield from (f"{number} has no <!-- from: … -->" for number in numbers if "." in number)


def is_same(number: str, known: str) -> bool:
    """Return whether a number is another one rounded; one written without a sign may have any."""
    wanted, value = (float(text.replace("−", "-").replace(",", "")) for text in (number, known))
    if number[0] not in "+−-":
        wanted, value = abs(wanted), abs(value)
    return round(value, len(number.partition(".")[2])) == wanted


@pytest.mark.parametrize("page", results.PAGES, ids=lambda path: path.stem)
def test_the_pages_are_true(page: Path) -> None:
    assert list(complaints(page.read_text("utf-8"), every=page.stem != "README")) == []


@pytest.mark.usefixtures("hens")
@pytest.mark.parametrize(
    "text",
    [
        TABLE,
        "Right: 33.0%, or 33%; 3.0 points less, −3.0, at p=0.95 and T = 1. <!-- from: hens -->",
        "| 77.4% | 33.0 [24.6, 42.7] | holds <!-- from: hens --> |",
        "The 1.5B, 1% and `0.95`: see [page](page-1.5.md).",
    ],
)
def test_a_page_with_the_right_numbers_is_true(text: str) -> None:
    assert list(complaints(text)) == []


@pytest.mark.usefixtures("hens")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (TABLE.replace("33.0", "33.1"), "a table differs"),
        ("Right: 33.1%. <!-- from: hens -->", "33.1 is not in hens"),
        ("Right:\n34%. <!-- from: hens -->", "34 is not in hens"),
        ("It gains +3.0 points. <!-- from: hens -->", "+3.0 is not in hens"),
        ("| 33.0 | 9.9 | holds <!-- from: hens --> |", "9.9 is not in hens"),
        ("It gains 3.0 points.", "3.0 has no"),
    ],
)
def test_a_wrong_number_or_option_is_found(text: str, complaint: str) -> None:
    (found,) = complaints(text)
    assert complaint in found


@pytest.mark.usefixtures("hens", "own_files")
def test_tables_and_figures_are_remade_from_runs(tmp_path: Path) -> None:
    """With the numbers of the records; what is missing is named."""
    top_p = "top-p:p=0.9,order=temperature-last"
    run = write_run(
        tmp_path / "runs" / "accuracy-gsm8k",
        ("qwen2.5-coder-1.5b",),
        ("gsm8k",),
        ("min-k:tau=3", top_p),
        (1.0, 5.0),
        repeats=1,
    )
    missing = list(results.remake(tmp_path / "runs"))
    assert any(one.startswith("coverage-1.5b-1 ") for one in missing)
    assert not any(one.startswith("accuracy-gsm8k ") for one in missing)
    assert b"<svg" in (tmp_path / "accuracy-gsm8k.svg").read_bytes()
    with (tmp_path / "accuracy-gsm8k.csv").open(encoding="utf-8") as lines:
        rows = {(row["sampler"], row["temperature"]): row for row in csv.DictReader(lines)}
    table = (tmp_path / "accuracy-gsm8k.md").read_text("utf-8")
    for sampler in ("min-k:tau=3", top_p):
        right = [
            one.flexible is not None and one.flexible.correct
            for one in read_responses(run)
            if (one.sampler, one.temperature) == (sampler, 5)
        ]
        row = rows[sampler, "5.0"]
        assert float(row["accuracy"]) == pytest.approx(sum(right) / len(right))
        assert float(row["accuracy_low"]) < float(row["accuracy"]) < float(row["accuracy_high"])
        assert int(row["questions"]) == len(right)
        assert f"{100 * float(row['accuracy']):.1f}" in table


@pytest.mark.parametrize("table", ["rivals-prose", "rivals-math", "rivals-ideas"])
def test_tables_of_rivals_follow_from_their_rows(table: str) -> None:
    is_ideas = table == "rivals-ideas"
    found = rivals_tables.of_prompts() if is_ideas else rivals_tables.of_texts(table.removeprefix("rivals-"))
    n = 30 if is_ideas else 8
    with (ROOT / "docs" / "results" / f"{table}.csv").open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert [row["method"] for row in rows] != []
    for row in rows:
        values = found[row["method"]]
        gain = values - found["min-k, floor"]
        for name, one in (
            ("coverage_at_equal_validity" if is_ideas else "most_entropy", values),
            ("minus_min_k_floor", gain),
        ):
            for end, number in zip(ENDS, Interval.of(one[0], one[1:], n), strict=True):
                assert float(row[f"{name}{end}"]) == pytest.approx(number, abs=1e-6)


def test_every_file_of_the_results_is_shown() -> None:
    pages = "".join(
        (ROOT / page).read_text("utf-8") for page in ("README.md", "docs/results.md", "docs/quantizations.md")
    )
    named = set(re.findall(r"results/([^)\s]+\.(?:svg|md|csv|jsonl))", pages))
    sources = re.findall(r"<!-- (?:begin|from): (.+) -->", pages)
    tables = {f"{name}.{end}" for line in sources for name in line.split() for end in ("csv", "md")}
    named |= {f"{name.removesuffix('.md')}.csv" for name in named}
    assert {path.name for path in (ROOT / "docs" / "results").iterdir()} <= named | tables
