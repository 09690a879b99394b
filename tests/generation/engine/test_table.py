"""The table of running answers."""

from typing import Any

import pytest

from mink_local.generation.engine.decoding import Decoding
from mink_local.generation.engine.table import Table
from mink_local.generation.model import Model
from mink_local.generation.request import Request, SamplingParams


def columns(table: Table) -> dict[str, list[int]]:
    """Every column of a table."""
    return {name: [*each] for name, each in vars(table).items() if name[0] != "_"}


@pytest.fixture
def answers(model: Model) -> list[Decoding]:
    """Three answers; the second is told at once, the third bans what would end it."""
    options: list[dict[str, Any]] = [{}, {"logprobs": 0}, {"min_tokens": 3}]
    prepare = model.core.engine.prepare
    found = [prepare(Request([7], SamplingParams(max_tokens=9, **each))) for each in options]
    for each in found:
        each.begin(1, 512)
    return found


def test_a_row_is_as_empty_after_an_answer_as_before(answers: list[Decoding]) -> None:
    table = Table(4)
    empty = columns(table)
    for row, answer in zip((3, 0, 2), answers, strict=True):
        table.join(row, answer)
    table.go_on(table.line_up.rows, [11, 12, 13])
    assert all(len(set(column)) > 1 for column in columns(table).values())
    assert table.line_up.in_order == [0, 2, 3]
    for row in (0, 3, 3, 2, 1):
        table.leave(row)
    assert columns(table) == empty
    assert len(table.line_up.in_order) == len(table.line_up.answers) == 0


def test_a_row_is_moved_whole(answers: list[Decoding]) -> None:
    """And no other one changes, nor what its old place holds later."""
    table = Table(4)
    for row, answer in enumerate(answers):
        table.join(row, answer)
    table.go_on(table.line_up.rows, [11, 12, 13])
    before = columns(table)
    table.move(1, to=3)
    after = columns(table)
    for name, column in before.items():
        poison = column[3]
        assert after[name] == [column[0], poison, column[2], column[1]]
    assert dict(zip(table.line_up.rows, table.line_up.answers, strict=True)) == {
        0: answers[0],
        3: answers[1],
        2: answers[2],
    }


def test_those_come_first_that_may_be_told_later(answers: list[Decoding]) -> None:
    table = Table(4)
    for row, answer in enumerate(answers):
        table.join(row, answer)
    assert table.line_up.rows == [0, 2, 1]
    assert table.line_up.n_late == 2
    assert table.line_up.banning == [answers[2]]


def test_an_answer_is_full_when_it_has_its_greatest_length(answers: list[Decoding]) -> None:
    table = Table(2)
    table.join(1, answers[0])
    assert [table.go_on([1], [i]) for i in range(9)] == [[]] * 8 + [[1]]
