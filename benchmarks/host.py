"""What a step costs besides the native call, in CPU time of its thread: schedule, inputs, commit, text.

Once with the steps called by hand, and once on the engine's own thread, which hands the outputs of each to an event
loop where a reader waits for every sequence. The text of every token has been seen before, as in a process that has run
for a while; what the first sight of one costs stands by itself.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams
from octavo.engine.async_engine import AsyncEngine, OutputStream
from octavo.engine.request import Request
from octavo.text.tokenizer import Tokenizer


class Timed:
    """A Program that notes the time between its runs."""

    def __init__(self, program: Any) -> None:
        self._program, self._end = program, 0.0
        self.gaps: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def run(self) -> None:
        self.gaps.append(1e6 * (time.thread_time() - self._end))
        self._program.run()
        self._end = time.thread_time()

    def median(self, steps: int) -> float:
        """Of the last steps, without that in which the sequences end."""
        gaps, self.gaps = self.gaps[-steps:-1], []
        return statistics.median(gaps)


async def read(stream: OutputStream) -> None:
    async for _ in stream:
        pass


async def serve(engine: AsyncEngine, requests: list[Request]) -> None:
    await asyncio.gather(*(read(engine.generate(request)) for request in requests))


def first_sight(tokenizer: Tokenizer) -> float:
    """The mean cost of a token's text at first sight; all have been seen when this returns."""
    start = time.thread_time()
    for token_id in range(tokenizer.vocab_size):
        tokenizer.whole_texts[token_id]
    return 1e6 * (time.thread_time() - start) / tokenizer.vocab_size


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sequences", type=int, nargs="*", default=[1, 64])
    options.add_argument("--steps", type=int, default=100)
    args = options.parse_args()
    llm = LLM(**engine_options(args, enable_prefix_caching=True, max_model_len=1024, async_scheduling=False))
    loaded = llm._loaded()
    engine, vocab = loaded.engine, loaded.tokenizer.vocab_size
    runner: Any = engine.runner
    program = runner.program = Timed(runner.program)
    rows = {"microseconds a token at first sight": spread([first_sight(loaded.tokenizer)])}

    def requests(count: int, first: int) -> list[Request]:
        return [
            loaded.admit(
                f"{count}-{first + number}",
                random_prompt(args.seed + first + number, 32, vocab),
                SamplingParams(temperature=1.0, ignore_eos=True, max_tokens=args.steps + 2, seed=number),
            )
            for number in range(count)
        ]

    for count in args.sequences:
        medians = []
        for repeat in range(args.repeat):
            for request in requests(count, 1000 * repeat):
                engine.add(request)
            while engine.has_work():
                engine.step()
            medians.append(program.median(args.steps))
        rows[f"microseconds a step, {count} sequences"] = spread(medians)
    on_thread = AsyncEngine(engine)
    for count in args.sequences:
        medians = []
        for repeat in range(args.repeat):
            asyncio.run(serve(on_thread, requests(count, 1000 * repeat + 500)))
            medians.append(program.median(args.steps))
        rows[f"and handed over, {count} sequences"] = spread(medians)
    show("host cost", rows, args.json)
    on_thread.close()


if __name__ == "__main__":
    main()
