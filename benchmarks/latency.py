"""One request at a time: decode rate after a short prompt, prefill rate of long ones, and a step of beams."""

from __future__ import annotations

import statistics
import time

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, BeamSearchParams, SamplingParams

BEAM_TOKENS = 64


def decode_step(llm: LLM, name: str, ids: list[int], count: int, beams: bool) -> float:
    """Milliseconds of the median step of a beam search, or of a request with n, both of `count` sequences."""
    model = llm._loaded()
    params = SamplingParams(n=count, temperature=0.0 if beams else 1.0, ignore_eos=True, max_tokens=BEAM_TOKENS)
    search = BeamSearchParams(beam_width=count, max_tokens=BEAM_TOKENS, early_stopping="never") if beams else None
    model.engine.add(model.admit(name, ids, params, beams=search))
    times = []
    while model.engine.has_work():
        start = time.perf_counter()
        model.engine.step()
        if len(model.engine.scheduler.running) == count:
            times.append(time.perf_counter() - start)
    return 1000 * statistics.median(times)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--input-len", type=int, default=128)
    options.add_argument("--output-len", type=int, default=128)
    options.add_argument("--prefill", type=int, nargs="*", default=[1024])
    options.add_argument("--beams", type=int, default=4, help="Also times beam searches of this width; 0: none.")
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = options.parse_args()
    llm = LLM(**engine_options(args, max_num_batched_tokens=args.max_num_batched_tokens, enable_prefix_caching=False))
    vocab = llm.get_tokenizer().vocab_size
    engine = llm._loaded().engine
    decode: list[float] = []
    first: list[float] = []
    prefill: dict[int, list[float]] = {length: [] for length in args.prefill}
    steps: dict[bool, list[float]] = {True: [], False: []}
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
        for beams in steps if args.beams else ():
            ids = random_prompt(args.seed + run, args.input_len, vocab)
            milliseconds = decode_step(llm, f"beams-{run}-{beams}", ids, args.beams, beams)
            if run:
                steps[beams].append(milliseconds)
    rows = {
        f"decode tok/s after {args.input_len}": spread(decode),
        f"time to first token ms, {args.input_len}": spread(first),
        **{f"prefill tok/s, {length}": spread(rates) for length, rates in prefill.items()},
    }
    if args.beams:
        rows[f"step ms, {args.beams} beams"], rows[f"step ms, {args.beams} sequences"] = map(spread, steps.values())
        ratios = [100 * beam / plain for beam, plain in zip(*steps.values(), strict=True)]
        rows["beams of sequences, %"] = spread(ratios)
    show(f"one request at a time, {args.dtype}", rows, args.json)


if __name__ == "__main__":
    main()
