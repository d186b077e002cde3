"""The whole way, with the default model: `octavo serve` as a process, and the official client in front of it."""

from __future__ import annotations

import asyncio
import json
import math
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion
from real_server import RealServer
from server_world import chunks, joined, strict, wait_until

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
FRANCE = "The capital of France is"
USER = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    running = RealServer(folder / "log", "--max-model-len", "2048", "--served-model-name", "smol", "alias")
    yield running
    log = running.log.read_text()
    assert running.close() == 0
    assert "Traceback" not in log and "ERROR" not in log
    assert FRANCE not in log  # prompts are nobody's business


def probe(server: RealServer) -> None:
    """Healthy, idle, and a fixed completion as ever."""
    wait_until(server.is_idle, 30)
    assert server.client.get("/health").status_code == 200
    assert server.post(COMPLETIONS, prompt=FRANCE, max_tokens=1, temperature=0)["choices"][0]["text"] == " Paris"
    wait_until(server.is_idle, 30)


def stream(server: RealServer, path: str, **body: Any) -> dict[str, Any]:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", path, json={**body, **options}) as response:
        assert response.status_code == 200, response.read()
        return joined(chunks(response.iter_lines()))


def test_sixty_four_chats_at_once_are_what_each_is_alone(server: RealServer) -> None:
    conversations: list[Any] = [
        [{"role": "user", "content": f"Say something about the number {i}." + " Please." * (i % 7)}] for i in range(64)
    ]

    async def main() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="EMPTY", timeout=300) as client:

            async def streamed(messages: Any) -> str:
                pieces = await client.chat.completions.create(
                    model="smol", messages=messages, temperature=0, max_tokens=6, stream=True
                )
                return "".join([piece.choices[0].delta.content or "" async for piece in pieces])

            async def alone(messages: Any) -> str:
                reply = await client.chat.completions.create(
                    model="alias", messages=messages, temperature=0, max_tokens=6
                )
                return reply.choices[0].message.content or ""

            together = await asyncio.gather(*(streamed(messages) for messages in conversations))
            return together, [await alone(messages) for messages in conversations]

    together, alone = asyncio.run(main())
    assert together == alone
    assert len(set(together)) > 8
    probe(server)


@pytest.mark.parametrize(
    "extra",
    [
        {"temperature": 0},
        {"temperature": 1, "seed": 5, "n": 2, "top_p": 0.9, "presence_penalty": 0.5},
        {"temperature": 1, "seed": 6, "stop": ["e ", "."], "max_tokens": 60},
        {"temperature": 0, "logprobs": True},
    ],
)
def test_whole_and_streamed_replies_are_the_same(server: RealServer, extra: dict[str, Any]) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": FRANCE})):
        given = {**body, "max_tokens": 12, **extra}
        if path == CHAT and "logprobs" in extra:
            given["top_logprobs"] = 2
        elif "logprobs" in extra:
            given["logprobs"] = 2
        whole, streamed = server.post(path, **given), stream(server, path, **given)
        strict(ChatCompletion if path == CHAT else Completion, whole)
        assert whole["choices"] == streamed["choices"]
        for reply in (whole, streamed):  # the second finds the prompt in the cache
            reply["usage"].pop("prompt_tokens_details")
        assert whole["usage"] == streamed["usage"]
        assert server.post(path, **given)["choices"] == whole["choices"]


def test_the_other_routes_say_what_chat_says(server: RealServer) -> None:
    chat = server.post(CHAT, messages=USER, temperature=0, max_tokens=12)["choices"][0]["message"]["content"]
    response = server.post("/v1/responses", input=USER, temperature=0, max_output_tokens=12)
    message = server.post("/v1/messages", messages=USER, temperature=0, max_tokens=12)
    assert response["output"][0]["content"][0]["text"] == message["content"][0]["text"] == chat
    texts = [FRANCE, FRANCE + " Paris.", "x" * 400]
    together = [entry["embedding"] for entry in server.post("/v1/embeddings", input=texts)["data"]]
    for text, vector in zip(texts, together, strict=True):
        assert server.post("/v1/embeddings", input=text)["data"][0]["embedding"] == vector
        assert math.isclose(sum(value * value for value in vector), 1, rel_tol=1e-5)
    probe(server)


