"""Hostile chat templates, grammars and JSON schemas: the limits end them, and the parent lives."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from mink_local.errors import MinkError
from mink_local.generation.loading import load_model
from mink_local.generation.rendering import Renderer, TemplateError
from mink_local.llama.constraints import Constraints
from scripts.faults.kind import Case, Kind, check_sentence
from tests.support.scripted import write_scripted

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
KEYWORDS = [
    "properties", "items", "prefixItems", "anyOf", "oneOf", "allOf", "enum", "const", "$ref", "$defs",
    "pattern", "format", "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "required",
    "additionalProperties", "not", "nonsense",
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
    """Return a text with every word in capitals replaced by one of its list, whose words are replaced too."""
    for word, choices in WORDS.items():
        while word in text:
            chosen = str(rng.choice(choices))
            if depth == 0 and any(other in chosen for other in WORDS):
                chosen = {"EXPR": "1", "PART": '"a"', "FILTER": "trim"}.get(word, "a")
            text = text.replace(word, filled(rng, chosen, depth - 1) if depth else chosen, 1)
            if len(text) > 50_000:
                return text
    return text


def template(rng: Random) -> str:
    lists = rng.choices([STATEMENTS, BROKEN], [9, 1], k=rng.choice([1, 1, 2, 5]))
    return "".join(filled(rng, rng.choice(some)) for some in lists)


def grammar(rng: Random) -> str:
    return filled(rng, rng.choice(RULES), depth=4)


def schema(rng: Random, depth: int = 4) -> Any:
    """Return a JSON schema, or something like one."""

    def sub() -> Any:
        return schema(rng, depth - 1) if depth else rng.choice([True, False, None, {}, {"type": "string"}])

    if rng.random() < 0.08:
        return rng.choice([None, True, False, [], 0, "string", [{}], {"type": []}])
    result: dict[str, Any] = {}
    if rng.random() < 0.8:
        kinds = ["string", "integer", "number", "boolean", "null", "array", "object", "nonsense", 7, None]
        result["type"] = rng.choice([*kinds, ["string", "null"], [[]]])
    for _ in range(rng.randrange(4)):
        key = rng.choice(KEYWORDS)
        match key:
            case "properties" | "$defs":
                result[key] = {
                    rng.choice(TEXTS): sub() for _ in range(rng.choice([0, 1, 2, 3, 300]) if depth else 1)
                }
            case "items" | "additionalProperties" | "not":
                result[key] = sub()
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                result[key] = [sub() for _ in range(rng.randrange(4))]
            case "$ref":
                result[key] = rng.choice(REFERENCES)
            case "pattern":
                patterns = [
                    "^a*$",
                    "^(a|b){3}$",
                    "(a+)+$",
                    "^[a-",
                    "^.{2000000000}$",
                    r"^\d\w\s\b$",
                    "^(?=a)$",
                ]
                result[key] = rng.choice([*patterns, rng.choice(TEXTS), "^" + "(" * 3000])
            case "enum" | "required":
                result[key] = [
                    rng.choice([*TEXTS, *NUMBERS, None, {}]) for _ in range(rng.choice([0, 1, 3, 500]))
                ]
            case "const" | "nonsense" | "format":
                result[key] = rng.choice([*TEXTS, *NUMBERS, "date-time", "uuid", {}, []])
            case _:
                result[key] = rng.choice([*NUMBERS, "7", None])
        if rng.random() < 0.1:
            result[key] = rng.choice([None, 7, "", [], {}, True])
    return result


def begin(folder: Path) -> Case:
    turns = "{% for m in messages %}{{ m.content }}{% endfor %}<assistant>"
    model = load_model(
        str(write_scripted(folder / "x.gguf", turns, {"<assistant>": ["a", "b"]})), n_threads=1
    )
    messages = [{"role": "user", "content": "Hi"}]

    def rendered(rng: Random, folder: Path) -> str:
        text = template(rng)
        (folder / "template.jinja").write_text(text, errors="replace")
        renderer = Renderer(text, bos_token="<s>", eos_token="</s>")
        try:
            renderer(messages * rng.choice([1, 1, 10]), add_generation_prompt=True)
        except TemplateError as error:
            check_sentence(str(error))
            return "was stopped" if "was stopped" in str(error) else "refused"
        finally:
            renderer.close()
        return "taken"

    def constrained(rng: Random, folder: Path) -> str:
        """Return the outcome of an answer, on a grammar or on a schema."""
        if rng.random() < 0.5:
            given: dict[str, Any] = {"grammar": grammar(rng)}
        else:
            value = schema(rng)
            given = {
                "json_schema": rng.choice([value, json.dumps(value)]) if isinstance(value, dict) else "7"
            }
        (folder / "constraints.json").write_text(json.dumps(given), errors="replace")
        try:
            "".join(
                model.chat(messages, constraints=Constraints(**given), max_tokens=8, seed=1, temperature=5.0)
            )
        except (ValueError, MinkError) as error:
            check_sentence(str(error))
            return "refused"
        return "taken"

    def case(rng: Random, folder: Path) -> str:
        kind, do = rng.choice([("template", rendered), ("grammar or schema", constrained)])
        return f"{kind} {do(rng, folder)}"

    return case


KIND = Kind("texts", 10_000, begin)
