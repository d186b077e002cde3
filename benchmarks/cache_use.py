"""How much of the KV cache holds tokens: workload C in a pool of a quarter of what all 64 requests need at once.

Runs the scheduler alone, with a runner that samples nothing: shares, not times. A slot counts as used where a running
sequence's token is computed in it; blocks that are kept for later hits count neither way.
"""

from __future__ import annotations

import time

from common import parser, random_prompt, show, spread, workload_c

from octavo import SamplingParams
from octavo.engine.admission import Limits, admit
from octavo.engine.batch import RangeOutput, TokenOutput
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig

VOCAB = 49152
CONTEXT = 8192  # what preallocation would hold for each sequence


def main() -> None:
    options = parser(__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--block-size", type=int, default=16)
    options.add_argument("--max-num-batched-tokens", type=int, default=192)
    args = options.parse_args()
    work, size = workload_c(), args.block_size
    need = sum(-(-(entry["prompt_len"] + entry["output_len"] - 1) // size) for entry in work)
    num_blocks = need // 4
    config = SchedulerConfig(
        max_num_seqs=128,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=CONTEXT,
        max_output_rows=128,
    )
    scheduler = Scheduler(config, [CacheGroup("full", num_blocks, size)])
    limits = Limits(VOCAB, CONTEXT, num_blocks * size)
    for index, entry in enumerate(work):
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=entry["output_len"])
        scheduler.add(admit(str(index), random_prompt(args.seed + index, entry["prompt_len"], VOCAB), params, limits))
    used, filled, preallocated = [], [], []
    start = time.perf_counter()
    while scheduler.has_work():
        batch = scheduler.schedule()
        assert batch is not None
        (pool,) = scheduler.tables.pools
        held = size * (pool.num_blocks - pool.num_free)
        tokens = sum(sequence.num_computed_tokens for sequence in scheduler.running)
        used.append(100 * tokens / held)
        filled.append(100 * held / (size * num_blocks))
        preallocated.append(100 * tokens / (CONTEXT * len(scheduler.running)))
        scheduler.commit(batch, [RangeOutput([TokenOutput(1)] * len(r.sample_indices)) for r in batch.ranges])
    rows = {
        "slots of held blocks that hold tokens, %": spread(used),
        f"the same, had each sequence {CONTEXT} slots, %": spread(preallocated),
        "blocks of the pool that are held, %": spread(filled),
    }
    show(
        f"workload C in {num_blocks} of {need} blocks of {size}: {len(used)} steps, {scheduler.num_preemptions} "
        f"preemptions, {time.perf_counter() - start:.1f} s; mean use {sum(used) / len(used):.1f} %",
        rows,
        args.json,
    )


if __name__ == "__main__":
    main()
