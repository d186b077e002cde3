"""How the bytes of the KV cache are divided between cache groups."""

import json
import logging
from pathlib import Path

import pytest
import tiny
from hypothesis import given
from hypothesis import strategies as st

from octavo import _native
from octavo.build import build
from octavo.config import KV_CACHE_TYPES, EngineConfig
from octavo.errors import ConfigError
from octavo.model_files import open_files
from octavo.runtime.kv_cache import GroupSpec, blocks_for, plan_cache
from octavo.sampling_params import SamplingParams

MIB = 1 << 20
# Bytes of the keys, or the values, of a token in one of tiny's heads: 16 values, and a scale.
BYTES = {"bf16": 32, "f16": 32, "f32": 64, "fp8_e4m3": 16, "fp8_e5m2": 16, "int8": 20, "int16": 36}

groups = st.lists(
    st.builds(
        GroupSpec,
        window=st.sampled_from([0, 32, 512]),
        num_layers=st.integers(1, 40),
        bytes_per_block=st.integers(1_000, 1_000_000),
    ),
    min_size=1,
    max_size=3,
)


@given(
    groups=groups,
    budget=st.integers(1_000_000, 10_000_000_000),
    max_model_len=st.integers(16, 100_000),
    max_num_seqs=st.integers(1, 512),
    block_size=st.sampled_from([16, 32, 128]),
    chunk=st.integers(16, 4096),
)
def test_a_plan_holds_a_whole_sequence_and_stays_within_its_budget(
    groups: list[GroupSpec], budget: int, max_model_len: int, max_num_seqs: int, block_size: int, chunk: int
) -> None:
    try:
        plan = plan_cache(groups, budget, max_model_len, max_num_seqs, block_size, chunk)
    except ConfigError as error:
        needed = sum(blocks_for(g, max_model_len, block_size, chunk) * g.bytes_per_block for g in groups)
        assert needed > budget
        assert str(max_model_len) in str(error) and "--kv-cache-memory" in str(error)
        return
    assert plan.bytes <= budget
    assert plan.max_model_len == max_model_len
    for group, blocks in zip(groups, plan.num_blocks, strict=True):
        need = blocks_for(group, plan.max_model_len, block_size, chunk)
        assert need <= blocks <= need * max_num_seqs


def test_what_the_refusal_suggests_works() -> None:
    specs = [GroupSpec(0, 30, 1 << 20)]
    with pytest.raises(ConfigError) as refused:
        plan_cache(specs, 10 << 20, 4096, 8, 16, 512)
    words = str(refused.value).replace(",", " ").split()
    length = int(words[words.index("--max-model-len") + 1])
    assert plan_cache(specs, 10 << 20, length, 8, 16, 512).max_model_len == length
    size = next(word for word in words if word.endswith("MiB") and word[:-3].isdigit())
    assert plan_cache(specs, int(size[:-3]) << 20, 4096, 8, 16, 512).max_model_len == 4096


def test_a_window_group_needs_blocks_for_its_window_only() -> None:
    window = GroupSpec(512, 15, 1000)
    assert blocks_for(window, 100_000, 16, 256) == blocks_for(window, 10_000, 16, 256) == (512 + 256) // 16 + 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama that was made for 64 Ki tokens: 3 layers, 2 heads of keys and values."""
    path = tiny.write_checkpoint("llama", tmp_path_factory.mktemp("checkpoint") / "tiny")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 65536}))
    return path


@pytest.mark.parametrize("block_size", [16, 32, 64, 128])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", *KV_CACHE_TYPES])
def test_the_bytes_of_each_type_are_known_at_the_start(
    folder: Path, kv_cache_dtype: str, block_size: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kept = KV_CACHE_TYPES.get(kv_cache_dtype, "int16" if _native.select_isa().fastest_as_int16 else "bf16")
    each = block_size * 3 * 2 * 2 * BYTES[kept]
    model = build(
        EngineConfig(
            model=str(folder),
            kv_cache_dtype=kv_cache_dtype,
            block_size=block_size,
            kv_cache_memory=MIB,
            max_model_len="auto",
            threads=1,
        )
    )
    pool = model.engine.scheduler.tables.pools[0]
    assert pool.num_blocks == MIB // each and model.cache_bytes == pool.num_blocks * each
    assert _native.KVCache(3, pool.num_blocks, block_size, 2, 16, kept).bytes == model.cache_bytes
    assert model.max_model_len == pool.num_blocks * block_size
    assert f"KV pool ({kept})" in caplog.text
    model.engine.add(model.admit("r", [5] * (block_size + 1), SamplingParams(max_tokens=2, ignore_eos=True)))
    reasons = []
    while model.engine.has_work():
        reasons += [news.finish_reason for news in model.engine.step()]
    assert reasons[-1] == "length"
    model.close()


@pytest.mark.parametrize("isa", [name for name, supported, _ in _native.isa_levels() if supported])
def test_what_auto_keeps(folder: Path, isa: str) -> None:
    def kept(**options: str) -> str:
        return open_files(EngineConfig(model=str(folder), isa=isa, **options)).kv_type

    own = isa in ("scalar", "neon", "neon_i8mm")
    assert kept() == ("bf16" if own else "int16")
    assert kept(dtype="float16") == ("f16" if own else "int16")
    assert kept(dtype="float32") == "f32"
    assert kept(kv_cache_dtype="bfloat16") == "bf16"


@pytest.mark.parametrize("kv_cache_dtype", ["fp16", "fp4", "int4", "turboquant", ""])
def test_other_types_are_refused_by_name(kv_cache_dtype: str) -> None:
    with pytest.raises(ConfigError) as refused:
        EngineConfig(kv_cache_dtype=kv_cache_dtype)
    assert repr(kv_cache_dtype) in str(refused.value)
    assert all(name in str(refused.value) for name in ("auto", *KV_CACHE_TYPES))
