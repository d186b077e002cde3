"""The server held to its own /openapi.json: what it says of bodies, and of every answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from schema_world import Document, bodies, wrong_bodies
from server_world import World

sys.path.insert(0, str(Path(__file__).parents[1] / "judges"))
from refusals import reason_of

HELLO = [{"role": "user", "content": "a"}]
CALL = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/tokenize",
    "/detokenize",
)
# Bodies that together bring every key that a reply can have.
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": ["ab", "c"], "n": 2, "logprobs": 2, "echo": True, "max_tokens": 3, "seed": 1}),
    ("/v1/completions", {"prompt": [97, 98], "prompt_logprobs": 1, "return_token_ids": True, "temperature": 1.0}),
    ("/v1/completions", {"prompt": "a", "stop": "d", "return_tokens_as_token_ids": True, "logprobs": 0}),
    ("/v1/completions", {"prompt": "0", "max_tokens": 20}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "prompt_logprobs": 1, "return_token_ids": True}),
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "echo": True, "temperature": 1.0}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 3, "metadata": {"a": "b"}, "instructions": "be brief"}),
    ("/v1/responses", {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 3}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 30, "stop_sequences": ["d"]}),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
    ("/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("/tokenize", {"messages": HELLO}),
    ("/detokenize", {"tokens": [97, 98]}),
    # Refusals.
    ("/v1/completions", {"prompt": "a", "model": "other"}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 3, "model": "other"}),
    ("/v1/completions", {"prompt": "a", "timeout": 1e-9}),
    ("/v1/embeddings", {"input": "a"}),
]
# What a model writes with tools at hand: text, reasoning, a call, a call cut short.
CALLING = ['Well<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "<think>so</think>say", "plain"]
WITH_TOOLS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO, "tools": [{"type": "function", "function": CALL}]}),
    ("/v1/responses", {"input": "a", "tools": [{"type": "function", **CALL}]}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 200, "tools": [{"name": "f", "input_schema": {}}]}),
]


@pytest.fixture(scope="module")
def small_world(make_module_world: Callable[..., World]) -> World:
    return make_module_world(max_model_len=48, takes_priority=True, enable_dev_mode=True)


@pytest.fixture(scope="module")
def document(small_world: World) -> Document:
    return Document(small_world.get("/openapi.json").json())


# The official clients' own types of a whole reply, and of an event of a stream.
OFFICIAL: dict[str, tuple[TypeAdapter[Any], TypeAdapter[Any]]] = {
    "/v1/completions": (TypeAdapter(Completion), TypeAdapter(Completion)),
    "/v1/chat/completions": (TypeAdapter(ChatCompletion), TypeAdapter(ChatCompletionChunk)),
    "/v1/responses": (TypeAdapter(Response), TypeAdapter(ResponseStreamEvent)),
    "/v1/messages": (TypeAdapter(Message), TypeAdapter(RawMessageStreamEvent)),
    "/v1/messages/count_tokens": (TypeAdapter(MessageTokensCount), TypeAdapter(None)),
}


def ask(world: World, document: Document, path: str, body: dict[str, Any]) -> int:
    """The status; an answer is a documented one, and good for the official clients' types without any coercion."""
    reply = world.client.post(path, json=body)
    document.check(path, reply)
    if reply.status_code == 200 and path in OFFICIAL:
        whole, event = OFFICIAL[path]
        if body.get("echo") and body.get("logprobs") is not None:
            return 200  # the first token of a prompt has no logprob, for which the types have no null
        if not reply.headers["content-type"].startswith("text/event-stream"):
            whole.validate_json(reply.content, strict=True)
            return 200
        for data in document.data_of(reply):
            value = json.loads(data)
            # Anthropic's types know no ping; OpenAI's have no null for the reason of a completion that goes on.
            for choice in value.get("choices", ()) if path == "/v1/completions" else ():
                choice["finish_reason"] = choice["finish_reason"] or "stop"
            if value.get("type") != "ping" and "error" not in value.keys() - {"type"}:
                event.validate_json(json.dumps(value), strict=True)
    return reply.status_code


def test_the_schemas_are_schemas(document: Document) -> None:
    for schema in document.document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    ids = [operation["operationId"] for path in document.document["paths"].values() for operation in path.values()]
    assert len(ids) == len(set(ids)) > 15


def test_every_route_is_in_the_document_with_its_methods(small_world: World, document: Document) -> None:
    """But for the pages about it, and the ids of responses, of which there are none."""
    app = small_world.server.config.app
    told = {(path, method) for path, item in document.document["paths"].items() for method in item}
    there = {
        (route.path_format, method.lower())
        for route in World.routes(app)  # type: ignore[arg-type]
        for method in route.methods or ()
        if route.include_in_schema
    }
    assert told == there and ("/ping", "post") in told and ("/v1/models/{name}", "get") in told


