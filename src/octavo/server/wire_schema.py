"""What /openapi.json says of requests beyond their types: bounds, forms of free values, fields that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.engine.admission import MAX_SALT_CHARACTERS, MAX_TIMEOUT
from octavo.sampling_params import (
    ABOVE,
    INTEGERS,
    LENGTH_PENALTIES,
    MAX_BAD_WORDS,
    MAX_LOGIT_BIAS,
    MAX_LOGIT_BIASES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    NUMBERS,
)
from octavo.structured_outputs import KINDS, MAX_CHOICES
from octavo.text.messages import MAX_MESSAGES, REASONING_KEYS, ROLES, TEXT_KEYS, TEXT_PARTS

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
TEXT: Schema = {"type": "string"}
OBJECT: Schema = {"type": "object"}


def or_null(*forms: Schema) -> Schema:
    return {"anyOf": [*forms, NULL]}


def list_of(items: Schema, least: int = 0, most: int | None = None) -> Schema:
    schema: Schema = {"type": "array", "items": items}
    return schema | ({"minItems": least} if least else {}) | ({} if most is None else {"maxItems": most})


def object_of(required: Mapping[str, Schema], **others: Schema) -> Schema:
    return {"type": "object", "required": list(required), "properties": {**required, **others}}


def kind_of(kind: str, **fields: Schema) -> Schema:
    """An object that says by its type what it is, and has these fields."""
    return object_of({"type": {"const": kind}, **fields})


def either(*names: str) -> Schema:
    """One of these fields, which are never null, and null or nothing in the others."""
    return {
        "oneOf": [
            {
                "required": [name],
                "properties": {name: {"not": NULL}} | {other: NULL for other in names if other != name},
            }
            for name in names
        ]
    }


# The document of a server bounds what has this title by the vocabulary of its model.
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "title": "Token id"}
TOKEN_IDS = list_of(TOKEN_ID, 1)
PROMPT: Schema = {"anyOf": [TEXT, list_of(TEXT, 1), TOKEN_IDS, list_of(TOKEN_IDS, 1)]}


def texts(most: int) -> Schema:
    entry = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
    return or_null(entry, list_of(entry, 0, most))


STOP = texts(MAX_STOP_STRINGS)
BAD_WORDS = texts(MAX_BAD_WORDS)
STOP_TOKEN_IDS = or_null(list_of(TOKEN_ID, 0, MAX_STOP_TOKEN_IDS))
ALLOWED_TOKEN_IDS = or_null(TOKEN_IDS)
EARLY_STOPPING: Schema = {"enum": [True, False, "never", None]}
LOGIT_BIAS = or_null(
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_LOGIT_BIAS, "maximum": MAX_LOGIT_BIAS},
        "maxProperties": MAX_LOGIT_BIASES,
    }
)
TRUNCATE = or_null({"type": "integer", "minimum": 1, "maximum": 2**63 - 1}, {"const": -1})

JSON_SCHEMA: Schema = {"anyOf": [OBJECT, TEXT]}
CHOICES = list_of(TEXT, 1, MAX_CHOICES)
_FORMS: dict[str, Schema] = {
    "json": JSON_SCHEMA,
    "regex": TEXT,
    "choice": CHOICES,
    "grammar": TEXT,
    "json_object": {"const": True},
    "structural_tag": JSON_SCHEMA,
}
_BOOLEAN_OR_NULL: Schema = {"type": ["boolean", "null"]}
STRUCTURED_OUTPUTS = or_null(
    *(
        object_of(
            {kind: _FORMS[kind]},
            disable_any_whitespace=_BOOLEAN_OR_NULL,
            disable_additional_properties=_BOOLEAN_OR_NULL,
            whitespace_pattern=or_null(TEXT),
        )
        | {"additionalProperties": False}
        for kind in KINDS
    )
)
RESPONSE_FORMAT = or_null(
    kind_of("text"),
    kind_of("json_object"),
    kind_of("json_schema", json_schema=object_of({"schema": OBJECT})),
    kind_of("structural_tag"),
)

_PARTS = (object_of({"type": {"enum": list(TEXT_PARTS)}, "text": TEXT}), kind_of("refusal", refusal=TEXT))
CONTENT: Schema = {"anyOf": [TEXT, list_of({"anyOf": [TEXT, *_PARTS]})]}
_CALL = object_of({"function": object_of({"name": TEXT}, arguments=or_null(TEXT, OBJECT))})
_OTHERS = {
    **{key: or_null(TEXT) for key in sorted(TEXT_KEYS)},
    "tool_calls": or_null(list_of(_CALL)),
    "function_call": or_null(OBJECT),
}


def _message(role: Schema, **required: Schema) -> Schema:
    others = {"content": or_null(CONTENT)} | _OTHERS
    return object_of({"role": role, **required}, **{key: form for key, form in others.items() if key not in required})


# One of the assistant may have something else in the place of content.
_INSTEAD: dict[str, Schema] = {
    "tool_calls": list_of(_CALL, 1),
    "function_call": {"type": "object", "minProperties": 1},
    **{key: {"type": "string", "minLength": 1} for key in ("refusal", *REASONING_KEYS)},
}
MESSAGES = list_of(
    {
        "anyOf": [
            _message({"enum": list(ROLES)}, content=CONTENT),
            *(_message({"const": "assistant"}, **{key: form}) for key, form in _INSTEAD.items()),
        ]
    },
    1,
    MAX_MESSAGES,
)
TOOL_CHOICES = ["none", "auto", "required"]
TOOL_CHOICE = or_null({"enum": TOOL_CHOICES}, kind_of("function", function=object_of({"name": TEXT})))

# Of responses.
_SAID: Schema = {"anyOf": [TEXT, list_of({"anyOf": [*_PARTS]})]}
INPUT: Schema = {"anyOf": [
    TEXT,
    list_of({"anyOf": [
        object_of(
            {"role": {"enum": ["user", "assistant", "system", "developer"]}, "content": _SAID},
            type={"const": "message"},
        ),
        kind_of("reasoning", content=list_of(kind_of("reasoning_text", text=TEXT), 1)),
        kind_of("reasoning", summary=list_of(kind_of("summary_text", text=TEXT), 1)),
        kind_of("function_call", call_id=TEXT, name=TEXT, arguments=TEXT),
        kind_of("function_call_output", call_id=TEXT, output=_SAID),
    ]}, 1, MAX_MESSAGES),
]}  # fmt: skip
RESPONSES_TOOL_CHOICE = or_null({"enum": TOOL_CHOICES}, kind_of("function", name=TEXT))
TEXT_FORMATS = or_null(
    kind_of("text"),
    kind_of("json_object"),
    object_of({"type": {"const": "json_schema"}, "name": TEXT, "schema": OBJECT}, strict=_BOOLEAN_OR_NULL),
)

TEXT_OPTIONS = or_null(object_of({}, format=TEXT_FORMATS, verbosity={"enum": ["medium", None]}))

# Of Anthropic's messages.
_TEXT_BLOCK = kind_of("text", text=TEXT)
SYSTEM: Schema = {"anyOf": [TEXT, list_of(_TEXT_BLOCK, 1)]}
TOOL_RESULT = object_of(
    {"type": {"const": "tool_result"}, "tool_use_id": TEXT},
    content=or_null(TEXT, list_of(_TEXT_BLOCK)),
    is_error=_BOOLEAN_OR_NULL,
)
TURNS = list_of(
    {"anyOf": [
        object_of({"role": {"const": role}, "content": {"anyOf": [
            TEXT, list_of({"anyOf": [_TEXT_BLOCK, *blocks]}, 1),
        ]}})
        for role, blocks in (
            ("user", [TOOL_RESULT]),
            ("assistant", [kind_of("thinking", thinking=TEXT), kind_of("tool_use", id=TEXT, name=TEXT, input=OBJECT)]),
        )
    ]},
    1,
    MAX_MESSAGES,
)  # fmt: skip
MESSAGES_TOOL_CHOICE = or_null(
    object_of({"type": {"enum": ["auto", "any", "none"]}}, disable_parallel_tool_use=_BOOLEAN_OR_NULL),
    object_of({"type": {"const": "tool"}, "name": TEXT}, disable_parallel_tool_use=_BOOLEAN_OR_NULL),
)
OUTPUT_FORMAT = or_null(kind_of("json_schema", schema=OBJECT))

# Bounds by the name of a field, for those of its forms that have this type.
_BOUNDS: dict[str, tuple[str, Schema]] = {
    **{name: ("integer", {"minimum": low, "maximum": high}) for name, (low, high) in INTEGERS.items()},
    **{
        name: ("number", {"exclusiveMinimum" if name in ABOVE else "minimum": low, "maximum": high})
        for name, (low, high) in {**NUMBERS, "length_penalty": LENGTH_PENALTIES}.items()
    },
    "timeout": ("number", {"exclusiveMinimum": 0, "maximum": MAX_TIMEOUT}),
    "priority": ("integer", {"minimum": -(2**31), "maximum": 2**31 - 1}),
    "cache_salt": ("string", {"minLength": 1, "maxLength": MAX_SALT_CHARACTERS}),
    "dimensions": ("integer", {"minimum": 1}),
}
for _name, _like in (
    ("top_logprobs", "logprobs"),
    ("max_completion_tokens", "max_tokens"),
    ("max_output_tokens", "max_tokens"),
):
    _BOUNDS[_name] = _BOUNDS[_like]


def refine(schema: Schema, refused: Mapping[str, tuple[Any, ...]]) -> None:
    """Puts into the schema of a wire model what pydantic does not know of it, and leaves out what says nothing."""
    schema.pop("title", None)
    properties: dict[str, Schema] = schema.setdefault("properties", {})
    for name, field in properties.items():
        field.pop("title", None)
        if field.get("default", ...) is None:  # absent and null mean the same
            del field["default"]
        kind, bounds = _BOUNDS.get(name, ("", {}))
        for form in field.get("anyOf", [field]):
            if form.get("type") == kind:
                for bound, value in bounds.items():
                    form.setdefault(bound, value)
    for name, values in refused.items():
        properties.setdefault(name, {"enum": [None, *values], "description": "Not supported: nothing else is taken."})
