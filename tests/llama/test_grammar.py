"""Grammars: from JSON schemas, refused with llama.cpp's own words, and never the end of the process."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mink_local import sandbox
from mink_local.llama import grammar


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('root ::= "a', "the grammar does not parse: unexpected end of input"),
        ("root ::= rest", "the grammar does not parse: Undefined rule identifier 'rest'"),
        ('start ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a" | "b"', "left recursion"),
        ("root ::= <nonsense>", "invalid token '<nonsense>'"),
        ("root ::= \udc80", "the grammar does not parse: expecting preceding item"),
        ('root ::= "x" a\na ::= b a\nb ::= ([^])?', r"the grammar cannot be used: llama.cpp crashed \("),
        (f"root ::= {'(' * 200_000}", r"the grammar cannot be used: llama.cpp crashed \("),
    ],
    ids=range(8),  # pytest puts the name of a test into the environment, where the last one has no room
)
def test_bad_grammars(smollm2_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        grammar.check(text, smollm2_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a"{2,1}',
        'root ::= "z" more\nmore ::= maybe more "x" | "y"\nmaybe ::= empty\nempty ::= "" | "q"',
    ],
    ids=["backward range", "hidden left recursion"],
)
def test_grammars_without_end(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(grammar, "_SECONDS", 1.0)
    with pytest.raises(
        ValueError, match=r"the grammar cannot be used: llama.cpp (timed out after 1 s|took more|crashed)"
    ):
        grammar.check(text, smollm2_path)


def test_a_good_grammar_is_tried_once(
    smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    link = tmp_path / "other.gguf"
    link.symlink_to(smollm2_path)
    monkeypatch.chdir(tmp_path)
    grammar.check('root ::= "é" | [a-z]+', Path("other.gguf"))
    monkeypatch.setattr(grammar, "ask", lambda *_, **__: pytest.fail("tried again"))
    grammar.check('root ::= "é" | [a-z]+', Path("other.gguf"))


@pytest.mark.parametrize("text", ['root ::= "threads"', 'root ::= "threads'], ids=["good", "bad"])
def test_threads_try_a_grammar_once(smollm2_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    trials = []

    def counted(*arguments: Any, **limits: Any) -> Any:
        trials.append(arguments)
        return sandbox.ask(*arguments, **limits)

    monkeypatch.setattr(grammar, "ask", counted)

    def complaint(_: int) -> str | None:
        try:
            grammar.check(text, smollm2_path)
        except ValueError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(8) as pool:
        complaints = set(pool.map(complaint, range(8)))
    assert len(trials) == len(complaints) == 1


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "json_schema cannot be made into a grammar: Expecting property name"),
        ({"type": "banana"}, "Unrecognized schema"),
        ({"$ref": "https://example.org/cat"}, "'https://example.org/cat' must begin with #/"),
    ],
)
def test_schemas_that_are_none(schema: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        grammar.from_json_schema(schema)


def test_a_schema_becomes_a_grammar(smollm2_path: Path) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    text = grammar.from_json_schema(schema)
    assert text == grammar.from_json_schema(json.dumps(schema))
    grammar.check(text, smollm2_path)


def test_a_complaint_is_a_short_line(tiny_path: Path) -> None:
    for refuse in (
        lambda: grammar.from_json_schema({"type": "x\n" * 9999}),
        lambda: grammar.check(f"root ::= {'a' * 9999}", tiny_path),
    ):
        with pytest.raises(ValueError, match=r"[^\n]{100}…$") as refused:
            refuse()
        assert len(str(refused.value)) < 400
