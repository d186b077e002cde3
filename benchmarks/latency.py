"""One request at a time: decode rate after a short prompt, prefill rate of long ones."""

from __future__ import annotations

import time

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=128)
    options.add_argument("--prefill", type=int, nargs="*", default=[1024])
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = options.parse_args()
    llm = LLM(**engine_options(args, max_num_batched_tokens=args.max_num_batched_tokens, enable_prefix_caching=False))
    vocab = llm.get_tokenizer().vocab_size
    engine = llm._loaded().engine
    decode: list[float] = []
    first: list[float] = []
    prefill: dict[int, list[float]] = {length: [] for length in args.prefill}
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
    show(f"one request at a time, {args.dtype}", rows, args.json)


if __name__ == "__main__":
    main()
