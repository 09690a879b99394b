"""What a model thinks aloud: told from the answer, shown, not fed back."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local.chat.reasoning import Piece, Splitter, joined
from tests.chat.test_cli import chat
from tests.conftest import shared
from tests.support.terminal import Terminal

pytestmark = pytest.mark.usefixtures("own_files")

QWEN3 = "vocab/Qwen-Qwen3-0.6B.jinja"


def split(pieces: list[str], state: str = "start") -> tuple[str, str]:
    splitter = Splitter(state)
    out = [piece for text in pieces for piece in splitter.feed(text)] + list(splitter.end())
    assert all(piece.text for piece in out)
    return tuple("".join(p.text for p in out if p.thinking is thinking) for thinking in (True, False))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("text", "state", "thought", "answer"),
    [
        ("<think>\nLet me see.\n</think>\n\nFour.", "start", "Let me see.", "Four."),
        ("\n<think>a < b</thin </think>x", "start", "a < b</thin", "x"),
        ("<think>\n\n</think>\n\nFour.", "start", "", "Four."),
        ("Let me see.\n</think>\n\nFour.", "thought", "Let me see.", "Four."),
        ("<think>never ended </th", "start", "never ended </th", ""),
        ("Four. <think>no</think>", "start", "", "Four. <think>no</think>"),
        ("<thinking> is a word", "start", "", "<thinking> is a word"),
        ("  indented", "start", "", "  indented"),
        ("<think>a</think>b<think>c</think>", "start", "a", "b<think>c</think>"),
        ("<think>a</think>b", "text", "", "<think>a</think>b"),
        ("", "start", "", ""),
        ("<thi", "start", "", "<thi"),
    ],
)  # fmt: skip
def test_split(text: str, state: str, thought: str, answer: str) -> None:
    assert split([text], state) == (thought, answer)
    assert split(list(text), state) == (thought, answer)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "/", "a", " ", "\n"])), st.randoms())
def test_pieces_do_not_matter(parts: list[str], random: object) -> None:
    text = "".join(parts)
    cuts = sorted(random.randint(0, len(text)) for _ in range(4))  # type: ignore[attr-defined]
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(pieces) == split([text])


def test_nothing_certain_is_held_back() -> None:
    splitter = Splitter()
    assert list(splitter.feed("<think>Well")) == [Piece("Well", True)]
    assert list(splitter.feed(" now")) == [Piece(" now", True)]
    assert list(splitter.feed("</think>Yes")) == [Piece("Yes")]


@pytest.mark.parametrize("state", ["thought", "text"])
def test_what_goes_on_keeps_its_blanks(state: str) -> None:
    splitter = Splitter(state, continued=True)
    assert list(splitter.feed(" more")) == [Piece(" more", state == "thought")]


def test_joined_is_the_inverse() -> None:
    assert split([joined("Let me see.", "Four.", opened=False)]) == ("Let me see.", "Four.")
    assert split([joined("Let me see.", "Four.", opened=True)], "thought") == ("Let me see.", "Four.")
    assert split([joined("Let me", "", opened=False)]) == ("Let me", "")
    assert joined("", "Four.", opened=False) == "Four."


@pytest.fixture
def thinker(tiny: Callable[..., Path]) -> tuple[str, ...]:
    """Options that have a model with Qwen3's template think aloud, by a grammar."""
    path = tiny(template=shared(QWEN3).read_text(encoding="utf-8"))
    grammar = path.with_suffix(".gbnf")
    grammar.write_text('root ::= "<think>\\nTwo and two.\\n\\nFour?\\n</think>\\n\\nIt is **four**."')
    return ("--model", str(path), "--grammar", str(grammar), "--temp", "0")


def test_in_a_pipe(thinker: tuple[str, ...]) -> None:
    result = chat("-p", "2 + 2?", *thinker)
    assert result.stdout == "It is **four**.\n"
    assert "(thought for 4 words" in result.stderr
    answer = json.loads(chat("-p", "2 + 2?", *thinker, "--json").stdout)
    assert (answer["text"], answer["thinking"]) == ("It is **four**.", "Two and two.\n\nFour?")


def test_in_a_terminal(thinker: tuple[str, ...]) -> None:
    terminal = Terminal(*thinker)
    shown = terminal.say("2 + 2?")
    assert "Two and two.\n\nFour?\n\nIt is four." in shown
    assert "\x1b[2;3mTwo" in terminal.raw
    terminal.say("/think line")
    folded = terminal.say("And again?")
    assert "(thought for 4 words: /think shows them)" in folded
    assert "Two and two" not in folded
    assert "Two and two." in terminal.say("/think")
    assert "(think is off, set in this chat)" in terminal.say("/think off")
    terminal.say("/export x.json")
    messages = json.loads(Path("x.json").read_text())["messages"]
    Path("x.json").unlink()
    assert [message["content"] for message in messages] == [
        "2 + 2?", "It is **four**.", "And again?", "It is **four**.",
    ]  # fmt: skip
    # What was thought is not part of the prompt of the second answer.
    tokens = [message["outcome"]["prompt_tokens"] for message in messages if message["outcome"]]
    assert tokens[1] - tokens[0] < len(messages[1]["outcome"]["tokens"])
    assert terminal.leave() == 0
    terminal.close()
