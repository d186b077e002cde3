"""Writes a batch into the flat arrays that a Program reads; they are kept from step to step and patched."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo import _native
from octavo.engine.batch import Batch, ScheduledRange
from octavo.engine.outputs import Contradiction
from octavo.engine.request import Sequence
from octavo.errors import describe
from octavo.runtime.rows import moved_rows

Sampled = dict[tuple[str, int], int]  # by request id and sequence index


class RangeFault(Exception):
    """One range of a batch cannot be written, and why. The others can be computed without it."""

    def __init__(self, scheduled: ScheduledRange, cause: Exception | Contradiction) -> None:
        self.error = describe(cause) if isinstance(cause, Exception) else cause
        super().__init__(self.error)
        self.scheduled = scheduled


class InputWriter:
    """Fills the arrays of `step`."""

    def __init__(self, step: _native.StepInputs, block_size: int) -> None:
        self._step = step
        self._block_size = block_size
        self._decodes: list[ScheduledRange] = []  # what the first rows hold
        self.open: list[int] = []  # the tokens of the step that the scheduler has not seen yet
        self._token_ids, self._positions = step.token_ids, step.positions
        self._query_start, self._seq_lens, self._output_rows = step.query_start, step.seq_lens, step.output_rows
        self._groups = [(group, group.slot_mapping, group.block_table) for group in step.groups]
        self._arange = np.arange(step.max_tokens, dtype=np.int32)
        # What each row of each group's block table holds: the sequence, its life (a preemption starts another) and
        # how much of its table.
        self._rows: list[list[tuple[Sequence | None, int, int]]] = [[(None, 0, 0)] * step.max_seqs for _ in step.groups]

    def write(self, batch: Batch, sampled: Callable[[], Sampled]) -> None:
        """`sampled` tells what the previous step sampled, for tokens that the scheduler has not seen yet (-1).

        Raises RangeFault where a range cannot be written; the step must then be written anew without it.
        """
        self.open = []
        token = row = self._write_decodes(batch.decodes, sampled)
        output_rows: list[int] = []
        for scheduled in batch.others if row else batch.ranges:
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
        num_rows = len(self._decodes) + len(output_rows)
        if output_rows:
            self._output_rows[len(self._decodes) : num_rows] = output_rows
        for number, (group, _, _) in enumerate(self._groups):
            group.set_opened(batch.opened[number])
            group.num_copies = 0
        for copy in batch.copies:
            group = self._groups[copy.group][0]
            group.copy_source[group.num_copies] = copy.src
            group.copy_target[group.num_copies] = copy.dst
            group.num_copies += 1
        self._step.tokens, self._step.seqs, self._step.rows = token, row, num_rows

    def _write_decodes(self, decodes: list[ScheduledRange], sampled: Callable[[], Sampled]) -> int:
        """Writes plain decodes into the first rows; returns how many: none where one is at fault, to be found out."""
        try:
            if self._decodes is not decodes:
                moves, fresh = moved_rows(self._decodes, decodes)
                self._step.move_rows(moves)
                for held in self._rows:
                    for source, target in moves:
                        held[target] = held[source]
                for row in fresh:
                    self._put_tables(row, decodes[row].sequence)
                self._decodes = decodes
            positions = [scheduled.start for scheduled in decodes]
            token_ids = [scheduled.sequence.token_ids[-1] for scheduled in decodes]
            if -1 in token_ids:
                self.open = [place for place, token_id in enumerate(token_ids) if token_id < 0]
                newest = sampled()
                for place in self.open:
                    token_ids[place] = _of(newest, decodes[place].sequence)
            lacking = self._step.write_decodes(token_ids, positions, self._block_size)
            if lacking:
                for row in lacking:
                    self._put_tables(row, decodes[row].sequence)
                if self._step.write_decodes(token_ids, positions, self._block_size):
                    raise ValueError("A block table does not reach the position that is to be computed.")
        except Exception:
            self._decodes, self.open = [], []
            self._rows = [[(None, 0, 0)] * self._step.max_seqs for _ in self._groups]
        return len(self._decodes)

    def _write_range(self, row: int, token: int, scheduled: ScheduledRange, sampled: Callable[[], Sampled]) -> None:
        sequence, start, count = scheduled.sequence, scheduled.start, scheduled.num_tokens
        end = start + count
        known = sequence.token_ids
        if count == 1:
            token_id = known[start] if start < len(known) else sequence.draft_token_ids[start - len(known)]
            if token_id < 0:
                token_id = _of(sampled(), sequence)
                self.open.append(token)
            self._token_ids[token] = token_id
            self._positions[token] = start
        else:
            ids = known[start:end]
            if end > len(known):
                ids = ids + sequence.draft_token_ids[max(0, start - len(known)) : end - len(known)]
            if min(ids) < 0:
                self.open += [token + place for place, token_id in enumerate(ids) if token_id < 0]
                ids = [token_id if token_id >= 0 else _of(sampled(), sequence) for token_id in ids]
            self._token_ids[token : token + count] = ids
            np.add(self._arange[:count], start, out=self._positions[token : token + count])
        self._put_tables(row, sequence)
        self._write_slots(row, token, sequence, start, count)
        self._seq_lens[row] = end

    def _put_tables(self, row: int, sequence: Sequence) -> None:
        """Makes a row of every group's block table that of the sequence."""
        for (group, _, _), rows, table in zip(self._groups, self._rows, sequence.block_tables, strict=True):
            holder, life, length = rows[row]
            if holder is not sequence or life != sequence.num_preemptions or length > len(table):
                length = 0
            # The last block may have been replaced by a copy of its own since it was written here.
            first = max(0, length - 1)
            group.set_blocks(row, first, table[first:])
            rows[row] = (sequence, sequence.num_preemptions, len(table))

    def _write_slots(self, row: int, token: int, sequence: Sequence, start: int, count: int) -> None:
        size = self._block_size
        for (_, slot_mapping, block_table), table in zip(self._groups, sequence.block_tables, strict=True):
            if count == 1:
                slot_mapping[token] = table[start // size] * size + start % size
            else:
                positions = self._positions[token : token + count]
                blocks = block_table[row, positions // size].astype(np.int64)
                slot_mapping[token : token + count] = blocks * size + positions % size


def _of(sampled: Sampled, sequence: Sequence) -> int:
    return sampled[sequence.request.request_id, sequence.index]


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
