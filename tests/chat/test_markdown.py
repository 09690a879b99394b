"""Markdown while it is generated: whatever the pieces, the same screen, and at a linear cost."""

import io
import re
from collections import Counter

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from mink_local.chat.terminal import wrapped_rows
from mink_local.chat.terminal.markdown import MarkdownWriter
from mink_local.chat.terminal.screen import joined_line_ends

TEXT = """# A heading with `code`

Here is **bold text**, 2*3*4 = 24, `2*3*4`, snake_case_name, <b>tags</b>.
A line of its own. 这是**重点** 😀

- one item that is so long that it has to be wrapped onto the next line of a narrow terminal
  - nested *item*

  and more of it
3. three

> a quote

```python
def f(x, **kwargs):

\treturn x * 2
```
| Name | **Price** |
|:-----|----------:|
| 日本語 | 1 |

See [the manual](https://example.org/manual).
Unclosed **bold"""


def rendered(pieces: list[str], width: int = 60, height: int = 200) -> tuple[list[str], str]:
    """Return the rows that are or were on the screen, and all that was written."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        height=height,
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    markdown = MarkdownWriter(console)
    for piece in joined_line_ends(pieces):
        markdown.feed(piece)
    markdown.end()
    screen = pyte.HistoryScreen(width, height, history=10_000)
    pyte.Stream(screen).feed(out.getvalue().replace("\n", "\r\n"))
    history = ["".join(row[x].data for x in range(width)) for row in screen.history.top]
    return "\n".join(row.rstrip() for row in [*history, *screen.display]).rstrip().split("\n"), out.getvalue()


def test_a_text() -> None:
    """Blocks have their styles; tags, line breaks and addresses of links are kept, and so are products."""
    rows, out = rendered([TEXT])
    text = "\n".join(rows)
    shown = [
        "bold text, 2*3*4 = 24, 2*3*4, snake_case_name",
        "<b>tags</b>",
        "这是重点 😀",
        "3. three",
        "▌ a quote",
    ]
    shown += [
        "• nested item",
        "```python",
        "    return x * 2",
        "日本語",
        "manual (https://example.org/manual)",
    ]
    assert [one for one in shown if one not in text] == []
    assert rows[4].startswith("A line")
    assert rows[-1] == "Unclosed **bold"
    assert "\x1b[1mbold text" in out
    assert "\x1b[2m```python" in out


@pytest.mark.parametrize(("width", "height"), [(60, 200), (36, 200), (20, 50)])
def test_characters_one_by_one(width: int, height: int) -> None:
    assert rendered(list(TEXT), width, height)[0] == rendered([TEXT], width, height)[0]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_whatever_the_pieces(data: st.DataObject) -> None:
    lines = st.sampled_from(
        [*TEXT.split("\n"), "```", "   ```", "1.", "-", "#", "a\tb", "x" * 130, "日本" * 40]
    )
    text = "\n".join(data.draw(st.lists(lines, max_size=8)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert rendered(pieces)[0] == rendered([text])[0]


def test_a_block_is_plain_while_it_grows() -> None:
    text = "Some **bold** words"
    assert "**bold**" in rendered([text])[1].partition("\r")[0]
    assert rendered([text])[0] == ["Some bold words"]


def test_what_is_taller_than_the_window_is_not_lost() -> None:
    """Long paragraphs stay as they were; long code is rendered in pieces."""
    paragraph = "".join(f"word{i} " for i in range(200))
    assert "".join(rendered([*paragraph, "\n\nend"], 40, 10)[0]).count("word") == 200
    code = "```python\n" + "".join(f"x = {i}\n" for i in range(100)) + "```\n"
    rows, out = rendered(list(code), 40, 10)
    assert rows == ["```python", *(f"x = {i}" for i in range(100)), "```"]
    assert out.count("\x1b[94;49m99") == 1


def test_a_row_that_terminals_count_differently_is_not_replaced() -> None:
    rows, out = rendered(["**" + "e\u0301" * 40 + "**\n\nend"])
    assert rows[0].startswith("**")
    assert "\x1b[1A" not in out.partition("end")[0]


PROSE = " ".join(f"word{i}" + "s" * (i * 7 % 23) for i in range(60)) + ".\n"


@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("height", [6, 40])
def test_words_are_whole_at_every_moment(width: int, height: int, size: int) -> None:
    """While a block grows, and in a block that is taller than the window."""
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, legacy_windows=False)
    screen = pyte.HistoryScreen(width, height, history=10_000)
    stream, markdown, shown = pyte.Stream(screen), MarkdownWriter(console), 0
    for at in range(0, len(PROSE), size):
        markdown.feed(PROSE[at : at + size])
        stream.feed(out.getvalue()[shown:].replace("\n", "\r\n"))
        shown = len(out.getvalue())
        rows = ["".join(row[x].data for x in range(width)) for row in screen.history.top]
        words = " ".join([*rows, *screen.display]).split()
        assert words == PROSE[: at + size].split()


@pytest.mark.parametrize(("before", "after"), [(80, 40), (40, 80), (200, 41)])
@pytest.mark.parametrize("at", [5, 150, 333, 334, 335, 336])
def test_a_resize_leaves_and_takes_no_row(before: int, after: int, at: int) -> None:
    """What was there stays as the terminal has it, and each later word is there once, whole."""
    out = io.StringIO()
    console = Console(file=out, width=before, height=60, force_terminal=True, legacy_windows=False)
    screen = pyte.Screen(before, 60)
    stream, markdown = pyte.Stream(screen), MarkdownWriter(console)
    markdown.feed("The block before.\n\n" + PROSE[:at])
    stream.feed(out.getvalue().replace("\n", "\r\n"))
    shown, rows = len(out.getvalue()), [row[:after].strip() for row in screen.display]
    x, y = screen.cursor.x, screen.cursor.y
    screen.resize(60, after)  # which sends the cursor home
    screen.cursor_position(y + 1, min(x, after - 1) + 1)
    console.width = after
    for piece in (PROSE[at : at + 100], PROSE[at + 100 :], "\nThe block after.\n"):
        markdown.feed(piece)
    markdown.end()
    stream.feed(out.getvalue()[shown:].replace("\n", "\r\n"))
    n = sum(map(bool, rows)) - 1  # without the one that goes on
    assert [row.strip() for row in screen.display if row.strip()][:n] == [row for row in rows if row][:n]
    rest = PROSE[at:].partition(" ")[2].split()
    words = " ".join(screen.display).split()
    assert words[-3 - len(rest) :] == [*rest, "The", "block", "after."]
    assert words.count("before.") == 1


AS_WRITTEN = [
    r"\(a^2+b^2=c^2\) and $a_1 * b_2 * c_3$, \[x_{i} + y_{i}\]",
    "\\[\n\\int x\n+ b\n- c\n= d\n\\]",
    "\\begin{align*}\n- a_1 &= 2 \\\\\n+ *b* _c_\n\\end{align*}",
    "$$\n# a\n1. b\n$$",
    r"$$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$$",
    r"\(x\,y\), \{1, 2\}, C:\new\table, a \\ b",
    "__init__, __main__.py and foo.__name__ == '__main__'",
    "2*3*4, count(*), sum(*), a/**/*.py",
    "&lt;div&gt; &amp; &nbsp;",
    "[1]: http://example.org/x",
    "![alt](http://x/é%20y.png) and <b>tags</b>",
    "costs $5 and $10, or $5-$6",
    r"\d+\.\d* matches; https://x.y/_a_/?b=_c_&d=_e_",
    "+",
    "1.",
]


@pytest.mark.parametrize("text", AS_WRITTEN)
@pytest.mark.parametrize("width", [20, 60])
def test_what_the_model_wrote_is_shown(text: str, width: int) -> None:
    """Character by character, and in every half of it."""
    cut = len(text) // 2
    for pieces in ([text], [text[:cut], text[cut:]], list(text), ["Before:\n\n", text, "\n\nAfter."]):
        shown = " ".join(rendered(pieces, width)[0])
        assert "".join("".join(pieces).split()) == "".join(shown.split())


@pytest.mark.parametrize(
    "text",
    [
        f"{'|h' * 20}|\n{'|-' * 20}|\n" + "".join(f"|value{i}" for i in range(20)) + "|",
        "|a|b|\n|-|-|\n|" + "x" * 90 + "|y|",
        "".join(f"{'  ' * i}- item {i}\n" for i in range(24)),
        "> " * 30 + "quoted",
        "- " * 12 + "item",
        '**bold** [a link](http://x/y "with a title")',
        " ".join(f"word{i} 👍🏽" for i in range(60)),  # which pyte draws wider than rich counts
        "|a|b|\n|-|-|\n" + "".join(f"|word{i} 👍🏽|👍🏽👍🏽 word{i}|\n" for i in range(9)),
    ],
)
@pytest.mark.parametrize("width", [20, 40, 160])
def test_where_there_is_no_room_nothing_is_lost_or_doubled(text: str, width: int) -> None:
    shown = "".join(rendered(list(text), width)[0])
    assert Counter(filter(str.isalnum, shown)) == Counter(filter(str.isalnum, text))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("in /usr/share/doc/mink/examples/a.py:", ["in", "/usr/share/doc/mink/", "examples/a.py:"]),
        ("- https://a.org/names/more?x=1&y=2", [" • https://a.org/nam", "   es/more?x=1&y=2"]),
        ("A\n/" + "n" * 30 + "/b", ["A", "/" + "n" * 19, "n" * 11 + "/b"]),
        ("# A title", ["A title"]),
    ],
)
def test_rows_of_a_narrow_window(text: str, rows: list[str]) -> None:
    assert rendered(list(text), 20)[0] == rendered([text], 20)[0] == rows


def test_an_address_is_shown_once() -> None:
    text = "<https://a.org> https://b.org [https://c.org](https://c.org) [d](https://d.org) <e@f.org>"
    shown = " ".join(rendered([text], 200)[0])
    assert shown == "https://a.org https://b.org https://c.org d (https://d.org) e@f.org"


@pytest.mark.parametrize("emoji", ["⚠️", "✔️", "❤️", "👩‍💻", "👍🏽"])
def test_a_table_with_emoji(emoji: str) -> None:
    _, out = rendered(list(f"| a | b |\n|---|---|\n| Memory | {emoji} careful |\n\nend"))
    assert f"Memory  {emoji} careful\n" in re.sub(r"\x1b\[[0-9;]*m", "", out)


def test_prose_is_not_too_wide_and_lines_end_without_blanks() -> None:
    for text in ("word " * 60, "# A title\n\n" + "- " + "word " * 60):
        rows, out = rendered([text], 160)
        assert 80 < max(map(len, rows)) <= 100
        assert not re.search(r"\w +\n", out.rpartition("\x1b[2K")[2])


@pytest.mark.parametrize("line", ["word and ", '{"key":[1,2,3],', "https://example.org/a/b?c=d&"])
def test_the_cost_of_a_long_line(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all of it is wrapped again at each token; the screen is the same."""
    text = line * 300
    whole, _ = rendered([text])
    wrapped = []

    def counting(text: Text, columns: int) -> list[Text]:
        wrapped.append(len(text))
        return wrapped_rows(text, columns)

    monkeypatch.setattr("mink_local.chat.terminal.markdown.wrapped_rows", counting)
    rows, _ = rendered([text[i : i + 4] for i in range(0, len(text), 4)])
    assert rows == whole
    assert max(wrapped) < 60 * 8


@pytest.mark.parametrize("indent", ["", "   ", "     "])
def test_tabs_in_the_code_of_a_list(indent: str) -> None:
    """They go to columns of the code, whatever stands before it."""
    code = ["def f(x):", "\tif x:", "\t\treturn 1"]
    rows, _ = rendered(list("1. Do:\n\n" + "".join(f"{indent}{line}\n" for line in ["```", *code, "```"])))
    begin = next(i for i, row in enumerate(rows) if row.strip() == "def f(x):")
    first = len(rows[begin]) - len(rows[begin].lstrip())
    assert [len(row) - len(row.lstrip()) - first for row in rows[begin : begin + 3]] == [0, 4, 8]
