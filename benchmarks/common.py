"""What the benchmarks share: seeded prompts, options, how figures are printed, and what else the machine was doing."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
TICK = os.sysconf("SC_CLK_TCK")


def parser(description: str) -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=description)
    result.add_argument("--model", help="As for octavo serve; default: SmolLM2-135M-Instruct.")
    result.add_argument("--dtype", default="auto")
    result.add_argument("--quantization", default="auto")
    result.add_argument("--isa")
    result.add_argument("--threads", type=int)
    result.add_argument("--repeat", type=int, default=3)
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--json", action="store_true", help="Print one JSON object instead of a table.")
    return result


def engine_options(args: argparse.Namespace, **more: Any) -> dict[str, Any]:
    names = ("model", "dtype", "quantization", "isa", "threads")
    given = {name: getattr(args, name) for name in names}
    return {name: value for name, value in given.items() if value is not None} | more


def random_prompt(seed: int, length: int, vocab_size: int) -> list[int]:
    """Random ids: no prefix of one prompt is a prefix of another, so that the prefix cache finds nothing."""
    generator = random.Random(seed)
    return [generator.randrange(vocab_size // 10, vocab_size * 9 // 10) for _ in range(length)]


def workload_c() -> list[dict[str, int]]:
    """64 requests with prompts of 32 to 512 tokens and outputs of 16 to 256: 17,241 in, 9,172 out."""
    entries: list[dict[str, int]] = json.loads((DATA / "workload_c.json").read_text())
    return entries


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(title: str, rows: dict[str, dict[str, float]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"benchmark": title, **rows}))
        return
    print(title)
    for name, row in rows.items():
        print(f"  {name:34s} {row['median']:10.1f}   ({row['min']:.1f} - {row['max']:.1f})")


class Load:
    """How much of the machine others took: the share of its processor time that was spent, but not by this process, by
    process `pid` or what descends from it. Linux; elsewhere it says nothing.
    """

    def __init__(self, pid: int):
        self.pid = pid
        self.wall, self.before = time.perf_counter(), self.spent()

    def spent(self) -> float:
        if not sys.platform.startswith("linux"):
            return 0.0
        user, nice, system, _, _, irq, softirq, steal, *_ = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        busy = sum(map(int, (user, nice, system, irq, softirq, steal))) / TICK
        return busy - sum(map(processor_seconds, {os.getpid(), *family(self.pid)}))

    def foreign(self) -> float:
        seconds = (time.perf_counter() - self.wall) * (os.cpu_count() or 1)
        return max(0.0, (self.spent() - self.before) / seconds)


def family(pid: int) -> list[int]:
    """The process and all that descend from it."""
    members = [pid]
    for member in members:
        with suppress(OSError):
            members += [
                int(child)
                for path in Path(f"/proc/{member}/task").glob("*/children")
                for child in path.read_text().split()
            ]
    return members


def processor_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK
