"""Calls that have to be made, by a model of random weights: a grammar leaves it nothing else to write."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import jsonschema
import openai
import pytest
from anthropic.types import Message
from openai.types.responses import Response
from real_server import RealServer
from server_world import chunks, joined, strict, wait_until
from test_tools import TEMPLATE

sys.path.append(str(Path(__file__).parents[1] / "model"))

import tiny

URL = "/v1/chat/completions"
USER = [{"role": "user", "content": "Which?"}]
PICK: dict[str, Any] = {
    "type": "object",
    "properties": {
        "size": {"$ref": "#/$defs/size"},
        "count": {"type": "integer", "minimum": 1, "maximum": 20},
        "deep": {
            "type": "object",
            "properties": {"flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
        },
    },
    "required": ["size"],
    "$defs": {"size": {"enum": ["small", "large"]}},
}
NOW: dict[str, Any] = {"type": "object", "properties": {}}
SCHEMAS = {"pick": PICK, "now": NOW}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
TEMPLATES = {
    "hermes": TEMPLATE,
    "qwen3_coder": TEMPLATE.replace("<tool_call>", "<tool_call><function=f><parameter=p>"),
    "mistral": TEMPLATE.replace("<tool_call>", "[TOOL_CALLS][ARGS]"),
    "generic": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
}


@pytest.fixture(scope="module", params=TEMPLATES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("forced")
    model = tiny.write_checkpoint("llama", folder / "tiny")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    add_markers(model / "tokenizer.json", MARKERS)
    (folder / "template.jinja").write_text(TEMPLATES[request.param])
    # Reasoning may come before a call, and a model of random weights never ends it.
    options = ("--threads", "1", "--chat-template", str(folder / "template.jinja"), "--reasoning-parser", "none")
    running = RealServer(folder / "log", str(model), *options)
    yield running
    assert running.close() == 0
    assert "Traceback" not in running.log.read_text()


MARKERS = {"[TOOL_CALLS]": tiny.BASE["vocab_size"] - 2, "[ARGS]": tiny.BASE["vocab_size"] - 1}


def add_markers(path: Path, markers: dict[str, int]) -> None:
    """Control tokens in the place of tokens that only fill the vocabulary."""
    value = json.loads(path.read_text())
    for text, token_id in markers.items():
        del value["model"]["vocab"][f"filler{token_id}"]
        value["added_tokens"].append({**value["added_tokens"][0], "id": token_id, "content": text})
    path.write_text(json.dumps(value))


def stream(server: RealServer, **body: Any) -> dict[str, Any]:
    with server.client.stream("POST", URL, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return joined(chunks(response.iter_lines()))


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in choice["message"]["tool_calls"]]
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])
    return calls


NAMED = {"type": "function", "function": {"name": "pick"}}


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_calls_fit_streamed_and_whole(server: RealServer, choice: Any, reason: str) -> None:
    """Of a named function there is one call, also where several calls of any might be made."""
    for seed in range(4):
        body: dict[str, Any] = {
            "messages": USER, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": choice == NAMED,
            "seed": seed, "temperature": 1.5, "max_tokens": 400,
        }  # fmt: skip
        whole, streamed = server.post(URL, **body)["choices"][0], stream(server, **body)["choices"][0]
        (call,) = calls_of(whole)
        assert calls_of(streamed) == [call] and (choice == "required" or call[0] == "pick")
        assert whole["message"]["content"] is None and streamed["message"]["content"] is None
        assert whole["finish_reason"] == streamed["finish_reason"] == reason


def test_arguments_are_told_as_they_are_written(server: RealServer) -> None:
    body = {"messages": USER, "tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False, "temperature": 0}
    with server.client.stream("POST", URL, json={**body, "stream": True}) as response:
        told = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in chunks(response.iter_lines())]
    fragments = [calls[0]["function"]["arguments"] for calls in told if calls]
    assert fragments[0] == "" and len(fragments) > 5


def test_several_calls_may_be_made_and_may_be_cut(server: RealServer) -> None:
    body = {"messages": USER, "tools": TOOLS, "tool_choice": "required", "temperature": 1.5, "seed": 3}
    choice = server.post(URL, **body, max_tokens=12)["choices"][0]
    assert choice["finish_reason"] == "length" and not choice["message"]["content"]
    choices = server.post(URL, **body, max_tokens=300, n=2)["choices"]
    assert all(choice["message"]["tool_calls"] for choice in choices)


def test_by_the_official_client(server: RealServer) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        arguments: Any = {"messages": USER, "tools": TOOLS, "tool_choice": NAMED, "parallel_tool_calls": False}
        message = client.chat.completions.create(model=client.models.list().data[0].id, **arguments).choices[0].message
    assert message.tool_calls is not None and message.tool_calls[0].function.name == "pick"


@pytest.mark.parametrize("server", ["mistral"], indirect=True)
def test_strict_tools_hold_calls_that_need_not_be_made(server: RealServer) -> None:
    """The marker is all but forced, and the rest is what a model of random weights makes of it."""
    body: dict[str, Any] = {
        "messages": USER, "parallel_tool_calls": False, "temperature": 1.5, "max_tokens": 200,
        "logit_bias": {MARKERS["[TOOL_CALLS]"]: 100},
    }  # fmt: skip
    for held in (True, False):
        tools = [{"type": "function", "function": {"name": "pick", "parameters": PICK, "strict": held}}]
        for seed in range(3):
            whole = server.post(URL, **body, tools=tools, seed=seed)["choices"][0]
            streamed = stream(server, **body, tools=tools, seed=seed)["choices"][0]
            assert whole["message"]["content"] == streamed["message"]["content"]
            assert ("tool_calls" in whole["message"]) is ("tool_calls" in streamed["message"]) is held
            if held:
                assert calls_of(whole) == calls_of(streamed) and whole["message"]["content"] is None
                assert whole["finish_reason"] == streamed["finish_reason"] == "tool_calls"
    del body["logit_bias"]
    free = server.post(URL, **body, tools=tools[:1], seed=1)["choices"][0]
    assert free["message"]["content"] and free["finish_reason"] in ("length", "stop")


@pytest.mark.parametrize("schema", [{"properties": {"a": {"type": "string", "pattern": "(?=x)"}}}, {"not": {}}])
def test_what_cannot_be_enforced_is_refused(server: RealServer, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    status, reply = server.raw(URL, messages=USER, tools=[tool], tool_choice="required")
    assert status == 400 and reply["error"]["param"] == "tools", reply
    assert server.raw(URL, messages=USER, tools=[tool], max_tokens=1)[0] == 200
    status, reply = server.raw(
        URL, messages=USER, tools=TOOLS, tool_choice="required", response_format={"type": "json_object"}
    )
    assert status == 400 and reply["error"]["param"] == "tool_choice"
    wait_until(server.is_idle, 30)


def test_responses_and_messages_have_the_calls_of_chat(server: RealServer) -> None:
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    own = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    shared = {"seed": 2, "temperature": 1.5}
    for name in (None, "pick"):
        chosen: Any = {"type": "function", "function": {"name": name}} if name else "required"
        chat = {**shared, "messages": USER, "tools": TOOLS, "tool_choice": chosen, "parallel_tool_calls": False}
        (call,) = calls_of(server.post(URL, **chat, max_tokens=400)["choices"][0])
        chosen = {"type": "function", "name": name} if name else "required"
        body = {**shared, "input": USER, "tools": flat, "tool_choice": chosen, "parallel_tool_calls": False}
        reply = strict(Response, server.post("/v1/responses", **body, max_output_tokens=400))
        (item,) = reply["output"]
        assert (item["name"], item["arguments"]) == call and reply["status"] == item["status"] == "completed"
        chosen = {"type": "tool", "name": name} if name else {"type": "any"}
        asked: Any = {
            **shared, "messages": USER, "tools": own, "tool_choice": {**chosen, "disable_parallel_tool_use": True},
        }  # fmt: skip
        message = strict(Message, server.post("/v1/messages", **asked, max_tokens=400))
        (block,) = message["content"]
        assert (block["name"], block["input"]) == (call[0], json.loads(call[1])) and message[
            "stop_reason"
        ] == "tool_use"


def test_calls_that_are_cut_are_what_the_official_clients_make_of_them(server: RealServer) -> None:
    own: Any = [{"name": "pick", "input_schema": PICK}]
    with (
        anthropic.Anthropic(base_url=server.url, api_key="any") as client,
        openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as other,
    ):
        model = other.models.list().data[0].id
        for length in (1, 12, 30, 60):
            asked: Any = {"model": model, "messages": USER, "tools": own, "tool_choice": {"type": "any"}}
            asked |= {"max_tokens": length, "extra_body": {"temperature": 0}}
            whole = client.messages.create(**asked)
            with client.messages.stream(**asked) as stream:
                final = stream.get_final_message()
            assert final.stop_reason == whole.stop_reason
            assert [b.to_dict() | {"id": None} for b in final.content] == [
                b.to_dict() | {"id": None} for b in whole.content
            ]
            body: Any = {"model": model, "input": USER, "tools": [{"type": "function", **TOOLS[0]["function"]}]}  # type: ignore[dict-item]
            body |= {"tool_choice": "required", "max_output_tokens": length, "temperature": 0}
            response = other.responses.create(**body)
            with other.responses.stream(**body) as told:
                last = [event.response for event in told if event.type.endswith(("completed", "incomplete"))][-1]  # type: ignore[union-attr]
            assert response.status == last.status and len(response.output) == len(last.output)
            for one, two in zip(response.output, last.output, strict=True):
                assert one.type == two.type
                if one.type == "function_call" and two.type == "function_call":
                    assert (one.arguments, one.status) == (two.arguments, two.status)
                    assert (one.status == "completed") is one.arguments.endswith("}")
