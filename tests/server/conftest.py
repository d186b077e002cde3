"""Servers that tests share, or make for themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from server_world import World

ENGINE_OPTIONS = {
    "max_model_len",
    "num_blocks",
    "max_num_seqs",
    "max_num_queued",
    "max_num_queued_tokens",
    "step_seconds",
    "poison",
    "template",
    "sampling_defaults",
    "takes_priority",
    "texts",
    "special",
}


def maker(folder: Any, made: list[World]) -> Callable[..., World]:
    def make(**options: Any) -> World:
        engine = {name: options.pop(name) for name in ENGINE_OPTIONS & options.keys()}
        made.append(World(folder / str(len(made)), engine=engine, **options))
        return made[-1]

    return make


@pytest.fixture(scope="session")
def session_worlds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., World]]:
    made: list[World] = []
    yield maker(tmp_path_factory.mktemp("worlds"), made)
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def world(session_worlds: Callable[..., World]) -> World:
    return session_worlds()


@pytest.fixture(scope="session")
def slow_world(session_worlds: Callable[..., World]) -> World:
    """Steps take 5 ms, so that a request can be met while it runs."""
    return session_worlds(step_seconds=0.005)


@pytest.fixture(scope="module")
def make_module_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., World]]:
    made: list[World] = []
    yield maker(tmp_path_factory.mktemp("worlds"), made)
    for one in made:
        one.close()


@pytest.fixture
def make_world(tmp_path: Any) -> Iterator[Callable[..., World]]:
    made: list[World] = []
    yield maker(tmp_path, made)
    for one in made:
        one.close()
