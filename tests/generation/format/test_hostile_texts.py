"""Hostile chat templates, grammars and JSON schemas are refused or stopped in one sentence."""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mink_local import Constraints, Model, load_model
from mink_local.errors import MinkError
from mink_local.generation.format.rendering import Renderer
from tests.support.effort import examples
from tests.support.tiny import write_scripted

MESSAGES = [{"role": "user", "content": "Hi"}]
SEEDS = st.integers(0, 2**32)

TEXTS = [
    "", "a", "b", "ab", "user", "x", "yes", "0", "Hello", " ", "\n", "\\", '"', "\x07", "\u2028", "😀",
    "\ufffd", "[", "]", "{{", "%}", "é" * 50, "a" * 3000,
]  # fmt: skip
NUMBERS = [
    0, 1, -1, 2, 63, 1000, 10**5, 2**31, 2**63, 10**30, 0.5, 1e308,
]  # fmt: skip

STATEMENTS = [
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}",
    "{% for i in range(NUM) %}BODY{% endfor %}",
    "{% for i in range(NUM) %}{% for j in range(NUM) %}BODY{% endfor %}{% endfor %}",
    "{% macro f(x) %}{{ f(x) }}{{ f(x) }}BODY{% endmacro %}{{ f(1) }}",
    "{% set ns = namespace(a='a') %}{% for i in range(40) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
    "{% if EXPR %}BODY{% else %}BODY{% endif %}",
    "{% set x = EXPR %}{{ x }}",
    "{{ EXPR }}",
    "{{ EXPR | FILTER }}",
    "{{ raise_exception(EXPR) }}",
]
BROKEN = [
    "{% include 'TEXT' %}",
    "{% generation %}BODY{% endgeneration %}",
    "{% break %}",
    "{% raw %}BODY",
    "{# BODY",
    "TEXT",
]
EXPRESSIONS = [
    "messages", "messages[NUM]", "messages[0].content", "bos_token", "eos_token * NUM", "'TEXT'", "NUM",
    "'a' * NUM", "[1] * NUM", "NUM ** NUM", "NUM // 0", "messages | tojson(indent=NUM)", "self",
    "range(NUM)", "range(NUM) | list", "'%NUMd' % 1", "'{:>NUM}'.format(1)", "''.__class__.__mro__",
    "cycler.__init__.__globals__", "strftime_now('TEXT%')", "joiner(EXPR)", "namespace(x=EXPR).x",
    "EXPR ~ EXPR", "EXPR + EXPR", "lipsum(n=NUM)", "dict(a=EXPR)", "tools", "enable_thinking",
    "undefined.a.b", "(EXPR).x(EXPR)", "loop.index",
]  # fmt: skip
FILTERS = [
    "tojson", "length", "trim", "list", "join", "replace('', 'TEXT')", "center(NUM)", "indent(NUM)",
    "wordwrap(NUM)", "batch(NUM)|list", "sum", "sort", "pprint", "urlize", "items|list",
    "map('upper')|list", "xmlattr", "nonsense",
]  # fmt: skip
RULES = [
    "root ::= PART", "root ::= PART\na ::= PART", "root ::= a\na ::= PART a | b\nb ::= PART | a",
    "root ::= root", "root ::= a\na ::= a PART", "root ::= a\na ::= b a\nb ::= PART?",
    "root ::= PART | PART\n\n# TEXT", "a ::= PART", "root ::=", "::= PART", "root = PART", "PART",
    "root ::= (PART", "root ::= PART)\n" * 3, "root ::= " + "(" * 9999, "root ::= " + "a" * 20_000,
    "root ::= PART\n" * 500, "root ::= a\n" + "a ::= a | PART\n" * 30,
]  # fmt: skip
PARTS = [
    '"TEXT"', "[a-z]", "[^a]", "[z-a]", "[]", "[^]", ".", "PART PART", "PART | PART", "(PART)",
    "(PART)*", "(PART)+", "(PART)?", "PART{NUM}", "PART{NUM,}", "PART{NUM,NUM}", "PART{,NUM}",
    "((PART*)*)*", r'"\xFF"', r'"\U0010FFFF"', r'"\u"', r'"\q"', "[\\x00-\\U0010FFFF]", "a", "root",
    "missing", '"', "[", "{", "<[1]>", "!<[2]>", "<[99999999]>", "PART+ PART+ PART+",
    "(PART | (PART | ))+",
]  # fmt: skip
REFERENCES = ["#", "#/", "#/$defs/a", "#/properties/a", "#/$defs/", "http://127.0.0.1:1/x", 7]
WORDS: dict[str, Sequence[object]] = {
    "EXPR": EXPRESSIONS,
    "FILTER": FILTERS,
    "BODY": STATEMENTS,
    "PART": PARTS,
    "TEXT": TEXTS,
    "NUM": NUMBERS,
}


