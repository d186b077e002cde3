"""What the workers have in common: an engine in a process of its own, told what to do by JSON lines on stdin.

    {"do": "load", "model": "x.gguf", "threads": 2, "options": {}}    {"engine": "octavo 0.1", "vocab": 49152}
    {"do": "run", "requests": [{"prompt": [5, 9], "output": 8}], "shared": 0}
                                                                      {"seconds": 1.5, "requests": [[0.1, 1.4, 8]]}
    {"do": "server", "model": "x.gguf", "threads": 2, "port": 8100, "options": {}}
                                                                      {"command": ["python", ...], "environment": {}}

A run gives all requests to the engine at once, greedy and with EOS ignored; its reply has when the first and the last
token of each came, in seconds from the start, and how many. Only the standard library: each worker runs on its peer's
interpreter.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class Request:
    prompt: list[int]
    output: int  # tokens to generate


class Clock:
    """When tokens of each request came: a list [first, last, count] for each."""

    def __init__(self, requests: int):
        self.start = time.perf_counter()
        self.entries: list[list[float]] = [[0.0, 0.0, 0] for _ in range(requests)]

    def tick(self, index: int, tokens: int = 1) -> None:
        entry, now = self.entries[index], time.perf_counter() - self.start
        if not entry[2]:
            entry[0] = now
        entry[1] = now
        entry[2] += tokens


class Engine:
    """What an adapter fills in. `options` are the `--option` and `--octavo-option` flags: strings by name."""

    environment: ClassVar[dict[str, str]] = {}  # of the process of its server

    def __init__(self, model: str, threads: int, options: dict[str, str]):
        raise NotImplementedError

    name: str  # with the version
    vocab: int  # 0: not known

    def run(self, requests: list[Request], shared: int, clock: Clock) -> None:
        """Runs all requests at once. The first `shared` tokens of their prompts are the same: for engines that must be
        told.
        """
        raise NotImplementedError

    @classmethod
    def server(cls, model: str, threads: int, port: int, options: dict[str, str]) -> list[str]:
        """The command that serves /v1/completions on 127.0.0.1:port; empty where the peer has no server."""
        return []


def work(adapter: type[Engine]) -> None:
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not a reply
    engine: Engine | None = None
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        what = message.pop("do")
        if what == "load":
            engine = adapter(**message)
            reply: dict[str, Any] = {"engine": engine.name, "vocab": engine.vocab}
        elif what == "run" and engine is not None:
            requests = [Request(**request) for request in message["requests"]]
            clock = Clock(len(requests))
            engine.run(requests, message["shared"], clock)
            reply = {"seconds": time.perf_counter() - clock.start, "requests": clock.entries}
        else:
            reply = {"command": adapter.server(**message), "environment": adapter.environment}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
