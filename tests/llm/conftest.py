"""The offline API is tested on a tiny checkpoint, which loads in a moment."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "model"))

import tiny

from octavo import LLM
from octavo.engine.engine import Engine
from octavo.engine.outputs import SequenceOutput


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with room for 4,096 tokens."""
    path = tiny.write_checkpoint("llama", tmp_path_factory.mktemp("checkpoint") / "tiny-llama")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return path


@pytest.fixture
def make(folder: Path) -> Iterator[Callable[..., LLM]]:
    """Makes an LLM over the tiny checkpoint; all are closed in the end."""
    made: list[LLM] = []

    def one(**options: Any) -> LLM:
        made.append(LLM(folder, **{"threads": 1, "kv_cache_memory": "16MiB", **options}))
        return made[-1]

    yield one
    for llm in made:
        llm.close()


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, threads=1, kv_cache_memory="16MiB", enable_prefix_caching=False) as shared:
        yield shared


@pytest.fixture
def slow_down(monkeypatch: pytest.MonkeyPatch) -> Callable[[Engine], None]:
    """Makes a step of an engine last 2 ms more: what has to outlast a timeout does, on the fastest machine too."""

    def slow_down(engine: Engine) -> None:
        step = engine.step

        def slow() -> list[SequenceOutput]:
            time.sleep(0.002)
            return step()

        monkeypatch.setattr(engine, "step", slow)

    return slow_down
