"""Steps on a thread of their own: the same tokens, really beside each other, and an orderly end of whatever fails."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_seams import FAILS, NAME, load

from octavo import StructuredOutputsParams
from octavo.build import build
from octavo.config import EngineConfig, SpeculativeConfig
from octavo.engine.async_engine import AsyncEngine
from octavo.engine.outputs import RequestOutput
from octavo.errors import ConfigError, EngineDeadError
from octavo.loaded_model import LoadedModel
from octavo.runtime import machine
from octavo.runtime.overlap import OverlappedRunner
from octavo.sampling_params import BeamSearchParams, SamplingParams

# A decoder whose steps wait until they are let through.
GATED = """
import threading

GATE, BEGUN = threading.Semaphore(0), threading.Semaphore(0)

def users(config, weights, ops, cuts=()):
    x = ops.call(wait, ops.embed(weights["embed"], config.embedding_scale))
    x = ops.add(x, attention(config, weights, ops, 0, x))
    return ops.logits(ops.select_rows(x), weights["embed"])

def wait(x):
    BEGUN.release()
    if not GATE.acquire(timeout=30):
        raise TimeoutError("nobody opened the gate")
    return x
"""
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
KINDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"temperature": 0.0}, {}),
    ({"stop": ["e", "th"], "ignore_eos": False}, {}),
    ({"logprobs": 2, "prompt_logprobs": 1}, {}),
    ({"presence_penalty": 0.7, "repetition_penalty": 1.2}, {}),
    ({"bad_words": ["a", "the"]}, {}),
    ({"min_tokens": 9, "stop_token_ids": list(range(0, 256, 3)), "ignore_eos": False}, {}),
    ({"stop_token_ids": list(range(0, 256, 7))}, {}),
    ({"n": 3, "top_k": 40}, {}),
    ({"n": 2, "logit_bias": {5: 2.0}}, {}),
    ({"structured_outputs": StructuredOutputsParams(regex=r"([a-c]{1,3} ?){4,}\.")}, {}),
    ({"max_tokens": 0, "detokenize": False}, {"pooling": "mean"}),
    ({"n": 2, "temperature": 0.0}, {"beams": BeamSearchParams(beam_width=3, max_tokens=12)}),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_checkpoint(NAME, tmp_path)


def admit(model: LoadedModel, number: int, rng: random.Random) -> Any:
    chosen, more = KINDS[number % len(KINDS)]
    ids = [rng.randrange(256) for _ in range(rng.choice([1, 5, 20, 60]))]
    params = SamplingParams(
        **{"max_tokens": rng.randint(9, 30), "temperature": 1.0, "seed": number, "ignore_eos": True} | chosen
    )
    return model.admit(f"r{number}", ids, params, **more)


def seen_by_client(output: RequestOutput) -> Any:
    vector = None if output.vector is None else output.vector.tolist()
    return [
        (one.token_ids, one.text, one.finish_reason, one.stop_reason, one.logprobs) for one in output.outputs
    ], vector


def walk(model: LoadedModel, count: int, seed: int | None) -> dict[str, RequestOutput]:
    """All requests: one after the other, or with a seed as they come, where some are aborted."""
    engine, lengths = model.engine, random.Random(1)
    waiting = [admit(model, number, lengths) for number in range(count)]
    results = {one.request_id: RequestOutput.empty(one) for one in waiting}
    rng = random.Random(seed)
    while waiting or engine.has_work():
        if waiting and (rng.random() < 0.4 if seed is not None else not engine.has_work()):
            engine.add(waiting.pop(0))
        live = sorted(engine.scheduler.requests)
        news = engine.abort(rng.choice(live)) if seed is not None and live and rng.random() < 0.02 else []
        if seed is not None and rng.random() < 0.02:
            engine.reset_prefix_cache()
        for output in [*news, *engine.step()]:
            assert output.finish_reason != "error", output.error
            results[output.request_id].apply(output)
        engine.scheduler.check()
    assert engine.snapshot().kv_cache_usage == 0.0 and engine.num_live == 0
    return results


@pytest.mark.parametrize("pool", [1 << 24, 400_000])
def test_tokens_are_those_of_steps_one_by_one(folder: Path, pool: int) -> None:
    """A random walk over all that can be asked, on the real runner; with a small pool some are preempted."""
    options: dict[str, Any] = {"threads": 1, "kv_cache_memory": pool, "max_model_len": 112, "max_num_seqs": 8}
    plain = load(folder, async_scheduling=False, **options)
    expected = walk(plain, 39, None)
    plain.close()
    ahead = load(folder, async_scheduling=True, **options)
    assert isinstance(ahead.engine.runner, OverlappedRunner)
    for seed in range(2):
        aborted = 0
        for name, output in walk(ahead, 39, seed).items():
            if "abort" in [one.finish_reason for one in output.outputs]:
                aborted += 1
                for one, whole in zip(output.outputs, expected[name].outputs, strict=True):
                    assert one.token_ids == whole.token_ids[: len(one.token_ids)]
            else:
                assert seen_by_client(output) == seen_by_client(expected[name]), name
        assert aborted > 0
    assert ahead.engine.scheduler.num_preemptions > 0 or pool > 1 << 20
    ahead.close()


def gates() -> tuple[threading.Semaphore, threading.Semaphore]:
    module = sys.modules["octavo_architecture_mine"]
    return module.GATE, module.BEGUN


def test_a_step_is_scheduled_and_written_while_one_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is let through before the next one is launched: with steps one by one, none would ever end."""
    model = load(folder, GATED, threads=1, async_scheduling=True)
    (gate, _), engine = gates(), model.engine
    schedule, launch = engine.scheduler.schedule, OverlappedRunner.launch
    launched = 0

    def scheduled() -> Any:
        if (batch := schedule()) is None:  # nothing comes after the last
            gate.release()
        return batch

    def launched_next(runner: OverlappedRunner, batch: Any) -> Any:
        nonlocal launched
        pending = launch(runner, batch)
        if launched:
            gate.release()
        launched += 1
        return pending

    monkeypatch.setattr(engine.scheduler, "schedule", scheduled)
    monkeypatch.setattr(OverlappedRunner, "launch", launched_next)
    for number in range(3):
        engine.add(model.admit(f"r{number}", [5 + number] * 4, GREEDY))
    tokens = 0
    while engine.has_work():
        for news in engine.step():
            assert news.finish_reason in (None, "length"), news.error
            tokens += len(news.token_ids)
    assert (tokens, launched) == (18, 6)
    model.close()


