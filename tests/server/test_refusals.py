"""Everything a client can get wrong: a 400 that names the field, before the engine sees it, and no harm afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from server_world import World

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]

FIELDS: list[tuple[str, Any]] = [
    *((name, value) for name in ("max_tokens", "min_tokens") for value in (-1, -(2**63), 2**64, 1.5, True, "abc", [])),
    *(("n", value) for value in (0, -1, 1.5, True, "2", 10**5, 10**9, 2**63, 2**70)),
    *(("temperature", value) for value in (-1, 2.5, "0", True, [])),
    *(("top_p", value) for value in (-0.1, 1.5)),
    *(("top_k", value) for value in (-2, 1.5, True, "1", -(2**63))),
    *(("min_p", value) for value in (-0.1, 2)),
    *(("repetition_penalty", value) for value in (0, -1)),
    *(("presence_penalty", value) for value in (3, -3)),
    *(("frequency_penalty", value) for value in (3, "x")),
    *(("seed", value) for value in (1.5, True, "7", 2**70)),
    *(
        ("logit_bias", value)
        for value in ({"999999999": 1}, {"-5": 1}, {"12": "x"}, {"12": 1e9}, {"x": 1}, [1], {"12": True})
    ),
    *(("stop", value) for value in ({}, [""], "", [1], ["x"] * 100_000, "y" * 1_000_000, 5)),
    *(("stop_token_ids", value) for value in ([-1], ["a"], [1.5], [True], 5)),
    *(("allowed_token_ids", value) for value in ([], [-1], [10**9], ["a"])),
    *(("bad_words", value) for value in ([""], [1], 5)),
    *(("prompt_logprobs", value) for value in (-1, 21, True, "1", 2**31)),
    *(("truncate_prompt_tokens", value) for value in (0, -2, True, "3")),
    *(("stream", value) for value in ("yes", 1)),
    *(("ignore_eos", value) for value in ("yes", 1)),
    *(("best_of", value) for value in (0, -1, True)),
    *(("stream_options", value) for value in ({"include_usage": True}, 5)),
    *(("cache_salt", value) for value in ("", 7)),
    *(("priority", value) for value in (1, 1.5, True, 2**63)),
    *(("guided_json", value) for value in ("{", 5, [], "5")),
    *(("guided_regex", value) for value in (5, ["a"], "a" * 70_000)),
    *(("guided_choice", value) for value in ([], "a", [1], 5)),
    *(("guided_grammar", value) for value in (5, {})),
    *(("guided_whitespace_pattern", value) for value in (5, " ?")),
    ("guided_decoding_backend", "outlines"),
    *(
        ("structured_outputs", value)
        for value in (
            *({}, 5, [], {"regex": "a", "json": {}}, {"regex": 5}, {"choice": []}, {"json": "{"}, {"json": 5}),
            *({"nonsense": 1}, {"json_object": False}, {"whitespace_pattern": " "}, {"json_object": "yes"}),
            *({"json_object": True, "disable_any_whitespace": 1}, {"grammar": "a" * 70_000}),
            {"structural_tag": []},
        )
    ),
    *(
        ("response_format", value)
        for value in (
            *("text", {}, {"type": "foo"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}),
            *({"type": "json_schema", "json_schema": {"schema": 5}}, {"type": ["text"]}),
        )
    ),
    ("logits_processors", ["os.system"]),
    ("vllm_xargs", {"a": 1}),
    ("chat_template", "{{ 1 }}"),
    ("user", 5),
]

COMPLETION_FIELDS: list[tuple[str, Any]] = [
    *(("prompt", value) for value in ("", [""], [], [[]], None, 5, True, {}, [None], ["a", 1], [[1], "a"], [1, "a"])),
    *(("prompt", value) for value in ([[1, 2, 263]], [[-1]], [[2**63]], [[1.5]], [[True]], [True], ["a"] * 200)),
    *(("logprobs", value) for value in (-1, 21, True, "1", 1.5)),
    ("suffix", "x"),
    ("prompt_embeds", "AAAA"),
    ("messages", USER),
    ("tools", [{"type": "function", "function": {"name": "f"}}]),
    ("tool_choice", "required"),
]

CHAT_FIELDS: list[tuple[str, Any]] = [
    *(
        ("messages", value)
        for value in ([], "hi", None, [1], [{}], [{"role": "foo", "content": "x"}], [{"content": "x"}])
    ),
    *(("messages", [{"role": "user", "content": value}]) for value in (5, None, [{"type": "image_url"}], [5], {})),
    *(
        ("messages", [{"role": "user", "content": [{"type": kind, kind: "x"}]}])
        for kind in ("input_audio", "video_url")
    ),
    ("messages", [{"role": "user"}]),
    *(("messages", [*USER, {"role": "assistant", "content": "x", key: 5}]) for key in ("name", "refusal", "reasoning")),
    ("messages", [{"role": "tool", "content": "x", "tool_call_id": {}}]),
    ("store", True),
    ("verbosity", "low"),
    ("prediction", {"type": "content", "content": "x"}),
    *(("top_logprobs", value) for value in (5, -1, 21, True)),
    *(("logprobs", value) for value in (5, "yes")),
    *(
        ("tools", value)
        for value in ([], [{}], [5], "x", [{"type": "function", "function": {"name": "f", "parameters": 5}}])
    ),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "nope"}}),
    ("functions", [{"name": "f"}]),
    ("modalities", ["audio"]),
    ("audio", {"voice": "x"}),
    ("web_search_options", {}),
    ("continue_final_message", True),
    ("chat_template_kwargs", 5),
]


def shaped(status: int, reply: dict[str, Any], allowed: tuple[int, ...] = (400,)) -> dict[str, Any]:
    assert status in allowed, reply
    (error,) = reply.values()
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == status
    for word in ("Traceback", "pydantic", "orjson", "Python", "jinja2", "Errno"):
        assert word not in error["message"]
    return dict(error)


def cases(fields: list[tuple[str, Any]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}={value!r:.40}") for name, value in fields]


@pytest.mark.parametrize(("name", "value"), cases(FIELDS + COMPLETION_FIELDS))
def test_completions_name_the_field(world: World, name: str, value: Any) -> None:
    before = world.counts()
    for stream in (False, True):
        if name == "stream_options" and stream and isinstance(value, dict):
            continue
        body = {"prompt": "a", "stream": stream, name: value}
        error = shaped(*world.raw(COMPLETIONS, **body))
        assert name in (error["param"] or "") or name in error["message"]
    assert world.counts() == before


@pytest.mark.parametrize(("name", "value"), cases(FIELDS + CHAT_FIELDS))
def test_chat_names_the_field(world: World, name: str, value: Any) -> None:
    before = world.counts()
    error = shaped(*world.raw(CHAT, **{"messages": USER, name: value}))
    assert name in (error["param"] or "") or name in error["message"]
    assert world.counts() == before


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "max_tokens"]
)
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_json_does_not_have_are_refused(world: World, field: str, value: str) -> None:
    raw = f'{{"prompt": "a", "{field}": {value}}}'.encode()
    shaped(*world.send(COMPLETIONS, raw))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_bodies_that_are_no_json_object_are_refused(world: World, raw: bytes) -> None:
    for route in (COMPLETIONS, CHAT, "/tokenize", "/detokenize"):
        error = shaped(*world.send(route, raw))
        assert len(error["message"]) < 300


def test_another_type_of_content_is_refused(world: World) -> None:
    shaped(*world.send(COMPLETIONS, b"prompt=a", content_type="application/x-www-form-urlencoded"))


def test_bodies_over_the_limit_are_refused_without_being_read(world: World) -> None:
    shaped(*world.send(COMPLETIONS, b'{"prompt": "' + b"a" * (1 << 20) + b'"}'), allowed=(413,))

    def endless() -> Any:
        for _ in range(200):
            yield b" " * 65536

    shaped(*world.send(COMPLETIONS, endless()), allowed=(413,))


def test_a_million_messages_are_refused_at_once(world: World) -> None:
    raw = b'{"messages": [' + b",".join([b"1"] * 200_000) + b"]}"
    assert "a list of 1 to" in shaped(*world.send(CHAT, raw))["message"]  # no message of them was looked at


def test_a_prompt_past_the_context_is_told_its_length_and_the_limit(world: World) -> None:
    length = world.max_model_len + 44
    for extra in ({}, {"max_tokens": 5}):
        error = shaped(*world.raw(COMPLETIONS, prompt="a" * length, **extra))
        assert error["param"] == "prompt" and "-" not in error["message"].replace("re-", "")
        assert error["message"].startswith(f"This model's maximum context length is {world.max_model_len} tokens")
        assert str(length) in error["message"]
    messages = [{"role": "user", "content": "a" * length}]
    error = shaped(*world.raw(CHAT, messages=messages))
    assert str(world.max_model_len) in error["message"] and error["param"] in ("messages", "prompt")


def test_text_that_cannot_fit_is_refused_without_being_tokenised(world: World) -> None:
    text = "a" * 500_000
    for route, body in (
        (COMPLETIONS, {"prompt": text}),
        (CHAT, {"messages": [{"role": "user", "content": text}]}),
        ("/tokenize", {"prompt": text}),
    ):
        error = shaped(*world.raw(route, **body))
        assert "which has 500000 bytes" in error["message"] and str(world.max_model_len) in error["message"]


def test_one_prompt_too_long_refuses_the_whole_call(world: World) -> None:
    before = world.counts()
    shaped(*world.raw(COMPLETIONS, prompt=["a", "b", "c" * 5000]))
    assert world.counts() == before


@pytest.mark.parametrize("name", ["unknown", "", "Small", "small/", "x" * 5000])
def test_unknown_models_are_not_found(world: World, name: str) -> None:
    for route, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER}), ("/tokenize", {"prompt": "a"})):
        error = shaped(*world.raw(route, model=name, **body), allowed=(404,))
        assert error["param"] == "model" and name[:100] in error["message"]


def test_every_served_name_works_and_is_echoed(world: World) -> None:
    for name in ("small", "org/other-name"):
        assert world.post(COMPLETIONS, model=name, prompt="a", max_tokens=1)["model"] == name
    assert world.post(COMPLETIONS, prompt="a", max_tokens=1)["model"] == "small"
    listed = world.get("/v1/models").json()["data"]
    assert [card["id"] for card in listed] == ["small", "org/other-name"]
    assert all(card["max_model_len"] == world.max_model_len for card in listed)
    shaped(404, world.get("/v1/models/nope", status=404).json(), allowed=(404,))


def test_wrong_paths_and_methods_are_answered_in_json(world: World) -> None:
    shaped(405, world.get(COMPLETIONS, status=405).json(), allowed=(405,))
    shaped(*world.raw("/nope"), allowed=(404,))
    shaped(*world.raw(COMPLETIONS + "/", prompt="a"), allowed=(404,))
    assert world.client.head("/health").status_code == 200


def test_what_a_template_forbids_is_told_in_its_own_words(world: World) -> None:
    messages = [{"role": "user", "content": "forbidden"}]
    for stream in (False, True):
        error = shaped(*world.raw(CHAT, messages=messages, stream=stream))
        assert "the template forbids this" in error["message"]


def test_continuing_and_asking_for_a_new_turn_exclude_each_other(world: World) -> None:
    messages = [*USER, {"role": "assistant", "content": "abc"}]
    shaped(*world.raw(CHAT, messages=messages, continue_final_message=True, add_generation_prompt=True))


@pytest.mark.parametrize("tokens", [None, 5, "x", [-1], [263], [1.5], [True], [2**70]])
def test_detokenize_names_what_is_no_token(world: World, tokens: Any) -> None:
    error = shaped(*world.raw("/detokenize", tokens=tokens))
    assert "tokens" in error["message"]


def test_tokenize_needs_one_source(world: World) -> None:
    shaped(*world.raw("/tokenize"))
    shaped(*world.raw("/tokenize", prompt="a", messages=USER))


def test_images_are_refused_and_nothing_is_fetched(world: World) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.3)
        address = f"http://127.0.0.1:{trap.getsockname()[1]}/x.png"
        for url in (address, "file:///etc/passwd", "data:image/png;base64,AAAA"):
            part = {"type": "image_url", "image_url": {"url": url}}
            shaped(*world.raw(CHAT, messages=[{"role": "user", "content": [part]}]))
        with pytest.raises(TimeoutError):
            trap.accept()


def test_probe_after_all_of_it(world: World) -> None:
    """The file's last test: health, a fixed completion and idle counters after every refusal above."""
    world.probe()


def test_the_refusals_above_are_json_for_any_parser(world: World) -> None:
    response = world.client.post(COMPLETIONS, json={"prompt": "a", "temperature": -1, "stream": True})
    assert response.status_code == 400 and response.headers["content-type"] == "application/json"
    json.loads(response.text, parse_constant=lambda name: pytest.fail(name))
