"""Law L1 with a draft model: whatever drafts, the tokens and the bits of the logits are those of the model alone."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import tiny
from test_own_tokens import checkpoint, tiny_pool
from world import Heard, load, mixed_requests, run_together, tokens_of

from octavo.engine.outputs import RequestOutput
from octavo.engine.speculation import Speculation
from octavo.errors import ConfigError
from octavo.sampling_params import BeamSearchParams, SamplingParams

REQUESTS = mixed_requests(12, 120, 20)
COMMON: dict[str, Any] = {"dtype": "float32", "max_num_seqs": 16, "max_model_len": 256}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    for name in ("gemma3", "llama"):
        checkpoint(path, name, 4096)
    return path


def run(
    folder: Path, draft: str | None, warm: bool = False, lookahead: int = 0, **options: Any
) -> tuple[dict[str, Any], Heard, Any]:
    if draft is not None:
        options["speculative_config"] = {
            "method": "draft_model",
            "model": str(folder / draft),
            "num_speculative_tokens": 4,
        }
    model, heard = load(folder / "gemma3", **COMMON | options)
    scheduler = model.engine.scheduler
    scheduler.speculation.free_rows, scheduler.speculation.drafter_cost = 1e9, 0.0  # whether they pay or not
    model.engine._lookahead = lookahead
    if warm:
        run_together(model, REQUESTS)
    tokens = tokens_of(run_together(model, REQUESTS))
    model.close()
    return tokens, heard, scheduler


@pytest.fixture(scope="module")
def alone(folder: Path) -> tuple[dict[str, Any], Heard, Any]:
    return run(folder, None, threads=1)


def tight(folder: Path) -> dict[str, Any]:
    """A pool of both models that holds the longest request and little more."""
    blocks = -(-(max(len(ids) + params.max_tokens for _, ids, params in REQUESTS)) // 16) + 2
    speculation = {"method": "draft_model", "model": str(folder / "gemma3"), "num_speculative_tokens": 4}
    size = tiny_pool(folder / "gemma3", COMMON | {"speculative_config": speculation}, blocks)
    return {"kv_cache_memory": size, "max_model_len": 16 * (blocks - 1), "max_num_batched_tokens": 256}


@pytest.mark.parametrize("way", ["one thread", "two threads", "chunks", "warm cache", "tiny pool"])
def test_a_model_that_drafts_for_itself_is_always_right(folder: Path, alone: Any, way: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "one thread": {"threads": 1},
        "two threads": {"threads": 2},
        "chunks": {"max_num_batched_tokens": 32},
        "warm cache": {"warm": True},
        "tiny pool": {},
    }
    tokens, heard, scheduler = run(folder, "gemma3", **(tight(folder) if way == "tiny pool" else options[way]))
    speculation: Speculation = scheduler.speculation
    same(alone, tokens, heard)
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens > 100
    if way == "chunks":
        assert heard.chunks > 0
    if way == "warm cache":
        assert scheduler.num_prefix_hits > 0
    if way == "tiny pool":
        assert scheduler.num_preemptions > 0


@pytest.mark.parametrize("way", [{}, {"warm": True, "max_num_batched_tokens": 32}])
def test_another_model_is_seldom_right_and_never_heard(folder: Path, alone: Any, way: dict[str, Any]) -> None:
    tokens, heard, scheduler = run(folder, "llama", **way)
    speculation: Speculation = scheduler.speculation
    same(alone, tokens, heard)
    assert 0 <= speculation.num_accepted_tokens < 0.3 * speculation.num_draft_tokens


def test_steps_ahead_of_the_last_commit_are_no_fault(
    folder: Path, alone: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The draft model computes a token that the model has just sampled and the scheduler has not seen."""
    tokens, heard, scheduler = run(folder, "gemma3", lookahead=1)
    same(alone, tokens, heard)
    assert scheduler.speculation.num_accepted_tokens == scheduler.speculation.num_draft_tokens
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_broken_draft_model_ends_no_request(folder: Path, alone: Any) -> None:
    path = tiny.write_checkpoint("llama", folder / "broken")
    weights = tiny.make_weights("llama")
    weights["model.norm.weight"] *= float("nan")
    tiny.write_safetensors(path / "model.safetensors", weights)
    tokens, heard, scheduler = run(folder, "broken")
    same(alone, tokens, heard)
    assert scheduler.speculation.num_draft_tokens > 100


def same(alone: Any, tokens: dict[str, Any], heard: Heard) -> None:
    assert tokens == alone[0]
    assert not [key for key, digest in heard.logits.items() if alone[1].logits[key] != digest]


