"""What answers conform to: schemas, expressions, choices and grammars, kept or refused, never fatal."""

import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial, reduce
from itertools import permutations
from pathlib import Path
from threading import Event
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import llama_cpp as C
from numpy.typing import NDArray

from mink_local.errors import ConstraintError, GenerationError, ModelError, NoTokenLeftError
from mink_local.llama import guide
from mink_local.llama.guide import Guide
from mink_local.llama.json_schema import closed, kept_schema
from mink_local.llama.token_data import APPLY, SamplingBuffers, edited
from mink_local.llama.weights import Weights
from mink_local.samplers.rows import NO_TOKENS
from tests.support.schemas import PATTERNS, STAND_IN, suite

INF, NAN = np.inf, np.nan


def allowed(found: Guide) -> NDArray[np.int64]:
    """Return the tokens that may come next."""
    return np.flatnonzero(np.unpackbits(found.mask().view(np.uint8), bitorder="little"))


def accepts(found: Guide, weights: Weights, text: str) -> bool:
    """Return whether a text is a whole answer."""
    for token in weights.tokenize(text, add_special=False, parse_special=False):
        if token not in allowed(found):
            return False
        found.accept(token)
    return bool(weights.end_tokens & set(allowed(found).tolist()))


def wild_text(found: Guide, weights: Weights, rng: random.Random, n_tokens: int = 400) -> str | None:
    """Return a text of tokens chosen at random among the allowed ones; None if it does not end.

    After a while, the shortest tokens that begin with what closes JSON are chosen.
    """
    closing = {byte: i for i, byte in enumerate(b'"}].0ec,:')}
    tokens: list[int] = []
    while len(tokens) < n_tokens:
        ids = allowed(found).tolist()
        if found.is_over or weights.end_tokens & set(ids):
            if found.is_over or len(tokens) > 40 or rng.random() < 0.5:
                return b"".join(map(weights.piece, tokens)).decode()
            ids = [token for token in ids if token not in weights.end_tokens] or ids
        token = rng.choice(ids)
        if len(tokens) > 20:
            token = min(
                ids, key=lambda one: (closing.get(weights.piece(one)[:1][0], 9), len(weights.piece(one)))
            )
        tokens.append(token)
        found.accept(token)
    return None


# JSON schemas: the JSON-Schema-Test-Suite, draft 7

# Valid values that are rejected: spellings of numbers that llguidance does not write, draft 7's rule that the
# neighbours of a $ref are ignored, where later drafts keep them, and properties that no schema names.
SPELLED_OTHERWISE = re.compile(r"\d\.0\b")
DRAFT_7_ONLY = "ref overrides any sibling keywords"


def is_left_out(name: str, schema: Any, value: Any) -> bool:
    """Return whether a valid value may be rejected."""
    if SPELLED_OTHERWISE.search(json.dumps(value)) or DRAFT_7_ONLY in name:
        return True
    narrower = (closed(schema), kept_schema(schema, name))
    return name.startswith("suite") and not any(
        jsonschema.Draft7Validator(s).is_valid(value) for s in narrower
    )


def in_any_order(value: Any) -> list[Any]:
    """Return a value with its names in all orders: a guide wants that of the schema."""
    if isinstance(value, list):
        return (
            [[*head, item] for head in in_any_order(value[:-1]) for item in in_any_order(value[-1])]
            if value
            else [[]]
        )
    if not isinstance(value, dict) or len(value) > 4:
        return [value]
    return [
        dict(zip(names, parts, strict=True))
        for names in permutations(value)
        for parts in in_any_order([value[name] for name in names])
    ]


def wrong_about(found: Callable[[], Guide], weights: Weights, value: Any, is_valid: bool) -> bool:
    texts = [json.dumps(one, ensure_ascii=False) for one in (in_any_order(value) if is_valid else [value])]
    return is_valid is not any(accepts(found(), weights, text) for text in texts)


