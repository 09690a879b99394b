"""Text that repeats itself: it is found, honest text is none, and reasoning that loops ends in an answer."""

import calendar
import codecs
import gzip
import json
import this
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import Constraints, SamplingParams, load_model
from mink_local.errors import OptionError
from mink_local.generation.answer import Loop
from mink_local.generation.format.reasoning_budget import LOOP_CLOSING
from mink_local.generation.format.text import THINK, THINK_END
from mink_local.generation.loops import LoopFinder
from mink_local.generation.model import Model
from mink_local.generation.request import EndLoops, Request
from tests.conftest import shared
from tests.support.tiny import write_scripted

ROOT = Path(__file__).parents[2]
OPTIONS = ROOT / "mink_local/chat/settings.py"

CHORUS = """Row, row, row your boat,
Gently down the stream.
Merrily, merrily, merrily, merrily,
Life is but a dream.

"""
CARROLL = """'Twas brillig, and the slithy toves
Did gyre and gimble in the wabe;
All mimsy were the borogoves,
And the mome raths outgrabe.
"""
ANIMALS = {"cow": "moo", "pig": "oink", "duck": "quack", "horse": "neigh", "sheep": "baa", "hen": "cluck"}
FARM = "".join(
    f"Old MacDonald had a farm, E-I-E-I-O,\nAnd on that farm he had a {animal}, E-I-E-I-O.\n"
    f"With a {sound}-{sound} here and a {sound}-{sound} there,\nHere a {sound}, there a {sound}, everywhere "
    f"a {sound}-{sound},\nOld MacDonald had a farm, E-I-E-I-O!\n\n"
    for animal, sound in ANIMALS.items()
)
BOTTLES = "".join(
    f"{n} bottles of beer on the wall, {n} bottles of beer.\nTake one down and pass it around, {n - 1} "
    "bottles of beer on the wall.\n\n"
    for n in range(99, 70, -1)
)
CELLS = "".join(
    f"| {row} | {' | '.join('no' if (row + i) % 3 else 'yes' for i in range(5))} |\n" for row in range(30)
)
HONEST = {
    "a poem with a refrain": CARROLL + "Beware the Jabberwock, my son!\n\n" + CARROLL,
    "a chorus, three times": CHORUS * 3,
    "a song of verses that differ in two words": FARM,
    "a song that counts": BOTTLES,
    "the Zen of Python": codecs.decode(this.s, "rot13"),
    "a calendar": calendar.TextCalendar().formatyear(2026),
    "a multiplication table": "".join(f"{i} x {j} = {i * j}\n" for i in range(1, 11) for j in range(1, 11)),
    "a table of yes and no": "| day | a | b | c | d | e |\n|---|---|---|---|---|---|\n" + CELLS,
    "a drawing": "+----------+\n" + "|          |\n" * 12 + "+----------+\n",
    "a chessboard in code": "```python\nboard = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0],\n" * 8 + "]\n```",
    "a table in HTML": "```html\n<table>\n" + ("<tr>" + "<td></td>" * 8 + "</tr>\n") * 8 + "</table>\n```",
    "lines that someone asked for": "I will not talk in class.\n" * 15,
    "laughter": "Ha, ha, ha, ha, ha, ha, ha, ha, ha, ha!",
    "a number with many digits": "One third is 0." + "3" * 60 + "…",
    "the README": (ROOT / "README.md").read_text(encoding="utf-8"),
    "the catalogue": (ROOT / "models.txt").read_text(encoding="utf-8"),
    "this file": Path(__file__).read_text(encoding="utf-8"),
    "a module with a table of settings": OPTIONS.read_text(encoding="utf-8"),
}  # fmt: skip

HONEST |= {
    "identical objects in JSON": "[" + '{"name": "", "value": null}, ' * 40 + "{}]",
    "a chorus after each verse": "".join(f"Verse {i} is about {i * i} sheep.\n{CHORUS}" for i in range(20)),
    "a long block of code": "```c\n" + "    x += a[i] * b[i]; i++;\n" * 60 + "```\n",
    "bullets that all begin alike": "".join(f"- The value of item {i} is {i % 3}.\n" for i in range(200)),
}

