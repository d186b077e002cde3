"""Tools and reasoning on /v1/responses, whole and streamed, by the official client over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.responses import Response
from server_world import World, strict
from test_responses import lasting, told
from test_tools import ARGUMENTS, CALL, NOW_CALL, TEMPLATE

URL = "/v1/responses"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "where": {"type": "object"}},
        "required": ["city"],
    },
    "strict": False,
}
NOW = {"type": "function", "name": "now"}
TOOLS = [WEATHER, NOW]
TEXTS = [
    "<think>\nWell.\n</think>\nLet me see.\n" + CALL + "\n" + NOW_CALL,  # 0
    "Plain words.",
    "<think>\nShould I?\n</think>\n\nYes.",
    CALL + "\nThere. " + NOW_CALL,
    '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>',
    "<think>Hm",  # 5
]


@pytest.fixture(scope="module")
def items_world(make_module_world: Callable[..., World]) -> World:
    return make_module_world(template=TEMPLATE, texts=TEXTS)


def say(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"say {number}"}]


def plain(reply: dict[str, Any]) -> dict[str, Any]:
    """What two answers to one question share."""
    kept = lasting(reply)
    return kept | {"output": [{k: v for k, v in item.items() if k != "call_id"} for item in kept["output"]]}


def added_up(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a stream by what its small events say, each of which is held to what is open at its time."""
    items: list[dict[str, Any]] = []
    is_open = False
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert not is_open and event["output_index"] == len(items) and event["item"]["status"] == "in_progress"
            items.append(event["item"])
            is_open = True
            continue
        if "output_index" not in event:
            continue
        item = items[-1]
        assert is_open and event["output_index"] == len(items) - 1 and event.get("item_id", item["id"]) == item["id"]
        match kind:
            case "content_part.added":
                assert event["content_index"] == len(item["content"]) and event["part"]["text"] == ""
                item["content"].append(event["part"])
            case "output_text.delta" | "reasoning_text.delta":
                part = item["content"][event["content_index"]]
                part["text"] += event["delta"]
                part.get("logprobs", []).extend(event.get("logprobs", ()))
            case "output_text.done" | "reasoning_text.done":
                assert item["content"][event["content_index"]]["text"] == event["text"]
            case "content_part.done":
                assert item["content"][event["content_index"]] == event["part"]
            case "function_call_arguments.delta":
                item["arguments"] += event["delta"]
            case "function_call_arguments.done":
                assert item["arguments"] == event["arguments"] and item["name"] == event["name"]
            case "output_item.done":
                item["status"] = event["item"]["status"]
                assert item == event["item"]
                is_open = False
            case _:
                raise AssertionError(kind)
    assert not is_open
    return items


def both(world: World, number: int, **body: Any) -> dict[str, Any]:
    """A whole reply, after its streamed form has been found to say the same, in its small events and at its end."""
    given = {"input": say(number), **body}
    whole = strict(Response, world.post(URL, **given))
    events = told(world, **given)
    last = events[-1]
    assert last["type"] == f"response.{whole['status']}" and plain(last["response"]) == plain(whole)
    assert added_up(events) == last["response"]["output"]
    assert len({item["id"] for item in whole["output"]}) == len(whole["output"])
    return whole


def shapes(reply: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        ("call", item["name"], item["arguments"])
        if item["type"] == "function_call"
        else (item["type"], "".join(part["text"] for part in item["content"]))
        for item in reply["output"]
    ]


def test_reasoning_words_and_calls_are_items_in_their_order(items_world: World) -> None:
    reply = both(items_world, 0, tools=TOOLS, tool_choice="auto")
    assert shapes(reply) == [
        ("reasoning", "Well."), ("message", "Let me see."), ("call", "get_weather", ARGUMENTS), ("call", "now", "{}"),
    ]  # fmt: skip
    assert reply["status"] == "completed" and {item["status"] for item in reply["output"]} == {"completed"}
    assert len({item["call_id"] for item in reply["output"][2:]}) == 2
    assert [tool["name"] for tool in reply["tools"]] == ["get_weather", "now"] and reply["tool_choice"] == "auto"
    text = both(items_world, 3, tools=TOOLS)
    assert shapes(text) == [("call", "get_weather", ARGUMENTS), ("message", "There."), ("call", "now", "{}")]


def test_reasoning_is_counted_with_its_markers(items_world: World) -> None:
    def count(number: int) -> int:
        return int(both(items_world, number)["usage"]["output_tokens_details"]["reasoning_tokens"])

    assert count(2) == len("<think>\nShould I?\n</think>") and count(1) == 0 and count(5) == len(TEXTS[5]) + 1


def test_calls_that_may_not_be_made_are_words(items_world: World) -> None:
    for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert shapes(both(items_world, 3, **body)) == [("message", TEXTS[3])]
    assert shapes(both(items_world, 4, tools=TOOLS)) == [("message", TEXTS[4])]
    one = both(items_world, 3, tools=TOOLS, parallel_tool_calls=False)
    assert [shape for shape in shapes(one) if shape[0] == "call"] == [("call", "get_weather", ARGUMENTS)]


