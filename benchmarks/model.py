"""A whole model against the machine: how much of the time of a step its limits ask for, and where the rest goes.

The least time of an op is what reading its bytes takes, or multiplying with the instructions that its weights are made
for, whichever is longer; both limits are measured in this process, beside each run. Attention is held against its keys
and values, and against multiplying in the cache's type. A share is the least time over the measured one.

    python benchmarks/model.py [--model gemma3-270m] [--repeat 5] [--json]
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from common import Load, engine_options, parser, random_prompt, spread

from octavo import LLM, SamplingParams, _native
from octavo.config import EngineConfig
from octavo.model.model_config import ModelConfig
from octavo.model_files import open_files
from octavo.runtime.topology import default_threads, read_nodes
from octavo.weights.packing import job

PROBE_BYTES = 256 << 20
PREFILLS = (1024, 4096)
DECODES = {1: 64, 32: 32}  # sequences, and steps of theirs that are timed
PROMPT = 128  # of a decode
# Of 8 bits, in the time of one of 16, which integers of the cache are multiplied as; elsewhere as many.
PRODUCTS = {"avx2_vnni": 2, "avx512": 2, "avx512_bf16": 2, "amx": 2, "neon": 4, "neon_i8mm": 4}
SMALL = 0.01  # of a step's time: ops below it in all workloads are shown together


@dataclass(frozen=True)
class Matrix:
    """A packed weight, and the op that reads it."""

    op: str
    format: str
    n: int
    k: int
    bytes: int


@dataclass(frozen=True)
class Step:
    """What one step computed, and how long it took: as a whole, within the Program, and in each of its ops."""

    parts: Sequence[tuple[int, int]]  # tokens of each sequence, and its length with them
    rows: int  # that logits were asked of
    seconds: float
    inside: float
    ops: dict[str, float]


class Model:
    """What a step has to read and to multiply, from the model's shapes."""

    def __init__(self, args: Any, ops: set[str]):
        config = EngineConfig.from_options(**engine_options(args))
        files = open_files(config)
        self.config: ModelConfig = files.model.config
        self.cache_type = files.kv_type
        self.isa, pool = _native.select_isa(config.isa or ""), _native.ThreadPool(1)
        sizes: dict[tuple[Any, ...], int] = {}
        self.matrices = []
        head = "embed" if self.config.tied_head else "head"
        for name, tensor in files.tensors.items():
            part = name.rsplit(".", 1)[-1]
            if len(tensor.shape) < 2 or (part == "embed" and head != "embed"):
                continue  # of an embedding a step reads the rows of its tokens
            target, source, data, n, k, group = job(tensor, files.targets[name])
            kind = (target, source, n, k, group)
            if kind not in sizes:
                sizes[kind] = _native.pack(self.isa, pool, target, source, np.array(data), n, k, group).bytes
            gated = part in ("gate", "up") and "gated_linear" in ops
            op = "logits" if part == head else "gated_linear" if gated else "linear"
            self.matrices.append(Matrix(op, target, n, k, sizes[kind]))

    def least_seconds(self, step: Step, limits: dict[str, float]) -> dict[str, float]:
        """Of each op with a limit; an op is bound by one of its two limits in each matrix or layer."""
        c, seconds = self.config, defaultdict[str, float](float)
        tokens = sum(count for count, _ in step.parts)
        for m in self.matrices:
            rows = step.rows if m.op == "logits" else tokens
            if rows:
                seconds[m.op] += max(m.bytes / limits["read"], 2.0 * rows * m.n * m.k / limits[m.format])
        size = 16
        block_bytes = _native.KVCache.bytes_per_block(1, size, c.num_kv_heads, c.head_dim, self.cache_type)
        for window, layers in c.cache_groups:
            operations = bytes_read = 0.0
            for count, length in step.parts:
                seen = np.minimum(np.arange(length - count, length) + 1, window or length)
                operations += 4.0 * c.num_heads * c.head_dim * float(seen.sum())
                keys = min(length, window + count - 1) if window else length
                bytes_read += keys / size * block_bytes
            least = max(bytes_read / limits["read"], operations / limits["cache"])
            seconds["attention"] += len(layers) * least
        return seconds


