"""`octavo serve` as a process of its own, as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

START_SECONDS = 120


class RealServer:
    """A started server and a client for it; `close` ends it and gives its status."""

    def __init__(self, log: Path, *options: str, port: int = 0, command: tuple[str, ...] = ("serve",)) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "octavo", *command, "--port", str(port), *options], stdout=file, stderr=file
            )
        try:
            self.url = self._address()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def _address(self) -> str:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if "Listening on " in line:
                    return line.split()[-1]
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.log.read_text()}")

    def raw(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        response = self.client.post(path, json=body)
        return response.status_code, response.json()

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        status, reply = self.raw(path, **body)
        assert status == 200, reply
        return reply

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        text = self.client.get("/metrics").text
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == f"octavo:{name}" and labels.items() <= sample.labels.items()
        )

    def is_idle(self) -> bool:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return all(self.metric(name) == 0 for name in names)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def close(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        self.client.close()
        try:
            return self.ended()
        finally:
            self.process.kill()
