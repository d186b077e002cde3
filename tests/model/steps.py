"""Drives a decoder over the paged cache of the reference backend, a few sequences at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from octavo.model.decoder import decoder
from octavo.model.model_config import ModelConfig
from octavo.ops.reference import PagedCache, ReferenceOps, StepInputs

BLOCK_SIZE = 16


class Runner:
    """Sequences that grow step by step. Blocks come in a random order, and those behind a group's window are taken
    away.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Any], dtype: str = "f64", num_blocks: int = 64, seed: int = 0
    ) -> None:
        self.config, self.weights = config, weights
        self.windows = [window for window, _ in config.cache_groups]
        groups = [self.windows.index(layer.window) for layer in config.layers]
        self.cache = PagedCache(
            groups, [num_blocks] * len(self.windows), BLOCK_SIZE, config.num_kv_heads, config.head_dim, dtype
        )
        random = np.random.default_rng(seed)
        self.free = [list(random.permutation(num_blocks)) for _ in self.windows]
        self.tables: dict[str, list[list[int]]] = {}
        self.lengths: dict[str, int] = {}

    def step(self, ranges: Sequence[tuple[str, Sequence[int]]]) -> list[np.ndarray]:
        """Computes the next tokens of each named sequence; the logits [tokens, V] of each."""
        ids, positions, starts, lengths = [], [], [0], []
        for name, tokens in ranges:
            first = self.lengths.get(name, 0)
            end = first + len(tokens)
            self._open_blocks(name, first, end)
            ids += tokens
            positions += range(first, end)
            starts.append(starts[-1] + len(tokens))
            lengths.append(end)
            self.lengths[name] = end
        inputs = StepInputs(
            token_ids=np.array(ids, np.int32),
            positions=np.array(positions, np.int32),
            query_start=np.array(starts, np.int32),
            seq_lens=np.array(lengths, np.int32),
            block_tables=tuple(self._block_table(group, ranges) for group in range(len(self.windows))),
            slot_mapping=tuple(self._slots(group, ranges) for group in range(len(self.windows))),
            output_rows=np.arange(len(ids), dtype=np.int32),
        )
        logits = decoder(self.config, self.weights, ReferenceOps(inputs, self.cache))
        return np.split(logits, starts[1:-1])

    def _open_blocks(self, name: str, first: int, end: int) -> None:
        tables = self.tables.setdefault(name, [[] for _ in self.windows])
        for group, (table, window) in enumerate(zip(tables, self.windows, strict=True)):
            while len(table) * BLOCK_SIZE < end:
                table.append(int(self.free[group].pop()))
            for i in range(max(0, first - window + 1) // BLOCK_SIZE if window else 0):
                table[i] = -1

    def _block_table(self, group: int, ranges: Sequence[tuple[str, Sequence[int]]]) -> np.ndarray:
        tables = [self.tables[name][group] for name, _ in ranges]
        out = np.full((len(tables), max(map(len, tables))), -1, np.int32)
        for row, table in zip(out, tables, strict=True):
            row[: len(table)] = table
        return out

    def _slots(self, group: int, ranges: Sequence[tuple[str, Sequence[int]]]) -> np.ndarray:
        slots = []
        for name, tokens in ranges:
            table, end = self.tables[name][group], self.lengths[name]
            slots += [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(end - len(tokens), end)]
        return np.array(slots, np.int64)


def greedy(runner: Runner, name: str, prompt: Sequence[int], count: int) -> list[int]:
    logits = runner.step([(name, prompt)])[0]
    tokens = [int(logits[-1].argmax())]
    while len(tokens) < count:
        tokens.append(int(runner.step([(name, tokens[-1:])])[0][-1].argmax()))
    return tokens
