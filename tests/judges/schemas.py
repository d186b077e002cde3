"""JSON schemas of many kinds, made from a seed, and what judges a reply."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import jsonschema

Schema = dict[str, Any]
CHECKER = jsonschema.FormatChecker()
FORMATS = ("date", "date-time", "email", "ipv4", "ipv6", "uuid")
PATTERNS = (
    "^[A-Z]{2}-[0-9]{3}$", "^\\d{2,4}$", "^\\w{1,8}$", "^[a-z]+(\\s[a-z]+)?$", "^(a|)b$", "^#[0-9a-f]{6}$",
    "^x?y{2,3}$", "^[^\\s]{1,6}$", "^(foo|bar)+$", "st.r", "o+$", "^[éü]{2}$",
)  # fmt: skip
WORDS = ("name", "size", "state", "city", "price", "kind", "note", "items", "total", "owner", "a b", "größe", 'q"t')


RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)


@CHECKER.checks("date-time", raises=ValueError)
def is_date_time(text: object) -> bool:
    """RFC 3339 with its leap seconds, which the library's own check does not know."""
    return not isinstance(text, str) or (bool(RFC_3339.fullmatch(text)) and bool(date.fromisoformat(text[:10])))


class Maker:
    """Schemas whose replies are short: texts and lists have bounds, objects are closed unless openness is the point."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kinds: dict[str, Callable[[int], Schema]] = {
            "object": self.object, "array": self.array, "tuple": self.tuple, "text": self.text, "pattern": self.pattern,
            "format": self.format, "integer": self.integer, "number": self.number, "multiple": self.multiple,
            "enum": self.enum, "const": self.const, "nullable": self.nullable, "any of": self.any_of,
            "one of": self.one_of, "all of": self.all_of, "reference": self.reference, "recursive": self.recursive,
            "map": self.map, "pattern properties": self.pattern_properties, "types": self.types,
        }  # fmt: skip

    def make(self, kind: str) -> Schema:
        return self.kinds[kind](2)

    def some(self, depth: int) -> Schema:
        """One without definitions of its own: references are to the root."""
        simple = ["text", "integer", "enum", "const", "nullable", "pattern", "number", "types", "format"]
        nested = ["object", "array", "tuple", "any of"]
        return self.kinds[self.random.choice(simple + nested * 2 if depth > 0 else simple)](depth - 1)

    def names(self, most: int) -> list[str]:
        return self.random.sample(WORDS, self.random.randint(1, most))

    def object(self, depth: int) -> Schema:
        names = self.names(4)
        required = [name for name in names if self.random.random() < 0.7]
        properties = {name: self.some(depth - 1) for name in names}
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    def array(self, depth: int) -> Schema:
        low = self.random.randint(0, 2)
        return {"type": "array", "items": self.some(depth - 1), "minItems": low, "maxItems": low + 2}

    def tuple(self, depth: int) -> Schema:
        items = [self.some(depth - 1) for _ in range(self.random.randint(1, 3))]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}

    def text(self, depth: int) -> Schema:
        low = self.random.randint(0, 4)
        return {"type": "string", "minLength": low, "maxLength": low + self.random.randint(0, 20)}

    def pattern(self, depth: int) -> Schema:
        return {"type": "string", "pattern": self.random.choice(PATTERNS), "maxLength": 24}

    def format(self, depth: int) -> Schema:
        return {"type": "string", "format": self.random.choice(FORMATS)}

    def integer(self, depth: int) -> Schema:
        low = self.random.randint(-1000, 1000)
        return {"type": "integer", "minimum": low, "maximum": low + self.random.randint(0, 500)}

    def number(self, depth: int) -> Schema:
        low = self.random.randint(-50, 50) / 4
        bounds = {"exclusiveMinimum": low, "maximum": low + self.random.randint(8, 48) / 8}
        # Without the multiple a model that has begun a row of digits may never end it.
        return {"type": "number", "multipleOf": 0.125, **bounds}

    def multiple(self, depth: int) -> Schema:
        return {"type": "integer", "multipleOf": self.random.choice([3, 5, 7, 100]), "minimum": 0, "maximum": 2000}

    def enum(self, depth: int) -> Schema:
        values = ["red", "dark green", 3, -1.5, None, True, "", "ü", 'a "quoted" one', ["x", 1], {"k": False}]
        return {"enum": self.random.sample(values, self.random.randint(1, 6))}

    def const(self, depth: int) -> Schema:
        return {"const": self.random.choice(["fixed", 42, None, False, [1, "two"], {"a": {"b": []}}, "\n\t\\", "😀"])}

    def nullable(self, depth: int) -> Schema:
        if self.random.random() < 0.5:
            return {"type": ["boolean", "null"]}
        return {"type": ["integer", "null"], "minimum": -999, "maximum": 999}

    def types(self, depth: int) -> Schema:
        return {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])}

    def any_of(self, depth: int) -> Schema:
        return {"anyOf": [self.some(depth - 1) for _ in range(self.random.randint(2, 3))]}

    def one_of(self, depth: int) -> Schema:
        options = []
        for tag in self.random.sample(["circle", "square", "line"], 2):
            properties = {"type": {"const": tag}, "value": self.some(depth - 1)}
            options.append({"type": "object", "properties": properties, "required": ["type", "value"]})
            options[-1]["additionalProperties"] = False
        return {"oneOf": options}

    def all_of(self, depth: int) -> Schema:
        parts = [{"properties": {name: self.some(0)}, "required": [name]} for name in self.names(3)]
        return {"allOf": [{"type": "object", **part} for part in parts], "maxProperties": len(parts)}

    def reference(self, depth: int) -> Schema:
        properties = {name: {"$ref": "#/$defs/shared"} for name in self.names(3)}
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        return {"$defs": {"shared": self.some(depth - 1)}, **schema, "additionalProperties": False}

    def recursive(self, depth: int) -> Schema:
        below = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}
        return {"$defs": {"tree": {"anyOf": [self.some(0), below]}}, "$ref": "#/$defs/tree"}

    def map(self, depth: int) -> Schema:
        return {"type": "object", "additionalProperties": self.some(0), "maxProperties": self.random.randint(0, 2)}

    def pattern_properties(self, depth: int) -> Schema:
        patterns = {"^n_[a-z]{1,4}$": {"type": "integer"}, "^s_[a-z]{1,4}$": {"type": "boolean"}}
        return {"type": "object", "patternProperties": patterns, "additionalProperties": False, "maxProperties": 3}


def schemas(seed: int, count: int) -> list[tuple[str, Schema]]:
    """`count` schemas with the names of their kinds, the kinds in turn."""
    maker = Maker(seed)
    kinds = list(maker.kinds)
    return [(kind, maker.make(kind)) for kind in (kinds[i % len(kinds)] for i in range(count))]


def fault(schema: Schema, text: str) -> str:
    """Why a whole reply does not hold to a schema, its numbers taken as written; "" where it does."""

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        value = json.loads(text, parse_constant=no_constant, parse_float=Decimal)
    except ValueError as error:
        return f"no JSON: {error}"
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    validator = jsonschema.Draft202012Validator(exact, format_checker=CHECKER)
    first = next(validator.iter_errors(value), None)
    return "" if first is None else first.message
