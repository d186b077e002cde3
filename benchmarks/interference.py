"""What streams feel of a long prompt: the time between their tokens before it comes and while it is computed.

Eight requests decode; then one with a long prompt arrives. Three ways to schedule it: in chunks of the measured token
budget, in chunks of a part of it, and whole in one step.
"""

from __future__ import annotations

import time
from typing import Any

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams

STREAMS = 8
BEFORE = 40  # steps that are timed before the long prompt comes


def measure(options: dict[str, Any], prompt_len: int, seed: int) -> dict[str, dict[str, float]]:
    llm = LLM(**options)
    model, engine = llm._loaded(), llm._loaded().engine
    vocab = llm.get_tokenizer().vocab_size
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=model.max_model_len // 2)
    for stream in range(STREAMS):
        engine.add(model.admit(f"stream-{stream}", random_prompt(seed + stream, 32, vocab), params))
    while sum(sequence.num_output_tokens > 1 for sequence in engine.scheduler.running) < STREAMS:
        engine.step()
    last: dict[str, float] = {}
    gaps: list[float] = []

    def step() -> set[str]:
        told = engine.step()
        now = time.perf_counter()
        for news in told:
            if news.request_id in last and news.request_id != "long":
                gaps.append(1000 * (now - last[news.request_id]))
            last[news.request_id] = now
        return {news.request_id for news in told}

    for _ in range(BEFORE):
        step()
    rows = {"before, ms": quantiles(gaps)}
    gaps.clear()
    asked = SamplingParams(temperature=0, ignore_eos=True, max_tokens=2)
    start = time.perf_counter()
    engine.add(model.admit("long", random_prompt(seed + 100, prompt_len, vocab), asked))
    while "long" not in step():
        pass
    seconds = time.perf_counter() - start
    rows["while the long prompt is computed, ms"] = quantiles(gaps)
    rows["first token of the long prompt, s"] = spread([seconds])
    for stream in range(STREAMS):
        engine.abort(f"stream-{stream}")
    llm.close()
    return rows


def quantiles(gaps: list[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    return {"median": ordered[len(ordered) // 2], "min": ordered[int(0.99 * (len(ordered) - 1))], "max": ordered[-1]}


def main() -> None:
    options = parser(__doc__.splitlines()[0] if __doc__ else "")
    options.set_defaults(model="gemma3-270m")
    options.add_argument("--prompt-len", type=int, default=30_000)
    options.add_argument("--max-model-len", type=int, default=32_768)
    args = options.parse_args()
    common = engine_options(args, max_model_len=args.max_model_len, enable_prefix_caching=False, max_num_seqs=16)
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": args.max_model_len}
    for name, more in (
        ("chunks of the measured budget", {}),
        ("chunks of 32 tokens", {"long_prefill_token_threshold": 32}),
        ("the whole prompt in one step", whole),
    ):
        rows = measure(common | more, args.prompt_len, args.seed)
        show(f"{STREAMS} streams and a prompt of {args.prompt_len}, {name}: median (99 % - most)", rows, args.json)


if __name__ == "__main__":
    main()
