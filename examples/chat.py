"""A conversation of two turns, through the model's chat template: python chat.py [MODEL]"""

import sys

from octavo import LLM, SamplingParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else None)
sampling_params = SamplingParams(temperature=0, max_tokens=60)
messages = [{"role": "system", "content": "You answer in one sentence."}]

for question in ("What is a compiler?", "And what is an interpreter?"):
    messages.append({"role": "user", "content": question})
    # What the turns have in common is in the prefix cache from the first time.
    (output,) = llm.chat(messages, sampling_params, use_tqdm=False)
    answer = output.outputs[0].text
    messages.append({"role": "assistant", "content": answer})
    print(f"> {question}\n{answer}")
    print(f"  ({len(output.prompt_token_ids)} prompt tokens, {output.num_cached_tokens} of them cached)")
