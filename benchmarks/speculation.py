"""What drafting is worth: the same requests with and without it, in turn, and that they are answered alike.

The first set is editing and summarising, whose answers repeat their prompt; the second is free text at a high
temperature, where nothing can be drafted. All texts are our own. An answer that goes round in a cycle would flatter
drafts: it is refused.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import Any

from common import DATA, engine_options, parser, show, spread

from octavo import LLM, SamplingParams

OUTPUT_TOKENS = {"repeating": 220, "free": 128}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--num-speculative-tokens", type=int, default=8)
    options.add_argument("--prompt-lookup-max", type=int, default=4)
    options.add_argument("--prompt-lookup-min", type=int, default=2)
    options.add_argument("--draft-model", help="Drafts by a model instead of by lookup.")
    options.add_argument("--batches", type=int, nargs="*", default=[1, 16, 64])
    args = options.parse_args()
    speculation: dict[str, Any] = {"num_speculative_tokens": args.num_speculative_tokens}
    if args.draft_model:
        speculation |= {"method": "draft_model", "model": args.draft_model}
    else:
        lookup = {name: getattr(args, name) for name in ("prompt_lookup_max", "prompt_lookup_min")}
        speculation |= {"method": "ngram", **lookup}
    shared: dict[str, Any] = {"max_model_len": 2048, "max_num_seqs": 64, "kv_cache_memory": "768MiB"}
    plain = LLM(**engine_options(args, **shared))
    drafting = LLM(**engine_options(args, **shared, speculative_config=speculation))
    texts = json.loads((DATA / "speculation.json").read_text())
    rows: dict[str, dict[str, float]] = {}
    for kind, prompts in texts.items():
        tasks = [task(plain, number, entry["prompt"], kind) for number, entry in enumerate(prompts)]
        for batch in args.batches:
            ratios: list[float] = []
            num_tokens, before = 0, vain(drafting)
            groups = [[one] for one in tasks] if batch == 1 else [[tasks[i % len(tasks)] for i in range(batch)]]
            for number, group in enumerate(groups):
                pairs = list(compare(plain, drafting, group, args.repeat))
                for tokens in pairs[0][2]:
                    if (length := cycle(tokens)) > 0:
                        raise SystemExit(f"{kind} {number}: the answer goes round in a cycle of {length} tokens.")
                ratios.append(statistics.median(off / on for off, on, _ in pairs))
                num_tokens += (args.repeat + 1) * sum(map(len, pairs[0][2]))
                if batch == 1 and not args.json:
                    named = prompts[number]["name"]
                    print(f"  {named:12s} {len(pairs[0][2][0]):4d} tokens: {ratios[-1]:.2f} times as fast", flush=True)
            rows[f"{kind}, {batch} at once, 100 x faster"] = spread([100 * ratio for ratio in ratios])
            # What drafts cost, free of the machine's noise: rows that were computed and thrown away.
            rows[f"{kind}, {batch}: rows in vain, per 100"] = spread([100 * (vain(drafting) - before) / num_tokens])
    counts = drafting._loaded().engine.snapshot()
    rows["drafts kept, of 100"] = spread([100 * counts.num_accepted_tokens / max(1, counts.num_draft_tokens)])
    show("drafting, time without over time with", rows, args.json)


def vain(llm: LLM) -> int:
    """Drafts that were not kept."""
    counts = llm._loaded().engine.snapshot()
    return counts.num_draft_tokens - counts.num_accepted_tokens


def task(llm: LLM, number: int, prompt: str, kind: str) -> tuple[list[int], SamplingParams]:
    ids = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": prompt}])
    free = kind == "free"
    return ids, SamplingParams(
        temperature=1.5 if free else 0.0, seed=number, max_tokens=OUTPUT_TOKENS[kind], ignore_eos=free
    )


def compare(
    plain: LLM, drafting: LLM, group: list[tuple[list[int], SamplingParams]], repeat: int
) -> Iterator[tuple[float, float, list[list[int]]]]:
    """Seconds of decoding without and with drafts, alternately first, and the tokens; the first pair only warms up."""
    for number in range(repeat + 1):
        pair = [(plain, 0), (drafting, 1)]
        results: list[tuple[float, list[list[int]]]] = [(0.0, [])] * 2
        for llm, place in pair if number % 2 else reversed(pair):
            results[place] = decode(llm, group)
        (off, tokens), (on, drafted) = results
        if tokens != drafted:
            raise SystemExit("Drafting changed what was sampled.")
        if number:
            yield off, on, tokens


def decode(llm: LLM, group: list[tuple[list[int], SamplingParams]]) -> tuple[float, list[list[int]]]:
    """Seconds from when each of the requests has its first token to the end of all, and their tokens."""
    model = llm._loaded()
    tokens: dict[str, list[int]] = {}
    for ids, params in group:
        name = f"drafting-{time.perf_counter_ns()}"
        tokens[name] = []
        model.engine.add(model.admit(name, ids, params))
    start = 0.0
    while model.engine.has_work():
        for news in model.engine.step():
            tokens[news.request_id] += news.token_ids
        if not start and all(tokens.values()):
            start = time.perf_counter()
    return time.perf_counter() - start, list(tokens.values())


def cycle(tokens: list[int]) -> int:
    """The length of a run of tokens that stands three times in a row, or twice and is no shorter than 12; or 0."""
    for length in range(1, len(tokens) // 2 + 1):
        alike = 0  # tokens in a row that equal the one `length` before
        for before, token in zip(tokens, tokens[length:], strict=False):
            alike = alike + 1 if token == before else 0
            if alike >= max(2 * length, 8) or alike >= length >= 12:
                return length
    return 0


if __name__ == "__main__":
    main()
