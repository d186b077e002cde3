"""Keys, users, deadlines and a full queue, as clients meet them on a socket."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from server_world import World, wait_until

from octavo.cli import main
from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server.auth import read_keys

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
KEYS = """
# Two who share the machine.
[[keys]]
key = "sk-interactive-1"
name = "interactive"
weight = 3

[[keys]]
key = "sk-batch-2"
name = "batch"
priority_ceiling = 5
"""


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "keys.toml"
    path.write_text(KEYS)
    return str(path)


async def together(world: World, calls: list[tuple[dict[str, str], dict[str, Any]]], first: int) -> list[int]:
    """The order in which calls end. Those after the `first` ones come last, and the first step waits for all."""
    ends: list[int] = []
    engine, gate = world.service.engine, threading.Event()
    runner = engine._engine.runner
    launch = runner.launch

    def gated(batch: Any) -> Any:
        assert gate.wait(60)
        return launch(batch)

    async def until_there(count: int) -> None:
        while engine.num_live < count:
            await asyncio.sleep(0.005)

    async with httpx.AsyncClient(base_url=world.url, timeout=60, limits=httpx.Limits(max_connections=100)) as client:

        async def call(number: int) -> None:
            headers, body = calls[number]
            response = await client.post(COMPLETIONS, json=body, headers=headers)
            assert response.status_code == 200, response.text
            ends.append(number)

        runner.launch = gated  # type: ignore[method-assign]
        tasks = [asyncio.ensure_future(call(number)) for number in range(first)]
        await until_there(first)
        tasks += [asyncio.ensure_future(call(number)) for number in range(first, len(calls))]
        await until_there(len(calls))
        gate.set()
        await asyncio.gather(*tasks)
    runner.launch = launch  # type: ignore[method-assign]
    return ends


def test_one_call_with_another_key_does_not_wait_for_sixty(make_world: Any, key_file: str) -> None:
    world: World = make_world(api_key_file=key_file, max_num_seqs=2, step_seconds=0.001)
    many = [(bearer("sk-batch-2"), {"prompt": "a", "max_tokens": 20})] * 60
    one = (bearer("sk-interactive-1"), {"prompt": "b", "max_tokens": 20})
    assert asyncio.run(together(world, [*many, one], 60)).index(60) <= 4
    assert asyncio.run(together(world, [*many, many[0]], 60)).index(60) > 50, "or this test would prove nothing"


def test_without_keys_users_share(make_world: Any) -> None:
    world: World = make_world(max_num_seqs=2, step_seconds=0.001)
    many = [({}, {"prompt": "a", "max_tokens": 20, "user": "busy"})] * 60
    one: tuple[dict[str, str], dict[str, Any]] = ({}, {"prompt": "b", "max_tokens": 20, "user": "another"})
    assert asyncio.run(together(world, [*many, one], 60)).index(60) <= 4


def test_a_user_takes_from_the_share_of_its_own_key(make_world: Any, key_file: str) -> None:
    """Sixty users of one key are no sixty tenants."""
    world: World = make_world(api_key_file=key_file, max_num_seqs=1, step_seconds=0.001)
    many = [(bearer("sk-batch-2"), {"prompt": "a", "max_tokens": 10, "user": f"u{n}"}) for n in range(60)]
    few = [(bearer("sk-interactive-1"), {"prompt": "b", "max_tokens": 10, "user": "u0"})] * 6
    ends = asyncio.run(together(world, [*many, *few], 60))
    # By weight three go for each of the many.
    assert max(ends.index(number) for number in range(60, 66)) <= 10


def test_a_key_asks_for_priorities_up_to_its_ceiling(make_world: Any, key_file: str) -> None:
    world: World = make_world(api_key_file=key_file, takes_priority=True)
    for key, priority, status in (
        ("sk-batch-2", 4, 400),
        ("sk-batch-2", 0, 400),
        ("sk-batch-2", 5, 200),
        ("sk-batch-2", None, 200),
        ("sk-interactive-1", -9, 200),
    ):
        for path, body in ((COMPLETIONS, {"prompt": "a"}), (CHAT, {"messages": USER})):
            sent = {**body, "max_tokens": 1, "priority": priority}
            response = world.anonymous.post(path, json=sent, headers=bearer(key))
            assert response.status_code == status, response.text
            if status == 400:
                error = response.json()["error"]
                assert error["param"] == "priority" and "use 5 or more" in error["message"]


def test_keys_are_seen_nowhere(make_world: Any, key_file: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    world: World = make_world(api_key_file=key_file, api_key=("sk-flag-3",), enable_log_requests=True)
    shown = []
    for key in ("sk-interactive-1", "sk-batch-2", "sk-flag-3"):
        for path in ("/metrics", "/openapi.json", "/docs", "/v1/models", "/load"):
            shown.append(world.anonymous.get(path, headers=bearer(key)).text)
        for body in ({"prompt": "a", "user": key}, {"prompt": "a", "priority": 1}):
            shown.append(world.anonymous.post(COMPLETIONS, json=body, headers=bearer(key)).text)
    assert all(world.anonymous.get(path).status_code == 401 for path in ("/metrics", "/openapi.json", COMPLETIONS))
    assert len(caplog.text) > 100 and "sk-" not in caplog.text + "".join(shown)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        ("key = ", "not TOML"),
        ("", r"\[\[keys\]\]"),
        ("[keys]\nkey = 'sk-x'", r"\[\[keys\]\]"),
        ("keys = ['sk-x']", "table"),
        ("[[keys]]\nname = 'a'", "key must"),
        ("[[keys]]\nkey = ' sk-x'\nname = 'a'", "key must"),
        ("[[keys]]\nkey = 'sk-x'", "name must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'my sk-x'", "name must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\nweight = 0", "weight must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\nweight = nan", "weight must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\nweight = true", "weight must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\npriority_ceiling = 1.5", "priority_ceiling must"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\nsk-x = 1", "nothing else"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\n[[keys]]\nkey = 'sk-y'\nname = 'a'", "number 2.*'a' is taken"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'a'\n[[keys]]\nkey = 'sk-x'\nname = 'b'", "number 2.*given before"),
        ("[[keys]]\nkey = 'sk-flag'\nname = 'a'", "given before"),
        ("[[keys]]\nkey = 'sk-x'\nname = 'api-key-1'", "is taken"),
    ],
)
def test_a_key_file_that_is_wrong_stops_the_start(tmp_path: Path, content: str | None, says: str) -> None:
    path = tmp_path / "keys.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=says) as caught:
        read_keys(ServerConfig(api_key_file=path, api_key=("sk-flag",)))
    assert str(path) in str(caught.value) and "sk-" not in str(caught.value).replace(str(path), "")


def test_a_ceiling_without_priorities_stops_the_start(key_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["serve", "--api-key-file", key_file]) == main.WRONG_USE
    assert "'batch'" in (said := capsys.readouterr().err) and "--scheduling-policy priority" in said


@pytest.mark.parametrize("body", [{"prompt": "a"}, {"messages": USER}])
def test_a_timeout_ends_a_running_request(slow_world: World, body: dict[str, Any]) -> None:
    world, path = slow_world, COMPLETIONS if "prompt" in body else CHAT
    ended = world.metric("request_success_total", finished_reason="timeout")
    started = time.monotonic()
    response = world.client.post(path, json={**body, "max_tokens": 900, "timeout": 0.9})
    assert time.monotonic() - started >= 0.9
    error = response.json()["error"]
    assert response.status_code == error["code"] == 504 and error["type"] == "TimeoutError"
    assert "0.9 seconds while it ran" in error["message"] and error["param"] == "timeout"
    wait_until(world.is_idle)
    lines = list(world.stream(path, **body, max_tokens=900, timeout=0.9))
    data = [line.removeprefix("data: ") for line in lines if line]
    assert data[-1] == "[DONE]" and json.loads(data[-2])["error"]["code"] == 504
    assert len(data) > 5 and all("error" not in json.loads(chunk) for chunk in data[:-2])
    wait_until(world.is_idle)
    assert world.metric("request_success_total", finished_reason="timeout") == ended + 2
    world.probe()


@pytest.mark.parametrize("stream", [True, False])
def test_a_timeout_ends_a_request_that_waits(make_world: Any, stream: bool) -> None:
    world: World = make_world(max_num_seqs=1, step_seconds=0.005)
    with world.client.stream("POST", COMPLETIONS, json={"prompt": "a", "stream": True, "max_tokens": 900}) as holder:
        lines = holder.iter_lines()  # dropped, it would close the stream
        next(lines)
        response = world.anonymous.post(COMPLETIONS, json={"prompt": "a", "timeout": 0.1, "stream": stream})
        assert response.status_code == (200 if stream else 504)
        assert "0.1 seconds while it waited for its turn" in response.text
        assert world.running() == 1 and world.waiting() == 0
    world.probe()


def test_the_server_has_a_timeout_for_requests_that_bring_none(make_world: Any) -> None:
    world: World = make_world(step_seconds=0.005, request_timeout=0.2)
    assert world.raw(COMPLETIONS, prompt="a", max_tokens=900)[0] == 504
    assert world.post(COMPLETIONS, prompt="a", max_tokens=80, timeout=20)["usage"]["completion_tokens"] == 80
    for wrong in (0, -1, "5", True, 1e400):
        content = json.dumps({"prompt": "a", "timeout": wrong}).encode()
        status, reply = world.send(COMPLETIONS, content)
        assert status == 400 and (reply["error"]["param"] == "timeout" or wrong == 1e400)


def test_the_official_client_does_not_repeat_what_timed_out(slow_world: World) -> None:
    steps = slow_world.metric("request_success_total", finished_reason="timeout")
    with (
        openai.OpenAI(base_url=slow_world.url + "/v1", api_key="EMPTY", max_retries=3) as client,
        pytest.raises(openai.InternalServerError, match=r"timeout of 0\.1"),
    ):
        client.completions.create(model="small", prompt="a", max_tokens=900, extra_body={"timeout": 0.1})
    assert slow_world.metric("request_success_total", finished_reason="timeout") == steps + 1


def test_a_full_queue_says_when_to_come_back(make_world: Any) -> None:
    """In whole seconds, more of them the more requests wait, by what requests have taken so far."""
    world: World = make_world(max_num_seqs=1, max_num_queued_tokens=120, step_seconds=0.005)
    for _ in range(4):
        world.post(COMPLETIONS, prompt="a", max_tokens=30)

    async def refused(prompts: list[str]) -> int:
        """Retry-After where these wait."""
        async with httpx.AsyncClient(base_url=world.url, timeout=60) as client:
            body = {"max_tokens": 900}
            held = [asyncio.ensure_future(client.post(COMPLETIONS, json={"prompt": p, **body})) for p in prompts]
            while world.running() + world.waiting() < len(prompts):
                await asyncio.sleep(0.002)
            response = await client.post(COMPLETIONS, json={"prompt": "b" * 100})
            for one in held:
                one.cancel()
            await asyncio.gather(*held, return_exceptions=True)
        assert response.status_code == 429 and "wait" in response.json()["error"]["message"]
        return int(response.headers["retry-after"])

    few, many = (asyncio.run(refused(["a", *["c" * (110 // n)] * n])) for n in (2, 40))
    assert 1 <= few < many <= 60
    wait_until(world.is_idle)
    assert world.metric("num_requests_rejected_total") == 2 and world.metric("num_tokens_waiting") == 0
    assert world.post(COMPLETIONS, prompt="b" * 100, max_tokens=1)
    world.probe()
