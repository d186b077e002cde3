"""Paged attention against the machine: share of its read bandwidth (decode), of its float32 multiply-adds (prefill).

One thread is timed by its own CPU clock, limits too, so that other work on the machine does not count; several are
timed by the wall.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

from octavo import _native

MODELS = {"SmolLM2-135M": (9, 3, 64, 0), "Gemma-3-270M": (4, 1, 256, 512), "Gemma-3-270M full": (4, 1, 256, 0)}
CACHE_BYTES = 96 << 20  # what the layers of a decode pass together hold, so that none is found in a cache


def median_seconds(
    function: Callable[[], object], clock: Callable[[], float], seconds: float = 0.7, least: int = 5
) -> float:
    function()
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        start = clock()
        function()
        times.append(clock() - start)
    return statistics.median(times)


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
        self.bytes = 2.0 * min(context, self.window or context) * kv_heads * head_dim * (4 if dtype == "f32" else 2)

    def run(self) -> object:
        none, no_slots = np.zeros((0, 0), np.float32), np.zeros(0, np.int64)
        return _native.attention(
            self.isa, self.pool, self.cache, 0, self.q, none, none, no_slots, self.starts, self.lengths, self.table,
            self.heads, self.scale, self.window, 0.0, store=False, layers=self.layers,
        )  # fmt: skip


def decode_layers(model: str, dtype: str, context: int) -> int:
    _, kv_heads, head_dim, window = MODELS[model]
    tokens = min(context, window or context)
    return max(1, CACHE_BYTES // _native.KVCache.bytes_per_block(1, 1, kv_heads, head_dim, dtype) // tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--isa", default="", help="instruction set level; the best by default")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--type", default="bf16", choices=["f32", "f16", "bf16"])
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
                tokens, layers = (1, decode_layers(model, options.type, context)) if kind == "decode" else (context, 1)
                case = Case(isa, pool, model, options.type, options.block_size, context, tokens, layers)
                before = _native.measure_limits(isa, pool)
                seconds = median_seconds(case.run, time.thread_time if threads == 1 else time.perf_counter) / layers
                reads, macs = (max(pair) for pair in zip(before, _native.measure_limits(isa, pool), strict=True))
                rows.append(
                    {
                        "model": model, "kind": kind, "context": context, "threads": threads,
                        "isa": isa.name, "type": options.type, "microseconds_a_layer": seconds * 1e6,
                        "bandwidth_share": case.bytes / seconds / reads, "limit_gb_s": reads / 1e9,
                        "fma_share": case.macs / seconds / macs, "limit_gmac_s": macs / 1e9,
                    }
                )  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            f"{row['model']:18} {row['kind']:8} {row['context']:6} tokens, {row['threads']} threads: "
            f"{row['microseconds_a_layer']:10.1f} us a layer, "
            f"{row['bandwidth_share']:6.1%} of {row['limit_gb_s']:.1f} GB/s, "
            f"{row['fma_share']:6.1%} of {row['limit_gmac_s']:.1f} GMAC/s"
        )


if __name__ == "__main__":
    main()