@pytest.mark.parametrize(
    "cases",
    [
        pytest.param(suite(), id="suite"),
        [
            (str(s), json.dumps(s), [*((v, True) for v in a), *((v, False) for v in b)])
            for s, a, b in STAND_IN
        ],
    ],
    ids=["suite", "stand-in, as text"],
)
def test_what_is_taken_is_kept(
    weights: Weights, cases: list[tuple[str, Any, list[tuple[Any, bool]]]]
) -> None:
    """No invalid value is accepted, no valid one rejected but for its spelling; or the schema is refused."""
    wrong, n_taken = [], 0
    for name, schema, values in cases:
        make = partial(Guide, "json_schema", schema, weights)
        try:
            make()
        except ConstraintError:
            continue
        n_taken += len(values)
        wrong += [
            (name, value, is_valid)
            for value, is_valid in values
            if wrong_about(make, weights, value, is_valid)
            and not (is_valid and is_left_out(name, schema, value))
        ]
    assert wrong == []
    assert n_taken > 50


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a" * 999: 5}}, f"properties.{'a' * 64}"),
        ({"properties": {"a": 5}}, "properties.a"),
        ({"properties": {"a": {"x-guidance": {"lenient": True}}}}, "properties.a.x-guidance"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "x-guidance"),
        ({"minProperties": 3}, "minProperties"),
        ({"enum": [1, 2**60]}, "enum[1]"),
        ({"items": {"const": "a\0b"}}, "items.const"),
        ({"properties": {"a\x01": {}}}, "properties[0]"),
        ({"pattern": r"^\x00$"}, "pattern"),
        ({"$id": "a", "$ref": "#"}, "$id"),
        ({"properties": {str(i): {} for i in range(257)}}, "properties"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_kept_is_refused_with_its_place(schema: Any, place: str) -> None:
    before = json.dumps(schema)
    for given_as in (schema, before):
        with pytest.raises(ConstraintError) as refused:
            guide.check("json_schema", given_as, "form")
        assert refused.value.place == f"form.{place}"
        assert str(refused.value).startswith(f"form.{place}: ")
        assert len(str(refused.value)) < 500
    assert json.dumps(schema) == before


def test_annotations_cost_nothing(tiny_weights: Weights) -> None:
    described = {"title": "A", "description": "x" * 10**6, "type": "integer", "default": {"not": "a schema"}}
    Guide("json_schema", described, tiny_weights)


# Property tests: whatever ends parses, and is valid


def schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "name", "é", 'q"', "a b"])
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "maxItems": st.integers(0, 4)}),
        st.dictionaries(names, inner, max_size=4).flatmap(
            lambda properties: st.fixed_dictionaries(
                {
                    "type": st.just("object"),
                    "properties": st.just(properties),
                    "required": st.lists(st.sampled_from(sorted(properties) or ["a"]), unique=True),
                    "additionalProperties": st.sampled_from([False, True, {"type": "integer"}]),
                }
            )
        ),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=2)}),
    )


NUMBERS, COUNTS = st.integers(-999, 999), st.integers(0, 9)
LEAVES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "integer", "number", "boolean", "null"])}),
    st.builds(lambda enum: {"enum": enum}, st.lists(st.text(max_size=3) | st.integers(-99, 99), min_size=1)),
    st.builds(lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n}, NUMBERS, COUNTS),
    st.builds(lambda low, n: {"type": "string", "minLength": low, "maxLength": low + n}, COUNTS, COUNTS),
    st.builds(lambda x: {"type": "string", "pattern": x}, st.sampled_from([r"^\d{2}$", "ab", "^[^a]{3}$"])),
    st.builds(
        lambda x: {"type": "string", "format": x}, st.sampled_from(["date", "date-time", "uuid", "email"])
    ),
    st.builds(lambda x: {"type": "number", "multipleOf": x}, st.sampled_from([0.5, 0.01, 3, 10])),
)


