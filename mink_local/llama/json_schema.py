"""JSON schemas that llguidance can enforce; others are refused, with their place where it is known."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NoReturn

from mink_local.errors import ConstraintError
from mink_local.sandbox import in_a_line

# llguidance limits the size of what it builds, but not the time for some keywords.
MAX_SCHEMA = 1 << 18  # characters, without descriptions and examples
MAX_VALUES = 5_000
MAX_DEPTH = 64  # levels of objects and lists
MAX_PROPERTIES = 256  # of an object: each that is optional doubles the ways to go on
MAX_PATTERNS = 16  # that may have to match at once: the time doubles with each
MAX_MULTIPLE = 50_000  # an automaton has this many states for `multipleOf`
_LONGEST_PLACE = 400  # characters
_EXACT = 1 << 53  # llguidance reads numbers as float64

_ANNOTATIONS = {
    "$comment", "default", "deprecated", "description", "example", "examples", "readOnly", "title",
    "writeOnly",
}  # fmt: skip
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_ANY_NAME: tuple[Any, ...] = ({"type": "string"}, {}, True)  # schemas of names that all names conform to
_KNOWN_FORMATS = {  # to llguidance; others are annotations
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "unknown", "uri", "uuid",
}  # fmt: skip
_OF_NAMES = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
_OF_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_OF_ONE = ("additionalItems", "additionalProperties", "items")
_MERGING = {"$ref", "allOf", "anyOf", "oneOf"}
_OF_FURTHER = {  # what says more about an object than its own properties
    "additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "if", "minProperties",
    "not", "patternProperties", "propertyNames", "unevaluatedProperties",
}  # fmt: skip
_OF_OBJECTS = _OF_FURTHER | {"properties", "required"}
_SAYS_MORE = _OF_FURTHER | _MERGING
_VALUES = (
    "const",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maximum",
    "minimum",
    "pattern",
    "required",
)
# Characters that JSON writes as \u0001 only, which `OPTIONS` exclude; llguidance would leave them out.
_CONTROL = re.compile(r"[\0-\x07\x0b\x0e-\x1f\x7f]|\\(?:x|u00)(?:[01]|7f)", re.IGNORECASE)
_LEAP_YEAR = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|"
    rf"02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
# llguidance's own have leap days in every year, and minutes of 61 seconds.
_FORMATS = {"date": f"^{_DATE}$", "time": f"^{_TIME}$", "date-time": f"^{_DATE}T{_TIME}$"}
# Escapes for characters that need none would let a model write a property's name in another way.
OPTIONS = {
    "item_separator": ", ",
    "key_separator": ": ",
    "whitespace_flexible": False,
    "json_allowed_escapes": 'nrbtf\\"',
}
"""llguidance's options for JSON: one way to set spaces, so that most tokens between values are forced."""

Path = tuple[str | int, ...]


def closed(schema: Any) -> Any:
    """Return a schema whose objects have only the properties that it names, unless it says more about them.

    Small models invent further ones without end.
    """
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = dict(schema)
    for name in (*_OF_LISTS, *_OF_ONE):
        if name in schema:
            made[name] = closed(schema[name])
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), Mapping):
            made[name] = {key: closed(value) for key, value in schema[name].items()}
    properties = schema.get("properties")
    is_whole = isinstance(properties, Mapping) and set(schema.get("required", ())) <= properties.keys()
    if is_whole and not _SAYS_MORE & schema.keys():
        made["additionalProperties"] = False
    return made


