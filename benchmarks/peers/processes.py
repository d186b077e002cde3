"""Workers and servers as child processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
START_SECONDS = 300


def environment_of(adapter: str) -> dict[str, str]:
    """A peer's interpreter finds its packages by itself; octavo's may have been told where octavo is."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return dict(os.environ) if adapter == "octavo" else kept


class Worker:
    """An adapter on its interpreter; a call is a line to it and a line back."""

    def __init__(self, adapter: str, python: str):
        self.adapter = adapter
        self.process = subprocess.Popen(
            [python, "-m", f"benchmarks.peers.{adapter}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=environment_of(adapter),
        )

    def call(self, do: str, **message: Any) -> dict[str, Any]:
        assert self.process.stdin and self.process.stdout
        try:
            self.process.stdin.write(json.dumps({"do": do, **message}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise SystemExit(f"The worker of {self.adapter} ended while asked to {do}; what it said stands above.")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        end(self.process)


@dataclass
class Command:
    argv: list[str]
    environment: dict[str, str]
    port: int


def server_command(adapter: str, python: str, settings: dict[str, Any]) -> Command:
    """How the engine serves the model on a port that is free now; without argv where it has no server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with Worker(adapter, python) as worker:
        reply = worker.call("server", port=port, **settings)
    return Command(reply["command"], environment_of(adapter) | reply["environment"], port)


class Server:
    def __init__(self, command: Command):
        self.port = command.port
        out = subprocess.DEVNULL
        self.process = subprocess.Popen(command.argv, stdout=out, stderr=out, env=command.environment)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.terminate()
        end(self.process)


def end(process: subprocess.Popen[Any]) -> None:
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