class Clocked:
    """The Program, with the time that its last run took."""

    def __init__(self, program: _native.Program):
        self.program, self.inside = program, 0.0

    def run(self) -> None:
        start = time.perf_counter()
        self.program.run()
        self.inside = time.perf_counter() - start


class Bench:
    def __init__(self, args: Any):
        self.loaded = LLM(**engine_options(args, enable_prefix_caching=False, async_scheduling=False))._loaded()
        runner: Any = self.loaded.engine.runner
        self.program = runner.program
        self.program.profile = True  # two clock readings an op
        self.clocked = runner.program = Clocked(self.program)
        self.names = ["attention" if name == "attention_merge" else name for name in self.program.op_names]
        last = max(i for i, name in enumerate(self.names) if name == "linear")
        self.names[last] = "logits"
        self.model = Model(args, set(self.names))
        self.threads = args.threads or default_threads(read_nodes())
        self.pool = _native.ThreadPool(self.threads)
        self.seed = args.seed

    def limits(self) -> dict[str, float]:
        isa, kept = self.model.isa.name, self.model.cache_type
        integers = kept in ("int8", "int16")
        # Attention leaves tiles to linear layers, and multiplies floats of 8 bits as bfloat16.
        cache = "i8" if integers else "f32" if isa == "amx" else "bf16" if kept.startswith("fp8") else kept
        formats = {m.format for m in self.model.matrices} | {cache}
        rates = {name: statistics.median(_native.probe_dot(self.model.isa, self.pool, name, 9)) for name in formats}
        read = statistics.median(_native.probe_read(self.pool, PROBE_BYTES, 5))
        return {**rates, "cache": rates[cache] / (PRODUCTS.get(isa, 1) if integers else 1), "read": read}

    def steps(self, count: int, length: int, output: int) -> Iterator[Step]:
        """Runs `count` random prompts to their ends."""
        engine, inputs = self.loaded.engine, self.program.inputs
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=output)
        for _ in range(count):
            self.seed += 1
            ids = random_prompt(self.seed, length, self.loaded.tokenizer.vocab_size)
            engine.add(self.loaded.admit(f"model-{self.seed}", ids, params))
        while engine.has_work():
            self.program.seconds = []
            start = time.perf_counter()
            engine.step()
            seconds = time.perf_counter() - start
            ops = defaultdict[str, float](float)
            for name, spent in zip(self.names, self.program.seconds, strict=True):
                ops[name] += spent
            tokens = np.diff(inputs.query_start[: inputs.seqs + 1]).tolist()
            parts = list(zip(tokens, inputs.seq_lens[: inputs.seqs].tolist(), strict=True))
            yield Step(parts, inputs.rows, seconds, self.clocked.inside, ops)

    def prefill(self, length: int) -> list[Step]:
        return list(self.steps(1, length, 1))

    def decode(self, count: int, number: int) -> list[Step]:
        """`number` steps in which all of `count` sequences decode: the last prompts meet sequences that already do."""
        before = -(-count * PROMPT // (self.loaded.engine.scheduler.config.max_num_batched_tokens - count)) + 1
        steps = self.steps(count, PROMPT, number + before)
        return [step for step in steps if [tokens for tokens, _ in step.parts] == [1] * count][:number]

    def figures(self, run: Callable[[], list[Step]]) -> dict[str, Any]:
        """Shares of one run, of the limits before it or after it, whichever are higher: other work takes from both."""
        limits = self.limits()
        steps = run()
        limits = {name: max(rate, limits[name]) for name, rate in self.limits().items()}
        least, spent = defaultdict[str, float](float), defaultdict[str, float](float)
        for step in steps:
            add(least, self.model.least_seconds(step, limits))
            add(spent, step.ops)
        seconds, inside = sum(step.seconds for step in steps), sum(step.inside for step in steps)
        spent["waiting"] = inside - sum(spent.values())  # for the other threads, and to wake them
        spent["Python"] = seconds - inside
        return {
            "limits": limits,
            "rate": sum(tokens for step in steps for tokens, _ in step.parts) / seconds,
            "share": sum(least.values()) / seconds,
            "time": {name: value / seconds for name, value in spent.items()},
            "limit": {name: value / spent[name] for name, value in least.items()},
        }


def add(to: dict[str, float], more: dict[str, float]) -> None:
    for name, value in more.items():
        to[name] = to.get(name, 0.0) + value


def middle(runs: list[dict[str, Any]], key: str) -> dict[str, float]:
    return {name: statistics.median(run[key].get(name, 0.0) for run in runs) for name in runs[0][key]}


def table(results: dict[str, dict[str, Any]]) -> str:
    def line(name: str, cells: Iterable[str]) -> str:
        return f"| {name} | " + " | ".join(cells) + " |"

    def cell(result: dict[str, Any], op: str) -> str:
        held = f" ({result['limit'][op]:.0%})" if op in result["limit"] else ""
        return f"{result['time'].get(op, 0):.0%}{held}"

    most: dict[str, float] = {}
    for result in results.values():
        most |= {name: max(share, most.get(name, 0.0)) for name, share in result["time"].items()}
    by_share = sorted(most, key=lambda name: -most[name])
    ops = [name for name in by_share if most[name] >= SMALL and name not in ("waiting", "Python")]
    small = [name for name, share in most.items() if share < SMALL and name not in ("waiting", "Python")]
    rows = [
        line("", results),
        line("---", ["--:"] * len(results)),
        line("tokens a second", (f"{r['rate']['median']:,.0f}" for r in results.values())),
        line("share of the limits", (f"{r['share']['median']:.0%}" for r in results.values())),
        *(line(op, (cell(r, op) for r in results.values())) for op in [*ops, "waiting", "Python"]),
        line("other ops", (f"{sum(r['time'].get(op, 0) for op in small):.0%}" for r in results.values())),
    ]
    return "\n".join(rows)


def main() -> None:
    options = parser(__doc__)
    options.set_defaults(repeat=5)
    args = options.parse_args()
    bench = Bench(args)
    work: dict[str, Callable[[], list[Step]]] = {
        **{f"decode, {count} at once": partial(bench.decode, count, number) for count, number in DECODES.items()},
        **{f"prefill of {length:,}": partial(bench.prefill, length) for length in PREFILLS},
    }
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in work}
    load = Load(os.getpid())
    for turn in range(args.repeat + 1):  # the first touches pages, and does not count
        for name, run in work.items():
            figures = bench.figures(run)
            if turn:
                runs[name].append(figures)
    results = {
        name: {key: spread([run[key] for run in of]) for key in ("rate", "share")}
        | {key: middle(of, key) for key in ("time", "limit", "limits")}
        for name, of in runs.items()
    }
    machine = {"isa": bench.model.isa.name, "threads": bench.threads, "foreign": load.foreign()}
    weights = sum(m.bytes for m in bench.model.matrices)
    if args.json:
        print(json.dumps({"benchmark": "model", "model": args.model, **machine, "bytes": weights, "results": results}))
        return
    limits = next(iter(results.values()))["limits"]
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in limits.items() if name not in ("read", "cache"))
    print(
        f"{args.model or 'SmolLM2-135M-Instruct'} on {machine['isa']}, {bench.threads} threads, median of {args.repeat}"
    )
    print(f"weights of a step: {weights / 1e6:.0f} MB; limits: {limits['read'] / 1e9:.1f} GB/s, GFLOP/s {rates}")
    print("an op's share of the time of a step, and in brackets the share of that which its limit asks for\n")
    print(table(results))
    print(f"\nother work took {machine['foreign']:.0%} of the processors")


if __name__ == "__main__":
    main()