@pytest.mark.slow
@given(schema=st.recursive(LEAVES, schemas, max_leaves=8), seed=st.integers(0, 2**32))
def test_whatever_ends_is_valid(weights: Weights, schema: Any, seed: int) -> None:
    try:
        found = Guide("json_schema", schema, weights)
    except ConstraintError:
        return
    text = wild_text(found, weights, random.Random(seed))
    if text is not None:
        checker = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        assert list(checker.iter_errors(json.loads(text))) == [], text


# Regular expressions and choices


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_sampled_matches(weights: Weights, pattern: str) -> None:
    ended = [wild_text(Guide("regex", pattern, weights), weights, random.Random(i), 40) for i in range(6)]
    texts = [text for text in ended if text is not None]
    assert texts
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in texts), texts


def test_one_of_several_texts(weights: Weights) -> None:
    choices = ["a/b", "é", "🧩|", "a", "x\ny", 'q"']
    for text in choices:
        assert accepts(Guide("choice", choices, weights), weights, text)
    for text in ("b", "a/", "x", "", "🧩"):
        assert not accepts(Guide("choice", choices, weights), weights, text)
    many = [f"alternative {i}" for i in range(3000)]
    assert accepts(Guide("choice", many, weights), weights, many[-1])


# Grammars


@pytest.mark.parametrize(
    ("grammar", "texts", "others"),
    [
        ('root ::= word "x"\nword ::= [a-z]+', ["abx", "xx"], ["ab", "x"]),
        ('root ::= item*\nitem ::= "a" | "abc" | "bcd"', ["abcd", "aabc", ""], ["bc"]),
        ('root ::= "\\u0041\\x42\\U00000043é\\n\\"" [^\\]"/\\\\a-c-]', ['ABCé\n"x'], ['ABCé\n"-', "A"]),
        ('root ::= .', ["\n", "é"], ["", "ab"]),
        ('root ::= ("a" | )', ["a", ""], ["b"]),
        ('root ::= "a" |  # either\n  "b"\n# or nothing\n', ["a", "b"], ["c"]),
        ("root ::= [a-]{2} [^^]?", ["a-", "--x"], ["a", "a-^"]),
        ('root ::= "a/b" [/] "//"', ["a/b///"], ["a/b/"]),
        ('root ::= pair\npair ::= "(" pair? ")"', ["()", "((()))"], ["", "(()"]),
        ('root ::= root "a" | "b"', ["baa", "b"], ["a"]),
        ('my-Root ::= "a"\nroot ::= my-Root my_root\nmy_root ::= "b"', ["ab"], ["a"]),
        ('root ::= "a"{2} "b"{1,} "c"{0,1}', ["aab", "aabbc"], ["ab", "aabcc"]),
        ("%llguidance {}\nstart: /a+/", ["aa"], ["b"]),
        ('start: "<" NAME ">" // <no> %json\nNAME: /[a-z\\/]+/', ["<a/>"], ["<>"]),
        ('start: "n: " %json {"type": "integer"}', ["n: 5"], ["n: x"]),
        ('start: "a" | b\nb: "b" start', ["bba"], ["b"]),
    ],
)  # fmt: skip
def test_a_grammar_means_what_it_says(
    weights: Weights, grammar: str, texts: list[str], others: list[str]
) -> None:
    for text in (*texts, *others):
        assert accepts(Guide("grammar", grammar, weights), weights, text) is (text in texts), text


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= a a root | "y"\na ::= "x"+', 'root ::= "x"{3,} [x]+ root | "y"',
        'root ::= ("x" "x"?)+ a root | "y"\na ::= "x"*', 'root ::= b* b* root | "y"\nb ::= [\\x78-x]',
        'root ::= "x" root',
    ],
)  # fmt: skip
def test_one_letter_repeated_without_end_has_an_end(weights: Weights, grammar: str) -> None:
    """llguidance goes on for ever where a terminal has no other way to go on, and no end."""
    with suppress(ConstraintError, GenerationError):
        found = Guide("grammar", grammar, weights)
        for _ in range(50):
            tokens = found.forced() or allowed(found).tolist()[-1:]
            if not found.begin(tokens[:20]):
                break


