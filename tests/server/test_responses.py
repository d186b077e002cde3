"""POST /v1/responses, whole and streamed, raw and by the official client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from server_world import World, strict, wait_until

URL = "/v1/responses"
# The template ends the prompt with a line feed, whose successor is a quote.
GREEDY = '"é😀\u2028abcdefg'
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def told(world: World, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each taken by the official client's type, with their names and numbers in order."""
    events: list[dict[str, Any]] = []
    name = ""
    for line in world.stream(URL, **body):
        kind, _, data = line.partition(": ")
        if kind == "event":
            name = data
        elif kind == "data":
            events.append(json.loads(data))
            assert events[-1]["type"] == name and events[-1]["sequence_number"] == len(events) - 1
            EVENTS.validate_json(data, strict=True)
    return events


def text_of(reply: dict[str, Any]) -> str:
    (item,) = reply["output"]
    (part,) = item["content"]
    return str(part["text"])


def lasting(reply: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one question share: all but ids, times and what was found in the cache."""
    kept = {key: value for key, value in reply.items() if key not in ("id", "created_at", "completed_at")}
    return kept | {
        "output": [{**item, "id": None} for item in reply["output"]],
        "usage": {**reply["usage"], "input_tokens_details": None},
    }


def test_a_response_holds_one_message(world: World) -> None:
    reply = strict(Response, world.post(URL, model="small", input="hi", max_output_tokens=13, metadata={"a": "b"}))
    assert reply["object"] == "response" and reply["id"].startswith("resp_") and text_of(reply) == GREEDY
    assert (reply["status"], reply["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert reply["store"] is False and reply["metadata"] == {"a": "b"} and reply["max_output_tokens"] == 13
    prompt = world.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    usage = reply["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (len(prompt), 13)
    assert usage["total_tokens"] == len(prompt) + 13


def test_one_that_ends_of_itself_is_completed(world: World) -> None:
    reply = strict(Response, world.post(URL, input="hi", logit_bias={"260": 100}))
    assert reply["status"] == "completed" and reply["incomplete_details"] is None and reply["completed_at"]
    assert reply["output"][0]["status"] == "completed"


def test_the_order_of_events(world: World) -> None:
    events = told(world, input="hi", max_output_tokens=13)
    kinds = [event["type"].removeprefix("response.") for event in events]
    head = ["created", "in_progress", "output_item.added", "content_part.added"]
    tail = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert kinds[:4] == head and kinds[-4:] == tail and set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == GREEDY == events[-4]["text"]
    (item_id,) = {event["item_id"] for event in events if "item_id" in event}
    assert item_id == events[2]["item"]["id"] == events[-1]["response"]["output"][0]["id"]
    assert events[0]["response"]["status"] == "in_progress" and events[0]["response"]["output"] == []


@pytest.mark.parametrize(
    "body",
    [
        {"max_output_tokens": 25},
        {"max_output_tokens": 25, "temperature": 1.2, "seed": 3, "top_p": 0.9},
        {"max_output_tokens": 9, **LOGPROBS},
        {"logit_bias": {"260": 100}, "instructions": "be brief"},
    ],
)
def test_a_stream_ends_with_the_whole_reply(world: World, body: dict[str, Any]) -> None:
    whole, last = world.post(URL, input="hi", **body), told(world, input="hi", **body)[-1]
    assert last["type"] == f"response.{whole['status']}"
    assert lasting(last["response"]) == lasting(whole)


def test_the_official_client_reads_responses_and_streams(world: World) -> None:
    with openai.OpenAI(base_url=world.url + "/v1", api_key="EMPTY") as client:
        whole = client.responses.create(model="small", input="hi", max_output_tokens=13)
        assert whole.output_text == GREEDY
        with client.responses.stream(model="small", input="hi", max_output_tokens=13) as stream:
            assert "".join(event.delta for event in stream if event.type == "response.output_text.delta") == GREEDY
        # What came back goes in again, as it is.
        again = client.responses.create(
            model="small",
            input=[{"role": "user", "content": "hi"}, *whole.output, {"role": "user", "content": "go on"}],  # type: ignore[list-item]
            max_output_tokens=2,
        )
        assert again.output_text
        with pytest.raises(openai.NotFoundError, match="not kept"):
            client.responses.retrieve(whole.id)
        with pytest.raises(openai.BadRequestError, match="not kept") as caught:
            client.responses.create(model="small", input="hi", previous_response_id=whole.id)
        assert caught.value.param == "previous_response_id"


def prompt_tokens(world: World, messages: list[dict[str, Any]]) -> int:
    return int(world.post("/tokenize", messages=messages)["count"])


def test_every_form_of_input_is_the_conversation_it_says(world: World) -> None:
    def count(**body: Any) -> int:
        return int(world.post(URL, max_output_tokens=1, **body)["usage"]["input_tokens"])

    user = {"role": "user", "content": "a\nb"}
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    answer = {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant"}
    said = {**answer, "content": [{"type": "output_text", "text": "c", "annotations": []}]}
    assert count(input="a\nb") == count(input=[user]) == prompt_tokens(world, [user])
    assert count(input=[{"type": "message", "role": "user", "content": parts}]) == prompt_tokens(world, [user])
    system = {"role": "system", "content": "s"}
    assert count(input=[user], instructions="s") == prompt_tokens(world, [system, user])
    assert count(input=[user, said, user]) == prompt_tokens(world, [user, {"role": "assistant", "content": "c"}, user])
    result = {"type": "function_call_output", "call_id": "1", "output": "42"}
    call = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
    assert count(input=[user, call, result]) > count(input=[user])


def test_logprobs_are_those_of_chat(world: World) -> None:
    reply = strict(Response, world.post(URL, input="hi", max_output_tokens=4, **LOGPROBS))
    ours = reply["output"][0]["content"][0]["logprobs"]
    chat = world.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "hi"}],
        max_tokens=4,
        logprobs=True,
        top_logprobs=2,
    )
    assert ours == chat["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("input", value) for value in (None, [], 5, [5], [{}], [{"role": "tool", "content": "x"}])),
        *(("input", [{"role": "user", "content": value}]) for value in (None, 5, [5], [{"type": "input_image"}])),
        ("input", [{"type": "item_reference", "id": "x"}]),
        ("input", [{"type": "reasoning", "summary": []}]),
        ("input", "a" * 100_000),
        ("previous_response_id", "resp_1"),
        ("conversation", "conv_1"),
        ("store", True),
        ("background", True),
        ("prompt", {"id": "x"}),
        ("truncation", "auto"),
        *(("input", [{"type": "function_call", "call_id": "1", "name": "f", "arguments": a}]) for a in ("{", "5", 5)),
        ("input", [{"type": "function_call", "name": "f", "arguments": "{}"}]),
        ("input", [{"type": "function_call_output", "output": "x"}]),
        ("input", [{"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "x"}]}]),
        ("tools[0].type", [{"type": "web_search"}]),
        ("tools[0].name", [{"type": "function", "function": {"name": "f"}}]),
        ("tools[1].name", [{"type": "function", "name": "f"}] * 2),
        ("tools[0].parameters", [{"type": "function", "name": "f", "parameters": {"type": "string"}}]),
        ("tools[0].defer_loading", [{"type": "function", "name": "f", "defer_loading": True}]),
        *(("tool_choice", value) for value in ("required", "any", {"type": "function"}, {"type": "allowed_tools"})),
        ("max_tool_calls", 3),
        ("include", ["file_search_call.results"]),
        ("top_logprobs", 3),
        ("service_tier", "flex"),
        ("text", {"verbosity": "low"}),
        ("text", 5),
        *(("text.format", value) for value in ({"type": "xml"}, {"type": "json_schema", "schema": {}}, "text")),
        *(("reasoning", value) for value in ({"summary": "detailed"}, {"effort": "some"}, {"effort": 5})),
        ("instructions", 5),
        ("metadata", {"a": 5}),
        ("max_output_tokens", -1),
        ("max_output_tokens", "5"),
        ("temperature", 3),
        ("temperature", "1"),
        ("top_p", 2),
        ("stop", ["x"]),
        ("max_tokens", 5),
        ("messages", [{"role": "user", "content": "x"}]),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("seed", 1.5),
        ("cache_salt", ""),
        ("n", 2),
        ("use_beam_search", True),
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
def test_what_is_refused_is_named(world: World, name: str, value: Any) -> None:
    given = {"text": {"format": value}} if name == "text.format" else {name.partition("[")[0]: value}
    before = world.counts()
    for stream in (False, True):
        status, reply = world.raw(URL, **{"input": "hi", "stream": stream} | given)
        assert status == 400, reply
        assert name in str(reply["error"]["param"]) and set(reply["error"]) == {"message", "type", "param", "code"}
        assert name in reply["error"]["message"] or "context length" in reply["error"]["message"]
    assert world.counts() == before


def test_fields_that_ask_for_nothing_are_taken(world: World) -> None:
    body = {
        "store": False,
        "background": False,
        "tools": [],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "truncation": "disabled",
        "service_tier": "auto",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "safety_identifier": "s",
        "user": "u",
        "stream_options": {"include_obfuscation": False},
    }
    reply = strict(Response, world.post(URL, input="hi", max_output_tokens=1, **body))
    assert reply["tool_choice"] == "none" and reply["parallel_tool_calls"] is False
    assert reply["reasoning"]["effort"] == "low" and reply["user"] == "u"


def test_nothing_is_kept(world: World) -> None:
    for method, path in (("GET", "/x"), ("DELETE", "/x"), ("POST", "/x/cancel"), ("GET", "/x/input_items")):
        response = world.client.request(method, URL + path)
        assert response.status_code == 404 and "not kept" in response.json()["error"]["message"]


def test_a_step_that_fails_ends_the_stream_with_a_failed_response(make_world: Any) -> None:
    world: World = make_world(poison="c")
    events = told(world, input="hi", max_output_tokens=50)
    assert events[-1]["type"] == "response.failed" and events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["code"] == "server_error"
    status, reply = world.raw(URL, input="hi", max_output_tokens=50)
    assert status == 500 and reply["error"]["code"] == 500


def test_a_client_that_leaves_gives_its_blocks_back(slow_world: World) -> None:
    with slow_world.client.stream("POST", URL, json={"input": "hi", "stream": True}) as response:
        lines = response.iter_lines()  # dropped, it would close the connection
        next(lines)
        wait_until(lambda: slow_world.running() == 1)
    wait_until(slow_world.is_idle)


def test_the_seed_that_was_used_repeats_the_reply(world: World) -> None:
    body = {"input": "hi", "temperature": 1.5, "max_output_tokens": 20}
    first = world.post(URL, **body)
    assert 0 <= first["seed"] < 2**53
    assert text_of(world.post(URL, **body, seed=first["seed"])) == text_of(first)
    assert world.post(URL, **body | {"temperature": 0})["seed"] is None
