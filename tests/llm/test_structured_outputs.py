"""Structured output offline: what is asked for is what comes, whatever the model would rather say."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "judges"))

from schemas import fault, schemas

from octavo import LLM, SamplingParams, StructuredOutputsParams
from octavo.engine.outputs import CompletionOutput
from octavo.errors import GenerationError, RequestError
from octavo.runtime import grammar
from octavo.sampling_params import GuidedDecodingParams

PROMPT = [72, 105]
COLOURS = {"$defs": {"colour": {"enum": ["red", "green"]}}}
HAND_WRITTEN: dict[str, dict[str, Any]] = {
    "enum behind a reference": {**COLOURS, "$ref": "#/$defs/colour"},
    "reference in an array": {**COLOURS, "type": "array", "items": {"$ref": "#/$defs/colour"}, "maxItems": 4},
    "reference to an array item": {
        "type": "object",
        "properties": {
            "a": {"type": "array", "prefixItems": [{"type": "integer", "maximum": 9, "minimum": 0}], "items": False},
            "b": {"$ref": "#/properties/a/prefixItems/0"},
        },
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "recursive": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}},
                "required": ["children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
    "any of objects": {
        "anyOf": [
            {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"], "additionalProperties": False},
            {"type": "object", "properties": {"y": {"type": "null"}}, "additionalProperties": False},
        ]
    },
    "const": {"const": {"a": [1, None, "é\n"]}},
    "nullable": {"type": ["boolean", "null"]},
    "keys of its own": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": {"type": "null"},
        "maxProperties": 1,
    },
}
PATTERNS = [r"^\d{3}$", r"^\w+$", r"^\s?a$", r"^(|a|bc)$", r"^[A-Z]{2,3}\d?$", "^ä+$", r"^(a|b)|c$", "b+", r"\d"]


def sample(llm: LLM, count: int = 20, most: int = 400, **constraint: Any) -> list[CompletionOutput]:
    params = [
        SamplingParams(
            temperature=1.5, seed=i, max_tokens=most, structured_outputs=StructuredOutputsParams(**constraint)
        )
        for i in range(count)
    ]
    return [output.outputs[0] for output in llm.generate([PROMPT] * count, params, use_tqdm=False)]


@pytest.mark.parametrize("name", HAND_WRITTEN)
def test_every_finished_reply_holds_to_its_schema(llm: LLM, name: str) -> None:
    schema = HAND_WRITTEN[name]
    replies = sample(llm, json=schema)
    finished = [reply.text for reply in replies if reply.finish_reason == "stop"]
    assert len(finished) > 10, len(finished)
    for text in finished:
        assert not (reason := fault(schema, text)), (text, reason)


def test_schemas_of_all_kinds(llm: LLM) -> None:
    asked = [schema for _, schema in schemas(seed=11, count=60)]
    params = [
        SamplingParams(
            temperature=1.5, seed=i, max_tokens=300, structured_outputs=StructuredOutputsParams(json=json.dumps(schema))
        )
        for i, schema in enumerate(asked)
    ]
    outputs = llm.generate([PROMPT] * len(asked), params, use_tqdm=False)
    replies = [output.outputs[0] for output in outputs]
    for schema, reply in zip(asked, replies, strict=True):
        assert reply.finish_reason != "stop" or not fault(schema, reply.text), (schema, reply.text)
    assert sum(reply.finish_reason == "stop" for reply in replies) >= 0.8 * len(asked)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_re_search_says(llm: LLM, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern, "maxLength": 12}
    replies = sample(llm, json=schema)
    finished = [reply.text for reply in replies if reply.finish_reason == "stop"]
    assert len(finished) > 10 and not any(fault(schema, text) for text in finished), finished


@pytest.mark.parametrize("pattern", [r"(yes|no)[!?]{1,3}", r"\d{2}/\d{2}", "a|", r"^[a-c]{4}$", "x\ny", r"\S \w"])
def test_a_regex_matches_the_whole_reply(llm: LLM, pattern: str) -> None:
    for reply in sample(llm, regex=pattern):
        assert reply.finish_reason == "stop" and re.fullmatch(pattern, reply.text), reply


def test_a_choice_is_made(llm: LLM) -> None:
    choices = ["yes", "no", 'a "quoted" one', "two\nlines", "😀", "back\\slash", "a/b", "<|im_end|>", "yes and no"]
    replies = sample(llm, choice=choices)
    assert {reply.text for reply in replies} <= set(choices) and len({reply.text for reply in replies}) > 2
    assert {reply.finish_reason for reply in replies} == {"stop"}


def test_grammars_in_both_dialects(llm: LLM) -> None:
    lark = 'start: pair ("," pair)*\npair: NAME "=" /[0-9]{1,2}/\nNAME: "a".."c"'
    gbnf = 'root ::= pair ("," pair)* "."\npair ::= [a-c] "=" [0-9] [0-9]?'
    for text, end in ((lark, ""), (gbnf, r"\.")):
        replies = [reply for reply in sample(llm, grammar=text, most=60) if reply.finish_reason == "stop"]
        assert replies
        for reply in replies:
            assert re.fullmatch(r"[a-c]=\d\d?(,[a-c]=\d\d?)*" + end, reply.text), reply.text


def test_any_object_and_white_space(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": [1, 2]}}, "required": ["a", "b"]}
    closed = {"disable_additional_properties": True}
    replies = sample(llm, json=schema, **closed)
    assert {re.sub(r"\s", "", reply.text) for reply in replies} == {'{"a":1,"b":[1,2]}'}
    assert len({reply.text for reply in replies}) > 1
    compact = sample(llm, json=schema, disable_any_whitespace=True, **closed)
    assert {reply.text for reply in compact} == {'{"a":1,"b":[1,2]}'}
    wide = sample(llm, json=schema, whitespace_pattern="_", **closed)
    assert {reply.text.replace("_", "") for reply in wide} == {'{"a":1,"b":[1,2]}'}
    for reply in sample(llm, json_object=True):
        assert reply.text.startswith("{")
        assert reply.finish_reason != "stop" or isinstance(json.loads(reply.text), dict)


def test_a_trigger_starts_a_structure(llm: LLM) -> None:
    tag = {
        "structures": [{"begin": "a<", "schema": {"type": "integer", "minimum": 0, "maximum": 9}, "end": ">"}],
        "triggers": ["a"],
    }
    replies = sample(llm, structural_tag=tag, most=60)
    assert any("a" in reply.text for reply in replies)
    for reply in replies:
        rest = re.sub(r"a<\d>", "", reply.text)
        assert "a" not in (rest if reply.finish_reason == "stop" else rest[:-3]), reply.text


def test_a_reply_ends_where_nothing_may_follow(llm: LLM) -> None:
    def one(**params: Any) -> CompletionOutput:
        constraint = StructuredOutputsParams(choice=["abc"])
        asked = SamplingParams(structured_outputs=constraint, **{"max_tokens": 50, "temperature": 1.0, **params})
        return llm.generate(PROMPT, asked, use_tqdm=False)[0].outputs[0]

    for params in ({}, {"ignore_eos": True}, {"min_tokens": 20}, {"ignore_eos": True, "min_tokens": 20}):
        reply = one(**params)
        assert (reply.text, reply.finish_reason, reply.stop_reason) == ("abc", "stop", None)
    cut = one(max_tokens=2)
    assert "abc".startswith(cut.text) and (len(cut.token_ids), cut.finish_reason) == (2, "length")
    assert (one(stop=["b"]).text, one(stop=["b"]).finish_reason) == ("a", "stop")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_holds_where_more_may_follow(llm: LLM, ignore_eos: bool) -> None:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="[ab]{0,30}"), min_tokens=12, max_tokens=60, temperature=1.0,
        n=4, seed=1, ignore_eos=ignore_eos, logit_bias={257: 5.0},
    )  # fmt: skip
    for reply in llm.generate(PROMPT, params, use_tqdm=False)[0].outputs:
        assert reply.finish_reason == "stop" and 12 <= len(reply.token_ids) <= 31


def test_a_stop_id_that_a_grammar_needs_stops_nothing_before_min_tokens(llm: LLM) -> None:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(choice=["green"]), min_tokens=3, stop_token_ids=[ord("r"), ord("n")]
    )
    reply = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs[0]
    assert (reply.text, reply.finish_reason, reply.stop_reason) == ("gree", "stop", ord("n"))


def test_logprobs_stay_finite_and_samples_differ(llm: LLM) -> None:
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="[a-e]{6}"), n=4, seed=1, temperature=1.5, logprobs=20
    )
    outputs = llm.generate(PROMPT, params, use_tqdm=False)[0].outputs
    assert len({output.text for output in outputs}) > 1
    for output in outputs:
        assert re.fullmatch("[a-e]{6}", output.text)
        assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
        for token_id, entry in zip(output.token_ids, output.logprobs, strict=True):
            assert token_id in entry and all(math.isfinite(logprob.logprob) for logprob in entry.values())


def test_a_grammar_and_allowed_tokens_hold_together(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    few = [*tokenizer.encode("bc", add_special_tokens=False), *tokenizer.eos_token_ids]
    params = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="[a-e]{6}"), allowed_token_ids=few, temperature=1.5, n=5
    )
    for output in llm.generate(PROMPT, params, use_tqdm=False)[0].outputs:
        assert re.fullmatch("[bc]{6}", output.text), output


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json": {"type": "foo"}}, "foo"),
    ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
    ({"json": {"not": {}}}, "not"),
    ({"json": {"$ref": "https://example.org/x"}}, "example.org"),
    ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around"),
    ({"json": {"type": "string", "pattern": "("}}, "unclosed"),
    ({"json": {"type": "string", "format": "nonsense"}}, "nonsense"),
    ({"json": {"x-guidance": {"lenient": True}, "not": {}}}, "x-guidance"),
    ({"json": {"type": "object", "minProperties": 3}}, "minProperties"),
    ({"json": {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5}}, "excludes 0"),
    ({"json": {"type": "integer", "minimum": 5, "maximum": 1}}, "minimum"),
    ({"json": {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}}}, "400"),
    ({"json": {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}}}, "$ref"),
    ({"regex": "("}, "unclosed"),
    ({"regex": r"\bfoo"}, "lookarounds"),
    ({"regex": r"(a)\1"}, "backreferences"),
    ({"grammar": "start: x"}, "unknown name"),
    ({"grammar": 'root ::= "a" x'}, "'x' not found"),
    ({"grammar": "nonsense"}, "GBNF"),
    ({"grammar": "start: r0\n" + "\n".join(f'r{i}: "a" r{i + 1}' for i in range(20_000))}, "bytes"),
    ({"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3000))}, "rules"),
    ({"structural_tag": {"type": "structural_tag", "format": {}}}, "structures"),
]


@pytest.mark.parametrize("constraint, says", REFUSED, ids=[str(i) for i in range(len(REFUSED))])
def test_what_cannot_be_enforced_is_refused_by_name(llm: LLM, constraint: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=re.escape(says)) as caught:
        sample(llm, 1, **constraint)
    assert caught.value.param == "structured_outputs" and len(str(caught.value)) < 1000
    assert sample(llm, 1, choice=["fine"])[0].text == "fine"


def test_exactly_one_constraint() -> None:
    for wrong in ({}, {"regex": "a", "choice": ["a"]}, {"json_object": False}):
        with pytest.raises(RequestError, match="exactly one"):
            StructuredOutputsParams(**wrong)
    with pytest.raises(RequestError, match="not both"):
        SamplingParams(
            structured_outputs=StructuredOutputsParams(regex="a"), guided_decoding=GuidedDecodingParams(regex="a")
        )
    old = SamplingParams(guided_decoding=GuidedDecodingParams(regex="a"))
    assert old.structured_outputs == StructuredOutputsParams(regex="a") and old.guided_decoding is None


def test_compiled_grammars_are_kept_within_a_bound(make: Callable[..., LLM]) -> None:
    compiler = make()._loaded().grammars.compiler()
    first = StructuredOutputsParams(regex="a{1,3}")
    compiled = compiler.compile(first)
    assert compiler.compile(StructuredOutputsParams(regex="a{1,3}")) is compiled
    for i in range(2 * grammar.MAX_COMPILED):
        compiler.compile(StructuredOutputsParams(regex=f"b{{{i + 1}}}"))
        compiler.compile(first)
    assert compiler.compile(first) is compiled
    assert len(compiler._compiled) == grammar.MAX_COMPILED


def test_a_grammar_that_fails_ends_its_own_request(llm: LLM) -> None:
    """There are more ways to go on after the first token than the parser takes."""
    constraint = StructuredOutputsParams(grammar="start: " + " | ".join(f'"a{i}"' for i in range(3000)))
    failing = SamplingParams(structured_outputs=constraint)
    fine = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["fine"]))
    compiler = llm._loaded().grammars.compiler()
    before = compiler.compile(constraint)
    for _ in range(2):
        with pytest.raises(GenerationError, match="grammar failed") as caught:
            llm.generate([PROMPT] * 3, [fine, failing, fine], use_tqdm=False)
        assert caught.value.failed == [1]
        assert [output.outputs[0].text for output in caught.value.outputs[::2]] == ["fine", "fine"]
    assert compiler.compile(constraint) is not before


def test_a_limit_that_an_allowed_token_meets_is_told_of_the_constraint(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first mask is made, in a time that a fast machine would take for little; the lexer fails at the token."""
    monkeypatch.setattr(grammar, "MAX_FIRST_MASK_SECONDS", 60)
    failing = SamplingParams(structured_outputs=StructuredOutputsParams(regex="(x{1000}){1000}"), max_tokens=5)
    with pytest.raises(GenerationError, match="grammar failed") as caught:
        llm.generate([PROMPT] * 2, [failing, SamplingParams(max_tokens=3, ignore_eos=True)], use_tqdm=False)
    assert caught.value.failed == [0] and len(caught.value.outputs[1].outputs[0].token_ids) == 3
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_grammar_that_takes_too_long_ends_its_own_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of ways to read a text under this grammar grows with the text."""
    monkeypatch.setattr(grammar, "SLOW_STEP_SECONDS", 0.002)
    monkeypatch.setattr(grammar, "SLOW_MASK_SECONDS", 0.001)
    monkeypatch.setattr(grammar, "MAX_SLOW_SECONDS", 0.02)
    slow = SamplingParams(
        structured_outputs=StructuredOutputsParams(grammar='start: s\ns: s s s | s s | "a"'),
        max_tokens=1000,
        ignore_eos=True,
        logit_bias={97: 100},
    )
    plain = SamplingParams(max_tokens=40, ignore_eos=True, temperature=0)
    with pytest.raises(GenerationError, match="grammar takes too long") as caught:
        llm.generate([PROMPT] * 2, [slow, plain], use_tqdm=False)
    assert caught.value.failed == [0] and len(caught.value.outputs[1].outputs[0].token_ids) == 40