LOOPS = {
    "one word a line": "Bonjour!\n" * 40,
    "a word": "I'm a chat. I am" + " chatty" * 200,
    "a phrase": "The capital is " + "a chatz, " * 100,
    "a sentence": "L'Étoile, la Cité. " + "Paris, la France, est la Capital. " * 40,
    "a paragraph": "Here it is.\n\n" + CARROLL * 6,
    "code": "```python\n" + "print('hello')\n" * 400,
    "zeros": "0, " * 600,
    "fences": "Here:\n" + "```\n" * 400,
}


def found(text: str, n_characters: int = 4) -> tuple[int | None, int]:
    """Where a loop begins, in characters, and where it is noticed, if the text comes in pieces."""
    finder = LoopFinder()
    for at in range(0, len(text), n_characters):
        if finder.feed(text[at : at + n_characters]):
            assert finder.since is not None
            return finder.since * n_characters, at + n_characters
    return None, len(text)


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST)
def test_honest_text_is_no_loop(text: str) -> None:
    assert found(text)[0] is None


def test_recorded_responses_are_no_loops() -> None:
    recorded = Path(__file__).parents[1] / "evals/tasks/responses.jsonl"
    lines = recorded.read_text(encoding="utf-8").splitlines()
    assert not [line for line in lines if LoopFinder().feed(json.loads(line)["text"])]


def test_answers_of_gpt3_are_no_loops() -> None:
    with gzip.open(shared("data/answers/gpt3.jsonl.gz"), "rt", encoding="utf-8") as lines:
        assert not [line for line in lines if LoopFinder().feed(json.loads(line)["text"])]


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_noticed(name: str) -> None:
    since, at = found(LOOPS[name])
    assert since is not None
    assert since < 200
    assert at < (4500 if name in ("code", "zeros") else 1100)


@pytest.mark.parametrize("word", ["Bonjour!\n", "Bonjour! ", "Bonjour!\n\n"])
def test_a_word_is_said_a_dozen_times(word: str) -> None:
    since, at = found(word * 40)
    assert since is not None
    assert at <= len(word * 10) + 40


def test_the_first_token_that_is_repeated() -> None:
    """A loop in one line is noticed early."""
    begin, phrase = "One two three. ", "What a day, what a lovely day. "
    since, at = found(begin + phrase * 40)
    assert since is not None
    assert abs(since - len(begin + phrase)) < 4  # from where a piece begins
    assert at - since < 250


WORDS = st.lists(
    st.sampled_from(["a", "b", "word", "test ", " ", "\n", "0, ", "`", "é"]), min_size=1, max_size=30
)
PARTS = st.lists(st.tuples(WORDS.map("".join), st.integers(1, 60)), min_size=1, max_size=4)


def longest_run(text: str, end: int) -> list[tuple[str, int]]:
    """Each phrase before `end` that is no repetition itself, and how many characters of it are repeated."""
    runs = []
    for period in range(1, min(end, 2000) + 1):
        phrase = text[end - period : end]
        if (phrase + phrase).find(phrase, 1) == period:
            same = [text[end - n] == text[end - n - period] for n in range(1, end - period + 1)]
            runs.append((phrase, same.index(False) if False in same else len(same)))
    return runs


def enough(phrase: str) -> int:
    """How many repeated characters of a phrase make a loop, outside of code."""
    letters = sum(map(str.isalpha, phrase))
    is_word = letters >= 4 and len((phrase * 3).split()) <= 4  # a fourth if it begins inside of one
    least = 9 * len(phrase) if is_word else max(500 if "\n" in phrase else 200, 3 * len(phrase))
    is_fences = "`" in phrase and not phrase.strip("` \n")
    return least * (1 if letters or is_fences else 8)


@given(PARTS)
def test_what_is_found(parts: list[tuple[str, int]]) -> None:
    """The same as with every phrase tried, at every 32 characters, however the text is cut."""
    text = "x" + "".join(phrase * n for phrase, n in parts)[:3000].replace("```", "``")
    looks = range(32, len(text) + 1, 32)
    at = next((end for end in looks if any(n >= enough(p) for p, n in longest_run(text, end))), None)
    for n_characters in (1, 7, len(text)):
        finder = LoopFinder()
        pieces = [text[i : i + n_characters] for i in range(0, len(text), n_characters)]
        fed = [finder.feed(piece) for piece in pieces]
        assert fed[-1] is (at is not None)
        assert at is None or n_characters > 1 or fed.index(True) == at - 1


