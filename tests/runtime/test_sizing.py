"""What a model needs beside its weights, and the longest context for which there is room."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny

from octavo import build as composition
from octavo.build import build
from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelError
from octavo.model_files import describe
from octavo.runtime.runner import NativeRunner
from octavo.runtime.sizing import group_specs, plan_pool
from octavo.sampling_params import SamplingParams
from octavo.weights.checkpoint import open_checkpoint

MIB = 1 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama that was made for 64 Ki tokens."""
    path = tiny.write_checkpoint("llama", tmp_path_factory.mktemp("checkpoint") / "tiny")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 65536}))
    return path


@pytest.mark.parametrize("bytes_per_token", [0, 100, 10_000])
def test_auto_is_the_longest_context_for_which_all_fits(folder: Path, bytes_per_token: int) -> None:
    """The workspace of a longer context takes from the cache: neither may be sized without the other."""
    asked = EngineConfig(model=str(folder), max_model_len="auto", kv_cache_memory=8 * MIB, memory_utilization=1.0)
    model = describe(open_checkpoint(folder), asked)

    def plan(config: EngineConfig, length: int) -> int:
        workspace = lambda longest: MIB + bytes_per_token * longest  # noqa: E731
        specs = group_specs(model, config.block_size, "bf16")
        return plan_pool(config, specs, 40 * MIB, MIB, workspace, length, 512).max_model_len

    longest = plan(asked, 65536)
    assert longest % 16 == 0
    exact = EngineConfig(model=str(folder), max_model_len=longest, kv_cache_memory=8 * MIB, memory_utilization=1.0)
    assert plan(exact, longest) == longest
    with pytest.raises(ConfigError):
        plan(exact, longest + 16)
    # 3 layers of keys and values, 2 heads of 16, of 2 bytes.
    assert longest == min(8 * MIB // 384, 30 * MIB // max(bytes_per_token, 1)) // 16 * 16


def test_the_arrays_of_a_step_are_sized_for_the_context_that_is_served(folder: Path) -> None:
    model = build(
        EngineConfig(
            model=str(folder),
            max_model_len="auto",
            kv_cache_memory=MIB,
            kv_cache_dtype="bfloat16",
            async_scheduling=False,
        )
    )
    runner = model.engine.runner
    assert isinstance(runner, NativeRunner)
    group = runner.program.inputs.groups[0]
    assert model.max_model_len == MIB // 384 // 16 * 16 < 65536
    assert group.block_table.shape[1] == model.max_model_len // 16
    whole = SamplingParams(max_tokens=None, ignore_eos=True, temperature=0)
    model.engine.add(model.admit("r", [5] * (model.max_model_len - 4), whole))
    reasons = []
    while model.engine.has_work():
        reasons += [news.finish_reason for news in model.engine.step()]
    assert reasons[-1] == "length"
    model.close()


def test_the_arrays_of_a_step_count_in_the_sum(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "available_memory", lambda: 40 * MIB)
    shown = []
    for length in (1024, 16384):
        with pytest.raises(ConfigError) as refused:
            build(EngineConfig(model=str(folder), max_model_len=length, max_num_seqs=65536, async_scheduling=False))
        found = re.search(r"workspace \(([\d.]+) GiB\)", str(refused.value))
        assert found is not None
        shown.append(float(found[1]))
    # The block tables: 960 blocks more for each of 65,536 sequences.
    assert shown[1] - shown[0] == pytest.approx(960 * 65536 * 4 / (1 << 30), abs=0.02)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"kv_cache_memory": 1 << 16}, "--kv-cache-memory"),
        ({"kv_cache_memory": 1 << 60}, "do not fit"),
        ({"enable_chunked_prefill": False, "max_num_batched_tokens": 32}, "chunked prefill"),
        ({"chat_template": "/no/such/template"}, "/no/such/template"),
        ({"tokenizer": "/no/such/tokenizer"}, "/no/such/tokenizer"),
        ({"max_model_len": 1 << 20}, "65536 positions"),
        ({"isa": "z80"}, "z80"),
    ],
)
def test_what_can_be_known_before_is_refused_before_the_weights_are_read(
    folder: Path, options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composition, "pack_weights", lambda *arguments: pytest.fail("the weights were read"))
    with pytest.raises((ConfigError, ModelError), match=says):
        build(EngineConfig(model=str(folder), threads=1, **options))


