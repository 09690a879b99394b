"""Grammars: converted from schemas and regular expressions, refused with llama.cpp's reasons, never fatal."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from mink_local import Constraints, MinK, Request, SamplingParams, sandbox
from mink_local.generation.model import Model
from mink_local.llama import grammar
from mink_local.llama.grammar import tidied
from mink_local.llama.regex_grammar import from_regex


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('root ::= "a', "end of input"),
        ("root ::= rest", "'rest'"),
        ('start ::= "a"', "'root'"),
        ('root ::= root "a" | "b"', "left recursion"),
        ("root ::= <nonsense>", "'<nonsense>'"),
        ("root ::= \udc80", "preceding item"),
        ('root ::= "x" a\na ::= b a\nb ::= ([^])?', "crashed"),
        (f"root ::= {'(' * 200_000}", "crashed"),
    ],
    ids=range(8),  # pytest puts a test's name into the environment, where the last one does not fit
)
def test_bad_grammars(smollm2_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
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
    with pytest.raises(ValueError, match=r"1 s|GiB|crashed"):
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
    trials = count()

    def counted(*arguments: Any, **limits: Any) -> Any:
        next(trials)
        return sandbox.ask(*arguments, **limits)

    def complaint(_: int) -> str:
        try:
            grammar.check(text, smollm2_path)
        except ValueError as error:
            return str(error)
        return ""

    monkeypatch.setattr(grammar, "ask", counted)
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(complaint, range(8)))) == next(trials) == 1


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "property name"),
        ({"type": "banana"}, "banana"),
        ({"$ref": "https://example.org/cat"}, "'https://example.org/cat'"),
    ],
)
def test_schemas_that_are_none(schema: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
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


# JSON schemas

NODE = {"properties": {"kids": {"items": {"$ref": "#/$defs/Node"}, "type": "array"}}}
TREE = {"$defs": {"Node": NODE}, "$ref": "#/$defs/Node"}


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        ({}, {"type": "value"}),
        ({"title": "Anything"}, {"title": "Anything", "type": "value"}),
        ({"items": True}, {"items": {"type": "value"}}),
        ({"type": "string", "enum": ["a"]}, {"enum": ["a"]}),
        ({"allOf": [{"enum": ["a"]}], "title": "A"}, {"enum": ["a"], "title": "A"}),
        (
            {"properties": {"type": {"type": "string"}}, "additionalProperties": True},
            {"properties": {"type": {"type": "string"}}, "additionalProperties": {"type": "value"}},
        ),
        (TREE, {"$defs": {"Node": NODE}, **NODE}),
    ],
)  # fmt: skip
def test_what_the_converter_gets(schema: dict[str, Any], form: dict[str, Any]) -> None:
    before = json.dumps(schema)
    assert tidied(schema) == form
    assert json.dumps(schema) == before


def test_each_of_several_types_keeps_its_own_limits() -> None:
    schema = {"type": ["string", "null"], "maxLength": 1}
    assert tidied(schema)["anyOf"] == [{"type": "string", "maxLength": 1}, {"type": "null", "maxLength": 1}]
    assert "root ::= alternative-0 | null" in grammar.from_json_schema(schema)


@pytest.mark.parametrize(
    "schema", [TREE, {}, {"type": "string", "maxLength": 1000}], ids=["tree", "any", "long"]
)
def test_llama_cpp_takes_the_grammar(schema: dict[str, Any], smollm2_path: Path) -> None:
    grammar.check(grammar.from_json_schema(schema), smollm2_path)


@pytest.mark.parametrize(
    ("schema", "limit"),
    [
        ({"type": "string", "minLength": 10**9}, "10000"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "10000"),
        ({"prefixItems": [{"type": "array", "maxItems": 6000}] * 2}, "10000"),
        ({"properties": {str(i): {} for i in range(257)}}, "256"),
        ({"properties": {"a" * 257: {}}}, "256"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "'#/[$]defs/a'"),
        ({"properties": 5}, "malformed"),
    ],
)
def test_a_schema_that_gives_no_grammar_is_refused(schema: dict[str, Any], limit: str) -> None:
    with pytest.raises(ValueError, match=f"json_schema.* {limit}"):
        grammar.from_json_schema(schema)


@pytest.mark.parametrize("limits", [{"maxLength": 8}, {"pattern": "^.[^a]{1,6}$"}])
@pytest.mark.parametrize("text", ["\n", '"'])
def test_a_string_has_what_json_allows_whatever_the_model_wants(
    smollm2: Model, limits: dict[str, Any], text: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", **limits}}, "required": ["a"]}
    [token] = smollm2.tokenize(text)
    constraints = Constraints(json_schema=schema, logit_bias={token: 30.0})
    reply = smollm2.chat([{"role": "user", "content": "Hi"}], max_tokens=40, seed=1, constraints=constraints)
    assert list(json.loads(reply.read())) == ["a"]


def test_a_text_that_looks_like_a_class_is_kept() -> None:
    assert '"\\"[^a]\\""' in grammar.from_json_schema({"const": "[^a]"})


# Regular expressions, with llama.cpp's sampler between them and what is sampled


PATTERNS = [
    r"^\d{3}-\d{2,4}$",
    r"(red|blue|)\s\w+\.",
    r"[^a-z\n]{1,5}|[\w.+-]{2,6}@[a-c]\.org",
    r'"é東":\S{2}.',
    r"(?:ab)*?c+",
    r"x?\"[\]^-]{3}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_sampled_matches(smollm2: Model, pattern: str) -> None:
    constraints = Constraints(grammar=from_regex(pattern))
    params = [
        SamplingParams(
            sampler=MinK(floor=9.0), temperature=5.0, max_tokens=40, seed=i, constraints=constraints
        )
        for i in range(4)
    ]
    ended = [
        answer.text
        for answer in smollm2.answer_all(Request("Say:", one) for one in params)
        if answer.finish_reason == "stop"
    ]
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in ended), ended
    assert ended or pattern.endswith(("c+", ".")), pattern  # an open end may go on


@pytest.mark.parametrize(
    "pattern",
    ["(", r"(a)\1", "(?=a)b", r"\bword", "(?i)a", "(?i:a)", r"[\W\d]", "a{99999999999}", "(" * 5000],
)
def test_what_no_grammar_has_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="regular expression"):
        from_regex(pattern)
