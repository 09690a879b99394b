"""The full-screen view of /explain: its keys, its lines, and the view in a real terminal."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from mink_local.chat.answer_steps import AnswerSteps
from mink_local.chat.explain_view import MIN_COLUMNS, MIN_ROWS, lines
from mink_local.chat.session import Session
from mink_local.chat.walk import TEMPERATURES, Walk
from mink_local.errors import ContextOverflowError
from mink_local.generation.model import Model
from tests.chat.conftest import new_session

pytestmark = pytest.mark.usefixtures("own_files")


@pytest.fixture
def session(smollm2: Model) -> Session:
    """A conversation with an answer of 16 tokens at temperature 5, some with several candidates."""
    session = new_session(smollm2, "--temp", "5", "--seed", "3", "-n", "16")
    list(session.ask("Tell me a story about a dog."))
    return session


@pytest.fixture
def walk(session: Session) -> Walk:
    walk = Walk(AnswerSteps(session, session.last_answer()), session.model)
    walk.rows = 6
    computed(walk)
    return walk


def computed(walk: Walk) -> None:
    """Compute what the walk asks for."""
    while key := walk.missing():
        walk.add(key, walk.compute(key))


def test_tokens_and_forks(walk: Walk) -> None:
    assert walk.forks
    assert all(walk.steps.k[at] > 1 for at in walk.forks)
    walk.go(-5)
    assert walk.at == 0
    walk.go(99)
    assert walk.at == 15
    seen = []
    while not walk.message:
        walk.go_to_fork(-1)
        seen.append(walk.at)
    assert seen[:-1] == [at for at in walk.forks[::-1] if at < 15]
    assert "no token before this one had several candidates" in walk.message


def test_steps_are_computed_before_they_are_wanted(walk: Walk) -> None:
    acts: list[Callable[[], None]] = [
        lambda: walk.heat(1), lambda: walk.go(1), lambda: walk.heat(-1), lambda: walk.go(0),
    ]  # fmt: skip
    for act in acts:
        act()
        assert walk.step
        computed(walk)
    assert walk.temperature is None
    for at in range(16):  # the oldest steps are forgotten, never the near ones
        walk.go(at)
        computed(walk)
        assert walk.step
        assert walk.step.k == walk.steps.k[at]


def test_temperature_moves_the_cuts_of_others(walk: Walk) -> None:
    kept = []
    for _ in TEMPERATURES:
        walk.heat(-1)
    for _ in TEMPERATURES:
        computed(walk)
        assert walk.step
        kept.append(dict(walk.step.cuts))
        walk.heat(1)
    assert walk.temperature == TEMPERATURES[-1]
    assert {one["min-k"] for one in kept} == {walk.steps.k[0]}
    top_p = [next(n for name, n in one.items() if name in ("top-p", "top-p, T first")) for one in kept]
    assert top_p == sorted(top_p)
    assert top_p[-1] > 100 * top_p[0]


def test_selecting(walk: Walk) -> None:
    assert walk.fork() is None
    assert "goes on from this token" in walk.message
    assert walk.step
    sampled = walk.shown.index(walk.step.sampled)
    walk.select_next(1)
    assert walk.selected == walk.shown[(sampled + 1) % 6]
    walk.select(0)
    walk.select_next(-1)
    assert walk.selected == walk.shown[5]
    token = walk.fork()
    assert token == walk.step.ids[walk.shown[5]]


def test_a_fork_is_a_branch(session: Session) -> None:
    first = session.last_answer()
    at = 4
    step = AnswerSteps(session, first).step(at)
    token = int(step.ids[1 if step.sampled == 0 else 0])
    stream = session.fork(at, token)
    text = "".join(part.text for part in stream)
    answer = session.last_answer()
    assert answer.parent == first.parent
    assert [one.id for one in session.alternatives()] == [first.id, answer.id]
    assert answer.content == text
    tokens = session.answer_tokens(first)
    assert answer.outcome
    assert first.outcome
    assert answer.outcome.tokens[: at + 1] == [*tokens[:at], token]
    assert answer.outcome.k[: at + 1] == first.outcome.k[: at + 1]
    assert len(answer.outcome.tokens) == at + 1 + 16
    assert text == "".join(session.model.texts(answer.outcome.tokens))
    again = AnswerSteps(session, answer)
    assert [again.step(i).k for i in range(at, at + 4)] == answer.outcome.k[at : at + 4]


def test_a_fork_that_fails_changes_nothing(session: Session) -> None:
    before = session.last_answer().id
    session.set_system("word " * 3000, "here")
    with pytest.raises(ContextOverflowError):
        session.fork(2, 5)
    assert session.last_answer().id == before


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30), (MIN_COLUMNS, MIN_ROWS), (200, 60)])
def test_lines_fit_the_window(walk: Walk, columns: int, rows: int) -> None:
    for has_picture in (False, True):
        walk.has_picture = has_picture
        for at in (0, walk.forks[0], 15):
            walk.go(at)
            computed(walk)
            shown = lines(walk, columns, rows)
            assert len(shown) == rows
            assert max(line.cell_len for line in shown) <= columns
            text = "\n".join(line.plain for line in shown)
            assert f"token {at + 1} of 16" in text
            assert re.search(r"min-k .* \d+", text)
            assert (" 2 '" in text) != has_picture
            assert "q" in shown[-1].plain
    assert "needs 76 columns" in lines(walk, MIN_COLUMNS - 1, rows)[0].plain


@pytest.mark.slow
@pytest.mark.terminal
@pytest.mark.posix
def test_in_a_terminal(opened: Callable[..., Any]) -> None:
    terminal = opened("--temp", "5", "--seed", "3", "-n", "16", rows=24, columns=80)
    terminal.say("Tell me a story about a dog.")

    def shows(pattern: str) -> None:
        terminal.until(lambda: re.search(pattern, terminal.screen))

    terminal.send("/explain\r")
    shows(r"token \d+ of 16")
    terminal.send("\x1b[H")
    shows(r"token 1 of 16")
    terminal.send("\x1b[C")
    shows(r"token 2 of 16(.|\n)*◀")
    terminal.send("\x1b[A")
    shows(r"T = 7 \(sampled at 5\)")
    terminal.send("g")
    shows("[⠁-⣿]")
    terminal.send("g\r")
    shows("goes on from this token")
    terminal.send("\x1b[Z\r" if "▸ 2" in terminal.screen else "2\r")
    shows(r"answer 2 to this message(.|\n)*\n>$")
    terminal.settle()
    assert terminal.say("/pick").count("\n") >= 2
    assert re.search(r"token 1 of \d+", terminal.say("/explain 1"))
    terminal.send("/explain\r")
    shows(r"token \d+ of \d+: ")
    terminal.send("q")
    shows(r"\n>$")
    assert terminal.leave() == 0
