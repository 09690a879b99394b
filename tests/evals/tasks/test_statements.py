"""Boxes, and LaTeX and Markdown as plain text."""

from mink_local.evals.tasks.statements import boxed, plain


def test_the_last_closed_box_counts() -> None:
    text = r"\boxed{1} \boxed{\frac{2}{3}} \boxed{\left\{4\right\}} \boxed{5"
    assert [content for _, content in boxed(text)] == ["1", r"\frac{2}{3}", r"\left\{4\right\}"]


def test_plain_text_keeps_what_has_a_meaning() -> None:
    assert plain(r"**\$1{,}200.50**") == "1,200.50"
    assert plain(r"$\sqrt{2} \times 3\,\text{cm}$") == r"\sqrt2 × 3 cm"
    assert plain("2 * 3 ** 4") == "2 * 3 ** 4"
