"""Writes what a batch samples into the sampler's arrays, and reads its outputs back.

A row is a pair of a row of logits and what is asked of it. Arrays keep their contents from step to step: a row that
serves the same line of the same request as before costs a comparison and its position.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.engine.batch import Batch, Output, RangeOutput, ScheduledRange
from octavo.engine.outputs import Contradiction
from octavo.engine.request import Request, Sequence, TokenOutput
from octavo.runtime.inputs import RangeFault
from octavo.runtime.rows import moved_rows

NO_TOKENS: tuple[int, ...] = ()
FAILURES = {
    1: "The model's logits are all NaN or -inf, so that no token can be sampled.",
    2: Contradiction(
        "No token may be sampled: allowed_token_ids, logit_bias, bad_words, min_tokens and structured_outputs ban all "
        "of them together."
    ),
}

# What a row of the arrays holds of a request: sequence index, whether stop ids are banned, ids that bad words ban,
# tokens penalised.
Asked = tuple[int, bool, tuple[int, ...], _native.TokenCounts | None]
Counted = tuple[Sequence, _native.TokenCounts, int]  # a sequence's tokens, as far as they are counted
NOTHING: tuple[None, Asked] = (None, (0, False, NO_TOKENS, None))


class BatchSampler:
    """Fills `inputs` from batches. One batch at a time: `write`, the step, `read`.

    Rows of logits are in the order of the ranges: prompt rows by position, then one for each draft and the last.
    """

    def __init__(self, inputs: _native.SampleInputs) -> None:
        self._inputs = inputs
        # Views, made once: a view of a native array costs more than reading a step's worth of it.
        self._target = inputs.target
        self._num_logprobs, self._masked, self._mask = inputs.num_logprobs, inputs.masked, inputs.mask
        self._token_ids, self._status = inputs.token_ids, inputs.status
        self._logprobs, self._ranks = inputs.logprobs, inputs.ranks
        self._top_ids, self._top_logprobs = inputs.top_ids, inputs.top_logprobs
        self._held: list[tuple[Request | None, Asked]] = [NOTHING] * inputs.max_rows
        self._decodes: list[ScheduledRange] = []  # what the first rows hold
        # Of the sequences with penalties in the last step: their tokens, counted as far as `known`.
        self._counts: dict[int, Counted] = {}
        self._reports = False  # whether a row of the step is asked for log-probabilities
        self._constrained: list[tuple[ScheduledRange, int]] = []  # ranges of the step under a grammar, their first rows

    def write(self, batch: Batch) -> None:
        """Fills the rows of a step. Where a row depends on the tokens before it, none of them may be a -1.

        Raises RangeFault where a range cannot be written; the step must then be written anew without it.
        """
        decodes = batch.decodes
        self._reports, self._constrained = False, []
        if self._decodes is not decodes:
            self._hold_decodes(decodes)
        logits = len(decodes)
        sources = list(range(logits))
        positions = [scheduled.start + 1 for scheduled in decodes]
        counts: dict[int, Counted] = {}
        for scheduled in batch.others:
            try:
                logits = self._write_range(scheduled, logits, sources, positions, counts)
            except Exception as error:
                self._counts = {}  # counted further than they say
                raise RangeFault(scheduled, error) from error
        if self._constrained:
            self._write_masks()
        self._inputs.set_rows(sources, positions)
        self._counts = counts

    def _hold_decodes(self, decodes: list[ScheduledRange]) -> None:
        """Makes the first rows what plain decodes ask."""
        moves, fresh = moved_rows(self._decodes, decodes)
        self._decodes = []  # until all is written
        self._inputs.move_rows(moves)
        for source, target in moves:
            self._held[target] = self._held[source]
        for row in fresh:
            sequence = decodes[row].sequence
            try:
                self._hold(row, sequence.request, (sequence.index, False, NO_TOKENS, None))
            except Exception as error:
                raise RangeFault(decodes[row], error) from error
        self._decodes = decodes

    def _write_range(
        self,
        scheduled: ScheduledRange,
        logits: int,
        sources: list[int],
        positions: list[int],
        counts: dict[int, Counted],
    ) -> int:
        """Adds the rows of a range, whose first row of logits is `logits`; returns where the next one's begin."""
        low, high = scheduled.prompt_logprob_rows
        if low < high:
            self._reports = True
            self._make_room(len(sources) + high - low)
            self._put_targets(len(sources), scheduled.sequence.request, low, high)
            sources += range(logits, logits + high - low)
            positions += range(low + 1, high + 1)
            logits += high - low
        if not scheduled.sample_indices:
            return logits
        sequence, drafts = scheduled.sequence, scheduled.num_drafts
        request = sequence.request
        self._reports |= sequence.num_logprobs >= 0
        first = scheduled.start + scheduled.num_tokens - drafts
        known = min(first, len(sequence.token_ids))  # what comes after are drafts
        tokens = self._count(sequence, known, counts) if sequence.has_penalties else None
        self._make_room(len(sources) + drafts + len(scheduled.sample_indices))
        matcher = sequence.matcher
        if matcher is not None:
            self._constrained.append((scheduled, len(sources)))
        for draft in range(drafts + 1):
            position = first + draft
            guesses = sequence.draft_token_ids[: position - known]
            bans = position < sequence.min_length and not (matcher is not None and matcher.is_complete)
            bad = _bad_ends(sequence, position) if request.bad_word_ids else NO_TOKENS
            for index in scheduled.sample_indices:
                row = len(sources)
                if guesses:  # rows behind drafts have counts of their own: they are always written anew
                    self._held[row] = NOTHING
                self._hold(row, request, (index, bans, bad, tokens), guesses)
                if guesses:
                    self._held[row] = NOTHING
                sources.append(logits)
                positions.append(position)
            logits += 1
        return logits

    def _hold(self, row: int, request: Request, asked: Asked, drafts: list[int] | tuple[int, ...] = NO_TOKENS) -> None:
        """Makes a row what is asked, unless it is."""
        held, holds = self._held[row]
        if held is request and holds == asked:
            return
        index, bans, bad, tokens = asked
        self._held[row] = NOTHING  # until the whole row is written
        self._put(row, request, index, bans, bad)
        if tokens is not None:
            self._inputs.set_penalties(row, tokens, drafts)
        self._held[row] = (request, asked)

    def _write_masks(self) -> None:
        """What the grammars of the step allow, of what `allowed_token_ids` allows."""
        mask = self._mask
        wanted = [
            (scheduled.sequence.matcher, row, scheduled.sequence.draft_token_ids[: scheduled.num_drafts])
            for scheduled, row in self._constrained
        ]
        grammar = self._constrained[0][0].sequence.request.grammar
        assert grammar is not None
        for place, error in grammar.write_masks(wanted, mask).items():
            self._counts = {}
            scheduled = self._constrained[place][0]
            raise RangeFault(scheduled, Contradiction(error, scheduled.sequence.request.constraint))
        for scheduled, row in self._constrained:
            mask[row + 1 : row + len(scheduled.sample_indices)] = mask[row]
            params = scheduled.sequence.request.params
            if params.allowed_token_ids is not None:
                mask[row : row + _num_samples(scheduled)] &= self._allowed(params.allowed_token_ids)

    def read(self, batch: Batch) -> list[Output]:
        """The outputs of the step that `write` prepared, aligned with the batch's ranges."""
        sampled = self._inputs.sampled()
        failed = sampled is None
        outputs: list[Output] = []
        if sampled is not None:
            outputs += sampled[: len(batch.decodes)]
            if not batch.others:
                return outputs
        decodes = len(outputs)
        rows = slice(decodes, self._inputs.rows)
        ids = self._token_ids[rows].tolist()
        tokens = self._reported(rows, ids) if self._reports else [TokenOutput(token_id) for token_id in ids]
        status = self._status[rows].tolist()
        row = 0
        for scheduled in batch.ranges if failed else batch.others:
            first = row + scheduled.prompt_logprob_rows[1] - scheduled.prompt_logprob_rows[0]
            end = first + _num_samples(scheduled)
            error = next((FAILURES[code] for code in status[row:end] if code), None) if failed else None
            outputs.append(RangeOutput(tokens[first:end], tokens[row:first], error=error))
            row = end
        return outputs

    def _reported(self, rows: slice, ids: list[int]) -> list[TokenOutput]:
        counts = self._num_logprobs[rows].tolist()
        most = max(0, *counts)
        top_ids: Any = self._top_ids[rows, :most].tolist() if most else repeat([], len(ids))
        top_logprobs: Any = self._top_logprobs[rows, :most].tolist() if most else repeat([], len(ids))
        return [
            TokenOutput(token_id, logprob, rank, list(zip(tops[: max(count, 0)], values[: max(count, 0)], strict=True)))
            for token_id, logprob, rank, count, tops, values in zip(
                ids, self._logprobs[rows].tolist(), self._ranks[rows].tolist(), counts, top_ids, top_logprobs,
                strict=True,
            )
        ]  # fmt: skip

    def _make_room(self, rows: int) -> None:
        if rows > self._inputs.max_rows:
            raise ValueError(
                f"The batch samples at least {rows} rows; the sampler was made for {self._inputs.max_rows}."
            )

    def _put_targets(self, row: int, request: Request, low: int, high: int) -> None:
        end = row + high - low
        self._target[row:end] = request.prompt_token_ids[low + 1 : high + 1]
        self._num_logprobs[row:end] = min(request.params.prompt_logprobs or 0, self._inputs.vocab)
        self._held[row:end] = [NOTHING] * (high - low)

    def _put(self, row: int, request: Request, index: int, bans_stops: bool, bad: tuple[int, ...]) -> None:
        params, inputs = request.params, self._inputs
        inputs.set_row(
            row,
            0.0 if params.is_greedy else params.temperature,
            min(params.top_k, inputs.vocab),
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.presence_penalty,
            params.frequency_penalty,
            request.seed & 0xFFFF_FFFF_FFFF_FFFF,
            index,
            min(request.num_logprobs, inputs.vocab),
        )
        biases = list((params.logit_bias or {}).items())
        biases += zip(bad, repeat(-np.inf))
        if bans_stops:
            # Within a grammar the ends that it knows, which are ends with ignore_eos too. Stop ids may be all that it
            # allows, and stop nothing as yet.
            stops = request.stop_token_ids if request.grammar is None else request.grammar.eos_token_ids
            # A stop id past the vocabulary cannot be sampled, and does not fit the array perhaps.
            biases += ((token, -np.inf) for token in sorted(stops) if token < inputs.vocab)
        if biases:
            ids, values = zip(*biases, strict=True)
            inputs.set_bias(row, np.array(ids, np.int32), np.array(values, np.float32))
        if params.allowed_token_ids is not None:
            self._mask[row] = self._allowed(params.allowed_token_ids)
        self._masked[row] = params.allowed_token_ids is not None or request.grammar is not None

    def _allowed(self, token_ids: SequenceOf[int]) -> NDArray[np.uint32]:
        allowed = np.zeros(32 * self._mask.shape[1], np.bool_)
        chosen = np.array(token_ids, np.int64)
        allowed[chosen[chosen < self._inputs.vocab]] = True
        return np.packbits(allowed, bitorder="little").view("<u4")

    def _count(self, sequence: Sequence, known: int, used: dict[int, Counted]) -> _native.TokenCounts:
        """The tokens of the first `known` positions, counted; kept from the last step where the sequence was in it."""
        entry = self._counts.get(id(sequence))  # it holds the sequence, so that the id is not another's
        prompt = sequence.num_prompt_tokens
        if entry is None or entry[2] > known:
            entry = sequence, _native.TokenCounts(np.array(sequence.request.prompt_token_ids, np.int32)), prompt
        for token_id in sequence.token_ids[entry[2] : known]:
            entry[1].add(token_id)
        used[id(sequence)] = sequence, entry[1], known
        return entry[1]


def _num_samples(scheduled: ScheduledRange) -> int:
    return len(scheduled.sample_indices) * (scheduled.num_drafts + 1)


def _bad_ends(sequence: Sequence, position: int) -> tuple[int, ...]:
    """The last tokens of bad words whose other tokens stand, all generated, just before `position`."""
    num_prompt, known = sequence.num_prompt_tokens, len(sequence.token_ids)
    words = sequence.request.bad_word_ids
    reach = min(max(map(len, words)) - 1, position - num_prompt)
    start = position - reach
    tail = sequence.token_ids[start:position]
    if position > known:
        tail += sequence.draft_token_ids[max(0, start - known) : position - known]
    banned = {word[-1] for word in words if len(word) - 1 <= reach and tail[reach - len(word) + 1 :] == list(word[:-1])}
    return tuple(sorted(banned))
