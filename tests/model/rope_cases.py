"""The rope configurations that are compared with transformers: (config.json, context length served)."""

from __future__ import annotations

from typing import Any

POSITIONS = [0, 1, 1000, 20000]
BASE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "rope_theta": 50000.0,
}
SHORT = [1.0 + 0.05 * i for i in range(16)]
LONG = [1.0 + 1.5 * i for i in range(16)]


def scaled(**parameters: Any) -> dict[str, Any]:
    return BASE | {"rope_scaling": parameters}


CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    "default": (BASE, None),
    "default, named": (scaled(rope_type="default"), None),
    "rope_parameters": (
        {k: v for k, v in BASE.items() if k != "rope_theta"}
        | {"rope_parameters": {"rope_type": "linear", "rope_theta": 7000.0, "factor": 3.0}},
        None,
    ),
    "linear": (scaled(type="linear", factor=4.0), None),
    "dynamic, within the original length": (scaled(rope_type="dynamic", factor=2.0), 1000),
    "dynamic, no length": (scaled(rope_type="dynamic", factor=2.0), None),
    "dynamic, past the original length": (scaled(type="dynamic", factor=2.0), 20001),
    "yarn": (scaled(rope_type="yarn", factor=4.0, original_max_position_embeddings=4096), None),
    "yarn, original from max_position": (scaled(type="yarn", factor=4.0), None),
    "yarn, betas": (scaled(rope_type="yarn", factor=8.0, beta_fast=16.0, beta_slow=2.0, truncate=False), None),
    "yarn, attention factor": (scaled(rope_type="yarn", factor=8.0, attention_factor=0.75), None),
    "yarn, mscale": (scaled(rope_type="yarn", factor=40.0, mscale=1.0, mscale_all_dim=0.7), None),
    "llama3": (
        scaled(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=512,
        ),
        None,
    ),
    "longrope, short": (
        scaled(
            rope_type="longrope", short_factor=SHORT, long_factor=LONG, factor=8.0, original_max_position_embeddings=512
        ),
        512,
    ),
    "longrope, long": (
        scaled(type="longrope", short_factor=SHORT, long_factor=LONG, original_max_position_embeddings=512),
        513,
    ),
    "longrope, attention factor": (
        scaled(
            type="longrope",
            short_factor=SHORT,
            long_factor=LONG,
            attention_factor=1.25,
            original_max_position_embeddings=512,
        ),
        100,
    ),
    "longrope, original at the top": (
        scaled(type="longrope", short_factor=SHORT, long_factor=LONG) | {"original_max_position_embeddings": 1024},
        4096,
    ),
}