def test_what_is_cut_short_is_incomplete(items_world: World) -> None:
    for number, kind in ((2, "reasoning"), (1, "message")):
        reply = both(items_world, number, max_output_tokens=11)
        assert reply["status"] == "incomplete" and [i["type"] for i in reply["output"]] == [kind]
        assert reply["output"][0]["status"] == "incomplete"
    call = items_world.tokenizer.encode(CALL, add_special_tokens=False)
    reply = both(items_world, 3, tools=TOOLS, max_output_tokens=len(call))
    assert reply["status"] == "incomplete" and [item["status"] for item in reply["output"]] == ["completed"]


def test_the_official_client_goes_round_with_tools(items_world: World) -> None:
    with openai.OpenAI(base_url=items_world.url + "/v1", api_key="EMPTY") as client:
        asked: Any = {"model": "small", "input": say(0), "tools": TOOLS}
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            final = stream.get_final_response()
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        assert "".join(pieces) == ARGUMENTS + "{}"
        calls = [item for item in whole.output if item.type == "function_call"]
        assert json.loads(calls[0].arguments) == json.loads(ARGUMENTS)
        results = [{"type": "function_call_output", "call_id": c.call_id, "output": "say 1"} for c in calls]
        after = client.responses.create(**asked | {"input": [*say(0), *whole.output, *results]})
        assert after.output_text == "Plain words."
        chat = [
            *say(0),
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [
                    {"id": c.call_id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
                    for c in calls
                ],
            },
            *({"role": "tool", "tool_call_id": c.call_id, "content": "say 1"} for c in calls),
        ]
        nested = [{"type": "function", "function": {k: v for k, v in t.items() if k != "type"}} for t in TOOLS]
        assert after.usage is not None
        assert after.usage.input_tokens == items_world.post("/tokenize", messages=chat, tools=nested)["count"]


THINKING = """{%- for message in messages -%}<|im_start|>{{ message.role }}
{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}<tool_call>{{ call.function.name }}</tool_call>{% endfor %}<|im_end|>
{% endfor -%}"""


def test_items_of_the_assistant_are_the_turn_that_chat_has(make_world: Callable[..., World]) -> None:
    world = make_world(template=THINKING)
    function = {"name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm"}]}
    short = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]}
    said = {"role": "assistant", "content": "c"}
    called = {"type": "function_call", "call_id": "1", **function}
    result = {"type": "function_call_output", "call_id": "1", "output": "42"}
    tool_calls = [{"id": "1", "type": "function", "function": function}]
    user, tool = say(1), {"role": "tool", "tool_call_id": "1", "content": "42"}

    def same(items: list[Any], messages: list[Any]) -> None:
        count = world.post(URL, input=items, max_output_tokens=1)["usage"]["input_tokens"]
        assert count == world.post("/tokenize", messages=messages)["count"]

    whole = {"role": "assistant", "content": "c", "reasoning": "Hm", "tool_calls": tool_calls * 2}
    for first in (thought, short):
        same([*user, first, said, called, called, result], [*user, whole, tool])
    same([*user, called, said, result], [*user, {**said, "tool_calls": tool_calls}, tool])
    same([*user, said, said, *user], [*user, said, said, *user])
    same([*user, thought, said, thought, said], [*user, *[{**said, "reasoning": "Hm"}] * 2])


def test_logprobs_are_of_all_tokens_and_not_beside_calls(items_world: World) -> None:
    include = {"include": ["message.output_text.logprobs"]}
    reply = both(items_world, 2, **include)
    logprobs = reply["output"][1]["content"][0]["logprobs"]
    assert (
        "".join(entry["token"] for entry in logprobs).startswith("<think>\nShould I?") and shapes(reply)[1][1] == "Yes."
    )
    assert both(items_world, 5, **include)["output"][0]["type"] == "reasoning"
    status, refused = items_world.raw(URL, input=say(1), tools=TOOLS, **include)
    assert status == 400 and refused["error"]["param"] == "include"
    assert both(items_world, 1, tools=TOOLS, tool_choice="none", **include)["status"] == "completed"


def test_markers_that_are_control_tokens_are_found_and_not_shown(make_world: Callable[..., World]) -> None:
    text = "[THINK]Hm.[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS + "[TOOL_CALLS]now[ARGS]{}"
    template = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]").replace("<think>", "[THINK]")
    markers = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[OTHER]"]
    world = make_world(template=template, special=markers, texts=[text, "[OTHER]Hm.[ARGS]"])
    calls = [("call", "get_weather", ARGUMENTS), ("call", "now", "{}")]
    assert shapes(both(world, 0, tools=TOOLS)) == [("reasoning", "Hm."), ("message", "Sure."), *calls]
    assert shapes(both(world, 0)) == [("reasoning", "Hm."), ("message", f"Sure.get_weather{ARGUMENTS}now{{}}")]
    assert shapes(both(world, 1)) == [("message", "Hm.")]