def test_a_chain_of_rules_does_not_overflow_the_stack(tiny_weights: Weights) -> None:
    for first, last in (("r", "r"), ("R", "R")):
        rules = [f"{first}{i}: {first}{i + 1}" for i in range(5000)]
        Guide("grammar", "\n".join([f"start: {first}0", *rules, f'{last}5000: "a"']), tiny_weights)


def test_a_step_that_takes_too_long_is_an_error(weights: Weights) -> None:
    ways = " | ".join(" ".join("s" * n) for n in range(2, 24))
    found = Guide("grammar", f'start: s\ns: {ways} | "a"', weights)
    [token] = weights.tokenize("a", add_special=False, parse_special=False)

    def go_on() -> None:
        for _ in range(300):
            found.mask()
            found.accept(token)

    with pytest.raises(NoTokenLeftError, match="ways"):
        go_on()


def test_what_compiles_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, tiny_weights: Weights) -> None:
    released = Event()
    monkeypatch.setattr(guide, "_SECONDS", 0.1)
    monkeypatch.setattr(guide, "_matcher", lambda *_: released.wait())
    with pytest.raises(ConstraintError, match=r"regex.*simplify"):
        Guide("regex", "a", tiny_weights)
    released.set()


# What today's generators of schemas write

EMAIL = r"^(?!\.)[a-z.]+@[a-z]+\.[a-z]{2,}$"  # zod 4
DECIMAL = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}  # Pydantic
SAYS_NOTHING = [
    ({"type": "string", "format": "email", "pattern": EMAIL}, {"type": "string", "format": "email"}),
    ({"anyOf": [{"type": "number"}, DECIMAL]}, {"anyOf": [{"type": "number"}]}),
    (
        {"anyOf": [{"type": "number"}, DECIMAL, {"type": "null"}]},
        {"anyOf": [{"type": "number"}, {"type": "null"}]},
    ),
    (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    *(
        ({"type": "string", "format": name}, {"type": "string"})
        for name in ("path", "password", "binary", "uri-reference", "url", "x" * 99)
    ),
    ({"type": "array", "uniqueItems": False}, {"type": "array"}),
]


@pytest.mark.parametrize(("schema", "same"), SAYS_NOTHING)
def test_what_says_nothing_to_a_validator_is_left_out(schema: dict[str, Any], same: dict[str, Any]) -> None:
    assert kept_schema(schema, "json_schema") == kept_schema(same, "json_schema")
    inside = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    kept_schema(inside, "json_schema")


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"not": {}}, "not"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "string", "pattern": EMAIL}, "pattern"),
        (DECIMAL, "pattern"),
        ({"anyOf": [DECIMAL, {"type": "null"}]}, "anyOf[0].pattern"),
    ],
)
def test_what_cannot_be_kept_names_its_place(schema: dict[str, Any], place: str) -> None:
    inside = {"type": "object", "properties": {"price": {"anyOf": [{"type": "null"}, schema]}}}
    for whole, expected in ((schema, place), (inside, f"properties.price.anyOf[1].{place}")):
        with pytest.raises(ConstraintError) as refused:
            kept_schema(whole, "json_schema")
        assert expected in str(refused.value)


@pytest.mark.parametrize("token", ["<[2683]>", "<think>", "!<[2]>", "!<|end|>"])
def test_tokens_in_gbnf_are_named(token: str, tiny_weights: Weights) -> None:
    with pytest.raises(ConstraintError, match="tokens in GBNF are not supported"):
        Guide("grammar", f'root ::= "a" {token}* "x"', tiny_weights)


# What is refused

