"""Calls of FunctionGemma and Gemma 4: call:NAME{key:<escape>text<escape>,other:1}."""

from __future__ import annotations

from octavo.text.tool_calls.reader import MAX_DEPTH, MAX_NAME, WORDS, Malformed, Read, Reader, Reading
from octavo.text.tool_calls.values import json_text

KEY_END = ":{}[],<"


def gemma_call(escape: str, close: str) -> Read:
    """After the marker, up to `close`; `escape`, which begins with "<", stands on both sides of a text."""

    def read(reader: Reader) -> Reading[None]:
        yield from reader.space()
        yield from reader.literal("call:")
        draft = reader.begin()
        reader.name((yield from key(reader)))
        yield from items(reader, draft.arguments, escape, 0)
        reader.end()
        if (yield from reader.space()):
            yield from reader.literal(close)

    return read


def key(reader: Reader) -> Reading[str]:
    text = ""
    while (yield from reader.peek()) not in KEY_END and len(text) <= MAX_NAME:
        text += yield from reader.take()
    if not text.strip():
        raise Malformed
    return text.strip()


def items(reader: Reader, out: list[str], escape: str, depth: int) -> Reading[None]:
    """{key:value,...} or [value,...], written to `out` as JSON."""
    begin = yield from reader.take()
    end = {"{": "}", "[": "]"}.get(begin)
    if end is None or depth > MAX_DEPTH:
        raise Malformed
    out.append(begin)
    first = True
    while (yield from reader.space()) != end:
        if not first:
            yield from reader.literal(",")
            out.append(", ")
            yield from reader.space()
        first = False
        if end == "}":
            name = (yield from escaped(reader, escape)) if reader.waiting == "<" else (yield from key(reader))
            out.append(json_text(name) + ": ")
            yield from reader.literal(":")
        yield from value(reader, out, escape, depth)
    yield from reader.literal(end)
    out.append(end)


def value(reader: Reader, out: list[str], escape: str, depth: int) -> Reading[None]:
    char = yield from reader.space()
    if char == "<":
        out.append(json_text((yield from escaped(reader, escape))))
    elif char == '"':
        yield from reader.json_string(out)
    elif char and char in "{[":
        yield from items(reader, out, escape, depth + 1)
    elif char in WORDS:
        yield from reader.literal(WORDS[char])
        out.append(WORDS[char])
    else:
        yield from reader.number(out)


def escaped(reader: Reader, escape: str) -> Reading[str]:
    yield from reader.literal(escape)
    return (yield from reader.until(escape))
