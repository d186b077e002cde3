"""What the engine counts, as plain numbers: the server turns a snapshot into metrics."""

import math
from bisect import bisect_left
from dataclasses import dataclass

# Upper bounds in seconds and tokens; those of vLLM, so that its dashboards fit.
FIRST_TOKEN_SECONDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKEN_SECONDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_SECONDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
STEP_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
REQUEST_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
SEQUENCES = (1.0, 2.0, 5.0, 10.0, 20.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "timeout")


class Histogram:
    """`counts[i]` observations were at most `bounds[i]` and above the bound before it; the last count has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0  # sum of the observations

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class BusyRate:
    """How often something happens while there is work, the last minute of work weighing most.

    Idle time is left out: it says nothing of how fast a queue would empty.
    """

    MEMORY = 60.0  # seconds of work after which an event weighs 1/e

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events = 0.0

    def observe(self, events: int, seconds: float) -> None:
        kept = math.exp(-seconds / self.MEMORY)
        self._seconds = self._seconds * kept + seconds
        self._events = self._events * kept + events

    def seconds_for(self, events: int) -> float:
        """How long so many take. Before the first has happened it is taken to happen now."""
        return events * self._seconds / max(self._events, 1.0)


class EngineStats:
    """Totals since the start.

    request_success counts every sequence by its finish reason, so that a request with n = 3 counts three; a refused
    request counts nowhere. Times are observed once a request, at its end, save the first two.
    """

    def __init__(self) -> None:
        self.prompt_tokens = 0  # of requests whose prompt was computed
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.request_success = dict.fromkeys(FINISH_REASONS, 0)
        self.time_to_first_token = Histogram(FIRST_TOKEN_SECONDS)  # since arrival; requests that made a token
        self.inter_token_latency = Histogram(TOKEN_SECONDS)  # every token but the first of a sequence
        self.time_per_output_token = Histogram(TOKEN_SECONDS)  # mean of a request after its first token
        self.e2e_latency = Histogram(REQUEST_SECONDS)
        self.queue_time = Histogram(REQUEST_SECONDS)  # arrival to first scheduled
        self.inference_time = Histogram(REQUEST_SECONDS)  # first scheduled to end
        self.prefill_time = Histogram(REQUEST_SECONDS)  # first scheduled to first token
        self.decode_time = Histogram(REQUEST_SECONDS)  # first token to last
        self.request_prompt_tokens = Histogram(REQUEST_TOKENS)
        self.request_generation_tokens = Histogram(REQUEST_TOKENS)
        self.request_max_tokens = Histogram(REQUEST_TOKENS)
        self.request_n = Histogram(SEQUENCES)
        self.step_tokens = Histogram(STEP_TOKENS)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One look at a running engine. `totals` is a copy."""

    num_running: int  # sequences
    num_waiting: int
    kv_cache_usage: float  # 0..1; cached blocks that nobody uses count as free
    num_preemptions: int
    prefix_queries: int  # tokens
    prefix_hits: int
    prefix_query_blocks: int
    prefix_hit_blocks: int
    num_evictions: int  # blocks
    num_evicted_tokens: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_steps: int
    totals: EngineStats
    num_tokens_waiting: int = 0  # of prompts that are not computed, as the bound on the queue counts them
    num_rejected: int = 0  # requests that found the queue full
