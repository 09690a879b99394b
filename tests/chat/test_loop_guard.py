"""The guard against repetition: it ends loops, and no honest text."""

import calendar
import codecs
import this
from pathlib import Path

import pytest

from mink_local.chat.conversation.loop_guard import LoopGuard
from mink_local.generation.model import Model

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


def guarded(model: Model, text: str) -> tuple[int | None, int]:
    """Return what the guard says of a text, and after how many tokens it says so."""
    guard = LoopGuard()
    tokens = model.tokenize(text)
    for number, (token, piece) in enumerate(zip(tokens, model.token_texts(tokens), strict=True), start=1):
        guard.feed(token, len(piece), text)
        if guard.since is not None:
            return guard.since, number
    return None, len(tokens)


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST)
def test_honest_text_is_no_loop(smollm2: Model, text: str) -> None:
    assert guarded(smollm2, text)[0] is None


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_noticed(smollm2: Model, name: str) -> None:
    since, at = guarded(smollm2, LOOPS[name])
    assert since is not None
    assert since < 60
    assert at < (1300 if name in ("code", "zeros") else 400)


@pytest.mark.parametrize("word", ["Bonjour!\n", "Bonjour! ", "Bonjour!\n\n"])
def test_a_word_is_said_ten_times(smollm2: Model, word: str) -> None:
    since, at = guarded(smollm2, word * 40)
    assert since is not None
    assert at <= len(smollm2.tokenize(word * 11))


def test_the_first_token_that_is_repeated(smollm2: Model) -> None:
    """A loop in one line is noticed early."""
    begin, phrase = "One two three. ", "What a day, what a lovely day. "
    since, at = guarded(smollm2, begin + phrase * 40)
    assert since is not None
    assert since - len(smollm2.tokenize(begin + phrase)) in (-1, 0, 1, 2)  # tokens may reach across
    assert at - since < 60