DOUBLING = "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60)) + '\nr60 ::= "a"'
REFUSED: dict[str, list[Any]] = {
    "json_schema": [
        "{", "[1]", [1], {"enum": []}, {"multipleOf": 99_991}, {"enum": [INF]}, {"enum": ["\ud800"]}, False,
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"minLength": 3, "maxLength": 1, "type": "string"}, {"allOf": 3, "format": "date"},
        {"allOf": [{"pattern": f"a.{{{i}}}b"} for i in range(30)]},
        {"properties": {f"a{i}": {"multipleOf": 9000 + i} for i in range(200)}},
        {"properties": {"age": {"not": {}}}}, {"items": {"uniqueItems": True}},
        {"pattern": "(?=a)b"}, {"minimum": "x"}, {"$ref": "https://example.org/cat"}, {"type": "banana"},
        {"$ref": "#/$defs/a", "$defs": {}}, {"properties": 5},
        {"oneOf": [{"type": "integer"}, {"minimum": 2}]}, {"enum": [object()]}, {"const": {1}},
        reduce(lambda inner, _: {"items": inner}, range(9000), dict[str, Any]()),
    ],
    "regex": [
        "(", r"(a)\1", "(?=a)b", r"\bword", "a^b", "a$b", "a{99999999999}", "(" * 4000, "a" * 5000, "\ud800",
        "[^\\x00-\\x{10ffff}]",
    ],
    "grammar": [
        'root ::= "a', "root ::= rest", 'start ::= "a"', "root ::= <nonsense>", "root ::= \udc80", "hello",
        'root ::= "a"{2,1}', "root ::= [\U0010ffff-\x01]", 'root ::= "\\U00110000"', 'root ::= "\ud800"',
        "root ::= x root\nx ::= y?\ny ::= root", f"root ::= {'(' * 60_000}", DOUBLING,
        "start: <|im_end|>", "start: <[99999999]>", '%llguidance {"allow_invalid_utf8": true}\nstart: /a/',
        "start: %json {", 'start: %json {"not": {}, "x-guidance": {"lenient": true}}',
        'start: %regex {"substring_chars": "ab"}',
        'start[temperature=0.1]: "a"', "start: @1", f"start: {'(' * 60_000}", "start: r" + "a" * 70_000,
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        pytest.param(kind, form, id=f"{kind}-{i}")
        for kind, forms in REFUSED.items()
        for i, form in enumerate(forms)
    ],
)
def test_what_cannot_be_enforced_is_refused(tiny_weights: Weights, kind: str, form: Any) -> None:
    with pytest.raises(ConstraintError, match=kind) as refused:
        Guide(kind, form, tiny_weights)
    assert len(str(refused.value)) < 500


# Tokens


def test_control_tokens_are_no_text(weights: Weights) -> None:
    found = Guide("regex", r"(?s:.*)", weights)
    ids = set(allowed(found).tolist())
    special = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
    attributes = (C.llama_vocab_get_attr(weights.vocab, token) for token in range(weights.n_vocab))
    control = {token for token, attribute in enumerate(attributes) if attribute & special}
    assert weights.end_tokens <= ids, "the empty text may end"
    assert not (control - weights.end_tokens) & ids
    spelled = Guide("choice", ["<|im_end|>"], weights)
    assert not control & set(allowed(spelled).tolist())


def test_a_grammar_in_lark_may_name_tokens(weights: Weights) -> None:
    """Only so can it have those that are no text."""
    for token in (5, max(weights.end_tokens), weights.n_vocab - 1):
        assert allowed(Guide("grammar", f'start: <[{token}]> "a"', weights)).tolist() == [token]


def test_any_end_token_ends_what_is_complete(weights: Weights) -> None:
    for token in weights.end_tokens:
        found = Guide("regex", "a*", weights)
        assert not found.is_over
        found.accept(token)
        assert found.is_over


def test_a_token_that_is_not_allowed(weights: Weights) -> None:
    found = Guide("choice", ["yes"], weights)
    with pytest.raises(GenerationError):
        found.accept(sorted(weights.end_tokens)[0])
    with pytest.raises(GenerationError):
        found.mask()


def test_what_can_only_go_on_in_one_way_is_forced(weights: Weights) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "integer"}}, "required": ["name"]}
    found = Guide("json_schema", schema, weights)
    tokens = found.forced()
    text = b"".join(map(weights.piece, tokens)).decode()
    assert '{"name": 1'.startswith(text)
    assert '{"name' in text
    assert found.begin(tokens)
    assert Guide("choice", ["yes", "no"], weights).forced() == []


