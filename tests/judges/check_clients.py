"""The examples whose clients take more to install than the rest of the tests, on a server with the default model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.extend(str(Path(__file__).parents[1] / name) for name in (".", "server"))

from real_server import RealServer

from example_runs import run, told

PARIS = " Paris"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    running = RealServer(tmp_path_factory.mktemp("server") / "log", "--max-model-len", "2048")
    yield running
    assert running.close() == 0


def test_litellm(server: RealServer) -> None:
    said = told(run("litellm_client.py", server.url + "/v1"))
    assert said["completion"] == said["stream"] == said["acompletion"] == said["astream"] == said["as openai/"]
    assert said["tool"] == "temperature(Oslo)"
    assert said["text completion"].startswith(f"'{PARIS}")
    assert json.loads(said["embeddings"]) == [576, 576]


def test_llama_index(server: RealServer) -> None:
    said = told(run("llama_index_client.py", server.url + "/v1"))
    assert said["complete"] == said["streamed"] and said["complete"].startswith(f"'{PARIS}")
    assert said["chat"] == said["streamed chat"] == said["async chat"]
    assert said["tool"] in ("temperature(Lima) = 19", "temperature(Oslo) = -3", "temperature(Quito) = 15")
    assert said["structured"].startswith("Weather(city='Bergen'")


def test_langchain_vllm(server: RealServer) -> None:
    said = told(run("langchain_vllm.py", server.url + "/v1"))
    assert said["invoke"] == said["stream"] == said["ainvoke"] and said["invoke"].startswith(f"'{PARIS}")
    assert said["choice"] == f"'{PARIS}'"
