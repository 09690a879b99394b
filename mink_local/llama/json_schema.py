"""Put JSON schemas into the form that llama-cpp-python's converter reads right.

The converter takes a schema without a type for an object or refuses it, knows one type of a list of types,
follows no reference at the root, and writes a rule of a gigabyte for `minLength: 1000000000`.
"""

import re
from collections.abc import Mapping
from typing import Any

MAX_REPETITIONS = 10_000  # of one schema; the converter writes each out
MAX_PROPERTIES = 256  # of one object; the converter's time grows with the square
MAX_NAME = 256  # characters of a property's name; it is part of the names of rules

_ANY: dict[str, Any] = {"type": "value"}  # the converter's name for any JSON value
_SHAPING = {
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "format", "items", "oneOf", "pattern",
    "prefixItems", "properties", "type",
}  # fmt: skip
_OF_NAMES = ("$defs", "definitions", "properties")
_OF_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")


def tidied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema that means the same to the converter as this one to people.

    Raises:
        ValueError: The grammar would be too large, or a `$ref` is not of the schema itself.
    """
    result: dict[str, Any] = _Tidying().of(schema)
    if (reference := result.get("$ref")) is not None:
        definitions: dict[str, Any] = {
            name: result[name] for name in ("$defs", "definitions") if name in result
        }
        target: Any = result
        for key in reference[2:].split("/"):
            target = target.get(key, {})
        if not target:
            raise ValueError(f"its $ref {reference!r} leads nowhere")
        result = {**target, **definitions}
    return result


class _Tidying:
    """Tidies the parts of one schema, and counts what they repeat."""

    def __init__(self) -> None:
        self._repetitions = 0

    def of(self, schema: Any) -> Any:
        if schema is True:
            return _ANY
        if not isinstance(schema, Mapping):
            return schema
        self._check_size(schema)
        if not str(schema.get("$ref", "#/")).startswith("#/"):
            raise ValueError(f"its $ref {schema['$ref']!r} must begin with #/, the schema itself")
        schema = {key: self._member(key, value) for key, value in schema.items()}
        if not _SHAPING & schema.keys():
            return {**schema, **_ANY}
        if "enum" in schema or "const" in schema:
            schema.pop("type", None)
        if isinstance(kinds := schema.get("type"), list):
            rest = {
                key: value for key, value in schema.items() if key not in ("type", "$defs", "definitions")
            }
            schema["anyOf"] = [{**rest, "type": kind} for kind in kinds]
        if isinstance(parts := schema.get("allOf"), list) and len(parts) == 1 and isinstance(parts[0], dict):
            del schema["allOf"]
            schema |= parts[0]
        return schema

    def _member(self, key: str, value: Any) -> Any:
        if key in _OF_NAMES and isinstance(value, Mapping):
            return {name: self.of(part) for name, part in value.items()}
        if key in _OF_LISTS and isinstance(value, list):
            return [self.of(part) for part in value]
        if key == "items":
            return [self.of(part) for part in value] if isinstance(value, list) else self.of(value)
        return self.of(value) if key == "additionalProperties" else value

    def _check_size(self, schema: Mapping[str, Any]) -> None:
        counts = [schema[key] for key in _COUNTS if key in schema]
        counts += map(int, re.findall(r"\d{1,9}", str(schema.get("pattern", ""))))
        self._repetitions += sum(count for count in counts if isinstance(count, int))
        if self._repetitions > MAX_REPETITIONS:
            raise ValueError(f"it asks for more than {MAX_REPETITIONS} repetitions")
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            if len(properties) > MAX_PROPERTIES:
                raise ValueError(f"an object has more than {MAX_PROPERTIES} properties")
            if max(map(len, properties), default=0) > MAX_NAME:
                raise ValueError(f"the name of a property has more than {MAX_NAME} characters")
