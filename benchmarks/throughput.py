"""Workload C: 64 requests at once, in this process; output tokens per second."""

from __future__ import annotations

import time

from common import engine_options, parser, random_prompt, show, spread, workload_c

from octavo import LLM, SamplingParams


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--max-num-batched-tokens", type=int, default=512)
    args = options.parse_args()
    llm = LLM(**engine_options(args, max_num_batched_tokens=args.max_num_batched_tokens))
    vocab = llm.get_tokenizer().vocab_size
    work = workload_c()
    params = [SamplingParams(temperature=0, ignore_eos=True, max_tokens=entry["output_len"]) for entry in work]
    tokens = sum(entry["output_len"] for entry in work)
    rates = []
    for run in range(args.repeat):
        prompts = [
            random_prompt(args.seed + 1000 * run + i, entry["prompt_len"], vocab) for i, entry in enumerate(work)
        ]
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        rates.append(tokens / (time.perf_counter() - start))
        assert sum(len(output.outputs[0].token_ids) for output in outputs) == tokens
    show("workload C, all 64 at once", {"output tok/s": spread(rates)}, args.json)


if __name__ == "__main__":
    main()
