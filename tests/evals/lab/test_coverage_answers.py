"""Which texts are valid answers, which can become one, and by which tokens; files of prompts."""

import contextlib
import keyword
import string
from typing import Any

import pytest

from mink_local.errors import DataError
from mink_local.generation.model import Model
from scripts.lab.coverage.measure import BUNDLED, ClosedPrompt, read_prompts
from scripts.lab.coverage.tree import AnswerSet, fold, normalise
from tests.evals.conftest import Write

NAMES = (
    ("Ivory Coast", "Côte d'Ivoire"), ("The Gambia",), ("Guinea",), ("Guinea-Bissau",), ("St. Lucia",),
    ("St",), ("Niger",), ("Nigeria",), ("USA", "U.S.A."), ("1",), ("12",), ("α",),
)  # fmt: skip


@pytest.fixture(scope="module")
def answers(smollm2: Model) -> AnswerSet:
    return AnswerSet(NAMES, smollm2.weights)


TEXTS = [
    ("Niger", 6), ("Nigeria", 7), (" nigeria.", 7), ("**NIGERIA**", 7), ('"Nigeria."', 7), ("`Niger`\n", 6),
    ("Nigeria\nIt is in Africa.", 7), ("\n\nNiger", 6), ("Niger \r\nNo", 6), ("Niger!", 6), ("Gambia", 1),
    ("the gambia", 1), ("The Niger", 6), ("Cote d’Ivoire", 0), ("CÔTE D'IVOIRE", 0), ("Guinea‑Bissau", 3),
    ("Guinea – Bissau", None), ("st. lucia", 4), ("St.", 5), ("usa", 8), ("U.S.A.", 8), ("u.s.a", 8),
    ("12", 10), ("1.", 9), ("1.2", None), ("Α", 11), ("", None), ("\n", None), ("**", None), ("Nïger", None),
    ("Nigeri", None), ("Nigeria is", None), ("Niger, Nigeria", None), ("the", None), ("    Niger", 6),
    ("     Niger", None), ("Niger....", 6), ("Niger.....", None), (".Niger", None), ("Guinea‑Bissau.\n", 3),
    ("“Niger”. ", 6),
]  # fmt: skip


@pytest.mark.parametrize(("text", "answer"), TEXTS)
def test_texts_as_a_person_takes_them(
    text: str, answer: int | None, answers: AnswerSet, smollm2: Model
) -> None:
    """Token by token: what is invalid on the way is invalid at its end."""
    assert in_tokens(answers, smollm2, text) == answer


def in_tokens(answers: AnswerSet, model: Model, text: str) -> int | None:
    """Return the answer that a whole text is."""
    begun: list[int] = []
    for token in (*model.tokenize(text), min(model.weights.end_tokens)):
        goes_on, ended = answers.continuations(begun)
        if token not in goes_on:
            return ended.get(token)
        begun.append(token)
    return None


def may_follow(text: str) -> bool:
    """Return whether a text is a name, or the beginning of one, with a few marks around."""
    names = {form for one in NAMES for name in one for form in (fold(name).strip("."), normalise(name))}
    forms = [article + name.removeprefix("the ") for name in names for article in ("", "the ")]
    begun = fold(text).lstrip(" \t\n\"'*`")
    line, *_ = begun.split("\n")
    bare = line.rstrip(" \t\"'*`.!")
    is_short = len(text) - len(begun) <= 4 and len(line) - len(bare) <= 4
    return is_short and (bare in forms or any(form.startswith(begun) for form in forms))


@pytest.mark.parametrize("prefix", ["", "N", "Niger", "the", "St", "Guinea.", "St.! ", "Co", "“", "Côte d"])
def test_continuations_are_those_of_every_token_tried(
    prefix: str, answers: AnswerSet, smollm2: Model
) -> None:
    """Of those with whole characters."""
    goes_on, ended = answers.continuations(smollm2.tokenize(prefix))
    texts = {}
    for token in set(range(smollm2.weights.n_vocab)) - smollm2.weights.end_tokens:
        with contextlib.suppress(UnicodeDecodeError):
            texts[token] = smollm2.weights.piece(token).decode()
    allowed = {token for token, text in texts.items() if text and may_follow(prefix + text)}
    assert {*goes_on, *ended} & texts.keys() == allowed
    is_whole = prefix in ("Niger", "St", "Guinea.", "St.! ")
    assert ended.keys() - texts.keys() == (smollm2.weights.end_tokens if is_whole else set())
    assert set(goes_on) & texts.keys() == {
        token for token in allowed if "\n" not in fold(prefix + texts[token]).lstrip(" \t\n\"'*`")
    }