def test_each_model_has_its_tokenizer_once(weights: Weights, tiny_weights: Weights) -> None:
    assert guide.tokenizer_of(weights) is guide.tokenizer_of(weights)
    assert guide.tokenizer_of(weights) is not guide.tokenizer_of(tiny_weights)


@given(st.integers(1, 200), st.integers(0, 2**32), st.sampled_from([(), (INF,), (-INF, NAN), (NAN,)]))
def test_masked_logits(n_ordinary: int, seed: int, special: Sequence[float]) -> None:
    """As NumPy would mask them; a row with a NaN stays as it is, whether or not that token is allowed."""
    rng = np.random.default_rng(seed)
    row = rng.permutation([*rng.normal(0, 5, n_ordinary), *special]).astype(np.float32)
    bits = rng.random(row.size) < 0.5
    mask = np.packbits(np.pad(bits, (0, -row.size % 32)), bitorder="little").view(np.uint32)
    found = edited(APPLY, row, NO_TOKENS, 0, NO_TOKENS, mask, SamplingBuffers(row.size).arrays)
    np.testing.assert_array_equal(found, np.where(bits | np.isnan(row).any(), row, -INF))


def test_weights_are_closed_while_their_tokenizer_is_made(smollm2_path: Path) -> None:
    weights = Weights(smollm2_path, vocab_only=True)
    future = guide.tokenizer_of(weights)
    weights.close()
    assert isinstance(future.exception(60), ModelError | None), "the vocabulary is kept until then"


def test_who_does_not_constrain_does_not_import_llguidance(tiny_path: Path) -> None:
    program = (
        "import sys; from mink_local import load_model, Constraints\n"
        f"with load_model({str(tiny_path)!r}, n_ctx=64, trust=True) as model:\n"
        "    model.chat('x', max_tokens=2, constraints=Constraints(repeat_penalty=1.1)).read()\n"
        "assert 'llguidance' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        ({"properties": {"a": {}}}, True),
        ({"properties": {"a": {}}, "required": ["a"]}, True),
        ({"allOf": [{"properties": {"a": {}}}]}, True),
        ({"$ref": "#/$defs/b", "title": "B", "$defs": {"b": {"properties": {"a": {}}}}}, True),
        ({"additionalProperties": {"properties": {"a": {}}}}, True),
        ({"properties": {"a": {}}, "required": ["b"]}, False),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, False),
        ({"properties": {"a": {}}, "patternProperties": {"^b": {}}}, False),
        ({"properties": {"a": {}}, "anyOf": [{"required": ["b"]}]}, False),
        ({"properties": {"a": {}}, "anyOf": [{"properties": {"b": {}}}]}, False),
        ({"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}}, False),
        ({"allOf": [{"$ref": "#/$defs/b"}, {}], "$defs": {"b": {"properties": {"b": {}}}}}, False),
        ({"type": "object"}, False),
        ({"const": {"properties": {"a": 1}}}, False),
    ],
)
def test_objects_that_name_their_properties_have_no_others(schema: dict[str, Any], is_closed: bool) -> None:
    """Unless the schema says more about them, wherever they are, and whether it is a text."""
    for given_as in (schema, json.dumps(schema), {"items": {"anyOf": [schema, {"type": "null"}]}}):
        with suppress(ConstraintError):  # a reference that leads nowhere from there
            kept = kept_schema(given_as, "form")
            assert ('"additionalProperties": false' in json.dumps(kept)) is is_closed


def test_parts_of_a_oneof_exclude_each_other_when_they_are_open() -> None:
    """Closed, {"a": 1} would be the first only, but by the schema it is both."""
    first = {"type": "object", "properties": {"a": {}}, "required": ["a"]}
    with pytest.raises(ConstraintError) as refused:
        kept_schema({"oneOf": [first, {"type": "object", "properties": {"b": {}}}]}, "form")
    assert refused.value.place == "form"
