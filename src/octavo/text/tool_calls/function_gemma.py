"""Calls of FunctionGemma: call:NAME{key:<escape>text<escape>,other:1}."""

from __future__ import annotations

from octavo.text.tool_calls.reader import MAX_DEPTH, MAX_NAME, WORDS, Malformed, Reader, Reading
from octavo.text.tool_calls.values import json_text

ESCAPE = "<escape>"
KEY_END = ":{}[],<"


def function_gemma(reader: Reader) -> Reading[None]:
    """After <start_function_call>, up to <end_function_call>."""
    yield from reader.space()
    yield from reader.literal("call:")
    draft = reader.begin()
    reader.name((yield from key(reader)))
    yield from items(reader, draft.arguments, 0)
    reader.end()
    if (yield from reader.space()):
        yield from reader.literal("<end_function_call>")


def key(reader: Reader) -> Reading[str]:
    text = ""
    while (yield from reader.peek()) not in KEY_END and len(text) <= MAX_NAME:
        text += yield from reader.take()
    if not text.strip():
        raise Malformed
    return text.strip()


def items(reader: Reader, out: list[str], depth: int) -> Reading[None]:
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
            if reader.waiting == "<":
                name = yield from escaped(reader)
            else:
                name = yield from key(reader)
            out.append(json_text(name) + ": ")
            yield from reader.literal(":")
        yield from value(reader, out, depth)
    yield from reader.literal(end)
    out.append(end)


def value(reader: Reader, out: list[str], depth: int) -> Reading[None]:
    char = yield from reader.space()
    if char == "<":
        out.append(json_text((yield from escaped(reader))))
    elif char and char in "{[":
        yield from items(reader, out, depth + 1)
    elif char in WORDS:
        yield from reader.literal(WORDS[char])
        out.append(WORDS[char])
    else:
        out.append((yield from reader.number()))


def escaped(reader: Reader) -> Reading[str]:
    yield from reader.literal(ESCAPE)
    return (yield from reader.until(ESCAPE))
