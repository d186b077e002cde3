"""Whether the parameters of a tool are a JSON schema, as far as anything here or a grammar will rely on it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.errors import RequestError

MAX_DEPTH = 64
TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
SCHEMAS = ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPPINGS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
TEXTS = ("$ref", "format", "description", "title", "$id", "$schema", "$anchor")
# What ECMA 262 writes otherwise than Python: classes by property, named groups.
OTHER_REGEX = re.compile(r"\\[pP]\{[^{}]*\}|\(\?<(?=[A-Za-z_])")


def check_parameters(schema: Any, path: str) -> None:
    """RequestError naming what under `path` is no schema, or no schema of an object, which arguments always are."""
    if schema.get("type", "object") != "object":
        raise _fault(f"{path}.type", f'must be "object", got {shown(schema["type"])}')
    check_schema(schema, path)


def check_schema(schema: Any, path: str, depth: int = 0) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, Mapping):
        raise _fault(path, f"must be a JSON schema, an object, got {shown(schema)}")
    if depth > MAX_DEPTH:
        raise _fault(path[:200], f"is nested deeper than {MAX_DEPTH} levels")
    for key, value in schema.items():
        at = f"{path}.{key}"
        if key in SCHEMAS:
            check_schema(value, at, depth + 1)
        elif key in LISTS:
            for i, part in enumerate(_require(value, list, at, "a list of schemas", not_empty=True)):
                check_schema(part, f"{at}[{i}]", depth + 1)
        elif key in MAPPINGS:
            for name, part in _require(value, Mapping, at, "an object of schemas").items():
                check_schema(part, f"{at}.{name}", depth + 1)
                if key == "patternProperties":
                    _check_regex(name, at)
        else:
            _check_value(key, value, at)


def _check_value(key: str, value: Any, at: str) -> None:
    if key == "type":
        given = value if isinstance(value, list) else [value]
        if not given or not all(isinstance(one, str) and one in TYPES for one in given):
            raise _fault(at, f"must be one of {', '.join(TYPES)}, or a list of them, got {shown(value)}")
    elif key == "pattern":
        _check_regex(_require(value, str, at, "a regular expression"), at)
    elif key == "enum":
        _require(value, list, at, "a list of values", not_empty=True)
    elif key == "required":
        if not all(isinstance(name, str) for name in _require(value, list, at, "a list of names")):
            raise _fault(at, "must be a list of names")
    elif key in COUNTS:
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _fault(at, f"must be a whole number from 0, got {shown(value)}")
    elif key in NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _fault(at, f"must be a number, got {shown(value)}")
    elif key in TEXTS:
        _require(value, str, at, "a text")


def _require(value: Any, kind: Any, at: str, what: str, not_empty: bool = False) -> Any:
    if not isinstance(value, kind) or (not_empty and not value):
        raise _fault(at, f"must be {what}, got {shown(value)}")
    return value


def _check_regex(pattern: str, at: str) -> None:
    try:
        re.compile(OTHER_REGEX.sub(lambda match: "x" if match[0][0] == "\\" else "(?P<", pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise _fault(at, f"is no regular expression: {error}") from None


def shown(value: Any) -> str:
    """The value as an error message quotes it: short, whatever the client sent."""
    try:
        return f"{value!r:.60}"
    except RecursionError:
        return "a value nested too deeply to show"


def _fault(path: str, problem: str) -> RequestError:
    return RequestError(f"{path} {problem}.", path)
