"""What scheduling costs: `schedule` and `commit` of the shipped Scheduler and BlockPool, with a runner that computes
nothing, in CPU time of the thread. The cache is as large as the sequences that run need it, so that every new block
evicts another. Two loads: `decode`, in which nothing changes but one token each, and `churn`, in which requests of
different lengths end and others take their places.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from common import show, spread

from octavo.engine.batch import Batch, RangeOutput, TokenOutput
from octavo.engine.request import Request
from octavo.engine.scheduler import CacheGroup, Scheduler, SchedulerConfig
from octavo.sampling_params import SamplingParams

BLOCK = 16
PROMPT = 240
TOKEN = 7


class Load:
    """`count` sequences that run at once, over a pool that holds them and a fiftieth more."""

    def __init__(self, count: int, steps: int, churn: bool, seed: int) -> None:
        self.count, self.steps, self.churn = count, steps, churn
        self.random = random.Random(seed)
        self.eos = frozenset({0})
        self.number = 0
        longest = PROMPT + steps
        blocks = count * (-(-(PROMPT + steps * (1 - churn / 2)) // BLOCK)) * 1.02
        config = SchedulerConfig(
            max_num_seqs=count, max_num_batched_tokens=max(512, 2 * count), max_model_len=longest, max_output_rows=count
        )
        self.scheduler = Scheduler(config, [CacheGroup("full", int(blocks), BLOCK)])
        self.fill()

    def fill(self) -> None:
        """Keeps as many requests as may run."""
        for _ in range(self.count - len(self.scheduler.requests)):
            self.number += 1
            prompt = tuple(self.random.randrange(1, 50_000) for _ in range(PROMPT))
            length = self.random.randrange(self.steps // 4, self.steps) if self.churn else self.steps
            params = SamplingParams(max_tokens=length)
            self.scheduler.add(Request(str(self.number), prompt, params, self.number, length, self.eos, self.eos))

    def step(self) -> tuple[Batch, float]:
        """One step, and how long it took."""
        start = time.thread_time()
        batch = self.scheduler.schedule()
        spent = time.thread_time() - start
        assert batch is not None
        outputs: list[RangeOutput | int] = [TOKEN] * len(batch.decodes)
        for scheduled in batch.others:
            outputs.append(RangeOutput([TokenOutput(TOKEN)] * len(scheduled.sample_indices)))
        start = time.thread_time()
        self.scheduler.commit(batch, outputs)
        return batch, spent + time.thread_time() - start


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--sequences", type=int, nargs="*", default=[64, 256, 1024])
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--json", action="store_true", help="Print one JSON object instead of a table.")
    args = options.parse_args()
    rows = {}
    for name in ("decode", "churn"):
        for count in args.sequences:
            steps, sequences = [], []
            for repeat in range(args.repeat):
                load = Load(count, args.steps, name == "churn", args.seed + repeat)
                while load.scheduler.waiting:
                    load.step()
                measured = []
                for _ in range(args.steps // 2):
                    batch, spent = load.step()
                    measured.append((1e6 * spent, len(batch.ranges)))
                    if load.churn:
                        load.fill()
                steps.append(statistics.median(spent for spent, _ in measured))
                sequences.append(sum(spent for spent, _ in measured) / sum(ranges for _, ranges in measured))
            rows[f"{name}, {count}: us a step"] = spread(steps)
            rows[f"{name}, {count}: us a range, mean"] = spread(sequences)
    show("scheduler", rows, args.json)


if __name__ == "__main__":
    main()