# In the engine

ROUND = [" But", " wait", ",", " let", " me", " check", " that", " again", "."]
OPENED = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model that reasons in a circle; made to end, it answers "Four.", or to "Say:" in a circle."""
    path = tmp_path_factory.mktemp("loops") / "loops.gguf"
    scripts = {THINK: ROUND, THINK_END: ["x"], "\n\n": ["Four", "!"], "Say:": [" no", " and"]}
    again = {".": " But", " and": " no"}
    write_scripted(path, OPENED, scripts, again=again)
    with load_model(path, n_ctx=2048, n_parallel=3, n_threads=1) as model:
        yield model


@pytest.fixture(params=[False, True], ids=["told at once", "told late"])
def told(looping: Model, request: pytest.FixtureRequest) -> Iterator[Model]:
    looping.core.engine.tells_late = request.param
    yield looping
    looping.core.engine.tells_late = False


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"logprobs": 0},
        {"reasoning_budget": 900},
        {"constraints": Constraints(regex="Four!")},
        {"constraints": Constraints(frequency_penalty=1e-9)},
        {"end_loops": "all"},
        {"reasoning_message": "Enough."},
        {"reasoning_message": ""},
    ],
    ids=str,
)
def test_reasoning_that_loops_ends_in_an_answer(told: Model, options: dict[str, Any]) -> None:
    params = SamplingParams(temperature=0, **options)
    answers = list(told.generate(["2 + 2?"] * 3, params))
    for answer in answers:
        [loop] = answer.loops
        assert (answer.content.strip(), answer.finish_reason) == ("Four!", "stop")
        assert (loop.in_reasoning, loop.is_ended, answer.reasoning_cut) == (True, True, True)
        assert loop.token == pytest.approx(len(ROUND), abs=1)
        assert answer.n_tokens < 200
        message = options.get("reasoning_message", LOOP_CLOSING.strip())
        assert answer.reasoning.endswith(message)
        assert len(answer.k) == answer.n_tokens == (len(answer.logprobs) or answer.n_tokens)


def test_loops_are_told_and_not_ended(told: Model) -> None:
    [answer] = told.generate(["2 + 2?"], temperature=0, max_tokens=300, end_loops="none")
    assert (answer.finish_reason, answer.reasoning_cut, answer.content) == ("length", False, "")
    assert answer.loops == [Loop(len(ROUND), in_reasoning=True, is_ended=False)]


@pytest.mark.parametrize("end_loops", ["none", "reasoning", "all"])
def test_an_answer_that_loops(told: Model, end_loops: Any) -> None:
    reply = told.complete("Say:", temperature=0, max_tokens=300, end_loops=end_loops)
    reply.read()
    is_ended = end_loops == "all"
    assert reply.finish_reason == ("repetition" if is_ended else "length")
    assert reply.loops == [Loop(2, in_reasoning=False, is_ended=is_ended)]
    assert (reply.n_tokens < 120) is is_ended
    assert reply.as_dict()["choices"][0]["finish_reason"] == reply.finish_reason


def test_beside_others(told: Model) -> None:
    """Those that go on are not held up, and the slot is free afterwards."""
    ways: list[EndLoops] = ["reasoning", "none", "all", "none", "reasoning"]
    every = [SamplingParams(temperature=0, max_tokens=400, end_loops=way) for way in ways]
    prompt = [{"role": "user", "content": "2 + 2?"}]
    answers = list(told.answer_all([Request(prompt, params) for params in every], ordered=True))
    assert [answer.finish_reason for answer in answers] == ["stop", "length", "stop", "length", "stop"]
    assert told.core.engine.n_busy == 0


def test_the_option_is_checked() -> None:
    with pytest.raises(OptionError, match="end_loops"):
        SamplingParams(end_loops="ever")  # type: ignore[arg-type]
