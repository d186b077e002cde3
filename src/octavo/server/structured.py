"""What of a body constrains the output: response_format, structured_outputs, or vLLM's older guided_ fields."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from octavo.errors import RequestError
from octavo.server.errors import bad_request
from octavo.server.wire import SamplingFields
from octavo.structured_outputs import StructuredOutputsParams

GUIDED = {name: name.removeprefix("guided_") for name in SamplingFields.model_fields if name.startswith("guided_")}
OPTIONS = frozenset(entry.name for entry in fields(StructuredOutputsParams))


def constraint(body: SamplingFields) -> tuple[str, StructuredOutputsParams] | None:
    """The field that holds the body's one constraint, and what it asks for; None where there is none."""
    asked = asked_by(body)
    if not asked:
        return None
    if len(asked) > 1:
        raise bad_request(f"{' and '.join(asked)} constrain the output; give one of them.", next(reversed(asked)))
    ((field, options),) = asked.items()
    try:
        return field, StructuredOutputsParams(**options)
    except RequestError as error:
        raise named_after(error, field) from None


def asked_by(body: SamplingFields) -> dict[str, dict[str, Any]]:
    """What is asked of the output, by the field that asks for it."""
    asked: dict[str, dict[str, Any]] = {}
    if body.response_format is not None and (options := _of_response_format(body.response_format)) is not None:
        asked["response_format"] = options
    if body.structured_outputs is not None:
        asked["structured_outputs"] = _of_structured_outputs(body.structured_outputs)
    given = {name: value for name in GUIDED if (value := getattr(body, name)) is not None and value is not False}
    if given.keys() - {"guided_whitespace_pattern"}:
        asked[min(given.keys() - {"guided_whitespace_pattern"})] = {GUIDED[name]: given[name] for name in given}
    elif given:
        name = "guided_whitespace_pattern"
        raise bad_request(f"{name} needs guided_json or guided_json_object.", name)
    return asked


def named_after(error: RequestError, field: str) -> RequestError:
    """An error of a constraint, under the field that the client used for it."""
    if error.param != "structured_outputs" or field == "structured_outputs":
        return error
    return RequestError(f"{field}: {error}", field)


def _of_response_format(value: Any) -> dict[str, Any] | None:
    kind = value.get("type") if isinstance(value, dict) else None
    match kind:
        case "text":
            return None
        case "json_object":
            return {"json_object": True}
        case "json_schema":
            named = value.get("json_schema")
            schema = named.get("schema") if isinstance(named, dict) else None
            if not isinstance(schema, dict):
                raise bad_request("response_format.json_schema.schema must be a JSON schema.", "response_format")
            return {"json": schema}
        case "structural_tag":
            return {"structural_tag": value}
        case _:
            raise bad_request(
                "response_format.type must be text, json_object, json_schema or structural_tag.", "response_format"
            )


def _of_structured_outputs(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise bad_request("structured_outputs must be an object.", "structured_outputs")
    for name in value:
        if name not in OPTIONS:
            raise bad_request(
                f"structured_outputs.{name:.60} is not supported; it takes {', '.join(sorted(OPTIONS))}.",
                "structured_outputs",
            )
    # Null stands for what is left out; an option that is left out is false.
    return {name: entry for name, entry in value.items() if entry is not None}
