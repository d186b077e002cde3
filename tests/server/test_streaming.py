"""Streams as bytes on a socket, and what happens when nobody reads them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import closing
from typing import Any

import httpx
import pytest
from server_world import World, chunks, events, post_bytes, wait_until

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


def open_stream(world: World, **body: Any) -> socket.socket:
    """A raw connection on which a stream has begun."""
    connection = socket.socket()
    # A small buffer, so that one who does not read is noticed after less than all that there is to send.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
    connection.connect(("127.0.0.1", world.port))
    connection.sendall(post_bytes(COMPLETIONS, {"prompt": "a", "stream": True, "max_tokens": 900, **body}))
    assert connection.recv(15).startswith(b"HTTP/1.1 200")
    return connection


@pytest.mark.parametrize(("route", "body"), [(COMPLETIONS, {"prompt": "E"}), (CHAT, {"messages": USER})])
def test_the_bytes_of_a_stream(world: World, route: str, body: dict[str, Any]) -> None:
    """Content with quotes, a line feed, an emoji and a line separator: a strict JSON object a line, and an end mark."""
    with world.client.stream("POST", route, json={**body, "stream": True, "max_tokens": 40}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(response.iter_bytes())
    assert raw.endswith(b"data: [DONE]\n\n")
    blocks = raw.split(b"\n\n")
    assert blocks.pop() == b""
    texts = ""
    for block in blocks[:-1]:
        assert block.startswith(b"data: {")
        # No client sees a line break within an event, whichever characters it takes for one.
        assert len(block.decode().splitlines()) == 1
        chunk = json.loads(block[6:], parse_constant=lambda name: pytest.fail(name))
        choice = chunk["choices"][0]
        texts += choice.get("text") or choice.get("delta", {}).get("content") or ""
    assert '"é😀\u2028a' in texts


def test_a_faulty_request_is_json_and_no_stream(world: World) -> None:
    response = world.client.post(COMPLETIONS, json={"prompt": "a", "stream": True, "temperature": -1})
    assert response.status_code == 400 and response.headers["content-type"] == "application/json"


def test_closing_the_socket_frees_the_blocks_at_once(slow_world: World) -> None:
    """A parallel request is not touched by it."""
    world = slow_world
    alone = world.post(COMPLETIONS, prompt="m", max_tokens=30)["choices"][0]["text"]
    aborted = world.metric("request_success_total", finished_reason="abort")
    connection = open_stream(world)
    connection.recv(2000)
    results: list[str] = []
    other = threading.Thread(
        target=lambda: results.append(world.post(COMPLETIONS, prompt="m", max_tokens=30)["choices"][0]["text"])
    )
    other.start()
    wait_until(lambda: world.running() >= 1)
    connection.close()
    other.join()
    wait_until(world.is_idle)
    assert world.metric("request_success_total", finished_reason="abort") == aborted + 1
    assert results == [alone]
    world.probe()


def test_a_client_that_leaves_a_whole_reply_ends_it_too(slow_world: World) -> None:
    world = slow_world
    aborted = world.metric("request_success_total", finished_reason="abort")
    connection = socket.create_connection(("127.0.0.1", world.port))
    connection.sendall(post_bytes(COMPLETIONS, {"prompt": "a", "max_tokens": 900}))
    wait_until(lambda: world.running() == 1)
    connection.close()
    wait_until(world.is_idle)
    assert world.metric("request_success_total", finished_reason="abort") == aborted + 1
    world.probe()


def test_one_that_waits_and_leaves_takes_nothing_with_it(make_world: Any) -> None:
    """With room for one sequence: the queued client leaves, the running one is served to its end."""
    world = make_world(max_num_seqs=1, step_seconds=0.005)
    alone = world.post(COMPLETIONS, prompt="m", max_tokens=60)["choices"][0]["text"]
    results: list[str] = []
    running = threading.Thread(
        target=lambda: results.append(world.post(COMPLETIONS, prompt="m", max_tokens=60)["choices"][0]["text"])
    )
    running.start()
    wait_until(lambda: world.running() == 1)
    queued = socket.create_connection(("127.0.0.1", world.port))
    queued.sendall(post_bytes(COMPLETIONS, {"prompt": "a", "stream": True, "max_tokens": 500}))
    wait_until(lambda: world.waiting() == 1)
    queued.close()
    wait_until(lambda: world.waiting() == 0)
    running.join()
    assert results == [alone]
    world.probe()


def test_a_client_that_stops_reading_is_cut_and_others_go_on(make_world: Any) -> None:
    world = make_world(stall_timeout=0.5, max_model_len=20_000, num_blocks=6000, max_num_seqs=192)
    # Many choices with a long echo: megabytes at once, more than the buffers of a socket take.
    with closing(open_stream(world, prompt="a" * 16_000, echo=True, n=128, max_tokens=400)):
        for _ in range(3):
            assert world.post(COMPLETIONS, prompt="a", max_tokens=5)["choices"][0]["text"] == "bcdef"
        # The others may be done before the long prompt is tokenised.
        wait_until(lambda: world.metric("request_success_total", finished_reason="abort") == 128)
        wait_until(world.is_idle)
    world.probe()


def test_a_stream_that_fails_says_so_and_ends(make_world: Any) -> None:
    """A step that raises ends the requests of its batch with an error event; the engine goes on."""
    world = make_world(poison="q")
    raw = list(events(world.stream(COMPLETIONS, prompt="lm", max_tokens=20)))
    assert raw[-1] == "[DONE]"
    error = json.loads(raw[-2])["error"]
    assert error["code"] == 500 and "Traceback" not in error["message"]
    text = "".join(c["choices"][0]["text"] for c in chunks(raw[:-2]))
    assert text == "nopq"
    status, reply = world.raw(COMPLETIONS, prompt="lm", max_tokens=20)
    assert status == 500 and reply["error"]["type"] == "InternalServerError"
    world.probe()


def test_64_streams_at_once_are_each_as_if_alone(world: World) -> None:
    letters = "abcdefghijklmnop"

    async def one(client: httpx.AsyncClient, number: int) -> str:
        body = {"prompt": letters[number % 16] * (1 + number % 5), "max_tokens": 8 + number % 9, "stream": True}
        lines = []
        async with client.stream("POST", COMPLETIONS, json=body) as response:
            async for line in response.aiter_lines():
                lines.append(line)
        return "".join(c["choices"][0]["text"] for c in chunks(line[6:] for line in lines if line))

    async def all_of_them() -> list[str]:
        async with httpx.AsyncClient(base_url=world.url, timeout=60, limits=httpx.Limits(max_connections=64)) as client:
            return await asyncio.gather(*(one(client, number) for number in range(64)))

    cycle = world.cycle_text
    for number, text in enumerate(asyncio.run(all_of_them())):
        start = cycle.index(letters[number % 16]) + 1
        assert text == cycle[start : start + 8 + number % 9]
    world.probe()


def test_the_same_client_request_id_twice_is_no_clash(world: World) -> None:
    def ask(prompt: str) -> tuple[str, str]:
        response = world.client.post(
            COMPLETIONS,
            json={"prompt": prompt, "max_tokens": 20, "request_id": "same"},
            headers={"x-request-id": "same"},
        )
        return response.headers["x-request-id"], response.json()["choices"][0]["text"]

    results: dict[str, tuple[str, str]] = {}
    threads = [threading.Thread(target=lambda p=p: results.update({p: ask(p)})) for p in ("a", "f")]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    start = {p: world.cycle_text.index(p) + 1 for p in "af"}
    assert results == {p: ("same", world.cycle_text[start[p] : start[p] + 20]) for p in "af"}


def test_a_full_queue_answers_429_with_a_time_to_wait(make_world: Any) -> None:
    world = make_world(max_num_seqs=1, max_num_queued=2, step_seconds=0.01)
    holders = [open_stream(world)]
    holders += [socket.create_connection(("127.0.0.1", world.port)) for _ in range(2)]
    for holder in holders[1:]:
        holder.sendall(post_bytes(COMPLETIONS, {"prompt": "a", "stream": True, "max_tokens": 900}))
    wait_until(lambda: world.waiting() == 2)
    for stream in (False, True):
        response = world.client.post(COMPLETIONS, json={"prompt": "a", "stream": stream})
        assert response.status_code == 429 and int(response.headers["retry-after"]) >= 1
        assert response.json()["error"]["type"] == "RateLimitError"
    # Several prompts of which only some have room: none of them runs on.
    assert world.client.post(COMPLETIONS, json={"prompt": ["a"] * 8}).status_code == 429
    for holder in holders:
        holder.close()
    wait_until(world.is_idle)
    world.probe()