def kept_schema(schema: Any, option: str) -> dict[str, Any]:
    """Return a schema as llguidance takes it: without annotations, `closed`, with `OPTIONS`.

    A schema that puts an object together from several parts stays open: each names some of its properties.

    Raises:
        ConstraintError: It cannot be enforced; the error names `option` and, if known, the place.
    """
    try:
        found = json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError) as error:
        raise ConstraintError(option, f"it is not JSON: {error}") from None
    if isinstance(found, bool):
        found = {} if found else {"enum": []}
    checks = _Checks(option)
    kept: dict[str, Any] = checks.kept(found)
    checks.finish(kept)
    if complaint := _complaint(kept):
        named = re.search(r'Unimplemented keys: \["(\w+)"', complaint)
        place = next(_places_of(kept, named[1]), ()) if named else ()
        raise ConstraintError(option, in_a_line(complaint.split(". Enable")[0]), written(place))
    if not checks.combines:
        kept = closed(kept)  # only now: the parts of a oneOf must exclude each other when they are open
    return kept | {"x-guidance": OPTIONS}


def written(path: Path) -> str:
    """Return a place in a schema as text, such as `properties.tags.items.anyOf[1]`; a long name is cut."""
    steps = (f"[{key}]" if isinstance(key, int) else f".{str(key)[:64]}" for key in path)
    return "".join(steps).removeprefix(".")[:_LONGEST_PLACE]


