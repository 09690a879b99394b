"""The bundled prompts, and files of prompts that are not as they should be."""

import json
import keyword
from pathlib import Path

import pytest

from mink_local.errors import DataError
from mink_local.evals.coverage.answers import AnswerSet, Valid, normalise
from mink_local.evals.coverage.prompts import BUNDLED, ClosedPrompt, read_prompts

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


def test_every_name_is_found_and_no_name_is_there_twice(bundled: dict[str, ClosedPrompt]) -> None:
    for prompt in bundled.values():
        answers = AnswerSet(prompt.names)
        names = [(name, i) for i, names in enumerate(prompt.names) for name in names]
        assert [answers.classify(name) for name, _ in names] == [Valid(i) for _, i in names]
        assert [answers.classify(f" **{name}**.\n") for name, _ in names] == [Valid(i) for _, i in names]
        forms = [normalise(name) for name, _ in names]
        assert len(forms) == len(set(forms)), prompt.id
        assert "Answer with" in prompt.prompt


def test_sets_that_a_program_can_compute(bundled: dict[str, ClosedPrompt]) -> None:
    numbers = {
        "primes": [n for n in range(2, 100) if all(n % d for d in range(2, n))],
        "one-to-a-hundred": range(1, 101),
        "even-numbers": range(2, 51, 2),
        "multiples-of-seven": range(7, 100, 7),
        "divisors-of-sixty": [n for n in range(1, 61) if 60 % n == 0],
        "die": range(1, 7),
        "powers-of-two": [2**i for i in range(1, 11)],
    }
    for name, expected in numbers.items():
        assert sorted(map(int, first_names(bundled[name]))) == sorted(expected)
    assert first_names(bundled["python-keywords"]) == set(keyword.kwlist)
    assert first_names(bundled["letters"]) == {chr(code) for code in range(65, 91)}
    assert {names[1] for names in bundled["greek-letters"].names} == set("αβγδεζηθικλμνξοπρστυφχψω")
    assert {names[0][0] for names in bundled["spelling-alphabet"].names} == first_names(bundled["letters"])


def test_sets_that_hold_others(bundled: dict[str, ClosedPrompt]) -> None:
    of = {name: first_names(prompt) for name, prompt in bundled.items()}
    assert of["us-states-with-m"] == {name for name in of["us-states"] if name.startswith("M")}
    assert of["new-england"] < of["us-states"]
    assert of["group-18"] | of["group-17"] | of["alkali-metals"] < of["elements"]
    assert (
        {"Austria", "Denmark", "France"}
        < of["neighbours-of-germany"] - {"Switzerland"}
        < of["european-union"]
    )
    assert of["security-council"] & of["g7"] == {"France", "United Kingdom", "United States"}


GOOD = {"id": "a", "prompt": "Name one side of a coin.", "answers": [["heads", "obverse"], "tails"]}


def written(folder: Path, *rows: object) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), "utf-8"
    )
    return path


def test_own_prompts(tmp_path: Path) -> None:
    (prompt,) = read_prompts(written(tmp_path, GOOD, ""))
    assert (prompt.id, prompt.prompt) == ("a", GOOD["prompt"])
    assert prompt.names == [("heads", "obverse"), ("tails",)]


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (["a prompt"], "line 1"),
        ([[1]], "line 1"),
        ([], "prompts.jsonl"),
        ([GOOD, GOOD | {"prompt": "Other"}], "line 2: 'a' is in line 1"),
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
def test_files_that_are_refused(tmp_path: Path, rows: list[object], named: str) -> None:
    with pytest.raises(DataError) as raised:
        read_prompts(written(tmp_path, *rows))
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.jsonl", tmp_path / ("long" * 999)):
        with pytest.raises(DataError):
            read_prompts(path)
