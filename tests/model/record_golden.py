"""Records tests/golden/tiny_*.npz: what transformers computes, in float32 and eager mode, for the checkpoints of
tiny.py: logits and greedy tokens, a file each, and the pooled states of the prompts in tiny_pooled.npz.

Run with an interpreter that has torch and transformers:  PYTHONPATH=src:tests/model python tests/model/record_golden.py
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
import transformers

GOLDEN = Path(__file__).parents[1] / "golden"
NEW_TOKENS = 64


def load(name: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        tiny.write_checkpoint(name, Path(folder))
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()


@torch.no_grad()
def pooled(name: str) -> dict[str, np.ndarray]:
    """The states behind the final norm: the last token's, and the mean of all."""
    states = load(name).model(torch.tensor([tiny.prompt(name)]), use_cache=False).last_hidden_state[0]
    return {f"{name}_last": states[-1].numpy(), f"{name}_mean": states.double().mean(dim=0).float().numpy()}


@torch.no_grad()
def record(name: str) -> None:
    model = load(name)
    ids = tiny.prompt(name)
    # No cache: every token is computed by the definition, and a window is a mask.
    logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
    margin = np.inf
    greedy: list[int] = []
    for _ in range(NEW_TOKENS):
        row = model(torch.tensor([ids + greedy]), use_cache=False).logits[0, -1]
        best = row.topk(2).values
        margin = min(margin, float(best[0] - best[1]))
        greedy.append(int(row.argmax()))
    np.savez_compressed(
        GOLDEN / f"tiny_{name}.npz", logits=logits[9::10].astype(np.float32), greedy=np.array(greedy, np.int32)
    )
    print(
        f"{name}: max |logit| {np.abs(logits).max():.3f}, least greedy margin {margin:.2e}, {len(set(greedy))} tokens"
    )


if __name__ == "__main__":
    torch.set_num_threads(2)
    GOLDEN.mkdir(exist_ok=True)
    vectors = [pooled(checkpoint) for checkpoint in tiny.CONFIGS]
    np.savez_compressed(GOLDEN / "tiny_pooled.npz", **{key: value for one in vectors for key, value in one.items()})
    for checkpoint in tiny.CONFIGS:
        record(checkpoint)
