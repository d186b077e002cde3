"""Steps on a thread of their own: while one runs, the next is written and the last one committed."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo import _native
from octavo.engine.batch import Batch, Output
from octavo.runtime.inputs import Sampled
from octavo.runtime.runner import NativeRunner, Written, is_pooled


class Launched:
    """A step that runs, or waits for the one before it."""

    def __init__(self, runner: NativeRunner, step: Written, thread: _native.StepThread, turn: int) -> None:
        self.runner, self.step, self.turn = runner, step, turn
        self._thread = thread
        self._results: list[Output] | None = None
        self._error: Exception | None = None

    def finish(self) -> None:
        """Waits for the step and reads what came of it, after which its arrays may be written anew."""
        if self._results is not None or self._error is not None:
            return
        try:
            if not self.step.is_empty:
                self._thread.wait(self.turn)
            self._results = self.runner.read(self.step)
        except Exception as error:
            self._error = error

    def outputs(self) -> list[Output]:
        self.finish()
        if self._results is None:
            assert self._error is not None
            raise self._error
        return self._results

    def rows(self) -> Sampled:
        """Which row of the sampler holds the token of each sequence, once the step is over."""
        rows: Sampled = {}
        row = 0
        for scheduled in self.step.part.ranges:
            low, high = scheduled.prompt_logprob_rows
            row += high - low
            count = len(scheduled.sample_indices)
            last = row + scheduled.num_drafts * count
            for place, index in enumerate(scheduled.sample_indices):
                rows[scheduled.sequence.request.request_id, index] = last + place
            row += (scheduled.num_drafts + 1) * count
        return rows


class OverlappedRunner:
    """Two runners of one model take turns: each has arrays of its own, which nobody writes while its step runs.

    A token that the step before has still to sample is written as the row that samples it, and filled in natively
    between the two steps.
    """

    def __init__(self, runners: Sequence[NativeRunner], samplings: Sequence[_native.SampleInputs]) -> None:
        """`runners`, whose Programs share a workspace, and the sampler's rows of each."""
        programs = [runner.program for runner in runners]
        self._runners = runners
        self._thread = _native.StepThread(list(zip(programs, samplings, strict=True)))
        # Also at the interpreter's end, and where nobody closes: a step may wait for the interpreter's lock.
        self._end = weakref.finalize(self, self._thread.close)
        self._launched: list[Launched] = []  # the last of each, the oldest first
        self._process = os.getpid()

    def launch(self, batch: Batch) -> Launched:
        if os.getpid() != self._process:
            raise RuntimeError(
                "The model was loaded before this process was forked, and the thread that runs its steps is not here: "
                "load it after the fork, or with async_scheduling=False."
            )
        if len(self._launched) == len(self._runners):
            self._launched[0].finish()  # its arrays are written next
            del self._launched[0]
        before = self._launched[-1] if self._launched else None
        if before is not None and is_pooled(before.step.part):
            before.finish()  # reads the workspace, where the next step would write
        turn = (before.turn + 1) % len(self._runners) if before is not None else 0
        runner = self._runners[turn]
        step = runner.write(batch, before.rows if before is not None else dict)
        if not step.is_empty:
            self._thread.start(turn, runner.inputs.open)
        self._launched.append(Launched(runner, step, self._thread, turn))
        return self._launched[-1]

    def logits(self) -> NDArray[np.float32]:
        """Those of the last step that was launched, once it is over."""
        self._launched[-1].finish()
        return self._launched[-1].runner.logits()

    def close(self) -> None:
        """Lets the step that runs end, and lets go of all. Twice changes nothing."""
        if not vars(self):
            return
        self._end()
        for runner in self._runners:
            runner.close()
        vars(self).clear()
