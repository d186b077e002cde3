"""What one step computes, as flat arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens of S sequences, R output rows. Sequence s has the tokens [query_start[s], query_start[s + 1]), in the
    order of their positions.

    seq_lens counts the tokens in the cache, this step's included: the last token of s has position seq_lens[s] - 1.
    block_tables and slot_mapping have one array per cache group; a table's entries wholly behind the window may be -1,
    and a slot of -1 is not stored to. copies are (group, source block, destination block), applied before the step, all
    reads before any write.
    """

    token_ids: Int32s  # [T]
    positions: Int32s  # [T]
    query_start: Int32s  # [S + 1]
    seq_lens: Int32s  # [S]
    block_tables: tuple[Int32s, ...]  # [S, B] each
    slot_mapping: tuple[Int64s, ...]  # [T] each: block * block_size + offset
    output_rows: Int32s  # [R]: indices of tokens
    copies: tuple[tuple[int, int, int], ...] = ()
