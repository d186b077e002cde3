"""Calls as JSON objects with a name and arguments: Hermes and Qwen, Llama 3, Granite, Phi 4, Jamba, and bare JSON."""

from __future__ import annotations

import json

from octavo.text.tool_calls.reader import Malformed, Read, Reader, Reading

ARGUMENTS = ("arguments", "parameters")


def json_calls(close: str = "") -> Read:
    """Objects or lists of them, one after the other with white space, commas or semicolons between; then `close`."""

    def read(reader: Reader) -> Reading[None]:
        yield from json_run(reader)
        while (yield from reader.space()) in (",", ";", "{", "[") and reader.waiting:
            if reader.waiting in ",;":
                reader.waiting = None
                yield from reader.space()
            yield from json_run(reader)
        if close:
            yield from reader.literal(close)

    return read


def json_run(reader: Reader) -> Reading[None]:
    """One call, or a list of calls."""
    if (yield from reader.space()) != "[":
        yield from call_object(reader)
        return
    yield from reader.literal("[")
    yield from reader.space()
    while True:
        yield from call_object(reader)
        if (yield from reader.space()) == "]":
            break
        yield from reader.literal(",")
        yield from reader.space()
    yield from reader.literal("]")


def call_object(reader: Reader) -> Reading[None]:
    """{"name": ..., "arguments": {...}} in any order; other members are passed over."""
    yield from reader.literal("{")
    draft = reader.begin()
    while True:
        yield from reader.space()
        key: list[str] = []
        yield from reader.json_string(key)
        yield from reader.space()
        yield from reader.literal(":")
        yield from reader.space()
        name = json.loads("".join(key))
        if name == "name":
            text: list[str] = []
            yield from reader.json_string(text)
            reader.name(json.loads("".join(text)))
        elif name in ARGUMENTS:
            if reader.waiting != "{" or draft.arguments:
                raise Malformed
            yield from reader.json_value(draft.arguments)
        else:
            yield from reader.json_value([])
        if (yield from reader.space()) == "}":
            break
        yield from reader.literal(",")
    if not draft.arguments:
        raise Malformed
    reader.end()  # before the last bracket is taken, so that a call which nobody offered is text to its end
    reader.waiting = None
