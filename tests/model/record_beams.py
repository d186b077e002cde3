"""Records tests/golden/beams.json: what transformers' beam search finds, in float32, for the cases of beam_cases.py.

A case is recorded where float64, and weights that differ in their last bits, lead to the same tokens.
Run with an interpreter that has torch and transformers:  PYTHONPATH=src:tests/model python tests/model/record_beams.py
"""

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import beam_cases
import tiny
import torch
import transformers

GOLDEN = Path(__file__).parents[1] / "golden" / "beams.json"
LEAST = 0.8  # of the cases


@torch.no_grad()
def search(model: Any, prompt: list[int], case: beam_cases.Case, stops: list[int]) -> list[dict[str, Any]]:
    """The hypotheses, the best first: generated tokens and score."""
    found = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        generation_config=transformers.GenerationConfig(
            do_sample=False,
            num_beams=case.num_beams,
            num_return_sequences=case.num_beams,
            max_new_tokens=case.max_new_tokens,
            length_penalty=case.length_penalty,
            early_stopping=case.early_stopping,
            eos_token_id=stops or None,
            pad_token_id=tiny.BASE["vocab_size"] - 1,
            return_dict_in_generate=True,
            output_scores=True,
            output_logits=True,
            use_cache=False,  # every token by the definition, and a window is a mask
        ),
    )
    results = []
    scores = found.sequences_scores if case.num_beams > 1 else [torch.tensor(0.0)]
    for ids, score in zip(found.sequences.tolist(), scores, strict=True):
        generated = ids[len(prompt) :]
        end = next((place for place, token in enumerate(generated) if token in stops), case.max_new_tokens - 1)
        results.append({"tokens": generated[: end + 1], "score": float(score)})
    return results


@torch.no_grad()
def shaken(model: Any) -> Any:
    """The model with its weights changed in their last bits."""
    other = copy.deepcopy(model)
    torch.manual_seed(0)
    for weight in other.parameters():
        weight *= 1 + 2e-6 * torch.randn_like(weight)
    return other


def record(name: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_checkpoint(name, Path(folder))
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    model.generation_config = transformers.GenerationConfig()
    others = [copy.deepcopy(model).double(), shaken(model)]
    entries = []
    for number, case in enumerate(beam_cases.CASES):
        for length in beam_cases.PROMPT_LENGTHS:
            prompt, stops = beam_cases.prompt(name, length), beam_cases.stops(name, case)
            found = search(model, prompt, case, stops)
            tokens = [one["tokens"] for one in found]
            if all([one["tokens"] for one in search(other, prompt, case, stops)] == tokens for other in others):
                entries.append({"case": number, "prompt": length, "found": found})
    return entries


if __name__ == "__main__":
    torch.set_num_threads(1)
    golden = {checkpoint: record(checkpoint) for checkpoint in tiny.CONFIGS}
    for checkpoint, entries in golden.items():
        share = len(entries) / (len(beam_cases.CASES) * len(beam_cases.PROMPT_LENGTHS))
        print(f"{checkpoint}: {share:.0%} of the cases are clear")
        assert share >= LEAST
    GOLDEN.write_text(json.dumps(golden) + "\n")
