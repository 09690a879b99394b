"""Tables: every number on a terminal of any width, Markdown, CSV and JSON."""

import csv
import io
import json
import math

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from mink_local.evals.stats import Interval
from mink_local.evals.tables import (
    Cell,
    Format,
    Table,
    columns_of,
    count,
    escape_markdown,
    listed,
    p_value,
    percent,
    points,
    temperature_name,
    to_csv,
    to_json,
)

HALF = Interval(0.5, 0.25, 0.75)


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ([percent(0.41), percent(1), percent(0.0004)], ["41.0", "100.0", "0.0"]),
        ([points(0.05), points(-0.5), points(0)], ["+5.0", "−50.0", "+0.0"]),
        ([p_value(0.0312), p_value(0.001), p_value(0.00002)], ["0.031", "0.001", "2e-05"]),
        ([count(1, "question"), count(1319, "question")], ["1 question", "1,319 questions"]),
        ([listed("1"), listed("12"), listed("125")], ["1", "1 and 2", "1, 2 and 5"]),
        ([temperature_name(5.0), temperature_name(math.inf)], ["5", "∞"]),
    ],
)
def test_numbers_and_lists(found: list[str], shown: list[str]) -> None:
    assert found == shown


@pytest.mark.parametrize(
    ("text", "shown"), [("a|b_c<i>*x*\n`y`[z]", "a\\|b\\_c\\<i\\>\\*x\\* \\`y\\`\\[z\\]"), ("a\\", "a\\\\")]
)
def test_markdown_shows_what_was_written(text: str, shown: str) -> None:
    assert escape_markdown(text) == shown


@pytest.mark.parametrize(("width", "n_tables"), [(46, 8), (60, 3), (80, 2), (200, 1)])
def test_a_narrow_terminal_gets_more_tables_with_every_key_and_number(width: int, n_tables: int) -> None:
    numbers = {f"T = {t}": [Cell(f"{t}2.3±4.{t}▼", f"{t}0.1–{t}9.9")] for t in range(1, 9)}
    table = Table("a title", pd.DataFrame({"method": ["top-p:p=0.9"], "task": ["gsm8k"], **numbers}), keys=2)
    console = Console(width=width, file=io.StringIO(), record=True)
    table.print(console)
    printed = console.export_text()
    assert max(map(len, printed.split("\n"))) <= width
    assert printed.count("a title") == 1
    assert printed.count("top-p:p=0.9") == printed.count("gsm8k") == n_tables
    for [cell] in numbers.values():
        assert cell.text in printed
        assert cell.below in printed


def test_markdown_has_formats_and_escapes() -> None:
    shares = {name: [value, None] for name, value in columns_of(HALF, "share").items()}
    frame = pd.DataFrame({"n": ["a|b", "c"], **shares, "best": [Cell("1", bold=True), Cell()]})
    columns: dict[str, tuple[str, Format]] = {
        "n": ("name", str),
        "none": ("none", str),
        "share": ("share", percent),
        "best": ("best", str),
    }
    table = Table.of("t", frame, columns, 1)
    assert table.markdown().splitlines() == [
        "| name | share | best |",
        "| --- | --: | --: |",
        "| a\\|b | 50.0 (25.0–75.0) | **1** |",
        "| c |  |  |",
    ]
    difference = Table.of("t", frame, {"share": ("difference", points)}, 0)
    assert difference.rows[0] == [Cell("+50.0", "+25.0 to +75.0")]


def test_intervals_are_three_columns() -> None:
    frame = pd.DataFrame([{"n": "a", **columns_of(HALF, "x")}, {"n": "b", **columns_of(None, "x")}])
    rows = list(csv.DictReader(io.StringIO(to_csv(frame))))
    assert rows == [
        {"n": "a", "x": "0.5", "x_low": "0.25", "x_high": "0.75"},
        {"n": "b", "x": "", "x_low": "", "x_high": ""},
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(1)", "\t=1", '=HYPERLINK("http://x")'])
def test_no_text_in_csv_is_a_formula(text: str) -> None:
    frame = pd.DataFrame({"name": [text, f"a{text}"], "n": [-1.5, 2]})
    first, second = csv.DictReader(io.StringIO(to_csv(frame), newline=""))
    assert first == {"name": f"'{text}", "n": "-1.5"}
    assert second["name"] == f"a{text}"


def test_json_has_all_numbers() -> None:
    frame = pd.DataFrame({"x": [0.5, None], "t": [math.inf, math.nan], "n": np.array([1, 2])})
    text = to_json({"about": {"model": "m", "ctx": None}}, rows=frame)
    assert json.loads(text) == {
        "about": {"model": "m", "ctx": None},
        "rows": [{"x": 0.5, "t": "inf", "n": 1}, {"x": None, "t": None, "n": 2}],
    }
