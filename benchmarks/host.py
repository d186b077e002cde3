"""What a step costs besides the native call, in CPU time of its thread: schedule, inputs, commit, text."""

from __future__ import annotations

import statistics
import time
from typing import Any

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams


class Timed:
    """A Program that counts the time of its own runs."""

    def __init__(self, program: Any) -> None:
        self._program, self.seconds = program, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self) -> None:
        start = time.thread_time()
        self._program.run()
        self.seconds += time.thread_time() - start


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sequences", type=int, nargs="*", default=[1, 64])
    options.add_argument("--steps", type=int, default=100)
    args = options.parse_args()
    llm = LLM(**engine_options(args, enable_prefix_caching=True, max_model_len=1024))
    vocab = llm.get_tokenizer().vocab_size
    engine = llm._loaded().engine
    program = engine.runner.program = Timed(engine.runner.program)
    rows = {}
    for count in args.sequences:
        medians = []
        for repeat in range(args.repeat):
            for number in range(count):
                ids = random_prompt(args.seed + 1000 * repeat + number, 32, vocab)
                params = SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=args.steps + 2, seed=number)
                engine.add(llm._loaded().admit(f"host-{count}-{repeat}-{number}", ids, params))
            costs = []
            while engine.has_work():
                program.seconds, start = 0.0, time.thread_time()
                engine.step()
                costs.append(1e6 * (time.thread_time() - start - program.seconds))
            medians.append(statistics.median(costs[-args.steps : -1]))
        rows[f"microseconds a step, {count} sequences"] = spread(medians)
    show("host cost", rows, args.json)


if __name__ == "__main__":
    main()
