"""Sizes that depend on the model and the machine: the context, the token budget, and what the KV cache may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from octavo import _native
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.model.architectures import Model
from octavo.model.model_config import ModelConfig
from octavo.runtime.kv_cache import CachePlan, GroupSpec, plan_cache
from octavo.weights.packing import Packed

GIB = 1 << 30
# Half of what is free is the default pool: the machine is rarely ours alone, and pages are touched only as they are
# used.
DEFAULT_POOL_SHARE = 0.5
# What others wait for a step that is full of a long prompt. The rest of it, beside matrices, is attention over a short
# context and passes over rows: by profile of a prompt of 1,024 tokens, a third.
STEP_SECONDS = 0.2
LINEAR_SHARE = 0.67
# Below the least, matrices are read more often than they are computed with; past the most, nothing gets faster.
MIN_BUDGET, MAX_BUDGET = 64, 2048


def context_limit(model: Model, config: EngineConfig) -> int:
    """max_model_len as asked, or the model's own, of which auto makes what fits; never beyond what it was made for."""
    asked, own = config.max_model_len, model.config.max_position
    if asked is None:
        return own
    if asked < 0:
        # Without chunked prefill, what does not fit in a step cannot be computed.
        return own if config.enable_chunked_prefill else min(own, config.max_num_batched_tokens or MAX_BUDGET)
    if asked > own:
        raise ConfigError(
            f"max_model_len = {asked} is more than the {own} positions that {model.config.architecture} was made for; "
            f"use {own} or less."
        )
    return asked


def least_budget(config: EngineConfig, max_model_len: int) -> int:
    """The token budget as asked, or the least that it may turn out to be."""
    if config.max_num_batched_tokens is not None:
        return config.max_num_batched_tokens
    # Every sequence that runs may have its token in each step, and a prompt that joins them still gets on; without
    # chunked prefill all of a prompt is in one step.
    return config.max_num_seqs + MIN_BUDGET if config.enable_chunked_prefill else max_model_len


