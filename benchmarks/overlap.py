"""What a step takes where the host's part of it is done beside the one before, and where it is not, by turns; and how
much of that no kernel runs. Wanted is a core beyond the threads, as with --threads 1 on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import time
import zlib
from itertools import pairwise

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams


def add_requests(llm: LLM, name: str, count: int, args: argparse.Namespace) -> None:
    vocab = llm.get_tokenizer().vocab_size
    for number in range(count):
        ids = random_prompt(args.seed + zlib.crc32(name.encode()) + number, 32, vocab)
        params = SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=args.steps + 2, seed=number)
        llm._loaded().engine.add(llm._loaded().admit(f"{name}-{number}", ids, params))


def step_times(llm: LLM, name: str, count: int, args: argparse.Namespace) -> tuple[float, float]:
    """Microseconds from the end of one step to that of the next, and how many of them no kernel runs."""
    engine = llm._loaded().engine
    programs = [runner.program for runner in getattr(engine.runner, "_runners", [engine.runner])]
    for program in programs:
        program.profile, program.seconds = True, []
    num_runs = -sum(program.runs for program in programs)
    add_requests(llm, name, count, args)
    ends = [time.perf_counter()]
    while engine.has_work():
        engine.step()
        ends.append(time.perf_counter())
    num_runs += sum(program.runs for program in programs)
    computing = sum(sum(program.seconds) for program in programs)
    took = statistics.median(after - before for before, after in pairwise(ends[-args.steps : -1]))
    return 1e6 * took, 1e6 * (ends[-1] - ends[0] - computing) / num_runs


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sequences", type=int, nargs="*", default=[1, 64])
    options.add_argument("--steps", type=int, default=100)
    args = options.parse_args()
    given = engine_options(args, enable_prefix_caching=True, max_model_len=1024, kv_cache_memory="256MiB")
    kinds = {"one by one": LLM(**given, async_scheduling=False), "overlapped": LLM(**given, async_scheduling=True)}
    rows = {}
    for count in args.sequences:
        runs = [
            {kind: step_times(llm, f"{kind}-{count}-{repeat}", count, args) for kind, llm in kinds.items()}
            for repeat in range(args.repeat)
        ]
        for kind in kinds:
            rows[f"{count} sequences, {kind}"] = spread([run[kind][0] for run in runs])
            rows[f"{count} sequences, {kind}, no kernel"] = spread([run[kind][1] for run in runs])
    show("microseconds a step", rows, args.json)


if __name__ == "__main__":
    main()
