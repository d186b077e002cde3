"""Calls as Python writes them, with keywords and literals: Llama 4, Llama 3.2, Olmo 3."""

from __future__ import annotations

import re

from octavo.text.tool_calls.reader import MAX_DEPTH, MAX_NAME, Malformed, Read, Reader, Reading
from octavo.text.tool_calls.values import json_text

NAME_END = "()=[]{},'\" \t\r\n"
WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}


def pythonic(begin: str = "[", end: str = "]", close: str = "") -> Read:
    """name(key=literal, ...), with commas or white space between calls, from `begin` to `end`; `close` may follow."""

    def read(reader: Reader) -> Reading[None]:
        yield from reader.space()
        yield from reader.literal(begin)
        yield from reader.space()
        while True:
            reader.begin()
            reader.name((yield from name(reader)))
            yield from call_arguments(reader)
            if (yield from reader.space()) == ",":
                yield from reader.literal(",")
                yield from reader.space()
            if reader.waiting == end[0]:
                yield from reader.literal(end)
                break
            if not reader.waiting:
                return
        if close and (yield from reader.space()):
            yield from reader.literal(close)

    return read


def call_arguments(reader: Reader) -> Reading[None]:
    out = reader.drafts[-1].arguments
    yield from reader.literal("(")
    out.append("{")
    while (yield from reader.space()) != ")":
        if len(out) > 1:
            yield from reader.literal(",")
            out.append(", ")
            if (yield from reader.space()) == ")":  # a comma may stand before it
                out.pop()
                break
        out.append(json_text((yield from name(reader))) + ": ")
        yield from reader.space()
        yield from reader.literal("=")
        yield from python_value(reader, out)
    out.append("}")
    reader.end()
    reader.waiting = None


def name(reader: Reader) -> Reading[str]:
    text = ""
    while (yield from reader.peek()) not in NAME_END and len(text) <= MAX_NAME:
        text += yield from reader.take()
    if not text:
        raise Malformed
    return text


def python_value(reader: Reader, out: list[str], depth: int = 0) -> Reading[None]:
    """A literal, written to `out` as JSON."""
    char = yield from reader.space()
    if depth > MAX_DEPTH:
        raise Malformed
    if char and char in "'\"":
        out.append((yield from python_string(reader)))
    elif char and char in "[({":
        yield from python_items(reader, out, depth)
    elif char and char in "-+.0123456789":
        yield from reader.number(out)
    elif (word := (yield from name(reader))) in WORDS:
        out.append(WORDS[word])
    else:
        raise Malformed


def python_items(reader: Reader, out: list[str], depth: int) -> Reading[None]:
    """A list, a tuple or a dict."""
    char = yield from reader.take()
    end = {"[": "]", "(": ")", "{": "}"}[char]
    out.append("{" if char == "{" else "[")
    first = True
    while (yield from reader.space()) != end:
        if not first:
            yield from reader.literal(",")
            if (yield from reader.space()) == end:
                break
            out.append(", ")
        first = False
        if char == "{":
            out.append((yield from python_string(reader)) + ": ")
            yield from reader.space()
            yield from reader.literal(":")
        yield from python_value(reader, out, depth + 1)
    yield from reader.literal(end)
    out.append("}" if char == "{" else "]")


def python_string(reader: Reader) -> Reading[str]:
    """A string with Python's escapes, as JSON."""
    quote = yield from reader.take()
    if not quote or quote not in "'\"":
        raise Malformed
    pieces: list[str] = []
    while (char := (yield from reader.take())) != quote:
        if char == "\\":
            char += yield from reader.take()
        if not char:
            raise Malformed
        pieces.append(char)
    return json_text(ESCAPE.sub(_unescape, "".join(pieces)))


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        if number > 0x10FFFF:
            raise Malformed
        return chr(number)
    return ESCAPED.get(code, code if code in "\\'\"" else "\\" + code)
