"""Every program in examples/ runs as a user would run it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).parent / name) for name in ("model", "server"))

import tiny
from real_server import RealServer

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tiny.write_checkpoint("llama", tmp_path_factory.mktemp("model") / "tiny")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2048}))
    return path


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    running = RealServer(tmp_path_factory.mktemp("server") / "log", str(model), "--threads", "1")
    yield running
    assert running.close() == 0


def run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    done = subprocess.run(command, capture_output=True, timeout=250)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


def test_none_is_left_out() -> None:
    here = Path(__file__).read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}"' in here, f"{path.name} is not tested"


def test_offline(model: Path) -> None:
    shown = run("offline.py", str(model))
    assert shown.count(" -> ") == 3 and "'Hello, my name is' -> " in shown


def test_chat(model: Path) -> None:
    shown = run("chat.py", str(model))
    assert shown.count("\n> ") + shown.startswith("> ") == 2
    assert " 0 of them cached" in shown and shown.count(" of them cached") == 2


def test_async_streaming(model: Path) -> None:
    shown = run("async_streaming.py", str(model))
    for name in ("first", "second"):
        assert f"{name}: finished by " in shown


def test_openai_client(server: RealServer) -> None:
    shown = run("openai_client.py", server.url + "/v1")
    assert "prompt tokens, " in shown and " generated)" in shown


def test_structured_output(server: RealServer) -> None:
    shown = run("structured_output.py", server.url + "/v1")
    assert "parsed: city=" in shown and "schema: {" in shown
    assert re.search(r"^choice: (rain|sun)$", shown, re.MULTILINE)
    assert re.search(r"^regex: -?\d{1,2} (C|F)$", shown, re.MULTILINE)
    assert re.search(r"^grammar: It (rains|snows) in [A-Z][a-z]{1,15}\.$", shown, re.MULTILINE)


def test_tool_calls(server: RealServer) -> None:
    first, *_ = run("tool_calls.py", server.url + "/v1").splitlines()
    name, _, rest = first.partition("(")
    arguments, _, result = rest.rpartition(") = ")
    assert name == "temperature"
    assert result == {"Lima": "19", "Oslo": "-3", "Quito": "15"}[json.loads(arguments)["city"]]
