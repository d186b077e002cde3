"""Calls as a name and a JSON object with markers around them: Mistral, DeepSeek, Kimi K2."""

from __future__ import annotations

from octavo.text.tool_calls.json_calls import json_run
from octavo.text.tool_calls.reader import MAX_NAME, Malformed, Reader, Reading


def _token(words: str) -> str:
    """DeepSeek's control tokens: <|words with marks for spaces|> with wide bars."""
    return f"<\uff5c{words}\uff5c>".replace(" ", "\u2581")


ALL, ALL_END = _token("tool calls begin"), _token("tool calls end")
CALL, SEP, END = _token("tool call begin"), _token("tool sep"), _token("tool call end")


def mistral(reader: Reader) -> Reading[None]:
    """After [TOOL_CALLS]: a JSON list of calls, or name[ARGS]{...}, also with [CALL_ID] and an id before [ARGS]."""
    if (yield from reader.space()) in ("[", "{"):
        yield from json_run(reader)
        return
    reader.begin()
    name = ""
    while (yield from reader.peek()) not in ("[", "{"):
        if not reader.waiting or len(name) > MAX_NAME:
            raise Malformed
        name += yield from reader.take()
    reader.name(name.strip())
    if reader.waiting == "[" and (yield from reader.one_of(("[ARGS]", "[CALL_ID]"))) == "[CALL_ID]":
        yield from reader.until("[ARGS]", MAX_NAME)
    yield from arguments(reader)


def deepseek(reader: Reader) -> Reading[None]:
    """After the begin of all calls. V3.1 writes name SEP {...}, V3 and R1 type SEP name and a fenced block of JSON."""
    yield from reader.space()
    yield from reader.literal(CALL)
    while True:
        reader.begin()
        name = (yield from reader.until(SEP, MAX_NAME)).strip()
        fenced = (yield from reader.space()) != "{"
        if fenced:
            name = (yield from reader.until("\n", MAX_NAME)).strip()
            yield from reader.literal("```json")
        reader.name(name)
        yield from arguments(reader)
        yield from reader.space()
        if fenced and reader.waiting:
            yield from reader.literal("```")
            yield from reader.space()
        if not reader.waiting:
            return
        yield from reader.literal(END)
        if not (yield from reader.space()) or (yield from reader.one_of((CALL, ALL_END))) == ALL_END:
            return


def kimi(reader: Reader) -> Reading[None]:
    """After the begin of all calls: functions.NAME:INDEX, the begin of arguments, an object, the end of the call."""
    call, end = "<|tool_call_begin|>", "<|tool_calls_section_end|>"
    yield from reader.space()
    yield from reader.literal(call)
    while True:
        reader.begin()
        name = (yield from reader.until("<|tool_call_argument_begin|>", MAX_NAME)).strip()
        reader.name(name.removeprefix("functions.").rpartition(":")[0])
        yield from arguments(reader)
        if not (yield from reader.space()):
            return
        yield from reader.literal("<|tool_call_end|>")
        if not (yield from reader.space()) or (yield from reader.one_of((call, end))) == end:
            return


def arguments(reader: Reader) -> Reading[None]:
    """The object that ends a call."""
    if (yield from reader.space()) != "{":
        raise Malformed
    yield from reader.json_value(reader.drafts[-1].arguments)
    reader.end()
