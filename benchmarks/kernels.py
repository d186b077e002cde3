"""Measures the linear kernels against this machine: its read bandwidth, and the dot products or multiply-adds that a
format's kernel is made of, alone in registers, in the same process.

    python benchmarks/kernels.py [--isa avx2] [--threads 2] [--n 1536] [--k 1536] [--fastest] [--json FILE]

One row is bound by reading the weights: several matrices, past the caches together, are used in turn. Many rows are
bound by arithmetic.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from octavo import _native

SOURCES = {
    "f32": "f32",
    "f16": "f16",
    "bf16": "bf16",
    "q8_0": "i8",
    "q6_k": "i6",
    "q5_0": "i5",
    "q5_k": "i5",
    "q4_0": "i4",
    "q4_1": "i4",
    "q4_k": "i4",
    "q3_k": "i3",
    "q2_k": "i2",
    "int8": "i8s",
    "int4": "i4",
    "int4/64": "i4",
    "int4/128": "i4",
}
GROUPS = {"int4": 32, "int4/64": 64, "int4/128": 128}  # quantised at load, from float16
BLOCKS = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q6_k": (256, 210),
    "q5_0": (32, 22),
    "q5_k": (256, 176),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
    "q4_k": (256, 144),
    "q3_k": (256, 110),
    "q2_k": (256, 84),
}


def weights(isa: Any, pool: Any, source: str, n: int, k: int, total: int) -> list[Any]:
    """As many matrices as make `total` bytes. All bits are zero: no kernel looks at the values."""
    stored = "f16" if source.startswith("int") else source
    values, size = BLOCKS[stored]
    data = np.zeros(n * k // values * size, np.uint8)
    job = (SOURCES[source], stored, data, n, k, GROUPS.get(source, 0))
    first = _native.pack(isa, pool, *job)
    return [first] + [_native.pack(isa, pool, *job) for _ in range(total // first.bytes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="", help="instruction set level; the best by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--n", type=int, default=1536)
    parser.add_argument("--k", type=int, default=1536)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 64, 256, 512])
    parser.add_argument("--formats", nargs="+", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="count the time on a core, not on the wall: for a machine in use by others",
    )
    parser.add_argument(
        "--fastest",
        action="store_true",
        help="the fastest twentieth of the runs, of kernels and limits, not their medians: for a machine whose cores "
        "are taken away at times; give it many repeats",
    )
    parser.add_argument("--megabytes", type=int, default=256, help="weights read in turn, for few rows")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args()

    isa, pool = _native.select_isa(args.isa), _native.ThreadPool(args.threads)
    part, figure = (0.05, "fastest twentieths") if args.fastest else (0.5, "medians")
    figures: list[dict[str, Any]] = []

    def limits(target: str) -> tuple[float, float]:
        reads = _native.probe_read(pool, args.megabytes << 20, args.repeats, args.processor_time)
        dots = _native.probe_dot(isa, pool, target, args.repeats, args.processor_time)
        return float(np.quantile(reads, 1 - part)), float(np.quantile(dots, 1 - part))

    print(f"{isa.name}, {args.threads} threads, weights [{args.n}, {args.k}]; {figure} of {args.repeats}")
    for source in args.formats:
        few = weights(isa, pool, source, args.n, args.k, args.megabytes << 20)
        for rows in args.rows:
            read, dot = limits(SOURCES[source])  # measured beside each figure: the machine may be shared
            used = few if rows <= 8 else few[: max(1, 256 // rows)]
            times = _native.probe_linear(isa, pool, used, rows, args.repeats, args.processor_time)
            seconds = float(np.quantile(times, part)) / len(used)
            bandwidth, arithmetic = used[0].bytes / seconds, 2.0 * rows * args.n * args.k / seconds
            figures.append(
                {
                    "format": SOURCES[source],
                    "source": source,
                    "rows": rows,
                    "seconds": seconds,
                    "read": bandwidth,
                    "read_limit": read,
                    "operations": arithmetic,
                    "dot_limit": dot,
                }
            )
            print(
                f"{source:>8} M={rows:<4} {seconds * 1e6:9.1f} us"
                f"  {bandwidth / 1e9:6.1f} GB/s = {bandwidth / read:6.1%} of {read / 1e9:5.1f}"
                f"   {arithmetic / 1e9:7.1f} GFLOP/s = {arithmetic / dot:6.1%} of {dot / 1e9:6.1f}",
                flush=True,
            )
    if args.json:
        args.json.write_text(
            json.dumps(
                {"isa": isa.name, "threads": args.threads, "n": args.n, "k": args.k, "figures": figures}, indent=1
            )
        )


if __name__ == "__main__":
    main()