def test_a_wrong_generation_config_is_refused_before_the_weights_are_read(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "generation_config.json").write_text(json.dumps({"temperature": -1}))
    monkeypatch.setattr(composition, "pack_weights", lambda *arguments: pytest.fail("the weights were read"))
    with pytest.raises(ModelError, match="generation_config"):
        build(EngineConfig(model=str(copy), threads=1))


def test_auto_without_chunked_prefill_is_what_a_step_can_hold(folder: Path) -> None:
    for budget, longest in ((512, 512), (None, 2048)):
        options: dict[str, Any] = {"enable_chunked_prefill": False, "max_num_batched_tokens": budget}
        model = build(EngineConfig(model=str(folder), max_model_len="auto", threads=1, **options))
        assert model.max_model_len == longest
        model.close()


def budget_of(path: Path, **options: Any) -> int:
    model = build(EngineConfig(model=str(path), kv_cache_memory=64 * MIB, **options))
    budget = model.engine.scheduler.config.max_num_batched_tokens
    assert "window" not in path.name or len(model.engine.scheduler.tables.groups) == 2
    model.close()
    return budget


def test_the_token_budget_is_measured_unless_it_is_asked_for(tmp_path: Path) -> None:
    path = tiny.write_checkpoint("llama", tmp_path / "llama")
    measured = budget_of(path, max_num_seqs=8, max_model_len=256)
    assert 8 + 64 <= measured <= 2048
    assert budget_of(path, max_num_seqs=8, max_model_len=256, max_num_batched_tokens=17) == 17
    # A whole prompt is one step.
    assert budget_of(path, max_model_len=200, enable_chunked_prefill=False) == 200
    assert budget_of(path, max_num_seqs=5000, max_model_len=256) == 5064


def test_steps_are_no_longer_than_the_blocks_behind_a_window_allow(tmp_path: Path) -> None:
    """What is measured must not refuse a cache that shorter steps get by with."""
    path = tiny.write_checkpoint("gemma3", tmp_path / "window")
    options: dict[str, Any] = {"model": str(path), "max_num_seqs": 1, "max_model_len": 256, "block_size": 16}
    with pytest.raises(ConfigError, match="--kv-cache-memory") as refused:
        build(EngineConfig(**options, kv_cache_memory=1 << 12, max_num_batched_tokens=65))
    (needed,) = re.findall(r"needs ([\d.]+) MiB", str(refused.value))
    model = build(EngineConfig(**options, kv_cache_memory=int((float(needed) + 0.1) * MIB)))
    assert model.engine.scheduler.config.max_num_batched_tokens >= 65
    model.close()


def test_steps_are_no_longer_than_the_memory_for_them_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured must not refuse a machine that shorter steps get by with."""
    path = tiny.write_checkpoint("llama", tmp_path / "llama")
    options: dict[str, Any] = {"model": str(path), "max_num_seqs": 1, "max_model_len": 64, "kv_cache_memory": MIB // 2}
    available = 256 * MIB
    monkeypatch.setattr(composition, "available_memory", lambda: available)
    try:
        while True:
            build(EngineConfig(**options, max_num_batched_tokens=2048)).close()
            available = available * 9 // 10
    except ConfigError as refused:
        assert "lower --kv-cache-memory or --max-num-batched-tokens" in str(refused)
    monkeypatch.setattr(composition, "measured_budget", lambda *_: (2048, 0.0))
    model = build(EngineConfig(**options))
    assert model.engine.scheduler.config.max_num_batched_tokens == 65
    model.close()
