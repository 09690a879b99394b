"""docs/results.md and the README's tables are what `scripts/results.py` writes."""

from scripts import results


def test_the_page_is_what_the_script_writes() -> None:
    assert results.PAGE.read_text(encoding="utf-8") == results.page(), "type  python scripts/results.py"


def test_the_readme_has_its_tables() -> None:
    readme = results.README.read_text(encoding="utf-8")
    assert readme == results.with_tables(readme), "type  python scripts/results.py"
    assert all(table in readme for table in (results.advice_table(), results.accuracy_table()))
