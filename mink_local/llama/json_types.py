"""JSON schemas of Python types, and objects of these types from JSON: by Pydantic, which is optional."""

import json
import logging
from collections.abc import Mapping
from importlib import import_module
from inspect import isfunction
from typing import Any

from mink_local.checks import shown
from mink_local.errors import OptionError

log = logging.getLogger("mink_local")

_BASIC = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}


def schema_of(given: Any, option: str) -> Any:
    """Return a JSON schema: `given` itself if it is one, or that of a type.

    Args:
        given: A dict or JSON text; or any type that Pydantic's `TypeAdapter` takes, or an adapter.
        option: Its name, for errors.

    Raises:
        OptionError: It has no JSON schema, or Pydantic is not installed.
    """
    if _is_schema(given):
        return given
    if isinstance(given, type) and given in _BASIC:
        return {"type": _BASIC[given]}
    try:
        if not isfunction(given):  # whose arguments have a schema
            return _adapter(given).json_schema()
    except ImportError:
        raise OptionError(option, "must be a dict: for a type, install pydantic") from None
    except Exception as error:  # Pydantic has several kinds
        log.debug("%s", error)
    wanted = "must be a JSON schema (a dict), or a type that Pydantic can describe"
    raise OptionError(option, f"{wanted}, not {shown(given)}")


def object_of(given: Any, text: str) -> Any:
    """Return what a JSON text says; if `given` is a type, as an object of it.

    Raises:
        ValueError: The text is not JSON, or the type refuses it: a schema does not say all that a type does.
    """
    return json.loads(text) if _is_schema(given) else _adapter(given).validate_json(text)


def _is_schema(given: Any) -> bool:
    return isinstance(given, str | bool | Mapping)


def _adapter(given: Any) -> Any:
    return given if hasattr(given, "validate_json") else import_module("pydantic").TypeAdapter(given)
