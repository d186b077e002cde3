"""A document of 100,000 tokens in a context of 131,072: read once, found again for the next question."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tiny

from octavo import LLM, SamplingParams


def test_a_document_of_a_hundred_thousand_tokens_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_head = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 32}
    config = tiny.CONFIGS["llama"] | one_head | {"head_dim": 16, "max_position_embeddings": 131_072}
    monkeypatch.setitem(tiny.CONFIGS, "llama", config)
    path = tiny.write_checkpoint("llama", tmp_path / "long")
    generator = random.Random(0)
    document = [generator.randrange(256) for _ in range(100_000)]
    questions = [[*document, 7, 8, 9], [*document, 9, 8, 7]]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=2)
    with LLM(path, max_model_len=131_072, block_size=32, max_num_seqs=32, kv_cache_memory="64MiB") as llm:
        first = llm.generate(questions[:1], params, use_tqdm=False)
        both = llm.generate(questions, params, use_tqdm=False)
        scheduler = llm._loaded().engine.scheduler
        scheduler.check()
        assert scheduler.kv_cache_usage == 0
    assert [output.num_cached_tokens for output in first + both] == [0, 100_000, 100_000]
    assert both[0].outputs == first[0].outputs
    assert both[1].outputs[0].logprobs != first[0].outputs[0].logprobs