def _says_nothing(key: str, value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a keyword forbids nothing, or only what the schema's `format` forbids too."""
    return (
        key in _ANNOTATIONS
        or (key, value) == ("uniqueItems", False)
        or (key == "propertyNames" and value in _ANY_NAME)
        or (key == "format" and str(value) not in _KNOWN_FORMATS)
        or (key == "pattern" and str(schema.get("format")) in _KNOWN_FORMATS and _looks_around(schema))
    )


def _looks_around(schema: Any) -> bool:
    """Return whether a schema has a pattern that looks around, which llguidance does not."""
    return isinstance(schema, Mapping) and bool(_LOOK_AROUND.search(str(schema.get("pattern", ""))))


def _without_look_around(parts: list[Any]) -> list[Any]:
    """Return alternatives without those that look around, if others are left, as of Pydantic's Decimal."""
    left = [part for part in parts if not _looks_around(part) or "format" in part]
    return left if any(part != {"type": "null"} for part in left) else parts


def _places_of(value: Any, key: str, path: Path = ()) -> Iterator[Path]:
    """Yield the places where a schema has a key."""
    for name, part in _parts(value).items():
        if name == key:
            yield (*path, name)
        yield from _places_of(part, key, (*path, name))


class _Checks:
    """Rewrites a schema, and rejects what is slow to compile or cannot be enforced exactly.

    Attributes:
        combines: Whether several parts of the schema are about the same object.
    """

    def __init__(self, option: str) -> None:
        self.combines = False
        self._option = option
        self._n_values = 0
        self._merges = False
        self._patterns: set[str] = set()
        self._multiples: list[int] = []

    def kept(self, schema: Any, path: Path = ()) -> Any:
        """Return a schema without annotations and no-op keywords."""
        self._count(path)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._refuse("a schema must be an object, true or false", path)
        if "x-guidance" in schema:
            self._refuse("it is not part of JSON Schema", (*path, "x-guidance"))
        kept: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _OF_NAMES and isinstance(value, Mapping):
                self._data(list(value), (*path, key), is_value=True)
                kept[key] = {name: self.kept(part, (*path, key, name)) for name, part in value.items()}
            elif key in _OF_LISTS and isinstance(value, list):
                self._count((*path, key))
                parts = _without_look_around(value) if key == "anyOf" else value
                kept[key] = [self.kept(part, (*path, key, i)) for i, part in enumerate(parts)]
            elif key in _OF_ONE:
                kept[key] = self.kept(value, (*path, key))
            elif not _says_nothing(key, value, schema):
                self._data(value, (*path, key), key in _VALUES)
                kept[key] = value
        self._check_keywords(kept, path)
        pattern = _FORMATS.get(str(kept.get("format")))
        if pattern is not None and isinstance(kept.setdefault("allOf", []), list):
            del kept["format"]
            kept["allOf"] += [{"pattern": pattern}]
        return _nullable(kept) if kept.pop("nullable", False) is True else kept

    def finish(self, kept: Mapping[str, Any]) -> None:
        """Check the schema as a whole."""
        if self._merges and len(self._patterns) > MAX_PATTERNS:
            self._refuse(f"more than {MAX_PATTERNS} patterns and formats, with allOf or the like", ())
        if sum(self._multiples) > MAX_MULTIPLE or math.lcm(*set(self._multiples)) > MAX_MULTIPLE:
            self._refuse("its multipleOf are too large", ())
        try:
            size = len(json.dumps(kept, allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError) as error:
            raise ConstraintError(self._option, f"it is not JSON: {error}") from None
        if size > MAX_SCHEMA:
            self._refuse(f"it is longer than {MAX_SCHEMA} bytes", ())

    def _count(self, path: Path) -> None:
        self._n_values += 1
        if len(path) > MAX_DEPTH:
            self._refuse(f"it is nested deeper than {MAX_DEPTH} levels", path[:8])
        if self._n_values > MAX_VALUES:
            self._refuse(f"it has more than {MAX_VALUES} values", ())

    def _data(self, value: Any, path: Path, is_value: bool) -> None:
        """Count plain values; reject those that cannot be enforced exactly, if that matters."""
        self._count(path)
        if is_value and isinstance(value, int) and abs(value) > _EXACT:
            self._refuse("whole numbers above 2^53 cannot be enforced exactly", path)
        if is_value and isinstance(value, str) and _CONTROL.search(value):
            self._refuse("control characters are not supported", path)
        for key, child in _parts(value).items():
            self._data(child, (*path, key), is_value)

    def _check_keywords(self, schema: Mapping[str, Any], path: Path) -> None:
        for key in ("properties", "patternProperties"):
            if isinstance(found := schema.get(key), Mapping) and len(found) > MAX_PROPERTIES:
                self._refuse(f"more than {MAX_PROPERTIES} properties", (*path, key))
        if _looks_around(schema):
            self._refuse("look-around is not supported", (*path, "pattern"))
        self._patterns |= {str(schema[key]) for key in ("format", "pattern") if key in schema}
        self._merges |= bool(_MERGING & schema.keys()) and len(schema) > 1
        has_several = isinstance(schema.get("allOf"), list) and len(schema["allOf"]) > 1
        self._merges |= has_several
        merging = _MERGING & schema.keys()
        self.combines |= has_several or len(merging) > 1 or bool(merging and _OF_OBJECTS & schema.keys())
        if "$id" in schema and "$ref" in schema:
            self._refuse("drafts of JSON Schema differ about $id beside $ref", (*path, "$id"))
        least, required = schema.get("minProperties"), schema.get("required")
        if isinstance(least, int) and least > max(1, len(required) if isinstance(required, list) else 0):
            self._refuse("names that are not in required may repeat", (*path, "minProperties"))
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and math.isfinite(multiple):
            digits = Decimal(str(multiple)).normalize().as_tuple().digits
            self._multiples.append(int("".join(map(str, digits))) or 1)

    def _refuse(self, reason: str, path: Path) -> NoReturn:
        raise ConstraintError(self._option, reason, written(path))


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that also allows null, as OpenAPI's `nullable` does."""
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
    if isinstance(kind := schema.get("type"), str):
        return schema | {"type": [kind, "null"]}
    return {"anyOf": [schema, {"type": "null"}]} if _MERGING & schema.keys() else schema


def _complaint(schema: Mapping[str, Any]) -> str:
    """Return llguidance's complaint about a schema, or ""."""
    from llguidance import LLMatcher

    return str(LLMatcher.validate_grammar(LLMatcher.grammar_from_json_schema(json.dumps(schema))))


def _parts(value: Any) -> Mapping[Any, Any]:
    """Return what is in an object or a list, by name or index; nothing for other values."""
    if isinstance(value, Mapping):
        return value
    return dict(enumerate(value)) if isinstance(value, list) else {}
