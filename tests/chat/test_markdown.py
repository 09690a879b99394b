"""Markdown while it is generated: whatever the pieces, the same screen, and nothing is printed twice."""

import io
import re

import pyte
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from mink_local.chat.markdown import MarkdownWriter

TEXT = """# A heading with `code`

Here is **bold text**, *italic*, 2*3*4 = 24, 2**3 = 8, snake_case_name, `**kwargs`. 这是**重点**内容。

- one item that is so long that it has to be wrapped onto the next line of a narrow terminal
  - nested *item*
* 😀 star
10. ten

> a quote that goes on until it has to be wrapped at the edge

```python
def f(x, **kwargs):
    '''doc'''

\treturn x * 2  # a comment that is so long that the line has to be broken
```
---
| a | b |
| - | :-: | and more
| Name | **Price** | A [link](https://example.org/a) | Right |
|:-----|-----------|:-------------------------------:|------:|
| 日本語 | `1 \\| 2` | that is explained in so many words that they need two rows | 1 |
| x | | short | 20 | too many
| 3

| not a table |
See [the manual](https://example.org/manual), [1], [x](y z) and [https://a.org](https://a.org).
Unclosed **bold, ~~gone~~
\\*escaped\\* *x
"""


def rendered(text: str, pieces: list[str] | None = None, width: int = 60) -> tuple[pyte.Screen, str]:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system="standard", legacy_windows=False
    )
    markdown = MarkdownWriter(console)
    for piece in pieces or [text]:
        markdown.feed(piece)
    markdown.end()
    screen = pyte.Screen(width, 200)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    return screen, out.getvalue()


def lines(screen: pyte.Screen) -> list[str]:
    return "\n".join(line.rstrip() for line in screen.display).rstrip().split("\n")


def test_what_it_looks_like() -> None:
    assert lines(rendered(TEXT)[0]) == [
        "A heading with code",
        "",
        "Here is bold text, italic, 2*3*4 = 24, 2**3 = 8,",
        "snake_case_name, **kwargs. 这是重点内容。",
        "",
        "• one item that is so long that it has to be wrapped onto",
        "  the next line of a narrow terminal",
        "  • nested item",
        "• 😀 star",
        "10. ten",
        "",
        "│ a quote that goes on until it has to be wrapped at the",
        "│ edge",
        "",
        "```python",
        "def f(x, **kwargs):",
        "    '''doc'''",
        "",
        "    return x * 2  # a comment that is so long that the line",
        "has to be broken",
        "```",
        "─" * 40,
        "| a | b |",
        "| - | :-: | and more",
        "Name   │ Price  │           A link           │         Right",
        "       │        │  (https://example.org/a)   │",
        "───────┼────────┼────────────────────────────┼──────────────",
        "日本語 │ 1 \\| 2 │  that is explained in so   │             1",
        "       │        │ many words that they need  │",
        "       │        │          two rows          │",
        "x      │        │           short            │ 20 | too many",
        "3      │        │                            │",
        "",
        "| not a table |",
        "See the manual (https://example.org/manual), [1], [x](y z)",
        "and https://a.org.",
        "Unclosed **bold, gone",
        "*escaped* *x",
    ]


def styled(text: str, word: str) -> pyte.screens.Char:
    screen = rendered(text)[0]
    for y, line in enumerate(screen.display):
        if (x := line.find(word)) >= 0:
            return screen.buffer[y][x]
    raise AssertionError(f"{word} is not on the screen")


def test_styles() -> None:
    assert styled("a **bold** b", "bold").bold
    assert styled("a *it* b", "it").italics
    assert styled("a `co` b", "co").fg == "cyan"
    assert styled("# Head", "Head").bold
    assert styled("**a *b* `c`**", "c").bold
    assert styled("```python\ndef f(): pass\n```", "def").fg != "default"
    assert styled("```python\n'''\ndef f\n'''\n```", "def").fg == styled("```python\n'''\ndef f", "'''").fg


@settings(max_examples=40)
@example(list(range(len(TEXT))), 60)
@given(st.lists(st.integers(0, len(TEXT)), max_size=60), st.sampled_from([20, 60, 80]))
def test_pieces_do_not_matter(cuts: list[int], width: int) -> None:
    cuts = sorted(cuts)
    pieces = [TEXT[a:b] for a, b in zip([0, *cuts], [*cuts, len(TEXT)], strict=True)]
    assert lines(rendered(TEXT, pieces, width)[0]) == lines(rendered(TEXT, width=width)[0])


_PARTS = [
    "*",
    "**",
    "_",
    "`",
    "```",
    "~~",
    "\\",
    "\n",
    " ",
    "a",
    "B9",
    "中",
    "😀",
    "- ",
    "1. ",
    "> ",
    "# ",
    "\t",
    "|",
    "| a |\n|-|\n",
    "[",
    "](",
    ")",
]


@settings(max_examples=80)
@given(st.lists(st.sampled_from(_PARTS), max_size=40))
def test_no_text_is_lost(parts: list[str]) -> None:
    """Whatever the marks, every letter of the text is on the screen, in order."""
    text = "".join(parts)
    for pieces in (list(text), [text]):
        shown = re.sub(r"[^aB9中😀]", "", "".join(lines(rendered(text, pieces)[0])))
        assert shown.replace("1", "") == re.sub(r"[^aB9中😀]", "", text)


def test_nothing_is_printed_twice() -> None:
    """The output has styles and no carriage return: the cursor never goes back."""
    raw = rendered(TEXT, list(TEXT))[1]
    assert {code[-1] for code in re.findall(r"\x1b\[[\d;]*[A-Za-z]", raw)} == {"m"}
    assert "\r" not in raw
    assert raw.count("heading") == raw.count("nested") == raw.count("doc") == 1


@pytest.mark.parametrize("before", ["Here is **bo", "```python\ndef f():\n    ret", "- item\n", ""])
def test_going_on(before: str) -> None:
    """After a text that was shown before, the last line of which is shown again."""
    whole = before + "ld** and\nmore"
    out = io.StringIO()
    markdown = MarkdownWriter(Console(file=out, width=60, force_terminal=True, color_system="standard"))
    markdown.recall(before)
    markdown.feed(whole[len(before) :])
    markdown.end()
    screen = pyte.Screen(60, 50)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    assert lines(screen) == lines(rendered(whole)[0])[before.count("\n") :]


def test_rows_of_a_long_table_are_shown_as_they_come() -> None:
    """A table is not held back until it ends; later rows keep to the widths of the first ones."""
    out = io.StringIO()
    markdown = MarkdownWriter(Console(file=out, width=60, force_terminal=True, color_system=None))
    markdown.feed("| n | animal |\n|--:|---|\n")
    for n in range(20):
        assert f"{n - 1} │" in out.getvalue() or n < 5
        markdown.feed(f"| {n} | {'a very long cat' if n == 19 else 'cat'} |\n")
    markdown.end()
    shown = out.getvalue().splitlines()
    assert shown[:3] == ["  n │ animal", "────┼──────────", "  0 │ cat"]
    assert shown[-2:] == [" 19 │ a very", "    │ long cat"]


@pytest.mark.parametrize("width", [20, 30, 40, 80])
def test_a_table_fits_the_window(width: int) -> None:
    table = "| name | what it is |\n|---|---|\n| a-name-without-blanks-that-is-long | some words about it |\n"
    shown = lines(rendered(table, width=width)[0])
    assert all("│" in line or "┼" in line for line in shown)
    names = [line.partition("│")[0].strip() for line in shown if "┼" not in line]
    assert "".join(names).endswith("a-name-without-blanks-that-is-long")
