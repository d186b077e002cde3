"""What operators rely on: counters that add up, health that is true, and an orderly end of the process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_world import World, small_service, wait_until

from octavo.config import ServerConfig
from octavo.errors import ConfigError
from octavo.server import run as life
from octavo.server.context import ServerContext
from octavo.server.run import bind, serve

URL = "/v1/completions"


def test_counters_add_up(make_world: Any) -> None:
    """Four that stop, three by length, two aborted, one refused, one with n = 3, of which each sequence counts."""
    world: World = make_world(step_seconds=0.003)
    usages = [world.post(URL, prompt="6", max_tokens=20)["usage"] for _ in range(4)]
    usages += [world.post(URL, prompt="a", max_tokens=5)["usage"] for _ in range(3)]
    usages += [world.post(URL, prompt="a", max_tokens=5, n=3)["usage"]]
    for _ in range(2):
        with world.client.stream("POST", URL, json={"prompt": "a", "stream": True, "max_tokens": 900}) as response:
            next(response.iter_lines())
        wait_until(world.is_idle)
    assert world.raw(URL, prompt="a", temperature=-1)[0] == 400
    finished = {
        r: world.metric("request_success_total", finished_reason=r) for r in ("stop", "length", "abort", "error")
    }
    assert finished == {"stop": 4, "length": 6, "abort": 2, "error": 0}
    assert world.metric("prompt_tokens_total") == sum(u["prompt_tokens"] for u in usages) + 2
    generated = sum(u["completion_tokens"] for u in usages)
    assert generated < world.metric("generation_tokens_total") <= generated + 2 * 900
    assert world.metric("time_to_first_token_seconds_count") == len(usages) + 2


def test_metrics_are_read_by_prometheus_own_parser(world: World) -> None:
    response = world.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(response.text)}
    kinds = {
        "gauge": ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
        "counter": ("prompt_tokens", "generation_tokens", "request_success", "num_preemptions", "prefix_cache_hits"),
        "histogram": ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds"),
    }
    for kind, names in kinds.items():
        for name in names:
            assert families[f"octavo:{name}"].type == kind
    for family in families.values():
        if family.type == "histogram":
            counts = [sample.value for sample in family.samples if sample.name.endswith("_bucket")]
            (count,) = [sample.value for sample in family.samples if sample.name.endswith("_count")]
            assert counts == sorted(counts) and counts[-1] == count


def test_small_routes(world: World) -> None:
    assert world.get("/version").json()["version"]
    assert world.get("/load").json() == {"server_load": 0}
    assert world.client.post("/ping").status_code == 200


def test_the_prefix_cache_is_counted_and_reset_where_that_is_allowed(make_world: Any) -> None:
    world: World = make_world(enable_dev_mode=True)
    prompt = "a" * 100  # a token each, after BOS perhaps: six blocks
    length = world.post(URL, prompt=prompt, max_tokens=1)["usage"]["prompt_tokens"]
    assert world.post(URL, prompt=prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 96
    counts = {
        name: world.metric(f"prefix_cache_{name}_total") for name in ("queries", "hits", "query_blocks", "hit_blocks")
    }
    assert counts == {"queries": 2 * length, "hits": 96, "query_blocks": 2 * (length // 16), "hit_blocks": 6}
    assert world.client.post("/reset_prefix_cache").status_code == 200
    assert world.post(URL, prompt=prompt, max_tokens=1)["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert make_world().client.post("/reset_prefix_cache").status_code == 404


def test_evictions_are_counted(make_world: Any) -> None:
    world: World = make_world(num_blocks=16, max_model_len=256)
    for letter in "abcd":
        world.post(URL, prompt=letter * 100, max_tokens=1)
    evicted = world.metric("prefix_cache_evicted_blocks_total")
    assert evicted >= 4 * 6 - 16 and world.metric("prefix_cache_evicted_tokens_total") == 16 * evicted


def test_load_counts_calls_in_progress(slow_world: World) -> None:
    with slow_world.client.stream("POST", URL, json={"prompt": "a", "stream": True, "max_tokens": 500}) as response:
        lines = response.iter_lines()
        next(lines)
        assert slow_world.anonymous.get("/load").json() == {"server_load": 1}
    wait_until(lambda: slow_world.anonymous.get("/load").json() == {"server_load": 0})


def test_prompts_of_ten_megabytes_hold_nobody_up(make_world: Any) -> None:
    world: World = make_world()
    big = b'{"prompt": "' + b"lorem ipsum " * 80_000 + b'"}'
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(world.send(URL, big)[0])) for _ in range(12)]
    for thread in threads:
        thread.start()
    slowest, began = 0.0, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        start = time.monotonic()
        assert world.anonymous.get("/health").status_code == 200
        slowest = max(slowest, time.monotonic() - start)
    # One body may take the machine a while; all of them, one after the other on the loop, would be the whole time.
    assert statuses == [400] * 12 and slowest < max(1, (time.monotonic() - began) / 3)


def test_a_port_in_use_is_named() -> None:
    with bind("127.0.0.1", 0) as held:  # does not listen yet: a server that loads its model
        port = held.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            bind("127.0.0.1", port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        held.listen()
        with pytest.raises(ConfigError, match=str(port)):
            bind("127.0.0.1", port)
    with pytest.raises(ConfigError, match="host"):
        bind("no-such-host.invalid", 0)


def test_the_default_listens_to_this_machine_only() -> None:
    assert ServerConfig().host == "127.0.0.1"


@contextmanager
def process(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in a process of its own, and its address."""
    script = Path(__file__).with_name("small_server.py")
    running = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert running.stdout is not None
        for line in running.stdout:
            if "Listening on " in line:
                yield running, line.split()[-1]
                break
        else:
            pytest.fail("the server did not start")
    finally:
        running.kill()
        running.communicate()


