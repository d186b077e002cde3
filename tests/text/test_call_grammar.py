"""The grammar of forced calls: what it lets through is read back as calls that fit, and nothing else is let through."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import llguidance
import pytest

from octavo.text.reasoning import MISTRAL, THINK, Preamble
from octavo.text.splitter import Reply, ReplyFormat
from octavo.text.tool_calls.formats import FORMATS
from octavo.text.tool_calls.grammar import call_grammar, enforced_schema
from octavo.text.tool_calls.values import is_json

TOOLS: dict[str, dict[str, Any]] = {
    "pick": {
        "type": "object",
        "description": "x" * 1000,
        "properties": {
            "size": {"$ref": "#/$defs/size", "description": "how large"},
            "description": {"type": "string", "pattern": "^[a-c]{1,3}$"},
            "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        },
        "required": ["size", "description"],
        "$defs": {"size": {"enum": ["small", 'la"rge', 3, None]}},
    },
    "now": {"type": "object", "properties": {}},
}
WRITTEN = [name for name in sorted(FORMATS) if FORMATS[name].writing]
VOCABULARY = llguidance.LLTokenizer("byte")


def sample(grammar: str, seed: int) -> str:
    """What a model without a thought of its own writes: any of the bytes that are allowed."""
    matcher = llguidance.LLMatcher(VOCABULARY, grammar)
    assert not matcher.is_error(), matcher.get_error()
    chosen = random.Random(seed)
    written = bytearray()
    while not matcher.is_stopped() and len(written) < 5000:
        mask = matcher.compute_bitmask()
        allowed = [i for i in range(256) if mask[i // 8] >> (i % 8) & 1]
        if matcher.is_accepting() and (not allowed or chosen.random() < 0.3):
            break
        written.append(chosen.choice(allowed))
        assert matcher.consume_token(written[-1])
    return written.decode("utf-8", "replace")


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("parallel", [True, False])
def test_whatever_it_lets_through_is_calls_that_fit(name: str, parallel: bool) -> None:
    format = FORMATS[name]
    assert format.writing is not None
    grammar = call_grammar(TOOLS, format.writing, {}, parallel=parallel)
    seen = set()
    for seed in range(12):
        text = sample(grammar, seed)
        splitter = ReplyFormat(calls=format, tools=TOOLS, forced=True).splitter()
        reply = Reply.of([event for char in text for event in splitter.feed(char)] + splitter.finish())
        assert reply.content == "" and reply.calls and (parallel or len(reply.calls) == 1), text
        for call in reply.calls:
            arguments = json.loads(call.arguments)
            jsonschema.validate(arguments, TOOLS[call.name])
            assert arguments.keys() <= TOOLS[call.name]["properties"].keys()
            seen.add(call.name)
    assert seen == set(TOOLS)


def follows(grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(VOCABULARY, grammar)
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def test_nothing_else_is_let_through() -> None:
    writing = FORMATS["hermes"].writing
    assert writing is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    one, some = (call_grammar(TOOLS, writing, {}, parallel=parallel) for parallel in (False, True))
    assert follows(one, call) and follows(some, call) and follows(some, f"{call}\n{call}")
    for text in ("", "hello", call[:-1], call + "x", call.replace("now", "later"), f"{call}\n{call}"):
        assert not follows(one, text)
    assert not follows(one, call.replace("{}", '{"a": 1}'))


def test_free_text_goes_up_to_the_marker() -> None:
    writing = FORMATS["hermes"].writing
    assert writing is not None
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    for reasoning in (None, THINK):
        grammar = call_grammar(
            TOOLS, writing, {}, marker="<tool_call>", reasoning=reasoning and Preamble(reasoning, False)
        )
        for text in ("", "<b>plain</b>", "a <tool_cal", call, f"so: {call}", f"so: {call}\n{call}"):
            assert follows(grammar, text)
        for text in ("a <tool_call>", "a <tool_call> b", call.replace("now", "later"), call.replace("{}", '{"a": 1}')):
            assert not follows(grammar, text)
        thought = "<think>never a <tool_call> </think>"
        assert follows(grammar, thought) is follows(grammar, f"{thought}\n{call}") is (reasoning is not None)
    grammar = call_grammar(TOOLS, writing, {}, marker="<tool_call>", reasoning=Preamble(THINK, inside=True))
    assert follows(grammar, f"a <tool_call> </think>so: {call}") and not follows(grammar, "a")


ANSWERS = [
    "",
    "{}",
    '{"name": "now", "arguments": {}}',
    '"<tool_call>"',
    '["TOOL_CALLS"]',
    "<tool",
    "[TOOL_",
    " a ",
    "7",
]


@pytest.mark.parametrize("name", [name for name in WRITTEN if FORMATS[name].first_marker])
def test_calls_and_an_answer_are_told_apart_however_they_are_cut(name: str) -> None:
    format = FORMATS[name]
    assert format.writing is not None and format.first_marker is not None
    calls = [sample(call_grammar(TOOLS, format.writing, {}), seed) for seed in range(4)]
    told = ReplyFormat(calls=format, tools=TOOLS, or_answer=True)
    for text in calls + ANSWERS + [f"{answer}{calls[0]}" for answer in ANSWERS if answer]:
        for size in (1, 2, 3, len(format.first_marker), 10_000):
            splitter = told.splitter()
            pieces = [text[at : at + size] for at in range(0, len(text), size)]
            reply = Reply.of([event for piece in pieces for event in splitter.feed(piece)] + splitter.finish())
            assert splitter.has_called is bool(reply.calls) is (text in calls)
            assert reply.content == ("" if reply.calls else text)


def test_a_call_that_is_cut_before_its_name_is_nothing() -> None:
    told = ReplyFormat(calls=FORMATS["hermes"], tools=TOOLS, or_answer=True)
    text = '<tool_call>\n{"name": "now", "arguments": {}}'
    for end in range(len(text)):
        splitter = told.splitter()
        reply = Reply.of([*splitter.feed(text[:end]), *splitter.finish()])
        assert reply.content == (text[:end] if end < len("<tool_call>") else "")
        assert bool(reply.calls) is (end >= text.index('", "arguments"') + 1)


@pytest.mark.parametrize("told", [{"forced": True}, {"strict": {"now"}}, {"or_answer": True}], ids=str)
@pytest.mark.parametrize("name", WRITTEN)
def test_what_no_schema_bounds_is_told_to_its_end(name: str, told: dict[str, Any]) -> None:
    format = FORMATS[name]
    if format.writing is None or (format.first_marker is None and "forced" not in told):
        return
    grammar = call_grammar({"now": {}}, format.writing, {})
    for value in ("1" * 300, "-" + "1" * 5000 + ".5e-7", "[" * 70 + "]" * 70, '{"a": [' * 2000 + "]}" * 2000):
        arguments = f'{{"x": {value}}}'
        writing = format.writing
        call = f"{writing.first}{writing.name}now{writing.arguments}{arguments}{writing.end}{writing.last}"
        assert follows(grammar, call)
        for pieces in ([call], call):
            splitter = ReplyFormat(calls=format, tools={"now": {}}, **told).splitter()
            reply = Reply.of([event for piece in pieces for event in splitter.feed(piece)] + splitter.finish())
            assert reply.content == "" and [call.arguments for call in reply.calls] == [arguments]
            assert is_json(arguments) and not is_json(arguments[:-1])


@pytest.mark.parametrize("inside", [True, False])
def test_reasoning_may_come_first(inside: bool) -> None:
    writing = FORMATS["hermes"].writing
    assert writing is not None
    grammar = call_grammar(TOOLS, writing, {}, reasoning=Preamble(THINK, inside))
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    begin = "" if inside else "<think>"
    assert follows(grammar, f"{begin}\nany < thing </thin\n</think>\n\n{call}")
    assert follows(grammar, call) is not inside
    assert not follows(grammar, f"{begin}never ends {call}")


def test_control_tokens_go_by_id() -> None:
    ids = {"[TOOL_CALLS]": 260, "[ARGS]": 261, "[THINK]": 262, "[/THINK]": 263}
    writing = FORMATS["mistral"].writing
    assert writing is not None
    grammar = call_grammar({"now": {}}, writing, ids, reasoning=Preamble(MISTRAL, inside=False))
    assert all(f"<[{i}]>" in grammar for i in ids.values()) and not any(text in grammar for text in ids)


def test_prose_is_left_out_of_a_schema_and_names_are_not() -> None:
    schema = enforced_schema(TOOLS["pick"])
    assert "description" not in schema and "description" in schema["properties"]
    assert schema["properties"]["size"] == {"$ref": "#/$defs/size"} and schema["additionalProperties"] is False
    open_ended = {"type": "object", "properties": {"a": {"allOf": [{"properties": {"b": {}}}]}}}
    assert enforced_schema(open_ended) == open_ended
    assert enforced_schema({}) == {"type": "object"}