def test_a_client_that_leaves_gives_its_blocks_back_and_disturbs_nobody(server: RealServer) -> None:
    body = {"messages": USER, "temperature": 1, "seed": 9, "max_tokens": 24, "ignore_eos": True}
    alone = server.post(CHAT, **body)["choices"]
    wait_until(server.is_idle, 30)
    aborted = server.metric("request_success_total", finished_reason="abort")

    async def main() -> Any:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            asked = {"prompt": FRANCE, "max_tokens": 2000, "ignore_eos": True, "stream": True}
            async with client.stream("POST", COMPLETIONS, json=asked) as leaving:
                await anext(leaving.aiter_lines())
                staying = asyncio.ensure_future(client.post(CHAT, json=body))
                await asyncio.sleep(0.2)
            return (await staying).json()["choices"]

    assert asyncio.run(main()) == alone
    wait_until(server.is_idle, 60)
    assert server.metric("request_success_total", finished_reason="abort") == aborted + 1
    probe(server)


def test_seeds_repeat_and_choices_differ(server: RealServer) -> None:
    body = {"prompt": "Once upon a time", "n": 2, "seed": 11, "temperature": 1.0, "max_tokens": 16}
    first, again = server.post(COMPLETIONS, **body), server.post(COMPLETIONS, **body)
    assert first["choices"] == again["choices"]
    one, two = (choice["text"] for choice in first["choices"])
    assert one != two
    assert first["usage"]["prompt_tokens"] == 4 and first["usage"]["completion_tokens"] <= 32
    other = server.post(COMPLETIONS, **{**body, "seed": 12})
    assert other["choices"] != first["choices"]


def test_logprobs_are_those_of_the_prompt_too(server: RealServer) -> None:
    """The form in which lm-eval scores an answer: echo, logprobs, nothing generated."""
    reply = server.post(COMPLETIONS, prompt=FRANCE + " Paris", echo=True, logprobs=1, max_tokens=0, temperature=0)
    (choice,) = reply["choices"]
    logprobs = choice["logprobs"]
    assert choice["text"] == FRANCE + " Paris" == "".join(logprobs["tokens"])
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert logprobs["text_offset"] == [len("".join(logprobs["tokens"][:i])) for i in range(len(logprobs["tokens"]))]
    # Generating says the same of the token as scoring does.
    generated = server.post(COMPLETIONS, prompt=FRANCE, logprobs=1, max_tokens=1, temperature=0)["choices"][0]
    assert generated["logprobs"]["tokens"] == [" Paris"]
    assert generated["logprobs"]["token_logprobs"][0] == logprobs["token_logprobs"][-1]
    # The common client asks for one token more, and cuts it off.
    longer = server.post(COMPLETIONS, prompt=FRANCE + " Paris", echo=True, logprobs=1, max_tokens=1, temperature=0)
    assert longer["choices"][0]["logprobs"]["token_logprobs"][:-1] == logprobs["token_logprobs"]
    chat = server.post(CHAT, messages=USER, logprobs=True, top_logprobs=5, max_tokens=4, temperature=0)
    for entry in chat["choices"][0]["logprobs"]["content"]:
        assert len(entry["top_logprobs"]) == 5 and entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert sum(math.exp(other["logprob"]) for other in entry["top_logprobs"]) <= 1 + 1e-6


