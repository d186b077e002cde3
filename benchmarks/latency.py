"""One request at a time: decode rate after a short prompt, prefill rate of long ones; with --ops, where a step's time
goes.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=128)
    options.add_argument("--prefill", type=int, nargs="*", default=[1024])
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    options.add_argument("--ops", action="store_true", help="Print the share of each kind of op.")
    args = options.parse_args()
    llm = LLM(**engine_options(args, max_num_batched_tokens=args.max_num_batched_tokens, enable_prefix_caching=False))
    vocab = llm.get_tokenizer().vocab_size
    engine = llm._loaded().engine
    decode: list[float] = []
    first: list[float] = []
    prefill: dict[int, list[float]] = {length: [] for length in args.prefill}
    shares: dict[str, Any] = {}
    for run in range(args.repeat + 1):  # the first touches pages, and does not count
        ids = random_prompt(args.seed + run, args.input_len, vocab)
        request = llm._loaded().admit(
            f"latency-{run}", ids, SamplingParams(temperature=0, ignore_eos=True, max_tokens=args.output_len)
        )
        start = time.perf_counter()
        engine.add(request)
        times = []
        while engine.has_work():
            if engine.step():
                times.append(time.perf_counter())
        if run:
            first.append(1000 * (times[0] - start))
            decode.append((len(times) - 1) / (times[-1] - times[0]))
        for length, rates in prefill.items():
            ids = random_prompt(args.seed + run, length, vocab)
            start = time.perf_counter()
            llm.generate([ids], SamplingParams(temperature=0, max_tokens=1), use_tqdm=False)
            if run:
                rates.append(length / (time.perf_counter() - start))
    rows = {
        f"decode tok/s after {args.input_len}": spread(decode),
        f"time to first token ms, {args.input_len}": spread(first),
        **{f"prefill tok/s, {length}": spread(rates) for length, rates in prefill.items()},
    }
    if args.ops:
        shares = op_shares(llm, args.input_len, vocab)
    show(f"one request at a time, {args.dtype}", rows, args.json)
    for name, row in shares.items():
        print(f"  {name:20s} {row[0]:6.1%} of a prefill step   {row[1]:6.1%} of a decode step")


def op_shares(llm: LLM, length: int, vocab: int) -> dict[str, tuple[float, float]]:
    program = llm._loaded().engine.runner.program
    result = []
    for output_len in (1, 65):
        program.profile, program.seconds = True, []
        ids = random_prompt(7, 512, vocab) if output_len == 1 else random_prompt(8, length, vocab)
        llm.generate([ids], SamplingParams(temperature=0, ignore_eos=True, max_tokens=output_len), use_tqdm=False)
        times: Counter[str] = Counter()
        for name, seconds in zip(program.op_names, program.seconds, strict=True):
            times[name] += seconds
        result.append(times)
        program.profile = False
    prefill, both = result
    return {name: (prefill[name] / prefill.total(), both[name] / both.total()) for name in both}


if __name__ == "__main__":
    main()
