"""Records tests/golden/rope.json: inverse frequencies, attention scaling and angles of transformers' rotary embeddings.

Run with an interpreter that has torch and transformers:  PYTHONPATH=tests/model python tests/model/record_rope.py
"""

import json
from pathlib import Path

import torch
from rope_cases import CASES, POSITIONS
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def record(written: dict, length: int | None) -> dict:
    config = LlamaConfig(**json.loads(json.dumps(written)))
    rotary = LlamaRotaryEmbedding(config)
    kind = config.rope_parameters["rope_type"]
    if kind == "default":
        inv_freq, scale = rotary.inv_freq, rotary.attention_scaling
    else:
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    angles = torch.tensor(POSITIONS, dtype=torch.float32)[:, None] * inv_freq
    return {
        "inv_freq": inv_freq.tolist(),
        "scale": float(scale),
        "cos": (angles.cos() * scale).tolist(),
        "sin": (angles.sin() * scale).tolist(),
    }


if __name__ == "__main__":
    found = {name: record(*case) for name, case in CASES.items()}
    (Path(__file__).parents[1] / "golden" / "rope.json").write_text(json.dumps(found), encoding="utf-8")
