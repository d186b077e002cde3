"""The arrays of a step, patched from the last one, are those that a writer without a past fills."""

from __future__ import annotations

import random

import numpy as np
import pytest

from octavo import _native
from octavo.engine.batch import Batch, Output, RangeOutput, TokenOutput
from octavo.engine.request import Request
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.runtime.inputs import InputWriter
from octavo.runtime.runner import token_ids_of
from octavo.sampling_params import SamplingParams

SIZE = 4


def writer(groups: list[CacheGroup]) -> tuple[_native.StepInputs, InputWriter]:
    step = _native.StepInputs(64, 16, 32, [32] * len(groups))
    return step, InputWriter(step, SIZE)


def arrays(step: _native.StepInputs, windows: list[int]) -> list[list[int]]:
    """What a Program reads of them: of a block table what lies within the sequence and its window."""
    lengths, starts = step.seq_lens[: step.seqs].tolist(), step.query_start[: step.seqs + 1].tolist()
    read = [step.token_ids[: step.tokens], step.positions[: step.tokens], step.output_rows[: step.rows]]
    for group, window in zip(step.groups, windows, strict=True):
        read.append(group.slot_mapping[: step.tokens])
        for row, length in enumerate(lengths):
            first = max(0, length - (starts[row + 1] - starts[row]) - window + 1) // SIZE if window else 0
            read.append(group.block_table[row, first : -(-length // SIZE)])
    return [starts, lengths, *(np.asarray(array).tolist() for array in read)]


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("windows", [[0], [0, 6]])
@pytest.mark.parametrize("num_blocks", [200, 40])
@pytest.mark.parametrize("seed", range(4))
def test_patched_arrays_are_those_of_a_new_writer(
    lookahead: int, windows: list[int], num_blocks: int, seed: int
) -> None:
    """A random walk: requests of all kinds come, fork, are preempted where blocks are short, aborted and end."""
    groups = [CacheGroup("window" if window else "full", num_blocks, SIZE, window) for window in windows]
    config = SchedulerConfig(max_num_seqs=16, max_num_batched_tokens=64, max_model_len=96, max_output_rows=32)
    scheduler, generator = Scheduler(config, groups), random.Random(seed)
    step, patched = writer(groups)
    pending: list[tuple[Batch, list[Output]]] = []
    sampled: dict[tuple[str, int], int] = {}
    kinds: list[dict] = [{}, {}, {}, {"n": 3}, {"logprobs": 1}, {"min_tokens": 3}, {"presence_penalty": 1.0}]
    num_decodes = num_asked = 0
    for _ in range(300):
        if generator.random() < 0.3 and len(scheduler.requests) < 12:
            num_asked += 1
            prompt = tuple(generator.randrange(9) for _ in range(generator.choice([1, 3, 9, 20])))
            params = SamplingParams(**generator.choice(kinds))
            length = generator.randint(1, 40)
            stop = frozenset({3}) if generator.random() < 0.3 else frozenset()
            scheduler.add(Request(str(num_asked), prompt, params, 0, length, stop, stop))
        if generator.random() < 0.03 and scheduler.requests:
            scheduler.abort(generator.choice(list(scheduler.requests)))
        batch = scheduler.schedule()
        if batch is not None:
            num_decodes += len(batch.decodes)
            patched.write(batch, sampled.copy)
            other, new = writer(groups)
            new.write(Batch(batch.step, batch.ranges, batch.copies, batch.opened), sampled.copy)
            assert arrays(step, windows) == arrays(other, windows)
            outputs = [
                generator.randrange(9)
                if place < len(batch.decodes)
                else _output(generator, len(scheduled.sample_indices))
                for place, scheduled in enumerate(batch.ranges)
            ]
            sampled = {
                (scheduled.sequence.request.request_id, index): token
                for scheduled, output in zip(batch.ranges, outputs, strict=True)
                for index, token in zip(scheduled.sample_indices, token_ids_of(output), strict=True)
            }
            pending.append((batch, outputs))
        if pending and (batch is None or len(pending) > lookahead):
            scheduler.commit(*pending.pop(0))
        scheduler.check()
    assert num_asked > 30
    assert num_decodes > 300
    assert scheduler.num_preemptions > 0 or num_blocks == 200


def _output(generator: random.Random, count: int) -> Output:
    return RangeOutput([TokenOutput(generator.randrange(9)) for _ in range(count)])
