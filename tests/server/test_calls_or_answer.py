"""Tools beside what a reply is held to: a model of random weights calls, or answers as asked, and does nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pydantic
import pytest
from anthropic.types import Message
from openai.types.responses import Response
from real_server import RealServer
from server_world import strict, wait_until
from test_forced_calls import SCHEMAS, TOOLS, URL, USER, add_markers, calls_of, stream

sys.path.append(str(Path(__file__).parents[1] / "model"))

import tiny

MARKERS = {
    text: tiny.BASE["vocab_size"] - 4 + i for i, text in enumerate(("[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"))
}
THINK, END = MARKERS["<think>"], MARKERS["</think>"]
STRICT: list[dict[str, Any]] = [
    {"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS
]
TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if tools %}MARKER{% endif %}{% if enable_thinking %}<think>{% endif %}"""
FIRST = {"<tool_call>": ord("<"), "[TOOL_CALLS]": MARKERS["[TOOL_CALLS]"]}
CALL = {
    "<tool_call>": '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "[TOOL_CALLS]": "[TOOL_CALLS]now[ARGS]{}",
}
# Its documents are what some models write as calls.
LOOKS_LIKE_A_CALL = {
    "type": "object",
    "properties": {"name": {"enum": ["pick", "now"]}, "arguments": {"const": {}}},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}
VALUES: list[Any] = ["<tool_call>", ["TOOL_CALLS"], 7]
EMPTY = {"type": "array", "maxItems": 0}
CHOICES = ["yes", "<tool", "[TOOL", " no"]
JSON = {"type": "json_schema", "json_schema": {"name": "x", "schema": LOOKS_LIKE_A_CALL}}
ASKED: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"response_format": JSON}, lambda text: jsonschema.validate(json.loads(text), LOOKS_LIKE_A_CALL)),
    ({"structured_outputs": {"json": {"enum": VALUES}}}, lambda text: VALUES.index(json.loads(text))),
    ({"structured_outputs": {"choice": CHOICES}}, CHOICES.index),
]


