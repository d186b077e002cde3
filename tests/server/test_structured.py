"""Structured output over a real socket, with a tiny random model: what is asked for comes, or a 400 says why."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pydantic
import pytest
from openai.types.responses import Response
from real_server import RealServer
from server_world import World, chunks, joined, strict, wait_until

from octavo import AsyncLLM
from octavo.runtime.grammar import GrammarCompiler
from octavo.server.context import TEXT_THREADS

sys.path.extend(str(Path(__file__).parents[1] / name) for name in ("model", "judges"))

import tiny
from schemas import fault

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
USER = [{"role": "user", "content": "hi"}]
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}

BAD = {"type": "array", "uniqueItems": True}  # what cannot be enforced


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    path = tiny.write_checkpoint("llama", folder / "tiny")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    running = RealServer(folder / "log", str(path), "--threads", "1")
    yield running
    log = running.log.read_text()
    assert running.close() == 0
    assert "Traceback" not in log and "ERROR" not in log


def probe(server: RealServer) -> None:
    """Healthy, idle, and a fixed completion as ever."""
    wait_until(server.is_idle, 30)
    assert server.client.get("/health").status_code == 200
    body = {"prompt": "hi", "max_tokens": 6, "temperature": 0}
    assert server.post(COMPLETIONS, **body)["usage"]["completion_tokens"] == 6
    assert server.post(COMPLETIONS, **body, structured_outputs={"choice": ["fine"]})["choices"][0]["text"].startswith(
        "f"
    )


def ask(server: RealServer, **body: Any) -> tuple[str, str]:
    asked = {"messages": USER, "temperature": 1.5, "max_tokens": 300, "seed": 1, **body}
    choice = server.post(CHAT, **asked)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON, "strict": True}}},
        {"structured_outputs": {"json": PERSON}},
        {"structured_outputs": {"json": json.dumps(PERSON), "disable_any_whitespace": True, "regex": None}},
        {"guided_json": PERSON, "guided_decoding_backend": "auto"},
        {"guided_json": json.dumps(PERSON), "guided_whitespace_pattern": " ?"},
    ],
)
def test_a_schema_in_every_spelling(server: RealServer, asked: dict[str, Any]) -> None:
    text, reason = ask(server, **asked)
    assert reason == "stop" and not fault(PERSON, text)
    body = {"messages": USER, "temperature": 1.5, "max_tokens": 300, "seed": 1, **asked}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", CHAT, json={**body, **options}) as response:
        assert joined(chunks(response.iter_lines()))["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize(
    "asked, pattern",
    [
        ({"structured_outputs": {"regex": "[ab]{3}"}}, "[ab]{3}"),
        ({"guided_regex": "[ab]{3}"}, "[ab]{3}"),
        ({"structured_outputs": {"choice": ["x", "yy"]}}, "x|yy"),
        ({"guided_choice": ["x", "yy"]}, "x|yy"),
        ({"structured_outputs": {"grammar": 'root ::= "<" [0-9] ">"'}}, "<[0-9]>"),
        ({"guided_grammar": 'start: "<" /[0-9]/ ">"'}, "<[0-9]>"),
        ({"structured_outputs": {"json": {"const": True}}}, "true"),
    ],
)
def test_the_other_constraints_on_both_routes(server: RealServer, asked: dict[str, Any], pattern: str) -> None:
    text, reason = ask(server, **asked)
    assert reason == "stop" and re.fullmatch(pattern, text)
    reply = server.post(COMPLETIONS, prompt=["a", "b"], n=2, max_tokens=20, temperature=1.5, **asked)
    assert len(reply["choices"]) == 4
    assert all(re.fullmatch(pattern, choice["text"]) for choice in reply["choices"])


@pytest.mark.parametrize(
    "asked", [{"guided_regex": ""}, {"structured_outputs": {"regex": ""}}, {"guided_choice": [""]}], ids=str
)
def test_nothing_may_be_all_that_is_allowed(server: RealServer, asked: dict[str, Any]) -> None:
    choice = server.post(COMPLETIONS, prompt="a", **asked)["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    status, reply = server.raw(COMPLETIONS, prompt="a", allowed_token_ids=[7], **asked)
    assert status == 400 and reply["error"]["message"].startswith("No token may be sampled")


def test_an_empty_pattern_of_white_space_allows_none(server: RealServer) -> None:
    asked = {"json": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 4, "maxItems": 4}}
    for white, pattern in ((None, r"(?s).*\s.*"), ("", r"\[[12](,[12]){3}\]")):
        outputs = {**asked, "whitespace_pattern": white}
        texts = [ask(server, structured_outputs=outputs, temperature=2, seed=seed)[0] for seed in range(8)]
        assert all(re.fullmatch(pattern, text) for text in texts), texts


def test_text_is_as_if_nothing_were_asked(server: RealServer) -> None:
    plain = ask(server, max_tokens=20)
    assert ask(server, max_tokens=20, response_format={"type": "text"}) == plain
    assert ask(server, max_tokens=20, response_format=None, structured_outputs=None, guided_json=None) == plain


def test_any_object(server: RealServer) -> None:
    text, reason = ask(server, response_format={"type": "json_object"}, max_tokens=600)
    assert text.startswith("{") and (reason == "length" or isinstance(json.loads(text), dict))


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "unclosed"),
    ({"guided_regex": "("}, "guided_regex", "unclosed"),
    ({"guided_json": {"type": "foo"}}, "guided_json", "foo"),
    ({"structured_outputs": {"grammar": "start: x"}}, "structured_outputs", "unknown name"),
    ({"response_format": {"type": "foo"}}, "response_format", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True}}}},
        "response_format",
        "uniqueItems",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "pattern": "(?!a)"}}}},
        "response_format",
        "look-around",
    ),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "exactly one"),
    ({"guided_regex": "", "guided_choice": ["b"]}, "guided_choice", "exactly one"),
    ({"guided_json": ""}, "guided_json", "is no JSON"),
    ({"guided_grammar": ""}, "guided_grammar", "cannot be enforced"),
    ({"structured_outputs": {"structural_tag": ""}}, "structured_outputs", "is no JSON"),
    ({"structured_outputs": {"json_object": 1}}, "structured_outputs", "true or false"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "give one of them"),
    (
        {"structured_outputs": {"choice": ["a"]}, "response_format": {"type": "json_object"}},
        "structured_outputs",
        "one",
    ),
]


@pytest.mark.parametrize("asked, field, says", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_cannot_be_enforced_is_a_400_with_the_reason(
    server: RealServer, asked: dict[str, Any], field: str, says: str
) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "a"})):
        for stream in (False, True):
            status, reply = server.raw(path, **body, **asked, stream=stream)
            assert status == 400, reply
            assert reply["error"]["param"] == field and says in reply["error"]["message"], reply
    probe(server)
    assert ask(server, structured_outputs={"json": PERSON})[1] == "stop"


def test_a_cut_reply_says_so(server: RealServer) -> None:
    schema = {"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}
    text, reason = ask(server, max_tokens=3, **schema)
    assert reason == "length" and text == '{"n'
    text, reason = ask(server, stop=["na"], **schema)
    assert (text, reason) == ('{"', "stop")
    for params in ({"min_tokens": 200}, {"ignore_eos": True}):
        text, reason = ask(server, **params, **schema)
        assert reason == "stop" and not fault(PERSON, text)
    probe(server)


@pytest.mark.parametrize(
    "also", [{"allowed_token_ids": [5]}, {"logit_bias": {str(ord("r")): -100}}, {"bad_words": ["r"]}]
)
def test_what_leaves_nothing_to_sample_is_the_clients_fault(server: RealServer, also: dict[str, Any]) -> None:
    body = {"messages": USER, "guided_choice": ["red"], "max_tokens": 5} | also
    status, reply = server.client.post(CHAT, json=body).status_code, server.client.post(CHAT, json=body).json()
    if "logit_bias" in also:  # makes it unlikely, and the only one
        assert status == 200 and reply["choices"][0]["message"]["content"] == "red"
    else:
        assert status == 400 and "No token may be sampled" in reply["error"]["message"]
        events = server.client.post(CHAT, json=body | {"stream": True}).text
        assert "No token may be sampled" in events and '"code":400' in events
    probe(server)


@pytest.mark.parametrize(
    "extra", [{"top_k": 1}, {"structured_outputs": {"regex": "[ab]{4}"}}, {"top_k": 1, "echo": True}]
)
def test_logprobs_of_what_is_masked_are_json(server: RealServer, extra: dict[str, Any]) -> None:
    body = {"prompt": "hello", "max_tokens": 6, "logprobs": 5, **extra}
    response = server.client.post(COMPLETIONS, json=body)
    assert response.status_code == 200
    reply = json.loads(response.content, parse_constant=pytest.fail)  # NaN and Infinity
    logprobs = reply["choices"][0]["logprobs"]
    values = zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    assert all(chosen is None or (isinstance(chosen, float) and top) for chosen, top in values)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


HUGE: dict[str, dict[str, Any]] = {
    "20,000 values": {"json": {"enum": [f"value {i}" for i in range(20_000)]}},
    "20,000 choices": {"choice": [f"value {i}" for i in range(20_000)]},
    "200 levels": {"json": nested(200)},
    "a billion items": {"json": {"type": "array", "items": {"type": "null"}, "minItems": 10**9, "maxItems": 2 * 10**9}},
    "a million repetitions": {"regex": "(x{1000}){1000}"},
    "20,000 properties": {"json": {"type": "object", "properties": {f"p{i}": {} for i in range(20_000)}}},
    "a product of alternatives": {
        "json": {"allOf": [{"anyOf": [{"properties": {f"{i}{j}": {}}} for j in range(3)]} for i in range(12)]}
    },
    "5,000 references in a chain": {"json": {"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(5000)}}},
    "10,000 rules in a chain": {"grammar": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3500))},
}


def test_what_is_free_does_not_wait_for_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, opened = [], threading.Event()
    compile = GrammarCompiler.compile

    def gated(self: GrammarCompiler, *asked: Any) -> Any:
        begun.append(asked)
        assert opened.wait(60)
        return compile(self, *asked)

    monkeypatch.setattr(GrammarCompiler, "compile", gated)
    service = AsyncLLM(tiny.write_checkpoint("llama", tmp_path), threads=1, kv_cache_memory="4MiB")
    world = World(tmp_path, service=service)
    bodies: list[dict[str, Any]] = [{"structured_outputs": {"choice": [f"c{i}"]}} for i in range(TEXT_THREADS)]
    bodies += [{"guided_regex": f"r{i}"} for i in range(TEXT_THREADS)]
    try:
        with ThreadPoolExecutor() as threads:
            held = [threads.submit(world.post, COMPLETIONS, prompt="hi", max_tokens=9, **body) for body in bodies]
            wait_until(lambda: len(begun) == len(bodies))
            assert world.post(COMPLETIONS, prompt="hi", max_tokens=3)["usage"]["completion_tokens"] == 3
            opened.set()
            texts = [future.result()["choices"][0]["text"] for future in held]
        assert texts == ["c0", "c1", "r0", "r1"]
    finally:
        opened.set()
        world.close()


def test_a_limit_met_in_a_reply_is_told_by_the_client_s_field(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SLOW_STEP_SECONDS", "SLOW_MASK_SECONDS", "MAX_SLOW_SECONDS"):
        monkeypatch.setattr(f"octavo.runtime.grammar.{limit}", 0)
    forced = {"type": "function", "function": {"name": "f", "parameters": PERSON}}
    format = {"type": "json_schema", "name": "x", "schema": PERSON}
    service = AsyncLLM(tiny.write_checkpoint("llama", tmp_path), threads=1, kv_cache_memory="4MiB")
    world = World(tmp_path, service=service)
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (COMPLETIONS, "structured_outputs", {"prompt": "hi", "structured_outputs": {"json": PERSON}}),
        (COMPLETIONS, "guided_json", {"prompt": "hi", "guided_json": PERSON}),
        (CHAT, "response_format", {"messages": USER, "response_format": {"type": "json_object"}}),
        (CHAT, "tools", {"messages": USER, "tools": [forced], "tool_choice": "required"}),
        (RESPONSES, "text.format", {"input": "hi", "text": {"format": format}}),
    ]
    try:
        for url, field, body in asked:
            status, reply = world.raw(url, **body)
            assert status == 400 and reply["error"]["param"] == field, reply
            assert "takes too long" in reply["error"]["message"]
    finally:
        world.close()


def test_huge_constraints_beside_a_stream(server: RealServer) -> None:
    """Each is answered in ten seconds or refused, and meanwhile a stream goes on and /health answers."""
    gaps: list[float] = []
    over = threading.Event()

    def watch() -> None:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", timeout=60) as client:
            while not over.is_set():
                last = time.monotonic()
                stream = client.completions.create(
                    model=model, prompt="hi", max_tokens=200, stream=True, extra_body={"ignore_eos": True}
                )
                for _ in stream:
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

    model = server.client.get("/v1/models").json()["data"][0]["id"]
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for name, constraint in HUGE.items():
            started = time.monotonic()
            status, reply = server.raw(COMPLETIONS, prompt="hi", max_tokens=5, structured_outputs=constraint)
            assert time.monotonic() - started < 30, name
            assert status == 200 or (status == 400 and reply["error"]["param"] == "structured_outputs"), (name, reply)
            started = time.monotonic()
            assert server.client.get("/health").status_code == 200
            assert time.monotonic() - started < 5, name
    finally:
        over.set()
        watcher.join()
    assert len(gaps) >= 200 and max(gaps) < 10
    probe(server)


class Person(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=8)
    age: int = pydantic.Field(ge=0, le=99)


class Choice(pydantic.BaseModel):
    """Nothing of it is a keyword that Anthropic's client leaves to its own check."""

    size: Literal["small", "large"]
    sure: bool


