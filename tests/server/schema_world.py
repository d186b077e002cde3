"""A server's own /openapi.json as its judge: bodies that keep to it or do not, and whether an answer is in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

LIKELY = 0.2  # that a field which need not be there is

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 300) | st.floats(-2, 2, width=16) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


class Document:
    """An OpenAPI document whose schemas can be asked."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self._validators: dict[str, Draft202012Validator] = {}

    def faults(self, schema: dict[str, Any], value: Any) -> list[str]:
        key = json.dumps(schema, sort_keys=True)
        if key not in self._validators:
            whole = {"allOf": [schema], "components": self.document["components"]}
            self._validators[key] = Draft202012Validator(whole)
        return [f"{error.json_path}: {error.message[:200]}" for error in self._validators[key].iter_errors(value)]

    def body_schema(self, path: str) -> dict[str, Any]:
        reference = self.document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        schema: dict[str, Any] = self.document["components"]["schemas"][reference.rpartition("/")[2]]
        return schema

    def check(self, path: str, reply: httpx.Response) -> None:
        """An answer is one that the document knows: its status, headers, type and all that is in it."""
        operation = self.document["paths"][path][reply.request.method.lower()]
        answer = operation["responses"].get(str(reply.status_code))
        assert answer is not None, f"{path} answered {reply.status_code}, which is not documented: {reply.text[:300]}"
        for name, header in answer["headers"].items():
            assert name in reply.headers or not header["required"]
        if "content" not in answer:
            assert not reply.content
            return
        kind = reply.headers["content-type"].partition(";")[0]
        schema = answer["content"][kind]["schema"]
        if kind == "text/event-stream":
            events = self._events(reply)
            assert events
            for event in events:
                self._check_event(schema, event)
        elif kind == "application/json":
            assert not (found := self.faults(schema, reply.json())), (path, found, reply.text[:500])

    def data_of(self, reply: httpx.Response) -> list[str]:
        """The JSON of each event of a stream."""
        return [event["data"] for event in self._events(reply) if event["data"] != "[DONE]"]

    def _events(self, reply: httpx.Response) -> list[dict[str, str]]:
        texts = filter(None, reply.text.split("\n\n"))
        return [dict(line.split(": ", 1) for line in text.split("\n")) for text in texts]  # type: ignore[misc]

    def _check_event(self, schema: dict[str, Any], event: dict[str, str]) -> None:
        assert not self.faults(schema, event)
        forms = [form["properties"]["data"] for form in schema.get("anyOf", [schema])]
        (content,) = [form["contentSchema"] for form in forms if "contentSchema" in form]
        if {"const": event["data"]} not in forms:
            assert not (found := self.faults(content, json.loads(event["data"]))), (found, event["data"][:500])


def bodies(document: Document, path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies that keep to the schema."""
    schema = document.body_schema(path)
    return of(document, schema).filter(lambda body: not document.faults(schema, body))


def wrong_bodies(document: Document, path: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies of which one field does not keep to it."""
    schema = document.body_schema(path)

    def spoil(pair: tuple[dict[str, Any], tuple[str, Any]]) -> dict[str, Any]:
        return pair[0] | {pair[1][0]: pair[1][1]}

    fields = st.sampled_from(sorted(schema["properties"]))
    return (
        st.tuples(of(document, schema), st.tuples(fields, ANY))
        .map(spoil)
        .filter(lambda body: bool(document.faults(schema, body)))
    )


def of(document: Document, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a schema, as far as octavo's schemas use the language."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return st.deferred(lambda: of(document, document.document["components"]["schemas"][name]))
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    for key in ("anyOf", "oneOf"):
        if key in schema:
            rest = {name: value for name, value in schema.items() if name != key}
            return st.one_of([of(document, merged(rest, form)) for form in schema[key]])
    kinds = schema.get("type", "any")
    makers: dict[str, Callable[[], st.SearchStrategy[Any]]] = {
        "null": st.none,
        "boolean": st.booleans,
        "integer": lambda: st.integers(schema.get("minimum", 0), schema.get("maximum", 2**31)),
        "number": lambda: st.floats(schema.get("minimum", schema.get("exclusiveMinimum")), schema.get("maximum")),
        "string": lambda: _text(schema),
        "array": lambda: st.lists(
            of(document, schema.get("items", {})),
            min_size=schema.get("minItems", 0),
            max_size=min(schema.get("maxItems", 3), schema.get("minItems", 0) + 3),
        ),
        "object": lambda: _object(document, schema),
        "any": lambda: ANY,
    }
    return st.one_of([makers[kind]() for kind in ([kinds] if isinstance(kinds, str) else kinds)])


def merged(rest: dict[str, Any], form: dict[str, Any]) -> dict[str, Any]:
    both = {**rest, **form}
    for key, join in (("properties", dict), ("required", list)):
        if key in rest and key in form:
            both[key] = {**rest[key], **_told(form[key])} if join is dict else [*rest[key], *form[key]]
    return both


def _told(properties: dict[str, Any]) -> dict[str, Any]:
    """Of the properties of one alternative those that say what a value is, and not only what it is not."""
    return {name: schema for name, schema in properties.items() if "not" not in schema}


def _text(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"], fullmatch=True)
    least = schema.get("minLength", 0)
    return st.text(st.characters(codec="utf-8"), min_size=least, max_size=least + 8)


def _object(document: Document, schema: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not properties:
        more = schema.get("additionalProperties", True)
        names = of(document, {"type": "string", **schema.get("propertyNames", {})})
        return st.dictionaries(names, ANY if more is True else of(document, more), max_size=2)

    @st.composite
    def build(draw: st.DrawFn) -> dict[str, Any]:
        optional = sorted(properties.keys() - set(required))
        chosen = (
            draw(st.sets(st.sampled_from(optional), max_size=max(1, int(LIKELY * len(optional))))) if optional else ()
        )
        return {name: draw(of(document, properties[name])) for name in [*required, *sorted(chosen)]}

    return build()
