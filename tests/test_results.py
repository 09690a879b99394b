"""docs/results.md and README.md have the numbers of docs/results."""

import re
import shutil
from pathlib import Path

import pytest

from tests.support.python import run_python

ROOT = Path(__file__).parents[1]


def check(root: Path) -> str:
    """Run `scripts/results.py --check` in a copy of the repository; return its complaints."""
    return run_python(root / "scripts" / "results.py", "--check").stderr


def test_the_pages_have_the_numbers_of_the_tables() -> None:
    assert check(ROOT) == ""


@pytest.mark.parametrize(
    ("page", "number", "wrong", "found"),
    [
        ("README.md", "9.5", "19.5", "README.md"),
        ("docs/results.md", "33.0 (24.6–42.7)", "133.0 (24.6–42.7)", "results.md"),
        ("docs/results.md", "−29.0 points", "−29.3 points", "−29.3"),  # in a verdict
    ],
)
def test_another_number_is_found(page: str, number: str, wrong: str, found: str, tmp_path: Path) -> None:
    for folder in ("docs", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    path = tmp_path / page
    path.write_text(path.read_text("utf-8").replace(number, wrong, 1), "utf-8")
    assert found in check(tmp_path)


def test_every_file_of_the_results_is_shown() -> None:
    pages = "".join((ROOT / page).read_text("utf-8") for page in ("README.md", "docs/results.md"))
    named = set(re.findall(r"results/([^)\s]+\.svg)", pages))
    blocks = {f"{name.replace(' ', '-')}.csv" for name in re.findall(r"<!-- begin: (.+) -->", pages)}
    sources = {f"{name}.csv" for line in re.findall(r"<!-- from: (.+) -->", pages) for name in line.split()}
    assert {path.name for path in (ROOT / "docs" / "results").iterdir()} <= named | blocks | sources
