"""What the server makes of the model's own facts, and that it stays the same after many requests."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from server_world import World, chunks, strict

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def test_without_a_chat_template_completions_still_work(make_world: Any) -> None:
    world: World = make_world(template=None)
    assert world.post(COMPLETIONS, prompt="a", max_tokens=2)["choices"][0]["text"] == "bc"
    for route in (CHAT, "/tokenize"):
        status, reply = world.raw(route, messages=USER)
        assert status == 400 and "chat template" in reply["error"]["message"]


def test_the_models_defaults_apply_unless_the_client_says_otherwise(make_world: Any) -> None:
    world: World = make_world(sampling_defaults={"temperature": 1.0, "top_k": 1, "max_tokens": 5})
    for route, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})):
        assert world.post(route, **body)["usage"]["completion_tokens"] == 5
        assert world.post(route, **body, max_tokens=7)["usage"]["completion_tokens"] == 7
    assert world.post(COMPLETIONS, prompt="a")["choices"][0]["text"] == "bcdef"
    texts = {world.post(COMPLETIONS, prompt="a", top_k=0, max_tokens=30)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_priorities_are_taken_where_the_policy_says_so(make_world: Any) -> None:
    world: World = make_world(takes_priority=True)
    assert world.post(COMPLETIONS, prompt="a", priority=-5, max_tokens=1)
    status, reply = world.raw(COMPLETIONS, prompt="a", priority=2**40)
    assert status == 400 and reply["error"]["param"] == "priority"


def test_absurd_numbers_of_choices_are_refused_at_once(world: World) -> None:
    """A thousand million sequences would outlast the client's patience on any machine."""
    for n in (10**5, 10**9):
        assert world.raw(COMPLETIONS, prompt="a", n=n)[0] == 400
        assert world.raw(CHAT, messages=USER, n=n)[0] == 400
    assert world.raw(COMPLETIONS, prompt=["a"] * 10, n=128)[0] == 400


def test_every_reply_and_chunk_is_what_the_official_types_say(world: World) -> None:
    sampled: dict[str, Any] = {"temperature": 1, "seed": 1, "max_tokens": 8, "n": 2}
    for extra in ({}, {"logprobs": 3}, {"echo": True}, {"return_token_ids": True}):
        strict(Completion, world.post(COMPLETIONS, prompt=["a", "b"], **sampled, **extra))
        for chunk in chunks(world.stream(COMPLETIONS, prompt="a", **sampled, **extra)):
            # The type has no null here, the protocol does, until the last chunk of a choice.
            for choice in chunk["choices"]:
                assert choice["finish_reason"] in (None, "stop", "length")
                choice["finish_reason"] = "stop"
            strict(Completion, chunk)
    for extra in ({}, {"logprobs": True, "top_logprobs": 2}, {"echo": True}, {"return_token_ids": True}):
        strict(ChatCompletion, world.post(CHAT, messages=USER, **sampled, **extra))
        options = {"include_usage": True, "continuous_usage_stats": True}
        for chunk in chunks(world.stream(CHAT, messages=USER, stream_options=options, **sampled, **extra)):
            strict(ChatCompletionChunk, chunk)
    for card in world.get("/v1/models").json()["data"]:
        strict(Model, card)


def test_the_official_client_knows_our_errors(world: World) -> None:
    with openai.OpenAI(base_url=world.url + "/v1", api_key="EMPTY", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as wrong:
            client.completions.create(model="small", prompt="a", temperature=-1)
        assert wrong.value.param == "temperature"
        with pytest.raises(openai.NotFoundError) as unknown:
            client.completions.create(model="nope", prompt="a")
        assert "nope" in unknown.value.message


def test_the_official_async_client_streams_64_at_once(world: World) -> None:
    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=world.url + "/v1", api_key="EMPTY") as client:

            async def one(number: int) -> str:
                stream = await client.completions.create(
                    model="small", prompt="abc"[number % 3], max_tokens=10, stream=True, seed=number
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one(number) for number in range(64)))

    texts = asyncio.run(all_of_them())
    assert texts == [world.cycle_text[n % 3 + 1 : n % 3 + 11] for n in range(64)]


def test_company_changes_nothing(world: World) -> None:
    """Seeded requests alone, all at once and in another order give the same texts."""
    bodies = [{"prompt": "abc"[i % 3] * (i + 1), "temperature": 1.0, "seed": i, "max_tokens": 20} for i in range(32)]

    def ask(body: dict[str, Any]) -> str:
        return str(world.post(COMPLETIONS, **body)["choices"][0]["text"])

    alone = [ask(body) for body in bodies]

    async def together(order: list[int]) -> dict[int, str]:
        async with httpx.AsyncClient(base_url=world.url, timeout=60) as client:
            replies = await asyncio.gather(*(client.post(COMPLETIONS, json=bodies[i]) for i in order))
        return {i: reply.json()["choices"][0]["text"] for i, reply in zip(order, replies, strict=True)}

    order = list(range(32))
    for _ in range(2):
        found = asyncio.run(together(order))
        assert [found[i] for i in range(32)] == alone
        random.Random(1).shuffle(order)


def resources() -> tuple[int, int, int]:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, threading.active_count(), len(os.listdir("/proc/self/fd"))


def mixed(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Small requests of every kind: finished, stopped, refused, with logprobs, several choices."""
    for i in range(count):
        match i % 6:
            case 0:
                yield COMPLETIONS, {"prompt": "a" * (i % 50 + 1), "max_tokens": 3}
            case 1:
                yield COMPLETIONS, {"prompt": "6", "max_tokens": 9, "logprobs": 2}
            case 2:
                yield CHAT, {"messages": USER, "max_tokens": 3, "n": 2, "logprobs": True}
            case 3:
                yield CHAT, {"messages": USER, "stop": "cd", "max_tokens": 30}
            case 4:
                yield COMPLETIONS, {"prompt": "a", "temperature": -1}
            case _:
                yield COMPLETIONS, {"prompt": "a" * 3000}


def test_nothing_grows_over_many_requests(make_world: Any) -> None:
    """Memory, threads and open files stay where they were."""
    world: World = make_world()

    def run(count: int) -> None:
        for number, (route, body) in enumerate(mixed(count)):
            status, _ = world.raw(route, **body)
            assert status == (400 if number % 6 > 3 else 200)
            if number % 50 == 0:  # one that leaves
                with world.client.stream("POST", COMPLETIONS, json={"prompt": "a", "stream": True, "max_tokens": 900}):
                    pass

    run(150)
    before = resources()
    run(300)
    world.probe()
    after = resources()
    assert after[0] - before[0] < 20 << 20
    assert after[1] <= before[1] + 1 and after[2] <= before[2] + 2