def test_the_official_clients_parse(server: RealServer) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", timeout=60) as client:
        model = client.models.list().data[0].id
        reply = client.chat.completions.parse(
            model=model, messages=[{"role": "user", "content": "hi"}], response_format=Person, temperature=1.5
        )
        person = reply.choices[0].message.parsed
        assert isinstance(person, Person) and 0 <= person.age <= 99
        response = client.responses.parse(model=model, input="hi", text_format=Person, temperature=1.5)
        assert isinstance(response.output_parsed, Person)
    with anthropic.Anthropic(base_url=server.url, api_key="any", timeout=60) as other:
        message = other.messages.parse(
            model=model,
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=300,
            output_format=Choice,
            extra_body={"temperature": 1},
        )
        assert isinstance(message.parsed_output, Choice)


def test_the_same_constraint_gives_the_same_text_on_every_route(server: RealServer) -> None:
    asked: dict[str, Any] = {"temperature": 1.5, "seed": 3}
    named = {"name": "person", "schema": PERSON, "strict": True}
    text, _ = ask(server, **asked, response_format={"type": "json_schema", "json_schema": named})
    assert not fault(PERSON, text)
    body = {**asked, "input": USER, "max_output_tokens": 300}
    reply = server.post("/v1/responses", **body, text={"format": {"type": "json_schema", **named}})
    strict(Response, reply)
    assert reply["output"][0]["content"][0]["text"] == text
    config = {"format": {"type": "json_schema", "schema": PERSON}}
    message = server.post("/v1/messages", **asked, messages=USER, max_tokens=300, output_config=config)
    assert message["content"] == [{"type": "text", "text": text}]
    text, _ = ask(server, **asked, response_format={"type": "json_object"})
    reply = server.post("/v1/responses", **body, text={"format": {"type": "json_object"}})
    assert reply["output"][0]["content"][0]["text"] == text
    status, reply = server.raw(
        "/v1/responses", **body, text={"format": {"type": "json_schema", **named, "schema": BAD}}
    )
    assert status == 400 and reply["error"]["param"] == "text.format"
    status, reply = server.raw(
        "/v1/messages", messages=USER, max_tokens=5, output_config={"format": {**config["format"], "schema": BAD}}
    )
    assert status == 400 and "output_config.format" in reply["error"]["message"]