class Served:
    def __init__(self, server: RealServer, marker: str) -> None:
        self.server, self.marker, self.first = server, marker, FIRST[marker]

    def ask(self, **body: Any) -> dict[str, Any]:
        """The one choice, calls that fit or content, after its streamed form has been found to say the same."""
        given = {"messages": USER, "tools": STRICT, "temperature": 1.5, "max_tokens": 400, "seed": 1, **body}
        whole, streamed = self.server.post(URL, **given)["choices"][0], stream(self.server, **given)["choices"][0]
        assert without_ids(whole["message"]) == without_ids(streamed["message"])
        assert whole["finish_reason"] == streamed["finish_reason"]
        if "tool_calls" in whole["message"]:
            assert calls_of(whole) and whole["message"]["content"] is None
        return dict(whole)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    calls = [{**call, "id": None} for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


@pytest.fixture(scope="module", params=FIRST)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    model = tiny.write_checkpoint("llama", folder / "tiny")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    add_markers(model / "tokenizer.json", MARKERS)
    (folder / "template.jinja").write_text(TEMPLATE.replace("MARKER", request.param))
    running = RealServer(
        folder / "log", str(model), "--threads", "1", "--chat-template", str(folder / "template.jinja")
    )
    yield Served(running, request.param)
    wait_until(running.is_idle, 30)
    assert running.close() == 0
    assert "Traceback" not in running.log.read_text()


@pytest.mark.parametrize(("asked", "check"), ASKED, ids=range(len(ASKED)))
def test_a_reply_is_calls_or_the_answer(served: Served, asked: dict[str, Any], check: Callable[[str], Any]) -> None:
    for bias in (0, 4, -100):
        numbers = []
        for seed in range(4):
            more: dict[str, Any] = {"logit_bias": {THINK: -100, served.first: bias}, "parallel_tool_calls": seed > 1}
            choice = served.ask(**asked, **more, seed=seed, max_tokens=2000)
            numbers.append(len(choice["message"].get("tool_calls", ())))
            assert choice["finish_reason"] == ("tool_calls" if numbers[-1] else "stop")
            if not numbers[-1]:
                check(choice["message"]["content"])
        assert max(numbers[:2]) <= 1
        assert bias <= 0 or max(numbers)
        assert bias >= 0 or not max(numbers)


@pytest.mark.parametrize(("asked", "check"), ASKED, ids=range(len(ASKED)))
def test_either_comes_after_the_reasoning(served: Served, asked: dict[str, Any], check: Callable[[str], Any]) -> None:
    for thinking in (True, False):
        bias = {END: 6, ord("<"): -100} if thinking else {THINK: 50, END: 49}
        for called in (5, -100):
            choice = served.ask(
                **asked,
                parallel_tool_calls=False,
                chat_template_kwargs={"enable_thinking": thinking},
                logit_bias={**bias, served.first: 48 if called > 0 and not thinking else called},
                seed=1,
            )
            message = choice["message"]
            assert bool(message.get("reasoning")) is thinking or not thinking
            assert choice["finish_reason"] == ("tool_calls" if "tool_calls" in message else "stop")
            if "tool_calls" not in message:
                check(message["content"])
            if called < 0 or "choice" not in str(asked):  # of which one may begin as a call does
                assert ("tool_calls" in message) is (called > 0)


def test_any_object_is_an_answer(served: Served) -> None:
    for called in (True, False):
        bias = {THINK: -100, served.first: 100 if called else -100}
        choice = served.ask(response_format={"type": "json_object"}, parallel_tool_calls=False, logit_bias=bias)
        assert ("tool_calls" in choice["message"]) is called
        assert called or choice["message"]["content"].startswith("{")


def test_a_large_set_of_tools_may_stand_beside_a_format(served: Served) -> None:
    many = [{"type": "function", "function": {"name": f"tool_{i}" + "x" * 100}} for i in range(500)]
    large = {"type": "object", "properties": {"a": {"enum": [f"{i:06}" for i in range(20_000)]}}, "required": ["a"]}
    held = [{"type": "function", "function": {"name": "pick", "strict": True, "parameters": large}}]
    for tools, asked in (
        (many, {"response_format": {"type": "json_object"}}),
        (held, {"response_format": JSON}),
        (held, {"tool_choice": "required"}),
    ):
        choice = served.server.post(
            URL, messages=USER, tools=tools, **asked, seed=1, max_tokens=400, temperature=1, parallel_tool_calls=False,
            logit_bias={THINK: -100, served.first: 100, ord('"'): 100, ord("}"): 100},
        )["choices"][0]  # fmt: skip
        (call,) = choice["message"]["tool_calls"]
        assert choice["finish_reason"] == "tool_calls" and isinstance(json.loads(call["function"]["arguments"]), dict)
        assert call["function"]["name"] in [tool["function"]["name"] for tool in tools]
        if tools is held:
            jsonschema.validate(json.loads(call["function"]["arguments"]), large)
    too_much = [{"type": "function", "function": {**held[0]["function"], "name": f"pick_{i}"}} for i in range(6)]
    for asked in ({"response_format": JSON}, {}):
        status, reply = served.server.raw(URL, messages=USER, tools=too_much, **asked)
        assert status == 400 and reply["error"]["param"] == "tools", reply
        assert "structured_outputs" not in reply["error"]["message"]


def test_a_reply_that_is_cut_is_the_beginning_of_either(served: Served) -> None:
    asked = {"structured_outputs": {"json": LOOKS_LIKE_A_CALL, "disable_any_whitespace": True}}
    documents = [f'{{"name":"{name}","arguments":{{}}}}' for name in ("pick", "now")]
    for called, length in ((True, 1), (True, 5), (True, 22), (False, 1), (False, 11), (False, 25)):
        bias = {THINK: -100, served.first: 100 if called else -100}
        choice = served.server.post(
            URL, messages=USER, tools=STRICT, **asked, logit_bias=bias, max_tokens=length, seed=1, temperature=1
        )["choices"][0]
        message = choice["message"]
        assert choice["finish_reason"] == "length"
        if called:
            assert served.marker.startswith(message["content"] or "")
        else:
            assert len(message["content"]) == length and any(d.startswith(message["content"]) for d in documents)


def test_what_cannot_be_told_from_a_call_is_the_whole_reply(served: Served) -> None:
    call = CALL[served.marker]
    for asked in (
        {"structured_outputs": {"choice": [call, call + "!"]}},
        {"structured_outputs": {"regex": "(" + call.replace("[", r"\[").replace("{", r"\{") + "|[0-9]{3})"}},
        {"structured_outputs": {"grammar": "start: " + json.dumps(call) + ' | "a"+ "b"'}},
        *([{"structured_outputs": {"json": EMPTY, "whitespace_pattern": "(TOOL_CALLS)?"}}] if call[0] == "[" else []),
    ):
        for bias in (100, 0):
            choice = served.ask(
                **asked, logit_bias={THINK: -100, served.first: bias, ord("["): bias, ord("T"): bias - 1}
            )
            assert "tool_calls" not in choice["message"] and choice["finish_reason"] in ("stop", "length")
            assert choice["message"]["content"]


def test_what_cannot_be_enforced_is_told_by_its_field(served: Served) -> None:
    unique: dict[str, Any] = {"type": "array", "uniqueItems": True}
    bad = {"type": "json_schema", "json_schema": {"name": "x", "schema": unique}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": unique}}}}
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}  # type: ignore[dict-item]
    for tools, format, field in (
        (TOOLS, bad, "response_format"),
        ([strict], JSON, "tools"),
        ([strict], bad, "response_format"),
    ):
        for _ in range(2):
            status, reply = served.server.raw(URL, messages=USER, tools=tools, response_format=format)
            assert status == 400 and reply["error"]["param"] == field, reply
            assert "uniqueItems" in reply["error"]["message"]
    # What a tool that is not strict takes is held to nothing, beside a format as without one.
    for asked in ({"tools": [strict], "tool_choice": "none"}, {"tools": [tool], "logit_bias": {served.first: -100}}):
        body: dict[str, Any] = {"logit_bias": {}, **asked}
        body["logit_bias"] = {THINK: -100, **body["logit_bias"]}
        free = served.server.post(URL, messages=USER, response_format=JSON, seed=1, **body)
        jsonschema.validate(json.loads(free["choices"][0]["message"]["content"]), LOOKS_LIKE_A_CALL)


class Answer(pydantic.BaseModel):
    sure: bool


class Pick(pydantic.BaseModel):
    count: int = pydantic.Field(ge=0, le=99)


def test_the_official_client_parses_both(served: Served) -> None:
    with openai.OpenAI(base_url=served.server.url + "/v1", api_key="EMPTY", timeout=60) as client:
        given: Any = {"model": client.models.list().data[0].id, "messages": USER, "temperature": 1}
        given |= {"tools": [openai.pydantic_function_tool(Pick)], "parallel_tool_calls": False}
        for called in (True, False):
            bias = {str(THINK): -100, str(served.first): 100 if called else -100}
            reply = client.chat.completions.parse(**given, response_format=Answer, logit_bias=bias)
            (choice,) = reply.choices
            if called:
                assert choice.message.tool_calls and choice.finish_reason == "tool_calls"
                assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, Pick)
            else:
                assert isinstance(choice.message.parsed, Answer) and choice.message.tool_calls is None


