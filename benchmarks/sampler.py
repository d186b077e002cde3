"""Times the sampling kernel by kind of row, and states its share of a decode step.

A step reads every weight once: `--step-ms` is what that takes on the machine, and the share is of step and sampler
together, which means something for one row only: a step of many rows takes longer.
Logits are a mixture as models give them: a few likely tokens over a broad, nearly normal rest.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from octavo import _native

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p=0.95": {"temperature": 0.8, "top_p": 0.95},
    "top_p=0.95 flat": {"temperature": 0.8, "top_p": 0.95, "scale": 0.05},
    "top_k=50": {"temperature": 0.8, "top_k": 50},
    "top_k=50 top_p=0.95": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
    "min_p=0.05": {"temperature": 0.8, "min_p": 0.05},
    "penalties, 2,000 tokens": {"temperature": 0.0, "repetition_penalty": 1.1, "penalties": 2000},
    "mask": {"temperature": 0.0, "masked": True},
    "logprobs=5": {"temperature": 0.0, "num_logprobs": 5},
    "prompt logprobs=5": {"num_logprobs": 5, "target": 17},
}


def make_logits(rows: int, vocab: int, scale: float) -> np.ndarray:
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((rows, vocab)) * 2.5 * scale
    likely = generator.integers(0, vocab, (rows, 50))
    np.put_along_axis(logits, likely, (16.0 - 8.0 * generator.random((rows, 50))) * scale, axis=1)
    return logits.astype(np.float32)


def measure(isa: Any, pool: Any, rows: int, vocab: int, kind: dict[str, Any], seconds: float) -> float:
    """The least time of a call, in seconds: other processes only ever add."""
    options = dict(kind)
    logits = make_logits(rows, vocab, options.pop("scale", 1.0))
    inputs = _native.SampleInputs(rows, vocab, 20, pool.threads)
    inputs.rows = rows
    if size := options.pop("penalties", 0):
        counts = _native.TokenCounts(np.random.default_rng(1).choice(vocab, size, replace=False).astype(np.int32))
        for row in range(rows):
            inputs.set_penalties(row, counts)
    inputs.mask[:] = np.random.default_rng(2).integers(0, 2**32, inputs.mask.shape, dtype=np.uint32)
    for name, value in options.items():
        getattr(inputs, name)[:] = value
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        inputs.position[:] += 1
        start = time.perf_counter()
        _native.sample(isa, pool, logits, inputs)
        times.append(time.perf_counter() - start)
    return float(np.min(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="", help="instruction set level; default: the best")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="1x49152,64x49152,1x262144,16x262144", help="rows x vocabulary, by commas")
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    parser.add_argument("--step-ms", type=float, default=13.0, help="a step without the sampler; 13: 270 MB at 20 GB/s")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    isa, pool = _native.select_isa(arguments.isa), _native.ThreadPool(arguments.threads)
    results = []
    for shape in arguments.shapes.split(","):
        rows, vocab = (int(number) for number in shape.split("x"))
        for name, kind in KINDS.items():
            seconds = measure(isa, pool, rows, vocab, kind, arguments.seconds)
            share = seconds / (seconds + arguments.step_ms / 1e3)
            result = {"rows": rows, "vocab": vocab, "kind": name, "ms": seconds * 1e3}
            results.append(result | {"us_per_row": seconds / rows * 1e6, "share": share})
            if not arguments.json:
                figures = f"{seconds * 1e3:8.3f} ms  {seconds / rows * 1e6:8.1f} us/row  {share:6.1%}"
                print(f"{rows:>3} x {vocab:>7,}  {name:<24} {figures}", flush=True)
    if arguments.json:
        print(
            json.dumps(
                {"isa": isa.name, "threads": pool.threads, "step_ms": arguments.step_ms, "results": results}, indent=1
            )
        )


if __name__ == "__main__":
    main()
