"""Runs batches through a native Program: one native call a step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.engine.batch import Batch, Output, RangeOutput
from octavo.engine.outputs import Contradiction
from octavo.runtime.inputs import InputWriter, RangeFault, Sampled
from octavo.runtime.pooler import Pooler
from octavo.runtime.sampler import BatchSampler

logger = logging.getLogger(__name__)


def token_ids_of(output: Output) -> list[int]:
    return [output] if isinstance(output, int) else [sample.token_id for sample in output.samples]


@dataclass(frozen=True, slots=True)
class Finished:
    """A step that was over when `launch` returned."""

    results: list[Output]

    def outputs(self) -> list[Output]:
        return self.results


@dataclass(frozen=True, slots=True)
class Written:
    """A step whose arrays are written."""

    batch: Batch
    part: Batch  # what of it could be written
    errors: dict[int, str]  # why others could not, by the id() of the range

    @property
    def is_empty(self) -> bool:
        return not (self.part.decodes or self.part.others)


class NativeRunner:
    """Owns a Program, its input arrays and the sampler's; knows nothing of scheduling."""

    def __init__(
        self,
        program: _native.Program,
        inputs: InputWriter,
        sampler: BatchSampler,
        logits: tuple[int, int],
        states: tuple[int, int] | None = None,
        pooler: Pooler | None = None,
    ) -> None:
        """Offset in the workspace and width: of the logits, for those who look at them, and of the states that vectors
        are pooled from, where the model has them.
        """
        self.program = program
        self.inputs = inputs
        self._logits = logits
        self._states = states
        self._pooler = pooler or Pooler()
        self._sampler = sampler
        self._last: Batch | None = None  # the last step, and what came of it
        self._results: list[Output] = []

    def launch(self, batch: Batch, sampled: Callable[[], Sampled] | None = None) -> Finished:
        """Runs a step. A range that cannot be written is left out, and comes back with an error.

        `sampled`: the tokens that the scheduler has not seen yet, where it was not this runner that sampled them.
        """
        step = self.write(batch, sampled or self.sampled)
        if not step.is_empty:
            self.program.run()
        self._last, self._results = batch, self.read(step)
        return Finished(self._results)

    def write(self, batch: Batch, sampled: Callable[[], Sampled]) -> Written:
        """Writes a step into the arrays, without the ranges that cannot be written."""
        errors: dict[int, str] = {}
        part, sampled = batch, cache(sampled)
        while not self._write(part, sampled, errors):
            decodes = [scheduled for scheduled in batch.decodes if id(scheduled) not in errors]
            part = replace(batch, decodes=decodes, others=[one for one in batch.others if id(one) not in errors])
        return Written(batch, part, errors)

    def read(self, step: Written) -> list[Output]:
        """What came of a step that has run."""
        part, errors = step.part, step.errors
        results: list[Output] = []
        if not step.is_empty:
            results = self._sampler.read(part)
            if self._states is not None and is_pooled(part):
                offset, width = self._states
                self._pooler.fill(part, self.program.floats(offset, self.program.inputs.tokens, width), results)
        if errors:
            arriving = iter(results)
            results = [
                RangeOutput([], error=errors[id(scheduled)]) if id(scheduled) in errors else next(arriving)
                for scheduled in step.batch.ranges
            ]
        return results

    def _write(self, batch: Batch, sampled: Callable[[], Sampled], errors: dict[int, str]) -> bool:
        """Whether a step could be written; where not, notes the range at fault."""
        try:
            self.inputs.write(batch, sampled)
            self._sampler.write(batch)
        except RangeFault as fault:
            errors[id(fault.scheduled)] = fault.error
            if not isinstance(fault.error, Contradiction):
                logger.exception("A request cannot be written into the arrays of a step.")
            return False
        return True

    def sampled(self) -> Sampled:
        """What the last step sampled, by request id and sequence index: a step that is scheduled before its
        predecessor is committed takes its newest tokens from here.
        """
        return {
            (scheduled.sequence.request.request_id, index): token
            for scheduled, result in zip(self._last.ranges if self._last else (), self._results, strict=True)
            for index, token in zip(scheduled.sample_indices, token_ids_of(result), strict=False)
        }

    def logits(self) -> NDArray[np.float32]:
        """A view of the last step's logits, float32 [output rows, vocabulary]; the next step overwrites it."""
        offset, width = self._logits
        return self.program.floats(offset, self.program.inputs.rows, width)

    def close(self) -> None:
        """Lets go of the Program and of the arrays around it, and with them of weights, cache and workspace."""
        vars(self).clear()


def is_pooled(batch: Batch) -> bool:
    """Whether a vector of a prompt is made of what the step computes."""
    return any(scheduled.sequence.request.pooling is not None for scheduled in batch.others)