def test_responses_and_messages_have_both(served: Served) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in STRICT]  # type: ignore[dict-item]
    own = [{"name": name, "input_schema": schema, "strict": True} for name, schema in SCHEMAS.items()]
    format = {"type": "json_schema", "schema": LOOKS_LIKE_A_CALL}
    for called in (True, False):
        shared: Any = {
            "temperature": 1.5,
            "logit_bias": {THINK: -100, served.first: 100 if called else -100},
            "seed": 2,
        }
        message = served.ask(response_format=JSON, parallel_tool_calls=False, **shared)["message"]
        body = {**shared, "input": USER, "tools": flat, "parallel_tool_calls": False}
        reply = strict(Response, served.server.post("/v1/responses", **body, text={"format": {**format, "name": "x"}}))
        asked: Any = {**shared, "messages": USER, "tools": own, "max_tokens": 400, "output_config": {"format": format}}
        asked["tool_choice"] = {"type": "auto", "disable_parallel_tool_use": True}
        anthropic = strict(Message, served.server.post("/v1/messages", **asked))
        (item,), (block,) = reply["output"], anthropic["content"]
        if called:
            function = message["tool_calls"][0]["function"]
            assert (item["name"], item["arguments"]) == (function["name"], function["arguments"])
            assert (block["name"], block["input"]) == (function["name"], json.loads(function["arguments"]))
            assert anthropic["stop_reason"] == "tool_use"
        else:
            assert item["content"][0]["text"] == block["text"] == message["content"]
            assert anthropic["stop_reason"] == "end_turn"
