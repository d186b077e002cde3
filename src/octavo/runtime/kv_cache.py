"""Sizes the paged KV cache: how many blocks each cache group gets, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ConfigError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A cache group: layers that share block tables. `window` 0 is full attention."""

    window: int
    num_layers: int
    bytes_per_block: int  # keys and values of a block in all layers of the group


@dataclass(frozen=True, slots=True)
class CachePlan:
    """Blocks for each group, and the longest sequence that they hold."""

    num_blocks: tuple[int, ...]
    max_model_len: int
    bytes: int
    block_size: int

    @property
    def num_tokens(self) -> int:
        """Tokens that the group of the longest memory can hold."""
        return self.num_blocks[0] * self.block_size


def blocks_for(spec: GroupSpec, tokens: int, block_size: int, chunk: int) -> int:
    """Blocks that one sequence of `tokens` owns at most, when up to `chunk` of its tokens are computed in a step.

    A window group keeps the chunk, the window before it, and one block more for being cut at both ends.
    """
    if spec.window:
        return -(-min(tokens, spec.window + chunk) // block_size) + 1
    return -(-tokens // block_size)


def plan_cache(
    groups: Sequence[GroupSpec],
    budget: int,
    max_model_len: int,
    max_num_seqs: int,
    block_size: int,
    chunk: int,
) -> CachePlan:
    """Divides `budget` bytes so that every group can hold the same number of sequences of max_model_len."""

    def cost(tokens: int) -> list[int]:
        return [blocks_for(group, tokens, block_size, chunk) for group in groups]

    def size(blocks: Sequence[int]) -> int:
        return sum(count * group.bytes_per_block for count, group in zip(blocks, groups, strict=True))

    one = cost(max_model_len)
    if size(one) > budget:
        longest = longest_context(groups, budget, max_model_len, block_size, chunk)
        raise ConfigError(too_small(budget, size(one), max_model_len, longest))
    sequences = min(float(max_num_seqs), budget / size(one))
    blocks = [max(count, int(count * sequences)) for count in one]
    return CachePlan(tuple(blocks), max_model_len, size(blocks), block_size)


def longest_context(groups: Sequence[GroupSpec], budget: int, limit: int, block_size: int, chunk: int) -> int:
    """The most tokens, in whole blocks up to `limit`, of one sequence that `budget` bytes hold."""

    def fits(tokens: int) -> bool:
        return sum(blocks_for(g, tokens, block_size, chunk) * g.bytes_per_block for g in groups) <= budget

    if fits(limit):
        return limit
    low, high = 0, limit // block_size
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * block_size) else (low, middle - 1)
    return low * block_size


def too_small(budget: int, needed: int, max_model_len: int, longest: int) -> str:
    return (
        f"The KV cache has {budget / MIB:,.1f} MiB, and one sequence of max_model_len = {max_model_len} tokens needs "
        f"{needed / MIB:,.1f} MiB; {longest} tokens fit. Use --max-model-len {max(longest, 1)} (or auto), "
        f"or --kv-cache-memory {-(-needed // MIB)}MiB, or raise --memory-utilization."
    )
