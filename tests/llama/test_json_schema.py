"""Schemas in the converter's form, seen by the texts that their grammars allow."""

import json
from pathlib import Path
from typing import Any

import pytest

from mink_local import Constraints
from mink_local.generation.model import Model
from mink_local.llama import grammar
from mink_local.llama.json_schema import tidied

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
    ("schema", "sentence"),
    [
        ({"type": "string", "minLength": 10**9}, "more than 10000 repetitions"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "more than 10000 repetitions"),
        ({"prefixItems": [{"type": "array", "maxItems": 6000}] * 2}, "more than 10000 repetitions"),
        ({"properties": {str(i): {} for i in range(257)}}, "more than 256 properties"),
        ({"properties": {"a" * 257: {}}}, "more than 256 characters"),
        ({"$ref": "#/$defs/a", "$defs": {}}, "its [$]ref '#/[$]defs/a' leads nowhere"),
        ({"properties": 5}, "it is malformed"),
    ],
)
def test_a_schema_that_gives_no_grammar_is_refused(schema: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"json_schema cannot be made into a grammar: .*{sentence}"):
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