def test_text_is_told_while_the_next_step_runs_where_it_needs_the_tokens(folder: Path) -> None:
    """Penalties count the token before: the next step is launched after its commit, and waited for in the next call."""
    model = load(folder, GATED, threads=1, async_scheduling=True)
    (gate, begun), engine = gates(), model.engine
    params = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, presence_penalty=1.0)
    engine.add(model.admit("r", [5, 6, 7], params))
    assert engine.step() == []
    for number in range(3):
        assert begun.acquire(timeout=30)
        gate.release()
        (news,) = engine.step()
        assert len(news.token_ids) == 1
        assert engine.scheduler.tables.num_in_flight == 1, number
    gate.release()
    (news,) = engine.step()
    assert news.finish_reason == "length" and not engine.has_work()
    model.close()


def test_a_step_that_fails_ends_its_requests_only(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    model = load(folder, FAILS, threads=1, async_scheduling=True)
    engine = model.engine
    reasons: dict[str, str | None] = {}

    def steps(count: int) -> None:
        for _ in range(count):
            reasons.update({news.request_id: news.finish_reason for news in engine.step() if news.finish_reason})
            engine.scheduler.check()

    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    engine.add(model.admit("first", [5] * 4, params))
    steps(3)
    engine.add(model.admit("second", [6] * 2, params))  # a step of three tokens fails
    steps(1)
    engine.add(model.admit("third", [7] * 4, params))  # in the step behind it
    while engine.has_work():
        steps(1)
    assert reasons == {"first": "error", "second": "error", "third": "length"}
    assert engine.snapshot().kv_cache_usage == 0.0
    model.close()


@pytest.fixture
def served(folder: Path) -> Iterator[tuple[AsyncEngine, LoadedModel]]:
    model = load(folder, GATED, threads=1, async_scheduling=True)
    engine = AsyncEngine(model.engine, step_timeout=0.3)
    yield engine, model
    gates()[0].release(1000)
    engine.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_stuck_step_is_noticed_and_an_abort_waits_for_it(served: tuple[AsyncEngine, LoadedModel]) -> None:
    async def main() -> None:
        engine, model = served
        gate, begun = gates()
        stream = engine.generate(model.admit("r", [5, 6, 7], GREEDY))
        await until(lambda: not engine.is_healthy())
        assert begun.acquire(blocking=False)
        engine.abort("r")
        gate.release(1000)
        reasons = [output.finish_reason async for outputs in stream for output in outputs]
        assert reasons[-1] == "abort"
        await until(lambda: not model.engine.has_work())
        assert engine.is_healthy() and engine.stats().kv_cache_usage == 0.0
        again = engine.generate(model.admit("r", [5], GREEDY))
        assert sum([len(output.token_ids) async for outputs in again for output in outputs]) == 6

    asyncio.run(main())


def test_an_engine_closes_after_the_step_that_runs(served: tuple[AsyncEngine, LoadedModel]) -> None:
    async def main() -> None:
        engine, model = served
        gate, begun = gates()
        stream = engine.generate(model.admit("r", [5, 6, 7], GREEDY))
        await until(lambda: begun.acquire(blocking=False))
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await asyncio.sleep(0.05)
        gate.release(1000)
        await closing
        with pytest.raises(EngineDeadError):
            async for _ in stream:
                pass
        await until(lambda: not vars(model.engine.runner))
        assert not model.engine._in_flight, "a step that nobody commits would hold weights and cache"

    asyncio.run(main())


def test_where_there_are_more_cores_than_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafts = SpeculativeConfig("ngram", 2, 3, 1)

    def looks_ahead(cores: int, **options: Any) -> bool:
        monkeypatch.setattr(machine, "default_threads", lambda nodes: cores)
        model = build(EngineConfig(model=str(folder), kv_cache_memory=1 << 24, **options))
        found = isinstance(model.engine.runner, OverlappedRunner)
        model.close()
        return found

    assert looks_ahead(2, threads=1)
    assert not looks_ahead(2)
    assert not looks_ahead(2, threads=2)
    assert not looks_ahead(2, threads=1, async_scheduling=False)
    assert not looks_ahead(2, threads=1, speculative_config=drafts)
    assert looks_ahead(2, threads=2, async_scheduling=True)
    with pytest.raises(ConfigError, match="speculative_config"):
        looks_ahead(2, async_scheduling=True, speculative_config=drafts)
