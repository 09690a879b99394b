"""Numbers, lists and Markdown as a report writes them."""

import pytest

from mink_local.evals.report.format import count, escape_markdown, listed, p_value, percent, points


def test_numbers() -> None:
    assert (percent(0.41), percent(1), percent(0.0004)) == ("41.0", "100.0", "0.0")
    assert (points(0.05), points(-0.5), points(0)) == ("+5.0", "−50.0", "+0.0")
    assert (p_value(0.0312), p_value(0.001), p_value(0.00002)) == ("0.031", "0.001", "2e-05")


def test_sentences() -> None:
    assert (count(1, "question"), count(1319, "question")) == ("1 question", "1,319 questions")
    assert [listed(items) for items in ("1", "12", "125")] == ["1", "1 and 2", "1, 2 and 5"]


@pytest.mark.parametrize(
    ("text", "shown"), [("a|b_c<i>*x*\n`y`[z]", "a\\|b\\_c\\<i\\>\\*x\\* \\`y\\`\\[z\\]"), ("a\\", "a\\\\")]
)
def test_markdown_shows_what_was_written(text: str, shown: str) -> None:
    assert escape_markdown(text) == shown