def test_filters_that_read_the_text_see_the_drafts(folder: Path) -> None:
    """Bad words, min_tokens, biases and allowed ids, which the draft's sampler must apply as the model's will."""
    params = SamplingParams(
        temperature=1.0, seed=4, max_tokens=60, min_tokens=50, bad_words=["a", "b c"], logit_bias={7: 3.0},
        allowed_token_ids=list(range(5, 120)), repetition_penalty=1.3, logprobs=2,
    )  # fmt: skip
    results = []
    for draft in (None, "gemma3"):
        options: dict[str, Any] = {}
        if draft:
            options["speculative_config"] = {
                "method": "draft_model", "model": str(folder / draft), "num_speculative_tokens": 6,
            }  # fmt: skip
        model, _ = load(folder / "gemma3", **COMMON | options)
        speculation = model.engine.scheduler.speculation
        speculation.free_rows, speculation.drafter_cost = 1e9, 0.0
        results.append(tokens_of(run_together(model, [("r", [1, 2, 3], params)])))
        model.close()
    assert results[0] == results[1]
    assert speculation.num_accepted_tokens == speculation.num_draft_tokens > 30


def test_beams_and_the_best_of_several_go_with_drafts_beside_them(folder: Path) -> None:
    asked: list[Any] = [
        ("beams", [1, 2, 3, 4] * 9, SamplingParams(max_tokens=16), BeamSearchParams(beam_width=3, max_tokens=16)),
        ("best", [5, 6] * 20, SamplingParams(n=1, best_of=3, temperature=1.0, seed=3, max_tokens=16), None),
        ("plain", [7, 8] * 20, SamplingParams(temperature=1.0, seed=3, max_tokens=30, ignore_eos=True), None),
    ]
    results = []
    for speculation in (None, {"model": str(folder / "gemma3"), "num_speculative_tokens": 4}):
        model, _ = load(folder / "gemma3", **COMMON, speculative_config=speculation)
        drafts = model.engine.scheduler.speculation
        drafts.free_rows, drafts.drafter_cost = 1e9, 0.0
        told: dict[str, RequestOutput] = {}
        for name, ids, params, beams in asked:
            request = model.admit(name, ids, params, beams=beams)
            told[name] = RequestOutput.empty(request)
            model.engine.add(request)
        while model.engine.has_work():
            for news in model.engine.step():
                told[news.request_id].apply(news)
            model.engine.scheduler.check()
        results.append(tokens_of(told))
        model.close()
    assert results[0] == results[1]
    assert drafts.num_accepted_tokens == drafts.num_draft_tokens > 20


def test_memory_of_both_is_counted(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Weights, and the blocks of the draft model's groups, in the sums of the start."""
    plain, _ = load(folder / "gemma3", **COMMON, kv_cache_memory="2MiB")
    with caplog.at_level(logging.INFO, "octavo"):
        both, _ = load(
            folder / "gemma3",
            **COMMON,
            kv_cache_memory="2MiB",
            speculative_config={"model": str(folder / "gemma3"), "num_speculative_tokens": 1},
        )
    assert both.weight_bytes == 2 * plain.weight_bytes
    assert both.cache_bytes <= 2 << 20
    counts = [group.num_blocks for group in both.engine.scheduler.tables.groups]
    alone = [group.num_blocks for group in plain.engine.scheduler.tables.groups]
    assert counts == counts[: len(alone)] * 2 and counts[0] < alone[0]
    assert any("gemma3" in line and "drafts" in line for line in caplog.messages)
    plain.close()
    both.close()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"vocab_size": 321}, "321 tokens and the model 320"),
        ({"max_position_embeddings": 128}, "--max-model-len 128"),
        ({}, "token 65 is"),
    ],
)
def test_another_vocabulary_or_a_shorter_context_is_refused(
    folder: Path, tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    other = tiny.CONFIGS["llama"] | change
    path = tiny.write_checkpoint("llama", tmp_path / "other")
    tiny.write_json(path / "config.json", other)
    if not change:
        backend = tiny.tokenizer()
        vocab = backend["model"]["vocab"]
        first, second = (next(token for token, i in vocab.items() if i == wanted) for wanted in (65, 66))
        vocab[first], vocab[second] = 66, 65
        tiny.write_json(path / "tokenizer.json", backend)
    if "vocab_size" in change:
        weights = tiny.make_weights("llama")
        for name, tensor in weights.items():
            if tensor.ndim == 2 and len(tensor) == 320:
                weights[name] = tensor[[*range(320), 0]]
        tiny.write_safetensors(path / "model.safetensors", weights)
    with pytest.raises(ConfigError, match=named):
        load(
            folder / "gemma3",
            **COMMON,
            speculative_config={"method": "draft_model", "model": str(path), "num_speculative_tokens": 2},
        )