def measured_budget(
    config: EngineConfig,
    max_model_len: int,
    models: Sequence[tuple[ModelConfig, Mapping[str, Packed], str]],
    isa: _native.KernelTable,
    pool: _native.ThreadPool,
) -> tuple[int, float]:
    """The token budget as asked, or as many tokens as this machine computes in STEP_SECONDS, by all models of a step;
    and what a token costs more for each position before it, as a share of a token: 0 where a budget was asked for.

    `models`: of each its facts, its weights, and the type of its keys and values. Measured on the largest matrix of a
    layer and on attention, in a few milliseconds. What a request samples does not depend on either.
    """
    least = least_budget(config, max_model_len)
    if config.max_num_batched_tokens is not None or not config.enable_chunked_prefill:
        return least, 0.0
    token = sum(seconds_per_token(weights, isa, pool) for _, weights, _ in models)
    if not token:
        return least, 0.0
    budget = max(least, min(int(STEP_SECONDS / token) // MIN_BUDGET * MIN_BUDGET, MAX_BUDGET))
    if max_model_len <= budget:
        return budget, 0.0
    return budget, sum(seconds_per_key(model, kv_type, isa, pool) for model, _, kv_type in models) / token


def seconds_per_token(weights: Mapping[str, Packed], isa: _native.KernelTable, pool: _native.ThreadPool) -> float:
    """Of a prompt that is not long; 0 where there is no matrix to measure."""
    matrices = [w for name, w in weights.items() if isinstance(w, _native.PackedWeight) and "." in name]
    if not matrices:
        return 0.0
    largest = max(matrices, key=lambda w: w.n * w.k)
    seconds = min(_native.probe_linear(isa, pool, [largest], MIN_BUDGET, 5)) / MIN_BUDGET
    return seconds * sum(w.n * w.k for w in matrices) / (largest.n * largest.k) / LINEAR_SHARE


def seconds_per_key(model: ModelConfig, kv_type: str, isa: _native.KernelTable, pool: _native.ThreadPool) -> float:
    """What a token of a prompt waits for each key that it reads, in all layers without a window."""
    layers = sum(layer.window == 0 for layer in model.layers)
    if not layers:
        return 0.0
    tokens, keys, size = 64, 512, 16
    cache = _native.KVCache(1, keys // size, size, model.num_kv_heads, model.head_dim, kv_type)
    table = np.arange(keys // size, dtype=np.int32)
    cache.clear_blocks(table)
    queries = np.ones((tokens, model.num_heads * model.head_dim), np.float32)
    none, no_slots = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
    starts, lengths = np.array([0, tokens], np.int32), np.array([keys], np.int32)
    times: list[float] = []
    for _ in range(4):
        start = time.perf_counter()
        _native.attention(
            isa, pool, cache, 0, queries, none, none, no_slots, starts, lengths, table[None],
            model.num_heads, 1.0, store=False,
        )  # fmt: skip
        times.append(time.perf_counter() - start)
    return min(times) / (tokens * (keys - tokens / 2)) * layers


def check_weights_fit(needed: int, available: int) -> None:
    if needed > available:
        raise ConfigError(
            f"The weights take {needed / GIB:.1f} GiB and {available / GIB:.1f} GiB of memory are available; "
            "use a smaller version of the model, or a smaller --quantization: int8, int4."
        )


def weight_bytes(weights: Mapping[str, Packed]) -> int:
    return sum(w.bytes if isinstance(w, _native.PackedWeight) else w.nbytes for w in weights.values())


def group_specs(model: Model, block_size: int, kv_type: str) -> list[GroupSpec]:
    """The cache groups of a model, with keys and values of a type."""
    facts, size = model.config, _native.KVCache.bytes_per_block
    return [
        GroupSpec(window, len(layers), size(len(layers), block_size, facts.num_kv_heads, facts.head_dim, kv_type))
        for window, layers in facts.cache_groups
    ]


def plan_pool(
    config: EngineConfig,
    specs: Sequence[GroupSpec],
    available: int,
    weights: int,
    workspace: Callable[[int], int],
    max_model_len: int,
    token_budget: int,
) -> CachePlan:
    """The KV cache's blocks: what was asked for, or half of what weights and workspace leave.

    `workspace`: the bytes of everything else, for a given longest sequence. With max_model_len = auto the longest
    sequence is the longest, in whole blocks, for which all of it fits; else what does not fit is refused.
    """

    def plan(length: int) -> CachePlan:
        return _plan(config, specs, available, weights, workspace(length), length, token_budget)

    if config.max_model_len is None or config.max_model_len > 0:
        return plan(max_model_len)
    size = config.block_size
    low, high = 0, -(-max_model_len // size)
    best: CachePlan | None = None
    middle = high  # most often all of it fits
    while low < high:
        try:
            best = plan(min(middle * size, max_model_len))
            low = middle
        except ConfigError:
            high = middle - 1
        middle = (low + high + 1) // 2
    return best or plan(min(size, max_model_len))  # which says what is missing


def _plan(
    config: EngineConfig,
    specs: Sequence[GroupSpec],
    available: int,
    weights: int,
    workspace: int,
    max_model_len: int,
    token_budget: int,
) -> CachePlan:
    usable = int(available * config.memory_utilization) - weights - workspace
    budget = config.kv_cache_memory
    if budget is None:
        budget = min(usable, int((available - weights - workspace) * DEFAULT_POOL_SHARE))
    if budget > usable or budget <= 0:
        raise ConfigError(
            f"Weights ({weights / GIB:.2f} GiB), workspace ({workspace / GIB:.2f} GiB) and KV cache "
            f"({max(budget, 0) / GIB:.2f} GiB) do not fit in {config.memory_utilization:.0%} of the "
            f"{available / GIB:.2f} GiB available; lower --kv-cache-memory or --max-num-batched-tokens, "
            "or raise --memory-utilization."
        )
    return plan_cache(
        specs,
        budget,
        max_model_len,
        config.max_num_seqs,
        config.block_size,
        token_budget,
    )
