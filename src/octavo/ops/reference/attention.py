"""Paged attention by its definition, and the cache that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from octavo.ops.interface import AttentionSpec
from octavo.ops.reference.elementwise import softcap
from octavo.ops.reference.inputs import StepInputs
from octavo.ops.reference.numbers import StorageType, Values, round_to


class PagedCache:
    """Keys and values of every layer, [num_blocks, block_size, kv_heads, head_dim] each, stored in `dtype`.

    layer_groups: the cache group of each layer; num_blocks: the blocks of each group. What was never written is NaN, so
    that reading it shows.
    """

    def __init__(
        self,
        layer_groups: Sequence[int],
        num_blocks: Sequence[int],
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: StorageType = "f64",
    ) -> None:
        self.layer_groups = tuple(layer_groups)
        self.block_size = block_size
        self.dtype: StorageType = dtype
        shapes = [(num_blocks[group], block_size, num_kv_heads, head_dim) for group in layer_groups]
        self.keys = [np.full(shape, np.nan) for shape in shapes]
        self.values = [np.full(shape, np.nan) for shape in shapes]

    def copy_blocks(self, copies: Iterable[tuple[int, int, int]]) -> None:
        """Applies (group, source, destination) copies in every layer of the group; all reads come before any write."""
        copies = list(copies)
        for store in (self.keys, self.values):
            for layer, blocks in enumerate(store):
                moves = [(src, dst) for group, src, dst in copies if group == self.layer_groups[layer]]
                if moves:
                    sources, destinations = map(list, zip(*moves, strict=True))
                    blocks[destinations] = blocks[sources]  # fancy indexing reads all before it writes

    def store(self, layer: int, k: Values, v: Values, slot_mapping: npt.NDArray[np.int64]) -> None:
        """Writes k, v [T, kv_heads * head_dim] to their slots; slot -1 is left out."""
        rows = slot_mapping >= 0
        for store, x in ((self.keys[layer], k), (self.values[layer], v)):
            flat = store.reshape(-1, *store.shape[2:])
            flat[slot_mapping[rows]] = round_to(x[rows].reshape(-1, *store.shape[2:]), self.dtype)

    def read(self, layer: int, block_table: npt.NDArray[np.int32], start: int, end: int) -> tuple[Values, Values]:
        """Keys and values [end - start, kv_heads, head_dim] of the positions [start, end) of one sequence."""
        positions = np.arange(start, end)
        blocks, offsets = block_table[positions // self.block_size], positions % self.block_size
        if (blocks < 0).any():
            raise ValueError(f"layer {layer} reads a position in [{start}, {end}) that has no block")
        return self.keys[layer][blocks, offsets], self.values[layer][blocks, offsets]


def paged_attention(q: Values, cache: PagedCache, layer: int, inputs: StepInputs, spec: AttentionSpec) -> Values:
    """q [T, heads * head_dim] over cached keys and values: [T, heads * head_dim]; a token of no sequence gets zeros."""
    out = np.zeros_like(q)
    table = inputs.block_tables[cache.layer_groups[layer]]
    for s in range(len(inputs.seq_lens)):
        rows = slice(inputs.query_start[s], inputs.query_start[s + 1])
        end = int(inputs.seq_lens[s])
        first = end - (rows.stop - rows.start)
        if first == end:
            continue
        start = max(0, first - spec.window + 1) if spec.window else 0
        k, v = cache.read(layer, table[s], start, end)
        queries = q[rows].reshape(end - first, spec.num_heads, spec.head_dim)
        out[rows] = attend(queries, k, v, np.arange(first, end), np.arange(start, end), spec).reshape(end - first, -1)
    return out


def attend(
    q: Values,
    k: Values,
    v: Values,
    q_positions: npt.NDArray[np.int_],
    k_positions: npt.NDArray[np.int_],
    spec: AttentionSpec,
) -> Values:
    """softmax(softcap(q.k * scale)) v for q [n, heads, d] and k, v [m, kv_heads, d], heads / kv_heads to a group."""
    group = spec.num_heads // spec.num_kv_heads
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = softcap(np.einsum("nhd,mhd->hnm", q, k) * spec.scale, spec.softcap)
    distance = q_positions[:, None] - k_positions[None, :]
    seen = (distance >= 0) & ((distance < spec.window) if spec.window else True)
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    out: Values = np.einsum("hnm,mhd->nhd", weights, v)
    return out
