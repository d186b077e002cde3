"""A draft model beside the model: it computes what the model will, and then what it would sample next itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.engine.batch import Batch, Pending, RangeOutput, ScheduledRange
from octavo.runtime.runner import NativeRunner


class DraftingRunner:
    """Two runners, each with arrays of its own; the draft model has cache groups of its own too.

    In every step the draft model computes the known tokens of the batch, so that its groups are at all times as far as
    the model's: a block found, shared, copied or taken away holds the same positions of both. Then it samples, as the
    model will, the tokens that the scheduler left open, each by a step of one token of every sequence that drafts,
    and computes the last one too, as it may be kept. What it does wrong costs drafts only.
    """

    def __init__(self, model: NativeRunner, draft_model: NativeRunner) -> None:
        self._model, self._draft_model = model, draft_model

    def launch(self, batch: Batch) -> Pending:
        part = replace(batch, others=[_known(scheduled) for scheduled in batch.ranges], decodes=[])
        made, sampled = 0, self._model.sampled
        while part.others:
            for scheduled, output in zip(part.others, self._draft_model.launch(part, sampled).outputs(), strict=True):
                if scheduled.sample_indices and isinstance(output, RangeOutput):
                    token_id = 0 if output.error else output.samples[0].token_id
                    scheduled.sequence.draft_token_ids[made] = token_id
            made += 1
            part = Batch(batch.step, list(_next(batch, made)), [], [[] for _ in batch.opened])
        return self._model.launch(batch)

    def logits(self) -> NDArray[np.float32]:
        return self._model.logits()

    def close(self) -> None:
        self._draft_model.close()
        self._model.close()


def _known(scheduled: ScheduledRange) -> ScheduledRange:
    """A range without its drafts, that samples the first one."""
    drafts = scheduled.num_drafts
    return replace(
        scheduled,
        num_tokens=scheduled.num_tokens - drafts,
        num_drafts=0,
        sample_indices=scheduled.sample_indices if drafts else (),
        prompt_logprob_rows=(0, 0),
    )


def _next(batch: Batch, made: int) -> Iterable[ScheduledRange]:
    """Of each sequence with so many drafts, the last of them; it samples where one more is wanted."""
    for scheduled in batch.ranges:
        if scheduled.num_drafts >= made:
            position = scheduled.start + scheduled.num_tokens - scheduled.num_drafts + made - 1
            indices = scheduled.sample_indices if scheduled.num_drafts > made else ()
            yield ScheduledRange(scheduled.sequence, position, 1, indices, epoch=scheduled.epoch)
