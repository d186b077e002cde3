"""Tools and thinking on /v1/messages, whole and streamed, by Anthropic's client over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import anthropic
import pytest
from anthropic.types import Message
from server_world import World, strict
from test_messages import count, told
from test_tools import ARGUMENTS, CALL, NOW_CALL, TEMPLATE

URL = "/v1/messages"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather of a place",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "where": {"type": "object"}},
        "required": ["city"],
    },
}
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object"}, "type": "custom"}
TOOLS = [WEATHER, NOW]
HUGE = '{"n": 123456789012345678901234567890}'
TEXTS = [
    "<think>\nWell.\n</think>\nLet me see.\n" + CALL + "\n" + NOW_CALL,  # 0
    "Plain words.",
    "<think>\nShould I?\n</think>\n\nYes.",
    CALL + "\nThere. " + NOW_CALL,
    '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>',
    "Should I?\n</think>\n\nYes.",  # 5: after a prompt that opens the reasoning
    '<tool_call>{"name": "now", "arguments": ' + HUGE + "}</tool_call>",
]
INPUT = json.loads(ARGUMENTS)


@pytest.fixture(scope="module")
def blocks_world(make_module_world: Callable[..., World]) -> World:
    return make_module_world(template=TEMPLATE, texts=TEXTS)


def say(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"say {number}"}]


def added_up(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that the events of a stream add up to. Blocks come one after the other, each open once."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "ping"] and kinds[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = events[0]["message"] | events[-2]["delta"]
    blocks: list[dict[str, Any]] = message["content"]
    inputs: dict[int, str] = {}
    is_open = False
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open and event["index"] == len(blocks)
                blocks.append(event["content_block"])
                is_open = True
            case "content_block_delta":
                assert is_open and event["index"] == len(blocks) - 1
                match event["delta"]:
                    case {"type": "text_delta", "text": text}:
                        blocks[-1]["text"] += text
                    case {"type": "thinking_delta", "thinking": text}:
                        blocks[-1]["thinking"] += text
                    case {"type": "input_json_delta", "partial_json": text}:
                        inputs[event["index"]] = inputs.get(event["index"], "") + text
            case "content_block_stop":
                assert is_open and event["index"] == len(blocks) - 1
                is_open = False
    for index, text in inputs.items():
        blocks[index]["input"] = json.loads(text)
    assert not is_open
    return message


def both(world: World, number: int, **body: Any) -> dict[str, Any]:
    """A whole message, after its streamed form has been found to say the same."""
    given = {"messages": say(number), "max_tokens": 300, **body}
    whole = strict(Message, world.post(URL, **given))
    streamed = added_up(list(told(world, **given)))
    for message in (whole, streamed):
        for block in message["content"]:
            if block["type"] == "tool_use":
                assert block.pop("id")
    for key in ("role", "content", "stop_reason", "stop_sequence", "model"):
        assert streamed[key] == whole[key]
    return whole


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def use(name: str, value: Any) -> dict[str, Any]:
    return {"type": "tool_use", "name": name, "input": value}


def thinking(value: str) -> dict[str, Any]:
    return {"type": "thinking", "thinking": value, "signature": ""}


def test_thinking_words_and_calls_are_blocks_in_their_order(blocks_world: World) -> None:
    message = both(blocks_world, 0, tools=TOOLS)
    assert message["content"] == [
        thinking("Well."), text("Let me see."), use("get_weather", INPUT), use("now", {}),
    ]  # fmt: skip
    assert (message["stop_reason"], message["stop_sequence"]) == ("tool_use", None)
    message = both(blocks_world, 3, tools=TOOLS, tool_choice={"type": "auto"})
    assert message["content"] == [use("get_weather", INPUT), text("There."), use("now", {})]
    assert both(blocks_world, 6, tools=TOOLS)["content"] == [use("now", json.loads(HUGE))]


def test_one_call_where_one_is_asked_for(blocks_world: World) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    message = both(blocks_world, 0, tools=TOOLS, tool_choice=choice)
    assert [block["name"] for block in message["content"] if block["type"] == "tool_use"] == ["get_weather"]


def test_calls_that_may_not_be_made_are_words(blocks_world: World) -> None:
    for body in ({}, {"tools": TOOLS, "tool_choice": {"type": "none"}}, {"tool_choice": {"type": "auto"}}):
        message = both(blocks_world, 3, **body)
        assert message["content"] == [text(TEXTS[3])] and message["stop_reason"] == "end_turn"
    message = both(blocks_world, 4, tools=TOOLS)
    assert message["content"] == [text(TEXTS[4])] and message["stop_reason"] == "end_turn"


def test_what_is_cut_short_says_so(blocks_world: World) -> None:
    message = both(blocks_world, 2, max_tokens=11)
    assert message["content"] == [thinking("Sho")] and message["stop_reason"] == "max_tokens"
    message = both(blocks_world, 0, tools=TOOLS, stop_sequences=["me"])
    assert message["content"] == [thinking("Well."), text("Let ")] and message["stop_reason"] == "stop_sequence"


def test_thinking_goes_to_the_template_and_may_be_left_out(blocks_world: World) -> None:
    adaptive = {"type": "adaptive"}
    assert both(blocks_world, 5, thinking=adaptive)["content"] == [thinking("Should I?"), text("Yes.")]
    assert both(blocks_world, 5, thinking=adaptive | {"display": "omitted"})["content"] == [text("Yes.")]
    for body in ({}, {"thinking": {"type": "disabled"}}):
        assert both(blocks_world, 5, **body)["content"] == [text(TEXTS[5])]
    assert both(blocks_world, 2, thinking={"type": "disabled"})["content"] == [text("Yes.")]
    prompt = count(blocks_world, say(1), thinking={"type": "disabled"})
    assert prompt + len("<think>\n") == count(blocks_world, say(1), thinking=adaptive)
    assert prompt + len("low") == count(blocks_world, say(1), output_config={"effort": "low"})


def test_the_official_client_goes_round_with_tools(blocks_world: World) -> None:
    with anthropic.Anthropic(base_url=blocks_world.url, api_key="any") as client:
        asked: Any = {"model": "small", "max_tokens": 300, "messages": say(0), "tools": TOOLS}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        assert final.stop_reason == whole.stop_reason == "tool_use" and "".join(pieces) == ARGUMENTS + "{}"
        assert [block.type for block in final.content] == ["thinking", "text", "tool_use", "tool_use"]
        for streamed, block in zip(final.content, whole.content, strict=True):
            assert streamed.to_dict() | {"id": None} == block.to_dict() | {"id": None}
        uses = [block for block in whole.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": "say 1"} for block in uses]
        rounds = [*say(0), {"role": "assistant", "content": whole.content}, {"role": "user", "content": results}]
        after = client.messages.create(**asked | {"messages": rounds})
        assert [block.type for block in after.content] == ["text"] and after.stop_reason == "end_turn"
        counted = client.messages.count_tokens(model="small", messages=rounds, tools=TOOLS).input_tokens  # type: ignore[arg-type]
        assert counted == after.usage.input_tokens + (after.usage.cache_read_input_tokens or 0)
    calls = [{"id": b.id, "type": "function", "function": {"name": b.name, "arguments": b.input}} for b in uses]
    chat = [
        *say(0),
        {"role": "assistant", "content": "Let me see.", "reasoning": "Well.", "tool_calls": calls},
        *({"role": "tool", "tool_call_id": block.id, "content": "say 1"} for block in uses),
    ]
    nested = [
        {
            "type": "function",
            "function": {"name": t["name"], "description": t.get("description"), "parameters": t["input_schema"]},
        }
        for t in TOOLS
    ]
    assert counted == blocks_world.post("/tokenize", messages=chat, tools=nested)["count"]


def test_turns_of_the_assistant_are_joined_with_all_their_calls(blocks_world: World) -> None:
    uses = [{**use(name, {}), "id": name} for name in ("f", "g")]
    apart = [{"role": "assistant", "content": [text("a"), uses[0]]}, {"role": "assistant", "content": [uses[1]]}]
    together = [{"role": "assistant", "content": [text("a"), *uses]}]
    assert count(blocks_world, [*say(1), *apart]) == count(blocks_world, [*say(1), *together])
    assert count(blocks_world, [*say(1), *together]) > count(blocks_world, [*say(1), apart[0]])


def test_markers_that_are_control_tokens_are_found_and_not_shown(make_world: Callable[..., World]) -> None:
    said = "[THINK]Hm.[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS + "[TOOL_CALLS]now[ARGS]{}"
    template = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]").replace("<think>", "[THINK]")
    markers = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[OTHER]"]
    world = make_world(template=template, special=markers, texts=[said, "[OTHER]Hm.[ARGS]"])
    content = both(world, 0, tools=TOOLS)["content"]
    assert content == [thinking("Hm."), text("Sure."), use("get_weather", INPUT), use("now", {})]
    assert both(world, 0)["content"] == [thinking("Hm."), text(f"Sure.get_weather{ARGUMENTS}now{{}}")]
    assert both(world, 1)["content"] == [text("Hm.")]
