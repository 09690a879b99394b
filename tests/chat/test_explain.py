"""/explain: the keys of its walk, its lines at any width, the view in a real terminal; and /heat."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.color import Color
from rich.style import Style

from mink_local.chat.commands.explain import (
    MIN_COLUMNS,
    MIN_ROWS,
    TEMPERATURES,
    Walk,
    fragments,
    lines,
    step_lines,
)
from mink_local.chat.conversation.answer_steps import AnswerSteps
from mink_local.chat.conversation.session import Session
from mink_local.chat.terminal.progress import coloured
from mink_local.chat.terminal.screen import COLOURLESS, DARK, LIGHT, Theme
from mink_local.generation.model import Model
from mink_local.generation.sampling_step import SamplingStep
from tests.chat.conftest import Typist, new_session

pytestmark = pytest.mark.usefixtures("own_files")


@pytest.fixture
def session(smollm2: Model) -> Session:
    """A conversation with an answer of 16 tokens at temperature 5, some with several candidates."""
    session = new_session(smollm2, "--temp", "5", "--seed", "3", "-n", "16")
    list(session.ask("Tell me a story about a dog.").pieces())
    return session


@pytest.fixture
def walk(session: Session) -> Walk:
    walk = Walk(AnswerSteps(session, session.last_answer()))
    walk.rows = 6
    walk.compute()
    return walk


def test_tokens_and_forks(walk: Walk) -> None:
    forks = walk.steps.forks
    assert forks == [at for at, k in enumerate(walk.steps.k) if k > 1] != []
    walk.go(-5)
    assert walk.at == 0
    walk.go(99)
    assert walk.at == 15
    seen = []
    while not walk.message:
        walk.go_to_fork(-1)
        seen.append(walk.at)
    assert seen[:-1] == [at for at in forks[::-1] if at < 15]


def test_temperature_moves_the_cuts_of_others(walk: Walk) -> None:
    kept = []
    for _ in TEMPERATURES:
        walk.change_temperature(-1)
    for _ in TEMPERATURES:
        walk.compute()
        assert walk.step
        kept.append({name: first or last or 0 for name, last, first in walk.step.cuts})
        walk.change_temperature(1)
    assert walk.temperature == TEMPERATURES[-1]
    assert {one["min-k"] for one in kept} == {walk.steps.k[0]}
    top_p = [one["top-p"] for one in kept]
    assert top_p == sorted(top_p)
    assert top_p[-1] > 100 * top_p[0]


def test_selecting(walk: Walk) -> None:
    assert walk.fork() is None
    assert walk.message
    assert walk.step
    sampled = walk.shown.index(walk.step.sampled)
    walk.select_next(1)
    assert walk.selected == walk.shown[(sampled + 1) % 6]
    walk.select(0)
    walk.select_next(-1)
    assert walk.selected == walk.shown[5]
    assert walk.fork() == walk.step.ids[walk.shown[5]]


def test_a_step_that_cannot_be_computed(session: Session) -> None:
    session.branch[0].content = "Hi"
    broken = Walk(AnswerSteps(session, session.last_answer()))
    broken.compute()
    assert (broken.step, broken.selected, broken.shown, broken.fork()) == (None, None, [], None)
    assert broken.is_computed
    assert any("/regen" in line.plain for line in lines(broken, MIN_COLUMNS, MIN_ROWS))


def test_an_error_of_the_program_is_shown_once(walk: Walk, monkeypatch: pytest.MonkeyPatch) -> None:
    walk.go(3)
    monkeypatch.setattr(walk, "_step_at", {}.__getitem__)
    walk.compute()
    assert walk.is_computed
    assert "KeyError(3)" in walk.remark
    assert any("KeyError" in line.plain for line in lines(walk, MIN_COLUMNS, MIN_ROWS))


def test_what_is_drawn_is_what_is_printed(walk: Walk) -> None:
    shown = lines(walk, MIN_COLUMNS, MIN_ROWS)
    drawn = fragments(shown)
    assert "".join(part[1] for part in drawn) == "".join(f"{line.plain}\n" for line in shown)
    styles = {word for part in drawn for word in part[0].split()}
    words = {"bold", "dim", "reverse", "underline"}
    assert words <= styles <= {*words, "none"}


def test_a_fork_is_a_branch(session: Session) -> None:
    first = session.last_answer()
    at = 4
    step = AnswerSteps(session, first).step(at)
    token = int(step.ids[1 if step.sampled == 0 else 0])
    list(session.fork(at, token).pieces())
    answer = session.last_answer()
    assert session.alternatives() == [first, answer]
    assert answer.tokens[: at + 1] == [*first.tokens[:at], token]
    assert answer.k[: at + 1] == first.k[: at + 1]
    assert answer.content == "".join(session.model.token_texts(answer.tokens))
    again = AnswerSteps(session, answer)
    assert [again.step(i).k for i in range(at, at + 4)] == answer.k[at : at + 4]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30), (MIN_COLUMNS, MIN_ROWS), (200, 60)])
def test_lines_fit_the_window(walk: Walk, columns: int, rows: int) -> None:
    for at in (0, walk.steps.forks[0], 15):
        walk.go(at)
        walk.compute()
        assert walk.step
        shown = lines(walk, columns, rows)
        assert len(shown) == rows
        assert max(line.cell_len for line in shown) <= columns
        text = "\n".join(line.plain for line in shown)
        assert f"token {at + 1} of 16" in text
        for name, *kept in _varying(walk.step):
            assert re.search(rf" {name}{_numbers(kept)} *$", text, re.M)
        assert text.count("▸") == text.count("◀") == 1
        assert "q" in shown[-1].plain
    assert str(MIN_COLUMNS) in lines(walk, MIN_COLUMNS - 1, rows)[0].plain


@pytest.mark.parametrize("columns", [36, 60, 80, 100])
def test_a_printed_step_fits(walk: Walk, columns: int) -> None:
    """The rank, the token and its probability are always there, and every sampler with its number."""
    assert walk.step
    shown = [line.plain.rstrip() for line in step_lines(walk.steps, walk.step, columns, 15)]
    assert max(map(len, shown)) <= columns
    assert sum("◀" in line for line in shown) == 1
    assert sum("%" in line for line in shown) == 12
    assert ("logit" in shown[0]) == (columns >= 60)
    for name, *kept in _varying(walk.step):
        assert any(re.search(rf"{name}{_numbers(kept)}$", line) for line in shown)


def _varying(step: SamplingStep) -> list[tuple[str, int | None, int | None]]:
    """Return what samplers keep whose number is not the same at every step."""
    return [cut for cut in step.cuts if cut[0] not in ("greedy", "top-k")]


def _numbers(kept: list[int | None]) -> str:
    return "".join(f" +{k:,}" for k in kept if k is not None)


def test_a_step_is_printed(typist: Callable[..., Typist]) -> None:
    """Where there is no full screen, and for a number or a word of the answer."""
    typed = typist("--temp", "5", "--seed", "1")
    typed.say("Name three animals.")
    steps = AnswerSteps(typed.chat.session, typed.chat.session.last_answer())
    shown = typed.say("/explain")
    at = steps.k.index(max(steps.k))
    assert f"token {at + 1} of 8: {steps.texts[at]!r}" in shown
    assert re.search(r"^min-k +\d+$|  min-k +\d+$", shown, re.M)
    assert "min-k:tau=3" in shown
    assert "token 8 of 8" in typed.say("/explain -1")
    at = steps.texts.index(longest := max(steps.texts, key=len))
    assert f"token {at + 1} of 8: {longest!r}" in typed.say(f"/explain {longest.strip()}")
    assert "'xyzzy'" in typed.say("/explain xyzzy")
    assert "8 tokens" in typed.say("/explain 99")


@pytest.mark.slow
@pytest.mark.terminal
@pytest.mark.posix
def test_in_a_terminal(opened: Callable[..., Any]) -> None:
    """The size is that of the window, whatever the variables of a shell say."""
    size = {"rows": 24, "columns": 80, "COLUMNS": "200", "LINES": "60"}
    terminal = opened("--temp", "5", "--seed", "3", "-n", "16", **size)
    terminal.say("Tell me a story about a dog.")

    def walks(keys: str, headline: str) -> None:
        terminal.send(keys)
        terminal.until(lambda: headline in terminal.screen and "computing" not in terminal.screen)

    walks("/explain\r", " of 16: ")
    walks("\x1b[H", "token 1 of 16: ")
    walks("\x1b[C", "token 2 of 16: ")
    walks("\x1b[A", "T = 7 (sampled at 5)")
    walks("\r", "select another")
    shown = terminal.press("\x1b[Z\r" if "▸ 2" in terminal.screen else "2\r")
    assert "version 2 · " in shown
    assert shown.count("\nThere") == 1  # the rows of the answer while it grew are replaced
    assert terminal.say("/pick").count("\n") >= 2
    assert re.search(r"token 1 of \d+", terminal.say("/explain 1"))
    terminal.send("/explain\r")
    terminal.until_shown("q leave$")
    terminal.press("q")
    terminal.resize(24, 36)
    assert f"needs {MIN_COLUMNS}" in terminal.say("/explain")
    assert terminal.leave() == 0


# /heat


@pytest.mark.parametrize("theme", [DARK, LIGHT])
def test_colours_of_heat(theme: Theme) -> None:
    """Each has a foreground that can be read on its background; not by colour alone."""
    shown = coloured(["a", "b", "c\r", "\nd", "e"], [1, 2, 60, 4, 1], theme)
    assert shown.plain.startswith("abc↵\nde\n\n")
    assert "1   2–3   4–10   11–50   51+" in shown.plain
    styles = [Style.parse(str(span.style)) for span in shown.spans[:3]]
    assert [style.underline for style in styles] == [None, True, None]
    for style in map(Style.parse, theme.candidates[1:]):
        assert style.color
        assert style.bgcolor
        ink, paper = (luminance(colour) for colour in (style.color, style.bgcolor))
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5  # WCAG 2.1, contrast (minimum)


def luminance(colour: Color) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = (part / 255 for part in colour.get_truecolor())
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_numbers_instead_of_colours() -> None:
    assert coloured(["a", "b\n", "c", "d"], [1, 7, 0, 1000], COLOURLESS).plain == "ab\n[7]cd[1,000]"


def test_heat(typist: Callable[..., Typist]) -> None:
    typed = typist("--temp", "5", "--tau", "90", "--seed", "1", "-n", "12")
    typed.say("Name three animals.")
    answer = typed.chat.session.last_answer()
    shown = typed.say("/heat")
    for k in answer.k[:12]:
        assert k == 1 or f"[{k}]" in shown
    assert "T = 5" in typed.say("/explain 1")


def test_heat_of_what_a_grammar_forced(typist: Callable[..., Typist], tmp_path: Path) -> None:
    grammar = tmp_path / "yes.gbnf"
    grammar.write_text('root ::= "yes yes"')
    typed = typist("--grammar", str(grammar), "-n", "12")
    typed.say("Name three animals.")
    shown = typed.say("/heat")
    assert "forced" in shown
    assert "killed" not in shown
