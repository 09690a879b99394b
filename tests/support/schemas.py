"""Schemas, expressions and grammars: with values that are valid, and mutated into what nobody would write."""

import json
import random
from pathlib import Path
from typing import Any

SUITE = Path(__file__).parents[3] / "shared" / "data" / "json_schema"
STAND_IN: list[tuple[Any, list[Any], list[Any]]] = [  # schema, valid values, invalid ones
    ({}, [1, "a", None, {"b": [True]}], []),
    ({"type": "integer", "minimum": 1, "maximum": 300}, [1, 42, 300], [0, 301, -5, "1"]),
    ({"type": "number", "exclusiveMinimum": 0.5}, [0.51, 7], [0.5, 0, -1]),
    ({"type": "integer", "multipleOf": 7}, [0, 49, -7], [1, 50]),
    ({"type": "string", "pattern": "^\\d{3}-\\d{4}$"}, ["555-0123"], ["5550123", "555-01234", "٣٣٣-٣٣٣٣"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["ab", "🧩é"], ["a", "abcd"]),
    ({"type": "string", "maxLength": 4000}, ["a" * 100], [1]),
    ({"enum": ["a\nb", "🧩", "a\\b", 'a"b', 5, None]}, ["a\nb", "🧩", "a\\b", 'a"b', 5, None], ["ab", 6]),
    ({"const": {"a": [1, "x"]}}, [{"a": [1, "x"]}], [{"a": [1]}, {}]),
    ({"type": ["string", "null"], "maxLength": 1}, ["a", None], ["ab", 1]),
    ({"type": "string", "nullable": True}, ["a", None], [1]),
    ({"properties": {"a": {"type": "integer"}}, "required": ["a"]}, [{"a": 1}], [{}, {"a": "x"}]),
    ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, [{"a": 1, "b": 2, "c": 3}], []),
    ({"properties": {"a": {}}, "additionalProperties": False}, [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
    ({"patternProperties": {"^n": {"type": "integer"}}}, [{"n1": 1, "x": "y"}], [{"n1": "x"}]),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [[1, 2], [1, 2, 3]], [[1], ["a", "b"]]),
    ({"prefixItems": [{"const": 1}], "items": False}, [[1], []], [[2], [1, 2]]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "null"}}}, [None], [1]),
    ({"items": {"$ref": "#"}, "type": "array"}, [[], [[], [[]]]], [[1], 1]),
    ({"allOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, [3, 5], [2, 6]),
    ({"format": "date", "type": "string"}, ["2024-02-29"], ["2025-02-29", "2024-02-30", "x"]),
]  # fmt: skip

PATTERNS = [
    r"^\d{3}-\d{2,4}$",
    r"(red|blue|)\s\w+\.",
    r"[^a-z\n]{1,5}|[\w.+-]{2,6}@[a-c]\.org",
    r'"é東":\S{2}.',
    r"(?:ab)*?c+",
    r"x?\"[\]^-]{3}",
    r"(?i)yes|no/",
    r"a\$",
    r"[\W\d]{2}",
]
GRAMMARS = [
    'root ::= "{" pair ("," pair)* "}"\npair ::= [a-z]+ ":" (root | [0-9]{1,9})',
    *[f'root ::= "{i}" root | [^a-{c}] .' for i, c in enumerate("bcd")],
]


def suite() -> list[tuple[str, Any, list[tuple[Any, bool]]]]:
    """Return names, schemas and values, with whether they are valid."""
    if not SUITE.exists():
        return [
            (f"stand-in {i}", schema, [*((one, True) for one in valid), *((one, False) for one in invalid)])
            for i, (schema, valid, invalid) in enumerate(STAND_IN)
        ]
    return [
        (
            f"suite, {path.stem}: {case['description']}",
            case["schema"],
            [(t["data"], t["valid"]) for t in case["tests"]],
        )
        for path in sorted(SUITE.glob("*.json"))
        for case in json.loads(path.read_text(encoding="utf-8"))
    ]


def mutated(text: str, material: str, rng: random.Random) -> str:
    """Return a text with parts removed, repeated, replaced or nested."""
    for _ in range(rng.randint(1, 4)):
        start, end = sorted(rng.choices(range(len(text) + 1), k=2))
        at = rng.randrange(len(material))
        part = material[at : at + rng.randint(1, 20)]
        text = rng.choice(
            [
                text[:start] + text[end:],
                text[:start] + text[start:end] * rng.choice([2, 50]) + text[end:],
                text[:start] + part * rng.choice([1, 1, 1, 300]) + text[end:],
                text[:start] + rng.choice(["\0", "\ud800", "9" * 30, "{", "(", "𝄞", "\\"]) + text[start:],
            ]
        )[:30_000]
    return text


def mutated_schema(schema: Any, others: list[Any], rng: random.Random) -> Any:
    """Return a schema in which some values and names are those of other schemas, extreme, or repeated."""
    if rng.random() < 0.1:
        other = rng.choice(others)
        return rng.choice(
            [other, [other] * rng.choice([1, 40]), {"$ref": "#"}, "a" * 9, 10**30, -1, 0.5, None]
        )
    if isinstance(schema, list):
        return [mutated_schema(each, others, rng) for each in schema] * rng.choice([1, 1, 1, 2])
    if isinstance(schema, dict):
        names = [*schema, *(name for other in rng.choices(others, k=2) for name in list(_names(other))[:1])]
        return {name: mutated_schema(schema.get(name, 3), others, rng) for name in names}
    return schema


def _names(schema: Any) -> list[str]:
    return list(schema) if isinstance(schema, dict) else []