def filled(rng: Random, text: str, depth: int = 6) -> str:
    """Return a text with every word in capitals replaced, recursively, by a choice from its list."""
    for word, choices in WORDS.items():
        while word in text:
            chosen = str(rng.choice(choices))
            if depth == 0 and any(other in chosen for other in WORDS):
                chosen = {"EXPR": "1", "PART": '"a"', "FILTER": "trim"}.get(word, "a")
            text = text.replace(word, filled(rng, chosen, depth - 1) if depth else chosen, 1)
            if len(text) > 50_000:
                return text
    return text


VALUES: st.SearchStrategy[Any] = (
    st.sampled_from([*TEXTS, *NUMBERS, None, True, "7"]) | st.just({}) | st.just([])
)
PATTERNS = [
    "^a*$",
    "^(a|b){3}$",
    "(a+)+$",
    "^[a-",
    "^.{2000000000}$",
    r"^\d\w\s\b$",
    "^(?=a)$",
    "^" + "(" * 3000,
]
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object", "nonsense", 7, None]
SCHEMAS = st.recursive(
    VALUES | st.builds(lambda kind: {"type": kind}, st.sampled_from(KINDS)),
    lambda schemas: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), max_size=2),
            "pattern": st.sampled_from(PATTERNS) | VALUES,
            "enum": st.lists(VALUES, max_size=3) | VALUES.map(lambda value: [value] * 500),
            "$ref": st.sampled_from(REFERENCES),
            **dict.fromkeys(
                ("properties", "$defs"), st.dictionaries(st.sampled_from(TEXTS), schemas, max_size=3)
            ),
            **dict.fromkeys(("items", "additionalProperties", "not"), schemas),
            **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), st.lists(schemas, max_size=3)),
            **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"), VALUES),
            **dict.fromkeys(("required", "const", "format", "nonsense"), VALUES),
        },
    ),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    turns = "{% for m in messages %}{{ m.content }}{% endfor %}<assistant>"
    path = tmp_path_factory.mktemp("scripted") / "x.gguf"
    with load_model(write_scripted(path, turns, {"<assistant>": ["a", "b"]}), n_threads=1) as model:
        yield model


def check_sentence(error: Exception) -> None:
    assert 0 < len(str(error)) < 1000
    assert "\n" not in str(error)


@pytest.mark.slow
@examples(20)
@given(SEEDS)
def test_templates(seed: int) -> None:
    rng = Random(seed)
    lists = rng.choices([STATEMENTS, BROKEN], [9, 1], k=rng.choice([1, 1, 2, 5]))
    template = "".join(filled(rng, rng.choice(some)) for some in lists)
    renderer = Renderer(template, bos_token="<s>", eos_token="</s>")
    try:
        renderer(MESSAGES * rng.choice([1, 1, 10]), add_generation_prompt=True)
    except MinkError as error:
        check_sentence(error)
    finally:
        renderer.close()


@pytest.mark.slow
@examples(20)
@given(SEEDS)
def test_grammars(model: Model, seed: int) -> None:
    rng = Random(seed)
    check_answer(model, grammar=filled(rng, rng.choice(RULES), depth=4))


@pytest.mark.slow
@examples(20)
@given(SCHEMAS)
def test_schemas(model: Model, schema: Any) -> None:
    check_answer(model, json_schema=json.dumps(schema))


def check_answer(model: Model, **options: Any) -> None:
    try:
        model.chat(MESSAGES, constraints=Constraints(**options), max_tokens=8, seed=1, temperature=5.0).read()
    except (ValueError, MinkError) as error:
        check_sentence(error)
