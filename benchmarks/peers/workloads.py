"""What both engines are given, and which figures are made of it."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.common import random_prompt, workload_c

from .worker import Request

Times = list[list[float]]  # first token, last token, count: of each request, in seconds from the start


@dataclass(frozen=True)
class Metric:
    name: str
    unit: str
    of: Callable[[list[Request], Times, float], float]  # requests, times, seconds of all
    more_is_better: bool = True

    def ratio(self, ours: float, theirs: float) -> float:
        """How many times as good octavo is."""
        return ours / theirs if self.more_is_better else theirs / ours


@dataclass(frozen=True)
class Workload:
    name: str
    about: str
    lengths: list[tuple[int, int]]  # prompt and output of each request
    metrics: list[Metric]
    shared: int = 0  # tokens that all prompts begin with
    streams: int = 0  # over HTTP, that many requests at once

    def requests(self, seed: int, vocab: int) -> list[Request]:
        """Random prompts that no other seed has: a prefix cache finds what is shared here, and nothing else."""
        first = random_prompt(seed, self.shared, vocab)
        return [
            Request(first + random_prompt(seed + 1 + i, length - self.shared, vocab), output)
            for i, (length, output) in enumerate(self.lengths)
        ]


def warm_up(requests: list[Request]) -> list[Request]:
    """Enough to touch the memory and code that the workload needs."""
    return [Request(request.prompt, min(request.output, 4)) for request in requests[:8]]


def decode_rate(requests: list[Request], times: Times, seconds: float) -> float:
    """All tokens but the first of each, over the time from the earliest first one to the last one."""
    return sum(count - 1 for _, _, count in times) / (max(t[1] for t in times) - min(t[0] for t in times))


def first_tokens(times: Times) -> list[float]:
    return [1000 * first for first, _, _ in times]


def later_tokens(times: Times) -> list[float]:
    """Milliseconds from token to token, of each request."""
    return [1000 * (last - first) / (count - 1) for first, last, count in times if count > 1]


def worst(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def latency(name: str, of: Callable[[Times], float]) -> Metric:
    return Metric(name, "ms", lambda requests, times, seconds: of(times), more_is_better=False)


DECODE = Metric("decode", "tok/s", decode_rate)
PREFILL = Metric("prefill", "tok/s", lambda requests, times, seconds: len(requests[0].prompt) / times[0][0])
FIRST = latency("first token", lambda times: first_tokens(times)[0])
MEDIAN_FIRST = latency("median first token", lambda times: statistics.median(first_tokens(times)))
LATENCIES = [
    MEDIAN_FIRST,
    latency("first token, 99 % within", lambda times: worst(first_tokens(times))),
    latency("median later token", lambda times: statistics.median(later_tokens(times))),
    latency("later token, 99 % within", lambda times: worst(later_tokens(times))),
]
OUTPUT = Metric("output", "tok/s", lambda requests, times, seconds: sum(t[2] for t in times) / seconds)
SECONDS = Metric("all", "s", lambda requests, times, seconds: seconds, more_is_better=False)

C = [(entry["prompt_len"], entry["output_len"]) for entry in workload_c()]
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("A", "one request, 128 in, 128 out", [(128, 128)], [DECODE, FIRST]),
        Workload("A32", "32 requests at once, 128 in, 128 out", [(128, 128)] * 32, [DECODE]),
        Workload("B1024", "prefill of 1,024", [(1024, 1)], [PREFILL]),
        Workload("B4096", "prefill of 4,096", [(4096, 1)], [PREFILL]),
        Workload("C", "64 requests at once, 17,241 in, 9,172 out", C, [OUTPUT, MEDIAN_FIRST]),
        Workload("D", "32 x (1,024 shared + 32 in, 32 out)", [(1056, 32)] * 32, [SECONDS], shared=1024),
        Workload("C16", "the 64 requests over HTTP, 16 streams", C, [OUTPUT, *LATENCIES], streams=16),
    )
}
