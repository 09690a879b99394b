"""The pages have the numbers of docs/results, whose files come from runs and are all alike.

Numbers with a decimal point or a % sign must be in the tables named in <!-- from: NAME … --> at the end of a
paragraph, or of a table's row, whose second cell is checked; in docs no number with a decimal point may be
without.
"""

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
import pytest

from mink_local.evals.frontier.measure import Frontier
from mink_local.evals.measurement import carry_out
from mink_local.evals.quants.measure import Quants
from mink_local.evals.tables import Cell, Table
from mink_local.models.catalog import resolve
from mink_local.samplers import MinK
from scripts import results
from scripts.lab import recompute
from scripts.lab.coverage.measure import Walks
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
def hens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of hens."""
    row = ["min-k:tau=3", Cell("33.0", "24.6–42.7"), Cell("−3.0", "−9.8 to +4.0")]
    frame = pd.DataFrame([row], columns=["method", "T = 1", "difference"])
    monkeypatch.setitem(results.TABLES, "hens", lambda: Table("", frame))


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


@pytest.mark.parametrize("path", sorted(results.RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_the_data_are_all_alike(path: Path) -> None:
    """Plain names, numbers without marks or signs of percent, and ends around what they are the ends of."""
    found = pd.read_csv(path)
    assert [name for name in found if not re.fullmatch(r"[a-z][a-z0-9_]*", name)] == []
    if "temperature" in found:
        assert pd.api.types.is_numeric_dtype(found["temperature"])
    for name in found:
        low, high = (f"{name}{end}" for end in ("_low", "_high"))
        assert (low in found) == (high in found)
        if low in found:
            ordered = found.dropna(subset=low)
            assert (ordered[low] <= ordered[name]).all()
            assert (ordered[name] <= ordered[high]).all()
    for name in {"accuracy", "valid", "coverage", "tail_mass", "truncated", "no_answer"} & set(found):
        assert found[name].between(0, 1).all()


def test_tables_follow_from_what_was_counted() -> None:
    """And those of the rivals from their rows, computed with NumPy and SciPy alone."""
    tables = dict(recompute.recomputed())
    assert {"full-gsm8k", "full-gsm8k-comparisons", "rivals-prose", "rivals-math", "rivals-ideas"} <= set(
        tables
    )
    for name, numbers in tables.items():
        assert numbers, name
        shown, right = zip(*numbers, strict=True)
        assert shown == pytest.approx(right, abs=recompute.LEAST), name
    assert "mink_local" not in Path(recompute.__file__).read_text("utf-8")


@pytest.mark.usefixtures("own_files")
def test_tables_of_several_models_and_tasks_are_recomputed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each family is corrected by itself; what has several responses to a question follows from no counts."""
    monkeypatch.setattr(recompute, "RESULTS", results.RESULTS)
    made: dict[str, Any] = {"samplers": ("min-k:tau=3", "top-k:k=20", "greedy"), "temperatures": (1.0, 5.0)}
    write_run(folder / "runs" / "full-gsm8k", ("a", "b"), ("gsm8k", "aqua"), repeats=1, **made)
    write_run(folder / "runs" / "math500", ("a",), ("gsm8k",), repeats=2, **made)
    write_run(folder / "runs" / "few-shot-gsm8k", ("a",), ("gsm8k",), ("min-k:tau=3",), (1.0,), repeats=1)
    list(results.remake(folder / "runs"))
    assert not (results.RESULTS / "few-shot-gsm8k-comparisons.csv").exists()
    tables = dict(islice(recompute.recomputed(), 4))
    assert set(tables) == {"few-shot-gsm8k", "full-gsm8k", "full-gsm8k-comparisons", "math500"}
    for numbers in tables.values():
        shown, right = zip(*numbers, strict=True)
        assert shown == pytest.approx(right, abs=recompute.LEAST)
    assert len(tables["math500"]) == 3  # greedy's


@pytest.mark.parametrize("name", results.FIGURES)
def test_figures_are_drawn_from_the_data(name: str) -> None:
    kept = (results.RESULTS / f"{name}.svg").read_bytes()
    if f"Matplotlib v{matplotlib.__version__}".encode() not in kept:
        pytest.skip("drawn by another Matplotlib")
    assert results.drawn(name) == kept


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results."""
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    results.RESULTS.mkdir()
    return tmp_path


@pytest.mark.usefixtures("own_files")
def test_accuracies_are_remade_from_runs(folder: Path) -> None:
    """With the numbers of the records, and a row for each of them; what is missing is named."""
    top_p = "top-p:p=0.9,order=temperature-last"
    run = write_run(
        folder / "runs" / "accuracy-gsm8k",
        ("qwen2.5-coder-1.5b",),
        ("gsm8k",),
        ("min-k:tau=3", top_p),
        (1.0, 5.0),
        repeats=1,
    )
    missing = list(results.remake(folder / "runs"))
    assert any(one.startswith("coverage-1.5b ") for one in missing)
    assert not any(one.startswith("accuracy-gsm8k ") for one in missing)
    assert b"<svg" in results.drawn("accuracy-gsm8k")
    table, cells, rows = (
        results.read("accuracy-gsm8k"),
        *map(results.frame, ("accuracy-gsm8k", "accuracy-gsm8k-rows")),
    )
    for sampler in ("min-k:tau=3", top_p):
        right = [
            one.flexible is not None and one.flexible.correct
            for one in read_responses(run)
            if (one.sampler, one.temperature) == (sampler, 5)
        ]
        (cell,) = cells.query("sampler == @sampler and temperature == 5").itertuples()
        assert cell.accuracy == pytest.approx(sum(right) / len(right))
        assert cell.accuracy_low < cell.accuracy < cell.accuracy_high
        assert cell.questions == len(right)
        assert rows.query("sampler == @sampler and temperature == 5")["correct"].tolist() == right
        assert f"{100 * cell.accuracy:.1f}" in table
    assert set(results.frame("accuracy-gsm8k-comparisons")["kind"]) == {"sampler", "temperature"}


def test_other_measurements_are_remade_from_runs(folder: Path, tiny_path: Path) -> None:
    """With a row per text, prompt and chunk, whose means are the tables' numbers."""
    text, coins = folder / "text.txt", folder / "coins.jsonl"
    text.write_text("A river that is long.\n\nName a city.\n\nOne and two.\n" * 9)
    coins.write_text('{"id": "coin", "prompt": "Name a side of a coin.", "answers": ["heads", "tails"]}\n')
    model, placement = str(tiny_path), dict[str, Any](n_threads=1)
    kv_types = ("f16", "q8_0")
    for name, measurement in (
        ("frontier", Frontier(model, model, None, text, 8, (), [5.0], **placement)),
        ("coverage", Walks(model, samplers=[MinK()], temperatures=[1.0], prompts=coins, **placement)),
        ("quants", Quants(resolve(model), [], text, 16, 16, kv_types=kv_types, **placement)),
    ):
        carry_out(measurement, folder / name, quiet=True)
    frontier, coverage, quants = (
        results.data_of(folder / name) for name in ("frontier", "coverage", "quants")
    )
    assert set(frontier) == {"", "-at-tail-mass", "-rows"}
    sums = frontier["-rows"].groupby("sampler")[["positions", "sum_entropy"]].sum()
    for one in frontier[""].itertuples():
        n, entropy = sums.loc[one.sampler]
        assert one.entropy == pytest.approx(entropy / n)
    assert coverage[""]["coverage"].tolist() == pytest.approx(coverage["-rows"]["coverage"].tolist())
    means = quants["-rows"].groupby("file")["kld"].mean()
    assert quants[""].set_index("file")["kld_mean"].to_dict() == pytest.approx(means.to_dict())


def test_every_file_of_the_results_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = "".join(path.read_text("utf-8") for path in results.PAGES)
    used: set[str] = set()

    def frame(name: str) -> pd.DataFrame:
        used.add(f"{name}.csv")
        return pd.read_csv(results.RESULTS / f"{name}.csv")

    monkeypatch.setattr(results, "frame", frame)
    for name in re.findall(r"<!-- begin: (.+) -->", pages):
        results.read(name)
    for name in results.FIGURES:
        results.drawn(name)
    used |= set(re.findall(r"results/([^)\s]+\.(?:svg|csv|jsonl))", pages))
    assert {path.name for path in results.RESULTS.iterdir()} == used
    said = {name for line in re.findall(r"<!-- (?:begin|from): (.+) -->", pages) for name in line.split()}
    assert said == set(results.TABLES)
