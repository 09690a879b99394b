"""Tools from Python functions: the schema from the signature, the descriptions from the docstring.

def get_weather(city: str, days: int = 1) -> str:
    \"""Return the weather forecast of a city.

    Args:
        city: Its name.
        days: How many days ahead.
    \"""
"""

import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any

from mink_local.checks import shown
from mink_local.errors import OptionError
from mink_local.llama.json_types import schema_of

_ARGUMENT = re.compile(r"^\s+\*{0,2}(\w+)(?:\s*\(.*\))?:\s*(.+)")


def tool_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool, in OpenAI's format: parameters without a default are required.

    Raises:
        OptionError: A parameter cannot be given by name, or has no type that JSON has.
    """
    name, described = getattr(function, "__name__", shown(function)), inspect.getdoc(function) or ""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        known = inspect.signature(function).parameters.values()
    except (TypeError, ValueError, NameError) as error:
        raise OptionError(f"tools: {name}", f"has no signature with types: {error}") from None
    texts = _descriptions(described)
    properties: dict[str, Any] = {}
    required = []
    for each in known:
        place = f"tools: {name}({each.name})"
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise OptionError(place, "cannot be given by name")
        if each.name not in hints:
            raise OptionError(place, "needs a type, such as str")
        properties[each.name] = dict(schema_of(hints[each.name], place))
        if each.name in texts:
            properties[each.name]["description"] = texts[each.name]
        if each.default is each.empty:
            required.append(each.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    about = described.partition("\n\n")[0].replace("\n", " ")
    return {"type": "function", "function": {"name": name, "description": about, "parameters": parameters}}


def _descriptions(docstring: str) -> Mapping[str, str]:
    """Return what the section "Args:" of a docstring says of each argument."""
    _, _, rest = docstring.partition("\nArgs:\n")
    section = re.split(r"\n(?=\S)", rest)[0]
    joined = re.sub(r"\n {8,}", " ", section)
    return {found[1]: found[2] for line in joined.split("\n") if (found := _ARGUMENT.match(line))}
