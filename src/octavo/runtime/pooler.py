"""Pools the states of a prompt's tokens into the vector that is asked of it, over as many steps as the prompt takes."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

import numpy as np
from numpy.typing import NDArray

from octavo.engine.batch import Batch, Output
from octavo.engine.request import Sequence, Status

KINDS = frozenset({"last", "mean"})


class Pooler:
    """Keeps the sums of prompts that are computed in parts.

    A sum is float64, and rows are added in the order of their positions: how the prompt was cut, and whether it began
    anew after a preemption, changes no bit of it.
    """

    def __init__(self) -> None:
        self._sums: dict[int, tuple[Sequence, NDArray[np.float64]]] = {}  # by id(); each holds its sequence

    def fill(self, batch: Batch, states: NDArray[np.float32], outputs: SequenceOf[Output]) -> None:
        """Gives the outputs of ranges that end a pooled prompt their vectors: float64, neither cut nor normalised.

        `states` has a row for each token of the batch.
        """
        token = 0
        for scheduled, output in zip(batch.ranges, outputs, strict=True):
            token += scheduled.num_tokens
            sequence = scheduled.sequence
            if sequence.request.pooling is None or isinstance(output, int):
                continue
            rows = states[token - scheduled.num_tokens : token]
            ends = scheduled.start + scheduled.num_tokens == sequence.num_prompt_tokens
            if sequence.request.pooling == "mean":
                total = self._add(sequence, scheduled.start, rows)
                vector = total / sequence.num_prompt_tokens
            else:
                vector = rows[-1].astype(np.float64)
            if not ends:
                continue
            self._sums.pop(id(sequence), None)
            if np.isfinite(vector).all():
                output.vector = vector
            else:
                output.error = "The model's states of this prompt are not all finite, so that they make no vector."
        if self._sums:
            # What was aborted or preempted in between is not coming back to its sum.
            self._sums = {key: held for key, held in self._sums.items() if held[0].status is Status.RUNNING}

    def _add(self, sequence: Sequence, start: int, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        if start == 0:
            self._sums[id(sequence)] = sequence, np.zeros(rows.shape[1], np.float64)
        total = self._sums[id(sequence)][1]
        for row in rows:  # one by one: NumPy's own sums choose their order by the shape
            total += row
        return total
