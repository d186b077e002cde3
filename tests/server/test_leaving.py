"""Clients that leave before their request has reached the engine, over real sockets: it is given up at once."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from server_world import World, post_bytes, wait_until

from octavo import AsyncLLM, SamplingParams, StructuredOutputsParams, _native
from octavo.runtime import grammar
from octavo.server.context import CONSTRAINED_THREADS, TEXT_THREADS

sys.path.append(str(Path(__file__).parents[1] / "model"))

import tiny

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


class Gate:
    """Holds up what is compiled, if it is slow, until it is opened; knows what was begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.open = threading.Event()
        self.was_opened = True
        compile_grammar = _native.compile_grammar

        def gated(vocabulary: Any, text: str, **limits: Any) -> Any:
            self.begun.append(text)
            if "slow" in text and not self.open.wait(60):
                self.was_opened = False
            return compile_grammar(vocabulary, text, **limits)

        monkeypatch.setattr(_native, "compile_grammar", gated)
        monkeypatch.setattr(grammar, "COMPILE_SECONDS", 60.0)


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[World, Gate]]:
    gate = Gate(monkeypatch)
    service = AsyncLLM(tiny.write_checkpoint("llama", tmp_path), threads=1, kv_cache_memory="4MiB")
    world = World(tmp_path, service=service)
    yield world, gate
    gate.open.set()
    world.close()


def sent(world: World, path: str, body: dict[str, Any]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", world.port), timeout=30)
    connection.sendall(post_bytes(path, body))
    return connection


def num_served(world: World) -> int:
    """Requests that the server has not done with."""
    return len(world.server.server_state.tasks)


def test_a_constraint_that_is_compiled_is_waited_for_by_those_who_stay(gated: tuple[World, Gate]) -> None:
    world, gate = gated
    fast = {"prompt": "hi", "structured_outputs": {"choice": ["fast"]}}
    assert world.post(COMPLETIONS, **fast)["choices"][0]["text"] == "fast"
    before = world.counts()
    shared = {"choice": ["slow 0"]}
    # All threads that compile are taken, and more wait for their turn than there are threads to wait.
    bodies = [{"choice": [f"slow {i}"]} for i in range(CONSTRAINED_THREADS + 3)]
    leaving = []
    for i, body in enumerate(bodies):
        asked: Any = {"structured_outputs": body, "stream": i % 2 == 0, "max_tokens": 9}
        route: Any = (COMPLETIONS, {"prompt": "hi"}) if i % 3 else (CHAT, {"messages": USER})
        leaving.append(sent(world, route[0], {**route[1], **asked}))
        begun = 1 + min(i + 1, grammar.COMPILE_THREADS)
        wait_until(lambda i=i, n=begun: num_served(world) == i + 1 and len(gate.begun) == n)  # type: ignore[misc]
    for connection in leaving[1:]:
        connection.close()
    wait_until(lambda: num_served(world) == 1)
    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(world.post, COMPLETIONS, prompt="hi", structured_outputs=shared)
        wait_until(lambda: num_served(world) == 2)
        leaving[0].close()
        wait_until(lambda: num_served(world) == 1)
        # The threads that waited are free, while the compiler is as busy as before.
        assert world.post(COMPLETIONS, **fast)["choices"][0]["text"] == "fast"
        assert not gate.open.is_set() and not patient.done()
        gate.open.set()
        assert patient.result(60)["choices"][0]["text"] == "slow 0"
    assert len(gate.begun) == 1 + grammar.COMPILE_THREADS  # what nobody waited for was not begun
    wait_until(world.is_idle)
    assert world.counts()[1] - before[1] == 2 * len(world.service.tokenizer.encode("hi"))  # of those who stayed
    world.post(COMPLETIONS, prompt="hi", structured_outputs=bodies[-1])


def test_who_awaits_no_longer_waits_no_longer(gated: tuple[World, Gate]) -> None:
    """The same of AsyncLLM, by the official way to leave there: cancelling the task."""
    world, gate = gated
    params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["slow"]))

    async def leave() -> None:
        async def ask() -> None:
            async for _ in world.service.generate("hi", params, "r"):
                pass

        asking = asyncio.create_task(ask())
        while not gate.begun:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(leave())  # it ends with the threads that were asked: before the compiler goes on, if they do not wait
    assert gate.was_opened and not gate.open.is_set()


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/v1/messages/count_tokens", "/tokenize"])
def test_text_that_is_tokenised_is_not_waited_for(
    make_world: Callable[..., World], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    begun: list[str] = []
    opened = threading.Event()
    name = "encode" if path in (COMPLETIONS, "/tokenize") else "apply_chat_template"
    tokenise = getattr(world.tokenizer, name)

    def gated(text: Any, **options: Any) -> Any:
        begun.append(text)
        assert opened.wait(60)
        return tokenise(text, **options)

    monkeypatch.setattr(world.tokenizer, name, gated)
    before = world.counts()
    body: dict[str, Any] = {"prompt": "abc"} if name == "encode" else {"messages": USER}
    leaving = []
    for i in range(TEXT_THREADS + 2):
        leaving.append(sent(world, path, body))
        wait_until(lambda i=i: num_served(world) == i + 1)  # type: ignore[misc]
    wait_until(lambda: len(begun) == TEXT_THREADS)
    for connection in leaving:
        connection.close()
    wait_until(lambda: num_served(world) == 0)
    assert not opened.is_set()
    opened.set()
    assert world.post("/tokenize", **body)["count"] > 0
    assert len(begun) == TEXT_THREADS + 1  # those whose turn had not come were not begun
    assert world.counts() == before and world.is_idle()
