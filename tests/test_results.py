"""docs/results.md and the README's tables are what `scripts/results.py` writes."""

from scripts import blocks, results


def test_the_page_is_what_the_script_writes() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page(), "type  python scripts/results.py"


def test_the_readme_has_its_tables() -> None:
    readme = blocks.README.read_text(encoding="utf-8")
    assert readme == results.with_tables(readme), "type  python scripts/results.py"
    assert {"advice", "accuracy gsm8k", "accuracy aqua", "noise", "coverage"} <= set(blocks.blocks(readme))
