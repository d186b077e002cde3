"""What the readers of all call formats share: characters one by one, JSON values, and the call being read.

A reader is a generator that asks for each character by `yield`, so that how a text was cut into pieces cannot matter,
and takes every character once, so that its work is linear. "" stands for the end of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Result = TypeVar("Result")
Reading = Generator[None, str, Result]

SPACE = " \t\r\n"
MAX_DEPTH = 64  # of nested arguments that are no JSON, which readers descend into
MAX_NAME = 256
NUMBER_CHARS = frozenset("0123456789+-.eE")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
WORDS = {"t": "true", "f": "false", "n": "null"}


class Malformed(Exception):
    """The text is no call after all."""


@dataclass(slots=True)
class Draft:
    """A call as far as it has been read; `arguments` are pieces of JSON text."""

    name: str | None = None
    arguments: list[str] = field(default_factory=list)
    complete: bool = False


class Reader:
    """The text of one run of calls, and the calls read from it. `tools` maps each name to its parameters' schema."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self.tools = tools
        self.drafts: list[Draft] = []
        self.waiting: str | None = None
        """A character that was looked at and not taken."""

    # Calls.

    def begin(self) -> Draft:
        self.drafts.append(Draft())
        return self.drafts[-1]

    def name(self, name: str) -> None:
        """Names the last call begun; a tool that was not offered makes it malformed."""
        if name not in self.tools:
            raise Malformed
        self.drafts[-1].name = name

    def end(self) -> None:
        if self.drafts[-1].name is None:
            raise Malformed
        self.drafts[-1].complete = True

    # Characters.

    def peek(self) -> Reading[str]:
        if self.waiting is None:
            self.waiting = yield
        return self.waiting

    def take(self) -> Reading[str]:
        if self.waiting is None:
            return (yield)
        char, self.waiting = self.waiting, None
        return char

    def space(self) -> Reading[str]:
        """The next character that is no space, which stays."""
        while (yield from self.peek()) in SPACE and self.waiting:
            self.waiting = None
        return self.waiting or ""

    def literal(self, text: str) -> Reading[None]:
        for expected in text:
            if (yield from self.peek()) != expected:
                raise Malformed
            self.waiting = None

    def one_of(self, texts: tuple[str, ...]) -> Reading[str]:
        """Whichever of `texts` comes; none is the beginning of another."""
        read = ""
        while read not in texts:
            read += yield from self.peek()
            if not self.waiting or not any(text.startswith(read) for text in texts):
                raise Malformed
            self.waiting = None
        return read

    def until(self, end: str, most: int | None = None) -> Reading[str]:
        """The text before `end`, which is taken too."""
        read: list[str] = []
        matched = 0
        while matched < len(end):
            char = yield from self.take()
            if not char or (most is not None and len(read) > most + len(end)):
                raise Malformed
            read.append(char)
            matched = _matched(end, matched, char)
        return "".join(read)[: -len(end)]

    # JSON.

    def json_string(self, out: list[str]) -> Reading[None]:
        """A string, copied to `out`. Control characters, which models forget to escape, are escaped in the copy."""
        yield from self.literal('"')
        out.append('"')
        while (char := (yield from self.take())) != '"':
            if char == "\\":
                char += yield from self.take()
                if char[1:] == "u":
                    for _ in range(4):
                        char += yield from self.take()
                    if len(char) != 6 or not set(char[2:]) <= set("0123456789abcdefABCDEF"):
                        raise Malformed
                elif len(char) == 1 or char[1] not in '"\\/bfnrt':
                    raise Malformed
            elif not char:
                raise Malformed
            elif char < " ":
                char = json.dumps(char)[1:-1]
            out.append(char)
        out.append('"')

    def json_value(self, out: list[str]) -> Reading[None]:
        """One value, copied to `out` as it is written; not even a bracket of it is taken unless it is JSON so far.

        Neither its depth nor the length of its numbers has a bound: the grammars that make calls know of none, and what
        they make has to be told to its end.
        """
        open_brackets: list[str] = []
        while True:
            char = yield from self._copy_space(out)
            if char in ("{", "["):
                out.append((yield from self.take()))
                open_brackets.append("}" if char == "{" else "]")
                if (yield from self._copy_space(out)) != open_brackets[-1]:
                    if char == "{":
                        yield from self._json_key(out)
                    continue
            else:
                yield from self._json_scalar(char, out)
            # A value has ended: what follows it is of the objects and lists around it.
            while open_brackets and (yield from self._copy_space(out)) == open_brackets[-1]:
                out.append((yield from self.take()))
                open_brackets.pop()
            if not open_brackets:
                return
            yield from self.literal(",")
            out.append(",")
            if open_brackets[-1] == "}":
                yield from self._copy_space(out)
                yield from self._json_key(out)

    def _copy_space(self, out: list[str]) -> Reading[str]:
        while (yield from self.peek()) in SPACE and self.waiting:
            out.append(self.waiting)
            self.waiting = None
        return self.waiting or ""

    def _json_key(self, out: list[str]) -> Reading[None]:
        yield from self.json_string(out)
        yield from self._copy_space(out)
        yield from self.literal(":")
        out.append(":")

    def _json_scalar(self, first: str, out: list[str]) -> Reading[None]:
        if first == '"':
            yield from self.json_string(out)
        elif first in WORDS:
            yield from self.literal(WORDS[first])
            out.append(WORDS[first])
        else:
            yield from self.number(out)

    def number(self, out: list[str]) -> Reading[None]:
        """A JSON number, copied to `out`."""
        begin = len(out)
        while (yield from self.peek()) in NUMBER_CHARS:
            out.append((yield from self.take()))
        if not NUMBER.fullmatch("".join(out[begin:])):
            raise Malformed


def _matched(pattern: str, matched: int, char: str) -> int:
    """How much of `pattern` the text ends with, `char` included, if it was `matched` before. Patterns are short."""
    text = pattern[:matched] + char
    return next(n for n in range(min(len(pattern), len(text)), -1, -1) if text.endswith(pattern[:n]))


Read = Callable[[Reader], Reading[None]]
