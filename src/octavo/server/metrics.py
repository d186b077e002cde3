"""The engine's numbers in Prometheus' form, under vLLM's names with the prefix `octavo:`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from octavo.engine.stats import EngineStats, Histogram, Snapshot
from octavo.server.service import Service

LABELS = ("model_name", "engine")

HISTOGRAMS = {
    "time_to_first_token_seconds": ("time_to_first_token", "Seconds from arrival to the first token."),
    "inter_token_latency_seconds": ("inter_token_latency", "Seconds between tokens of a sequence."),
    "request_time_per_output_token_seconds": ("time_per_output_token", "Mean seconds per token after the first."),
    "e2e_request_latency_seconds": ("e2e_latency", "Seconds from arrival to the end."),
    "request_queue_time_seconds": ("queue_time", "Seconds from arrival to the first step."),
    "request_inference_time_seconds": ("inference_time", "Seconds from the first step to the end."),
    "request_prefill_time_seconds": ("prefill_time", "Seconds from the first step to the first token."),
    "request_decode_time_seconds": ("decode_time", "Seconds from the first token to the last."),
    "request_prompt_tokens": ("request_prompt_tokens", "Prompt tokens of a request."),
    "request_generation_tokens": ("request_generation_tokens", "Generated tokens of a request."),
    "request_params_max_tokens": ("request_max_tokens", "max_tokens of a request, as resolved."),
    "request_params_n": ("request_n", "n of a request."),
    "iteration_tokens_total": ("step_tokens", "Tokens computed in a step."),
}


class EngineCollector(Collector):
    """Reads the engine when it is asked; nothing is counted twice and nothing is done per token."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def describe(self) -> list[Metric]:
        return []  # registering must not read the engine

    def collect(self) -> Iterator[Metric]:
        snapshot = self.service.engine.stats()
        labels = (self.service.model_names[0], "0")
        yield from _gauges(snapshot, labels)
        yield from _counters(snapshot, labels)
        for name, (field, text) in HISTOGRAMS.items():
            yield _histogram(f"octavo:{name}", text, getattr(snapshot.totals, field), labels)
        card = GaugeMetricFamily(
            "octavo:model_info", "The served model.", labels=(*LABELS, "max_model_len", "system_fingerprint")
        )
        card.add_metric((*labels, str(self.service.max_model_len), self.service.fingerprint), 1)
        yield card


def _gauges(snapshot: Snapshot, labels: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, value in (
        ("num_requests_running", "Sequences that run.", snapshot.num_running),
        ("num_requests_waiting", "Sequences that wait.", snapshot.num_waiting),
        ("num_tokens_waiting", "Tokens of prompts that wait or are in computation.", snapshot.num_tokens_waiting),
        ("kv_cache_usage_perc", "Share of the KV cache's blocks in use, from 0 to 1.", snapshot.kv_cache_usage),
    ):
        gauge = GaugeMetricFamily(f"octavo:{name}", text, labels=LABELS)
        gauge.add_metric(labels, value)
        yield gauge


def _counters(snapshot: Snapshot, labels: tuple[str, ...]) -> Iterator[Metric]:
    totals: EngineStats = snapshot.totals
    for name, text, value in (
        ("prompt_tokens", "Prompt tokens of requests that were computed.", totals.prompt_tokens),
        ("prompt_tokens_cached", "Prompt tokens found in the cache.", totals.prompt_tokens_cached),
        ("generation_tokens", "Generated tokens.", totals.generation_tokens),
        ("num_preemptions", "Sequences that lost their blocks to others.", snapshot.num_preemptions),
        ("num_requests_rejected", "Requests that found the queue full.", snapshot.num_rejected),
        ("prefix_cache_queries", "Tokens looked for in the cache.", snapshot.prefix_queries),
        ("prefix_cache_hits", "Tokens found in the cache.", snapshot.prefix_hits),
        ("prefix_cache_query_blocks", "Blocks looked for in the cache.", snapshot.prefix_query_blocks),
        ("prefix_cache_hit_blocks", "Blocks found in the cache.", snapshot.prefix_hit_blocks),
        ("prefix_cache_evicted_blocks", "Cached blocks that gave way to others.", snapshot.num_evictions),
        ("prefix_cache_evicted_tokens", "Cached tokens that gave way to others.", snapshot.num_evicted_tokens),
        ("spec_decode_num_drafts", "Drafts of tokens that were computed.", snapshot.num_drafts),
        ("spec_decode_num_draft_tokens", "Tokens of those drafts.", snapshot.num_draft_tokens),
        ("spec_decode_num_accepted_tokens", "Tokens of those drafts that were sampled.", snapshot.num_accepted_tokens),
    ):
        counter = CounterMetricFamily(f"octavo:{name}", text, labels=LABELS)
        counter.add_metric(labels, value)
        yield counter
    finished = CounterMetricFamily(
        "octavo:request_success", "Sequences by their finish reason.", labels=(*LABELS, "finished_reason")
    )
    for reason, count in totals.request_success.items():
        finished.add_metric((*labels, reason), count)
    yield finished


def _histogram(name: str, text: str, histogram: Histogram, labels: tuple[str, ...]) -> Metric:
    bounds = [*(str(bound) for bound in histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, (float(count) for count in accumulate(histogram.counts)), strict=True))
    family = HistogramMetricFamily(name, text, labels=LABELS)
    family.add_metric(labels, buckets, histogram.total)
    return family
