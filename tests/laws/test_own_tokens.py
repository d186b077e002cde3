"""Law L1: a request's tokens, and the float32 bits of its logits, are its own."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from world import GGUF_FORMATS, Asked, Heard, load, mixed_requests, run_alone, run_together, tokens_of, write_gguf

from octavo import StructuredOutputsParams, _native
from octavo.engine.request import Sequence

ISAS = [name for name, supported, _ in _native.isa_levels() if supported]
BEST = ISAS[0]
CACHE_TYPES = ["bfloat16", "float16", "float32", "fp8_e4m3", "fp8_e5m2", "int8", "int16"]
FORMATS = ["float32", "bfloat16", "float16", *GGUF_FORMATS, "int8", "int4", "int4 of 128", "none"]


def checkpoint(folder: Path, name: str, length: int) -> Path:
    """A tiny checkpoint that may be served beyond the length of its goldens."""
    path = tiny.write_checkpoint(name, folder / name)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": length}))
    return path


def source(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    if kind in GGUF_FORMATS:
        return write_gguf(folder / f"{kind}.gguf", kind), {}
    if kind in ("none", "int4 of 128"):  # whose columns have such groups
        options = {"quantization": kind.split()[0], "quantization_group_size": 128}
        return write_gguf(folder / f"{kind}.gguf", "Q4_K"), options
    if kind in ("int8", "int4"):
        return checkpoint(folder, "gemma3", 4096), {"quantization": kind}
    return checkpoint(folder, "gemma3", 4096), {"dtype": kind}


class Prophet:
    """Drafts what a sequence did sample, with a wrong token now and then: tiny models repeat themselves too rarely."""

    def __init__(self, told: dict[str, list[list[int]]]) -> None:
        self._told = told

    def draft(self, sequence: Sequence, most: int) -> list[int]:
        at = sequence.num_output_tokens
        ids = list(self._told[sequence.request.request_id][sequence.index][at : at + most])
        if ids and (at + sequence.index) % 3:
            ids[at % len(ids)] ^= 1
        return ids


def ways(requests: list[Asked], path: Path, common: dict[str, Any]) -> dict[str, tuple[dict[str, Any], Heard]]:
    """The same requests in every way that must not matter."""
    shuffled = random.Random(1).sample(requests, len(requests))
    results: dict[str, tuple[dict[str, Any], Heard]] = {}

    def run(
        way: str, order: list[Asked], together: bool = True, warm: bool = False, drafter: Any = None, **options: Any
    ) -> Any:
        model, heard = load(path, **common | {"max_num_batched_tokens": 256, "max_num_seqs": 32} | options)
        if drafter is not None:
            speculation = model.engine.scheduler.speculation
            speculation.drafter, speculation.free_rows = drafter, 1e9  # whether they pay or not
        if warm:
            run_together(model, order)
            heard.logits.clear()
        outputs = (run_together if together else run_alone)(model, order)
        results[way] = (tokens_of(outputs), heard)
        scheduler = model.engine.scheduler
        model.close()
        return scheduler

    run("alone", requests, together=False, enable_prefix_caching=False, threads=1, async_scheduling=False)
    run("together", requests, enable_prefix_caching=False, threads=2)
    run("shuffled", shuffled, threads=2, async_scheduling=True)
    run("budget of 16", requests, max_num_batched_tokens=16, threads=2)
    hits = run("warm cache", requests, warm=True, threads=1, async_scheduling=True).num_prefix_hits
    blocks = -(-(max(len(ids) + params.max_tokens for _, ids, params in requests)) // 16) + 2
    preempted = run(
        "tiny pool",
        requests,
        kv_cache_memory=tiny_pool(path, common, blocks),
        max_model_len=16 * (blocks - 1),
        threads=2,
    )
    drafts = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    told = {name: [output[0] for output in outputs] for name, outputs in results["alone"][0].items()}
    drafted = run("drafted", requests, drafter=Prophet(told), speculative_config=drafts, threads=2)
    drafts_of = drafted.speculation
    assert 0 < drafts_of.num_accepted_tokens < drafts_of.num_draft_tokens, "drafts were all kept, or none"
    assert hits > 0, "the warm cache gave no hits"
    assert preempted.num_preemptions > 0, "the tiny pool did not preempt"
    assert results["budget of 16"][1].chunks > 0, "no prompt was cut into chunks"
    assert results["together"][1].mixed_steps > 0, "no step mixed prefill and decode"
    return results


def tiny_pool(path: Path, common: dict[str, Any], blocks: int) -> int:
    """Bytes of a pool that holds the longest request and little more."""
    model, _ = load(path, **common | {"max_num_batched_tokens": 256, "max_num_seqs": 1, "max_model_len": 16 * blocks})
    plan = model.cache_bytes
    model.close()
    return int(plan)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", FORMATS)
def test_bits_do_not_depend_on_company(kind: str, isa: str, tmp_path: Path) -> None:
    path, options = source(tmp_path, kind)
    few = isa != BEST
    requests = mixed_requests(8 if few else 16, 100 if few else 400, 8 if few else 24)
    compare(ways(requests, path, options | {"isa": isa}))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_cache_dtype", CACHE_TYPES)
def test_bits_do_not_depend_on_company_with_each_type_of_cache(kv_cache_dtype: str, isa: str, tmp_path: Path) -> None:
    """Prompts are longer than a range of keys, so that several partials merge."""
    options = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype, "isa": isa}
    compare(ways(mixed_requests(8, 400 if isa == BEST else 100, 8), checkpoint(tmp_path, "gemma3", 4096), options))


def compare(results: dict[str, tuple[dict[str, Any], Heard]]) -> None:
    tokens, heard = results["alone"]
    for way, (other, listened) in results.items():
        assert other == tokens, f"{way}: tokens, text or logprobs differ"
        # A request that was preempted computes some positions again: the same bits again.
        differing = [key for key, digest in listened.logits.items() if heard.logits[key] != digest]
        assert not differing, f"{way}: logits of {differing[:3]} differ"
        if way != "warm cache":
            assert listened.logits.keys() == heard.logits.keys()


def test_sixty_four_requests_past_the_window(tmp_path: Path) -> None:
    """Prompts of up to 3,000 tokens over windows of 32, at least 64 tokens each."""
    compare(ways(mixed_requests(64, 3000, 64), checkpoint(tmp_path, "gemma3", 4096), {"dtype": "bfloat16"}))


CONSTRAINTS = [
    StructuredOutputsParams(json={"type": "array", "items": {"type": "string"}, "minItems": 2}),
    StructuredOutputsParams(regex=r"([a-c]{1,3} ?){4,}\."),
    StructuredOutputsParams(json_object=True),
    StructuredOutputsParams(grammar='start: "(" (start | /[0-9]+/)* ")"'),
    StructuredOutputsParams(choice=["ab" * 20, "ab" * 10 + "c"]),
]


@pytest.mark.parametrize("kind", ["float32", "Q4_K"])
def test_bits_under_a_grammar(kind: str, tmp_path: Path) -> None:
    """Half of the requests are constrained, in all ways, some with n = 2, penalties or logprobs, some beside others."""
    path, options = source(tmp_path, kind)
    requests = [
        (name, ids, replace(params, structured_outputs=CONSTRAINTS[i % len(CONSTRAINTS)] if i % 4 < 2 else None))
        for i, (name, ids, params) in enumerate(mixed_requests(12, 100, 16))
    ]
    compare(ways(requests, path, options))


ROW_DEPENDENT = '''
"""Llama, but layer 0 adds up its q in an order of K that depends on how many rows there are."""
from dataclasses import replace

import numpy as np

from octavo import _native
from octavo.model.architectures import HF_ARCHITECTURES
from octavo.model.decoder import decoder


class OrderedByRows:
    def __init__(self, ops, weight):
        self._ops, self._weight, self._values = ops, weight, _native.unpack(weight)

    def __getattr__(self, name):
        return getattr(self._ops, name)

    def linear(self, x, weight, bias=None):
        y = self._ops.linear(x, weight, bias)
        return self._ops.call(self._product, y, x) if weight is self._weight else y

    def _product(self, y, x):
        order = range(x.shape[1]) if len(x) == 1 else reversed(range(x.shape[1]))
        total = np.zeros_like(y)
        for k in order:
            total += x[:, k : k + 1] * self._values[:, k]
        return total


def by_rows(config, weights, ops, cuts=()):
    return decoder(config, weights, OrderedByRows(ops, weights["layers.0.q"]), cuts)


ARCHITECTURES = {"Qwen3ForCausalLM": replace(HF_ARCHITECTURES["Qwen3ForCausalLM"], decoder=by_rows)}
'''


def test_the_check_fails_when_the_order_of_k_depends_on_the_rows(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, "qwen3", 4096)
    (tmp_path / "by_rows.py").write_text(ROW_DEPENDENT)
    results = ways(
        mixed_requests(16, 200, 16), path, {"dtype": "float32", "architecture": str(tmp_path / "by_rows.py")}
    )
    with pytest.raises(AssertionError, match="differ"):
        compare(results)
