"""What structured output costs: steps of constrained requests beside steps of free ones, in turn, in one process."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from common import engine_options, parser, random_prompt, show, spread

from octavo import LLM, SamplingParams, StructuredOutputsParams

RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "format": "email"},
        "kind": {"enum": ["person", "company", "public body"]},
        "notes": {"type": "array", "items": {"type": "string"}, "maxItems": 5},
    },
    "required": ["name", "age", "email", "kind", "notes"],
    "additionalProperties": False,
}
WORDS = ["the", "one", "of", "every", "word", "in", "an", "old", "song"]
CONSTRAINTS = {
    "schema": StructuredOutputsParams(json={"type": "array", "items": RECORD, "minItems": 1000}),
    "any object": StructuredOutputsParams(json_object=True),
    "regex": StructuredOutputsParams(regex=r"([A-Z][a-z]{1,12}( [a-z]{1,12}){3,20}\. ){1000}"),
    "grammar": StructuredOutputsParams(grammar='start: e\ne: t ("+" t){1000,}\nt: /[0-9]{1,6}/ | "(" t "*" t ")"'),
    "choice": StructuredOutputsParams(choice=[" ".join(random.Random(i).choices(WORDS, k=70)) for i in range(200)]),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--batch", type=int, default=16)
    options.add_argument("--output-len", type=int, default=96)
    options.add_argument("--constraints", nargs="*", choices=CONSTRAINTS, default=list(CONSTRAINTS))
    args = options.parse_args()
    free, held = (LLM(**engine_options(args, enable_prefix_caching=False)) for _ in range(2))
    prompts = [random_prompt(args.seed + i, 64, free.get_tokenizer().vocab_size) for i in range(args.batch)]
    rows: dict[str, dict[str, float]] = {}
    for name in args.constraints:
        ratios = []
        for run in range(args.repeat):
            plain, masked = [], []
            add(free, f"{name}-{run}", prompts, args.output_len, None)
            add(held, f"{name}-{run}", prompts, args.output_len, CONSTRAINTS[name])
            while (model := held._loaded()).engine.has_work() and free._loaded().engine.has_work():
                plain.append(step(free._loaded()))
                masked.append(step(model))
            drain(free, held)
            ratios.append(statistics.median(masked) / statistics.median(plain))
        rows[f"{name}: of a free step's time, %"] = spread([100 * ratio for ratio in ratios])
    show(f"structured output, batch of {args.batch}", rows, args.json)


def add(llm: LLM, name: str, prompts: list[list[int]], length: int, constraint: StructuredOutputsParams | None) -> None:
    model = llm._loaded()
    for i, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=0.8, seed=i, max_tokens=length, ignore_eos=True, structured_outputs=constraint
        )
        model.engine.add(model.admit(f"{name}-{i}", prompt, params))


def step(model: Any) -> float:
    start = time.perf_counter()
    model.engine.step()
    return time.perf_counter() - start


def drain(*llms: LLM) -> None:
    for llm in llms:
        while llm._loaded().engine.has_work():
            llm._loaded().engine.step()


if __name__ == "__main__":
    main()