def test_stop_strings_cut_the_text(server: RealServer) -> None:
    whole = server.post(COMPLETIONS, prompt="1 2 3 4 5", temperature=0, max_tokens=16)["choices"][0]["text"]
    mark = whole[6:8]
    (choice,) = server.post(COMPLETIONS, prompt="1 2 3 4 5", temperature=0, max_tokens=16, stop=[mark])["choices"]
    assert choice["text"] == whole[: whole.index(mark)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", mark)
    kept = server.post(
        COMPLETIONS, prompt="1 2 3 4 5", temperature=0, max_tokens=16, stop=mark, include_stop_str_in_output=True
    )
    assert kept["choices"][0]["text"] == choice["text"] + mark


def test_prompts_are_texts_ids_and_lists_of_them(server: RealServer) -> None:
    ids = server.post("/tokenize", prompt=FRANCE)["tokens"]
    assert server.post("/detokenize", tokens=ids)["prompt"] == FRANCE
    common = {"max_tokens": 3, "temperature": 0}
    one = server.post(COMPLETIONS, prompt=FRANCE, **common)
    assert server.post(COMPLETIONS, prompt=ids, **common)["choices"] == one["choices"]
    for many in ([FRANCE, "1 2 3"], [ids, server.post("/tokenize", prompt="1 2 3")["tokens"]]):
        reply = server.post(COMPLETIONS, prompt=many, **common)
        assert [choice["index"] for choice in reply["choices"]] == [0, 1]
        assert reply["choices"][0]["text"] == one["choices"][0]["text"]
        assert reply["usage"]["completion_tokens"] == 6


def test_chat_goes_through_the_models_template(server: RealServer) -> None:
    ids = server.post("/tokenize", messages=USER)["tokens"]
    rendered = server.post("/detokenize", tokens=ids)["prompt"]
    assert rendered.startswith("<|im_start|>system\n") and rendered.endswith("<|im_start|>assistant\n")
    chat = server.post(CHAT, messages=USER, max_tokens=8, temperature=0)
    assert chat["usage"]["prompt_tokens"] == len(ids)
    text = server.post(COMPLETIONS, prompt=ids, max_tokens=8, temperature=0)["choices"][0]["text"]
    assert chat["choices"][0]["message"]["content"] == text
    # A user who writes a control token has written its letters.
    sly = server.post("/tokenize", messages=[{"role": "user", "content": "<|im_end|>"}])["tokens"]
    plain = server.post("/tokenize", messages=[{"role": "user", "content": "x"}])["tokens"]
    end = server.post("/tokenize", prompt="<|im_end|>")["tokens"]
    assert len(end) == 1 and sly.count(end[0]) == plain.count(end[0])


def test_counters_are_the_sum_of_the_usages(server: RealServer) -> None:
    def counted() -> list[float]:
        names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
        return [server.metric(name) for name in names] + [
            server.metric("request_success_total", finished_reason=reason) for reason in ("length", "stop")
        ]

    wait_until(server.is_idle, 30)
    before = counted()
    usages = [server.post(COMPLETIONS, prompt=FRANCE, max_tokens=n, temperature=0)["usage"] for n in (1, 2)]
    usages.append(server.post(COMPLETIONS, prompt=FRANCE, max_tokens=3, n=3, seed=1, ignore_eos=True)["usage"])
    usages.append(stream(server, CHAT, messages=USER, max_tokens=3, temperature=0, ignore_eos=True)["usage"])
    assert server.raw(COMPLETIONS, prompt=FRANCE, temperature=-1)[0] == 400
    usages.append(server.post(COMPLETIONS, prompt=FRANCE, temperature=0, stop=" Paris", max_tokens=5)["usage"])
    added = [after - start for after, start in zip(counted(), before, strict=True)]
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    generated = sum(usage["completion_tokens"] for usage in usages)
    assert added == [prompt, generated, 5, 6, 1]


def test_what_a_client_gets_wrong_is_told_and_hurts_nobody(server: RealServer) -> None:
    long = [1] * 2048
    wrong: list[tuple[str, dict[str, Any], str]] = [
        (COMPLETIONS, {"prompt": long}, "maximum context length is 2048 tokens. However, you requested 2048 tokens"),
        (COMPLETIONS, {"prompt": "x " * 3000}, "maximum context length is 2048 tokens. However, you requested "),
        (COMPLETIONS, {"prompt": "x" * 10_000_000}, "maximum context length is 2048 tokens. However, you requested "),
        (CHAT, {"messages": [{"role": "user", "content": "x " * 3000}]}, "maximum context length"),
        (COMPLETIONS, {"prompt": []}, "prompt"),
        (COMPLETIONS, {"prompt": [49152]}, "49152"),
        (COMPLETIONS, {"prompt": FRANCE, "temperature": -1}, "temperature"),
        (COMPLETIONS, {"prompt": FRANCE, "max_tokens": "many"}, "max_tokens"),
        (COMPLETIONS, {"prompt": FRANCE, "logprobs": 1000}, "logprobs"),
        (COMPLETIONS, {"prompt": FRANCE, "n": 10**6}, "n"),
        (COMPLETIONS, {"prompt": FRANCE, "priority": 3}, "priority"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": USER, "response_format": {"type": "grammar"}}, "response_format"),
    ]
    for path, body, says in wrong:
        status, reply = server.raw(path, **body)
        assert status == 400 and says in reply["error"]["message"], reply
        assert reply["error"]["code"] == 400
    assert server.raw(COMPLETIONS, prompt=FRANCE, model="nope")[0] == 404
    assert server.client.get("/v1/nothing").status_code == 404
    probe(server)


def test_the_server_tells_what_it_serves(server: RealServer) -> None:
    cards = server.client.get("/v1/models").json()["data"]
    assert [card["id"] for card in cards] == ["smol", "alias"]
    assert {card["max_model_len"] for card in cards} == {2048}
    replies = [server.post(COMPLETIONS, prompt=FRANCE, max_tokens=1), stream(server, CHAT, messages=USER, max_tokens=1)]
    prints = {reply.get("system_fingerprint") for reply in replies[:1]}
    (fingerprint,) = prints
    assert fingerprint and fingerprint.startswith("octavo-")
    assert server.metric("model_info", system_fingerprint=fingerprint) == 1


def test_a_second_server_on_the_port_ends_before_it_loads(server: RealServer, tmp_path: Any) -> None:
    port = httpx.URL(server.url).port
    assert port is not None
    with pytest.raises(AssertionError, match=f"Port {port}"):
        RealServer(tmp_path / "log", port=port)
    assert "weights" not in (tmp_path / "log").read_text()
    probe(server)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_stream_finish_and_takes_no_more(tmp_path: Any, number: signal.Signals) -> None:
    server = RealServer(tmp_path / "log", "--max-model-len", "512", "--shutdown-timeout", "60")
    try:
        body = {"prompt": FRANCE, "max_tokens": 40, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            first = next(lines)
            server.signal(number)
            time.sleep(0.5)
            with pytest.raises(httpx.HTTPError):
                httpx.post(server.url + COMPLETIONS, json={"prompt": FRANCE}, timeout=10).raise_for_status()
            reply = joined(chunks([first, *lines]))
        assert reply["choices"][0]["finish_reason"] == "length"
        assert server.ended() == 0
        assert "Traceback" not in server.log.read_text()
    finally:
        server.close()


def test_signals_end_streams_with_an_error_past_the_timeout(tmp_path: Any) -> None:
    server = RealServer(tmp_path / "log", "--max-model-len", "4096", "--shutdown-timeout", "0.2")
    try:
        body = {"prompt": FRANCE, "max_tokens": 4000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", COMPLETIONS, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"code":503' in rest[-2]
        assert server.ended() == 0
        assert "Traceback" not in server.log.read_text()
    finally:
        server.close()


def test_the_smallest_model_calls_a_tool_when_it_has_to(server: RealServer) -> None:
    """No word of its template is about tools: they are described, and a grammar holds it to what they take."""
    city = {"type": "object", "properties": {"city": {"enum": ["Lima", "Oslo", "Quito"]}}, "required": ["city"]}
    tool: Any = {"type": "function", "function": {"name": "temperature", "description": "In °C.", "parameters": city}}
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY", timeout=300) as client:
        choice = client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": "Is it freezing in Oslo?"}],
            tools=[tool],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
        ).choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "temperature"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    probe(server)
