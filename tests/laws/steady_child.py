"""Answers requests for a test that takes its cores away: steady_child.py MODEL THREADS LOOKS_AHEAD.

Says "ready", and for each line that it reads what its answers are, and the processor time that it took while it then
rested.
"""

import hashlib
import json
import sys
import time

from octavo import LLM, SamplingParams

REST = 0.3


def main() -> None:
    model, threads, looks_ahead = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "True"
    with LLM(
        model,
        threads=threads,
        async_scheduling=looks_ahead,
        kv_cache_memory="16MiB",
        enable_prefix_caching=False,
        max_num_batched_tokens=128,
    ) as llm:
        params = [SamplingParams(max_tokens=40, seed=i, ignore_eos=True, logprobs=1) for i in range(4)]
        prompts = [("every good boy does fine " * (3 + 9 * i)) for i in range(4)]
        print("ready", flush=True)
        for _ in sys.stdin:
            answers = llm.generate(prompts, params, use_tqdm=False)
            told = repr([[(o.token_ids, o.cumulative_logprob) for o in answer.outputs] for answer in answers])
            before = time.process_time()
            time.sleep(REST)
            rested = time.process_time() - before
            print(json.dumps([hashlib.sha256(told.encode()).hexdigest(), rested]), flush=True)


if __name__ == "__main__":
    main()
