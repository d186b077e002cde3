"""Calls with a tag around each argument: Qwen3-Coder, Seed-OSS, MiniMax M2, GLM 4.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.text.tool_calls.reader import MAX_NAME, Read, Reader, Reading
from octavo.text.tool_calls.values import as_json, json_text

TYPE_NAMES = {str: "string", bool: "boolean", type(None): "null"}  # of values; all others are written as JSON


def tagged(
    close: str,
    call: tuple[str, str] = ("<function=", ">"),
    argument: tuple[str, str] = ("<parameter=", ">"),
    inside: bool = False,
) -> Read:
    """<function=NAME><parameter=KEY>VALUE</parameter>...</function>, as often as it comes, then `close`.

    `inside`: the first tag up to the name has been read already.
    """
    call_end = f"</{call[0][1:].partition('=')[0].partition(' ')[0]}>"

    def read(reader: Reader) -> Reading[None]:
        if not inside:
            yield from reader.space()
            yield from reader.literal(call[0])
        while True:
            draft = reader.begin()
            reader.name((yield from reader.until(call[1], MAX_NAME)).strip())
            schema = reader.tools[draft.name or ""]
            draft.arguments.append("{")
            yield from reader.space()
            while (yield from reader.one_of((argument[0], call_end))) != call_end:
                key = (yield from reader.until(argument[1], MAX_NAME)).strip()
                value = yield from reader.until("</parameter>")
                member(draft.arguments, key, value.removeprefix("\n").removesuffix("\n"), schema)
                yield from reader.space()
            draft.arguments.append("}")
            reader.end()
            if not (yield from reader.space()):
                return
            if (yield from reader.one_of((call[0], close))) == close:
                return

    return read


def glm(reader: Reader) -> Reading[None]:
    """After <tool_call>: NAME, then <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> as often as it comes."""
    draft = reader.begin()
    name = ""
    while (yield from reader.peek()) not in ("<", "") and len(name) <= MAX_NAME:
        name += yield from reader.take()
    reader.name(name.strip())
    schema = reader.tools[draft.name or ""]
    draft.arguments.append("{")
    while (yield from reader.one_of(("<arg_key>", "</tool_call>"))) == "<arg_key>":
        key = (yield from reader.until("</arg_key>", MAX_NAME)).strip()
        yield from reader.space()
        yield from reader.literal("<arg_value>")
        member(draft.arguments, key, (yield from reader.until("</arg_value>")), schema)
        yield from reader.space()
    draft.arguments.append("}")
    reader.end()


def member(out: list[str], key: str, value: str, schema: Mapping[str, Any]) -> None:
    """Adds one argument to the text of an object, as JSON of the type that its schema asks for."""
    separator = ", " if len(out) > 1 else ""
    out.append(f"{separator}{json_text(key)}: {typed(value, _types(_property(schema, key)))}")


def typed(value: str, types: set[str]) -> str:
    """JSON of an argument that came as bare text; text stays text where the schema allows it or says nothing."""
    bare = value.strip()
    if "null" in types and bare.lower() in ("null", "none"):
        return "null"
    if "boolean" in types and bare.lower() in ("true", "false"):
        return bare.lower()
    if types and "string" not in types and (text := as_json(bare)) is not None:
        return text
    return json_text(value)


def _property(schema: Any, key: str) -> Any:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def _types(schema: Any) -> set[str]:
    if not isinstance(schema, Mapping):
        return set()
    given = schema.get("type")
    types = {given} if isinstance(given, str) else set(given or ())
    for name in ("anyOf", "oneOf"):
        for other in schema.get(name) or ():
            types |= _types(other)
    values = [*(schema.get("enum") or ()), *([schema["const"]] if "const" in schema else ())]
    return types | {TYPE_NAMES.get(type(value), "object") for value in values}
