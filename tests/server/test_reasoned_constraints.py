"""Constraints of models that reason: what comes after the reasoning is held to them, on each route."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from real_server import RealServer
from server_world import chunks, joined

sys.path.append(str(Path(__file__).parents[1] / "model"))

import tiny

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}{% if enable_thinking is not defined %}<think>
{% elif not enable_thinking %}<think>

</think>

{% endif %}"""
MARKERS = {"<think>": tiny.BASE["vocab_size"] - 2, "</think>": tiny.BASE["vocab_size"] - 1}
BEGIN, END = MARKERS.values()
# What may begin or end with white space, which is its own then.
SPACED: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"choice": [" Paris", "\n\nRome "]}}, " Paris|\n\nRome "),
    ({"structured_outputs": {"regex": "[ \\n]{1,3}[0-9]{2}\\n\\n"}}, "[ \n]{1,3}[0-9]{2}\n\n"),
    ({"structured_outputs": {"grammar": 'start: " " /[a-c]+/ "\\n"?'}}, " [a-c]+\n?"),
]
CONSTRAINTS: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, "[0-9]{3}"),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes|no"),
    ({"structured_outputs": {"grammar": 'start: a a\na: "x" | "(" a ")"'}}, r"\(*x\)*\(*x\)*"),
    ({"guided_grammar": 'root ::= "a" | "b"'}, "a|b"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "null"}}}}, "null"),
    ({"structured_outputs": {"json": {"enum": [1, "b"]}}}, '1|"b"'),
]


