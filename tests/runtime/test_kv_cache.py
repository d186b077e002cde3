"""How the bytes of the KV cache are divided between cache groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.runtime.kv_cache import GroupSpec, blocks_for, plan_cache

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
