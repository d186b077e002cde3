"""POST /v1/messages, whole and streamed, raw and by Anthropic's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from pydantic import TypeAdapter
from server_world import World, strict, wait_until

from octavo.server import messages_wire

URL = "/v1/messages"
USER = [{"role": "user", "content": "hi"}]
# The template ends the prompt with a line feed, whose successor is a quote.
GREEDY = '"é😀\u2028abcdefg'
EVENTS: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
KEY = "a-secret-Key-123"


def told(world: World, **body: Any) -> Iterator[dict[str, Any]]:
    """The events of a stream by their names; those but ping and error are taken by the official client's types."""
    name = ""
    for line in world.stream(URL, **body):
        kind, _, data = line.partition(": ")
        if kind == "event":
            name = data
        elif kind == "data":
            event = json.loads(data)
            assert event["type"] == name
            if name not in ("ping", "error"):
                EVENTS.validate_json(data, strict=True)
            yield event


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole message that the events of a stream add up to."""
    message: dict[str, Any] = {}
    for event in events:
        match event["type"]:
            case "message_start":
                message = event["message"]
            case "content_block_start":
                message["content"].append(event["content_block"])
            case "content_block_delta":
                message["content"][event["index"]]["text"] += event["delta"]["text"]
            case "message_delta":
                message |= event["delta"] | {"usage": event["usage"]}
    return message


def test_a_message_of_the_assistant(world: World) -> None:
    reply = strict(Message, world.post(URL, model="small", messages=USER, max_tokens=13))
    assert reply["content"] == [{"type": "text", "text": GREEDY}] and reply["id"].startswith("msg_")
    assert (reply["role"], reply["stop_reason"], reply["stop_sequence"]) == ("assistant", "max_tokens", None)
    usage = reply["usage"]
    prompt = world.tokenizer.apply_chat_template(USER)
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(prompt) and usage["output_tokens"] == 13


def test_what_was_found_in_the_cache_is_counted_apart(make_world: Any) -> None:
    world: World = make_world()
    asked = {"messages": [{"role": "user", "content": "x" * 100}], "max_tokens": 1}
    first, again = (world.post(URL, **asked)["usage"] for _ in range(2))
    assert first["cache_read_input_tokens"] == 0 < again["cache_read_input_tokens"]
    assert again["input_tokens"] == first["input_tokens"] - again["cache_read_input_tokens"]


@pytest.mark.parametrize(
    ("body", "reason", "sequence"),
    [
        ({"max_tokens": 3}, "max_tokens", None),
        ({"max_tokens": 40, "stop_sequences": ["zz", "cd"]}, "stop_sequence", "cd"),
        ({"max_tokens": 40, "logit_bias": {"260": 100}}, "end_turn", None),
        ({"max_tokens": 5000}, "model_context_window_exceeded", None),
        ({"max_tokens": 20, "temperature": 1.0, "top_p": 0.9, "top_k": 5, "seed": 4}, "max_tokens", None),
    ],
)
def test_why_it_ended_whole_and_streamed(world: World, body: dict[str, Any], reason: str, sequence: str | None) -> None:
    whole = strict(Message, world.post(URL, messages=USER, **body))
    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    events = list(told(world, messages=USER, **body))
    kinds = [event["type"] for event in events]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[3:-3]) <= {"content_block_delta"}
    streamed = joined(events)
    for key in ("role", "content", "stop_reason", "stop_sequence", "model", "seed"):
        assert streamed[key] == whole[key]
    assert streamed["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_the_official_client_reads_messages_and_streams(world: World) -> None:
    with anthropic.Anthropic(base_url=world.url, api_key="any") as client:
        asked: Any = {"model": "small", "max_tokens": 13, "messages": USER}
        whole = client.messages.create(**asked, system="be brief")
        assert whole.content[0].text == GREEDY  # type: ignore[union-attr]
        with client.messages.stream(**asked) as stream:
            assert "".join(stream.text_stream) == GREEDY
            assert stream.get_final_message().stop_reason == "max_tokens"
        count = client.messages.count_tokens(model="small", messages=USER, system="be brief")  # type: ignore[arg-type]
        usage = whole.usage
        assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)
        with pytest.raises(anthropic.NotFoundError, match="does not exist"):
            client.messages.create(**asked | {"model": "nope"})
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            client.messages.create(**asked, extra_body={"temperature": 9})


@pytest.mark.parametrize("header", [{"x-api-key": KEY}, {"authorization": f"Bearer {KEY}"}])
def test_a_key_may_come_either_way(make_world: Any, header: dict[str, str]) -> None:
    world: World = make_world(api_key=(KEY,))
    body = {"messages": USER, "max_tokens": 1}
    assert world.anonymous.post(URL, json=body, headers=header).status_code == 200
    wrong = {name: value + "x" for name, value in header.items()}
    for headers in ({}, wrong, {"x-api-key": f"Bearer {KEY}"}, {"authorization": KEY}):
        response = world.anonymous.post(URL, json=body, headers=headers)
        assert response.status_code == 401 and response.json()["error"]["type"] == "authentication_error"
    assert world.anonymous.get("/v1/models", headers={"x-api-key": KEY}).status_code == 200


def count(world: World, messages: Any, **body: Any) -> int:
    reply = strict(MessageTokensCount, world.post(f"{URL}/count_tokens", messages=messages, **body))
    return int(reply["input_tokens"])


def test_what_a_message_takes_its_count_takes_too(world: World) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "min_tokens": 20, "bad_words": ["x"]}
    assert count(world, **body) > 0
    world.post(URL, **body, max_tokens=24)
    assert world.raw(f"{URL}/count_tokens", **{**body, "bad_words": [{}]})[0] == 400


def chat_count(world: World, *messages: tuple[str, str], **body: Any) -> int:
    conversation = [{"role": role, "content": text} for role, text in messages]
    return int(world.post("/tokenize", messages=conversation, **body)["count"])


def test_blocks_turns_and_system_are_the_conversation_they_say(world: World) -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]
    assert count(world, [{"role": "user", "content": blocks}]) == chat_count(world, ("user", "a\nb"))
    assert count(world, USER, system="s") == count(world, USER, system=[{"type": "text", "text": "s"}])
    assert count(world, USER, system="s") == chat_count(world, ("system", "s"), ("user", "hi"))
    twice = [*USER, {"role": "user", "content": "ho"}]
    assert count(world, twice) == chat_count(world, ("user", "hi\nho"))
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "42"}]}
    rounds = [*USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    assert count(world, rounds) > count(world, USER)


@pytest.mark.parametrize(
    ("content", "text"), [("no such file", "Error: no such file"), ([], "Error"), (None, "Error"), ("", "Error")]
)
def test_a_tool_that_failed_says_so_to_the_model(world: World, content: Any, text: str) -> None:
    """Chat templates have no word for it."""

    def results(**fields: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", **fields}]}]

    plain = messages_wire.chat_messages(None, results(content=content))
    failed = messages_wire.chat_messages(None, results(content=content, is_error=True))
    assert [message["content"] for message in plain] == [content or ""]
    assert [message["content"] for message in failed] == [text]
    assert count(world, results(content=content, is_error=True)) == count(world, results(content=text))
    assert count(world, results(content=content, is_error=False)) == count(world, results(content=content))


def test_a_last_turn_of_the_assistant_goes_on(world: World) -> None:
    begun = [*USER, {"role": "assistant", "content": "abc"}]
    body: Any = {"add_generation_prompt": False, "continue_final_message": True}
    assert count(world, begun) == chat_count(world, ("user", "hi"), ("assistant", "abc"), **body)
    reply = world.post(URL, messages=begun, max_tokens=3)
    assert reply["content"][0]["text"] == "def"


def refused(status: int, reply: dict[str, Any], expected: int = 400) -> str:
    assert status == expected, reply
    strict(ErrorResponse, reply) if status != 413 else None  # their types do not know that one
    assert set(reply) == {"type", "error"} and set(reply["error"]) == {"type", "message"}
    return str(reply["error"]["message"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("messages", value) for value in (None, [], "hi", [5], [{}], [{"role": "system", "content": "x"}])),
        *(("messages", [{"role": "user", "content": value}]) for value in (None, 5, [], [5], [{"type": "image"}])),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": 5}]}]),
        ("messages", [{"role": "user", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]),
        ("messages", [{"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}]),
        *(("system", value) for value in (5, [], [{"type": "image"}])),
        *(("max_tokens", value) for value in (None, -1, "5", 1.5, True)),
        *(("stop_sequences", value) for value in (5, [5], [""])),
        *(("temperature", value) for value in (-1, 3, "1")),
        ("top_k", 1.5),
        ("top_p", 2),
        ("stop", ["x"]),
        ("messages", [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]),
        ("messages", [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]),
        ("messages", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 0}]}]),
        ("messages", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "is_error": 1}]}]),
        ("messages", [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]),
        ("messages", [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]),
        ("tools[0].type", [{"type": "bash_20250124", "name": "bash"}]),
        ("tools[0].input_schema", [{"name": "f"}]),
        ("tools[0].input_schema", [{"name": "f", "input_schema": {"type": "string"}}]),
        ("tools[0].name", [{"name": "a b", "input_schema": {}}]),
        ("tools[1].name", [{"name": "f", "input_schema": {}}] * 2),
        ("tools[0].input_examples", [{"name": "f", "input_schema": {}, "input_examples": [{}]}]),
        *(
            ("tool_choice", value)
            for value in ({"type": "any"}, {"type": "tool", "name": "f"}, {"type": "tool"}, "any")
        ),
        ("tool_choice", {"type": "auto", "disable_parallel_tool_use": "yes"}),
        ("thinking.type", {"type": "enabled", "budget_tokens": 1024}),
        ("thinking.display", {"type": "adaptive", "display": "all"}),
        ("output_config.format", {"format": {"type": "xml"}}),
        ("output_config.task_budget", {"task_budget": {"total": 5}}),
        ("container", "x"),
        ("mcp_servers", [{}]),
        ("service_tier", "fast"),
        ("stream", 1),
        ("cache_salt", ""),
        ("n", 2),
        ("use_beam_search", True),
        ("parallel_tool_calls", False),
        ("length_penalty", 2.0),
        ("logprobs", True),
        ("response_format", {"type": "json_object"}),
        ("structured_outputs", {"choice": ["a"]}),
        ("guided_regex", "a"),
        ("chat_template_kwargs", {"enable_thinking": True}),
        ("timeout", -1),
        ("priority", 1),
    ],
)
def test_what_is_refused_is_named_in_anthropics_shape(world: World, name: str, value: Any) -> None:
    before = world.counts()
    field = name.partition(".")[0].partition("[")[0]
    message = refused(*world.raw(URL, **{"messages": USER, "max_tokens": 5, field: value}))
    assert name in message
    assert world.counts() == before


def test_errors_of_every_kind_have_anthropics_shape(make_world: Any, world: World) -> None:
    refused(*world.send(URL, b"{"))
    refused(*world.send(URL, b"{}", content_type="text/plain"))
    refused(*world.send(URL, b" " * ((1 << 20) + 1)), expected=413)
    response = world.client.get(URL)
    refused(response.status_code, response.json(), 405)
    long = [{"role": "user", "content": "a" * 3000}]
    assert "context length" in refused(*world.raw(URL, messages=long, max_tokens=1))
    failing: World = make_world(poison="c", max_num_queued=1, max_num_seqs=1)
    refused(*failing.raw(URL, messages=USER, max_tokens=50), expected=500)
    events = list(told(failing, messages=USER, max_tokens=50))
    assert events[-1]["type"] == "error" and events[-1]["error"]["type"] == "api_error"
    with (
        anthropic.Anthropic(base_url=failing.url, api_key="any", max_retries=0) as client,
        pytest.raises(anthropic.APIStatusError, match="engine met an error"),
        client.messages.stream(model="small", max_tokens=50, messages=USER) as stream,  # type: ignore[arg-type]
    ):
        stream.until_done()


def test_a_client_that_leaves_gives_its_blocks_back(slow_world: World) -> None:
    body = {"messages": USER, "stream": True, "max_tokens": 900}
    with slow_world.client.stream("POST", URL, json=body) as response:
        lines = response.iter_lines()  # dropped, it would close the connection
        next(lines)
        wait_until(lambda: slow_world.running() == 1)
    wait_until(slow_world.is_idle)
