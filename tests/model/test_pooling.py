"""Vectors of prompts are what transformers' states pool to, by the definition and by the native backend."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny

from octavo import _native
from octavo.build import build
from octavo.config import EngineConfig
from octavo.loaded_model import LoadedModel
from octavo.model.architectures import resolve_model
from octavo.model.decoder import decoder
from octavo.model.description import Description
from octavo.ops.reference import PagedCache, ReferenceOps, StepInputs, elementwise
from octavo.runtime.overlap import OverlappedRunner
from octavo.sampling_params import SamplingParams

GOLDEN = Path(__file__).parents[1] / "golden" / "tiny_pooled.npz"
ISAS = [name for name, supported, _ in _native.isa_levels() if supported]
KINDS = ("last", "mean")


def golden(name: str, kind: str) -> npt.NDArray[np.float32]:
    with np.load(GOLDEN) as vectors:
        return np.asarray(vectors[f"{name}_{kind}"])


def error(vector: npt.NDArray[np.float64], expected: npt.NDArray[np.float32]) -> float:
    return float(np.abs(vector - expected).max() / np.abs(expected).max())


def load(path: Path, **options: object) -> LoadedModel:
    return build(EngineConfig.from_options(model=str(path), dtype="float32", kv_cache_memory=1 << 24, **options))


def pooled(model: LoadedModel, asked: dict[str, tuple[list[int], str]]) -> dict[str, npt.NDArray[np.float64]]:
    """The vectors of prompts that are computed together, beside one that generates."""
    model.engine.add(model.admit("beside", tiny.prompt("llama")[3:40], SamplingParams(max_tokens=9, ignore_eos=True)))
    for name, (ids, kind) in asked.items():
        model.engine.add(model.admit(name, ids, SamplingParams(max_tokens=0, detokenize=False), pooling=kind))
    vectors = {}
    while model.engine.has_work():
        for news in model.engine.step():
            assert news.finish_reason != "error", news.error
            if news.vector is not None:
                assert news.finish_reason == "stop" and not news.token_ids
                vectors[news.request_id] = news.vector
        model.engine.scheduler.check()
    assert vectors.keys() == asked.keys()
    return vectors


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_native_backend_pools_what_transformers_states_pool_to(name: str, isa: str, tmp_path: Path) -> None:
    model = load(tiny.write_checkpoint(name, tmp_path), isa=isa, threads=1, max_num_batched_tokens=32)
    vectors = pooled(model, {kind: (tiny.prompt(name), kind) for kind in KINDS})
    model.close()
    for kind in KINDS:
        assert error(vectors[kind], golden(name, kind)) < 1e-4


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_the_definition_pools_what_transformers_states_pool_to(name: str) -> None:
    stored, ids = tiny.make_weights(name), tiny.prompt(name)
    model = resolve_model(Description(tiny.CONFIGS[name], frozenset(stored)))
    config = model.config
    windows = [window for window, _ in config.cache_groups]
    blocks = -(-len(ids) // 16)
    groups = [windows.index(layer.window) for layer in config.layers]
    ops = ReferenceOps(
        StepInputs(
            token_ids=np.array(ids, np.int32),
            positions=np.arange(len(ids), dtype=np.int32),
            query_start=np.array([0, len(ids)], np.int32),
            seq_lens=np.array([len(ids)], np.int32),
            block_tables=tuple(np.arange(blocks, dtype=np.int32)[None] for _ in windows),
            slot_mapping=tuple(np.arange(len(ids)) for _ in windows),
            output_rows=np.array([], np.int32),
        ),
        PagedCache(groups, [blocks] * len(windows), 16, config.num_kv_heads, config.head_dim),
    )
    decoder(config, {key: stored[tensor].astype(np.float64) for key, tensor in model.weight_names.items()}, ops)
    assert ops.pooled is not None
    for kind in KINDS:
        assert error(elementwise.pool(ops.pooled, kind), golden(name, kind)) < 1e-5


def test_a_vector_is_its_prompts_own_bit_for_bit(tmp_path: Path) -> None:
    """Whatever is beside it, however it is cut, whether it was preempted or found in the cache, on any threads."""
    ids = tiny.prompt("gemma3")
    asked = {
        f"{kind} of {length}": (ids[:length], kind) for kind, length in itertools.product(KINDS, (1, 16, 17, 64, 100))
    }
    path = tiny.write_checkpoint("gemma3", tmp_path)

    def run(
        *orders: dict[str, tuple[list[int], str]], preempts: bool = False, **options: object
    ) -> dict[str, npt.NDArray[np.float64]]:
        model = load(path, **{"threads": 1, "max_num_batched_tokens": 48} | options)
        if preempts:
            schedule, scheduler = model.engine.scheduler.schedule, model.engine.scheduler

            def often() -> object:
                if scheduler.tables.last_step in range(2, 21, 3) and scheduler.running:
                    scheduler.queues.preempt(scheduler.running[-1])
                return schedule()

            scheduler.schedule = often  # type: ignore[method-assign, assignment]
        vectors: dict[str, npt.NDArray[np.float64]] = {}
        for order in orders:
            vectors |= pooled(model, order)
        preempted, hits = model.engine.scheduler.num_preemptions, model.engine.scheduler.num_prefix_hits
        assert (preempted > 3) == preempts
        assert not sums(model)
        assert hits > 0 or len(orders) != 2  # warm
        model.close()
        return vectors

    alone = run(*({name: one} for name, one in asked.items()), enable_prefix_caching=False)
    ways = {
        "together": run(asked, enable_prefix_caching=False),
        "a token at a time": run(dict(list(asked.items())[-2:]), max_num_batched_tokens=1),
        "budget of 7": run(asked, max_num_batched_tokens=7, max_num_seqs=3),
        "in one step": run(asked, max_num_batched_tokens=512, threads=2),
        "warm": run(asked, asked),
        "each step on its own": run(asked, async_scheduling=False),
        "beside each other": run(asked, async_scheduling=True),
        "preempted": run(asked, preempts=True, max_num_batched_tokens=16),
    }
    for way, vectors in ways.items():
        for name, vector in vectors.items():
            assert np.array_equal(vector, alone[name]), (way, name)


def sums(model: LoadedModel) -> dict[int, Any]:
    """What the runner keeps of prompts that are computed in parts."""
    runner: Any = model.engine.runner
    held: dict[int, Any] = (runner._runners[0] if isinstance(runner, OverlappedRunner) else runner)._pooler._sums
    return held


def test_an_abort_in_the_middle_of_a_prompt_leaves_no_sum(tmp_path: Path) -> None:
    model = load(tiny.write_checkpoint("llama", tmp_path), threads=1, max_num_batched_tokens=16)
    params = SamplingParams(max_tokens=0, detokenize=False)
    model.engine.add(model.admit("gone", tiny.prompt("llama"), params, pooling="mean"))
    model.engine.step()
    while model.engine.scheduler.tables.last_step < 2:  # the first of them is over
        model.engine.step()
    assert len(sums(model)) == 1
    model.engine.abort("gone")
    pooled(model, {"next": ([1, 2, 3], "mean")})
    assert not sums(model)
    model.close()


def test_states_that_are_not_finite_end_the_request_with_an_error(tmp_path: Path) -> None:
    tiny.write_checkpoint("llama", tmp_path)
    weights = tiny.make_weights("llama")
    weights["model.embed_tokens.weight"][7] = np.nan
    tiny.write_safetensors(tmp_path / "model.safetensors", weights)
    model = load(tmp_path, threads=1)
    for kind in KINDS:
        params = SamplingParams(max_tokens=0, detokenize=False)
        model.engine.add(model.admit("bad", [5, 7], params, pooling=kind))
        model.engine.add(model.admit("good", [5, 6], params, pooling=kind))
        ends = {}
        while model.engine.has_work():
            ends |= {news.request_id: news for news in model.engine.step()}
        assert ends["bad"].finish_reason == "error" and "finite" in str(ends["bad"].error)
        assert ends["good"].vector is not None
    model.close()
