"""Writes a batch into the flat arrays that a Program reads; they are kept from step to step and patched."""

from __future__ import annotations

import numpy as np

from octavo import _native
from octavo.engine.batch import Batch, ScheduledRange
from octavo.engine.request import Sequence
from octavo.errors import describe


class RangeFault(Exception):
    """One range of a batch cannot be written, and why. The others can be computed without it."""

    def __init__(self, scheduled: ScheduledRange, cause: Exception) -> None:
        super().__init__(describe(cause))
        self.scheduled = scheduled


class InputWriter:
    """Fills the arrays of `step`."""

    def __init__(self, step: _native.StepInputs, block_size: int) -> None:
        self._step = step
        self._block_size = block_size
        self._token_ids, self._positions = step.token_ids, step.positions
        self._query_start, self._seq_lens, self._output_rows = step.query_start, step.seq_lens, step.output_rows
        self._groups = [(group, group.slot_mapping, group.block_table) for group in step.groups]
        self._arange = np.arange(step.max_tokens, dtype=np.int32)
        # What each row of each group's block table holds: the sequence, its life (a preemption starts another) and
        # how much of its table.
        self._rows: list[list[tuple[Sequence | None, int, int]]] = [[(None, 0, 0)] * step.max_seqs for _ in step.groups]

    def write(self, batch: Batch, sampled: dict[tuple[str, int], int]) -> None:
        """`sampled` holds what the previous step sampled, for tokens that the scheduler has not seen yet (-1).

        Raises RangeFault where a range cannot be written; the step must then be written anew without it.
        """
        token = row = 0
        self._query_start[0] = 0
        output_rows: list[int] = []
        for scheduled in batch.ranges:
            try:
                self._write_range(row, token, scheduled, sampled)
            except Exception as error:
                for rows in self._rows:
                    rows[row] = (None, 0, 0)  # half written
                raise RangeFault(scheduled, error) from error
            output_rows.extend(output_positions(scheduled, token))
            token += scheduled.num_tokens
            row += 1
            self._query_start[row] = token
        self._output_rows[: len(output_rows)] = output_rows
        for number, (group, _, _) in enumerate(self._groups):
            group.set_opened(batch.opened[number])
            group.num_copies = 0
        for copy in batch.copies:
            group = self._groups[copy.group][0]
            group.copy_source[group.num_copies] = copy.src
            group.copy_target[group.num_copies] = copy.dst
            group.num_copies += 1
        self._step.tokens, self._step.seqs, self._step.rows = token, row, len(output_rows)

    def _write_range(
        self, row: int, token: int, scheduled: ScheduledRange, sampled: dict[tuple[str, int], int]
    ) -> None:
        sequence, start, count = scheduled.sequence, scheduled.start, scheduled.num_tokens
        end = start + count
        known = sequence.token_ids
        if count == 1:
            token_id = known[start] if start < len(known) else sequence.draft_token_ids[start - len(known)]
            self._token_ids[token] = token_id if token_id >= 0 else self._sampled(sampled, sequence)
            self._positions[token] = start
        else:
            ids = known[start:end]
            if end > len(known):
                ids = ids + sequence.draft_token_ids[max(0, start - len(known)) : end - len(known)]
            if min(ids) < 0:
                ids = [i if i >= 0 else self._sampled(sampled, sequence) for i in ids]
            self._token_ids[token : token + count] = ids
            np.add(self._arange[:count], start, out=self._positions[token : token + count])
        self._write_tables(row, token, sequence, start, count)
        self._seq_lens[row] = end

    def _sampled(self, sampled: dict[tuple[str, int], int], sequence: Sequence) -> int:
        return sampled[sequence.request.request_id, sequence.index]

    def _write_tables(self, row: int, token: int, sequence: Sequence, start: int, count: int) -> None:
        size = self._block_size
        for number, (_, slot_mapping, block_table) in enumerate(self._groups):
            table = sequence.block_tables[number]
            holder, life, length = self._rows[number][row]
            if holder is not sequence or life != sequence.num_preemptions or length > len(table):
                length = 0
            if length < len(table):
                block_table[row, length : len(table)] = table[length:]
            self._rows[number][row] = (sequence, sequence.num_preemptions, len(table))
            if length:
                # The last block may have been replaced by a copy of its own since it was written here.
                block_table[row, length - 1] = table[length - 1]
            if count == 1:
                slot_mapping[token] = table[start // size] * size + start % size
            else:
                positions = self._positions[token : token + count]
                blocks = block_table[row, positions // size].astype(np.int64)
                slot_mapping[token : token + count] = blocks * size + positions % size


def output_positions(scheduled: ScheduledRange, token: int) -> list[int]:
    """Indices into the batch's tokens of the rows that a range needs logits of; `token` is its first.

    Prompt rows stand first, then, where the range samples, one row per draft and the last one.
    """
    low, high = scheduled.prompt_logprob_rows
    rows = [token + position - scheduled.start for position in range(low, high)]
    if scheduled.sample_indices:
        last = token + scheduled.num_tokens - 1
        rows += range(last - scheduled.num_drafts, last + 1)
    return rows
