"""Every program in examples/ runs as a user would run it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

sys.path.extend(str(Path(__file__).parent / name) for name in ("model", "server"))

import tiny
from real_server import RealServer

from example_runs import EXAMPLES, printed_by, run, told

# Their clients take more to install than all the rest: scripts/judge clients runs them.
OF_THE_JUDGE = Path(__file__).parent / "judges" / "check_clients.py"
WEATHER = r"Weather\(city=.*, sky='\w+', degrees=-?\d+\)"
TEMPERATURES = {"Lima": 19, "Oslo": -3, "Quito": 15}


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


def test_none_is_left_out() -> None:
    tests = Path(__file__).read_text() + OF_THE_JUDGE.read_text()
    for path in EXAMPLES.glob("*.py"):
        assert f'run("{path.name}"' in tests, f"{path.name} is not tested"
    for path in (*EXAMPLES.glob("*.sh"), *EXAMPLES.glob("node/*.mjs")):
        assert f'"{path.name}"' in tests, f"{path.name} is not tested"


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
    assert int(result) == TEMPERATURES[json.loads(arguments)["city"]]


def test_openai_async(server: RealServer) -> None:
    said = told(run("openai_async.py", server.url + "/v1"))
    topics = [name for name in said if name not in ("completions", "embeddings")]
    assert len(topics) == 3 and len(json.loads(said["embeddings"])) == 3
    for topic in topics:
        messages = [{"role": "user", "content": f"Tell me about {topic}."}]
        reply = server.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=40)
        assert said[topic] == repr(reply["choices"][0]["message"]["content"])


def test_langchain_client(server: RealServer) -> None:
    said = told(run("langchain_client.py", server.url + "/v1"))
    assert said["invoke"] == said["stream"] == said["ainvoke"] == said["astream"]
    assert said["usage"] == said["streamed usage"]
    assert said["completion"] == said["streamed completion"]
    city, degrees = re.fullmatch(r"temperature\((\w+)\) = (-?\d+)", said["tool"]).groups()
    assert TEMPERATURES[city] == int(degrees)
    assert all(re.fullmatch(WEATHER, said[method]) for method in ("json_schema", "function_calling"))
    assert said["embeddings"].endswith(" True")


def test_instructor_client(server: RealServer) -> None:
    said = told(run("instructor_client.py", server.url + "/v1"))
    assert set(said) == {"TOOLS", "JSON_SCHEMA", "partial"}
    assert all(re.fullmatch(f"(Partial)?{WEATHER}", value) for value in said.values())


def test_curl(server: RealServer) -> None:
    whole, *lines = printed_by(["bash", str(EXAMPLES / "curl.sh"), server.url + "/v1"]).splitlines()
    *chunks, end = [line.removeprefix("data: ") for line in lines if line]
    assert end == "[DONE]"
    reply, *pieces, last = (json.loads(text) for text in (whole, *chunks))
    text = "".join(piece["choices"][0]["delta"].get("content", "") for piece in pieces)
    assert text == reply["choices"][0]["message"]["content"]
    assert last["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]


def test_node_client(server: RealServer, tmp_path: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node and npm are not on this machine.")
    for name in ("package.json", "client.mjs"):
        shutil.copy(EXAMPLES / "node" / name, tmp_path)
    registry = printed_by([npm, "config", "get", "registry"]).strip()
    try:
        httpx.get(registry.rstrip("/") + "/openai", timeout=10).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        pytest.skip(f"The npm registry {registry} is out of reach: {error!r}")
    printed_by([npm, "install", "--no-audit", "--no-fund"], tmp_path)
    said = told(printed_by(["node", "client.mjs", server.url + "/v1"], tmp_path))
    assert said["chat"] == said["stream"]
    assert json.loads(said["structured"]).keys() == {"city", "sky", "degrees"}
    assert said["tool"] in [f"temperature({city})" for city in TEMPERATURES]
    assert int(said["result"]) == TEMPERATURES[said["tool"][len("temperature(") : -1]]
    assert len(json.loads(said["embeddings"])) == 2