COUNTS = {
    "africa": 54, "south-america": 12, "central-america": 7, "european-union": 27,
    "european-union-capitals": 27, "us-states": 50, "us-state-capitals": 50, "us-states-with-m": 8,
    "new-england": 6, "canadian-provinces": 10, "german-states": 16, "swiss-cantons": 26, "united-kingdom": 4,
    "neighbours-of-china": 14, "neighbours-of-germany": 9, "continents": 7, "oceans": 5, "great-lakes": 5,
    "security-council": 5, "g7": 7, "nordic-countries": 5, "gulf-cooperation-council": 6,
    "new-york-boroughs": 5, "elements": 118, "group-18": 7, "group-17": 6, "alkali-metals": 6, "planets": 8,
    "galilean-moons": 4, "si-base-units": 7, "si-prefixes": 24, "quarks": 6, "amino-acids": 20,
    "dna-bases": 4,
    "platonic-solids": 5, "palaeozoic-periods": 6, "months": 12, "weekdays": 7, "seasons": 4, "letters": 26,
    "greek-letters": 24, "spelling-alphabet": 26, "primes": 25, "one-to-a-hundred": 100, "even-numbers": 25,
    "multiples-of-seven": 14, "divisors-of-sixty": 12, "die": 6, "powers-of-two": 10,
    "hexadecimal-digits": 16,
    "chess-pieces": 6, "suits": 4, "ranks": 13, "zodiac": 12, "chinese-zodiac": 12, "muses": 9,
    "deadly-sins": 7, "books-of-moses": 5, "python-keywords": 35, "java-primitive-types": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def bundled() -> dict[str, ClosedPrompt]:
    return {prompt.id: prompt for prompt in read_prompts(BUNDLED)}


def first_names(prompt: ClosedPrompt) -> set[str]:
    return {names[0] for names in prompt.names}


def test_the_sets_have_the_sizes_that_are_known(bundled: dict[str, ClosedPrompt]) -> None:
    assert {name: len(prompt.answers) for name, prompt in bundled.items()} == COUNTS
    assert len(COUNTS) == 60


def test_every_name_is_found_and_no_name_is_there_twice(
    bundled: dict[str, ClosedPrompt], smollm2: Model
) -> None:
    for prompt in bundled.values():
        answers = AnswerSet(prompt.names, smollm2.weights)
        names = [(name, i) for i, names in enumerate(prompt.names) for name in names]
        assert [answers.index(f" **{name}**.\n".encode()) for name, _ in names] == [i for _, i in names]
        forms = [normalise(name) for name, _ in names]
        assert len(forms) == len(set(forms)), prompt.id
        assert "Answer with" in prompt.prompt


def test_sets_that_a_program_can_compute(bundled: dict[str, ClosedPrompt]) -> None:
    computed = {
        "primes": [n for n in range(2, 100) if all(n % d for d in range(2, n))],
        "one-to-a-hundred": range(1, 101),
        "even-numbers": range(2, 51, 2),
        "multiples-of-seven": range(7, 100, 7),
        "divisors-of-sixty": [n for n in range(1, 61) if 60 % n == 0],
        "die": range(1, 7),
        "powers-of-two": [2**i for i in range(1, 11)],
        "python-keywords": keyword.kwlist,
        "letters": string.ascii_uppercase,
    }
    for name, expected in computed.items():
        assert first_names(bundled[name]) == set(map(str, expected))
    assert {names[1] for names in bundled["greek-letters"].names} == set("αβγδεζηθικλμνξοπρστυφχψω")
    assert {name[0] for name in first_names(bundled["spelling-alphabet"])} == set(string.ascii_uppercase)


GOOD: dict[str, Any] = {
    "id": "a",
    "prompt": "Name one side of a coin.",
    "answers": [["heads", "obverse"], "tails"],
}


def test_own_prompts(write: Write) -> None:
    (prompt,) = read_prompts(write(GOOD, "\n"))
    assert (prompt.id, prompt.prompt) == ("a", GOOD["prompt"])
    assert prompt.names == [("heads", "obverse"), ("tails",)]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["a prompt\n"], "line 1"),
        (["[1]\n"], "item 1"),
        ([], "mine.jsonl"),
        ([GOOD, GOOD | {"prompt": "Other"}], "id as in line 1"),
        ([GOOD, GOOD | {"id": "b"}], "line 2"),
        ([{"prompt": "x", "answers": ["a", "b"]}], "`id`"),
        ([GOOD | {"prompt": " "}], "$.prompt"),
        ([GOOD | {"prompt": "\ud800"}], "line 1"),
        ([{"id": "a", "prompt": "x"}], "`answers`"),
        ([GOOD | {"answers": "heads"}], "$.answers"),
        ([GOOD | {"answers": ["heads"]}], "$.answers"),
        ([GOOD | {"answers": ["heads", []]}], "$.answers[1]"),
        ([GOOD | {"answers": ["heads", 1]}], "$.answers[1]"),
        ([GOOD | {"answers": ["heads", "tai\nls"]}], "$.answers[1]"),
        ([GOOD | {"answers": ["heads", "..."]}], "'...'"),
        ([GOOD | {"answers": ["heads", "The Heads."]}], "'The Heads.'"),
        ([GOOD | {"answers": [["heads", "côté"], ["tails", "Cote"]]}], "'Cote'"),
    ],
)
def test_files_that_are_refused(write: Write, rows: list[Any], named: str) -> None:
    with pytest.raises(DataError) as raised:
        read_prompts(write(*rows))
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)