def test_other_methods_are_told_which_there_are(small_world: World, document: Document) -> None:
    for path, item in document.document["paths"].items():
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            if method.lower() not in item:
                reply = small_world.client.request(method, path.replace("{name}", "small"))
                assert reply.status_code == 405, (method, path)
                assert {one.strip().lower() for one in reply.headers["allow"].split(",")} == item.keys()


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/models/small", "/version", "/load", "/health", "/ping", "/metrics"]
)
def test_what_is_read_is_as_documented(small_world: World, document: Document, path: str) -> None:
    known = "/v1/models/{name}" if path.endswith("/small") else path
    document.check(known, small_world.get(path))
    if "head" in document.document["paths"][known]:
        document.check(known, small_world.client.head(path))
    document.check("/v1/models/{name}", small_world.get("/v1/models/none", 404))


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body"), ASKED, ids=range(len(ASKED)))
def test_every_key_of_a_reply_is_documented(
    small_world: World, document: Document, path: str, body: dict[str, Any], streamed: bool
) -> None:
    if not streamed:
        ask(small_world, document, path, body)
    elif "prompt_logprobs" not in body:
        options = {"include_usage": True, "continuous_usage_stats": True}
        asked = {"stream_options": options} if "completions" in path else {}
        ask(small_world, document, path, {**body, "stream": True, **asked})


@pytest.mark.parametrize(("path", "body"), WITH_TOOLS, ids=[path for path, _ in WITH_TOOLS])
def test_so_is_what_a_reply_with_calls_and_reasoning_has(
    make_module_world: Callable[..., World], path: str, body: dict[str, Any]
) -> None:
    world = make_module_world(texts=CALLING, tool_call_parser="hermes", reasoning_parser="qwen3")
    document = Document(world.get("/openapi.json").json())
    for text in range(len(CALLING)):
        say = [{"role": "user", "content": f"say {text}"}]
        for more in ({}, {"stream": True}):
            assert (
                ask(world, document, path, {**body, "messages" if "messages" in body else "input": say, **more}) == 200
            )


@pytest.mark.parametrize(
    ("message", "taken"),
    [
        ({"role": "assistant", "refusal": "no"}, True),
        ({"role": "assistant", "reasoning_content": "so"}, True),
        ({"role": "assistant", "thinking": "so", "content": None}, True),
        ({"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, True),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, True),
        ({"role": "user", "content": "a", "tool_calls": None}, True),
        ({"role": "assistant"}, False),
        ({"role": "user", "refusal": "no"}, False),
        ({"role": "user", "content": "a", "thinking": 5}, False),
        ({"role": "assistant", "function_call": [None]}, False),
        ({"role": "assistant", "content": "a", "tool_calls": 5}, False),
        ({"role": "critic", "content": "a"}, False),
    ],
)
def test_messages_are_taken_as_the_schema_has_them(
    small_world: World, document: Document, message: dict[str, Any], taken: bool
) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}, message]}
    reply = small_world.client.post("/tokenize", json=body)
    assert (reply.status_code == 200) == taken, reply.text
    assert (not document.faults(document.body_schema("/tokenize"), body)) == taken


def test_a_missing_key_is_a_documented_answer(make_world: Callable[..., World]) -> None:
    world = make_world(api_key=["secret"], enable_tokenizer_info_endpoint=True)
    document = Document(world.get("/openapi.json").json())
    document.check("/tokenizer_info", world.get("/tokenizer_info"))
    for path, item in document.document["paths"].items():
        for method, operation in item.items():
            reply = world.anonymous.request(method, path.replace("{name}", "small"))
            if operation.get("security") == []:
                assert reply.status_code == 200
            else:
                assert reply.status_code == 401
                document.check(path, reply)


quick = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,  # the judge explores; what runs on every change is to say the same of the same code
    suppress_health_check=[*HealthCheck],
    phases=[hypothesis.Phase.generate],
)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_keeps_to_its_schema_is_taken_or_refused_with_a_reason(
    small_world: World, document: Document, path: str
) -> None:
    taken = 0

    @quick
    @given(bodies(document, path))
    def check(body: dict[str, Any]) -> None:
        nonlocal taken
        reply = small_world.client.post(path, json=body)
        document.check(path, reply)
        if reply.status_code == 400:
            assert reason_of(reply.json()["error"]["message"]), reply.text
        elif reply.status_code == 504:
            assert body.get("timeout") is not None
        else:
            assert reply.status_code == 200
            taken += 1

    check()
    assert taken or path == "/v1/embeddings"  # this model has no vectors


@pytest.mark.parametrize("path", PATHS)
def test_a_body_that_does_not_keep_to_its_schema_is_refused(small_world: World, document: Document, path: str) -> None:
    @quick
    @given(wrong_bodies(document, path))
    def check(body: dict[str, Any]) -> None:
        assert ask(small_world, document, path, body) in (400, 404)

    check()


@quick
@given(raw=st.binary(max_size=40) | st.sampled_from([b"", b"null", b"[]", b'"x"', b'{"a":', b"{}"]))
def test_a_body_that_is_no_object_is_refused(small_world: World, document: Document, raw: bytes) -> None:
    for path in PATHS:
        reply = small_world.client.post(path, content=raw, headers={"content-type": "application/json"})
        assert reply.status_code == 400
        document.check(path, reply)


def test_nothing_is_left_behind(small_world: World) -> None:
    small_world.probe()