@pytest.fixture(scope="module", params=["text", "control"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Its model of random weights ends its reasoning where it is made to; the markers are text, or control tokens."""
    folder = tmp_path_factory.mktemp("reasoned")
    path = tiny.write_checkpoint("llama", folder / "tiny")
    value = json.loads((path / "tokenizer.json").read_text())
    for text, token_id in MARKERS.items():
        del value["model"]["vocab"][f"filler{token_id}"]
        marker = {**value["added_tokens"][0], "id": token_id, "content": text, "special": request.param == "control"}
        value["added_tokens"].append(marker)
    (path / "tokenizer.json").write_text(json.dumps(value))
    (folder / "template.jinja").write_text(TEMPLATE)
    running = RealServer(folder / "log", str(path), "--threads", "1", "--chat-template", str(folder / "template.jinja"))
    yield running
    assert running.close() == 0
    assert "Traceback" not in running.log.read_text()


def ask(server: RealServer, **body: Any) -> tuple[str | None, str | None]:
    """Content and reasoning, after the streamed form has been found to say the same."""
    given = {"messages": USER, "temperature": 1.5, "max_tokens": 200, "seed": 4, **body}
    message = server.post(CHAT, **given)["choices"][0]["message"]
    with server.client.stream("POST", CHAT, json={**given, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        streamed = joined(chunks(response.iter_lines()))["choices"][0]["message"]
    content, reasoning = message["content"] or None, message.get("reasoning") or None
    assert (streamed["content"] or None, streamed.get("reasoning") or None) == (content, reasoning)
    return content, reasoning


@pytest.mark.parametrize(("asked", "pattern"), CONSTRAINTS)
def test_the_answer_after_the_reasoning_is_held_to_it(server: RealServer, asked: dict[str, Any], pattern: str) -> None:
    content, reasoning = ask(server, **asked, logit_bias={END: 3})
    assert reasoning and not re.fullmatch(pattern, reasoning)
    assert content and re.fullmatch(pattern, content)
    # What the prompt does not begin, the reply may begin or leave out.
    open_ended = {"chat_template_kwargs": {"enable_thinking": True}}
    content, _ = ask(server, **asked, **open_ended, logit_bias={BEGIN: 50, END: 49})
    assert content and re.fullmatch(pattern, content)
    content, reasoning = ask(server, **asked, **open_ended, logit_bias={BEGIN: -100, ord("<"): -100})
    assert content and re.fullmatch(pattern, content) and not reasoning


@pytest.mark.parametrize(("asked", "pattern"), SPACED)
def test_white_space_of_the_answer_is_kept(server: RealServer, asked: dict[str, Any], pattern: str) -> None:
    """The tokens that were sampled say what the text is."""
    for more in (
        {"logit_bias": {END: 3}},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {BEGIN: -100, ord("<"): -100}},
        {"chat_template_kwargs": {"enable_thinking": True}, "logit_bias": {BEGIN: 50, END: 49}},
    ):
        for seed in range(3):
            content, _ = ask(server, **asked, **more, seed=seed)
            assert content and re.fullmatch(pattern, content), (more, content)


def test_an_answer_that_looks_like_reasoning_is_the_answer(server: RealServer) -> None:
    text = "<think>ab</think> c"
    for more in ({"chat_template_kwargs": {"enable_thinking": False}}, {"logit_bias": {END: 3}}):
        content, reasoning = ask(server, structured_outputs={"choice": [text]}, **more)
        assert content == text and bool(reasoning) == ("logit_bias" in more)


def test_a_grammar_knows_nothing_of_what_comes_before_it(server: RealServer) -> None:
    for name in ("answer", "start", "thinking"):
        for thinking in (True, False):
            status, reply = server.raw(
                CHAT,
                messages=USER,
                structured_outputs={"grammar": f'start: "a" @{name}?'},
                chat_template_kwargs={"enable_thinking": thinking},
            )
            assert status == 400 and f"unknown grammar @{name}" in reply["error"]["message"], reply
    status, reply = server.raw(CHAT, messages=USER, structured_outputs={"grammar": 'start: "a" thinking?'})
    assert status == 400 and "thinking" in reply["error"]["message"]


@pytest.mark.parametrize("seed", [4, 5])
def test_the_other_routes_give_what_chat_gives(server: RealServer, seed: int) -> None:
    """The whole answer and what was thought before it, as the official clients read them, streamed and not."""
    schema = {"type": "array", "items": {"enum": ["a b", 7]}, "minItems": 2, "maxItems": 9}
    given: Any = {"temperature": 1.5, "seed": seed, "logit_bias": {str(END): 5}}
    format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    content, reasoning = ask(server, response_format=format, **given)
    assert reasoning and content and content[0] == "[" and set(json.loads(content)) <= {"a b", 7}
    model = server.client.get("/v1/models").json()["data"][0]["id"]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", timeout=60) as client:
        asked: Any = {"model": model, "input": USER, "max_output_tokens": 200, "extra_body": given}
        asked["text"] = {"format": {"type": "json_schema", "name": "x", "schema": schema}}
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            told = list(stream)
            streamed = stream.get_final_response()
        for response in (whole, streamed):
            assert response.status == "completed" and response.output_text == content
            thought, message = response.output
            assert thought.type == "reasoning" and thought.content and thought.content[0].text == reasoning
            assert message.type == "message"
        assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == content
        assert "".join(e.delta for e in told if e.type == "response.reasoning_text.delta") == reasoning
    with anthropic.Anthropic(base_url=server.url, api_key="any", timeout=60) as other:
        asked = {"model": model, "messages": USER, "max_tokens": 200, "extra_body": given}
        asked["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        sent = other.messages.create(**asked)
        with other.messages.stream(**asked) as events:
            text = "".join(events.text_stream)
            final = events.get_final_message()
        for answer in (sent, final):
            assert answer.stop_reason == "end_turn"
            thinking, block = answer.content
            assert thinking.type == "thinking" and thinking.thinking == reasoning
            assert block.type == "text" and block.text == content == text


def test_a_prompt_that_ends_the_reasoning_leaves_the_answer(server: RealServer) -> None:
    for asked, pattern in CONSTRAINTS:
        content, reasoning = ask(
            server, **asked, chat_template_kwargs={"enable_thinking": False}, logit_bias={BEGIN: 100}
        )
        assert content and re.fullmatch(pattern, content) and not reasoning


def test_a_reply_that_is_cut_in_its_reasoning_is_reasoning_on_every_route(server: RealServer) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "null"}}
    content, reasoning = ask(server, **CONSTRAINTS[4][0], max_tokens=5, logit_bias={END: -100})
    assert reasoning and not content
    sampled = {"temperature": 1.5, "seed": 4}
    reply = server.post("/v1/responses", **sampled, input=USER, max_output_tokens=3, text={"format": schema})
    assert reply["output"][0]["type"] == "reasoning" and "null" not in json.dumps(reply["output"])
    message = server.post("/v1/messages", **sampled, messages=USER, max_tokens=3, output_config={"format": schema})
    assert [part["type"] for part in message["content"]] == ["thinking"]


def test_free_text_has_its_triggers_after_the_reasoning(server: RealServer) -> None:
    tag = {
        "type": "structural_tag",
        "structures": [{"begin": "<a>", "schema": {"type": "null"}, "end": "</a>"}],
        "triggers": ["<a>"],
    }
    content, reasoning = ask(server, response_format=tag, logit_bias={END: 3}, max_tokens=120)
    assert reasoning and content and not re.search("<a>(?!null</a>)", content)


def test_an_answer_that_is_continued_is_not_reasoned_in(server: RealServer) -> None:
    begun = [*USER, {"role": "assistant", "content": "The answer is "}]
    more = {"messages": begun, "continue_final_message": True, "add_generation_prompt": False}
    for asked, pattern in CONSTRAINTS:
        content, reasoning = ask(server, **asked, **more, logit_bias={BEGIN: 100})
        assert content and re.fullmatch(pattern, content) and not reasoning
