"""Requests to a server with OpenAI's completions, a number of streams at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .worker import Clock, Request


def wait_until_ready(port: int, alive: Callable[[], bool], seconds: float) -> str:
    """The name of the served model."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive():
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v1/models")
            response = connection.getresponse()
            if response.status == 200:
                name: str = json.loads(response.read())["data"][0]["id"]
                return name
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.2)
    raise SystemExit("A server did not start.")


def run(port: int, model: str, requests: list[Request], streams: int) -> tuple[Clock, float]:
    """When tokens came, from the moment that a stream took the request; and the seconds of all."""
    clock = Clock(len(requests))

    def one(index: int) -> None:
        start = time.perf_counter() - clock.start
        request = requests[index]
        body = {"model": model, "prompt": request.prompt, "max_tokens": request.output, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"The server answers {response.status}: {response.read(1000)!r}")
        count = 0
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if event.get("choices"):
                clock.tick(index)
            if event.get("usage"):
                count = event["usage"]["completion_tokens"]
        connection.close()
        first, last, events = clock.entries[index]
        clock.entries[index] = [first - start, last - start, count or events]

    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(one, range(len(requests))))
    return clock, time.perf_counter() - clock.start
