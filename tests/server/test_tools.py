"""Tool calls and reasoning in chat completions, whole and streamed, by the official client over real sockets."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from server_world import World, chunks, strict

from octavo.config import ServerConfig
from octavo.errors import ConfigError

URL = "/v1/chat/completions"

TEMPLATE = """{%- if tools -%}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif -%}
{%- for message in messages -%}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>{{ {"name": call.function.name, "arguments": call.function.arguments} | tojson }}</tool_call>
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking %}<think>
{% elif reasoning_effort %}{{ reasoning_effort }}{% endif %}{% endif -%}"""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "where": {"type": "object"}},
            "required": ["city"],
        },
        "strict": False,
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
TOOLS = [WEATHER, NOW]
ARGUMENTS = '{"city": "Zürich 😀 </tool_call>", "where": {"a": [1, {"b": null}]}}'
CALL = '<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>"
NOW_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
BAD = '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>'

TEXTS = [
    "Let me see.\n" + CALL + "\n" + NOW_CALL,  # 0
    "Plain words.",
    BAD,
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    "<think>\nShould I?\n</think>\n\nYes.",
    "Should I?\n</think>\n\n" + CALL,  # 5: after a prompt that opens the reasoning
    "<think>Hm</think>" + CALL,
    "<tool_call> is what I write.",
]


# What shapes a reply, which is a call only where it begins as one; the runner does not hold to it, and says its texts.
ANSWERS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
    {"guided_choice": ["a", "b"]},
]
# And what shapes the whole of it.
WHOLE: list[dict[str, Any]] = [
    {"guided_choice": ["a", CALL]},
    {"structured_outputs": {"regex": "(.|\n)*"}},
    {"structured_outputs": {"grammar": "start: /(.|\\n)*/"}},
]
TAG = {"structures": [{"begin": "<a>", "schema": {"type": "null"}, "end": "</a>"}], "triggers": ["<a>"]}


def say(number: int) -> list[Any]:
    return [{"role": "user", "content": f"say {number}"}]


@pytest.fixture(scope="module")
def tools_world(make_module_world: Callable[..., World]) -> World:
    return make_module_world(template=TEMPLATE, texts=TEXTS)


def both(world: World, number: int, **body: Any) -> dict[str, Any]:
    """The one choice of a reply, after its streamed form has been found to say the same."""
    given = {"messages": say(number), **body}
    whole = strict(ChatCompletion, world.post(URL, **given))["choices"][0]
    streamed = world.whole(URL, True, **given)["choices"][0]
    for choice in (whole, streamed):
        for call in choice["message"].get("tool_calls", ()):
            assert call.pop("id")
    assert {key: whole[key] for key in ("message", "finish_reason", "stop_reason")} == {
        key: streamed[key] for key in ("message", "finish_reason", "stop_reason")
    }
    return dict(whole)


def calls_of(choice: dict[str, Any]) -> list[tuple[str, str]]:
    return [(c["function"]["name"], c["function"]["arguments"]) for c in choice["message"].get("tool_calls", ())]


class TestCalls:
    def test_are_told_with_the_content_before_them(self, tools_world: World) -> None:
        choice = both(tools_world, 0, tools=TOOLS)
        assert calls_of(choice) == [("get_weather", ARGUMENTS), ("now", "{}")]
        assert choice["message"]["content"] == "Let me see." and choice["finish_reason"] == "tool_calls"

    def test_by_the_official_client(self, tools_world: World) -> None:
        with openai.OpenAI(base_url=tools_world.url + "/v1", api_key="EMPTY") as client:
            arguments: Any = {"model": "small", "messages": say(0), "tools": TOOLS, "tool_choice": "auto"}
            whole = client.chat.completions.create(**arguments).choices[0]
            assert whole.message.tool_calls is not None and whole.finish_reason == "tool_calls"
            asked = [
                {
                    "role": "assistant",
                    "content": whole.message.content,
                    "tool_calls": [call.model_dump() for call in whole.message.tool_calls],
                },
                *({"role": "tool", "tool_call_id": call.id, "content": "say 1"} for call in whole.message.tool_calls),
            ]
            after = client.chat.completions.create(**{**arguments, "messages": [*say(0), *asked]}).choices[0]
            assert after.message.content == "Plain words." and after.message.tool_calls is None
            with client.chat.completions.stream(**arguments) as stream:
                final = stream.get_final_completion().choices[0]
            assert final.message.tool_calls is not None
            names = [call.function.name for call in final.message.tool_calls]
            assert names == ["get_weather", "now"] and final.finish_reason == "tool_calls"
            assert json.loads(final.message.tool_calls[0].function.arguments) == json.loads(ARGUMENTS)

    def test_stream_in_openai_s_order(self, tools_world: World) -> None:
        body = list(chunks(tools_world.stream(URL, messages=say(0), tools=TOOLS)))
        for chunk in body:
            strict(ChatCompletionChunk, chunk)
        deltas = [chunk["choices"][0]["delta"] for chunk in body]
        told = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert [piece["index"] for piece in told] == sorted(piece["index"] for piece in told)
        for index, name in enumerate(("get_weather", "now")):
            first, *rest = [piece for piece in told if piece["index"] == index]
            assert set(first) == {"index", "id", "type", "function"} and first["type"] == "function"
            assert first["function"] == {"name": name, "arguments": ""}
            assert rest and all(set(piece) == {"index", "function"} for piece in rest)
            assert all(set(piece["function"]) == {"arguments"} for piece in rest)
        assert len({piece["id"] for piece in told if "id" in piece}) == 2
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in body]
        assert reasons == [None] * (len(body) - 1) + ["tool_calls"]
        assert not any("<tool_call>" in delta.get("content", "") for delta in deltas)

    def test_logprobs_and_ids_are_those_of_all_tokens(self, tools_world: World) -> None:
        body: dict[str, Any] = {"messages": say(0), "tools": TOOLS, "return_token_ids": True}
        whole, streamed = (tools_world.whole(URL, way, **body) for way in (False, True))
        ids = [reply["choices"][0]["token_ids"] for reply in (whole, streamed)]
        assert ids[0] == ids[1] and len(ids[0]) == whole["usage"]["completion_tokens"]

    def test_of_several_choices_are_apart(self, tools_world: World) -> None:
        for streamed in (False, True):
            choices = tools_world.whole(URL, streamed, messages=say(0), tools=TOOLS, n=3)["choices"]
            assert [calls_of(choice) for choice in choices] == [calls_of(choices[0])] * 3
            assert len({call["id"] for choice in choices for call in choice["message"]["tool_calls"]}) == 6

    def test_none_are_found_where_none_may_be_made(self, tools_world: World) -> None:
        for body in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = both(tools_world, 0, **body)
            assert choice["message"]["content"] == TEXTS[0] and choice["finish_reason"] == "stop"

    def test_plain_words_are_content(self, tools_world: World) -> None:
        choice = both(tools_world, 1, tools=TOOLS)
        assert choice["message"] == {"role": "assistant", "content": "Plain words.", "refusal": None}
        assert choice["finish_reason"] == "stop"

    @pytest.mark.parametrize("number", [2, 3, 7])
    def test_what_is_no_call_stays_content(self, tools_world: World, number: int) -> None:
        choice = both(tools_world, number, tools=TOOLS)
        assert choice["message"]["content"] == TEXTS[number] and choice["finish_reason"] == "stop"
        assert "tool_calls" not in choice["message"]
        tools_world.probe()

    def test_one_that_is_cut_short_ends_by_length(self, tools_world: World) -> None:
        choice = both(tools_world, 0, tools=TOOLS, max_tokens=60)
        assert choice["finish_reason"] == "length" and choice["message"]["content"] == TEXTS[0][:60]
        choice = both(tools_world, 0, tools=TOOLS, max_tokens=len(TEXTS[0].encode()) - 40)
        assert calls_of(choice) == [("get_weather", ARGUMENTS)] and choice["finish_reason"] == "length"

    def test_without_parallel_calls_there_is_one(self, tools_world: World) -> None:
        choice = both(tools_world, 0, tools=TOOLS, parallel_tool_calls=False)
        assert calls_of(choice) == [("get_weather", ARGUMENTS)]

    def test_can_be_left_to_named_tools_by_the_operator(self, make_world: Callable[..., World]) -> None:
        world = make_world(template=TEMPLATE, texts=TEXTS, enable_auto_tool_choice=False)
        for choice in (None, "auto"):
            status, reply = world.raw(URL, messages=say(0), tools=TOOLS, tool_choice=choice)
            assert status == 400 and reply["error"]["param"] == "tool_choice"


class TestReasoning:
    def test_is_apart_from_content(self, tools_world: World) -> None:
        for tools in (None, TOOLS):
            message = both(tools_world, 4, tools=tools)["message"]
            assert message == {
                "role": "assistant", "content": "Yes.", "refusal": None,
                "reasoning": "Should I?", "reasoning_content": "Should I?",
            }  # fmt: skip

    def test_may_begin_in_the_prompt_and_end_in_a_call(self, tools_world: World) -> None:
        thinking = {"enable_thinking": True}
        choice = both(tools_world, 5, tools=TOOLS, chat_template_kwargs=thinking)
        assert choice["message"]["reasoning"] == "Should I?" and choice["message"]["content"] is None
        assert calls_of(choice) == [("get_weather", ARGUMENTS)] and choice["finish_reason"] == "tool_calls"
        assert both(tools_world, 5)["message"]["content"] == TEXTS[5]

    def test_may_be_left_out(self, tools_world: World) -> None:
        message = both(tools_world, 6, tools=TOOLS, include_reasoning=False)["message"]
        assert "reasoning" not in message and len(message["tool_calls"]) == 1

    def test_continues_a_message_that_has_begun_to(self, tools_world: World) -> None:
        messages = [*say(5), {"role": "assistant", "content": "<think>Well. "}]
        message = both(tools_world, 5, messages=messages, continue_final_message=True)["message"]
        assert message["reasoning"] == "Should I?" and message["content"] == CALL

    def test_comes_before_what_a_constraint_makes_of_the_reply(self, tools_world: World) -> None:
        body: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}, "tools": TOOLS}
        assert both(tools_world, 1, **body)["message"]["reasoning"] == "Plain words."
        for constraint in WHOLE:
            choice = both(tools_world, 5, **body, **constraint)
            assert choice["message"]["reasoning"] == "Should I?" and choice["finish_reason"] == "stop"
            assert choice["message"]["content"] == CALL and "tool_calls" not in choice["message"]
        for constraint in ANSWERS:
            choice = both(tools_world, 5, **body, **constraint)
            assert choice["message"]["reasoning"] == "Should I?" and choice["finish_reason"] == "tool_calls"
            assert calls_of(choice) == [("get_weather", ARGUMENTS)] and choice["message"]["content"] is None

    def test_is_content_where_the_operator_says_so(self, make_world: Callable[..., World]) -> None:
        world = make_world(template=TEMPLATE, texts=TEXTS, reasoning_parser="none")
        assert both(world, 4)["message"]["content"] == TEXTS[4]

    def test_effort_goes_to_the_template(self, tools_world: World) -> None:
        ids = tools_world.post("/tokenize", messages=say(1), reasoning_effort="low")["tokens"]
        assert tools_world.post("/detokenize", tokens=ids)["prompt"].endswith("assistant\nlow")


class TestOtherFormats:
    def test_control_tokens_that_are_markers_are_found_and_not_shown(self, make_world: Callable[..., World]) -> None:
        text = "[THINK]Hm.[/THINK]Sure.[TOOL_CALLS]get_weather[ARGS]" + ARGUMENTS + "[TOOL_CALLS]now[ARGS]{}"
        template = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS]").replace("<think>", "[THINK]")
        markers = ["[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]", "[OTHER]"]
        world = make_world(template=template, special=markers, texts=[text, "[OTHER]Hm.[ARGS]"])
        choice = both(world, 0, tools=TOOLS)
        assert calls_of(choice) == [("get_weather", ARGUMENTS), ("now", "{}")]
        assert (choice["message"]["content"], choice["message"]["reasoning"]) == ("Sure.", "Hm.")
        plain = both(world, 0)["message"]
        assert (plain["content"], plain["reasoning"]) == ("Sure.get_weather" + ARGUMENTS + "now{}", "Hm.")
        assert both(world, 1)["message"]["content"] == "Hm."
        for call in world.post(URL, messages=say(0), tools=TOOLS)["choices"][0]["message"]["tool_calls"]:
            assert len(call["id"]) == 9

    def test_a_template_without_tools_has_them_described(self, make_world: Callable[..., World]) -> None:
        text = '[{"name": "get_weather", "arguments": ' + ARGUMENTS + '}, {"name": "now", "arguments": {}}]'
        world = make_world(texts=[text, '{"city": "Bern"}', text.replace("now", "unknown")])
        choice = both(world, 0, tools=TOOLS)
        assert calls_of(choice) == [("get_weather", ARGUMENTS), ("now", "{}")]
        assert both(world, 1, tools=TOOLS)["message"]["content"] == '{"city": "Bern"}'
        choice = both(world, 2, tools=TOOLS)
        assert [name for name, _ in calls_of(choice)] == ["get_weather"] and "unknown" in choice["message"]["content"]
        tokens = world.post("/tokenize", messages=say(0), tools=TOOLS)["tokens"]
        prompt = world.post("/detokenize", tokens=tokens)["prompt"]
        assert prompt.startswith("<|im_start|>system\nYou can use these tools") and '"The weather of a place"' in prompt
        assert world.post(URL, messages=say(0), tools=TOOLS, return_token_ids=True)["prompt_token_ids"] == tokens

    def test_json_that_is_asked_for_is_no_call(self, make_world: Callable[..., World]) -> None:
        text = '[{"name": "now", "arguments": {}}]'
        world = make_world(texts=[text])
        assert calls_of(both(world, 0, tools=TOOLS)) == [("now", "{}")]
        choice = both(world, 0, tools=TOOLS, response_format={"type": "json_schema", "json_schema": {"schema": {}}})
        assert choice["message"]["content"] == text and not calls_of(choice)

    def test_free_text_between_tags_may_call(self, tools_world: World) -> None:
        choice = both(tools_world, 0, tools=TOOLS, response_format={"type": "structural_tag", **TAG})
        assert calls_of(choice) == [("get_weather", ARGUMENTS), ("now", "{}")]

    def test_what_is_asked_for_is_no_call_on_any_route(self, tools_world: World) -> None:
        for constraint in ANSWERS + WHOLE:
            choice = both(tools_world, 0, tools=TOOLS, **constraint)
            assert choice["message"]["content"] == TEXTS[0] and not calls_of(choice)
            assert choice["finish_reason"] == "stop"
        schema = {"type": "json_schema", "schema": {}}
        flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
        reply = tools_world.post("/v1/responses", input=say(0), tools=flat, text={"format": {**schema, "name": "x"}})
        (item,) = reply["output"]
        assert item["type"] == "message" and item["content"][0]["text"] == TEXTS[0]
        own = [{"name": "now", "input_schema": {"type": "object"}}]
        body = {"messages": say(0), "tools": own, "max_tokens": 900}
        message = tools_world.post("/v1/messages", **body, output_config={"format": schema})
        assert message["content"] == [{"type": "text", "text": TEXTS[0]}] and message["stop_reason"] == "end_turn"

    def test_the_flag_goes_before_the_template(self, make_world: Callable[..., World]) -> None:
        text = "<function_calls>now()</function_calls>"
        world = make_world(template=TEMPLATE, texts=[text], tool_call_parser="olmo3")
        assert calls_of(both(world, 0, tools=TOOLS)) == [("now", "{}")]

    @pytest.mark.parametrize("option", ["tool_call_parser", "reasoning_parser"])
    def test_flags_know_the_names(self, option: str) -> None:
        for name in ("nonsense", "gigachat3" if option == "tool_call_parser" else "granite"):
            with pytest.raises(ConfigError, match=name):
                ServerConfig(**{option: name})


BAD_TOOLS: list[tuple[str, Any]] = [
    ("tools[1].function.name", {"tools": [NOW, NOW]}),
    ("tools[0].function.name", {"tools": [{"type": "function", "function": {"name": "a b"}}]}),
    *(
        ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "f", "parameters": p}}]})
        for p in (
            {"type": 5},
            {"properties": {"a": {"pattern": "("}}},
            {"properties": {"a": [[{"b": 5}]]}},
            {"type": "string"},
            {"anyOf": "x"},
        )
    ),
    *(
        ("tool_choice", {"tools": TOOLS, "tool_choice": choice})
        for choice in (
            "nonsense",
            {},
            {"type": "function"},
            {"type": "function", "function": {"name": "unknown"}},
            {"type": "function", "function": {"name": 5}},
            {"type": "allowed_tools", "allowed_tools": {}},
            5,
            ["auto"],
        )
    ),
    ("tools", {"tools": [], "tool_choice": "required"}),
    ("tool_choice", {"tool_choice": "required"}),
    ("tool_choice", {"tool_choice": {"type": "function", "function": {"name": "now"}}}),
    ("parallel_tool_calls", {"tools": TOOLS, "parallel_tool_calls": "no"}),
    ("include_reasoning", {"include_reasoning": "no"}),
    ("functions", {"functions": [{"name": "f"}]}),
    ("function_call", {"function_call": "auto"}),
    (
        "messages[1].tool_calls[0].function.arguments",
        {
            "messages": [
                *say(1),
                {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": "{"}}]},
            ]
        },
    ),
]


def deep(value: Any, levels: int = 900) -> Any:
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize("schema", [{"type": deep(5)}, {"default": deep(5)}, {"properties": {"a": {"enum": deep(5)}}}])
def test_nesting_is_bounded_everywhere(tools_world: World, schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for choice in ("auto", "none", "required"):
        status, reply = tools_world.raw(URL, messages=say(1), tools=[tool], tool_choice=choice)
        assert status == 400 and reply["error"]["param"].startswith("tools"), reply
    status, reply = tools_world.raw(URL, messages=say(1), tools=[NOW], tool_choice=deep(5))
    assert status == 400 and reply["error"]["param"] == "tool_choice"
    tools_world.probe()


@pytest.mark.parametrize(("field", "body"), BAD_TOOLS, ids=range(len(BAD_TOOLS)))
def test_faults_are_told_by_field_and_do_no_harm(tools_world: World, field: str, body: dict[str, Any]) -> None:
    for stream in (False, True):
        status, reply = tools_world.raw(URL, **{"messages": say(1), "stream": stream, **body})
        error = reply["error"]
        assert status == 400 and error["param"].startswith(field), reply
        assert field.rpartition(".")[2] in error["message"] and "Traceback" not in error["message"]
    tools_world.probe()


def test_the_wire_forms_are_documented(tools_world: World) -> None:
    schemas = tools_world.get("/openapi.json").json()["components"]["schemas"]
    fields = schemas["ChatRequest"]["properties"]
    assert {"tools", "tool_choice", "parallel_tool_calls", "include_reasoning"} <= fields.keys()
    assert {"name", "description", "parameters", "strict"} == schemas["FunctionTool"]["properties"].keys()
