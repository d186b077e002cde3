"""Paged attention against the machine: share of its read bandwidth (decode), of its float32 multiply-adds (prefill).

Of several --type, each call of one is followed by one of the next, and their times are held against those of the first.
One thread is timed by its own CPU clock, limits too, so that other work on the machine does not count; several are
timed by the wall.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from octavo import _native

MODELS = {"SmolLM2-135M": (9, 3, 64, 0), "Gemma-3-270M": (4, 1, 256, 512), "Gemma-3-270M full": (4, 1, 256, 0)}
TYPES = ["f32", "f16", "bf16", "fp8_e4m3", "fp8_e5m2", "int8", "int16"]
CACHE_BYTES = 96 << 20  # what the layers of a decode pass together hold, so that none is found in a cache
PREFILL_TOKENS = 8192  # over all layers of a pass, whose output and scratch are new memory each time


def median_seconds(
    functions: Sequence[Callable[[], object]], clock: Callable[[], float], seconds: float = 0.7, least: int = 5
) -> tuple[list[float], list[float]]:
    """Of each function, called in turn: the median time, and the median of its time by that of the first beside it."""
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    while len(times[0]) < least or sum(times[0]) < seconds:
        for function, own in zip(functions, times, strict=True):
            start = clock()
            function()
            own.append(clock() - start)
    ratios = [statistics.median(a / b for a, b in zip(own, times[0], strict=True)) for own in times]
    return [statistics.median(own) for own in times], ratios


class Case:
    """One sequence of `context` tokens, its last `tokens` as queries, in `layers` layers of random keys and values."""

    def __init__(
        self,
        isa: _native.KernelTable,
        pool: _native.ThreadPool,
        model: str,
        dtype: str,
        block_size: int,
        context: int,
        tokens: int,
        layers: int,
    ):
        heads, kv_heads, head_dim, self.window = MODELS[model]
        rng = np.random.default_rng(0)
        self.isa, self.pool, self.heads, self.scale, self.layers = isa, pool, heads, head_dim**-0.5, layers
        num_blocks = -(-context // block_size)
        self.cache = _native.KVCache(layers, num_blocks, block_size, kv_heads, head_dim, dtype)
        self.table = rng.permutation(num_blocks).astype(np.int32)[None]
        self.cache.clear_blocks(self.table[0])
        k = rng.standard_normal((context, kv_heads * head_dim)).astype(np.float32)
        for layer in range(layers):
            _native.store(isa, pool, self.cache, layer, k, k, np.arange(context))
        self.q = rng.standard_normal((tokens, heads * head_dim)).astype(np.float32)
        self.starts, self.lengths = np.array([0, tokens], np.int32), np.array([context], np.int32)
        positions = np.arange(context - tokens, context)
        seen = np.minimum(positions + 1, self.window) if self.window else positions + 1
        self.macs = 2.0 * heads * head_dim * float(seen.sum())  # of one layer
        self.bytes = bytes_per_token(model, dtype) * min(context, self.window or context)  # of one layer

    def run(self) -> object:
        none, no_slots = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
        return _native.attention(
            self.isa, self.pool, self.cache, 0, self.q, none, none, no_slots, self.starts, self.lengths, self.table,
            self.heads, self.scale, self.window, 0.0, store=False, layers=self.layers,
        )  # fmt: skip


def bytes_per_token(model: str, dtype: str) -> float:
    _, kv_heads, head_dim, _ = MODELS[model]
    return _native.KVCache.bytes_per_block(1, 16, kv_heads, head_dim, dtype) / 16


def layers_of(kind: str, model: str, dtype: str, context: int) -> int:
    if kind == "prefill":
        return max(1, PREFILL_TOKENS // context)
    tokens = min(context, MODELS[model][3] or context)
    return max(1, int(CACHE_BYTES / bytes_per_token(model, dtype) / tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default="", help="instruction set level; the best by default")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--type", nargs="*", default=["bf16"], choices=TYPES)
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--model", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--decode", type=int, nargs="*", default=[256, 1024, 4096])
    parser.add_argument("--prefill", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()

    isa, rows = _native.select_isa(options.isa), []
    for threads in options.threads:
        pool = _native.ThreadPool(threads)
        for model in options.model:
            for kind, context in [*(("decode", n) for n in options.decode), *(("prefill", n) for n in options.prefill)]:
                tokens = 1 if kind == "decode" else context
                layers = [layers_of(kind, model, dtype, context) for dtype in options.type]
                cases = [
                    Case(isa, pool, model, dtype, options.block_size, context, tokens, count)
                    for dtype, count in zip(options.type, layers, strict=True)
                ]
                clock = time.thread_time if threads == 1 else time.perf_counter
                before = _native.measure_limits(isa, pool)
                times, ratios = median_seconds([case.run for case in cases], clock)
                reads, macs = (max(pair) for pair in zip(before, _native.measure_limits(isa, pool), strict=True))
                for dtype, case, count, time_, ratio in zip(options.type, cases, layers, times, ratios, strict=True):
                    seconds = time_ / count
                    rows.append(
                        {
                            "model": model, "kind": kind, "context": context, "threads": threads,
                            "isa": isa.name, "type": dtype, "microseconds_a_layer": seconds * 1e6,
                            "bandwidth_share": case.bytes / seconds / reads, "limit_gb_s": reads / 1e9,
                            "fma_share": case.macs / seconds / macs, "limit_gmac_s": macs / 1e9,
                            "of_first": ratio * layers[0] / count,
                        }
                    )  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['model']:18} {row['kind']:8} {row['context']:6} tokens, {row['threads']} threads, {row['type']:8}: "
            f"{row['microseconds_a_layer']:10.1f} us a layer, "
            f"{row['bandwidth_share']:6.1%} of {row['limit_gb_s']:.1f} GB/s, "
            f"{row['fma_share']:6.1%} of {row['limit_gmac_s']:.1f} GMAC/s, {row['of_first']:.2f} of the first's time"
        )


if __name__ == "__main__":
    main()
