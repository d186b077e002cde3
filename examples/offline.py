"""Continues three prompts at once: python offline.py [MODEL]"""

import sys

from octavo import LLM, SamplingParams

prompts = ["Hello, my name is", "The capital of France is", "The future of computing is"]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=40, seed=1)

# Without a model's name, a small one is fetched on first use.
llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else None)

for output in llm.generate(prompts, sampling_params):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
