"""GBNF grammars: converted from JSON schemas, and tested in a child process before this one parses them.

llama.cpp rejects most broken grammars, but some kill the process: `"a"{2,1}` eats all memory, left recursion
behind a possibly empty rule never ends, a purely recursive rule leaves no token to compare, and thousands of
nested parentheses overflow the stack. So a child process, which runs this module, goes first.
"""

import ctypes
import json
import os
import re
import tempfile
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from llama_cpp import llama_cpp as C
from llama_cpp.llama_grammar import json_schema_to_gbnf

from mink_local.llama.weights import cpu_params
from mink_local.sandbox import GIB, SandboxError, ask, in_a_line, serve

ROOT = b"root"
_SECONDS = 20.0  # a sane grammar takes a few milliseconds, a large vocabulary half a second
_NEGATED = re.compile(r'"(?:\\.|[^"\\])*"|(\[\^)')  # after string literals, which may contain it
_TRYING = [threading.Lock() for _ in range(16)]
_RULE = re.compile(r"([a-zA-Z0-9-]+)\s*::=")

# The converter treats a schema without a type as an object or rejects it, honours only one of a list of
# types, does not follow a reference at the root, and writes a gigabyte of rules for `minLength: 1000000000`:
# hence `tidied` and these limits.
MAX_REPETITIONS = 10_000  # per schema; the converter spells out each one
MAX_PROPERTIES = 256  # per object; the converter takes quadratic time
MAX_NAME = 256  # characters per property name, which becomes part of rule names

_ANY: dict[str, Any] = {"type": "value"}  # the converter's name for any JSON value
_SHAPING = {
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "format", "items", "oneOf", "pattern",
    "prefixItems", "properties", "type",
}  # fmt: skip
_OF_NAMES = ("$defs", "definitions", "properties")
_OF_LISTS = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_OF_ONE = ("items", "additionalProperties")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength")


def from_json_schema(schema: str | Mapping[str, Any]) -> str:
    """Return a grammar for the JSON that a schema allows, using llama-cpp-python's converter.

    Raises:
        ValueError: The schema cannot be converted, or its grammar would be too large.
    """
    try:
        members = json.loads(schema) if isinstance(schema, str) else schema
        converted = str(json_schema_to_gbnf(json.dumps(tidied(members))))
        # The converter allows line breaks in strings, and quotes where a pattern contains a dot.
        return _NEGATED.sub(lambda match: r'[^"\\\x00-\x1F' if match[1] else match[0], converted)
    except (AssertionError, ValueError) as error:
        reason = str(error)
    except RecursionError:
        reason = "it is nested too deeply"
    except Exception:  # the converter trips over a list instead of an object, for example
        reason = "it is malformed"
    raise ValueError(f"cannot convert json_schema to a grammar: {in_a_line(reason)}")


def tidied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return an equivalent schema that the converter handles correctly.

    Raises:
        ValueError: The grammar would be too large, or a `$ref` points outside the schema.
    """
    result: dict[str, Any] = _Tidying().of(schema)
    if (reference := result.get("$ref")) is not None:
        kept = ("$defs", "definitions")
        definitions: dict[str, Any] = {name: result[name] for name in kept if name in result}
        target: Any = result
        for key in reference[2:].split("/"):
            target = target.get(key, {})
        if not target:
            raise ValueError(f"its $ref {reference!r} points nowhere")
        result = {**target, **definitions}
    return result


class _Tidying:
    """Rewrites the parts of one schema and counts their repetitions."""

    def __init__(self) -> None:
        self._repetitions = 0

    def of(self, schema: Any) -> Any:
        if schema is True:
            return _ANY
        if not isinstance(schema, Mapping):
            return schema
        self._check_size(schema)
        if not str(schema.get("$ref", "#/")).startswith("#/"):
            raise ValueError(f"its $ref {schema['$ref']!r} must start with #/, the schema itself")
        schema = {key: self._member(key, value) for key, value in schema.items()}
        if not _SHAPING & schema.keys():
            return {**schema, **_ANY}
        if "enum" in schema or "const" in schema:
            schema.pop("type", None)
        if isinstance(kinds := schema.get("type"), list):
            rest = {key: part for key, part in schema.items() if key not in ("$defs", "definitions")}
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
        return self.of(value) if key in _OF_ONE else value

    def _check_size(self, schema: Mapping[str, Any]) -> None:
        counts = [schema[key] for key in _COUNTS if key in schema]
        counts += map(int, re.findall(r"\d{1,9}", str(schema.get("pattern", ""))))
        self._repetitions += sum(count for count in counts if isinstance(count, int))
        if self._repetitions > MAX_REPETITIONS:
            raise ValueError(f"it has more than {MAX_REPETITIONS} repetitions")
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            if len(properties) > MAX_PROPERTIES:
                raise ValueError(f"an object has more than {MAX_PROPERTIES} properties")
            if max(map(len, properties), default=0) > MAX_NAME:
                raise ValueError(f"a property name has more than {MAX_NAME} characters")


def check(grammar: str, model: Path) -> None:
    """Test a grammar with the vocabulary of a model file in a child process; thread-safe.

    Raises:
        ValueError: The grammar does not parse, or makes llama.cpp crash.
        ChildStartError: The child process does not start.
    """
    try:
        # Threads with the same grammar wait for the first one; others rarely wait.
        with _TRYING[hash(grammar) % len(_TRYING)]:
            complaint = _tried(grammar, model)
    except SandboxError as error:
        raise ValueError(f"the grammar cannot be used: llama.cpp {error}") from None
    if complaint is not None:
        raise ValueError(f"the grammar does not parse: {complaint}")


@lru_cache(maxsize=64)
def _tried(grammar: str, model: Path) -> str | None:
    """Return a child process's complaint about a grammar, or None."""
    complaint: str | None = ask(
        "mink_local.llama.grammar", [str(model.absolute()), grammar], seconds=_SECONDS, memory=2 * GIB
    )
    return complaint


def _complaint(question: tuple[str, str]) -> str | None:
    """Return llama.cpp's first complaint about a grammar, or None; in a child, since llama.cpp may abort."""
    model, grammar = question[0], question[1].encode("utf-8", "replace")
    params = cpu_params()
    params.vocab_only = True
    vocab = C.llama_model_get_vocab(C.llama_model_load_from_file(os.fsencode(model), params))
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)  # where llama.cpp complains
        if C.llama_sampler_init_grammar(vocab, grammar, ROOT):
            # Starting at a rule expands it to its first characters, which reveals endless recursion. If there
            # are none, applying it aborts the process, whatever the tokens.
            no_tokens = C.llama_token_data_array()
            for rule in set(_RULE.findall(question[1])):
                if sampler := C.llama_sampler_init_grammar(vocab, grammar, rule.encode()):
                    C.llama_sampler_apply(sampler, ctypes.byref(no_tokens))
            return None
        log.seek(0)
        lines = log.read().decode("utf-8", "replace").splitlines()
    first = next((line for line in lines if "grammar" in line), "llama.cpp gave no reason")
    return in_a_line(re.sub(r"^(parse: )?(error parsing grammar: )?", "", first))


if __name__ == "__main__":
    serve(lambda _: _complaint)