def ended(running: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = running.communicate(timeout=100)
    return running.returncode, output


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_with_status_0(tmp_path: Path, how: signal.Signals) -> None:
    with process(tmp_path, "--shutdown-timeout", "600") as (running, url):
        assert httpx.get(url + "/health").status_code == 200
        running.send_signal(how)
        status, output = ended(running)
        assert status == 0 and "Traceback" not in output


def read_stream(url: str, body: dict[str, Any], lines: list[str]) -> None:
    with httpx.stream("POST", url + URL, json={**body, "stream": True}, timeout=30) as response:
        lines.extend(line for line in response.iter_lines() if line)


def wait_for_a_line(lines: list[str]) -> None:
    deadline = time.monotonic() + 30
    while not lines and time.monotonic() < deadline:
        time.sleep(0.02)


def test_a_busy_server_lets_streams_finish(tmp_path: Path) -> None:
    with process(tmp_path, "--step-seconds", "0.01", "--shutdown-timeout", "90") as (running, url):
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(url, {"prompt": "a", "max_tokens": 100}, lines))
        reader.start()
        wait_for_a_line(lines)
        running.send_signal(signal.SIGTERM)
        reader.join()
        assert ended(running)[0] == 0
        assert lines[-1] == "data: [DONE]" and '"finish_reason":"length"' in lines[-2]


def test_past_the_timeout_streams_end_with_an_error_event(tmp_path: Path) -> None:
    with process(tmp_path, "--step-seconds", "0.05", "--shutdown-timeout", "0.3") as (running, url):
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(url, {"prompt": "a", "max_tokens": 900}, lines))
        reader.start()
        wait_for_a_line(lines)
        running.send_signal(signal.SIGTERM)
        reader.join()
        status, output = ended(running)
        assert status == 0 and "Traceback" not in output
        assert lines[-1] == "data: [DONE]" and "error" in lines[-2] and "503" in lines[-2]


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with process(tmp_path, "--step-seconds", "0.2", "--shutdown-timeout", "600") as (running, url):
        lines: list[str] = []
        reader = threading.Thread(target=lambda: _ignore(read_stream, url, {"prompt": "a", "max_tokens": 900}, lines))
        reader.start()
        wait_for_a_line(lines)
        running.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        status, _ = ended(running)
        reader.join()
        assert status == 0  # sooner than the stream would have ended, which takes three minutes


def _ignore(function: Any, *args: Any) -> None:
    with suppress(httpx.HTTPError):
        function(*args)


def test_a_dead_engine_is_told_to_clients_and_ends_the_process(tmp_path: Path) -> None:
    with process(tmp_path, "--die-at-step", "20", "--step-seconds", "0.01") as (running, url):
        lines: list[str] = []
        read_stream(url, {"prompt": "a", "max_tokens": 900}, lines)
        assert lines[-1] == "data: [DONE]" and "error" in lines[-2]
        status, _ = ended(running)
        assert status == 1
        with pytest.raises(httpx.ConnectError):
            httpx.get(url + "/health")


def test_only_the_api_port_listens(tmp_path: Path) -> None:
    with process(tmp_path) as (running, url):
        inodes = {os.readlink(link) for link in Path(f"/proc/{running.pid}/fd").iterdir() if link.is_symlink()}
        listening = []
        for table in ("tcp", "tcp6", "udp"):
            for line in Path(f"/proc/{running.pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if f"socket:[{fields[9]}]" in inodes and (table == "udp" or fields[3] == "0A"):
                    listening.append(fields[1])
        port = int(url.rsplit(":", 1)[1])
        assert listening == [f"0100007F:{port:04X}"]


def test_a_server_that_cannot_be_made_closes_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its thread would keep weights and cache, and the process."""
    service, _ = small_service(tmp_path)

    def fail(context: ServerContext) -> None:
        raise RuntimeError("no app")

    monkeypatch.setattr(life, "create_app", fail)
    with bind("127.0.0.1", 0) as bound, pytest.raises(RuntimeError, match="no app"):
        serve(service, ServerConfig(), bound)
    assert not service.engine.is_healthy()


def test_the_tokenizer_is_told_where_the_server_is_started_so(world: World, make_world: Any) -> None:
    """What lm-evaluation-harness needs to count tokens without the model's files."""
    told = make_world(enable_tokenizer_info_endpoint=True).get("/tokenizer_info").json()
    assert told["chat_template"] == world.tokenizer.chat_template and told["model_max_length"] == world.max_model_len
    (eos,) = world.post("/tokenize", prompt=told["eos_token"], add_special_tokens=False)["tokens"]
    assert {eos} == world.tokenizer.eos_token_ids
    world.get("/tokenizer_info", status=404)
